"""The inside of a child process: builds its members' roles and lets them work until the driver says otherwise.

A process has one member, or a crew of several that mostly wait for their environments.
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

from repertory.agents.agent import Agent
from repertory.engines.casting import Casting
from repertory.engines.offspring import end_offspring, lead_group
from repertory.engines.plan import Plan
from repertory.engines.reports import FAILURE, REFUSAL, trace_of, write_report
from repertory.engines.shared_memory import Bell, Block, Descriptor, Lifeline
from repertory.engines.stage import BUILD, LEARN, LEAVE, PAUSE, PLAYING, RUN, Member, Stage, members_of
from repertory.environments import hush
from repertory.errors import EnvironmentFailure, UserError
from repertory.output import forgive_output
from repertory.roles.actor import Actor
from repertory.roles.crew import SMALL
from repertory.roles.ports import Role
from repertory.runtime import (
    die_with_fork_server,
    interrupt_nobody,
    keep_freed_memory,
    name_process,
    start_jax,
    wake_up_sharply,
)

REST_S = 0.1
"""A member that has nothing to do looks again after so long, even if nobody has rung."""
GLANCE_S = 0.001
"""How often a rank that waits for the others' halt looks."""
BREATH_S, BREATHE_EVERY_S = 0.0001, 0.02
"""How long a process that keeps to a core sleeps, and how often.

One that never sleeps may keep everybody else from its core, whatever their priorities: on Linux 6.18 an evaluator got
no turn for ten seconds beside two workers, and the kernel's own threads for a minute.
"""

IMPORTED_IN = os.getpid()
"""The fork server; or the member itself, where that could not import this."""


@dataclass
class Kit:
    """What a child is given: small things and file descriptors."""

    plan: Plan
    block: Block
    bells: list[Bell]
    lifeline: Lifeline
    report: Descriptor
    """Where it leaves its last words."""
    recovered: Descriptor
    """Where it tells of the last failure that it has recovered from."""
    threads: int
    cores: Sequence[int] = ()
    """The cores to keep to, if any."""
    spare: Sequence[int] = ()
    """Cores where a learner may have something computed beside its own."""
    niceness: int = 0
    """By how much to yield to others."""
    warnings: int = hush.level()
    """Which of Gymnasium's warnings are told: the driver's level."""


