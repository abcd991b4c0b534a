"""The inside of a child process: builds its workers' roles and lets them work until the driver says otherwise.

A process has one worker, or a group of several actors that mostly wait for their environments.
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
"""A worker that has nothing to do looks again after so long, even if nobody has rung."""
GLANCE_S = 0.001
"""How often a replica that waits for the others' halt looks."""
BREATH_S, BREATHE_EVERY_S = 0.0001, 0.02
"""How long a process that keeps to a core sleeps, and how often.

One that never sleeps may keep everybody else from its core, whatever their priorities: on Linux 6.18 an evaluator got
no turn for ten seconds beside two workers, and the kernel's own threads for a minute.
"""

IMPORTED_IN = os.getpid()
"""The fork server; or the worker itself, where that could not import this."""


@dataclass
class WorkerArguments:
    """What a child is given: small things and file descriptors."""

    plan: Plan
    block: Block
    bells: list[Bell]
    lifeline: Lifeline
    report: Descriptor
    """Where it leaves its last words."""
    recovered: Descriptor
    """Where it tells of the last failure that it has recovered from."""
    epoch: int
    """Which start this is."""
    cores: Sequence[int] = ()
    """The cores to keep to, if any."""
    spare: Sequence[int] = ()
    """Cores where a learner may have something computed beside its own."""
    niceness: int = 0
    """By how much to yield to others."""
    warnings: int = warning_level()
    """Which of Gymnasium's warnings are told: the driver's level."""


def run_worker(given: WorkerArguments, workers: tuple[int, ...]) -> None:
    """The child's main function; it never returns with an error unsaid."""
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
    """A signal may reach everybody. It is not ignored, since what an environment starts would ignore it, too."""


def _leave_with_driver() -> None:
    """Nobody else is there any more to end what the environments have started."""
    end_offspring({os.getpid()})
    os._exit(1)


def _prepare(given: WorkerArguments, name: str) -> None:
    """What a process does once for all its workers."""
    name_process(name)
    set_warning_level(given.warnings)
    if given.cores:
        os.sched_setaffinity(0, given.cores)
    start_jax(given.plan.compute_threads)
    if given.plan.large:
        keep_freed_memory()
    gc.freeze()  # what was imported before the fork stays shared, and is not looked through again
    wake_up_sharply()


@contextlib.contextmanager
def _last_words(given: WorkerArguments) -> Iterator[None]:
    """An error ends the process, and is said before."""
    try:
        yield
    except EnvironmentFailure as error:  # before its kind: an environment may do better the next time
        _leave(given, FAILURE, str(error), error.__cause__ or error)
    except UserError as error:
        _leave(given, REFUSAL, str(error))
    except BaseException as error:
        _leave(given, FAILURE, f"{type(error).__name__}: {error}", error)


def _leave(given: WorkerArguments, kind: str, sentence: str, error: BaseException | None = None) -> None:
    write_report(given.report.fd, kind, sentence, "" if error is None else trace_of(error))
    os._exit(1)


