"""Runs of several processes learn: a score that chance does not reach, by the preset alone, but for a longer
schedule where the step size could else fall to 0 before the last points are made.

Some topologies of each kind, and one seed; `benchmarks/all_learn.py` has all of them, with three.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import repertory

CHANCE = 25
"""Random play keeps the pole up for so many steps."""


LONGER = {"env_steps": 100_000, "agent_options": {"learning_rate_steps": 100_000}}


@pytest.mark.parametrize(
    ("topology", "score", "options"),
    [
        ("collectors", 475, LONGER),
        ("gorila", 195, {}),
        ("hogwild", 475, {}),
        ("all_reduce", 195, {}),
        ("a3c", 475, {}),
        ("impala", 195, {}),
    ],
)
def test_topology_learns_to_balance_the_pole(
    topology: str, score: float, options: dict[str, Any], tmp_path: Path
) -> None:
    general: dict[str, Any] = {"actors": 2, "target_score": score, "seconds": 120, "runs_dir": tmp_path, "quiet": True}
    run = repertory.train("CartPole-v1", topology=topology, **general, **options)
    first = run.result["evaluations"][0]["mean"]
    assert run.result["status"] == "solved", f"{run.score} after {run.result['env_steps']} env steps, first {first}"
    assert run.score >= score > 5 * CHANCE
    assert run.result["restarts"] == 0
    assert not run.result["deterministic"]
