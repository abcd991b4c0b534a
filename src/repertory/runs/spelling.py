"""Options as somebody would type them; the way back is the command line's own parser."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from repertory.runs.config import RunOptions, flag, names_of, value_of
from repertory.runs.presets import defaults

SKIPPED = ("environment", "topology_name", "agent_name", "preset", "config")


def train_words(options: RunOptions) -> list[str]:
    """What to type behind `repertory` for a run with these options: all that is not the preset's."""
    usual = defaults(options.environment, options.agent_name, options.topology_name)
    first = ["train", options.environment, "--topology", options.topology_name, "--agent", options.agent_name]
    return first + words(options, usual, skip=SKIPPED)


def words(options: Any, usual: Any, *, skip: Collection[str] = (), repeated: Collection[str] = ()) -> list[str]:
    """A flag for each option that is not as usual; one for each item of those that are `repeated`."""
    names = [name for name in names_of(type(options)) if name not in skip]
    changed = {name: value_of(options, name) for name in names if value_of(options, name) != value_of(usual, name)}
    return [
        word
        for name, value in changed.items()
        for word in ([f"{flag(name)}={item}" for item in value] if name in repeated else _spelled(name, value))
    ]


def _spelled(name: str, value: Any) -> list[str]:
    """With `=`, as a negative number would else look like a flag."""
    if isinstance(value, bool):
        room, _, own = name.rpartition(".")
        return [flag(name) if value else flag(f"{room}.no_{own}".lstrip("."))]
    if isinstance(value, tuple):
        return [flag(name), *map(str, value)]
    return [f"{flag(name)}={value}"]
