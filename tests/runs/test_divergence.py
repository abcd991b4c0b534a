"""Learning that diverges is said, learning that only has large rewards is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import result, words
from repertory import cli
from repertory.runs.history import LINES, Divergence


@pytest.mark.parametrize("key", ["value_mean", "loss", "gradient_norm"])
def test_growth_without_bound_is_warned_of_once(key: str) -> None:
    watch = Divergence()
    said = [watch.look({"episode_return": 9.0, key: 10.0**line}) for line in range(20)]
    assert len([warning for warning in said if warning]) == 1
    assert said.index(watch.warnings[0]) < 12
    assert key in watch.warnings[0]


def test_values_as_large_as_the_returns_are_no_warning() -> None:
    watch = Divergence()
    for _ in range(50):
        values = {"episode_return": -5000.0, "value_mean": 6000.0, "loss": 1e6, "gradient_norm": 1e5}
        assert watch.look(values) is None


def test_one_odd_line_is_no_warning() -> None:
    watch = Divergence()
    for line in range(50):
        assert watch.look({"episode_return": 1.0, "value_mean": 1e9 if line % LINES == 0 else 1.0}) is None
        assert watch.look({"episode_return": 1.0, "value_mean": None}) is None


def test_run_that_diverges_says_so_in_view_result_and_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = words("CartPole-v1 --agent.no-target --agent.n-step 1 --agent.loss squared --agent.max-gradient-norm 0")
    arguments += words("--agent.learning-rate 0.5 --agent.optimizer rmsprop --agent.learning-rate-steps 0")
    arguments += words("--env-steps 4000 --log-every 200 --eval-every 4000 --eval-episodes 2 --name run --quiet")
    assert cli.main(["train", *arguments]) == 0
    said = capsys.readouterr()
    assert "warning: learning diverges: " in said.err
    assert "warning: learning diverges: " in said.out
    assert "learning diverges" in result(tmp_path / "runs/run")["warnings"][0]
    events = [json.loads(line)["event"] for line in (tmp_path / "runs/run/events.jsonl").read_text().splitlines()]
    assert any("learning diverges" in event for event in events)


def test_gradients_that_are_not_finite_are_warned_of_though_nothing_else_can_be_measured() -> None:
    watch = Divergence()
    lines = [{"episode_return": 9.0, "loss": None, "skipped_updates": 100 * line} for line in range(9)]
    said = [watch.look(line) for line in lines]
    assert [warning for warning in said if warning] == watch.warnings
    assert "warning: learning diverges: 300 gradients were not finite; lower" in watch.warnings[0]


def test_values_are_not_judged_before_an_episode_has_ended() -> None:
    watch = Divergence()
    for _ in range(50):
        assert watch.look({"episode_return": None, "value_mean": 100.0, "skipped_updates": 0}) is None
