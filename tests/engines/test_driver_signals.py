"""However the driver ends, it leaves no process behind; after a signal that it handles, the run can go on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from commands import env_steps, result, rows, until
from drivers import Driver, await_stage, expected_codes, go_on, resume_problems


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    """Those started by a test, ended with it."""
    started: list[Driver] = []
    yield started
    for driver in started:
        driver.end()


@pytest.mark.parametrize(
    ("topology", "at", "group"),
    [("gorila", "training", False), ("all_reduce", "saving", True), ("sample_factory", "training", True)],
)
def test_interrupted_run_leaves_no_process_and_goes_on_where_it_was(
    tmp_path: Path, drivers: list[Driver], topology: str, at: str, group: bool
) -> None:
    drivers.append(driver := Driver.train(tmp_path, topology, at))
    await_stage(driver, at, np.random.default_rng(1))
    driver.signal(signal.SIGINT, group=group)
    assert driver.wait() == 130, driver.said()
    assert driver.leftovers() == []
    assert "Traceback" not in driver.said()
    assert result(driver.run)["status"] == "interrupted"
    assert resume_problems(tmp_path) == []
    assert go_on(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "topology", "at"),
    [
        (signal.SIGTERM, "apex", "evaluation"),
        (signal.SIGTERM, "hogwild", "start-up"),
        (signal.SIGHUP, "hogwild", "start-up"),
        (signal.SIGKILL, "gorila", "training"),
        (signal.SIGKILL, "collectors", "start-up"),
    ],
)
def test_signal_to_the_driver_leaves_no_process(
    tmp_path: Path, drivers: list[Driver], number: signal.Signals, topology: str, at: str
) -> None:
    drivers.append(driver := Driver.train(tmp_path, topology, at))
    await_stage(driver, at, np.random.default_rng(2))
    driver.signal(number)
    assert driver.wait() in expected_codes(at, number), driver.said()
    assert driver.leftovers() == []


def test_lost_connection_ends_a_run_in_order_however_often_it_is_told(tmp_path: Path, drivers: list[Driver]) -> None:
    """All processes get the signal, as when a terminal is closed."""
    drivers.append(driver := Driver.train(tmp_path, "collectors", "training"))
    await_stage(driver, "training", np.random.default_rng(3))
    for process in [*driver.workers(), psutil.Process(driver.process.pid)]:
        for _ in range(3):
            process.send_signal(signal.SIGHUP)
    assert driver.wait() == 130, driver.said()
    assert driver.leftovers() == []
    found = result(driver.run)
    assert (found["status"], found["restarts"]) == ("interrupted", 0)
    assert resume_problems(tmp_path) == []


def test_run_that_ignores_lost_connections_goes_on(tmp_path: Path, drivers: list[Driver]) -> None:
    """As with nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        drivers.append(driver := Driver.train(tmp_path, "collectors", "training"))
    finally:
        signal.signal(signal.SIGHUP, before)
    await_stage(driver, "training", np.random.default_rng(3))
    driver.signal(signal.SIGHUP, group=True)
    then = env_steps(driver.run)
    until(lambda: env_steps(driver.run) > then + 100, what="training")
    driver.signal(signal.SIGINT)
    assert driver.wait() == 130


def test_stopped_worker_does_not_outlive_a_killed_driver(tmp_path: Path, drivers: list[Driver]) -> None:
    drivers.append(driver := Driver.train(tmp_path, "collectors", "training"))
    until(lambda: env_steps(driver.run) > 100, what="training")
    workers = driver.workers()
    assert len(workers) == 5
    for worker in workers[:2]:
        worker.suspend()
    driver.signal(signal.SIGKILL)
    driver.wait()
    assert driver.leftovers() == []


def test_worker_is_replaced_when_the_process_that_forks_them_is_killed(tmp_path: Path, drivers: list[Driver]) -> None:
    drivers.append(driver := Driver.train(tmp_path, "collectors", "training"))
    until(lambda: env_steps(driver.run) > 100, what="training")
    before, yielding = driver.workers(), (0, 0, 5, 15, 15)  # learner, memory, evaluator, collectors
    assert driver.yields(*yielding)
    server = before[0].parent()
    assert server is not None
    server.kill()
    until(lambda: not any(worker.is_running() for worker in before), timeout=20, what="the end of the orphans")
    then = env_steps(driver.run)
    until(lambda: env_steps(driver.run) > then + 500, what="training again")
    until(lambda: driver.yields(*yielding), what="the niceness of all")
    assert driver.process.poll() is None
    told = (driver.run / "events.jsonl").read_text()
    assert told.count(f"ended with the fork server (process {server.pid}), which was killed by SIGKILL; started") == 5
    driver.signal(signal.SIGINT)
    assert driver.wait() == 130
    assert driver.leftovers() == []


