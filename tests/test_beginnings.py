"""How companies begin, and what they need not wait for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from companies import small_plan
from repertory.engines.processes import ProcessesEngine

LATE_S, EVALUATION_S = 1.5, 4.0
ENVIRONMENT = f"""
import time
from pathlib import Path
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

evaluates = Path("/proc/self/comm").read_text().startswith("evaluator")

class LateAndSlow(CartPoleEnv):
    def __init__(self):
        super().__init__()
        time.sleep({LATE_S} if evaluates else 0.0)

    def step(self, action):
        time.sleep({EVALUATION_S} if evaluates else 0.0)
        return super().step(action)
"""


@pytest.fixture(params=["collectors", "hogwild", "impala"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ProcessesEngine]:
    """A company whose evaluator is built late, and evaluates slowly."""
    (tmp_path / "game.py").write_text(ENVIRONMENT)
    name = f"{tmp_path}/game.py:LateAndSlow"
    plan = small_plan(request.param, actors=2, env_steps=10**6, environment=name, eval_episodes=1, eval_max_steps=1)
    engine = ProcessesEngine(plan, plan.make_agent())
    yield engine
    engine.close()


def test_nobody_plays_before_all_are_ready_and_a_checkpoint_does_not_wait_for_an_evaluation(
    engine: ProcessesEngine,
) -> None:
    began = time.monotonic()
    engine.start()
    assert time.monotonic() - began > LATE_S
    assert engine.counters.env_steps < 100, "a hundred are played in no time, a second's worth is thousands"
    play(engine, 500)
    engine.ask(0)
    began = time.monotonic()
    engine.settle()
    assert time.monotonic() - began < EVALUATION_S / 2
    assert engine.evaluating
    paused_at = engine.counters.env_steps
    time.sleep(0.2)
    assert engine.counters.env_steps == paused_at
    engine.start()
    play(engine, paused_at + 500)
    while engine.answer() is None:
        assert time.monotonic() - began < 3 * EVALUATION_S
        engine.supervisor.check()
        time.sleep(0.02)
    assert engine.restarts == 0


def play(engine: ProcessesEngine, env_steps: int) -> None:
    """Until so many are played."""
    end = time.monotonic() + 60
    for _ in engine.rounds():
        if engine.counters.env_steps >= env_steps:
            return
        assert time.monotonic() < end
