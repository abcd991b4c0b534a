"""What two machines of a run send each other: parcels of what is new in the channels that both hold.

Every array has one writer, on one machine. What a worker writes goes up to the driver's machine, which holds all, and
down to the machines where other workers read it, once for each machine and version. A sender remembers what has
arrived; what was lost is packed again, and what arrives twice changes nothing.

Within a message, counters are read before the data that they count, and are written after them: what a machine has
heard of is there. So a step that counts has arrived, and weights arrive before the news that a gradient was taken.
"""

from __future__ import annotations

import copy
import pickle
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from repertory.channels.channel import READER, WRITER, Arrays, Channel, Item, Marks, allocate
from repertory.channels.counters import Counters
from repertory.channels.lanes import Lanes
from repertory.channels.snapshot import Snapshot
from repertory.engines.wiring import Wiring
from repertory.topologies.graph import Topology, Workers

DRIVER = 0
"""The number of the driver's machine."""
Homes = Sequence[int]
"""By the index of a worker: the number of its machine."""


class Flow(NamedTuple):
    """What one side of a channel writes on one machine, and another machine reads."""

    channel: Channel
    side: str
    rows: tuple[int, ...] | None
    totals: bool = False
    """Only the totals of the counters."""


class Parcel(NamedTuple):
    """New items of the flow with this number."""

    flow: int
    items: list[Item]


class Message(NamedTuple):
    number: int
    parcels: list[Parcel]
    phase: NDArray[np.int64] | None = None


def _written(topology: Topology, channel: Channel, homes: Homes, machine: int) -> tuple[int, ...]:
    """The rows that workers of this machine write."""
    found: set[int] = set()
    for group, rank in _of_machine(topology, homes, machine):
        if group in topology.holders(channel, "out", "both", "own"):
            found |= {*channel.rows_of(rank, group.count)}
    return tuple(sorted(found))


def _of_machine(topology: Topology, homes: Homes, machine: int) -> list[tuple[Workers, int]]:
    """Workers of this machine: their group and rank."""
    roster = topology.roster()
    return [(topology.group(worker.name), worker.rank) for worker in roster if homes[worker.index] == machine]


def _holds(topology: Topology, channel: Channel, homes: Homes, machine: int, *directions: str) -> bool:
    groups = topology.holders(channel, *directions)
    return any(group in groups for group, _ in _of_machine(topology, homes, machine))


def flows_up(topology: Topology, counters: Counters, homes: Homes, machine: int) -> list[Flow]:
    """From a machine to the driver's."""
    own = tuple(index for index, home in enumerate(homes) if home == machine)
    found = [Flow(counters, WRITER, own)]
    for channel in (each for each in topology.channels if not each.stays):
        if rows := _written(topology, channel, homes, machine):
            found.append(Flow(channel, WRITER, rows))
        if _holds(topology, channel, homes, machine, "in", "both"):
            found.append(Flow(channel, READER, None))
    return sorted(found, key=lambda flow: flow.channel.layer)


def flows_down(topology: Topology, counters: Counters, homes: Homes, machine: int) -> list[Flow]:
    """From the driver's machine to another one."""
    others = tuple(index for index, home in enumerate(homes) if home != machine)
    found = [Flow(counters, WRITER, others, totals=True)]
    for channel in (each for each in topology.channels if not each.stays):
        own = _written(topology, channel, homes, machine)
        reads = _holds(topology, channel, homes, machine, "in", "both")
        loads = channel.row_count == 1 and _holds(topology, channel, homes, machine, "own")
        rest = tuple(row for row in range(channel.row_count) if row not in own)
        if channel.read_apart:
            continue
        if rest and (reads or loads):
            found.append(Flow(channel, WRITER, rest))
        if own:
            found.append(Flow(channel, READER, None))
    return sorted(found, key=lambda flow: flow.channel.layer)


class Outbox:
    """Packs what is new on this machine; `phase` is sent along by the driver."""

    def __init__(self, flows: Sequence[Flow], phase: NDArray[np.int64] | None = None) -> None:
        self.flows, self._phase, self._phase_sent = flows, phase, b""
        self._arrived: list[Marks] = [{} for _ in flows]
        self._sent: list[Marks] = [{} for _ in flows]
        self._number = 0

    def prime(self) -> None:
        """What is here now is known at the other end."""
        self.confirm(self.pack().number)

    def pack(self) -> Message:
        """What is new since the last message that has arrived."""
        self._number += 1
        self._sent = [copy.copy(marks) for marks in self._arrived]
        parcels = []
        for number, (flow, marks) in enumerate(zip(self.flows, self._sent, strict=True)):
            if items := _pack(flow, marks):
                parcels.append(Parcel(number, items))
        phase = None
        if self._phase is not None and self._phase.tobytes() != self._phase_sent:
            phase = self._phase.copy()
        return Message(self._number, parcels, phase)

    def urgent(self, *, waiting: bool = False) -> bool:
        """Whether something is new that the other machine waits for; `waiting`: a worker of this machine waits."""
        if any(flow.channel.pressing(waiting=waiting) for flow in self.flows):
            return True
        prompt = [
            (flow, marks) for flow, marks in zip(self.flows, self._arrived, strict=True) if flow.channel.layer == 1
        ]
        changed = any(_has_news(flow, marks) for flow, marks in prompt)
        return changed or (self._phase is not None and self._phase.tobytes() != self._phase_sent)

    def confirm(self, number: int) -> None:
        """The message of this number has arrived; if it is not the last one, that one is packed again."""
        if number == self._number and self._sent is not self._arrived:
            self._arrived = self._sent
            for flow, marks in zip(self.flows, self._arrived, strict=True):
                flow.channel.confirm(marks)

    def confirm_phase(self, phase: NDArray[np.int64] | None) -> None:
        if phase is not None:
            self._phase_sent = phase.tobytes()


