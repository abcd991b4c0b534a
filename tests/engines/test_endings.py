"""How runs of several workers end."""

from __future__ import annotations

from pathlib import Path

import pytest

import repertory


@pytest.mark.parametrize("topology", ["collectors", "all_reduce", "sample_factory"])
def test_a_run_that_ends_by_the_clock_plays_nothing_beyond_its_last_evaluation(topology: str, tmp_path: Path) -> None:
    """The last evaluation takes its time; steps that workers play meanwhile would count, but not be evaluated."""
    wishes = {"seconds": 1.5, "env_steps": 10**8, "eval_every": 10**8, "eval_episodes": 40, "quiet": True}
    result = repertory.train("CartPole-v1", topology=topology, actors=2, runs_dir=tmp_path, **wishes).result
    assert result["status"] == "completed"
    assert result["env_steps"] > 0
    (last,) = result["evaluations"]
    assert last["env_steps"] == result["env_steps"]