class WorkerProcess:
    """The roles of one worker taking turns, or a group; the first worker's bell wakes all of it."""

    def __init__(self, given: WorkerArguments, workers: tuple[int, ...]) -> None:
        self.given, self.indices = given, list(workers)
        self.wiring = Wiring(given.plan, given.block.arrays(), self._ring)
        self.workers = [self.wiring.workers[index] for index in workers]
        self.group = self.wiring.group(self.workers[0])
        self.stats = self.wiring.counters.stats(workers[0])
        self.waiting, self.phase = self.wiring.counters.arrays["waiting"], self.wiring.phase
        self.bell = given.bells[workers[0]]
        _prepare(given, str(self.workers[0]))
        late = self.group.kind == "evaluate"  # everybody waits for who builds slowly
        if not late:
            os.nice(given.niceness)  # before it starts threads, which inherit it
        self._await_weights()
        self._contexts = {worker.index: self._context(worker) for worker in self.workers}
        self.threads = self._actor_threads() if len(workers) > 1 else None
        self.roles: list[Role] = [self.threads] if self.threads else self._roles()
        for role in self.roles:
            role.warm_up()
        self._failures: dict[int, tuple[int, int]] = {}
        self._breathed = time.monotonic()
        if late:
            os.nice(given.niceness)

    def _context(self, worker: Any) -> Context:
        return self.wiring.context(
            worker,
            epoch=self.given.epoch,
            spare=self.given.spare,
            dismissed=self._dismissed,
            await_others=self._await_others,
        )

    def _roles(self) -> list[Role]:
        return self.wiring.build(self._contexts[self.indices[0]])

    def _actor_threads(self) -> ActorThreads:
        return ActorThreads(
            self.wiring.build_group(list(self._contexts.values())),
            begin=lambda actor: self._contexts[actor.stats.worker].begin(actor),
            recover=self._recover,
            wake=self.bell.ring,
            dismissed=self._dismissed,
        )

    def _dismissed(self) -> bool:
        return int(self.phase[0]) == LEAVE

    def _ring(self, workers: Sequence[int]) -> None:
        for index in workers:
            if self.waiting[index]:
                self.given.bells[index].ring()

    def _await_weights(self) -> None:
        """Those who read weights wait for those who publish; the heartbeat's deadline ends a vain wait."""
        if self.wiring.needs_weights(self.workers[0]):
            while not self._dismissed() and not self.wiring.topology.weights.published:
                time.sleep(0.005)

    def _await_others(self) -> bool:
        """A moment's rest inside a pause that others have not reached yet; whether to wait on.

        Whoever keeps it waiting is noticed by the supervisor, and a driver that waits in vain lets everybody leave.
        """
        self._beat()
        time.sleep(GLANCE_S)
        return not self._dismissed()

    def run(self) -> None:
        """Work while there is work, rest while there is none, until it is time to leave."""
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
        """Say who lives; a group knows which of it."""
        if self.threads is None:
            self.stats.beat()
        else:
            self.threads.beat()

    def _breathe(self) -> None:
        """Let others have the core for a moment."""
        if time.monotonic() - self._breathed > BREATHE_EVERY_S:
            time.sleep(BREATH_S)
            self._breathed = time.monotonic()

    def _on(self) -> bool:
        """Whether it is time to work; at the end of a run only those do who play no more steps."""
        phase = self.phase[0]
        return bool(phase == RUN or (phase == LEARN and self.group.kind != "play"))

    def _turn(self) -> bool:
        """One step of each role; an environment that fails is started anew."""
        worked = 0
        try:
            for role in self.roles:
                worked += role.step()
        except EnvironmentFailure as error:
            if not isinstance(role, Actor):
                raise
            self._recover(role, error)
            worked = 1
        if worked and self.threads is None:  # else it has written down whose work it was
            self.stats.row["work"] += worked
        return worked > 0

    def _recover(self, actor: Actor, error: EnvironmentFailure) -> None:
        """New environments, new episodes, a fresh seed; the half episode is joined to none."""
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
        self._contexts[stats.worker].renew(actor)

    def _rest(self) -> None:
        """Wait for the bell. The flag goes up before the last look, so that no ring is missed."""
        row, began = self.stats.row, time.monotonic()
        row["waiting"] = self.threads is None or self.threads.held
        try:
            if not self._turn() and self._on():
                self.bell.wait(REST_S)
                if self.threads is None:  # else it counts whose time it was
                    row["idle_s"] += time.monotonic() - began
        finally:
            row["waiting"] = 0

    def _rest_until_rung(self) -> None:
        """A while in which nothing is to be done, whoever rings."""
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
        while (
            phase[0] in (PAUSE, LEARN) and row["settled"] == phase[1]
        ):  # the next pause may begin before this one's end is seen
            self._rest_until_rung()
        if phase[0] != LEAVE:
            return True
        for role in self.roles:
            with contextlib.suppress(Exception):
                role.close()
        return False

    def _write_notes(self) -> None:
        """What a checkpoint keeps of each worker, whoever it shares a process with."""
        states = [role.state() for role in self.roles]
        notes = [states] if self.threads is None else [[state] for state in states[0]["actors"]]
        for worker, note in zip(self.workers, notes, strict=True):
            self.wiring.counters.write_note(worker.index, {"roles": note})
