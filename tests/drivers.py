"""A run in a session of its own, so that everything it has ever started can be found, and signals to its driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from commands import env_steps, result, rows, until, words
from repertory import topologies
from repertory.agents import registry
from repertory.engines import make_driver
from repertory.runs import checkpoint
from repertory.runs.config import from_dict
from repertory.runs.directory import RunDirectory
from repertory.runs.launch import prepare
from repertory.runs.presets import choose_agent

GONE_S = 30.0
"""So long after the driver's end nothing of it may be left."""
LONG, NICEST = 10**7, 19
STAGES = ("start-up", "training", "saving", "evaluation", "ending")
OPTIONS = words("--engine processes --network.hidden 16 16 --log-every 50 --quiet --name run")
OF_MEMORY = words(
    "--envs-per-actor 1 --agent.batch-size 16 --agent.learning-starts 200 --agent.replay-ratio 4 "
    "--agent.replay-capacity 4000"
)
OF_UNROLLS = words("--envs-per-actor 2 --agent.unroll 8 --agent.batch-unrolls 2")
OF_STAGE = {
    "start-up": f"--env-steps {LONG}",
    "training": f"--env-steps {LONG} --eval-every {LONG} --checkpoint-every 1000",
    "saving": f"--env-steps {LONG} --eval-every {LONG} --checkpoint-every 100",
    "evaluation": f"--env-steps {LONG} --eval-every 100 --eval-episodes 20",
    "ending": "--env-steps 1500 --eval-every 1000 --eval-episodes 20",
}
"""At stage evaluation one follows on the other, so that one is under way at almost any moment."""


class Driver:
    """`repertory ...` in a session of its own."""

    def __init__(self, place: Path, *arguments: str) -> None:
        self.run, self.printed = place / "runs/run", place / "printed.txt"
        self.shared_before = set(os.listdir("/dev/shm"))
        with self.printed.open("ab") as printed:
            command = [sys.executable, "-m", "repertory.cli", *arguments]
            self.process = subprocess.Popen(command, cwd=place, stdout=printed, stderr=printed, start_new_session=True)

    @classmethod
    def train(cls, place: Path, topology: str, at: str) -> Driver:
        """A run that will be at a stage for a while."""
        own = OF_UNROLLS if registry.find(choose_agent(topology)).learns_from == "unrolls" else OF_MEMORY
        actors = [] if topologies.find(topology).options.one_actor else words("--actors 2")
        options = [*OPTIONS, *actors, *own, *words(OF_STAGE[at])]
        return cls(place, "train", "CartPole-v1", "--topology", topology, *options)

    def signal(self, number: int, *, group: bool = False) -> bool:
        """To the driver alone, or to its group, as a terminal does; whether there was still a driver to hear it."""
        if self.process.poll() is not None:
            return False
        (os.killpg if group else os.kill)(self.process.pid, number)
        return True

    def wait(self, timeout: float = 60) -> int:
        """Its exit code."""
        return self.process.wait(timeout)

    def alive(self) -> list[psutil.Process]:
        """The living processes of its session, itself included."""
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return found

    def workers(self) -> list[psutil.Process]:
        """The processes that were forked for its workers."""
        servers = [process for process in self.alive() if process.ppid() == self.process.pid]
        return [worker for server in servers for worker in server.children()]

    def yields(self, *each: int) -> bool:
        """Whether its workers yield by so much more than the driver, as far as the system has numbers for it."""
        own = int(psutil.Process(self.process.pid).nice())
        try:
            found = sorted(int(worker.nice()) for worker in self.workers())
        except psutil.NoSuchProcess:  # one that was just replaced
            return False
        return found == [min(own + more, NICEST) for more in each]

    def said(self) -> str:
        """What it printed."""
        return self.printed.read_text()

    def leftovers(self) -> list[str]:
        """What is left of it after the time it has."""
        end = time.monotonic() + GONE_S
        while (left := self.alive()) and time.monotonic() < end:
            time.sleep(0.05)
        shared = set(os.listdir("/dev/shm")) - self.shared_before
        return [f"process {one.pid}: {' '.join(one.cmdline())[:100]}" for one in left] + [
            f"/dev/shm/{x}" for x in shared
        ]

    def end(self) -> None:
        """Whatever is left, ended: for tests that fail."""
        for process in self.alive():
            process.kill()
        self.process.wait(10)


