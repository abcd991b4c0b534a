"""Supervises the workers of several machines: those of the driver's machine itself, the others over links.

A link brings what is new to one machine and fetches what is new there, each in a thread of its own. A machine that does
not reply for `SILENT_S`, or whose process is gone, is lost: what had arrived stays, running episodes end as truncated,
and its workers are started on another machine that has room, or on the same one when it is back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle

from repertory.engines import courier
from repertory.engines.cluster import Cluster, Node
from repertory.engines.courier import DRIVER, Homes, Inbox, Outbox, Traffic
from repertory.engines.machine import Hello, Report
from repertory.engines.shared_memory import Bell, Block
from repertory.engines.sources import gather
from repertory.engines.supervisor import Event, Supervisor, WorkerFailed
from repertory.engines.wiring import Wiring
from repertory.errors import UserError
from repertory.runtime import versions

SILENT_S = 8.0
"""A machine that has not replied for so long is lost."""
START_S = 60.0
AGAIN_S = 2.0
"""Seconds between two searches for a machine where lost workers can be started."""
PERIOD_S = 0.05
"""Weights and totals are brought at most so often; what a worker waits for is brought at once."""
SAME = ("python", "repertory", "jax", "jaxlib", "numpy", "gymnasium")
"""Versions that must be equal on all machines; of Python the first two numbers."""


class Link:
    """The driver's end of the connection to one machine: number `number`, on `node`."""

    def __init__(
        self,
        cluster: Cluster,
        node: Node,
        number: int,
        wiring: Wiring,
        homes: Homes,
        bell: Bell,
        wake: Callable[[], None],
    ) -> None:
        self.cluster, self.node, self.number, self.wiring, self.homes = cluster, node, number, wiring, homes
        topology, counters = wiring.topology, wiring.counters
        self._outbox = Outbox(courier.flows_down(topology, counters, homes, number), wiring.phase)
        self._inbox = Inbox(courier.flows_up(topology, counters, homes, number))
        self._bell, self._wake = bell, wake
        self.up, self.down = Traffic(), Traffic()
        self.lost, self.closing = "", False
        self.report: Report | None = None
        self.events: list[Event] = []
        self._machine: Any = None
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    @property
    def indices(self) -> set[int]:
        return {index for index, home in enumerate(self.homes) if home == self.number}

    @property
    def ready(self) -> bool:
        return not self.lost and self.report is not None and self.report.ready

    def open(self, plan: bytes, files: Mapping[str, bytes], epoch: int) -> None:
        """Start the machine and its workers; threads do the rest."""
        self._threads = [
            threading.Thread(
                target=self._live, args=(plan, files, epoch), name=f"link {self.node.address}", daemon=True
            )
        ]
        self._threads[0].start()

    def _live(self, plan: bytes, files: Mapping[str, bytes], epoch: int) -> None:
        try:
            self._machine = self.cluster.place(self.node)
            self._refuse_other_versions(self.cluster.call(self._machine.hello, seconds=START_S))
            seeds = courier.seed(self.wiring, self.homes, self.number)
            start = self._machine.start
            self.cluster.call(start, plan, tuple(self.homes), self.number, seeds, files, epoch, seconds=START_S)
            pusher = threading.Thread(target=self._push, name=f"courier {self.node.address}", daemon=True)
            self._threads.append(pusher)
            pusher.start()
            self._pull()
        except Exception as error:
            self._lose(error)

    def _refuse_other_versions(self, hello: Hello) -> None:
        for name, here in versions().items():
            there = hello.versions.get(name)
            if name in SAME and _significant(name, here) != _significant(name, there):
                raise UserError(
                    f"{hello.address} has {name} {there or 'not installed'}, this machine {here}: install the same "
                    "versions on all machines"
                )

    def _pull(self) -> None:
        arrived = 0
        while not (self.closing or self.lost):
            began = time.monotonic()
            given: bytes = self.cluster.call(self._machine.collect, arrived, seconds=SILENT_S)
            report: Report = courier.unpacked(given)
            with self._lock:
                if self.lost:  # the next machine writes these rows now
                    return
                self._inbox.receive(report.message)
            arrived = report.message.number
            self.up.count(len(given), time.monotonic() - began)
            self.events += report.events
            self.report = report
            if report.message.parcels:
                self._wake()

    def _push(self) -> None:
        pushed = 0.0
        try:
            while not (self.closing or self.lost):
                self._bell.wait(PERIOD_S)
                due = pushed + PERIOD_S - time.monotonic()
                if due > 0 and not self._outbox.urgent():
                    time.sleep(due)
                message = self._outbox.pack()
                if message.parcels or message.phase is not None:
                    pushed = time.monotonic()
                    given = courier.packed(message)
                    self.cluster.call(self._machine.deliver, given, seconds=SILENT_S)
                    self.down.count(len(given), time.monotonic() - pushed)
                    self._outbox.confirm(message.number)
                    self._outbox.confirm_phase(message.phase)
        except Exception as error:
            self._lose(error)

    def _lose(self, error: BaseException) -> None:
        cause = getattr(error, "cause", None) or error  # Ray wraps what a machine raises
        name = type(cause).__name__
        with self._lock:
            if self.closing or self.lost:
                return
            if isinstance(cause, UserError):
                self.refused = self.lost = str(cause)
            elif "Timeout" in name:
                self.lost = f"did not reply for {SILENT_S:g} s"
            else:
                told = str(cause).strip().splitlines()
                self.lost = f"is gone ({name}{f': {told[0]}' if told else ''})"

    refused = ""

    def call(self, method: str, *given: Any) -> None:
        """Call the machine from the driver's own thread; if that fails, the machine is lost."""
        try:
            self.cluster.call(getattr(self._machine, method), *given, seconds=START_S)
        except Exception as error:
            self._lose(error)

    def drain(self) -> None:
        """Wait until all that was written there so far has arrived: the next report but one began after this call."""
        wanted, end = self.up.messages + 2, time.monotonic() + SILENT_S
        while self.up.messages < wanted and not self.lost and time.monotonic() < end:
            time.sleep(0.005)

    def close(self) -> None:
        """Let the machine end its workers; then end its process."""
        self.closing = True
        if self._machine is not None:
            if not self.lost:
                try:
                    self.cluster.call(self._machine.leave, seconds=6.0)
                except Exception as error:
                    self.lost = type(error).__name__
            self.cluster.end(self._machine)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(SILENT_S + 1.0)


