"""However the driver ends, nobody is left behind; after a signal that can be heard, the run goes on where it was."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
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
def test_interrupted_run_leaves_nobody_and_goes_on_where_it_was(
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
        (signal.SIGKILL, "gorila", "training"),
        (signal.SIGKILL, "collectors", "start-up"),
    ],
)
def test_signal_to_the_driver_leaves_nobody(
    tmp_path: Path, drivers: list[Driver], number: signal.Signals, topology: str, at: str
) -> None:
    drivers.append(driver := Driver.train(tmp_path, topology, at))
    await_stage(driver, at, np.random.default_rng(2))
    driver.signal(number)
    assert driver.wait() in expected_codes(at, number), driver.said()
    assert driver.leftovers() == []


def test_stopped_member_does_not_outlive_a_killed_driver(tmp_path: Path, drivers: list[Driver]) -> None:
    drivers.append(driver := Driver.train(tmp_path, "collectors", "training"))
    until(lambda: env_steps(driver.run) > 100, what="training")
    members = driver.members()
    assert len(members) == 5
    for member in members[:2]:
        member.suspend()
    driver.signal(signal.SIGKILL)
    driver.wait()
    assert driver.leftovers() == []


def test_member_is_replaced_when_the_process_that_forks_them_is_killed(tmp_path: Path, drivers: list[Driver]) -> None:
    drivers.append(driver := Driver.train(tmp_path, "collectors", "training"))
    until(lambda: env_steps(driver.run) > 100, what="training")
    before, yielding = driver.members(), (0, 0, 5, 15, 15)  # learner, memory, evaluator, collectors
    assert driver.yields(*yielding)
    server = before[0].parent()
    assert server is not None
    server.kill()
    until(lambda: not any(member.is_running() for member in before), timeout=20, what="the end of the orphans")
    then = env_steps(driver.run)
    until(lambda: env_steps(driver.run) > then + 500, what="training again")
    until(lambda: driver.yields(*yielding), what="everybody's niceness")
    assert driver.process.poll() is None
    driver.signal(signal.SIGINT)
    assert driver.wait() == 130
    assert driver.leftovers() == []


def test_company_that_was_stopped_as_a_whole_goes_on(tmp_path: Path, drivers: list[Driver]) -> None:
    """As with Ctrl-Z and fg: the silence was nobody's fault."""
    drivers.append(driver := Driver(
        tmp_path, "train", "CartPole-v1", "--topology", "collectors", "--actors", "2", "--env-steps", "100000000",
        "--name", "run", "--log-every", "50", "--company.heartbeat-s", "8",
    ))  # fmt: skip
    until(lambda: env_steps(driver.run) > 1_000, what="learning, which is compiled first")
    before = rows(driver.run)[-1]["restarts"]
    driver.signal(signal.SIGSTOP, group=True)
    time.sleep(10)
    driver.signal(signal.SIGCONT, group=True)
    then = env_steps(driver.run)
    until(lambda: env_steps(driver.run) > then + 500, what="training again")
    driver.signal(signal.SIGINT)
    assert driver.wait() == 130
    assert result(driver.run)["restarts"] == before, driver.said()
