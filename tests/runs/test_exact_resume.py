"""A run that was killed, stopped or ended goes on as if nothing had happened: real processes, real signals."""

from __future__ import annotations

import importlib.util
import itertools
import random
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from commands import Command, assert_same_run, assert_same_state, env_steps, result, rows, timeless, until, words
from repertory import cli
from repertory.runs import checkpoint

TAXI = next(name for name in ("Taxi-v4", "Taxi-v3") if name in gym.registry)
SMALL = words(
    "--network.hidden 16 16 --agent.batch-size 16 --agent.updates-per-call 1 --agent.epsilon-steps 2000 "
    "--agent.epsilon-end 0.05"
)
CARTPOLE = (
    words(
        "CartPole-v1 --envs-per-actor 16 --checkpoint-every 700 --log-every 150 --eval-every 900 --eval-episodes 3 "
        "--agent.learning-starts 300 --agent.replay-ratio 4 --agent.replay-capacity 2000 --agent.n-step 3"
    )
    + SMALL
)
MASKED = (
    words(
        f"{TAXI} --agent rainbow --envs-per-actor 2 --checkpoint-every 330 --log-every 90 --eval-every 500 "
        "--eval-episodes 2 --agent.learning-starts 100 --agent.replay-ratio 4 --agent.replay-capacity 600"
    )
    + SMALL
)
BREAKOUT = (
    words(
        "MinAtar/Breakout-v1 --envs-per-actor 2 --checkpoint-every 230 --log-every 60 --eval-every 400 "
        "--eval-episodes 2 --eval-max-steps 100 --agent.learning-starts 100 --agent.replay-ratio 4"
    )
    + SMALL
)
PONG = (
    words(
        "ALE/Pong-v5 --envs-per-actor 2 --checkpoint-every 40 --log-every 10 --eval-every 100 --eval-episodes 2 "
        "--eval-max-steps 20 --agent.learning-starts 30 --agent.replay-ratio 2 --agent.replay-capacity 120"
    )
    + SMALL
)


