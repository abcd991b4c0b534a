"""Lays a topology's channels on arrays, and builds its workers from their ports: the same for every engine.

Inline the arrays are plain memory, in processes one shared block that each of them maps. What must survive a worker
lies on them and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.channels.channel import Bells, Channel, prefixed, under
from repertory.channels.counters import Counters
from repertory.channels.latest import Latest
from repertory.channels.mailbox import EvaluationMailbox
from repertory.channels.snapshot import Shared, Snapshot
from repertory.roles.ports import Role
from repertory.runtime import compute_at_once
from repertory.specs import Field
from repertory.topologies.graph import Topology, Worker, Workers
from repertory.topologies.plan import Context, Plan

RUN, PAUSE, LEAVE, LEARN, BUILD = 0, 1, 2, 3, 4
"""What the driver wants of everybody; in LEARN those rest who play."""
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
            self._bind(channel, in_thread)

    def _bind(self, channel: Channel, in_thread: bool) -> None:
        arrays, bells = under(channel.name, self.arrays), self._bells(channel)
        if in_thread and isinstance(channel, Latest):
            channel.bind_in_thread(arrays, bells)
        else:
            channel.bind(arrays, bells)
        if isinstance(channel, Shared):
            channel.updates = lambda: self.counters.total("updates")

    def _bells(self, channel: Channel) -> Bells:
        return Bells(self._bell(channel, "in", "both"), self._bell(channel, "out", "both"))

    def _bell(self, channel: Channel, *directions: str) -> Callable[..., None]:
        """A function that wakes those who wait at one end; with a rank, the one of this rank."""
        names = {group.name for group in self.topology.holders(channel, *directions)}
        indices = [worker.index for worker in self.workers if worker.name in names]

        def wake(rank: int | None = None) -> None:
            self.ring(indices if rank is None else indices[rank : rank + 1])

        return wake

    @property
    def evaluation(self) -> EvaluationMailbox:
        """Where evaluations are asked for."""
        return next(channel for channel in self.topology.channels if isinstance(channel, EvaluationMailbox))

    def group(self, worker: Worker) -> Workers:
        return self.topology.group(worker.name)

    def indices(self, wanted: Callable[[Workers], bool]) -> list[int]:
        """Of the workers whose kind is wanted."""
        return [worker.index for worker in self.workers if wanted(self.group(worker))]

    def context(self, worker: Worker, **more: Any) -> Context:
        """For a worker that is about to be built."""
        return Context(self.plan, worker, self.counters.stats(worker.index), **more)

    def build(self, me: Context) -> list[Role]:
        """The worker's roles, in the order of their turns."""
        group = self._enter(me)
        built = group.build(me, **self._ports(group, me))
        return list(built) if isinstance(built, list) else [built]

    def build_group(self, us: Sequence[Context]) -> Any:
        """Workers of one name that share a process."""
        for me in us:
            group = self._enter(me)
        assert group.build_group is not None
        return group.build_group(us, **self._ports(group, us[0]))

    def _enter(self, me: Context) -> Workers:
        group = self.group(me.worker)
        if group.kind != "evaluate":  # its episodes' seeds follow from the number of the evaluation alone
            me.stats.count("starts")
        if group.blocking or (group.own_core and me.spare):  # then its own core has nothing else to do
            compute_at_once()
        return group

    @staticmethod
    def _ports(group: Workers, me: Context) -> dict[str, Any]:
        return {name: port(me) for name, port in group.ports.items()}

    def needs_weights(self, worker: Worker) -> bool:
        """Whether it reads weights that others publish, and so waits for them before it is built."""
        group = self.group(worker)
        directions = {direction for channel, direction in group.channels() if isinstance(channel, Latest)}
        return directions == {"in"} or group.kind == "evaluate"

    # What a checkpoint keeps, the same for every topology.

    def initialise(self) -> None:
        """A fresh learner state, and everything else as it begins."""
        for channel in self.topology.channels:
            channel.clear()
        for worker in self.workers:
            self.counters.arrays["place"][worker.index] = -1
        import jax  # here: a driver that only forwards a plan need not start it

        leaves = jax.tree_util.tree_leaves(self.plan.agent.init(self.plan.seed))
        self.topology.learned.load_state({f"{index:02d}": np.asarray(leaf) for index, leaf in enumerate(leaves)})

    def state(self) -> dict[str, Any]:
        """Everything a checkpoint needs, once all workers have settled."""
        layout, counters = self.plan.agent.layout.fingerprint, self.counters.state()
        return {
            "env_steps": int(counters["env_steps"].sum()),
            "updates": int(counters["updates"].sum()),
            "episodes": self.counters.total("episodes"),
            "learner": {"learned": self.topology.learned.state(), "layout": layout},
            "channels": {channel.name: channel.state() for channel in self._others()},
            "counters": counters,
            "workers": {str(worker): self.counters.read_note(worker.index) for worker in self.workers},
        }

    def count_what_is_saved(self) -> None:
        """Where one learner counts the updates, those that went with it before they were saved were never made."""
        if isinstance(self.topology.learned, Snapshot):
            updates = self.counters.arrays["updates"]
            updates[updates > 0] = self.topology.learned.updates

    def _others(self) -> list[Channel]:
        return [channel for channel in self.topology.channels if channel is not self.topology.learned]

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over a checkpoint, before any worker is there."""
        self.plan.agent.layout.check(state["learner"].get("layout"))
        self.topology.learned.load_state(state["learner"]["learned"])
        for channel in self._others():
            channel.load_state(state["channels"].get(channel.name, {}))
        self.counters.load_state(state["counters"])
        for worker in self.workers:
            self.counters.write_note(worker.index, state["workers"][str(worker)])

    def restart(self) -> None:
        """Forget what a checkpoint does not keep; no worker is there."""
        for channel in self.topology.channels:
            channel.restart()
        notes = [self.counters.read_note(worker.index) for worker in self.workers]
        self.counters.restart()
        for worker, note in zip(self.workers, notes, strict=True):
            self.counters.write_note(worker.index, note)
            self.counters.arrays["place"][worker.index] = -1


def counters_of(topology: Topology) -> Counters:
    return Counters("counters", len(topology.roster()))


def fields_of(plan: Plan) -> dict[str, Field]:
    """What has to be allocated for a run."""
    topology = plan.compose()
    fields: dict[str, Field] = {"phase": Field((2,), "int64", "driver")}
    for channel in (counters_of(topology), *topology.channels):
        fields |= prefixed(channel.name, channel.fields())
    return fields
