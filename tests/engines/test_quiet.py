"""With -q nothing but the result is printed, whatever the libraries would like to say; what users print stays."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import gymnasium as gym
import pytest

from commands import Command, words
from repertory.environments.factory import hushed

WARNING = """
import gymnasium as gym
import numpy as np


class Rounded(gym.Env):
    def __init__(self, render_mode=None):
        third = np.array([1 / 3], np.float64)
        self.observation_space = gym.spaces.Box(-third, third, dtype=np.float32)  # Gymnasium warns of the rounding
        self.action_space = gym.spaces.Discrete(2)
        gym.logger.warn("this environment is old")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        print("a user's print", flush=True)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, self.np_random.random() < 0.1, False, {}
"""
SHORT = words(
    "--env-steps 300 --eval-every 300 --eval-episodes 1 --eval-max-steps 30 --checkpoint-every 300 --log-every 100 "
    "--network.hidden 16"
)


def said(place: Path, *arguments: str) -> tuple[list[str], list[str]]:
    """What a command prints on stdout and stderr."""
    command = Command(place, *arguments)
    assert command.wait(300) == 0, command.err
    return command.out.splitlines(), command.err.splitlines()


def said_without_display(place: Path, *arguments: str, **variables: str) -> tuple[list[str], list[str]]:
    """The same in a process that inherits nothing: it has no display, and no directory for sockets."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SDL_", "XDG_RUNTIME", "PYGAME"))}
    kept = {name: value for name, value in kept.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    done = subprocess.run(
        [sys.executable, "-m", "repertory", *arguments],
        cwd=place, env={**kept, **variables}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param("LunarLander-v3", marks=needs("Box2D")),
        pytest.param("MinAtar/Breakout-v1", marks=needs("minatar")),
        pytest.param("ALE/Pong-v5 --env-steps 40", marks=needs("ale_py")),
    ],
)
def test_a_quiet_run_prints_its_result_and_nothing_else(tmp_path: Path, arguments: str) -> None:
    environment, *rest = arguments.split()
    out, err = said(tmp_path, "train", environment, *SHORT, *rest, "-q", "--name", "run")
    assert err == []
    assert out[0].startswith("completed: score ")
    assert "runs/run" in out[1]
    assert len(out) <= 3, out


@pytest.mark.parametrize("topology", ["single", "collectors"])
def test_quiet_keeps_gymnasiums_warnings_back_and_the_users_prints(tmp_path: Path, topology: str) -> None:
    (tmp_path / "rounded.py").write_text(textwrap.dedent(WARNING))
    told = ["train", "rounded.py:Rounded", *SHORT, "--topology", topology]
    ask = said if topology == "single" else said_without_display  # whose process may start others
    out, err = ask(tmp_path, *told, "-q", "--name", "quiet")
    assert err == []
    assert "a user's print" in out
    out, err = said(tmp_path, "evaluate", "quiet", "--episodes", "1", "-q")
    assert err == []
    assert "a user's print" in out
    assert out[-1].startswith("score ")
    if topology == "single":
        _, err = said(tmp_path, *told, "--name", "loud")
        assert any("this environment is old" in line for line in err)


@needs("pygame")
@needs("imageio")
def test_filming_without_a_display_prints_the_result_alone(tmp_path: Path) -> None:
    said(tmp_path, "train", "CartPole-v1", *SHORT, "-q", "--name", "run")
    film = ("--episodes", "1", "--record", "film.gif", "-q")
    out, err = said_without_display(tmp_path, "evaluate", "run", *film)
    assert err == [], "SDL says that XDG_RUNTIME_DIR is not set, if it looks for a display"
    assert len(out) == 2


def test_a_cache_that_can_not_be_written_is_not_mentioned(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    told = ["train", "CartPole-v1", *SHORT, "-q"]
    out, err = said_without_display(tmp_path, *told, XDG_CACHE_HOME=str(tmp_path / "file"))
    assert err == []
    assert out[0].startswith("completed: ")


def test_level_of_warnings_is_as_it_was_afterwards() -> None:
    before = gym.logger.min_level
    for quiet in (True, False):
        with hushed(quiet):
            assert (gym.logger.min_level > gym.logger.WARN) == quiet
        assert gym.logger.min_level == before
