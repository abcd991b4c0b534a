"""From the command line and from Python: agents learn, runs end where they should, and leave what they promise."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio.v2 as imageio
import numpy as np
import pytest

import repertory
from commands import result, rows, words
from repertory import cli, topologies
from repertory.errors import UserError
from repertory.runs import checkpoint

TAXI = next(name for name in ("Taxi-v4", "Taxi-v3") if name in gym.registry)
SHORT = words(
    "--env-steps 500 --checkpoint-every 300 --log-every 100 --eval-every 300 --eval-episodes 2 --eval-max-steps 30 "
    "--envs-per-actor 4 --agent.learning-starts 100 --agent.batch-size 16 --agent.replay-ratio 4 "
    "--agent.updates-per-call 1 --network.hidden 16 16"
)
RESULT_KEYS = {
    "status", "score", "env_steps", "updates", "seconds", "startup_s", "env_steps_per_s", "updates_per_s",
    "evaluations", "restarts",
}  # fmt: skip

USERS = """
import flax.linen as nn
import gymnasium as gym
import jax.numpy as jnp
import numpy as np


class Mixed(gym.Env):
    observation_space = gym.spaces.Dict({
        "where": gym.spaces.MultiDiscrete([3, 5]),
        "speed": gym.spaces.Box(-1, 1, (2,), np.float32),
    })
    action_space = gym.spaces.Discrete(3, start=4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 1.0, self.np_random.random() < 0.1, False, {}


class Camera(Mixed):
    observation_space = gym.spaces.Dict({
        "image": gym.spaces.Box(0, 255, (8, 8, 3), np.uint8),
        "speed": gym.spaces.Box(-1, 1, (2,), np.float32),
    })


class Torso(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, x):
        assert x.dtype == jnp.float32
        return nn.Dense(self.outputs)(nn.tanh(nn.Dense(11)(x)))


def build(outputs):
    return Torso(outputs)


gym.register("UsersMixed-v0", Mixed)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs go into a fresh directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a short run on CartPole-v1."""
    place = tmp_path_factory.mktemp("trained")
    assert cli.main(["train", "CartPole-v1", *SHORT, "--quiet", "--name", "run", "--runs-dir", str(place)]) == 0
    return place / "run"


def train(*arguments: Any) -> dict[str, Any]:
    assert cli.main(["train", *SHORT, "--quiet", "--name", "run", *map(str, arguments)]) == 0
    return result(Path("runs/run"))


def test_cartpole_is_solved_by_its_preset_and_told_in_one_json_line(place: Path) -> None:
    command = [sys.executable, "-m", "repertory.cli", "train", "CartPole-v1", "--target-score", "475", "--json"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    told = json.loads(done.stdout)
    assert told.keys() >= RESULT_KEYS
    assert told["status"] == "solved"
    assert told["score"] == told["evaluations"][-1]["mean"] >= 475
    for evaluation in told["evaluations"]:
        assert evaluation.keys() == {"env_steps", "updates", "seconds", "mean", "std", "episodes"}
    assert told["restarts"] == 0
    assert 0 < told["startup_s"] < 30
    assert told["env_steps_per_s"] == pytest.approx(told["env_steps"] / told["seconds"], rel=0.01)
    assert json.loads((place / told["directory"] / "result.json").read_bytes()) == told


def test_dry_run_tells_what_would_be_done_and_makes_nothing(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    arguments = ["train", "CartPole-v1", *SHORT, "--agent.epsilon-steps", "400", "--agent.replay-capacity", "1000"]
    assert cli.main([*arguments, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["env_steps_per_update"] == 4
    assert told["replay_ratio"] == 4
    assert told["updates"] == 100
    assert told["processes"] == 1
    assert told["epsilon"]["start"] == 1
    assert told["epsilon"]["half_way"]["env_steps"] == 200
    assert told["epsilon"]["end"]["env_steps"] == 400
    assert told["replay_memory"].endswith(" MB")
    assert cli.main([*arguments, "--dry-run"]) == 0
    lines = capsys.readouterr().out
    assert all(key in lines for key in told)
    assert list(place.iterdir()) == []


def test_dry_run_foretells_the_updates_that_are_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "CartPole-v1", *SHORT, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert abs(train("CartPole-v1")["updates"] - told["updates"]) <= 1


@pytest.mark.parametrize(
    "words",
    ["all_reduce", "parameter_server --topology.mode synchronous", "parameter_server --topology.push-period 2"],
)
def test_dry_run_foretells_updates_that_several_batches_make(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["--topology", *words.split(), "--actors", "2", "--engine", "inline"]
    assert cli.main(["train", "CartPole-v1", *SHORT, *typed, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert abs(train("CartPole-v1", *typed)["updates"] - told["updates"]) <= 2


def test_run_ends_in_time() -> None:
    assert cli.main(["train", "CartPole-v1", *SHORT, "--env-steps", "10000000", "--seconds", "2", "--quiet"]) == 0
    (run,) = Path("runs").iterdir()
    assert result(run)["status"] == "completed"
    assert 2 <= result(run)["seconds"] < 60
    assert result(run)["env_steps"] < 10_000_000


@pytest.mark.parametrize(("count", "total"), [(16, 501), (14, 500), (1, 333)])
def test_no_more_env_steps_are_made_than_the_last_round_needs(count: int, total: int) -> None:
    made = train("CartPole-v1", "--envs-per-actor", count, "--env-steps", total)
    assert total <= made["env_steps"] < total + count


def test_rates_of_an_interval_leave_out_evaluations_and_checkpoints() -> None:
    long = words("--env-steps 9000 --log-every 1500 --checkpoint-every 3000 --eval-every 3000")
    long += words("--eval-episodes 100 --eval-max-steps 200")
    train("MountainCar-v0", *long)  # whose episodes take their 200 steps while nothing is learned
    lines = rows(Path("runs/run"))
    paused = 0
    for before, line in itertools.pairwise(lines):
        resting = line["time/evaluate"] + line.get("time/checkpoint", 0.0)
        trained = (line["seconds"] - before["seconds"]) * (1 - resting)
        paused += resting > 0.3
        assert line["env_steps_per_s"] == pytest.approx((line["env_steps"] - before["env_steps"]) / trained, rel=0.2)
    assert paused, "no interval was long interrupted, so this test would see nothing"


def test_a_score_of_zero_that_is_the_best_is_not_told_twice(capsys: pytest.CaptureFixture[str]) -> None:
    told = train("FrozenLake-v1")
    assert told["score"] == told["best"]["mean"] == 0
    assert "best:" not in capsys.readouterr().out


def test_run_directory_holds_what_it_promises(trained: Path) -> None:
    assert {path.name for path in trained.iterdir()} >= {
        "config.json", "metrics.jsonl", "tensorboard", "checkpoints", "result.json",
    }  # fmt: skip
    config = json.loads((trained / "config.json").read_bytes())
    assert config["config"]["environment"] == "CartPole-v1"
    assert config["config"]["agent"]["batch_size"] == 16
    assert config["origin"]["versions"]
    assert [row["env_steps"] for row in rows(trained)] == sorted({row["env_steps"] for row in rows(trained)})
    assert rows(trained)[-1]["env_steps"] == result(trained)["env_steps"]
    assert len(checkpoint.whole(trained / "checkpoints")) == 2
    assert list((trained / "tensorboard").iterdir())


def test_runs_show_and_doctor_tell_what_there_is(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs", "--runs-dir", str(trained.parent), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["environment"] == "CartPole-v1"
    assert cli.main(["show", "single"]) == 0
    drawn = capsys.readouterr().out
    assert all(f"[{role}]" in drawn for role in ("agent", "evaluator"))
    assert cli.main(["show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(topologies.known())
    assert len({len(line) - len(line.split(maxsplit=1)[1]) for line in lines}) == 1, "aligned"
    assert cli.main(["doctor", "--json"]) == 0
    findings = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert {"Python", "cores", "memory", "extra atari"} <= findings.keys()
    assert cli.main(["doctor"]) == 0
    assert "jax" in capsys.readouterr().out


def test_list_of_runs_is_aligned_and_tells_topology_agent_date_and_best_score(
    trained: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "a-run-with-a-name-that-is-much-longer-than-forty-four-letters-altogether"
    for name in ("x", long):
        shutil.copytree(trained, place / "runs" / name)
    told = json.loads((place / "runs/x/result.json").read_bytes())
    told |= {"score": -1234.5, "env_steps": 1_000_000, "best": {"mean": 20_000.25}}
    (place / "runs/x/result.json").write_text(json.dumps(told))
    assert cli.main(["runs"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "started", "topology", "agent", "status", "env", "steps", "score", "best"]
    assert len(lines) == 2
    cells = {line.split()[0]: line.split() for line in lines}
    year = json.loads((trained / "config.json").read_bytes())["origin"]["started"][:4]
    for row in cells.values():
        assert row[1].startswith(year)
        assert row[3:6] == ["single", "dqn", "completed"]
    assert cells["x"][6:] == ["1,000,000", "-1,234.5", "20,000.2"]
    for column in ("started", "topology", "agent", "status"):
        assert all(line[head.index(column) - 1] == " " != line[head.index(column)] for line in lines)
    assert {len(line) for line in lines} == {len(head)}, "numbers end where their head does"


def test_evaluation_repeats_itself_and_prints_one_json_line(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for _ in range(2):
        assert cli.main(["evaluate", str(trained), "--episodes", "3", "--json"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert said[0].count("\n") == 1
    told = json.loads(said[0])
    assert told["episodes"] == len(told["returns"]) == 3
    assert told["mean"] == pytest.approx(np.mean(told["returns"]))
    assert told["returns"] == told["lengths"], "CartPole pays 1 a step"


@pytest.mark.parametrize("ending", ["gif", "mp4"])
def test_film_can_be_read_and_shows_every_step(
    trained: Path, place: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    film = place / f"film.{ending}"
    assert cli.main(["evaluate", str(trained), "--episodes", "1", "--record", str(film), "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["recorded"]["return"]
    with imageio.get_reader(film) as reader:
        frames = [np.asarray(frame) for frame in reader]
    assert len(frames) == pytest.approx(steps, abs=1)
    assert frames[0].shape[:2] == (400, 600)
    assert any((frame != frames[0]).any() for frame in frames)


SCRIPT = """
import repertory
run = repertory.train("CartPole-v1", env_steps=300, eval_every=200, eval_episodes=2, eval_max_steps=30, name="mine",
                      agent_options={"learning_starts": 100, "batch_size": 16}, network_options={"hidden": [16, 16]})
print(run.score, run.directory, run.act([0.0, 0.0, 0.1, 0.0]))
"""


def test_script_without_main_guard_trains_and_plays(place: Path) -> None:
    (place / "script.py").write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run([sys.executable, "script.py"], cwd=place, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    score, directory, action = done.stdout.split()
    assert float(score) == result(place / directory)["score"]
    assert int(action) in (0, 1)


def small(**options: Any) -> dict[str, Any]:
    agent = {"learning_starts": 100, "batch_size": 16, "replay_ratio": 4.0, "updates_per_call": 1}
    often = {"eval_every": 200, "eval_episodes": 2, "eval_max_steps": 30, "envs_per_actor": 4}
    return {**often, "env_steps": 300, "agent_options": agent, "network_options": {"hidden": [16, 16]}} | options


def test_python_api_trains_resumes_evaluates_and_plays() -> None:
    run = repertory.train("CartPole-v1", **small(checkpoint_every=100))
    assert run.score == run.result["score"]
    assert run.directory.is_dir()
    longer = repertory.resume(run, env_steps=2000)
    assert longer.result["env_steps"] >= 2000
    seen = np.random.default_rng(0).uniform(-0.5, 0.5, (100, 4))
    assert {longer.act(observation) for observation in seen} <= {0, 1}
    assert repertory.evaluate(longer, episodes=2) == repertory.evaluate(longer.directory, episodes=2)


def test_resumed_run_plays_with_its_new_weights() -> None:
    run = repertory.train("CartPole-v1", **small(checkpoint_every=100))
    run.act(np.zeros(4))
    longer = repertory.resume(run, env_steps=600)
    longer.act(np.zeros(4))
    newest = checkpoint.latest(run.directory / "checkpoints")
    assert newest is not None
    saved = checkpoint.load(newest)["learner"]["learned"]["00"]
    assert longer._agent.weights.tobytes() == saved.tobytes()
    assert run._agent.weights.tobytes() != saved.tobytes()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"env_step": 3}, "unknown option 'env_step'; did you mean 'env_steps'?"),
        ({"env_steps": "3"}, "option 'env_steps' must be int, not '3'"),
        ({"agent_options": {"bach_size": 3}}, "agent 'dqn' has no option 'bach_size'; did you mean 'batch_size'?"),
    ],
)
def test_python_api_refuses_unknown_options(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=r".") as error:
        repertory.train("CartPole-v1", **options)
    assert sentence in str(error.value)


def test_training_works_in_a_thread_that_is_not_the_main_one() -> None:
    made: list[repertory.Run] = []
    thread = threading.Thread(target=lambda: made.append(repertory.train("CartPole-v1", **small())), daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert made
    assert made[0].result["status"] == "completed"


def test_masked_actions_are_never_played() -> None:
    run = repertory.train(TAXI, **small())
    env = gym.make(TAXI)
    observation, info = env.reset(seed=1)
    for _ in range(30):
        action = run.act(observation, info["action_mask"])
        assert info["action_mask"][action]
        observation, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            break
    only = np.zeros(6, np.int8)
    for index in range(6):
        only[:] = 0
        only[index] = 1
        assert run.act(observation, only) == index


@pytest.mark.parametrize("name", ["Blackjack-v1", "FrozenLake-v1", TAXI, "users.py:Mixed", "users:UsersMixed-v0"])
def test_every_kind_of_observation_trains(place: Path, name: str) -> None:
    (place / "users.py").write_text(USERS)
    made = train(name)
    assert made["updates"] > 90
    assert np.isfinite([row["loss"] for row in rows(Path("runs/run")) if row["loss"] is not None]).all()


def test_a_picture_beside_a_vector_trains_and_is_told_of_at_the_start(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "users.py").write_text(USERS)
    train("users.py:Camera")
    told = "no convolution reads image (8×8×3): an observation of several parts becomes one row, here of 194 inputs"
    assert told in capsys.readouterr().err
    events = [json.loads(line) for line in Path("runs/run/events.jsonl").read_text().splitlines()]
    assert [told in event["event"] for event in events] == [True]
    assert cli.main(["train", "users.py:Camera", "--dry-run", "--json"]) == 0
    ahead = json.loads(capsys.readouterr().out)
    assert told in ahead["warning"]
    assert ahead["observation"] == "194 numbers in 200 bytes"


@pytest.mark.parametrize(
    "parts",
    [
        "--agent rainbow",
        "--agent sarsa",
        "--agent.no-replay",
        "--agent.no-target",
        "--agent.no-replay --agent.no-target",
        "--agent sarsa --agent.no-replay --agent.no-target",
        "--agent.dueling --agent.n-step 3 --agent.optimizer rmsprop --agent.loss squared --agent.target-tau 0.01",
    ],
)
def test_every_agent_of_the_family_trains(parts: str) -> None:
    made = train("CartPole-v1", *parts.split())
    assert made["updates"] > 90
    config = json.loads(Path("runs/run/config.json").read_bytes())["config"]["agent"]
    assert config["replay"] == ("no-replay" not in parts)
    assert config["target"] == ("no-target" not in parts)
    assert config["sarsa"] == ("sarsa" in parts)
    assert all(config[part] for part in ("prioritized", "noisy", "distributional")) == ("rainbow" in parts)


def test_users_network_trains(place: Path) -> None:
    (place / "torso.py").write_text(USERS)
    made = train("CartPole-v1", "--network.module", "torso:build")
    assert made["updates"] > 90
    newest = checkpoint.latest(Path("runs/run/checkpoints"))
    assert newest is not None
    assert checkpoint.load(newest)["learner"]["learned"]["00"].size == 4 * 11 + 11 + 11 * 2 + 2


def test_help_shows_the_defaults_of_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["train", "Acrobot-v1", "--help"])
    assert exit_.value.code == 0
    assert "(default: 0.00063)" in capsys.readouterr().out