def _significant(name: str, version: str | None) -> str | None:
    return version if version is None or name != "python" else ".".join(version.split(".")[:2])


class Machines:
    """Supervision of all machines; see `Supervisor` for that of one."""

    def __init__(
        self,
        wiring: Wiring,
        block: Block,
        bells: list[Bell],
        withdraw: Callable[[], str],
        *,
        cluster: Cluster,
        nodes: Sequence[Node],
        homes: Homes,
    ) -> None:
        self.wiring, self.cluster, self.homes, self._bells = wiring, cluster, homes, bells
        plan, self._files = gather(wiring.plan)
        self._plan = cloudpickle.dumps(plan)
        here = [index for index, home in enumerate(homes) if home == DRIVER]
        self._here = here
        self._link_bells = {number: Bell() for number in sorted({*homes} - {DRIVER})}
        for index, home in enumerate(homes):
            if home != DRIVER:  # what wakes a worker of another machine wakes the courier that brings it there
                bells[index].close()
                bells[index] = self._link_bells[home]
        self._apart, self._epoch = courier.together_apart(wiring.topology, homes), 1
        self.local = Supervisor(wiring, block, bells, withdraw, here, self._apart)
        self.links = {number: self._link(number, nodes[number]) for number in self._link_bells}
        self.events: list[Event] = []
        self._told, self._moves = 0, 0
        self._restarts: dict[int, int] = {}
        self._homeless: dict[int, float] = {}
        self._losses: dict[int, int] = {}

    def _link(self, number: int, node: Node) -> Link:
        return Link(self.cluster, node, number, self.wiring, self.homes, self._link_bells[number], self._wake)

    def _wake(self) -> None:
        waiting = self.wiring.counters.arrays["waiting"]
        for index in self._here:
            if waiting[index]:
                self._bells[index].ring()

    @property
    def failed(self) -> bool:
        return self.local.failed

    @failed.setter
    def failed(self, failed: bool) -> None:
        self.local.failed = failed

    @property
    def restarts(self) -> int:
        return self.local.restarts + self._moves + sum(self._restarts.values())

    def start(self) -> None:
        far = [index for index, home in enumerate(self.homes) if home != DRIVER]
        self.wiring.counters.arrays["waiting"][far] = 1
        for link in self.links.values():
            link.open(self._plan, self._files, self._epoch)
        self.local.start(self._epoch)

    @property
    def ready(self) -> bool:
        return self.local.ready and all(link.ready for link in self.links.values())

    def pids(self) -> set[int]:
        return self.local.pids()

    def at_work(self) -> set[int]:
        far = [link.report.at_work for link in self.links.values() if link.report is not None and not link.lost]
        return self.local.at_work().union(*far)

    def absent(self) -> set[int]:
        """Workers whose machine is lost or being started."""
        away = [link for link in self.links.values() if link.lost or link.report is None]
        return {index for link in away for index in link.indices}

    def check(self) -> None:
        try:
            self.local.check()
            for number in self.links:
                self._check(number)
            for name in sorted(self._broken()):
                self._restart_together(name)
        except Exception:
            self.failed = True
            raise
        finally:
            self.events += self.local.events[self._told :]
            self._told = len(self.local.events)

    def _check(self, number: int) -> None:
        link = self.links[number]
        events, link.events = link.events, []
        self.events += [_at(event, link.node.address) for event in events]
        report = link.report
        if report is not None:
            self._restarts[number] = report.restarts
            if report.refused:
                raise UserError(f"{link.node.address}: {report.refused}")
            if report.failed:
                raise WorkerFailed(f"on {link.node.address}: {report.failed}")
        if link.refused:
            raise UserError(link.refused)
        if link.lost and number not in self._homeless:
            self._tell_loss(link)
        if number in self._homeless and time.monotonic() >= self._homeless[number]:
            self._bring_home(number)

    def _broken(self) -> set[str]:
        reports = [link.report for link in self.links.values() if link.report is not None and not link.lost]
        return self.local.broken.union(*(report.broken for report in reports))

    def _restart_together(self, name: str) -> None:
        """All workers of a name end; once what they wrote has arrived, all start from the same learner state."""
        there = [link for link in self.links.values() if not link.lost and link.report is not None]
        for link in there:
            link.call("end_together", name)
        self.local.end_together(name)
        for link in there:
            link.drain()
        self._epoch += 1
        seeds = courier.learned_seed(self.wiring)
        for link in there:
            link.call("start_together", name, self._epoch, seeds)
        self.local.start_together(name, self._epoch)

    def _tell_loss(self, link: Link) -> None:
        """Its workers' steps that had arrived stay; the others are lost with it."""
        threading.Thread(target=link.close, daemon=True).start()
        courier.lose(self.wiring, self.homes, link.number)
        names = [str(self.wiring.workers[index]) for index in sorted(link.indices)]
        told = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        what = f"{link.lost}, with {told}"
        self.events.append(Event(f"machine {link.node.address}", what, "", self.restarts, "its workers are moved"))
        self._homeless[link.number] = time.monotonic()
        self._losses[link.number] = 1 if link.report is not None else self._losses.get(link.number, 0) + 1
        if self._losses[link.number] > self.wiring.plan.restarts:
            raise WorkerFailed(f"no machine could start {told}: {link.node.address} {link.lost}")
        for name in sorted(self._apart):
            self._restart_together(name)

    def _bring_home(self, number: int) -> None:
        """On the machine where they were, if it is there again; else where the fewest of these groups are."""
        before, nodes = self.links[number].node, [node for node in self.cluster.nodes() if not node.driver]
        self._homeless[number] = time.monotonic() + AGAIN_S
        busy = [link.node.address for other, link in self.links.items() if other != number and not link.lost]
        free = sorted(nodes, key=lambda node: (busy.count(node.address), node.address != before.address))
        if not free:
            return
        del self._homeless[number]
        self._moves += 1
        self.links[number] = self._link(number, free[0])
        self.links[number].open(self._plan, self._files, self._epoch)

    def bring_back(self) -> None:
        self.local.bring_back()

    def rss_mb(self) -> dict[str, float]:
        found = self.local.rss_mb()
        for link in self.links.values():
            for name, size in link.report.rss_mb.items() if link.report is not None else ():
                found[name] = round(found.get(name, 0.0) + size, 1)
        return found

    def metrics(self) -> dict[str, float | int | None]:
        """What each link has carried so far; milliseconds of one call."""
        found: dict[str, float | int | None] = {}
        for link in self.links.values():
            for way, traffic in (("up", link.up), ("down", link.down)):
                name = f"link/{link.node.address}/{way}"
                found[f"{name}_mb"] = round(traffic.bytes / 1e6, 3)
                found[f"{name}_messages"] = traffic.messages
                found[f"{name}_ms"] = round(1e3 * traffic.seconds / max(1, traffic.messages), 2)
        return found

    def stop(self) -> None:
        closers = [threading.Thread(target=link.close, daemon=True) for link in self.links.values()]
        for closer in closers:
            closer.start()
        self.local.stop()
        for closer in closers:
            closer.join(10.0)
        self.cluster.close()


def _at(event: Event, address: str) -> Event:
    return Event(f"{event.worker} on {address}", event.what, event.trace, event.restarts, event.then)
