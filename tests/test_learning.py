"""Companies of processes learn: a score that nobody reaches by chance, by the preset alone.

Some systems of each kind, and one seed; `benchmarks/all_learn.py` has all of them, with three.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import repertory

CHANCE = 25
"""Random play keeps the pole up for so many steps."""


@pytest.mark.parametrize(
    ("topology", "score"),
    [("collectors", 475), ("gorila", 195), ("hogwild", 195), ("all_reduce", 195), ("a3c", 475), ("impala", 195)],
)
def test_company_learns_to_balance_the_pole(topology: str, score: float, tmp_path: Path) -> None:
    run = repertory.train(
        "CartPole-v1", topology=topology, actors=2, target_score=score, seconds=120, runs_dir=tmp_path, quiet=True
    )
    first = run.result["evaluations"][0]["mean"]
    assert run.result["status"] == "solved", f"{run.score} after {run.result['env_steps']} env steps, first {first}"
    assert run.score >= score > 5 * CHANCE
    assert run.result["restarts"] == 0
    assert not run.result["deterministic"]
