"""Presets, settings that were seen to work: a .toml file for each family of environments, or one of the user's own;
and options spelled as arguments of the command line, as far as they differ from a preset.

A file says in `match` how the ids of its environments begin, in `seen` which score its settings reached, and in `seeds`
on which seeds. `[options]` are for every run, `[topologies.NAME]` and `[topologies."NAME AGENT"]` for those alone.
Agents that learn from unrolls take all but the agent's of `[options]`, then `[unrolls]` and `[unrolls.topologies]`.
`[ablation]` is for a study of DQN's parts.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from repertory import topologies
from repertory.agents import registry
from repertory.environments.factory import registered_id
from repertory.errors import UserError, nearest
from repertory.runs.config import RunOptions, change, flag, names_of, options_for, value_of
from repertory.topologies.graph import refuse_agent

Settings = Mapping[str, Any]
TEXTS = ("seen", "seeds")


@dataclass(frozen=True)
class Preset:
    name: str
    match: tuple[str, ...] = ()
    seen: str = "no score"
    seeds: str = "none"
    options: Settings = field(default_factory=dict)
    topologies: Mapping[str, Settings] = field(default_factory=dict)
    unrolls: Settings = field(default_factory=dict)
    ablation: Settings = field(default_factory=dict)

    def layers(self, agent: registry.AgentKind, topology: str) -> list[Settings]:
        """Options for an agent on a topology; later ones override earlier ones."""
        unrolled = agent.learns_from == "unrolls"
        general = {key: value for key, value in self.options.items() if not (unrolled and key == "agent")}
        own = {key: value for key, value in self.unrolls.items() if key != "topologies"} if unrolled else {}
        by_topology = self.unrolls.get("topologies", {}) if unrolled else self.topologies
        named = [by_topology.get(key, {}) for key in (topology, f"{topology} {agent.name}")]
        return [general, {"agent": agent.defaults}, topologies.find(topology).defaults, own, *named]

    def summary(self) -> dict[str, Any]:
        """What `repertory presets` tells; `unrolls` are settings for every agent that learns from them."""
        unrolls = ["unrolls"] if self.unrolls else []
        told = {"name": self.name, "environments": list(self.match), "seen": self.seen, "seeds": self.seeds}
        return {**told, "topologies": [*self.topologies, *unrolls, *self.unrolls.get("topologies", {})]}

    def text(self) -> str:
        return (
            f"{self.name}: {', '.join(f'{prefix}…' for prefix in self.match)}\n"
            f"  score       {self.seen}\n"
            f"  seeds       {self.seeds}\n"
            f"  topologies  {', '.join(self.summary()['topologies']) or '–'}"
        )


NO_PRESET = Preset("", seen="no preset: the defaults of the options", unrolls={"envs_per_actor": 8})
"""For environments without a preset; fewer environments would never fill the default batch of unrolls."""


@cache
def known() -> Mapping[str, Preset]:
    """The presets of this package by file name."""
    return {path.stem: read_preset(path) for path in sorted(Path(__file__).parent.glob("*.toml"))}


def read_preset(path: Path) -> Preset:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--preset can't read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"--preset can't read {path} as TOML: {error}") from None
    try:
        _check(values)
    except UserError as error:
        raise UserError(f"preset {path}: {error}") from None
    return Preset(path.stem, **{**values, "match": tuple(values.get("match", ()))})


def _check(values: Settings) -> None:
    parts = {item.name for item in fields(Preset)} - {"name"}
    for key, value in values.items():
        if key not in parts:
            raise UserError(f"it has no part {key!r}{nearest(key, parts)}")
        if key == "match":
            if not isinstance(value, list) or not all(isinstance(prefix, str) and prefix for prefix in value):
                raise UserError(f"'match' must be a list of texts with which ids begin, not {value!r}")
        elif not isinstance(value, str if key in TEXTS else dict):
            raise UserError(f"{key!r} must be {'a text' if key in TEXTS else 'a table of options'}, not {value!r}")
    for entries in (values.get("topologies", {}), values.get("unrolls", {}).get("topologies", {})):
        for entry, settings in entries.items():
            name, _, agent = entry.partition(" ")
            if topologies.find(name) and agent:
                registry.find(agent)
            if not isinstance(settings, dict):
                raise UserError(f"'topologies.{entry}' must be a table of options, not {settings!r}")


def find_preset(environment: str, named: str | None = None) -> Preset:
    """The preset with this name or in this file; by default that of the environment."""
    if named is not None:
        if named in known():
            return known()[named]
        if Path(named).suffix:
            return read_preset(Path(named).expanduser())
        raise UserError(f"unknown preset {named!r}{nearest(named, known())}; or give a .toml file")
    name = registered_id(environment).rpartition(":")[2]
    if "NoFrameskip" in name:  # the older ids of the Atari games
        name = f"ALE/{name}"
    return next((preset for preset in known().values() if name.startswith(preset.match)), NO_PRESET)


def choose_agent(topology: str) -> str:
    """The default agent of a topology."""
    return topologies.find(topology).agents[0]


def defaults(
    environment: str, agent: str | None = None, topology: str = topologies.DEFAULT, preset: str | None = None
) -> RunOptions:
    kind, found = registry.find(agent or choose_agent(topology)), find_preset(environment, preset)
    refuse_agent(topologies.find(topology), kind.name, kind.like)
    options: RunOptions = change(options_for(kind.name, topology)(environment), {"preset": preset})
    try:
        for settings in found.layers(kind, topology):
            options = change(options, settings)
    except UserError as error:
        raise UserError(f"preset {preset or found.name}: {error}") from None
    return options


def train_words(options: RunOptions) -> list[str]:
    """What to type behind `repertory` for a run with these options: all that differ from the preset's."""
    usual = defaults(options.environment, options.agent_name, options.topology_name)
    first = ["train", options.environment, "--topology", options.topology_name, "--agent", options.agent_name]
    skip = ("environment", "topology_name", "agent_name", "preset", "config")
    return first + words(options, usual, skip=skip)


def words(options: Any, usual: Any, *, skip: Collection[str] = (), repeated: Collection[str] = ()) -> list[str]:
    """A flag for each option that differs from `usual`; one for each item of those that are `repeated`."""
    found: list[str] = []
    for name in names_of(type(options)):
        value = value_of(options, name)
        if name in skip or value == value_of(usual, name):
            continue
        if name in repeated:
            found += [f"{flag(name)}={item}" for item in value]
        elif isinstance(value, bool):
            room, dot, own = name.rpartition(".")
            found.append(flag(name if value else f"{room}{dot}no_{own}"))
        elif isinstance(value, tuple):
            found += [flag(name), *map(str, value)]
        else:
            found.append(f"{flag(name)}={value}")  # with `=`, as a negative number would look like a flag
    return found
