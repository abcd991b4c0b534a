"""Keeps the workers of a run alive: starts their processes, watches heartbeats, reports failures, restarts."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

from repertory.engines.endings import REFUSAL, clear_report, end_offspring, read_report
from repertory.engines.placement import Process, cores_of, niceness_of, processes_of, spare_cores
from repertory.engines.shared_memory import Bell, Block, Descriptor, Lifeline, anonymous_file
from repertory.engines.wiring import Wiring
from repertory.engines.worker_process import WorkerArguments, run_worker
from repertory.environments.factory import warning_level
from repertory.errors import UserError
from repertory.runtime import UNGUARDED, end_of_child, fork_server, fork_server_pid, pinnable_cores, usable_cores
from repertory.topologies.graph import Worker, Workers

START_S = 120.0
"""A worker that has not built its roles after so long counts as silent, even if the heartbeat's limit is shorter."""
LEAVE_S = 4.0
"""Workers that have not left after so long are killed."""
ABSENT_S = 1.0
"""After so long without a check the driver itself was stopped or busy: silence counts only from then on."""
DUMP_S = 0.5
START_ATTEMPTS = 3
SERVER_GONE = 255
"""Exit code that `multiprocessing` gives a process whose fork server is gone and can't tell how it ended."""


class WorkerFailed(RuntimeError):
    """A worker failed more often than it may."""


def start_worker(given: WorkerArguments, workers: tuple[int, ...], name: str) -> Any:
    """Start a process; if the fork server is gone, the next attempt starts a new one."""
    for attempt in range(1, START_ATTEMPTS + 1):
        process = fork_server().Process(target=run_worker, args=(given, workers), name=name)
        try:
            process.start()
        except (OSError, EOFError) as error:
            if attempt < START_ATTEMPTS:
                continue
            raise WorkerFailed(
                f"{name} could not be started: the process that forks workers failed {attempt} times "
                f"({type(error).__name__}: {error}); look at this user's limits of processes and open files (ulimit -a)"
            ) from error
        break
    return process


def end_worker(process: Any) -> None:
    if process.is_alive():
        process.kill()
    process.join(5.0)
    with contextlib.suppress(ValueError):
        process.close()


@dataclass
class Watched:
    workers: Process
    group: Workers
    report: Descriptor = field(default_factory=lambda: Descriptor(anonymous_file(0)))
    recovery: Descriptor = field(default_factory=lambda: Descriptor(anonymous_file(0)))
    process: Any = None
    server: int = 0
    started: float = 0.0
    epoch: int = -1
    """Number of the start; rows of counters with another epoch were written by an earlier process."""
    failures: int = 0
    worked: int = 0
    recovered: int = 0
    given_up: bool = False
    """It failed too often, but the run goes on without it."""

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.exitcode is None

    @property
    def indices(self) -> list[int]:
        return [worker.index for worker in self.workers]

    @property
    def essential(self) -> bool:
        """Whether the run ends if it fails too often."""
        return self.group.kind != "evaluate"

    def __str__(self) -> str:
        first, last = self.workers[0], self.workers[-1]
        return str(first) if first is last else f"{first} to {last.rank}"


@dataclass
class Event:
    worker: str
    what: str
    trace: str
    restarts: int
    then: str

    def sentence(self) -> str:
        return f"{self.worker} {self.what}; {self.then}"


