"""A topology is data: which roles, how many, who sends what to whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from repertory.errors import UserError, nearest
from repertory.topologies.options import TopologyOptions


@dataclass(frozen=True)
class Node:
    """A role and how many of it: a number, or the name of the option that says so."""

    role: str
    count: str = "1"
    does: str = ""


@dataclass(frozen=True)
class Edge:
    """What flows from one role to another, and when."""

    source: str
    target: str
    carries: str
    when: str


@dataclass(frozen=True)
class Topology:
    """Who does what, and who talks to whom; `defaults` are options that it sets unless the user does.

    Members of roles `together` are started anew all at once, if one of them fails.
    """

    name: str
    summary: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    engines: tuple[str, ...]
    agents: tuple[str, ...]
    options: type[TopologyOptions]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    together: tuple[str, ...] = ()

    def has(self, role: str) -> bool:
        """Whether anybody has this role."""
        return any(node.role == role for node in self.nodes)

    def member_roles(self, counts: Mapping[str, int]) -> list[tuple[str, int]]:
        """Role and rank of every member; `counts` are the options that nodes name."""
        return [
            (node.role, rank)
            for node in self.nodes
            for rank in range(int(node.count) if node.count.isdigit() else counts[node.count])
        ]


def validate(topology: Topology, *, engine: str, agent: str, actors: int) -> None:
    """Refuse what makes no sense, and say what to choose instead."""
    if engine not in topology.engines:
        raise UserError(
            f"topology {topology.name!r} does not run on engine {engine!r}{nearest(engine, topology.engines)}"
        )
    refuse_agent(topology, agent)
    if actors > 1 and all(node.count != "actors" for node in topology.nodes):
        raise UserError(
            f"topology {topology.name!r} has one actor, not {actors}: for more environments give --envs-per-actor, "
            f"for more processes --topology collectors --actors {actors}"
        )
    roles = {node.role for node in topology.nodes}
    loose = {end for edge in topology.edges for end in (edge.source, edge.target)} - roles
    if loose:
        raise ValueError(f"topology {topology.name!r} has edges to unknown roles {sorted(loose)}")


def refuse_agent(topology: Topology, agent: str) -> None:
    """Refuse an agent that this topology does not train."""
    if agent not in topology.agents:
        raise UserError(f"topology {topology.name!r} does not train agent {agent!r}{nearest(agent, topology.agents)}")


def draw(topology: Topology) -> str:
    """The topology as text: roles with their counts, one line for each edge, what it sets, its own options."""
    width = max(len(node.role) for node in topology.nodes)
    widest = max(len(node.count) for node in topology.nodes)
    roles = [
        f"  [{node.role}]{'':{width - len(node.role)}} × {node.count:<{widest}}  {node.does}" for node in topology.nodes
    ]
    edges = [
        f"  [{edge.source}]{'':─<{width - len(edge.source) + 2}} {edge.carries} ──▶ [{edge.target}]   {edge.when}"
        for edge in topology.edges
    ]
    head = f"{topology.name}: {topology.summary}"
    sets = [f"  {line}" for line in _flat(topology.defaults)]
    own = [f"  {line}".rstrip() for line in _flat(asdict(topology.options()), "--topology.")]
    foot = f"engines: {', '.join(topology.engines)}   agents: {', '.join(topology.agents)}"
    parts = {"roles": roles, "edges": edges, "sets": sets, "options": own}
    listed = [line for name, lines in parts.items() if lines for line in (name, *lines, "")]
    return "\n".join([head, "", *listed, foot])


def _flat(options: Mapping[str, Any], prefix: str = "--") -> list[str]:
    lines = []
    for key, value in options.items():
        name = prefix + key.replace("_", "-")
        lines += _flat(value, f"{name}.") if isinstance(value, Mapping) else [f"{name} {value}"]
    return lines