def await_stage(driver: Driver, at: str, chance: np.random.Generator) -> None:
    """Until the run is there, and a seeded while longer."""
    reached: dict[str, Callable[[], Any]] = {
        "start-up": lambda: True,
        "training": lambda: env_steps(driver.run) > 300,
        "saving": lambda: list((driver.run / "checkpoints").glob(".tmp-*")),
        "evaluation": lambda: any(row.get("score") is not None for row in rows(driver.run)),
        "ending": lambda: env_steps(driver.run) >= 1300,
    }
    longest = {"start-up": 6.0, "training": 1.0, "saving": 0.02, "evaluation": 1.0, "ending": 0.4}[at]
    until(lambda: reached[at]() or driver.process.poll() is not None, timeout=90, what=at)
    time.sleep(float(chance.uniform(0.0, longest)))


def expected_codes(at: str, number: int) -> set[int]:
    """Exit codes that are right.

    While Python starts or ends, its handlers are not there and a signal does what it always does; a shell shows an end
    by SIGINT as 130, too.
    """
    if number == signal.SIGKILL:
        return {-signal.SIGKILL, 0} if at == "ending" else {-signal.SIGKILL}
    codes = {130} | ({-number} if at in ("start-up", "ending") else set())
    return codes | {0} if at == "ending" else codes


def resume_problems(place: Path) -> list[str]:
    """Takes over the newest checkpoint as `resume` does, and compares; what was saved must be what was reported."""
    directory = RunDirectory.open(place / "runs/run", place / "runs")
    newest = checkpoint.latest(directory.checkpoints)
    if newest is None:
        return []
    saved = checkpoint.load(newest)
    plan = prepare(from_dict(directory.read_config()))[1]
    driver = make_driver("processes", plan)
    try:
        driver.load_state(checkpoint.load(newest))
        loaded = driver.wiring.state()
    finally:
        driver.close()
    problems = [f"{name} differs" for name in ("env_steps", "updates") if loaded[name] != saved[name]]
    ended = directory.read_result() or {}
    if ended.get("status") == "interrupted":
        problems += [
            f"the checkpoint's {name} is old" for name in ("env_steps", "updates") if ended[name] != saved[name]
        ]
    for name, array in saved["learner"]["learned"].items():
        if not np.array_equal(array, loaded["learner"]["learned"][name]):
            problems.append(f"learner/{name} differs")
    if plan.unrolled:
        return problems
    then, now = (state["channels"]["experience"]["steps"] for state in (saved, loaded))
    return problems + _lane_problems(then, now)


def _lane_problems(saved: dict[str, Any], loaded: dict[str, Any]) -> list[str]:
    problems = []
    running = saved["head"] > saved["start"]
    if not np.array_equal(saved["head"] + running, loaded["head"]):
        problems.append("the lanes' heads differ, but for the episodes that were cut")
    for name in ("observation", "action", "reward", "age", "version"):
        then = saved[name]  # cutting an episode takes a slot more
        if not np.array_equal(then, loaded[name][:, : then.shape[1]]):
            problems.append(f"lanes/{name} differs")
    return problems


def go_on(place: Path) -> list[str]:
    """`repertory resume` by 200 more steps; returns what was wrong."""
    run = place / "runs/run"
    told = rows(run)  # none, if no step was played
    before = told[-1]["env_steps"] if told else 0
    stopped = result(run) if (run / "result.json").exists() else {"env_steps": 0, "updates": 0}
    total = stopped["env_steps"] + 200
    driver = Driver(place, "resume", "run", "--quiet", "--env-steps", str(total))
    try:
        code = driver.wait(60)
        left = driver.leftovers()
    finally:
        driver.end()
    if code:
        return [f"resume ended with {code}: {driver.said()[-400:]}"]
    after, went = result(run), rows(run)
    problems = [f"left behind: {one}" for one in left]
    _, plan, _ = prepare(from_dict(RunDirectory.open(run, place / "runs").read_config()))
    if not total <= after["env_steps"] <= total + plan.environments or after["status"] != "completed":
        problems.append(f"resume came to {after['env_steps']} env steps of {total}: {after['status']}")
    if after["updates"] < stopped["updates"] or after["resumes"] != 1:
        problems.append(f"updates went back from {stopped['updates']} to {after['updates']}")
    if [row["env_steps"] for row in went] != sorted(row["env_steps"] for row in went):
        problems.append("metrics go back in time")
    if stopped.get("status") == "interrupted" and went[: len(told)] != told:
        problems.append("rows of before the signal are gone")
    if plan.unrolled:
        return problems
    epsilon = plan.compose().epsilon
    assert epsilon is not None
    most, least = (np.mean([epsilon(rank)(s) for rank in range(2)]) for s in (stopped["env_steps"], total + 2))
    later = [row["epsilon"] for row in went if row["env_steps"] > before and row["env_steps"] <= total + 2]
    if not later or min(later) < least - 1e-5 or later[-1] > most + 1e-5:
        problems.append(f"ε went on with {later}, not between {least} and {most}")
    return problems
