"""Rows of counters and gradients outlive their process: only those of the newest start tell of a worker's life."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import until
from fault_environments import Control
from inline_runs import channel_of, small_plan
from repertory.engines import supervisor
from repertory.engines.driver import Driver
from repertory.engines.processes import ProcessesHost
from repertory.engines.supervisor import Supervisor, Watched

HEARTBEAT_S = 1.0
ORDERED = f"{Path(__file__).parents[1] / 'fault_environments.py'}:ordered"


class Process:
    """Stands for a process that does nothing by itself."""

    pid = 2**22 + 1  # no process has that number

    def __init__(self) -> None:
        self.exitcode: int | None = None

    def is_alive(self) -> bool:
        return False

    def join(self, seconds: float) -> None:
        """It is over."""

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    """A supervisor that has started all workers, but whose workers are what the test makes of their rows."""
    monkeypatch.setattr(supervisor, "start_worker", lambda *_: Process())
    monkeypatch.setattr(supervisor, "DUMP_S", 0.0)
    monkeypatch.setattr(os, "kill", lambda *_: None)
    host = ProcessesHost(small_plan("collectors", actors=2, heartbeat_s=HEARTBEAT_S))
    with closing(host):
        host.supervisor.start()
        yield host.supervisor


def enter(watching: Supervisor, watched: Watched, beats: int = 1) -> None:
    """As this start of the process does once it runs, and while it works."""
    for index in watched.indices:
        stats = watching.wiring.counters.stats(index)
        stats.enter(watched.epoch)
        for _ in range(beats):
            stats.beat()


def check_again(watching: Supervisor, alive: list[int]) -> bool:
    """Once more, after those have beaten; whether there is something new."""
    before = len(watching.events)
    watching.counters["beat"][alive] += 1
    watching.check()
    return len(watching.events) > before


def events(watching: Supervisor) -> list[str]:
    return [event.sentence() for event in watching.events]


def test_row_that_a_killed_process_left_is_not_the_life_of_the_one_after_it(
    watching: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for watched in watching.watched:
        assert not watching.ready
        enter(watching, watched, beats=1000)
    assert watching.ready
    first = watching.watched[0]
    row = watching.wiring.counters.stats(first.indices[0]).row
    row["place"] = (0, 7, 3, 0)
    first.process.exitcode = -signal.SIGKILL
    watching.check()
    assert events(watching) == [f"{first} was killed by SIGKILL; started again"]
    row["beat"] += 1  # what the killed one had written last may only be seen now
    assert (row["epoch"], row["beat"]) == (first.epoch - 1, 1001)
    assert not watching.ready
    assert first.indices[0] not in watching.at_work()
    monkeypatch.setattr(supervisor, "START_S", 0.0)
    until(lambda: check_again(watching, [one.indices[0] for one in watching.watched]), what="its end")
    found = events(watching)[1]
    assert re.match(rf"{first} has not started, silent for \d+\.\d s; started again$", found), (
        "another was in that place"
    )


def test_beat_counts_from_when_it_is_seen_and_the_clock_of_a_worker_plays_no_part(watching: Supervisor) -> None:
    for watched in watching.watched:
        enter(watching, watched)
    watching.check()
    for beat in (10**15, 5, 3):  # whatever it counts to: it counts
        time.sleep(0.6 * HEARTBEAT_S)
        watching.counters["beat"][:] = beat
        watching.check()
        assert watching.events == []


def test_silent_worker_is_named_with_the_environment_it_is_in_and_others_are_left_alone(watching: Supervisor) -> None:
    for watched in watching.watched:
        enter(watching, watched)
    second = watching.watched[1]
    watching.wiring.counters.stats(second.indices[0]).row["place"] = (1, 77, 12, 5)
    others = [one.indices[0] for one in watching.watched if one is not second]
    until(lambda: check_again(watching, others), what="its end")
    (told,) = events(watching)
    assert re.match(rf"{second} was silent for \d+\.\d s inside environment 1 of worker 5 \(seed 77, step 12\);", told)


def test_time_that_it_takes_to_replace_one_is_no_silence_of_the_others(
    watching: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for watched in watching.watched:
        enter(watching, watched)
    watching.check()

    def slowly(_: Any) -> None:
        time.sleep(1.5 * HEARTBEAT_S)
        watching.counters["beat"][:] += 1  # meanwhile they work

    monkeypatch.setattr(supervisor, "end_worker", slowly)
    watching.watched[0].process.exitcode = 1
    watching.check()
    assert events(watching) == [f"{watching.watched[0]} ended with exit code 1; started again"]


def test_starts_together_share_an_epoch_that_no_start_before_has_had(watching: Supervisor) -> None:
    seen = {watched.epoch for watched in watching.watched}
    assert len(seen) == 1
    for _ in range(3):
        watching.watched[0].process.exitcode = 1
        watching.check()
        epochs = [watched.epoch for watched in watching.watched]
        assert epochs[0] > max(seen)
        assert set(epochs[1:]) <= seen
        seen.add(epochs[0])


def run_until(driver: Driver, true: Any, what: str) -> None:
    end = time.monotonic() + 120
    for _ in driver.rounds():
        if true():
            return
        assert time.monotonic() < end, f"{what} did not happen; {driver.notes()}"


def test_worker_that_hangs_in_a_process_is_named_with_its_environment(tmp_path: Path) -> None:
    control = Control(tmp_path / "control")
    options = {"env_option": (f"control={tmp_path / 'control'}",), "heartbeat_s": 3.0, "env_steps": 10**6}
    plan = small_plan("single", environment=ORDERED, actors=1, envs_per_actor=3, **options)
    with closing(Driver(plan, ProcessesHost(plan))) as driver:
        driver.start()
        run_until(driver, lambda: driver.counters.updates > 20, "learning")
        host: Any = driver.host
        control.order(host.supervisor.watched[0].process.pid, "hang")
        run_until(driver, lambda: driver.restarts == 1, "a restart")
        (note,) = driver.notes()
        assert note.startswith("agent 0 was silent for 3.")
        assert "s inside environment " in note
        assert " of worker 0 (seed " in note
        assert "time.sleep" not in note.splitlines()[0]
        then = driver.counters.updates
        run_until(driver, lambda: driver.counters.updates > then + 20, "learning again")


class LateSecond:
    """Between the starts of two replicas: what earlier replicas have left looks like a round that all have joined."""

    def __init__(self, driver: Driver) -> None:
        host: Any = driver.host
        self.supervisor, self.arrays = host.supervisor, channel_of(driver.wiring, "gradients").arrays
        self._begin, self.supervisor._start = self.supervisor._start, self.start
        self.looked = False

    def start(self, watched: Watched) -> None:
        rank = watched.workers[0].rank
        if watched.group.name == "replica" and rank == 1:
            self._spoil()
            self._watch_the_first()
        self._begin(watched)

    def _spoil(self) -> None:
        """Fill the row of the second replica, which is not there."""
        assert self.arrays["epoch"][1] == self.supervisor._epoch - 1
        for name, array in self.arrays.items():
            if name not in ("epoch", "checksums"):
                array[1] = np.nan if array.dtype.kind == "f" else 10**6

    def _watch_the_first(self) -> None:
        until(lambda: self.arrays["epoch"][0] == self.supervisor._epoch, timeout=120, what="the first one's start")
        until(lambda: self.arrays["submitted"][0] == 1, timeout=120, what="its gradient")
        time.sleep(0.5)
        assert self.arrays["submitted"][0] == 1, "it took what an earlier start had left"
        self.looked = True


def test_replicas_that_start_together_again_ignore_what_an_earlier_epoch_left() -> None:
    plan = small_plan("all_reduce", actors=2, envs_per_actor=1, env_steps=10**6)
    with closing(Driver(plan, ProcessesHost(plan))) as driver:
        driver.start()
        run_until(driver, lambda: driver.counters.updates > 20, "learning")
        late, host = LateSecond(driver), driver.host
        assert isinstance(host, ProcessesHost)
        os.kill(host.supervisor.watched[1].process.pid, signal.SIGKILL)
        run_until(driver, lambda: late.looked and host.supervisor.ready, "a restart")
        then = driver.counters.updates
        run_until(driver, lambda: driver.counters.updates > then + 20, "learning again")
        learned = driver.settle()["learner"]["learned"]
        assert all(np.isfinite(array).all() for array in learned.values())
        versions, sums = late.arrays["checksums"][..., 0], late.arrays["checksums"][..., 1]
        both = (versions[0] == versions[1]) & (versions[0] > then)
        assert both.sum() >= 20
        assert (sums[0] == sums[1])[both].all(), "equal weights after every update"
