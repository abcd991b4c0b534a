"""The main function of a child process: builds its workers' roles and runs them until the driver says otherwise.

A process has one worker, or a group of actors that mostly wait for their environments.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from repertory.channels.channel import under
from repertory.channels.counters import WorkerStats
from repertory.engines.actor_threads import SMALL, ActorThreads
from repertory.engines.endings import FAILURE, REFUSAL, end_offspring, lead_group, trace_of, write_report
from repertory.engines.shared_memory import Bell, Block, Descriptor, Lifeline
from repertory.engines.wiring import BUILD, LEARN, LEAVE, PAUSE, RUN, Wiring
from repertory.environments.factory import set_warning_level, warning_level
from repertory.errors import EnvironmentFailure, UserError
from repertory.output import forgive_output
from repertory.roles.actor import Actor
from repertory.roles.ports import Role
from repertory.runtime import (
    die_with_fork_server,
    keep_freed_memory,
    name_process,
    schedule_as_batch,
    start_jax,
    wake_up_sharply,
)
from repertory.topologies.plan import Context, Plan

REST_S = 0.1
"""A worker that has nothing to do looks again after so long, even if its bell was not rung."""
GLANCE_S = 0.001
"""Seconds between two looks of a replica that waits for the others to halt."""
BREATH_S, BREATHE_EVERY_S = 0.0001, 0.02
"""How long a process that keeps to a core sleeps, and how often.

Without that it may starve others on its core, whatever their priorities: on Linux 6.18 an evaluator got no turn for ten
seconds beside two workers, and the kernel's own threads for a minute.
"""

IMPORTED_IN = os.getpid()
"""The fork server; or the worker itself, if the fork server could not import this."""


@dataclass
class WorkerArguments:
    plan: Plan
    block: Block
    bells: list[Bell]
    lifeline: Lifeline
    report: Descriptor
    """Where it writes why it ends."""
    recovered: Descriptor
    """Where it writes the last failure that it has recovered from."""
    epoch: int
    cores: Sequence[int] = ()
    spare: Sequence[int] = ()
    """Cores where a learner's second thread may compute."""
    niceness: int = 0
    warnings: int = warning_level()
    """The driver's level of Gymnasium's warnings."""


def run_worker(given: WorkerArguments, workers: tuple[int, ...]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave_it_to_the_driver)
    lead_group()
    die_with_fork_server(os.getppid() if os.getpid() == IMPORTED_IN else IMPORTED_IN)
    forgive_output()
    counters = under("counters", given.block.arrays())
    for index in workers:
        WorkerStats(counters, index).enter(given.epoch)
    given.lifeline.watch(_leave_with_driver)
    faulthandler.enable(given.report.fd)
    faulthandler.register(signal.SIGUSR1, file=given.report.fd, all_threads=True)
    with _last_words(given):
        if len(workers) > SMALL:  # in a smaller group, a thread that wakes up mostly finds the lock free
            schedule_as_batch()
        WorkerProcess(given, workers).run()
    os._exit(0)  # neither JAX's nor an environment's threads may keep the process


def _leave_it_to_the_driver(_number: int, _frame: Any) -> None:
    """A signal may reach all processes. It is not ignored: what an environment starts would inherit that."""


def _leave_with_driver() -> None:
    """The driver is gone: end what the environments have started, too."""
    end_offspring({os.getpid()})
    os._exit(1)


def _prepare(given: WorkerArguments, name: str) -> None:
    name_process(name)
    set_warning_level(given.warnings)
    if given.cores:
        os.sched_setaffinity(0, given.cores)
    start_jax(given.plan.compute_threads)
    if given.plan.large:
        keep_freed_memory()
    gc.freeze()  # imported objects stay shared with the fork server, and are not scanned again
    wake_up_sharply()


@contextlib.contextmanager
def _last_words(given: WorkerArguments) -> Iterator[None]:
    """Before an error ends the process, it is written to the report."""
    try:
        yield
    except EnvironmentFailure as error:  # also a UserError, but the environment may work the next time
        _leave(given, FAILURE, str(error), error.__cause__ or error)
    except UserError as error:
        _leave(given, REFUSAL, str(error))
    except BaseException as error:
        _leave(given, FAILURE, f"{type(error).__name__}: {error}", error)


def _leave(given: WorkerArguments, kind: str, sentence: str, error: BaseException | None = None) -> None:
    write_report(given.report.fd, kind, sentence, "" if error is None else trace_of(error))
    os._exit(1)


