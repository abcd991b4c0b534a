"""A run keeps to its seconds, and the screen says what is going on."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from commands import result, words
from repertory.cli import _conclude
from repertory.environments.stepping import Step
from repertory.roles.evaluator import Evaluator
from repertory.runs.progress import Budget, Lines, LiveView

ENDLESS = """
import time
import gymnasium as gym
import numpy as np

class Endless(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        time.sleep(0.002)
        return np.zeros(2, np.float32), -1.0, False, False, {}
"""
SMALL = words("--network.hidden 16 16 --agent.learning-starts 20 --agent.batch-size 8 --name run --quiet")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "endless.py").write_text(ENDLESS)
    return tmp_path


def train(place: Path, *arguments: object, **environment: str) -> tuple[dict[str, Any], str]:
    """The result of a run in a process of its own, and what it printed."""
    command = [sys.executable, "-m", "repertory", "train", *map(str, arguments)]
    ended = subprocess.run(
        command, cwd=place, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    return result(place / "runs/run"), ended.stdout


@pytest.mark.parametrize("topology", [[], words("--topology collectors --actors 1 --envs-per-actor 1")])
def test_evaluation_that_never_ends_does_not_outlast_its_share_of_the_seconds(place: Path, topology: list[str]) -> None:
    ended, printed = train(place, "endless.py:Endless", *topology, "--seconds", 5, "--eval-every", 100, *SMALL)
    assert ended["status"] == "completed"
    assert ended["seconds"] < 5 + 1.0 + 3.0, "the budget, an evaluation, and what a loaded machine takes to stop"
    assert ended["unfinished_episodes"] == 20
    assert ended["best"] is None, "what was cut off is no score to compare by"
    assert "(20 of 20 episodes of the last evaluation were cut off: time was up)" in printed


def test_evaluation_that_was_cut_off_solves_nothing(place: Path) -> None:
    ended, _ = train(place, "endless.py:Endless", "--seconds", 3, "--target-score=-1000000", *SMALL)
    assert ended["status"] == "completed"


def test_compiling_does_not_use_up_the_seconds(tmp_path: Path) -> None:
    arguments = words("CartPole-v1 --agent rainbow --agent.learning-starts 100 --seconds 1.5 --name run --quiet")
    ended, _ = train(tmp_path, *arguments, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "cache"))
    assert ended["updates"] > 0
    assert ended["seconds"] < 1.5 + 1.0 + 3.0


class Forever:
    """Environments whose episodes end at step 3, but for the last one's."""

    count = 4

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, seeds: list[int]) -> tuple[np.ndarray, None]:
        return np.zeros((len(seeds), 2), np.float32), None

    def step(self, actions: np.ndarray) -> object:  # noqa: ARG002
        self.steps += 1
        over = np.array([True, True, True, False]) & (self.steps == 3)
        seen, none = np.zeros((4, 2), np.float32), np.zeros(4, bool)
        return Step(np.ones(4, bool), np.ones(4, np.float32), over, none, seen, None, over, seen, None)


def test_evaluator_counts_what_has_ended_and_cuts_the_rest_when_time_is_up() -> None:
    environments, progress = Forever(), []

    class Still:
        respond = None
        state_size = numpy_rows = 0

        @staticmethod
        def act(*asked: Any) -> np.ndarray:
            observation = asked[1]
            return np.zeros(len(observation), int)

    evaluator = Evaluator(Still(), environments)  # type: ignore[arg-type]
    episodes = evaluator.evaluate(None, [0] * 4, lambda: progress.append(evaluator.finished), seconds=0.05)
    assert progress[:4] == [0, 0, 0, 3]
    assert episodes.unfinished == 1
    assert episodes.lengths[:3].tolist() == [3, 3, 3]
    assert episodes.lengths[3] > 3


def screen(place: Path, *arguments: str, seconds: float = 90.0) -> str:
    """Everything that a terminal was sent."""
    driver, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-m", "repertory", *arguments]
    with subprocess.Popen(command, cwd=place, env=environment, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        found, end = b"", time.monotonic() + seconds
        while time.monotonic() < end:
            if not select.select([driver], [], [], 1.0)[0]:
                continue
            try:
                found += os.read(driver, 65536)
            except OSError:  # the other end is closed
                break
        process.kill()
    os.close(driver)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", found.decode(errors="replace"))


def test_terminal_says_what_a_run_is_doing_from_start_to_end(place: Path) -> None:
    arguments = ["endless.py:Endless", "--seconds", "8", *[word for word in SMALL if word != "--quiet"]]
    shown = screen(place, "train", *arguments)
    assert shown.index("starting") < shown.index("compiling") < shown.index("evaluating 0/20")
    assert "completed: score" in shown


class FakeStream(list):
    def write(self, text: str) -> None:
        self.append(text)

    def flush(self) -> None:
        pass


def test_lines_say_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repertory.runs.progress.PATIENCE_SECONDS", 0.0)
    stream = FakeStream()
    with Lines(stream, "CartPole-v1", Budget(None, None)).busy(lambda: "evaluating 3/20"):  # type: ignore[arg-type]
        end = time.monotonic() + 10
        while "evaluating 3/20 (0 s)" not in "".join(stream):
            assert time.monotonic() < end
            time.sleep(0.01)
    assert "".join(stream).startswith("CartPole-v1\n")


def test_live_view_moves_while_something_blocks() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    view, asked = LiveView(console, "CartPole-v1", Budget(100, None)), iter(range(10**6))
    with view.busy(lambda: f"saving part {next(asked)}"):
        end = time.monotonic() + 20
        while "saving part 2" not in console.file.getvalue():  # type: ignore[attr-defined]
            assert time.monotonic() < end
            time.sleep(0.01)
    view.close()


def test_score_of_an_earlier_evaluation_than_one_that_was_cut_off_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    evaluations = [
        {"env_steps": 100, "mean": 20.0, "episodes": 5},
        {"env_steps": 900, "mean": 300.0, "episodes": 5, "unfinished": 2},
    ]
    ended = {"status": "completed", "score": 20.0, "score_env_steps": 100, "unfinished_episodes": 2, "warnings": []}
    numbers = {"env_steps": 900, "updates": 10, "seconds": 5.0, "startup_s": 1.0}
    _conclude({**ended, **numbers, "evaluations": evaluations, "directory": "runs/x", "best": None}, as_json=False)
    told = "score 20.0 (of env step 100; 2 of 5 episodes of the last evaluation were cut off at a mean of 300.0"
    assert told in capsys.readouterr().out
