"""How runs of several processes begin, and what they need not wait for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inline_runs import small_plan
from repertory.engines.driver import Driver
from repertory.engines.processes import ProcessesHost
from repertory.engines.wiring import RUN

LATE_S = 1.5
ENVIRONMENT = f"""
import time
from pathlib import Path
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

evaluates = Path("/proc/self/comm").read_text().startswith("evaluator")

class LateAndSlow(CartPoleEnv):
    def __init__(self, gate):
        super().__init__()
        self.gate = Path(gate)
        time.sleep({LATE_S} if evaluates else 0.0)

    def step(self, action):
        while evaluates and not self.gate.exists():
            time.sleep(0.01)
        return super().step(action)
"""


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """No evaluation comes to its end before this file is there."""
    return tmp_path / "gate"


@pytest.fixture(params=["collectors", "hogwild", "impala"])
def driver(request: pytest.FixtureRequest, tmp_path: Path, gate: Path) -> Iterator[Driver]:
    """Of a run whose evaluator is built late, and waits in the middle of an evaluation."""
    (tmp_path / "game.py").write_text(ENVIRONMENT)
    game = {"environment": f"{tmp_path}/game.py:LateAndSlow", "env_option": (f"gate={gate}",)}
    plan = small_plan(request.param, actors=2, env_steps=10**6, eval_episodes=1, eval_max_steps=1, **game)
    driver = Driver(plan, ProcessesHost(plan))
    yield driver
    gate.touch()
    driver.close()


def test_no_worker_plays_before_all_are_ready_and_a_checkpoint_does_not_wait_for_an_evaluation(
    driver: Driver, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = driver.host
    assert isinstance(host, ProcessesHost)
    played, set_phase = [], host._set_phase

    def note(phase: int) -> None:
        if phase == RUN:
            played.append((driver.counters.env_steps, host.supervisor.ready))
        set_phase(phase)

    monkeypatch.setattr(host, "_set_phase", note)
    began = time.monotonic()
    driver.start()
    assert time.monotonic() - began > LATE_S
    assert played == [(0, True)]
    play(driver, 500)
    driver.ask(0)
    driver.settle()
    assert driver.evaluating
    paused_at = driver.counters.env_steps
    time.sleep(0.2)
    assert driver.counters.env_steps == paused_at
    driver.start()
    play(driver, paused_at + 500)
    assert driver.next_evaluation() is None
    gate.touch()
    end = time.monotonic() + 60
    for _ in driver.rounds():
        if driver.next_evaluation() is not None:
            break
        assert time.monotonic() < end
    assert driver.restarts == 0


def play(driver: Driver, env_steps: int) -> None:
    """Until so many are played."""
    end = time.monotonic() + 60
    for _ in driver.rounds():
        if driver.counters.env_steps >= env_steps:
            return
        assert time.monotonic() < end