def perform(kit: Kit, crew: tuple[int, ...]) -> None:
    """The child's main function; it never returns with an error unsaid."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave_it_to_the_driver)
    lead_group()
    die_with_fork_server(os.getppid() if os.getpid() == IMPORTED_IN else IMPORTED_IN)
    forgive_output()
    kit.block.arrays()["ledger/began"][list(crew)] = 1
    kit.lifeline.watch(_leave_with_driver)
    faulthandler.enable(kit.report.fd)
    faulthandler.register(signal.SIGUSR1, file=kit.report.fd, all_threads=True)
    with _last_words(kit):
        agent = _prepare(kit, members_of(kit.plan)[crew[0]])
        if len(crew) > SMALL:  # in a smaller one, who wakes up mostly finds the lock free
            interrupt_nobody()
        Host(kit, agent, crew).run()
    os._exit(0)  # neither JAX's nor an environment's threads may keep the process


def _leave_it_to_the_driver(_number: int, _frame: Any) -> None:
    """A signal may reach everybody. It is not ignored, since what an environment starts would ignore it, too."""


def _leave_with_driver() -> None:
    """Nobody else is there any more to end what the environments have started."""
    end_offspring({os.getpid()})
    os._exit(1)


def _prepare(kit: Kit, member: Member) -> Agent:
    """What a process does once for all its members, of which this is the first; they all have the same role."""
    plan = kit.plan
    name_process(str(member))
    hush.set_level(kit.warnings)
    if kit.cores:
        os.sched_setaffinity(0, kit.cores)
    strategy = plan.strategy(kit.threads)
    start_jax(strategy.threads)
    if strategy.slice_rows:
        keep_freed_memory()
    gc.freeze()  # what was imported before the fork stays shared, and is not looked through again
    wake_up_sharply()
    if member.role != "evaluator":
        os.nice(kit.niceness)  # before it starts threads, which inherit it
    return plan.make_agent(kit.threads)


@contextlib.contextmanager
def _last_words(kit: Kit) -> Iterator[None]:
    """An error ends the process, and is said before."""
    try:
        yield
    except EnvironmentFailure as error:  # before its kind: an environment may do better the next time
        _leave(kit, FAILURE, str(error), error.__cause__ or error)
    except UserError as error:
        _leave(kit, REFUSAL, str(error))
    except BaseException as error:
        _leave(kit, FAILURE, f"{type(error).__name__}: {error}", error)


def _leave(kit: Kit, kind: str, sentence: str, error: BaseException | None = None) -> None:
    write_report(kit.report.fd, kind, sentence, "" if error is None else trace_of(error))
    os._exit(1)


class Host:
    """The roles of one member taking turns, or a crew; the first member's bell wakes all of it."""

    def __init__(self, kit: Kit, agent: Agent, crew: tuple[int, ...]) -> None:
        plan = kit.plan
        self.kit = kit
        self.stage = Stage(plan, agent, kit.block.arrays(), self._ring)
        self.waiting = self.stage.ledger["waiting"]
        self.pages = list(crew)
        self.members = [self.stage.members[index] for index in crew]
        self.member: Member = self.members[0]
        self.page = self.stage.page(self.member)
        self.bell = kit.bells[crew[0]]
        self.casting = Casting(
            self.stage,
            lambda rank: self.stage.collective(rank, self.stage.bell(self.member.role), self._await_others),
            lambda: int(self.stage.phase[0]) == LEAVE,
            spare=kit.spare,
        )
        self._await_weights()
        self.crew = self.casting.crew(self.members, self._recover, self.bell.ring) if len(crew) > 1 else None
        self.roles: list[Role] = self.casting.build(self.member) if self.crew is None else [self.crew]
        self._failures: dict[int, tuple[int, int]] = {}
        self._breathed = time.monotonic()
        if self.member.role == "evaluator":
            os.nice(kit.niceness)  # only now: everybody waits for who builds slowly

    def _ring(self, members: Sequence[int]) -> None:
        for index in members:
            if self.waiting[index]:
                self.kit.bells[index].ring()

    def _await_weights(self) -> None:
        """Those who play wait for those who publish; the heartbeat's deadline ends a vain wait."""
        if self.member.role in ("server", "learner", "thread", "rank", "adjuster"):
            return
        while int(self.stage.phase[0]) != LEAVE and not self._published():
            time.sleep(0.005)

    def _await_others(self) -> bool:
        """A moment's rest inside a pause that others have not reached yet; whether to wait on.

        Whoever keeps it waiting is noticed by the supervisor, and a driver that waits in vain lets everybody leave.
        """
        self._beat()
        time.sleep(GLANCE_S)
        return int(self.stage.phase[0]) != LEAVE

    def _published(self) -> bool:
        if not self.stage.plan.topology.has("server") and "weights/flips" not in self.stage.arrays:
            return True
        return bool((self.stage.arrays["weights/flips"] > 0).all())

    def run(self) -> None:
        """Work while there is work, rest while there is none, until it is time to leave."""
        while self.stage.phase[0] == BUILD:
            self._rest_until_rung()
        while True:
            self._beat()
            if self.kit.cores:
                self._breathe()
            if self._on():
                if not self._turn():
                    self._rest()
            elif not self._attend():
                return

    def _beat(self) -> None:
        """Say who lives; a crew knows which of it."""
        if self.crew is None:
            self.page.beat()
        else:
            self.crew.beat()

    def _breathe(self) -> None:
        """Let others have the core for a moment."""
        if time.monotonic() - self._breathed > BREATHE_EVERY_S:
            time.sleep(BREATH_S)
            self._breathed = time.monotonic()

    def _on(self) -> bool:
        """Whether it is time to work; at the end of a run only those do who play no more steps."""
        phase = self.stage.phase[0]
        return bool(phase == RUN or (phase == LEARN and self.member.role not in PLAYING))

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
        if worked and self.crew is None:  # else it has written down whose work it was
            self.page.row["work"] += worked
        return worked > 0

    def _recover(self, actor: Actor, error: EnvironmentFailure) -> None:
        """New environments, new episodes, a fresh seed; the half episode is joined to none."""
        page, played = actor.page, actor.page.own_env_steps
        failed_at, failures = self._failures.get(page.member, (-1, 0))
        failures = failures + 1 if played == failed_at else 1
        self._failures[page.member] = (played, failures)
        if failures > self.stage.plan.company.restarts:
            raise error
        write_report(self.kit.recovered.fd, FAILURE, str(error), trace_of(error.__cause__ or error))
        page.count("failures")
        page.count("starts")
        with contextlib.suppress(Exception):
            actor.environments.close()
        self.casting.renew(actor)

    def _rest(self) -> None:
        """Wait for the bell. The flag goes up before the last look, so that no ring is missed."""
        row, began = self.page.row, time.monotonic()
        row["waiting"] = self.crew is None or self.crew.held
        try:
            if not self._turn() and self._on():
                self.bell.wait(REST_S)
                if self.crew is None:  # else it counts whose time it was
                    row["idle_s"] += time.monotonic() - began
        finally:
            row["waiting"] = 0

    def _rest_until_rung(self) -> None:
        """A while in which nothing is to be done, whoever rings."""
        self._beat()
        self.page.row["waiting"] = 1
        self.bell.wait(REST_S)
        self.page.row["waiting"] = 0

    def _attend(self) -> bool:
        """Pause or leave; False = leave."""
        for role in self.roles:
            role.settle()
        self._write_notes()
        row, phase = self.page.row, self.stage.phase
        self.stage.ledger["settled"][self.pages] = int(phase[1])
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
        """What a checkpoint keeps of each member, whoever it shares a process with."""
        states = [role.state() for role in self.roles]
        notes = [states] if self.crew is None else [[state] for state in states[0]["actors"]]
        for member, note in zip(self.members, notes, strict=True):
            self.stage.write_note(member, {"roles": note})
