"""Environments that hang in the driver: each wait ends, and what hung is named."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import repertory
from commands import result, until, words
from repertory.engines import make_driver
from repertory.environments import deadlines, factory
from repertory.environments.deadlines import SETTING, bounded, doing, wait_for_what_hangs
from repertory.errors import EnvironmentFailure, UserError
from repertory.runs.config import change
from repertory.runs.launch import prepare
from repertory.runs.presets import defaults

HANGING = f"{Path(__file__).parents[1] / 'fault_environments.py'}:hanging"
SHORT = words(
    "--env-steps 300 --eval-episodes 1 --eval-max-steps 20 --network.hidden 8 --name run --quiet "
    "--agent.batch-size 8 --agent.learning-starts 100 --agent.replay-ratio 1"
)


def started(place: Path, *options: str, seconds: float = 60) -> subprocess.Popen[str]:
    """`repertory train` of an environment that hangs."""
    with (place / "said.txt").open("w") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "repertory", "train", HANGING, *SHORT, *options],
            cwd=place,
            stdout=said,
            stderr=said,
            env={**os.environ, SETTING: str(seconds)},
            text=True,
        )


@pytest.mark.parametrize(
    ("where", "native", "what"),
    [("building", False, "building"), ("reset", False, "reset() of"), ("building", True, "building")],
)
def test_environment_that_hangs_before_the_start_ends_the_command_with_a_sentence(
    tmp_path: Path, where: str, native: bool, what: str
) -> None:
    process = started(tmp_path, "--env-option", f"where={where}", f"native={str(native).lower()}", seconds=0.5)
    assert process.wait(60) == 2
    said = (tmp_path / "said.txt").read_text()
    remedy = f"mend the environment, or set {SETTING} if it needs longer"
    assert said.splitlines()[-1] == f"repertory: {what} {HANGING} did not end within 0.5 s; {remedy}"
    assert ("fault_environments.py" in said.rpartition("repertory: ")[0]) == (not native), (
        "where it was, if that is known"
    )


def test_native_close_that_hangs_is_left_behind_and_the_run_is_made(tmp_path: Path) -> None:
    process = started(tmp_path, "--env-option", "where=close", "native=true")
    assert process.wait(120) == 0
    said = (tmp_path / "said.txt").read_text()
    assert said.count(f"close() of {HANGING} did not return within 5 s; it is left behind") >= 2, "before and after"
    assert result(tmp_path / "runs/run")["status"] == "completed"


def test_step_that_does_not_return_is_said_while_the_run_waits_for_it(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    process = started(tmp_path, "--env-option", "where=step", f"mark={mark}", "--heartbeat-s", "0.5")
    said = tmp_path / "said.txt"
    try:
        until(lambda: "has not returned" in said.read_text() or process.poll() is not None, what="a word of it")
        mark.unlink()
        assert process.wait(60) == 0, said.read_text()
    finally:
        process.kill()
    assert "environment 0 of worker 0 (seed " in said.read_text()
    assert ", step 1) has not returned for 0.5 s; the run waits for it" in said.read_text()


def test_close_that_hangs_or_raises_blocks_no_run(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(deadlines, "CLOSE_S", 0.2)
    options = {"where": "close"}
    assert factory.describe(HANGING, options).actions == 2
    assert capsys.readouterr().err.count("did not return within 0.2 s; it is left behind") == 1
    wishes = {"env_steps": 200, "eval_episodes": 1, "eval_max_steps": 5, "quiet": True, "env_option": ("where=close",)}
    for topology, engine in (("single", "inline"), ("collectors", "inline")):
        made = {"topology": topology, "engine": engine, "runs_dir": tmp_path, "name": topology}
        run = repertory.train(HANGING, **wishes, **made)
        assert run.result["status"] == "completed"
        assert repertory.evaluate(run, episodes=1)["episodes"] == 1
    assert capsys.readouterr().err.count("it is left behind") >= 6
    deadlines.close_within("x", [lambda: 1 / 0])
    assert capsys.readouterr().err == "close() of x raised ZeroDivisionError: division by zero\n"


def test_deadline_is_that_of_each_thing_and_not_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "0.4")
    with bounded():
        for _ in range(4):
            with doing("a part"):
                time.sleep(0.2)
    with pytest.raises(EnvironmentFailure, match=r"^a part did not end within 0.4 s"), bounded(), doing("a part"):
        time.sleep(60)
    with bounded():
        time.sleep(0.6)  # nothing was asked of an environment


def test_environment_can_not_catch_the_end_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "0.2")
    with pytest.raises(EnvironmentFailure), bounded(), doing("a part"):  # noqa: PT012
        try:
            threading.Event().wait(60)
        except Exception:
            time.sleep(60)


def hang_in_native_code(seconds: float) -> None:
    """So long, and no signal gets it out."""
    mutex, until = ctypes.create_string_buffer(64), time.time() + seconds
    library = ctypes.CDLL(None)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_timedlock(mutex, (ctypes.c_long * 2)(int(until), int(until % 1 * 1e9)))


def test_native_code_that_hangs_after_training_has_begun_is_said_once_and_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv(SETTING, "0.2")
    monkeypatch.setattr(deadlines, "INSIST_S", 0.2)
    monkeypatch.setattr(deadlines, "_commands", [True])
    wait_for_what_hangs()
    with bounded(), doing("a part"):
        hang_in_native_code(1.0)
        time.sleep(0.2)
    assert capsys.readouterr().err == "a part has not ended within 0.2 s; the run waits for it\n"


def inline_driver(topology: str, **options: str) -> Any:
    wishes = {"engine": "inline", "actors": 1, "envs_per_actor": 2, "eval_episodes": 1, "eval_max_steps": 20}
    given = {"env_option": tuple(f"{name}={value}" for name, value in options.items()), "network": {"hidden": [8]}}
    return make_driver("inline", prepare(change(defaults(HANGING, topology=topology), {**wishes, **given}))[1])


@pytest.mark.parametrize("topology", ["single", "collectors"])
def test_reset_that_hangs_in_an_evaluation_of_one_thread_costs_a_score(
    topology: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    with closing(inline_driver(topology, where="reset", mark=str(mark))) as driver:
        driver.start()
        monkeypatch.setenv(SETTING, "0.3")
        mark.touch()
        giving_up = threading.Timer(5, mark.unlink, (True,))  # else it would wait for ever
        giving_up.start()
        driver.ask(0)
        giving_up.cancel()
        mark.unlink(missing_ok=True)
        assert driver.next_evaluation() is None
        (note,) = driver.notes()
        assert f"failed: reset() of {HANGING} did not end within 0.3 s" in note
        driver.ask(1)
        assert driver.next_evaluation() is not None


@pytest.mark.parametrize("topology", ["single", "collectors"])
def test_command_that_trains_in_one_thread_is_not_ended_by_what_hangs(
    topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "_commands", [True])
    with closing(inline_driver(topology, where="nowhere")) as driver:
        driver.start()
        assert deadlines._commands == [False]


@pytest.mark.parametrize("given", ["soon", "0", "-1", "nan"])
def test_deadline_that_is_no_time_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, given)
    with pytest.raises(UserError, match="must be a number of seconds above 0"):
        factory.describe("CartPole-v1")


@pytest.mark.parametrize("close", [lambda: time.sleep(30), lambda: 1 / 0], ids=["hangs", "raises"])
def test_callable_whose_environment_does_not_close_trains(
    close: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    class Open(gym.Wrapper[Any, Any, Any, Any]):
        def __init__(self) -> None:
            super().__init__(gym.make("CartPole-v1"))

        def close(self) -> None:
            close()

    monkeypatch.setattr(deadlines, "CLOSE_S", 0.2)
    run = repertory.train(Open, env_steps=100, eval_episodes=1, eval_max_steps=5, quiet=True, runs_dir=tmp_path)
    assert run.result["status"] == "completed"
    assert "close() of <" in capsys.readouterr().err


def test_callable_that_does_not_return_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(SETTING, "0.3")
    with pytest.raises(EnvironmentFailure, match=r"building <lambda .*> did not end within 0.3 s"):
        repertory.train(lambda: time.sleep(60), env_steps=100, runs_dir=tmp_path)
