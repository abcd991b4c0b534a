"""Topologies side by side, with one budget for all."""

from __future__ import annotations

from repertory import topologies
from repertory.agents import registry
from repertory.errors import UserError
from repertory.runs.config import RunOptions, change
from repertory.runs.presets import defaults
from repertory.studies.entries import Candidate, Entry, enter
from repertory.studies.options import CompareOptions, check, known, listed

SECONDS = 60.0
"""Of each run, if no budget is given."""


def entries(asked: CompareOptions) -> list[Entry]:
    """A contestant for each topology that is named."""
    check(asked)
    if asked.actors is not None and asked.actors < 1:
        raise UserError(f"--actors must be above 0, not {asked.actors}")
    items = _items(asked.topologies)
    found = enter(asked, [Candidate(item, _preset(asked, item)) for item in items], SECONDS)
    for index, entry in enumerate(found):
        for other in found[:index]:
            if entry.options == other.options:
                raise UserError(f"{other.contestant.name!r} and {entry.contestant.name!r} are the same; name one")
    return found


def _items(text: str) -> list[str]:
    """The names in the list, with those behind `all` in its place."""
    items = listed(text, "--topologies")
    every = [name for name in topologies.known() if name not in items]
    return [name for item in items for name in (every if item == "all" else [item])]


def _preset(asked: CompareOptions, item: str) -> RunOptions:
    options = preset_of(asked.environment, item)
    if asked.actors is None or options.topology_name == "single":
        return options
    changed: RunOptions = change(options, {"actors": asked.actors})
    return changed


def preset_of(environment: str, item: str) -> RunOptions:
    """The preset for `topology` or `topology:agent`."""
    name, separator, agent = item.partition(":")
    topology = topologies.find(name)
    chosen = known(agent, tuple(registry.known()), f"agent of {name}") if separator else topology.agents[0]
    return defaults(environment, chosen, name)
