"""What a topology is made of: workers, and the channels between them; imports channels and errors.

Giving a worker a channel's port *is* the edge: the engines allocate, wire, wake and supervise from the same objects
that `repertory show` draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from repertory.channels.channel import Channel
from repertory.channels.latest import Latest
from repertory.channels.snapshot import Shared, Snapshot
from repertory.errors import UserError, nearest
from repertory.roles.batches import Pacing
from repertory.topologies.options import TopologyOptions

PortOf: TypeAlias = Callable[..., Any]
"""A channel's bound method that gives a worker its port."""
Kind: TypeAlias = Literal["play", "learn", "infer", "serve", "evaluate", "control"]


@dataclass(frozen=True)
class Worker:
    """One of a run: `rank` counts those of its name, `index` all of them."""

    index: int
    name: str
    rank: int

    def __str__(self) -> str:
        return f"{self.name} {self.rank}"


@dataclass(frozen=True)
class Workers:
    """So many workers of one name, the paper's word for it, and what each is built from.

    `build` takes the worker's context and its ports by their names, and returns its roles in the order of their turns.
    """

    name: str
    count: int
    build: Callable[..., Any]
    ports: Mapping[str, PortOf] = field(default_factory=dict)
    does: str = ""
    kind: Kind = "learn"
    """What it mostly does. Those that play come to rest first at the end; an evaluator's failure costs a score only."""
    build_group: Callable[..., Any] | None = None
    """Builds several of them that share a process and a policy, from their contexts and the first one's ports: for
    workers that mostly wait for their environments."""
    per_process: int = 0
    """How many share a process; 0 = as many processes as there are cores, or as there are workers."""
    together: bool = False
    """If one fails, all are started again: nobody waits for a replica that has lost its place."""
    own_core: bool = False
    """It has a core to itself where fewer processes play than there are cores, unless its network is large."""
    pinned: bool = False
    """Each keeps to one core, where they are as many as there are cores, or a multiple."""
    synchronous: bool = False
    """It computes in the calling thread: it has nothing to do while a result is not there."""
    progress: int = 20
    """Pieces of work after which earlier failures are forgiven; some workers have few to do, but large ones."""

    def channels(self) -> Iterator[tuple[Channel, str]]:
        """Each channel that it has a port of, and the port's direction."""
        for given in self.ports.values():
            yield given.__self__, given.direction  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Topology:
    """Everything that runs: made anew in each process, from the same plan, and then laid on the same arrays."""

    workers: tuple[Workers, ...]
    weights: Latest | Shared
    """Where the newest weights are found."""
    learned: Snapshot | Shared
    """Where the learner state survives."""
    steps_per_update: float
    """Env steps that each update stands for."""
    epsilon: Callable[[int], Callable[[int], float]] | None = None
    """By the rank of an actor: its share of random actions by env steps; None = the policy itself is sampled."""
    pacing: Pacing | None = None
    """How many updates are owed for how many env steps, where one learner makes them for all."""
    updates_per_call: int = 1
    counts: tuple[str, ...] = ()
    """Counters that are metrics of this topology, besides those of all."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """All channels, each once."""
        found = {id(channel): channel for group in self.workers for channel, _ in group.channels()}
        return tuple(({id(self.weights): self.weights, id(self.learned): self.learned} | found).values())

    def roster(self) -> list[Worker]:
        """Every worker."""
        who = [(group.name, rank) for group in self.workers for rank in range(group.count)]
        return [Worker(index, *each) for index, each in enumerate(who)]

    def group(self, name: str) -> Workers:
        """The workers of this name."""
        return next(group for group in self.workers if group.name == name)

    def holders(self, channel: Channel, *directions: str) -> list[Workers]:
        """Who has a port of this channel in one of these directions."""
        return [
            group
            for group in self.workers
            if any(each is channel and direction in directions for each, direction in group.channels())
        ]


@dataclass(frozen=True)
class TopologyKind:
    """A topology by its name: what it reads, what it sets, and how it is composed for a run."""

    name: str
    summary: str
    compose: Callable[..., Topology]
    """Takes a plan, and the options."""
    options: type[TopologyOptions]
    agents: tuple[str, ...]
    """Names of agents that it trains, the usual one first; an agent of another name may say what it is like."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Run options that it sets unless the user does."""
    engines: tuple[str, ...] = ("inline", "processes")


def validate(kind: TopologyKind, *, engine: str, agent: str, like: str = "") -> None:
    """Refuse an engine or an agent that the topology is not made for, and say what to choose instead.

    `like` names an agent of this package that the given one can stand in for.
    """
    if engine not in kind.engines:
        raise UserError(f"topology {kind.name!r} does not run on engine {engine!r}{nearest(engine, kind.engines)}")
    refuse_agent(kind, agent, like)


def refuse_agent(kind: TopologyKind, agent: str, like: str = "") -> None:
    """Refuse an agent that this topology does not train."""
    if agent not in kind.agents and like not in kind.agents:
        raise UserError(f"topology {kind.name!r} does not train agent {agent!r}{nearest(agent, kind.agents)}")


def draw(kind: TopologyKind, topology: Topology) -> str:
    """The topology as text: workers with their counts, a line for each edge, then what it sets."""
    names = [f"[{group.name}]" for group in topology.workers]
    width = max(map(len, names))
    workers = [
        f"  {name:<{width}} × {group.count}  {group.does}" for name, group in zip(names, topology.workers, strict=True)
    ]
    edges = [
        f"  {f'[{source}]':<{width}} ── {carries} ──▶ [{target}]{f'   {when}' if when else ''}"
        for source, target, carries, when in _edges(topology)
    ]
    sets = [f"  {line}" for line in _flat(kind.defaults)]
    own = [f"  {line}".rstrip() for line in _flat(asdict(kind.options()), "--topology.")]
    foot = f"engines: {', '.join(kind.engines)}   agents: {', '.join(kind.agents)}"
    parts = {"workers": workers, "channels": edges, "sets": sets, "options": own}
    listed = [line for name, lines in parts.items() if lines for line in (name, *lines, "")]
    return "\n".join([f"{kind.name}: {kind.summary}", "", *listed, foot])


def _edges(topology: Topology) -> Iterator[tuple[str, str, str, str]]:
    """Source, target, what flows and when."""
    for channel in topology.channels:
        sources, targets = topology.holders(channel, "out", "both"), topology.holders(channel, "in", "both")
        for source in sources:
            for target in targets:
                yield source.name, target.name, channel.carries, channel.when
        for source in targets if channel.back else []:
            for target in sources:
                yield source.name, target.name, channel.back, channel.back_when
    for source in topology.holders(topology.weights, "out", "both"):
        for target in topology.workers:
            if target.kind == "evaluate":
                yield source.name, target.name, "weights", "a snapshot every --eval-every env steps"


def _flat(options: Mapping[str, Any], prefix: str = "--") -> list[str]:
    lines = []
    for key, value in options.items():
        name = prefix + key.replace("_", "-")
        lines += _flat(value, f"{name}.") if isinstance(value, Mapping) else [f"{name} {value}"]
    return lines
