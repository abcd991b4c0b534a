"""The live view: right numbers, nothing on stdout, and next to no cost."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from rich.console import Console

from repertory.runs.progress import Budget, Lines, LiveView, NotesOnly, make_progress

VALUES: dict[str, Any] = {
    "env_steps": 120_000,
    "seconds": 60.0,
    "env_steps_per_s": 12_345.6,
    "updates_per_s": 987.0,
    "score": 475.25,
    "score_best": 12_500.0,
    "episode_return": float("nan"),
    "epsilon": 0.05,
    "loss": None,
    "replay_ratio": 8.0,
    "time/act": 0.25,
    "time/learn": 0.5,
}
UNROLLS = {key: value for key, value in VALUES.items() if key not in ("epsilon", "replay_ratio")}
"""What a run of an actor-critic agent tells."""


class FakeClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def drawn(width: int, values: dict[str, Any], budget: Budget) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    view = LiveView(console, "CartPole-v1", budget)
    view.update(values)
    view.note("actor 3 [restarted]")
    view.close()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_live_view_shows_the_values_and_dashes_for_what_is_unknown(width: int) -> None:
    text = drawn(width, VALUES, Budget(300_000, None))
    for shown in (
        "CartPole-v1",
        "40%",
        "120,000/300,000 env steps",
        "0:01:00",
        "12,346",
        "475.2",
        "12,500.0",
    ):
        assert shown in text
    for shown in ("act 25%", "learn 50%", "actor 3 [restarted]", "0.050", "12,500.0"):
        assert shown in text
    for label in ("return", "loss"):
        assert text.split(label)[1].lstrip().startswith("–")
    assert max(len(line) for line in text.splitlines()) < width + 20, "no line is too long"


@pytest.mark.parametrize("width", [80, 120])
def test_live_view_shows_mean_percentile_and_maximum_of_the_lag(width: int) -> None:
    lag = {"policy_lag_mean": 2.344, "policy_lag_p95": 5.0, "policy_lag_max": 7}
    text = drawn(width, UNROLLS | lag, Budget(300_000, None))
    assert "policy lag  mean 2.34  p95 5  max 7  updates" in text
    assert "gradient age" not in text, "it was not measured"
    assert "policy lag" not in drawn(width, UNROLLS, Budget(300_000, None))


def test_with_a_replay_the_lag_is_shown_as_the_age_of_the_samples() -> None:
    lag = {"policy_lag_mean": 2_240.4, "policy_lag_p95": 4_100.0, "policy_lag_max": 5_003}
    text = drawn(80, VALUES | lag, Budget(300_000, None))
    assert "sample age  mean 2,240  p95 4,100  max 5,003  updates" in text
    assert "policy lag" not in text
    stream = io.StringIO()
    Lines(stream, "title", Budget(None, None)).update(VALUES | lag)
    assert stream.getvalue().rstrip().endswith("sample age 2,240 updates")


def test_live_view_leaves_out_what_a_run_never_has() -> None:
    text = drawn(80, UNROLLS, Budget(300_000, None))
    assert "ε" not in text
    assert "replay ratio" not in text
    assert "loss" in text, "it has one, and does not know it yet"
    assert text.split("loss")[1].lstrip().startswith("–")


def test_live_view_draws_before_anything_is_known() -> None:
    assert "– env steps" in drawn(80, {}, Budget(None, None))


def test_time_left_is_of_the_budget_that_ends_first_and_counts_from_the_resume() -> None:
    clock = FakeClock()
    budget = Budget(1000, 50.0, clock)
    budget.seen({"env_steps": 500})
    assert budget.left({"env_steps": 500}) == 50.0
    clock.now = 10.0
    assert budget.left({"env_steps": 600, "seconds": 10.0}) == 40.0  # steps: 400 at 10 a second, too
    assert budget.left({"env_steps": 900, "seconds": 10.0}) == pytest.approx(2.5)
    assert budget.done({"env_steps": 600, "seconds": 45.0}) == 0.9
    assert budget.done({"env_steps": 2000}) == 1.0
    assert Budget(None, None).done({"env_steps": 5}) is None


def test_plain_lines_come_every_ten_seconds_and_at_every_score() -> None:
    clock, stream = FakeClock(), io.StringIO()
    lines = Lines(stream, "title", Budget(None, None, clock), clock)
    for second in range(25):
        clock.now = float(second)
        lines.update({"env_steps": second, "score": 1.0 if second >= 13 else None})
    lines.close()
    lines.close()
    steps = [int(line.split()[0]) for line in stream.getvalue().splitlines()[1:]]
    assert steps == [0, 10, 13, 23, 24]


def test_a_thousand_updates_a_second_cost_nothing() -> None:
    view = LiveView(Console(file=io.StringIO(), width=80, force_terminal=True), "title", Budget(10**9, None))
    start = time.process_time()
    for _ in range(10_000):
        view.update(VALUES)
    assert time.process_time() - start < 0.5, "ten seconds of updates"
    view.close()


@pytest.mark.parametrize(("quiet", "json"), [(True, False), (False, True)])
def test_quiet_and_json_say_only_notes_and_on_stderr(capsys: Any, quiet: bool, json: bool) -> None:
    progress = make_progress(quiet=quiet, json=json, title="t", total_env_steps=1, total_seconds=None)
    assert isinstance(progress, NotesOnly)
    progress.update(VALUES)
    progress.note("the disk is full")
    progress.close()
    assert capsys.readouterr() == ("", "the disk is full\n")


def test_where_stderr_is_no_terminal_lines_are_printed_there(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich would take any stream for a terminal
    progress = make_progress(quiet=False, json=False, title="t", total_env_steps=None, total_seconds=None)
    progress.update(VALUES)
    progress.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == "t"
    assert "\x1b" not in err