class WorkerProcess:
    """The roles of one worker take turns; or a group, which the first worker's bell wakes."""

    def __init__(self, given: WorkerArguments, workers: tuple[int, ...]) -> None:
        self.given, self.indices = given, list(workers)
        self.wiring = Wiring(given.plan, given.block.arrays(), self._ring)
        self.workers = [self.wiring.workers[index] for index in workers]
        self.group = self.wiring.group(self.workers[0])
        self.stats = self.wiring.counters.stats(workers[0])
        self.waiting, self.phase = self.wiring.counters.arrays["waiting"], self.wiring.phase
        self.bell = given.bells[workers[0]]
        _prepare(given, str(self.workers[0]))
        late = self.group.kind == "evaluate"  # all others wait until it is built
        if not late:
            os.nice(given.niceness)  # before it starts threads, which inherit it
        self._await_weights()
        more = {"epoch": given.epoch, "spare": given.spare, "dismissed": self._dismissed}
        self._contexts = [
            self.wiring.context(worker, await_others=self._await_others, **more) for worker in self.workers
        ]
        self.threads = self._actor_threads() if len(workers) > 1 else None
        self.roles: list[Role] = [self.threads] if self.threads else self.wiring.build(self._contexts[0])
        for role in self.roles:
            role.warm_up()
        self._failures: dict[int, tuple[int, int]] = {}
        self._breathed = time.monotonic()
        if late:
            os.nice(given.niceness)

    def _actor_threads(self) -> ActorThreads:
        return ActorThreads(
            self.wiring.build_group(self._contexts),
            begin=lambda actor: self._context(actor).begin(actor),
            recover=self._recover,
            wake=self.bell.ring,
            dismissed=self._dismissed,
        )

    def _context(self, actor: Actor) -> Context:
        return self._contexts[self.indices.index(actor.stats.worker)]

    def _dismissed(self) -> bool:
        return int(self.phase[0]) == LEAVE

    def _ring(self, workers: Sequence[int]) -> None:
        for index in workers:
            if self.waiting[index]:
                self.given.bells[index].ring()

    def _await_weights(self) -> None:
        """Wait for the first weights; the heartbeat's deadline ends a wait that is in vain."""
        if self.wiring.needs_weights(self.workers[0]):
            while not self._dismissed() and not self.wiring.topology.weights.published:
                time.sleep(0.005)

    def _await_others(self) -> bool:
        """Sleep for a moment inside a pause that other replicas have not reached; says whether to wait on.

        The supervisor notices a replica that is silent, and a driver that waits in vain lets all leave.
        """
        self._beat()
        time.sleep(GLANCE_S)
        return not self._dismissed()

    def run(self) -> None:
        """Work while there is work, wait while there is none, until the driver says LEAVE."""
        while self.phase[0] == BUILD:
            self._rest_until_rung()
        while True:
            self._beat()
            if self.given.cores:
                self._breathe()
            if self._on():
                if not self._turn():
                    self._rest()
            elif not self._attend():
                return

    def _beat(self) -> None:
        """Send a heartbeat; a group knows which of its workers live."""
        if self.threads is None:
            self.stats.beat()
        else:
            self.threads.beat()

    def _breathe(self) -> None:
        if time.monotonic() - self._breathed > BREATHE_EVERY_S:
            time.sleep(BREATH_S)
            self._breathed = time.monotonic()

    def _on(self) -> bool:
        """Whether to work; in LEARN, at the end of a run, workers that play rest."""
        phase = self.phase[0]
        return bool(phase == RUN or (phase == LEARN and self.group.kind != "play"))

    def _turn(self) -> bool:
        """One step of each role; environments that fail are made again."""
        worked = 0
        try:
            for role in self.roles:
                worked += role.step()
        except EnvironmentFailure as error:
            if not isinstance(role, Actor):
                raise
            self._recover(role, error)
            worked = 1
        if worked and self.threads is None:  # a group counts by itself
            self.stats.row["work"] += worked
        return worked > 0

    def _recover(self, actor: Actor, error: EnvironmentFailure) -> None:
        """Make new environments and begin new episodes from fresh seeds; the unfinished episodes end there."""
        stats, played = actor.stats, actor.stats.own_env_steps
        failed_at, failures = self._failures.get(stats.worker, (-1, 0))
        failures = failures + 1 if played == failed_at else 1
        self._failures[stats.worker] = (played, failures)
        if failures > self.given.plan.restarts:
            raise error
        write_report(self.given.recovered.fd, FAILURE, str(error), trace_of(error.__cause__ or error))
        stats.count("failures")
        stats.count("starts")
        with contextlib.suppress(Exception):
            actor.environments.close()
        self._context(actor).renew(actor)

    def _rest(self) -> None:
        """Wait for the bell. `waiting` is set before the last look, so that no ring is missed."""
        row, began = self.stats.row, time.monotonic()
        row["waiting"] = self.threads is None or self.threads.held
        try:
            if not self._turn() and self._on():
                self.bell.wait(REST_S)
                if self.threads is None:  # a group counts by itself
                    row["idle_s"] += time.monotonic() - began
        finally:
            row["waiting"] = 0

    def _rest_until_rung(self) -> None:
        self._beat()
        self.stats.row["waiting"] = 1
        self.bell.wait(REST_S)
        self.stats.row["waiting"] = 0

    def _attend(self) -> bool:
        """Pause or leave; False = leave."""
        for role in self.roles:
            role.settle()
        self._write_notes()
        row, phase = self.stats.row, self.phase
        self.wiring.counters.arrays["settled"][self.indices] = int(phase[1])
        while phase[0] in (PAUSE, LEARN) and row["settled"] == phase[1]:  # else the next pause has begun
            self._rest_until_rung()
        if phase[0] != LEAVE:
            return True
        for role in self.roles:
            with contextlib.suppress(Exception):
                role.close()
        return False

    def _write_notes(self) -> None:
        """Each worker's own state, for a checkpoint."""
        states = [role.state() for role in self.roles]
        notes = [states] if self.threads is None else [[state] for state in states[0]["actors"]]
        for worker, note in zip(self.workers, notes, strict=True):
            self.wiring.counters.write_note(worker.index, {"roles": note})