def test_run_that_was_stopped_as_a_whole_goes_on(tmp_path: Path, drivers: list[Driver]) -> None:
    """As with Ctrl-Z and fg: all processes stop, and no worker is restarted for its silence."""
    drivers.append(driver := Driver(
        tmp_path, "train", "CartPole-v1", "--topology", "collectors", "--actors", "2", "--env-steps", "100000000",
        "--name", "run", "--log-every", "50", "--heartbeat-s", "8",
    ))  # fmt: skip
    until(lambda: env_steps(driver.run) > 1_000, what="learning, which is compiled first")
    before = rows(driver.run)[-1]["restarts"]
    processes = [psutil.Process(driver.process.pid), *driver.workers()]
    assert len(processes) == 6
    driver.signal(signal.SIGTSTP, group=True)
    until(lambda: all(one.status() == psutil.STATUS_STOPPED for one in processes), what="the stop of all")
    time.sleep(10)
    driver.signal(signal.SIGCONT, group=True)
    then = env_steps(driver.run)
    until(lambda: env_steps(driver.run) > then + 500, what="training again")
    driver.signal(signal.SIGINT)
    assert driver.wait() == 130
    assert result(driver.run)["restarts"] == before, driver.said()


ENVIRONMENTS = Path(__file__).parents[1] / "fault_environments.py"


def parenting(place: Path) -> Driver:
    """A run whose environments start processes, each named by a file of its worker's number and its own."""
    (place / "children").mkdir()
    return Driver(
        place, "train", f"{ENVIRONMENTS}:parenting", "--env-option", f"place={place / 'children'}", "--topology",
        "collectors", "--actors", "2", "--envs-per-actor", "1", "--env-steps", "100000000", "--log-every", "50",
        "--name", "run", "--quiet", "--eval-episodes", "1",
    )  # fmt: skip


def children(place: Path, worker: int | None = None) -> list[int]:
    """Those that live, of all workers or of one."""
    pairs = [tuple(map(int, path.name.split("-"))) for path in (place / "children").iterdir()]
    return [child for parent, child in pairs if worker in (None, parent) and psutil.pid_exists(child)]


def ignores(process: int, number: int) -> bool:
    ignored = Path(f"/proc/{process}/status").read_text().partition("SigIgn:")[2].split()[0]
    return bool(int(ignored, 16) & 1 << number - 1)


@pytest.mark.parametrize("end", ["worker killed", "fork server killed", "driver killed", "driver asked to stop"])
def test_what_environments_started_ends_with_their_worker(tmp_path: Path, drivers: list[Driver], end: str) -> None:
    drivers.append(driver := parenting(tmp_path))
    until(lambda: env_steps(driver.run) > 100, what="training")
    parents = sorted({int(path.name.split("-")[0]) for path in (tmp_path / "children").iterdir()})
    assert len(parents) == 3, "two collectors and an evaluator"
    before = children(tmp_path)
    assert len(before) == 6
    ignored = [
        int(Path(f"/proc/{child}/status").read_text().partition("SigIgn:")[2].split()[0], 16) for child in before
    ]
    assert not any(found & 1 << signal.SIGTERM - 1 for found in ignored), "an environment can end what it started"
    if end == "worker killed":
        before = children(tmp_path, parents[0])
        os.kill(parents[0], signal.SIGKILL)
    elif end == "fork server killed":
        psutil.Process(parents[0]).parent().kill()  # type: ignore[union-attr]
    else:
        driver.signal(signal.SIGKILL if end == "driver killed" else signal.SIGINT)
    until(lambda: not any(psutil.pid_exists(child) for child in before), timeout=30, what="their end")
    if end.startswith("driver"):
        driver.wait()
        until(lambda: not children(tmp_path), timeout=30, what="the end of all")
        return
    then = env_steps(driver.run)
    until(lambda: env_steps(driver.run) > then + 100, what="training again")
    driver.signal(signal.SIGINT)
    assert driver.wait() == 130
    until(lambda: not children(tmp_path), timeout=30, what="the end of all")
