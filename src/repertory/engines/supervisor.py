"""Keeps the workers of a run alive: starts them, watches their heartbeats, names and restarts those that fail."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from repertory.engines.endings import REFUSAL, clear_report, end_offspring, read_report
from repertory.engines.launching import SERVER_GONE, WorkerFailed, end_worker, start_worker
from repertory.engines.placement import Process, cores_of, niceness_of, processes_of, spare_cores
from repertory.engines.shared_memory import Bell, Block, Descriptor, Lifeline, anonymous_file
from repertory.engines.wiring import Wiring
from repertory.engines.worker_process import WorkerArguments
from repertory.environments.factory import warning_level
from repertory.errors import UserError
from repertory.runtime import UNGUARDED, end_of_child, fork_server_pid, pinnable_cores, usable_cores
from repertory.topologies.graph import Worker, Workers

__all__ = ["Event", "Supervisor", "Watched", "WorkerFailed"]

START_S = 120.0
"""A worker that has not built its roles after so long counts as silent, whatever the heartbeat's limit."""
LEAVE_S = 4.0
"""Workers that have not left by themselves after so long are killed."""
ABSENT_S = 1.0
"""After so long without a look the driver itself was stopped or busy: everybody's silence counts from then on."""
DUMP_S = 0.5


@dataclass
class Watched:
    """One process as its supervisor sees it, and the workers that share it."""

    workers: Process
    group: Workers
    report: Descriptor = field(default_factory=lambda: Descriptor(anonymous_file(0)))
    recovery: Descriptor = field(default_factory=lambda: Descriptor(anonymous_file(0)))
    process: Any = None
    server: int = 0
    started: float = 0.0
    epoch: int = -1
    """Which start of a process this is; rows of counters that name another one are an earlier process's."""
    failures: int = 0
    worked: int = 0
    recovered: int = 0
    given_up: bool = False
    """It failed too often, but the run goes on without it."""

    @property
    def alive(self) -> bool:
        """Whether there is a process."""
        return self.process is not None and self.process.exitcode is None

    @property
    def indices(self) -> list[int]:
        """Their rows of counters."""
        return [worker.index for worker in self.workers]

    @property
    def essential(self) -> bool:
        """Whether the run can't go on without it."""
        return self.group.kind != "evaluate"

    def __str__(self) -> str:
        first, last = self.workers[0], self.workers[-1]
        return str(first) if first is last else f"{first} to {last.rank}"


@dataclass
class Event:
    """Something that went wrong, and what was done about it."""

    worker: str
    what: str
    trace: str
    restarts: int
    then: str = "started again"
    time: float = field(default_factory=time.time)

    def sentence(self) -> str:
        """For people."""
        return f"{self.worker} {self.what}; {self.then}"


