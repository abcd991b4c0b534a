"""One machine of a cluster beside the driver's: a Ray actor that hosts workers as the driver's machine does.

The same supervisor, shared memory and fork server. The driver calls `collect` and `deliver`, which couriers pack and
unpack; if no call comes for `LEASE_S`, the driver is gone or cut off, and the machine ends its workers and itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import psutil

from repertory.channels.channel import Item
from repertory.engines import courier
from repertory.engines.courier import Homes, Inbox, Message, Outbox
from repertory.engines.endings import trace_of
from repertory.engines.shared_memory import Bell, Block
from repertory.engines.supervisor import Event, Supervisor
from repertory.engines.wiring import BUILD, LEAVE, Wiring, fields_of
from repertory.errors import UserError
from repertory.runtime import start_jax, usable_cores, versions
from repertory.topologies.plan import Plan

TICK_S = 0.02
GLANCE_S = 0.02
GROUP_S = 0.1
"""Seconds in which steps gather before they travel, if no worker waits for what they bring."""
SILENT_S = 0.5
"""At the latest after so long there is a reply, even if nothing is new."""
LEASE_S = 8.0


class Hello(NamedTuple):
    """What a machine tells of itself before it is given work."""

    address: str
    pid: int
    cores: int
    memory: int
    shared_memory: int
    niceness: int
    clock: float
    """Seconds since 1970, by its own clock."""
    versions: Mapping[str, str | None]


class Report(NamedTuple):
    """What is new on a machine: for the channels, and about its workers."""

    message: Message
    ready: bool
    at_work: frozenset[int]
    restarts: int
    events: list[Event]
    rss_mb: Mapping[str, float]
    broken: frozenset[str]
    """Names of workers that are to be started again together with those of other machines."""
    refused: str = ""
    """A sentence that ends the run: what only the user can fix."""
    failed: str = ""
    """A worker failed more often than it may."""


class Machine:
    """`homes` says which workers are on which machine, `number` which one this is."""

    def __init__(self, address: str) -> None:
        self.address, self._last_call = address, time.monotonic()
        self._closing, self._lock = threading.Event(), threading.Lock()
        self._failure = ("", "")
        self._told = 0
        self._measured, self._rss = -1.0, dict[str, float]()

    def hello(self) -> Hello:
        with contextlib.suppress(OSError):  # only root may: Ray starts its processes with a low priority
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        memory, shared = psutil.virtual_memory().available, shutil.disk_usage("/dev/shm").free
        return Hello(self.address, os.getpid(), usable_cores(), memory, shared, os.nice(0), time.time(), versions())

    def echo(self, data: Any) -> Any:
        """Sends back what it is sent, to measure the link."""
        return data

    def start(
        self,
        plan: bytes,
        homes: Homes,
        number: int,
        seeds: Sequence[tuple[str, list[Item]]],
        files: Mapping[str, bytes],
        epoch: int,
    ) -> None:
        """Start the workers of this machine; what they begin with are the seeds."""
        self._enter(files)
        main: Any = sys.modules["__main__"]
        with contextlib.suppress(AttributeError):
            del main.__file__  # else each worker would import Ray's own program
        self.plan: Plan = cloudpickle.loads(plan)
        start_jax(self.plan.compute_threads)
        self.homes, self.number = tuple(homes), number
        self.mine = [index for index, home in enumerate(homes) if home == number]
        self.block = Block(fields_of(self.plan, self._adapt))
        self.bells: list[Bell] = []
        self.wiring = Wiring(self.plan, self.block.arrays(), self._ring)
        self._adapt(self.wiring.topology)
        self.bell, self.bells = Bell(), [Bell() for _ in homes]
        self.bells = [bell if index in self.mine else self.bell for index, bell in enumerate(self.bells)]
        for channel in self.wiring.topology.channels:
            channel.clear()
        courier.plant(self.wiring, seeds)
        waiting = self.wiring.counters.arrays["waiting"]
        waiting[[index for index in range(len(homes)) if index not in self.mine]] = 1
        topology, counters = self.wiring.topology, self.wiring.counters
        self.outbox = Outbox(courier.flows_up(topology, counters, homes, number))
        self.inbox = Inbox(courier.flows_down(topology, counters, homes, number))
        self.outbox.prime()
        apart = courier.together_apart(topology, homes)
        self.supervisor = Supervisor(self.wiring, self.block, self.bells, lambda: "", self.mine, apart)
        self._watcher = threading.Thread(target=self._watch, name="supervisor", daemon=True)
        self.wiring.phase[0] = BUILD  # until the driver says otherwise
        self.supervisor.start(epoch)
        self._watcher.start()

    def end_together(self, name: str) -> None:
        with self._lock:
            self.supervisor.end_together(name)

    def start_together(self, name: str, epoch: int, seeds: Sequence[tuple[str, list[Item]]]) -> None:
        courier.plant(self.wiring, seeds)
        with self._lock:
            self.supervisor.start_together(name, epoch)

    def _adapt(self, topology: Any) -> None:
        courier.relay(topology, self.homes, self.number)

    def _enter(self, files: Mapping[str, bytes]) -> None:
        """Write the user's files into a directory of this machine, and work there."""
        if files:
            key = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
            place = Path(tempfile.mkdtemp(prefix=f"repertory-{key}-"))
            for name, content in files.items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(content)
            os.chdir(place)
            sys.path.insert(0, str(place))

    def _ring(self, workers: Sequence[int]) -> None:
        for index in workers:
            self.bells[index].ring()

    def _watch(self) -> None:
        while not self._closing.wait(TICK_S):
            if time.monotonic() - self._last_call > LEASE_S:
                self._end(1.0)
                os._exit(1)
            if not any(self._failure):
                try:
                    with self._lock:
                        self.supervisor.check()
                except UserError as error:
                    self._failure = (str(error), "")
                except Exception as error:
                    self._failure = ("", str(error) or trace_of(error))

    def deliver(self, given: bytes) -> None:
        """What is new on the driver's machine: a packed `Message`."""
        self._last_call, message = time.monotonic(), courier.unpacked(given)
        self.inbox.receive(message)
        if message.phase is not None:
            self.wiring.phase[1] = message.phase[1]
            self.wiring.phase[0] = message.phase[0]
        waiting = self.wiring.counters.arrays["waiting"]
        self._ring([index for index in self.mine if waiting[index] or message.phase is not None])

    def collect(self, arrived: int) -> bytes:
        """What is new here, as a packed `Report`; `arrived` is the number of the last message that has arrived."""
        self._last_call = began = time.monotonic()
        self.outbox.confirm(arrived)
        waiting = self.wiring.counters.arrays["waiting"]
        self._ring([index for index in self.mine if waiting[index]])  # lanes have room again
        supervisor = self.supervisor
        while True:
            self.bell.wait(GLANCE_S)
            if time.monotonic() - began < GROUP_S and not self.outbox.urgent(waiting=bool(waiting[self.mine].any())):
                continue
            message = self.outbox.pack()
            new = message.parcels or supervisor.broken or any(self._failure) or len(supervisor.events) > self._told
            if new or time.monotonic() - began > SILENT_S:
                break
        events, self._told = supervisor.events[self._told :], len(supervisor.events)
        with self._lock:
            ready, at_work = supervisor.ready, frozenset(supervisor.at_work())
        told = (ready, at_work, supervisor.restarts, events, self._memory(), frozenset(supervisor.broken))
        return courier.packed(Report(message, *told, *self._failure))

    def _memory(self) -> Mapping[str, float]:
        """Asked of the system once a second at the most."""
        if time.monotonic() - self._measured > 1.0:
            self._measured, self._rss = time.monotonic(), self.supervisor.rss_mb()
        return self._rss

    def leave(self) -> None:
        """End the workers in order."""
        self._closing.set()
        self._end(4.0)

    def _end(self, seconds: float) -> None:
        self.wiring.phase[0] = LEAVE
        self._ring(self.mine)
        self.supervisor.stop(seconds)
