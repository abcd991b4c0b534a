"""The processes host: a process for each worker, or for several that mostly wait, on one machine.

It runs in the driver, which owns the shared memory and computes nothing: it supervises the workers, pauses them for a
checkpoint, and ends them however it ends itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from repertory.engines.driver import Evaluations, Values
from repertory.engines.endings import suspend_together
from repertory.engines.placement import processes_of
from repertory.engines.shared_memory import Bell, Block
from repertory.engines.supervisor import Event, Supervisor
from repertory.engines.wiring import BUILD, LEARN, LEAVE, PAUSE, RUN, Wiring, fields_of
from repertory.errors import UserError
from repertory.runtime import allow_open_files, usable_cores
from repertory.topologies.graph import Topology
from repertory.topologies.plan import Plan

TICK_S = 0.02
LOSS_S = 0.1
"""Seconds that the driver waits for the loss of an update that is being computed."""
SETTLE_S = 120.0
"""Seconds for all workers to rest for a checkpoint, besides the heartbeat's limit."""
FAILED_SETTLE_S = 10.0
"""The same for the workers that are left after a failure."""
GLANCE_S = 0.005
MOST_WORKERS = 200
"""The descriptors of more bells do not fit into one message to a new process."""
OWN_FILES = 40


def check_limits(topology: Topology) -> None:
    """Refuse more workers than can be started: each needs a bell; each process two reports and two pipes."""
    workers, processes = len(topology.roster()), len(processes_of(topology, usable_cores()))
    if workers > MOST_WORKERS:
        raise UserError(f"{workers} workers are more than the {MOST_WORKERS} that can be started: lower --actors")
    needed, limit = workers + 4 * processes + OWN_FILES, allow_open_files()
    if needed > limit:
        raise UserError(
            f"{workers} workers need about {needed} open files, but this user may open {limit}: raise the limit "
            "(ulimit -n), or lower --actors"
        )


class Supervision(Protocol):
    """Starts the processes of all workers, watches them and ends them: on this machine, or on several."""

    failed: bool
    """An error has been raised, and no worker is started again."""
    events: list[Event]

    @property
    def restarts(self) -> int: ...
    def start(self) -> None: ...
    @property
    def ready(self) -> bool: ...
    def check(self) -> None: ...
    def pids(self) -> set[int]: ...
    def at_work(self) -> set[int]: ...
    def absent(self) -> set[int]: ...
    def bring_back(self) -> None: ...
    def rss_mb(self) -> dict[str, float]: ...
    def metrics(self) -> Values: ...
    def stop(self) -> None: ...


class ProcessesHost:
    concurrent = True

    def __init__(self, plan: Plan, supervise: Callable[..., Supervision] = Supervisor) -> None:
        self.plan = plan
        check_limits(plan.compose())
        self.block = Block(fields_of(plan))
        self.bells: list[Bell] = []
        self.wiring = Wiring(plan, self.block.arrays(), self._ring)
        self.bells = [Bell() for _ in self.wiring.workers]
        self.wiring.initialise()
        self.evaluations = Evaluations(self.wiring)
        self.supervisor = supervise(self.wiring, self.block, self.bells, self.evaluations.withdraw)
        self._told = 0
        self._unsuspend: Callable[[], None] = lambda: None
        self._started = False

    def _ring(self, workers: Sequence[int]) -> None:
        for index in workers:
            self.bells[index].ring()

    def start(self, dismissed: Callable[[], bool]) -> None:
        """Start all workers; once all have built their roles, or after a rest, let them run.

        None plays before: the clock would not count those steps.
        """
        if not self._started:
            self._started = True
            self._unsuspend = suspend_together(self.supervisor.pids)
            self.wiring.phase[0] = BUILD
            self.supervisor.start()
            while not self.supervisor.ready and not dismissed():
                self.supervisor.check()
                time.sleep(TICK_S)
        self._set_phase(RUN)

    def _set_phase(self, phase: int) -> None:
        self.wiring.phase[0] = phase
        self._ring(range(len(self.bells)))

    def round(self) -> None:
        self.supervisor.check()
        time.sleep(TICK_S)

    def evaluate(self) -> None:
        """Start an evaluator again that was given up; if that fails, the request is withdrawn."""
        self.supervisor.bring_back()

    def await_losses(self, missing: Callable[[], bool]) -> None:
        end = time.monotonic() + LOSS_S
        while missing() and time.monotonic() < end:
            time.sleep(LOSS_S / 100)

    def metrics(self) -> Values:
        memory = {f"rss_mb/{name}": size for name, size in self.supervisor.rss_mb().items()}
        return {**memory, "restarts": self.restarts, **self.supervisor.metrics()}

    @property
    def restarts(self) -> int:
        return self.supervisor.restarts

    def notes(self) -> list[str]:
        events = self.supervisor.events[self._told :]
        self._told += len(events)
        told = [event.sentence() + (f"\n{event.trace.rstrip()}" if event.trace else "") for event in events]
        return told + [note for channel in self.wiring.topology.channels for note in channel.notes()]

    def rest(self) -> None:
        """Pause all workers but the evaluator: an evaluation changes nothing and may take long."""
        workers = self.wiring.indices(lambda group: group.kind != "evaluate")
        if self.supervisor.failed:
            self._rest_if_soon(workers)
        else:
            self._bring_to_rest(PAUSE, workers)

    def stop_playing(self) -> None:
        self._bring_to_rest(LEARN, self.wiring.indices(lambda group: group.kind == "play"))

    def _bring_to_rest(self, phase: int, workers: Sequence[int]) -> None:
        self.wiring.phase[1] += 1
        self._set_phase(phase)
        end = time.monotonic() + self.plan.heartbeat_s + SETTLE_S
        while not self._at_rest([index for index in workers if index not in self.supervisor.absent()]):
            self.supervisor.check()
            if time.monotonic() > end:
                self.supervisor.failed = True
                raise TimeoutError("the workers did not come to rest")
            time.sleep(GLANCE_S)

    def _rest_if_soon(self, workers: Sequence[int]) -> None:
        """After a failure: start no worker again, and wait only for workers that live and are built."""
        self.wiring.phase[1] += 1
        self._set_phase(PAUSE)
        end = time.monotonic() + FAILED_SETTLE_S
        while time.monotonic() < end and not self._at_rest(sorted(set(workers) & self.supervisor.at_work())):
            time.sleep(GLANCE_S)

    def _at_rest(self, workers: Sequence[int]) -> bool:
        settled = self.wiring.counters.arrays["settled"]
        return bool((settled[list(workers)] == self.wiring.phase[1]).all())

    def close(self) -> None:
        self._set_phase(LEAVE)
        self.supervisor.stop()
        self._unsuspend()
        for bell in self.bells:
            bell.close()
        self.block.file.close()
