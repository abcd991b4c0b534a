"""Binds a topology's channels to arrays, and builds its workers from their ports: the same for every engine.

Inline, the arrays are plain memory; in processes, one shared block that each process maps. Only data in these arrays
survive a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from repertory.channels.channel import Bells, Channel, prefixed, under
from repertory.channels.counters import Counters
from repertory.channels.latest import Latest
from repertory.channels.mailbox import EvaluationMailbox
from repertory.channels.snapshot import Snapshot
from repertory.roles.ports import Role
from repertory.runtime import compute_at_once
from repertory.specs import Field
from repertory.topologies.graph import Topology, Worker, Workers
from repertory.topologies.plan import Context, Plan

RUN, PAUSE, LEAVE, LEARN, BUILD = 0, 1, 2, 3, 4
"""Phases that the driver sets; in LEARN, workers that play rest."""
Ring = Callable[[Sequence[int]], None]


class Wiring:
    """A topology on its arrays; `ring` wakes workers that wait, by their indices."""

    def __init__(self, plan: Plan, arrays: Mapping[str, NDArray[Any]], ring: Ring, *, in_thread: bool = False) -> None:
        self.plan, self.arrays, self.ring = plan, arrays, ring
        self.topology = plan.compose()
        self.workers = self.topology.roster()
        self.counters = counters_of(self.topology)
        self.counters.bind(under("counters", arrays))
        self.phase: NDArray[np.int64] = arrays["phase"]
        for channel in self.topology.channels:
            channel.bind(
                under(channel.name, arrays),
                Bells(self._bell(channel, "in"), self._bell(channel, "out")),
                total_updates=lambda: self.counters.total("updates"),
                in_thread=in_thread,
            )

    def _bell(self, channel: Channel, direction: str) -> Callable[..., None]:
        """A function that wakes the workers that wait at one end; with a rank, only the worker of this rank."""
        names = {group.name for group in self.topology.holders(channel, direction, "both")}
        indices = self.indices(lambda group: group.name in names)

        def wake(rank: int | None = None) -> None:
            self.ring(indices if rank is None else indices[rank : rank + 1])

        return wake

    @property
    def evaluation(self) -> EvaluationMailbox:
        return next(channel for channel in self.topology.channels if isinstance(channel, EvaluationMailbox))

    def group(self, worker: Worker) -> Workers:
        return self.topology.group(worker.name)

    def indices(self, wanted: Callable[[Workers], bool]) -> list[int]:
        return [worker.index for worker in self.workers if wanted(self.group(worker))]

    def context(self, worker: Worker, **more: Any) -> Context:
        return Context(self.plan, worker, self.counters.stats(worker.index), **more)

    def build(self, me: Context) -> list[Role]:
        """The worker's roles, in the order of their turns."""
        built = self._enter(me).build(me, **self._ports(me))
        return list(built) if isinstance(built, list) else [built]

    def build_group(self, us: Sequence[Context]) -> Any:
        groups = [self._enter(me) for me in us]
        assert groups[0].build_group is not None
        return groups[0].build_group(us, **self._ports(us[0]))

    def _enter(self, me: Context) -> Workers:
        group = self.group(me.worker)
        if group.kind != "evaluate":  # the number of an evaluation alone decides the seeds of its episodes
            me.stats.count("starts")
        if group.blocking or (group.own_core and me.spare):  # its own core has nothing else to do meanwhile
            compute_at_once()
        return group

    def _ports(self, me: Context) -> dict[str, Any]:
        return {name: port(me) for name, port in self.group(me.worker).ports.items()}

    def needs_weights(self, worker: Worker) -> bool:
        """Whether it reads weights that other workers publish, so that they must be published before it is built."""
        group = self.group(worker)
        directions = {direction for channel, direction in group.channels() if isinstance(channel, Latest)}
        return directions == {"in"} or group.kind == "evaluate"

    # What a checkpoint contains is the same for every topology.

    def initialise(self) -> None:
        """A fresh learner state, and everything else empty."""
        for channel in self.topology.channels:
            channel.clear()
        self.counters.arrays["place"][:] = -1
        leaves = jax.tree_util.tree_leaves(self.plan.agent.init(self.plan.seed))
        self.topology.learned.load_state({f"{index:02d}": np.asarray(leaf) for index, leaf in enumerate(leaves)})

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint needs, while all workers rest.

        If a learner was killed and the run ends, its updates since the last snapshot are lost and do not count.
        """
        layout, counters, learned = self.plan.agent.layout.fingerprint, self.counters.state(), self.topology.learned
        if isinstance(learned, Snapshot):
            counters["updates"] = np.minimum(counters["updates"], learned.updates)
        return {
            "env_steps": int(counters["env_steps"].sum()),
            "updates": int(counters["updates"].sum()),
            "episodes": self.counters.total("episodes"),
            "learner": {"learned": learned.state(), "layout": layout},
            "channels": {channel.name: channel.state() for channel in self._others()},
            "counters": counters,
            "workers": {str(worker): self.counters.read_note(worker.index) for worker in self.workers},
        }

    def _others(self) -> list[Channel]:
        return [channel for channel in self.topology.channels if channel is not self.topology.learned]

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, before any worker is built."""
        self.plan.agent.layout.check(state["learner"].get("layout"))
        self.topology.learned.load_state(state["learner"]["learned"])
        for channel in self._others():
            channel.load_state(state["channels"].get(channel.name, {}))
        self.counters.load_state(state["counters"])
        for worker in self.workers:
            self.counters.write_note(worker.index, state["workers"][str(worker)])

    def restart(self) -> None:
        """Forget what a checkpoint does not contain, before the workers are built again."""
        notes = [self.counters.read_note(worker.index) for worker in self.workers]
        for channel in (self.counters, *self.topology.channels):
            channel.restart()
        self.counters.arrays["place"][:] = -1
        for worker, note in zip(self.workers, notes, strict=True):
            self.counters.write_note(worker.index, note)


def counters_of(topology: Topology) -> Counters:
    return Counters("counters", len(topology.roster()))


def fields_of(plan: Plan, adapt: Callable[[Topology], None] = lambda _: None) -> dict[str, Field]:
    """What has to be allocated; `adapt` changes the channels first, for a machine that does not hold all of them."""
    topology = plan.compose()
    adapt(topology)
    fields: dict[str, Field] = {"phase": Field((2,), "int64", "driver")}
    for channel in (counters_of(topology), *topology.channels):
        fields |= prefixed(channel.name, channel.fields())
    return fields
