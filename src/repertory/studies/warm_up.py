"""A short run of each contestant before the first that counts: programs are compiled, and kept, off everybody's clock.

A program is compiled when it is first used, so without this the first seed of a contestant would pay for it, and the
later ones find it in the cache.
"""

from __future__ import annotations

from pathlib import Path

from repertory.runs.config import RunOptions, change
from repertory.studies.budget import FOR_EVER
from repertory.studies.entries import apply

NAME = "warm-up"
"""Of the run's directory, while there is one."""
SECONDS = 2.0


def warm_up_of(options: RunOptions, place: Path) -> RunOptions:
    """Options of a run that acts, learns and is evaluated as soon as it can, with the same programs."""
    brief = {"seconds": SECONDS, "env_steps": FOR_EVER, "target_score": None, "eval_max_steps": 20}
    rare = {"eval_every": FOR_EVER, "eval_every_s": None}
    changed = change(options, {**brief, **rare, "name": NAME, "runs_dir": place})
    return apply(changed, {"agent.learning_starts": 0}, known_only=True)
