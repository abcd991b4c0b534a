"""Keeps the members of a company alive: starts them, watches their heartbeats, names and restarts those that fail."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any

import psutil

from repertory.engines.collective import meeting_place
from repertory.engines.host import USER_ERROR, Kit, perform, read_report
from repertory.engines.plan import Plan
from repertory.engines.shared_memory import Bell, Block, Descriptor, Lifeline, anonymous_file
from repertory.engines.stage import Member, Stage, cores_of, crews_of, members_of, niceness_of, spare_cores
from repertory.errors import UserError
from repertory.runtime import UNGUARDED, fork_server, pinnable_cores, usable_cores

START_S = 120.0
"""A member that has not built its roles after so long counts as silent, whatever the heartbeat's limit."""
LEAVE_S = 4.0
"""Members that have not left by themselves after so long are killed."""
ABSENT_S = 1.0
"""After so long without a look the driver itself was stopped or busy: everybody's silence counts from then on."""
DUMP_S = 0.5
PROGRESS, ONE_IS_ENOUGH = 20, ("evaluator", "adjuster")
"""Pieces of work after which a member's earlier failures are forgiven; some have few to do, but large ones."""
BEYOND = 200
"""More members than this, and the descriptors of their bells do not fit into one message to a new process."""


class CompanyFailed(RuntimeError):
    """A member failed more often than it may."""


@dataclass
class Watched:
    """One process as its supervisor sees it, and the members that share it."""

    crew: tuple[Member, ...]
    report: Descriptor
    process: Any = None
    started: float = 0.0
    failures: int = 0
    worked: int = 0
    recovered: int = 0

    @property
    def member(self) -> Member:
        """The first of them; most are alone."""
        return self.crew[0]

    @property
    def indices(self) -> list[int]:
        """Their pages."""
        return [member.index for member in self.crew]

    def __str__(self) -> str:
        return str(self.member) if len(self.crew) == 1 else f"{self.member} to {self.crew[-1].rank}"


@dataclass
class Event:
    """Something that went wrong, and what was done about it."""

    member: str
    what: str
    trace: str
    restarts: int
    time: float = field(default_factory=time.time)

    def sentence(self) -> str:
        """For people."""
        return f"{self.member} {self.what}; started again"