class Supervisor:
    """Owns the processes; the shared memory belongs to the driver and outlives them.

    `withdraw` takes back the evaluation that is under way, and says which it was. After an error has been raised,
    `failed` is true: then nobody is started again.
    """

    def __init__(self, wiring: Wiring, block: Block, bells: list[Bell], withdraw: Callable[[], str]) -> None:
        self.plan, self.wiring, self.topology, self.block, self.bells = (
            wiring.plan, wiring, wiring.topology, block, bells,
        )  # fmt: skip
        self.counters, self.withdraw, self.failed = wiring.counters.arrays, withdraw, False
        self.lifeline = Lifeline()
        self._cores = usable_cores()
        self._pinnable = _turned(pinnable_cores(), os.getpid())
        self.watched = [Watched(each, wiring.group(each[0])) for each in processes_of(self.topology, self._cores)]
        self.events: list[Event] = []
        self._ended_servers: dict[int, str] = {}
        self.restarts, self._epoch = 0, 0
        self._looked = self._returned = time.monotonic()
        self._beats = np.full(len(wiring.workers), -1)
        self._beaten = np.zeros(len(wiring.workers))

    def start(self) -> None:
        """Start everybody."""
        self._epoch += 1
        for watched in self.watched:
            self._start(watched)

    def _start(self, watched: Watched) -> None:
        watched.epoch, watched.started = self._epoch, time.monotonic()
        self._beats[watched.indices] = -1
        clear_report(watched.report.fd)
        try:
            watched.process = start_worker(self._arguments(watched), tuple(watched.indices), str(watched))
        except WorkerFailed as error:
            if watched.essential:
                raise
            self._give_up(watched, str(error).removeprefix(f"{watched} "), "")
            return
        watched.server = fork_server_pid()
        watched.worked = int(self.counters["work"][watched.indices].sum())
        watched.recovered = int(self.counters["failures"][watched.indices].sum())

    def _arguments(self, watched: Watched) -> WorkerArguments:
        large = self.plan.large
        return WorkerArguments(
            self.plan,
            self.block,
            self.bells,
            self.lifeline,
            watched.report,
            watched.recovery,
            watched.epoch,
            cores=cores_of(self.topology, watched.workers, self._pinnable, large=large),
            spare=spare_cores(self.topology, self._pinnable, large=large),
            niceness=niceness_of(self.topology, watched.workers, self._cores),
            warnings=warning_level(),
        )

    def _hear_beats(self) -> None:
        """When each worker last said that it lives, by this process's own clock; rows of earlier starts are silent."""
        beats = np.where(self.counters["epoch"] == self._epochs(), self.counters["beat"], -1)
        self._beaten[beats != self._beats] = time.monotonic()
        self._beats = beats

    def _epochs(self) -> NDArray[np.int64]:
        """Of each worker, which start counts."""
        epochs = np.zeros(len(self._beats), np.int64)
        for watched in self.watched:
            epochs[watched.indices] = watched.epoch
        return epochs

    @property
    def ready(self) -> bool:
        """Whether everybody has built its roles."""
        self._hear_beats()
        return all(watched.given_up or bool((self._beats[watched.indices] > 0).all()) for watched in self.watched)

    def pids(self) -> set[int]:
        """The processes that were started last."""
        return {watched.process.pid for watched in self.watched if watched.process is not None}

    def at_work(self) -> set[int]:
        """The rows of those who live and have built their roles."""
        self._hear_beats()
        alive = [index for watched in self.watched if watched.alive for index in watched.indices]
        return {index for index in alive if self._beats[index] > 0}

    def check(self) -> None:
        """Look after everybody once; restarts whoever failed, or raises if it failed too often."""
        try:
            self._check()
        except Exception:
            self.failed = True
            raise

    def _check(self) -> None:
        now = time.monotonic()
        if now - self._looked > ABSENT_S:
            self._returned = now
        self._hear_beats()
        for watched in self.watched:
            if watched.given_up:
                continue
            self._hear(watched)
            what = self._gone(watched) or self._someone_silent(watched)
            if what:
                self._replace(watched, what)
        self._looked = time.monotonic()

    def _hear(self, watched: Watched) -> None:
        """Failures that the worker has recovered from by itself."""
        failures = int(self.counters["failures"][watched.indices].sum())
        if failures > watched.recovered:
            _, sentence, trace = read_report(watched.recovery.fd)
            self.restarts += failures - watched.recovered
            watched.recovered = failures
            self._tell(str(watched), f"met a failure: {sentence}", trace)

    def _gone(self, watched: Watched) -> str:
        if watched.process is None:
            return "could not be started"
        code = watched.process.exitcode
        if code is None:
            return ""
        kind, sentence, _ = read_report(watched.report.fd)
        if kind == REFUSAL and watched.essential:
            self._tell(str(watched), f"refused: {sentence}", "", "the run ends")
            raise UserError(sentence)
        if code == UNGUARDED and not (self.counters["epoch"][watched.indices] == watched.epoch).any():
            raise UserError(
                "the script that calls train() is imported by every process; put the call under "
                "if __name__ == '__main__':"
            )
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if code == SERVER_GONE and (end := self._end_of_server(watched.server)):
            how = f"ended with the fork server (process {watched.server}), which {end}"
        return f"{how}: {sentence}" if sentence else how

    def _end_of_server(self, pid: int) -> str:
        """How it ended, if it has; once it was started anew, nobody else remembers."""
        if pid not in self._ended_servers and (end := end_of_child(pid)):
            self._ended_servers[pid] = end
        return self._ended_servers.get(pid, "")

    def _someone_silent(self, watched: Watched) -> str:
        """Of many workers, nearly always nobody: then one look at all of them is enough."""
        rows = watched.indices
        if (self._beats[rows] > 0).all() and time.monotonic() - self._beaten[rows].min() <= self.plan.heartbeat_s:
            return ""
        self._hear_beats()  # it may have taken long to replace somebody else
        return next(filter(None, (self._silent(watched, who) for who in watched.workers)), "")

    def _silent(self, watched: Watched, worker: Worker) -> str:
        """A worker that has not beaten for too long."""
        row, now = self.wiring.counters.stats(worker.index).row, time.monotonic()
        limit, beat = self.plan.heartbeat_s, bool(self._beats[worker.index] > 0)
        since = max(float(self._beaten[worker.index]) if beat else watched.started, self._returned)
        if now - since <= (limit if beat else max(START_S, limit)):
            return ""
        stopped = self._is_stopped(watched)
        began = int(row["epoch"]) == watched.epoch  # else the place is where an earlier process has been
        where, seed, step, actor = (int(number) for number in row["place"])
        inside = f" inside environment {where} of worker {actor} (seed {seed}, step {step})"
        if not stopped:
            self._dump(watched)
        state = "was stopped and silent" if stopped else "was silent" if beat else "has not started, silent"
        return f"{state} for {now - since:.1f} s{inside if began and where >= 0 else ''}"

    def _is_stopped(self, watched: Watched) -> bool:
        with contextlib.suppress(psutil.Error):
            return bool(psutil.Process(watched.process.pid).status() == psutil.STATUS_STOPPED)
        return False

    def _dump(self, watched: Watched) -> None:
        """Let it write the stacks of its threads."""
        clear_report(watched.report.fd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(watched.process.pid, signal.SIGUSR1)
        time.sleep(DUMP_S)

    def _replace(self, watched: Watched, what: str) -> None:
        """End what is left of it, and start it again, if it may."""
        trace = read_report(watched.report.fd).trace
        work = int(self.counters["work"][watched.indices].sum())
        watched.failures = 1 if work - watched.worked >= watched.group.progress else watched.failures + 1
        group = self._group(watched)
        often = watched.failures > self.plan.restarts
        self.restarts += not often
        if not often:
            self._tell(str(watched), what, trace)
        for each in group:
            self._name_another(each, watched)
            self._end_with_offspring(each)
        if often:
            self._give_up(watched, what, trace)
            return
        self._epoch += 1
        for each in group:
            self._start(each)

    def _end_with_offspring(self, watched: Watched) -> None:
        if watched.process is None:
            return
        end_offspring({watched.process.pid})  # first: who was only forked is found while the worker lives
        end_worker(watched.process)
        watched.process = None

    def _tell(self, who: str, what: str, trace: str, then: str = "started again") -> None:
        self.events.append(Event(who, what, trace, self.restarts, then))

    def _give_up(self, watched: Watched, what: str, trace: str) -> None:
        """Without an evaluator the run goes on; without anybody else it ends."""
        if not watched.essential:
            watched.given_up = True
            self._tell(self.withdraw() or "evaluation", f"failed: {watched} {what}", trace, "training goes on")
            return
        what = f"{what}; it failed {watched.failures} times without getting to work"
        self._tell(str(watched), what, trace, "the run ends")
        tail = f"\n{trace.rstrip()}" if trace else ""
        raise WorkerFailed(f"{watched} {what}{tail}")

    def bring_back(self) -> None:
        """Those who were given up are tried once more."""
        for watched in self.watched:
            if watched.given_up:
                watched.given_up, watched.failures = False, self.plan.restarts
                self._epoch += 1
                self._start(watched)

    def _group(self, watched: Watched) -> list[Watched]:
        """Who is started again with it: nobody waits for a replica that has lost its place."""
        alike = [other for other in self.watched if other.group is watched.group]
        return alike if watched.group.together else [watched]

    def _name_another(self, other: Watched, first: Watched) -> None:
        """Others of the group may have failed at the same time: they are named before all are ended."""
        what = self._gone(other) if other is not first else ""
        if what:
            self._tell(str(other), what, read_report(other.report.fd).trace)

    def rss_mb(self) -> dict[str, float]:
        """Memory of the processes of each kind of worker, shared parts counted in each."""
        found: dict[str, float] = {}
        for watched in filter(lambda watched: watched.alive, self.watched):
            with contextlib.suppress(psutil.Error):
                size = psutil.Process(watched.process.pid).memory_info().rss / 2**20
                found[watched.group.name] = round(found.get(watched.group.name, 0.0) + size, 1)
        return found

    def stop(self, seconds: float = LEAVE_S) -> None:
        """Wait until everybody has left; kill who has not, and what environments have left."""
        end, workers = time.monotonic() + seconds, self.pids()
        for watched in self.watched:
            if watched.process is not None:
                watched.process.join(max(0.0, end - time.monotonic()))
        end_offspring(workers)  # first: who was only forked is found while the worker lives
        for watched in self.watched:
            if watched.process is not None:
                end_worker(watched.process)
        self.lifeline.close()
        for watched in self.watched:
            watched.report.close()
            watched.recovery.close()


def _turned(cores: list[int], by: int) -> list[int]:
    """Beginning with another one, so that runs side by side do not all want the same."""
    return [cores[(index + by) % len(cores)] for index in range(len(cores))]
