"""What a topology is made of: workers, and the channels between them.

Giving a worker a channel's port *is* the edge: the engines allocate, wire, wake and supervise from the same objects
that `repertory show` draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
Ports: TypeAlias = Mapping[str, PortOf]
Kind: TypeAlias = Literal["play", "learn", "infer", "serve", "evaluate", "control"]


def first_line(docstring: str | None) -> str:
    return (docstring or "").partition("\n")[0].rstrip(".")


@dataclass(frozen=True)
class Worker:
    """One worker of a run: `rank` counts the workers of its name, `index` counts all."""

    index: int
    name: str
    rank: int

    def __str__(self) -> str:
        return f"{self.name} {self.rank}"


@dataclass(frozen=True)
class Workers:
    """`count` workers of one name, the paper's word for them, and how each is built.

    `build` takes the worker's context and its ports by their names, and returns its roles in the order of their turns.
    """

    name: str
    count: int
    build: Callable[..., Any]
    ports: Ports = field(default_factory=dict)
    does: str = ""
    """What it does, for people; by default the docstring of `build`."""
    kind: Kind = "learn"
    """Workers that play rest first at the end of a run. If an evaluator fails, the run loses a score only."""
    build_group: Callable[..., Any] | None = None
    """Builds several workers that share a process and a policy, from their contexts and the first one's ports: for
    workers that mostly wait for their environments."""
    per_process: int = 0
    """Workers that share a process; 0 = as many processes as there are cores, or as there are workers."""
    together: bool = False
    """If one fails, all are started again: replicas wait for each other."""
    own_core: bool = False
    """It has a core to itself where fewer processes play than there are cores, unless its network is large."""
    pinned: bool = False
    """Each keeps to one core, where they are as many as there are cores, or a multiple."""
    synchronous: bool = False
    placed: Literal["with the driver", "beside actors", "spread"] = "with the driver"
    """On which machines, where there are several; workers that play are on those that are asked for."""

    @property
    def purpose(self) -> str:
        told = first_line(getattr(self.build, "func", self.build).__doc__)  # also of a `functools.partial`
        return self.does or told[:1].lower() + told[1:]

    @property
    def blocking(self) -> bool:
        """Whether JAX computes in the calling thread: the worker can do nothing else until the result is there."""
        return self.synchronous or self.kind in ("infer", "evaluate")

    @property
    def progress(self) -> int:
        """Pieces of work after which earlier failures are forgiven; evaluators and controllers do few, large ones."""
        return 1 if self.kind in ("evaluate", "control") else 20

    def channels(self) -> Iterator[tuple[Channel, str]]:
        """Each channel that it has a port of, and the port's direction."""
        for given in self.ports.values():
            yield given.__self__, given.direction  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Topology:
    """Everything that runs. Each process composes it from the same plan and binds it to the same arrays."""

    workers: tuple[Workers, ...]
    weights: Latest | Shared
    """The channel with the newest weights."""
    learned: Snapshot | Shared
    """The channel where the learner state survives."""
    steps_per_update: float
    """Env steps for each update."""
    epsilon: Callable[[int], Callable[[int], float]] | None = None
    """From an actor's rank to its ε as a function of env steps; None = actions are sampled from the policy."""
    pacing: Pacing | None = None
    """How many updates are owed for how many env steps, where one learner makes all updates."""
    counts: tuple[str, ...] = ()
    """Counters that are metrics of this topology, besides those of all."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        found = {id(channel): channel for group in self.workers for channel, _ in group.channels()}
        return tuple(({id(self.weights): self.weights, id(self.learned): self.learned} | found).values())

    def roster(self) -> list[Worker]:
        names = [(group.name, rank) for group in self.workers for rank in range(group.count)]
        return [Worker(index, *each) for index, each in enumerate(names)]

    def group(self, name: str) -> Workers:
        return next(group for group in self.workers if group.name == name)

    def holders(self, channel: Channel, *directions: str) -> list[Workers]:
        """Workers with a port of this channel in one of these directions."""
        return [
            group
            for group in self.workers
            if any(each is channel and direction in directions for each, direction in group.channels())
        ]


@dataclass(frozen=True)
class TopologyKind:
    name: str
    described: str
    """A docstring; its first line is the summary."""
    compose: Callable[..., Topology]
    """Takes a plan and the topology's options."""
    options: type[TopologyOptions]
    agents: tuple[str, ...]
    """Names of agents that it trains, the default first; an agent of another name may say which one it is like."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Run options that it sets unless the user does."""
    engines: tuple[str, ...] = ("inline", "processes")

    @property
    def summary(self) -> str:
        return first_line(self.described)


def validate(
    kind: TopologyKind, *, engine: str, agent: str, like: str = "", others: Iterable[TopologyKind] = ()
) -> None:
    """Refuse an engine or an agent that the topology does not support; `like` names an agent that this one is like.

    `others` are the topologies that there are: the error names those that run on the engine.
    """
    if engine not in kind.engines:
        instead = ", ".join(other.name for other in others if engine in other.engines)
        hint = f"; these do: {instead}" if instead else nearest(engine, kind.engines)
        raise UserError(f"topology {kind.name!r} does not run on engine {engine!r}{hint}")
    refuse_agent(kind, agent, like)


def refuse_agent(kind: TopologyKind, agent: str, like: str = "") -> None:
    if agent not in kind.agents and like not in kind.agents:
        raise UserError(f"topology {kind.name!r} does not train agent {agent!r}{nearest(agent, kind.agents)}")


def draw(kind: TopologyKind, topology: Topology) -> str:
    """The topology as text: workers with their counts, a line for each edge, then what it sets."""
    width = max(len(group.name) + 2 for group in topology.workers)
    workers = [f"  {f'[{group.name}]':<{width}} × {group.count}  {group.purpose}" for group in topology.workers]
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
