"""One topology with more and more actors."""

from __future__ import annotations

from repertory.errors import UserError
from repertory.studies.compare import preset_of
from repertory.studies.entries import Candidate, Entry, enter
from repertory.studies.options import ScaleOptions, check, listed

SECONDS = 20.0
"""Of each run, if no budget is given."""


def entries(asked: ScaleOptions) -> list[Entry]:
    """A contestant for each number of actors, the fewest first."""
    check(asked)
    preset = preset_of(asked.environment, asked.topology)
    counts = sorted({_count(item) for item in listed(asked.actors, "--actors")})
    return enter(asked, [Candidate(_name(count), preset, {"actors": count}) for count in counts], SECONDS)


def _count(item: str) -> int:
    if not item.isdecimal() or int(item) < 1:
        raise UserError(f"--actors takes numbers above 0, not {item!r}")
    return int(item)


def _name(count: int) -> str:
    return "1 actor" if count == 1 else f"{count} actors"
