"""The processes host: every worker in a process of its own, or several that mostly wait in one, on one machine.

The driver, which this runs in, owns the shared memory and computes nothing; it supervises, pauses everybody for a
checkpoint, and ends everybody however it ends itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from repertory.engines.driver import Evaluations
from repertory.engines.endings import suspend_together
from repertory.engines.launching import check_limits
from repertory.engines.shared_memory import Bell, Block
from repertory.engines.supervisor import Supervisor
from repertory.engines.wiring import BUILD, LEARN, LEAVE, PAUSE, RUN, Wiring, fields_of
from repertory.topologies.plan import Plan

TICK_S = 0.02
LOSS_S = 0.1
"""The driver waits so long for the loss of an update that is being computed."""
SETTLE_S = 120.0
"""Workers rest for a checkpoint within so long, or so long after a silent one was found out."""
FAILED_SETTLE_S = 10.0
"""The same for those that are left after a failure."""
GLANCE_S = 0.005


class ProcessesHost:
    """Owns the shared memory; `supervisor` owns the processes."""

    concurrent = True

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        check_limits(plan.compose())
        self.block = Block(fields_of(plan))
        self.bells: list[Bell] = []
        self.wiring = Wiring(plan, self.block.arrays(), self._ring)
        self.bells = [Bell() for _ in self.wiring.workers]
        self.wiring.initialise()
        self.evaluations = Evaluations(self.wiring)
        self.supervisor = Supervisor(self.wiring, self.block, self.bells, self.evaluations.withdraw)
        self._told = 0
        self._unsuspend: Callable[[], None] = lambda: None
        self._started = False

    def _ring(self, workers: Sequence[int]) -> None:
        for index in workers:
            self.bells[index].ring()

    def start(self, dismissed: Callable[[], bool]) -> None:
        """Start everybody; once all have built their roles, or after a rest, let everybody go on.

        Nobody plays before: those steps would be on no clock.
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
        """Look after everybody; not too often."""
        self.supervisor.check()
        time.sleep(TICK_S)

    def evaluate(self) -> None:
        """An evaluator that was given up is tried once more; if it can't be started, the request is withdrawn."""
        self.supervisor.bring_back()

    def await_losses(self, missing: Callable[[], bool]) -> None:
        end = time.monotonic() + LOSS_S
        while missing() and time.monotonic() < end:
            time.sleep(LOSS_S / 100)

    def metrics(self) -> dict[str, float | int | None]:
        memory = {f"rss_mb/{name}": size for name, size in self.supervisor.rss_mb().items()}
        return {**memory, "restarts": self.restarts}

    @property
    def restarts(self) -> int:
        return self.supervisor.restarts

    def notes(self) -> list[str]:
        """What went wrong since the last call, and what channels have to tell."""
        events = self.supervisor.events[self._told :]
        self._told += len(events)
        told = [event.sentence() + (f"\n{event.trace.rstrip()}" if event.trace else "") for event in events]
        return told + [note for channel in self.wiring.topology.channels for note in channel.notes()]

    def rest(self) -> None:
        """Pause everybody but an evaluation, which changes nothing and may take long: it is played to its end.

        After a failure those who are left come to rest if they do so soon, and what the others left behind counts.
        """
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
        while not self._at_rest(workers):
            self.supervisor.check()
            if time.monotonic() > end:
                self.supervisor.failed = True
                raise TimeoutError("the workers did not come to rest")
            time.sleep(GLANCE_S)

    def _at_rest(self, workers: Sequence[int]) -> bool:
        settled = self.wiring.counters.arrays["settled"]
        return bool((settled[list(workers)] == self.wiring.phase[1]).all())

    def _rest_if_soon(self, workers: Sequence[int]) -> None:
        """Nobody is started again, and nobody waited for who is gone or never began to work."""
        self.wiring.phase[1] += 1
        self._set_phase(PAUSE)
        end = time.monotonic() + FAILED_SETTLE_S
        while time.monotonic() < end and not self._at_rest(sorted(set(workers) & self.supervisor.at_work())):
            time.sleep(GLANCE_S)
        self.wiring.count_what_is_saved()

    def close(self) -> None:
        """End everybody and free everything."""
        self._set_phase(LEAVE)
        self.supervisor.stop()
        self._unsuspend()
        for bell in self.bells:
            bell.close()
        self.block.file.close()