class Supervisor:
    """Owns the processes; the shared memory belongs to the driver and outlives them.

    `withdraw` takes back the evaluation that is under way, and says which it was. `mine` are the workers of this
    machine, by their indices; None = all. Workers of a name in `apart` are started together with those on other
    machines: if one fails, those of this machine are ended, and their name is `broken` until `start_together`. After an
    error has been raised, `failed` is true, and no worker is started again.
    """

    def __init__(
        self,
        wiring: Wiring,
        block: Block,
        bells: list[Bell],
        withdraw: Callable[[], str],
        mine: Collection[int] | None = None,
        apart: Collection[str] = (),
    ) -> None:
        self.plan, self.wiring, self.topology = wiring.plan, wiring, wiring.topology
        self.block, self.bells, self.withdraw = block, bells, withdraw
        self.counters, self.failed = wiring.counters.arrays, False
        self.lifeline = Lifeline()
        self._cores = usable_cores()
        # Beginning with another core in each run, so that runs side by side do not all keep to the same ones.
        self._pinnable: list[int] = np.roll(pinnable_cores(), -os.getpid()).tolist()
        self._mine, self._apart = mine, {*apart}
        self.broken: set[str] = set()
        processes = processes_of(self.topology, self._cores, mine)
        self.watched = [Watched(each, wiring.group(each[0])) for each in processes]
        self.events: list[Event] = []
        self._ended_servers: dict[int, str] = {}
        self.restarts, self._epoch = 0, 0
        self._looked = self._returned = time.monotonic()
        self._beats = np.full(len(wiring.workers), -1)
        self._beaten = np.zeros(len(wiring.workers))

    def start(self, epoch: int | None = None) -> None:
        """`epoch` is the number of this start, if other machines count it as well."""
        self._start_all(self.watched, epoch)

    def end_together(self, name: str) -> None:
        """End the workers of this name, before they are started together with those of other machines."""
        self.broken.add(name)
        for watched in self.watched:
            if watched.group.name == name:
                self._end_with_offspring(watched)

    def start_together(self, name: str, epoch: int) -> None:
        self.broken.discard(name)
        self._start_all([watched for watched in self.watched if watched.group.name == name], epoch)

    def _start_all(self, several: list[Watched], epoch: int | None = None) -> None:
        self._epoch = self._epoch + 1 if epoch is None else epoch
        for watched in several:
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
        watched.worked = self._total("work", watched)
        watched.recovered = self._total("failures", watched)

    def _total(self, name: str, watched: Watched) -> int:
        return int(self.counters[name][watched.indices].sum())

    def _arguments(self, watched: Watched) -> WorkerArguments:
        where: Any = {"large": self.plan.large, "mine": self._mine}
        return WorkerArguments(
            self.plan,
            self.block,
            self.bells,
            self.lifeline,
            watched.report,
            watched.recovery,
            watched.epoch,
            cores=cores_of(self.topology, watched.workers, self._pinnable, **where),
            spare=spare_cores(self.topology, self._pinnable, **where),
            niceness=niceness_of(self.topology, watched.workers, self._cores, self._mine),
            warnings=warning_level(),
        )

    def _hear_beats(self) -> None:
        """Note by this process's clock when each heartbeat last changed; rows of earlier starts do not count."""
        epochs = np.zeros(len(self._beats), np.int64)
        for watched in self.watched:
            epochs[watched.indices] = watched.epoch
        beats = np.where(self.counters["epoch"] == epochs, self.counters["beat"], -1)
        self._beaten[beats != self._beats] = time.monotonic()
        self._beats = beats

    @property
    def ready(self) -> bool:
        """Whether all workers have built their roles."""
        self._hear_beats()
        return all(watched.given_up or bool((self._beats[watched.indices] > 0).all()) for watched in self.watched)

    def pids(self) -> set[int]:
        return {watched.process.pid for watched in self.watched if watched.process is not None}

    def at_work(self) -> set[int]:
        """Indices of the workers that live and have built their roles."""
        self._hear_beats()
        alive = [index for watched in self.watched if watched.alive for index in watched.indices]
        return {index for index in alive if self._beats[index] > 0}

    def absent(self) -> set[int]:
        """Indices of workers that are neither here nor being started: none on one machine."""
        return set()

    def metrics(self) -> dict[str, float | int | None]:
        return {}

    def check(self) -> None:
        """Check all processes once; restarts those that failed, or raises if one failed too often."""
        now = time.monotonic()
        if now - self._looked > ABSENT_S:
            self._returned = now
        self._hear_beats()
        try:
            for watched in self.watched:
                if not watched.given_up and watched.group.name not in self.broken:
                    self._check(watched)
        except Exception:
            self.failed = True
            raise
        self._looked = time.monotonic()

    def _check(self, watched: Watched) -> None:
        self._hear(watched)
        what = self._gone(watched) or self._someone_silent(watched)
        if what:
            self._replace(watched, what)

    def _hear(self, watched: Watched) -> None:
        """Report failures that the worker has recovered from by itself."""
        failures = self._total("failures", watched)
        if failures > watched.recovered:
            _, sentence, trace = read_report(watched.recovery.fd)
            self.restarts += failures - watched.recovered
            watched.recovered = failures
            self._tell(watched, f"met a failure: {sentence}", trace)

    def _gone(self, watched: Watched) -> str:
        """How the process ended; empty if it lives."""
        if watched.process is None:
            return "could not be started"
        code = watched.process.exitcode
        if code is None:
            return ""
        kind, sentence, _ = read_report(watched.report.fd)
        if kind == REFUSAL and watched.essential:
            self._tell(watched, f"refused: {sentence}", "", "the run ends")
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
        """How it ended, if it has; remembered, because the system forgets it when a new server is started."""
        if pid not in self._ended_servers and (end := end_of_child(pid)):
            self._ended_servers[pid] = end
        return self._ended_servers.get(pid, "")

    def _someone_silent(self, watched: Watched) -> str:
        """One look at all workers of the process is enough if none is silent, which is nearly always so."""
        rows = watched.indices
        if (self._beats[rows] > 0).all() and time.monotonic() - self._beaten[rows].min() <= self.plan.heartbeat_s:
            return ""
        self._hear_beats()  # replacing another process may have taken long
        return next(filter(None, (self._silent(watched, worker) for worker in watched.workers)), "")

    def _silent(self, watched: Watched, worker: Worker) -> str:
        """For how long a worker has sent no heartbeat, and where it is; empty if that is not too long."""
        row, now = self.wiring.counters.stats(worker.index).row, time.monotonic()
        limit, beat = self.plan.heartbeat_s, bool(self._beats[worker.index] > 0)
        since = max(float(self._beaten[worker.index]) if beat else watched.started, self._returned)
        if now - since <= (limit if beat else max(START_S, limit)):
            return ""
        stopped = False
        with contextlib.suppress(psutil.Error):
            stopped = psutil.Process(watched.process.pid).status() == psutil.STATUS_STOPPED
        began = int(row["epoch"]) == watched.epoch  # else the place is that of an earlier process
        where, seed, step, actor = (int(number) for number in row["place"])
        inside = f" inside environment {where} of worker {actor} (seed {seed}, step {step})"
        if not stopped:
            self._dump(watched)
        state = "was stopped and silent" if stopped else "was silent" if beat else "has not started, silent"
        return f"{state} for {now - since:.1f} s{inside if began and where >= 0 else ''}"

    def _dump(self, watched: Watched) -> None:
        """Let a process write the stacks of its threads into its report."""
        clear_report(watched.report.fd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(watched.process.pid, signal.SIGUSR1)
        time.sleep(DUMP_S)

    def _replace(self, watched: Watched, what: str) -> None:
        """End what is left of a process, and start it again if restarts are left: alone, or with all of its name."""
        trace = read_report(watched.report.fd).trace
        progress = self._total("work", watched) - watched.worked >= watched.group.progress
        watched.failures = 1 if progress else watched.failures + 1
        often = watched.failures > self.plan.restarts
        self.restarts += not often
        if not often:
            self._tell(watched, what, trace)
        alike = [other for other in self.watched if other.group is watched.group]
        group = alike if watched.group.together else [watched]
        for each in group:
            if each is not watched and (gone := self._gone(each)):  # it may have failed at the same time
                self._tell(each, gone, read_report(each.report.fd).trace)
            self._end_with_offspring(each)
        if often:
            self._give_up(watched, what, trace)
        elif watched.group.name in self._apart:
            self.broken.add(watched.group.name)
        else:
            self._start_all(group)

    def _end_with_offspring(self, watched: Watched) -> None:
        if watched.process is not None:
            end_offspring({watched.process.pid})  # first: forked children are found only while the worker lives
            end_worker(watched.process)
            watched.process = None

    def _tell(self, who: object, what: str, trace: str, then: str = "started again") -> None:
        self.events.append(Event(str(who), what, trace, self.restarts, then))

    def _give_up(self, watched: Watched, what: str, trace: str) -> None:
        """Without an evaluator the run goes on; without any other worker it ends."""
        if not watched.essential:
            watched.given_up = True
            self._tell(self.withdraw() or "evaluation", f"failed: {watched} {what}", trace, "training goes on")
            return
        what = f"{what}; it failed {watched.failures} times without getting to work"
        self._tell(watched, what, trace, "the run ends")
        tail = f"\n{trace.rstrip()}" if trace else ""
        raise WorkerFailed(f"{watched} {what}{tail}")

    def bring_back(self) -> None:
        for watched in self.watched:
            if watched.given_up:
                watched.given_up, watched.failures = False, self.plan.restarts
                self._start_all([watched])

    def rss_mb(self) -> dict[str, float]:
        """Memory of the processes of each name, shared parts counted in each."""
        found: dict[str, float] = {}
        for watched in (each for each in self.watched if each.alive):
            with contextlib.suppress(psutil.Error):
                size = psutil.Process(watched.process.pid).memory_info().rss / 2**20
                found[watched.group.name] = round(found.get(watched.group.name, 0.0) + size, 1)
        return found

    def stop(self, seconds: float = LEAVE_S) -> None:
        """Wait until all workers have left; kill those that have not, and what environments have left."""
        end, workers = time.monotonic() + seconds, self.pids()
        processes = [watched.process for watched in self.watched if watched.process is not None]
        for process in processes:
            process.join(max(0.0, end - time.monotonic()))
        end_offspring(workers)  # first: forked children are found only while the worker lives
        for process in processes:
            end_worker(process)
        self.lifeline.close()
        for watched in self.watched:
            watched.report.close()
            watched.recovery.close()