def extra(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


def train(place: Path, name: str, total: int, arguments: list[str]) -> Command:
    return Command(place, "train", *arguments, "--env-steps", total, "--name", name, "--quiet")


def resume(place: Path, name: str, *arguments: Any) -> Command:
    return Command(place, "resume", name, "--quiet", *arguments)


@pytest.mark.parametrize(
    ("arguments", "half"),
    [
        pytest.param(CARTPOLE, 2000, id="dqn-16-environments"),
        pytest.param(MASKED, 600, id="rainbow-masks"),
        pytest.param(BREAKOUT, 300, id="minatar", marks=extra("minatar")),
        pytest.param(PONG, 80, id="atari", marks=extra("ale_py")),
    ],
)
def test_killed_and_resumed_run_equals_the_uninterrupted_one(tmp_path: Path, arguments: list[str], half: int) -> None:
    broken = train(tmp_path, "broken", 10**7, arguments)
    until(lambda: env_steps(tmp_path / "runs/broken") > half, what="half of the run")
    broken.signal(signal.SIGKILL)
    assert broken.wait() == -signal.SIGKILL
    assert not (tmp_path / "runs/broken/result.json").exists()
    total = env_steps(tmp_path / "runs/broken") + half
    whole = train(tmp_path, "whole", total, arguments)
    assert resume(tmp_path, "broken", "--env-steps", total).wait() == 0
    assert whole.wait() == 0
    assert result(tmp_path / "runs/broken")["resumes"] == 1
    assert_same_run(tmp_path / "runs/whole", tmp_path / "runs/broken")


@pytest.mark.parametrize(("ends_at", "keep"), [(1700, 2), (1700, 1), (1400, 2)])
def test_completed_and_extended_run_equals_the_longer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_at: int, keep: int
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [*CARTPOLE, "--keep-checkpoints", str(keep), "--quiet"]
    assert cli.main(["train", *arguments, "--env-steps", "3000", "--name", "whole"]) == 0
    assert cli.main(["train", *arguments, "--env-steps", str(ends_at), "--name", "extended"]) == 0
    first = result(tmp_path / "runs/extended")["evaluations"][0]
    assert cli.main(["resume", "extended", "--env-steps", "3000", "--from", "exact", "--quiet"]) == 0
    assert_same_run(tmp_path / "runs/whole", tmp_path / "runs/extended")
    kept = result(tmp_path / "runs/extended")["evaluations"][0]
    assert kept == first, "what lies before the checkpoint is not made again"


OFTEN = (
    words(
        "CartPole-v1 --envs-per-actor 16 --checkpoint-every 64 --log-every 500 --eval-every 300 --eval-episodes 2 "
        "--eval-max-steps 40 --agent.replay-capacity 300000 --agent.learning-starts 200 --agent.replay-ratio 4"
    )
    + SMALL
)


KILLS = 8


def test_kill_at_any_instant_leaves_a_checkpoint_to_go_on_from(tmp_path: Path) -> None:
    chance, run, last = random.Random(3), tmp_path / "runs/often", 0
    command = train(tmp_path, "often", 10**7, OFTEN)
    first_evaluation, resumes, end = None, 0, time.monotonic() + 120
    for kills in itertools.count(1):
        assert time.monotonic() < end, f"no evaluation was saved by {kills} processes"
        until(lambda command=command: saves(run, command) or not command.process.is_alive(), what="a checkpoint")
        time.sleep(chance.uniform(0, 0.2))
        command.signal(signal.SIGKILL)
        assert command.wait() == -signal.SIGKILL, command.err
        newest = checkpoint.latest(run / "checkpoints")
        if newest is not None:
            state = checkpoint.load(newest)
            assert state["env_steps"] >= last, "a kill takes back nothing that was saved before"
            assert resumes <= state["history"]["resumes"] <= kills - 1
            last, resumes = state["env_steps"], state["history"]["resumes"]
            first_evaluation = first_evaluation or next(iter(state["history"]["evaluations"]), None)
        if kills >= KILLS and first_evaluation is not None:
            break
        command = resume(tmp_path, "often")
    total = max(last, 1000) + 300
    assert resume(tmp_path, "often", "--env-steps", total).wait() == 0
    assert train(tmp_path, "whole", total, OFTEN).wait() == 0
    assert_same_run(tmp_path / "runs/whole", run)
    assert result(run)["evaluations"][0] == first_evaluation
    assert result(run)["resumes"] == resumes + 1 > 1
    assert total <= result(run)["env_steps"] < total + 16


def saves(run: Path, command: Command) -> bool:
    """Whether this process has begun to write a checkpoint."""
    return bool(list((run / "checkpoints").glob(f".tmp-{command.process.pid}-*")))


ENDLESS = [*CARTPOLE, "--eval-every", "1000000"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_run_in_order_and_it_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    run = tmp_path / "runs/stopped"
    command = train(tmp_path, "stopped", 10**7, ENDLESS)
    until(lambda: env_steps(run) > 800, what="training")
    command.signal(number)
    assert command.wait() == 130
    assert "Traceback" not in command.err
    stopped = result(run)
    assert stopped["status"] == "interrupted"
    newest = checkpoint.latest(run / "checkpoints")
    assert newest is not None
    state = checkpoint.load(newest)
    assert (state["env_steps"], state["updates"]) == (stopped["env_steps"], stopped["updates"])
    before = rows(run)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["resume", "stopped", "--quiet", "--env-steps", str(stopped["env_steps"] + 160)]) == 0
    after = rows(run)
    assert after[: len(before)] == before
    assert before[-1]["env_steps"] == stopped["env_steps"]
    following = after[len(before)]
    assert 0 < following["env_steps"] - stopped["env_steps"] <= 160
    # One step of 16 environments owes 4 updates, which are made one by one: up to 4 may be left at the signal, and at
    # the line that follows.
    owed = (following["env_steps"] - stopped["env_steps"]) / 4
    assert following["updates"] - stopped["updates"] == pytest.approx(owed, abs=4)
    assert following["epsilon"] == pytest.approx(max(0.05, 1 - 0.95 * following["env_steps"] / 2000), abs=1e-6)


SLOW = """
import time
import gymnasium as gym
import numpy as np

class Slow(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def __init__(self, seconds, slow_from):
        self.seconds, self.slow_from = seconds, slow_from

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        Slow.steps += 1
        if Slow.steps > self.slow_from:
            print("slow", flush=True)
            time.sleep(self.seconds)
        return np.zeros(2, np.float32), 0.0, False, False, {}
"""


def start_slow(tmp_path: Path, seconds: float, *arguments: Any) -> Command:
    (tmp_path / "slow.py").write_text(SLOW)
    options = ["--env-option", f"seconds={seconds}", "slow_from=50"]
    command = Command(tmp_path, "train", "slow.py:Slow", *options, "--name", "slow", "--quiet", *arguments)
    until(lambda: "slow" in command.out, what="a slow step")
    return command


def test_second_signal_ends_a_run_at_once(tmp_path: Path) -> None:
    command = start_slow(tmp_path, 50)
    command.signal(signal.SIGINT)
    until(lambda: "once more" in command.err, what="the answer to the first signal")
    assert command.process.is_alive()
    command.signal(signal.SIGINT)
    assert command.wait(timeout=30) == 130, "before the step is over"
    assert result(tmp_path / "runs/slow")["status"] == "interrupted"


def test_signal_does_not_wait_for_an_evaluation(tmp_path: Path) -> None:
    command = start_slow(tmp_path, 0.01, "--eval-every", 50, "--eval-episodes", 1, "--eval-max-steps", 10_000)
    command.signal(signal.SIGTERM)
    assert command.wait(timeout=60) == 130, "before the 100 s of the evaluation are over"
    assert result(tmp_path / "runs/slow")["status"] == "interrupted"
    assert result(tmp_path / "runs/slow")["env_steps"] == 50
    assert checkpoint.latest(tmp_path / "runs/slow/checkpoints") is not None


def test_two_processes_cannot_train_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = train(tmp_path, "held", 10**7, ENDLESS)
    until(lambda: env_steps(tmp_path / "runs/held") > 0, what="training")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["resume", "held", "--quiet"]) == 2
    assert "is being trained by another process" in capsys.readouterr().err
    assert cli.main(["runs"]) == 0
    assert "running" in capsys.readouterr().out
    command.signal(signal.SIGKILL)
    assert command.wait() == -signal.SIGKILL
    assert cli.main(["resume", "held", "--quiet", "--env-steps", "2000"]) == 0, "the dead do not hold a run"


def test_comparison_sees_a_single_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *CARTPOLE, "--env-steps", "700", "--name", "one", "--quiet"]) == 0
    newest = checkpoint.latest(tmp_path / "runs/one/checkpoints")
    assert newest is not None
    state, other = checkpoint.load(newest), checkpoint.load(newest)
    assert_same_state(state, other)
    weights = other["learner"]["learned"]["00"].copy()
    weights.view("uint8")[0] ^= 1
    other["learner"]["learned"]["00"] = weights
    with pytest.raises(AssertionError, match="learner/learned/00"):
        assert_same_state(state, other)
    assert timeless({"seconds": 1, "time/act": 2, "loss": 3}) == {"loss": 3}
