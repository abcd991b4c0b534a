"""Settings that were seen to work: one .toml file for each family of environments, or one of the user's own.

A file says in `match` how the ids of its environments begin, in `seen` which score its settings reached, and in `seeds`
on which seeds. `[options]` are for every run, `[topologies.NAME]` and `[topologies."NAME AGENT"]` for those alone.
Agents that learn from unrolls take all but the agent's of `[options]`, then `[unrolls]` and `[unrolls.topologies]`.
`[ablation]` is for a study of DQN's parts.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from repertory import topologies
from repertory.agents import registry
from repertory.environments.factory import registered_id
from repertory.errors import UserError, nearest
from repertory.runs.config import RunOptions, change, options_for
from repertory.topologies.graph import refuse_agent

Settings = Mapping[str, Any]
TEXTS = ("seen", "seeds")


@dataclass(frozen=True)
class Preset:
    """What a file says."""

    name: str
    match: tuple[str, ...] = ()
    seen: str = "no score"
    seeds: str = "none"
    options: Settings = field(default_factory=dict)
    topologies: Mapping[str, Settings] = field(default_factory=dict)
    unrolls: Settings = field(default_factory=dict)
    ablation: Settings = field(default_factory=dict)

    def layers(self, agent: registry.AgentKind, topology: str) -> list[Settings]:
        """Options for an agent on a topology, one after another; the later ones have the last word."""
        unrolled = agent.learns_from == "unrolls"
        general = {key: value for key, value in self.options.items() if not (unrolled and key == "agent")}
        own = {key: value for key, value in self.unrolls.items() if key != "topologies"} if unrolled else {}
        by_topology = self.unrolls.get("topologies", {}) if unrolled else self.topologies
        named = [by_topology.get(key, {}) for key in (topology, f"{topology} {agent.name}")]
        return [general, {"agent": agent.defaults}, topologies.find(topology).defaults, own, *named]

    def summary(self) -> dict[str, Any]:
        """What a table of presets tells; `unrolls` are settings for every agent that learns from them."""
        unrolls = ["unrolls"] if self.unrolls else []
        told = {"name": self.name, "environments": list(self.match), "seen": self.seen, "seeds": self.seeds}
        return {**told, "topologies": [*self.topologies, *unrolls, *self.unrolls.get("topologies", {})]}


NO_PRESET = Preset("", seen="no preset: the defaults of the options", unrolls={"envs_per_actor": 8})
"""For environments that no file is for; fewer environments would never fill the default batch of unrolls."""


@cache
def known() -> Mapping[str, Preset]:
    """The presets of this package by the names of their files."""
    return {path.stem: read_preset(path) for path in sorted(Path(__file__).parent.glob("*.toml"))}


def read_preset(path: Path) -> Preset:
    """The preset in a file; refuses in one sentence what can't be one."""
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
    """The preset with this name or in this file; without one, that for the environment."""
    if named is not None and (named in known() or not Path(named).suffix):
        if named not in known():
            raise UserError(f"unknown preset {named!r}{nearest(named, known())}; or give a .toml file")
        return known()[named]
    if named is not None:
        return read_preset(Path(named).expanduser())
    name = registered_id(environment).rpartition(":")[2]
    if "NoFrameskip" in name:  # the older ids of the Atari games
        name = f"ALE/{name}"
    return next((preset for preset in known().values() if name.startswith(preset.match)), NO_PRESET)


def choose_agent(topology: str) -> str:
    """The agent that a topology is for, if none is named."""
    return topologies.find(topology).agents[0]


def defaults(
    environment: str, agent: str | None = None, topology: str = topologies.DEFAULT, preset: str | None = None
) -> RunOptions:
    """The options of a preset, by default the environment's, for an agent and a topology."""
    kind, found = registry.find(agent or choose_agent(topology)), find_preset(environment, preset)
    refuse_agent(topologies.find(topology), kind.name, kind.like)
    options: RunOptions = change(options_for(kind.name, topology)(environment), {"preset": preset})
    try:
        for settings in found.layers(kind, topology):
            options = change(options, settings)
    except UserError as error:
        raise UserError(f"preset {preset or found.name}: {error}") from None
    return options