class Supervisor:
    """Owns the processes; the stage's memory belongs to the driver and outlives them."""

    def __init__(self, plan: Plan, stage: Stage, block: Block, bells: list[Bell], threads: int) -> None:
        self.plan, self.stage, self.block, self.bells, self.threads = plan, stage, block, bells, threads
        self.lifeline = Lifeline()
        members = members_of(plan)
        if len(members) > BEYOND:
            raise UserError(f"{len(members)} members were asked for; {BEYOND} are possible: lower --actors")
        self._cores = usable_cores()
        self._pinnable = _turned(pinnable_cores(), os.getpid())
        crews = crews_of(plan, self._cores)
        self.watched = [Watched(crew, Descriptor(anonymous_file(0))) for crew in crews]
        self.events: list[Event] = []
        self.restarts = 0
        self._meeting = ""
        self._looked = self._returned = time.monotonic()

    def start(self) -> None:
        """Start everybody."""
        self._meeting = meeting_place() if self.plan.topology.together else ""
        for watched in self.watched:
            self._start(watched)

    def _start(self, watched: Watched) -> None:
        ledger, crew = self.stage.ledger, watched.indices
        for name in ("beat", "together", "waiting"):
            ledger[name][crew] = 0
        ledger["place"][crew] = -1
        _clear(watched.report.fd)
        kit = Kit(
            self.plan,
            self.block,
            self.bells,
            self.lifeline,
            watched.report,
            self._meeting,
            self.threads,
            cores=cores_of(self.plan, watched.crew, self._pinnable),
            spare=spare_cores(self.plan, self._pinnable),
            niceness=niceness_of(self.plan, watched.crew, self._cores),
        )
        watched.process = fork_server().Process(target=perform, args=(kit, tuple(crew)), name=str(watched))
        watched.process.start()
        watched.started, watched.worked = time.monotonic(), int(ledger["work"][crew].sum())
        watched.recovered = int(ledger["failures"][crew].sum())

    @property
    def ready(self) -> bool:
        """Whether everybody has built its roles."""
        return bool((self.stage.ledger["beat"] > 0).all())

    def check(self) -> None:
        """Look after everybody once; restarts whoever failed, or raises if it failed too often."""
        now = time.monotonic()
        if now - self._looked > ABSENT_S:
            self._returned = now
        for watched in self.watched:
            self._hear(watched)
            what = self._gone(watched) or self._someone_silent(watched)
            if what:
                self._replace(watched, what)
        self._looked = time.monotonic()

    def _hear(self, watched: Watched) -> None:
        """Failures that the member has recovered from by itself."""
        failures = int(self.stage.ledger["failures"][watched.indices].sum())
        if failures > watched.recovered:
            sentence, trace = read_report(watched.report.fd)
            _clear(watched.report.fd)  # else it would be taken for its last words, if it were killed later
            self.restarts += failures - watched.recovered
            watched.recovered = failures
            self.events.append(Event(str(watched), f"met a failure: {sentence}", trace, self.restarts))

    def _gone(self, watched: Watched) -> str:
        code = watched.process.exitcode
        if code is None:
            return ""
        sentence, _ = read_report(watched.report.fd)
        if code == USER_ERROR:
            raise UserError(sentence)
        if code == UNGUARDED:
            raise UserError(
                "the script that calls train() is imported by every process; put the call under "
                "if __name__ == '__main__':"
            )
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{how}: {sentence}" if sentence else how

    def _someone_silent(self, watched: Watched) -> str:
        """Of many members, nearly always nobody: then one look at all of them is enough."""
        oldest = self.stage.ledger["beat"][watched.indices].min()
        if oldest and time.monotonic() - oldest <= self.plan.company.heartbeat_s:
            return ""
        return next(filter(None, (self._silent(watched, who) for who in watched.crew)), "")

    def _silent(self, watched: Watched, member: Member) -> str:
        """A member that has not beaten for too long; waiting for others in a collective is no silence."""
        row, now = self.stage.page(member).row, time.monotonic()
        limit, beat = self.plan.company.heartbeat_s, float(row["beat"])
        since = max(beat or watched.started, self._returned)
        if now - since <= (limit if beat else max(START_S, limit)):
            return ""
        stopped = self._is_stopped(watched)
        if self._waits_for_others(watched) and not stopped:
            return ""
        where, seed, step, worker = (int(number) for number in row["place"])
        inside = f" inside environment {where} of worker {worker} (seed {seed}, step {step})"
        if not stopped:
            self._dump(watched)
        state = "was stopped and silent" if stopped else "was silent" if beat else "has not started, silent"
        return f"{state} for {now - since:.1f} s{inside if where >= 0 else ''}"

    def _waits_for_others(self, watched: Watched) -> bool:
        """Whether one that works, or is stopped, keeps it waiting; if all wait for each other, nobody does."""
        together = self.stage.ledger["together"]
        if not together[watched.member.index]:
            return False
        group = [other for other in self.watched if other.member.role == watched.member.role]
        return any(not together[other.member.index] or self._is_stopped(other) for other in group)

    def _is_stopped(self, watched: Watched) -> bool:
        with contextlib.suppress(psutil.Error):
            return bool(psutil.Process(watched.process.pid).status() == psutil.STATUS_STOPPED)
        return False

    def _dump(self, watched: Watched) -> None:
        """Let it write the stacks of its threads."""
        _clear(watched.report.fd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(watched.process.pid, signal.SIGUSR1)
        time.sleep(DUMP_S)

    def _replace(self, watched: Watched, what: str) -> None:
        """End what is left of it, and start it again, if it may."""
        trace = read_report(watched.report.fd)[1]
        work = int(self.stage.ledger["work"][watched.indices].sum())
        enough = 1 if watched.member.role in ONE_IS_ENOUGH else PROGRESS
        watched.failures = 1 if work - watched.worked >= enough else watched.failures + 1
        group = [watched]
        if watched.member.role in self.plan.topology.together:
            group = [other for other in self.watched if other.member.role == watched.member.role]
        self.restarts += 1
        self.events.append(Event(str(watched), what, trace, self.restarts))
        for each in group:
            self._name_another(each, watched)
            _end(each.process)
            each.process = None
        if watched.failures > self.plan.company.restarts:
            tail = f"\n{trace.rstrip()}" if trace else ""
            raise CompanyFailed(f"{watched} {what}; it failed {watched.failures} times without getting to work{tail}")
        if len(group) > 1:
            self._meeting = meeting_place()
        for each in group:
            self._start(each)

    def _name_another(self, other: Watched, first: Watched) -> None:
        """Who waits together fails together: the one that was looked at first need not be the cause."""
        what = self._gone(other) if other is not first else ""
        if what:
            self.events.append(Event(str(other.member), what, read_report(other.report.fd)[1], self.restarts))

    def rss_mb(self) -> dict[str, float]:
        """Memory of each role's processes, shared parts counted in each."""
        found: dict[str, float] = {}
        for watched in self.watched:
            with contextlib.suppress(psutil.Error):
                size = psutil.Process(watched.process.pid).memory_info().rss / 2**20
                found[watched.member.role] = round(found.get(watched.member.role, 0.0) + size, 1)
        return found

    def stop(self, seconds: float = LEAVE_S) -> None:
        """Wait until everybody has left; kill who has not."""
        end = time.monotonic() + seconds
        for watched in self.watched:
            if watched.process is not None:
                watched.process.join(max(0.0, end - time.monotonic()))
        for watched in self.watched:
            if watched.process is not None:
                _end(watched.process)
        self.lifeline.close()
        for watched in self.watched:
            watched.report.close()


def _clear(report: int) -> None:
    """Forget what was written; the position, too, which is shared with the member that writes."""
    os.ftruncate(report, 0)
    os.lseek(report, 0, os.SEEK_SET)


def _turned(cores: list[int], by: int) -> list[int]:
    """Beginning with another one, so that runs side by side do not all want the same."""
    return [cores[(index + by) % len(cores)] for index in range(len(cores))]


def _end(process: Any) -> None:
    """Surely and at once: what it held is not its own."""
    if process.is_alive():
        process.kill()
    process.join(5.0)
    with contextlib.suppress(ValueError):
        process.close()
