"""How companies begin, and what they need not wait for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from repertory.engines.stage import RUN

from inline_runs import small_plan
from repertory.engines.processes import ProcessesEngine

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
def engine(request: pytest.FixtureRequest, tmp_path: Path, gate: Path) -> Iterator[ProcessesEngine]:
    """A company whose evaluator is built late, and waits in the middle of an evaluation."""
    (tmp_path / "game.py").write_text(ENVIRONMENT)
    game = {"environment": f"{tmp_path}/game.py:LateAndSlow", "env_option": (f"gate={gate}",)}
    plan = small_plan(request.param, actors=2, env_steps=10**6, eval_episodes=1, eval_max_steps=1, **game)
    engine = ProcessesEngine(plan, plan.make_agent())
    yield engine
    gate.touch()
    engine.close()


def test_nobody_plays_before_all_are_ready_and_a_checkpoint_does_not_wait_for_an_evaluation(
    engine: ProcessesEngine, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played, set_phase = [], engine._set_phase

    def note(phase: int) -> None:
        if phase == RUN:
            played.append((engine.counters.env_steps, engine.supervisor.ready))
        set_phase(phase)

    monkeypatch.setattr(engine, "_set_phase", note)
    began = time.monotonic()
    engine.start()
    assert time.monotonic() - began > LATE_S
    assert played == [(0, True)]
    play(engine, 500)
    engine.ask(0)
    engine.settle()
    assert engine.evaluating
    paused_at = engine.counters.env_steps
    time.sleep(0.2)
    assert engine.counters.env_steps == paused_at
    engine.start()
    play(engine, paused_at + 500)
    assert engine.answer() is None
    gate.touch()
    end = time.monotonic() + 60
    for _ in engine.rounds():
        if engine.answer() is not None:
            break
        assert time.monotonic() < end
    assert engine.restarts == 0


def play(engine: ProcessesEngine, env_steps: int) -> None:
    """Until so many are played."""
    end = time.monotonic() + 60
    for _ in engine.rounds():
        if engine.counters.env_steps >= env_steps:
            return
        assert time.monotonic() < end