def _has_news(flow: Flow, marks: Marks) -> bool:
    channel = flow.channel
    counts = [name for name, field in channel.declared(flow.side).items() if not field.commit]
    return any(
        name not in marks or channel.arrays[name][channel.span(name, flow.rows)].tobytes() != marks[name].tobytes()
        for name in counts
    )


def _pack(flow: Flow, marks: Marks) -> list[Item]:
    if flow.totals:
        assert isinstance(flow.channel, Counters)
        assert flow.rows is not None
        return flow.channel.pack_totals(marks, flow.rows)
    return flow.channel.pack(marks, flow.side, flow.rows)


SMALL_BYTES = 32 << 10
"""Messages below this are compressed: they are mostly names, indices and counts that hardly change."""


def packed(message: tuple[Any, ...]) -> bytes:
    """For Ray's authenticated calls only. Ray carries bytes in two thirds of the time of the same arrays as objects."""
    data = pickle.dumps(message, 5)
    return zlib.compress(data, 1) if len(data) < SMALL_BYTES else data


def unpacked(data: bytes) -> Any:
    return pickle.loads(data if data[:1] == pickle.PROTO else zlib.decompress(data))


class Inbox:
    """Puts what another machine has packed into the channels of this one."""

    def __init__(self, flows: Sequence[Flow]) -> None:
        self.flows = flows
        self._images: dict[str, Arrays] = {}

    def receive(self, message: Message) -> None:
        for number, items in sorted(message.parcels, reverse=True):
            flow = self.flows[number]
            flow.channel.receive(items, self._image(flow.channel), flow.side, flow.rows)

    def _image(self, channel: Channel) -> Arrays:
        if channel.name not in self._images:
            self._images[channel.name] = {} if isinstance(channel, Counters) else allocate(channel.image_fields())
        return self._images[channel.name]


class Traffic:
    """What one direction of a link has carried: bytes, messages, seconds."""

    def __init__(self) -> None:
        self.bytes = self.messages = 0
        self.seconds = 0.0

    def count(self, size: int, seconds: float) -> None:
        self.bytes += size
        self.messages += 1
        self.seconds += seconds


def learned_seed(wiring: Wiring) -> list[tuple[str, list[Item]]]:
    """The learner state, for workers that start together from one and the same."""
    return [(channel.name, channel.seed(())) for channel in wiring.topology.channels if isinstance(channel, Snapshot)]


def seed(wiring: Wiring, homes: Homes, machine: int) -> list[tuple[str, list[Item]]]:
    """What a machine needs before its workers start, by channels."""
    topology = wiring.topology
    found = [(wiring.counters.name, wiring.counters.seed(()))]
    for channel in (each for each in topology.channels if not each.one_machine):
        rows = _written(topology, channel, homes, machine)
        if rows or _holds(topology, channel, homes, machine, "in", "both", "own"):
            items = channel.seed(rows)
            if isinstance(channel, Lanes) and _holds(topology, channel, homes, machine, "in", "both"):
                items = [*channel.seed_steps(rows), *items]
            found.append((channel.name, items))
    return found


def plant(wiring: Wiring, seeds: Sequence[tuple[str, list[Item]]]) -> None:
    """On the other machine: put the seeds into its arrays."""
    channels = {channel.name: channel for channel in (wiring.counters, *wiring.topology.channels)}
    for name, items in seeds:
        for item in items:
            channels[name].arrays[item.name][item.index] = item.values


def together_apart(topology: Topology, homes: Homes) -> set[str]:
    """Names of workers that are started together, and are on several machines."""
    where = {
        group.name: {homes[w.index] for w in topology.roster() if w.name == group.name} for group in topology.workers
    }
    return {group.name for group in topology.workers if group.together and len(where[group.name]) > 1}


def relay(topology: Topology, homes: Homes, machine: int) -> None:
    """On a machine other than the driver's: lanes are handed on, and need not be long where no worker reads them."""
    for channel in topology.channels:
        if isinstance(channel, Lanes) and (rows := _written(topology, channel, homes, machine)):
            channel.relay(len(rows), read_here=_holds(topology, channel, homes, machine, "in", "both"))


def lose(wiring: Wiring, homes: Homes, machine: int) -> None:
    """A machine is gone: what its workers wrote and did not arrive is lost."""
    for channel in (each for each in wiring.topology.channels if not each.stays):
        if rows := _written(wiring.topology, channel, homes, machine):
            channel.lose(rows)
