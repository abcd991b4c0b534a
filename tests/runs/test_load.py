"""`repertory.load`: an agent that acts without its environment, on one observation or many, with masks and memory."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import Space, spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import given, settings

import repertory
from commands import words
from repertory import cli
from repertory.environments import factory
from repertory.environments.spaces import Encoder, leading_axes, read_space, write_space
from repertory.errors import UserError
from repertory.runs.config import names_of, options_for
from repertory.topologies.parts import EVALUATION_RANK
from space_trees import trees

SHORT = words(
    "--env-steps 400 --eval-every 400 --eval-episodes 2 --eval-max-steps 40 --log-every 200 --quiet "
    "--agent.learning-starts 100 --agent.batch-size 16 --agent.updates-per-call 1 --agent.replay-ratio 4 "
    "--network.hidden 16 16 --envs-per-actor 2"
)
UNROLLS = words(
    "--topology impala --engine inline --actors 1 --envs-per-actor 2 --agent.unroll 5 --agent.batch-unrolls 2 "
    "--env-steps 200 --eval-every 200 --eval-episodes 2 --eval-max-steps 40 --log-every 200 --quiet "
    "--network.hidden 16 --network.lstm-size 8"
)
ENVIRONMENT = """
import gymnasium as gym
import numpy as np


class Shop(gym.Env):
    observation_space = gym.spaces.Dict({
        "where": gym.spaces.MultiDiscrete([3, 5], start=[1, 2]),
        "speed": gym.spaces.Box(-1, 1, (2,), np.float32),
        "kind": gym.spaces.Discrete(4, start=-1),
    })
    action_space = gym.spaces.Discrete(3, start=4)

    def _seen(self):
        return self.observation_space.sample(), {"action_mask": np.array([1, 0, 1], np.int8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self._seen()

    def step(self, action):
        observation, info = self._seen()
        return observation, float(observation["speed"][0]), self.np_random.random() < 0.1, False, info
"""
SHOP = spaces.Dict(
    {
        "where": spaces.MultiDiscrete([3, 5], start=[1, 2]),
        "speed": spaces.Box(-1, 1, (2,), np.float32),
        "kind": spaces.Discrete(4, start=-1),
    }
)


def trained(place: Path, environment: str, options: list[str]) -> Path:
    assert cli.main(["train", environment, *options, "--name", "run", "--runs-dir", str(place)]) == 0
    return place / "run"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose environment is gone."""
    place = tmp_path_factory.mktemp("shop")
    (place / "shop.py").write_text(ENVIRONMENT)
    run = trained(place, f"{place}/shop.py:Shop", SHORT)
    (place / "shop.py").unlink()
    shutil.rmtree(place / "__pycache__", ignore_errors=True)
    return run


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("cartpole"), "CartPole-v1", SHORT)


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose agent has a memory."""
    return trained(tmp_path_factory.mktemp("maze"), "repertory/TMaze-v1", UNROLLS)


def batched(space: Space[Any], samples: list[Any]) -> Any:
    return concatenate(space, samples, create_empty_array(space, len(samples)))


def test_agent_acts_without_its_environment(shop: Path) -> None:
    agent = repertory.load(str(shop))
    SHOP.seed(3)
    for _ in range(20):
        observation = SHOP.sample()
        action = agent.act(observation)
        assert type(action) is int
        assert action in (4, 5, 6)
        assert agent.act(observation, np.array([0, 1, 0], np.int8)) == 5
        assert agent.act(observation, [True, False, True]) != 5


def test_a_new_process_needs_no_environment_package(shop: Path) -> None:
    script = (
        "import sys, numpy as np, repertory\n"
        f"agent = repertory.load({str(shop)!r})\n"
        "print(agent.act({'where': np.array([1, 2]), 'speed': np.zeros(2, np.float32), 'kind': 0}))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) in (4, 5, 6)


def test_a_batch_gets_the_actions_of_its_single_observations(shop: Path) -> None:
    agent = repertory.load(shop)
    SHOP.seed(4)
    samples = [SHOP.sample() for _ in range(40)]
    alone = [agent.act(sample) for sample in samples]
    together = agent.act(batched(SHOP, samples))
    assert together.dtype == np.int64
    assert together.tolist() == alone
    masks = np.random.default_rng(0).random((40, 3)) < 0.5
    masks[:, 1] |= ~masks.any(axis=1)
    masked = agent.act(batched(SHOP, samples), masks)
    assert masks[np.arange(40), masked - 4].all()
    assert masked.tolist() == [agent.act(sample, mask) for sample, mask in zip(samples, masks, strict=True)]


def test_loaded_agent_plays_as_its_evaluation_does(cartpole: Path) -> None:
    agent, env = repertory.load(cartpole), gym.make("CartPole-v1")
    told = repertory.evaluate(cartpole, episodes=3)["lengths"]
    for seed, length in zip(factory.seeds(0, EVALUATION_RANK, 3), told, strict=True):
        observation, _ = env.reset(seed=seed)
        steps, over = 0, False
        while not over and steps < 40:
            observation, _, terminated, truncated, _ = env.step(agent.act(observation))
            steps, over = steps + 1, terminated or truncated
        assert steps == length


def test_a_run_is_found_by_name_by_string_by_path_and_by_itself(cartpole: Path) -> None:
    run = repertory.Run(cartpole, json.loads((cartpole / "result.json").read_bytes()))
    seen = np.random.default_rng(0).uniform(-0.5, 0.5, (50, 4))
    expected = run.act(seen).tolist()
    found = [repertory.load(which) for which in (str(cartpole), cartpole, run)]
    found.append(repertory.load("run", runs_dir=str(cartpole.parent)))
    assert [agent.act(seen).tolist() for agent in found] == [expected] * 4
    assert [run.act(one) for one in seen] == expected
    with pytest.raises(UserError, match="there is no run 'rum'; did you mean 'run'"):
        repertory.load("rum", runs_dir=cartpole.parent)


def test_a_number_among_bytes_that_is_not_finite_is_refused(shop: Path) -> None:
    seen = SHOP.sample()
    seen["speed"][1] = np.nan
    with pytest.raises(UserError, match="numbers that are not finite"):
        repertory.load(shop).act(seen)


def test_best_weights_can_be_loaded(cartpole: Path) -> None:
    best = repertory.load(cartpole, checkpoint="best")
    assert best.weights.shape == repertory.load(cartpole).weights.shape
    with pytest.raises(UserError, match="no checkpoint of env step 7"):
        repertory.load(cartpole, checkpoint=7)


def test_a_run_that_saved_no_spec_is_loaded_with_its_environment(cartpole: Path, tmp_path: Path) -> None:
    older = Path(shutil.copytree(cartpole, tmp_path / "older"))
    (older / "spec.json").unlink()
    seen = np.random.default_rng(0).uniform(-0.5, 0.5, (50, 4))
    assert repertory.load(older).act(seen).tolist() == repertory.load(cartpole).act(seen).tolist()
    (older / "spec.json").write_text('{"observation": 3}')
    with pytest.raises(UserError, match=r"spec\.json does not describe an environment"):
        repertory.load(older)


@pytest.mark.parametrize(
    ("observation", "mask", "sentence"),
    [
        (np.zeros(5), None, "this is no observation of CartPole-v1, nor a batch of them: shape (5,)"),
        (np.zeros((2, 2, 4)), None, "this is no observation of CartPole-v1"),
        (["a"] * 4, None, "this is no observation of CartPole-v1"),
        (np.zeros((0, 4)), None, "a batch of no observations was given"),
        (np.full(4, np.nan), None, "an observation has numbers that are not finite"),
        (np.zeros(4), [1, 1, 1], "an action_mask of shape (3,) was given, not (2,)"),
        (np.zeros((3, 4)), [1, 1], "an action_mask of shape (2,) was given, not (3, 2)"),
        (np.zeros(4), [0, 0], "an action_mask allows no action"),
    ],
)
def test_what_is_no_observation_or_mask_is_refused(cartpole: Path, observation: Any, mask: Any, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        repertory.load(cartpole).act(observation, mask)
    assert sentence in str(error.value)


def test_memory_is_kept_for_each_row_until_its_episode_ends(maze: Path) -> None:
    agent, alone = repertory.load(maze), [repertory.load(maze) for _ in range(3)]
    seen = np.random.default_rng(1).uniform(-1, 1, (6, 3, *agent.spec.observation.shape)).astype(np.float32)
    for rows in seen[:3]:
        assert agent.act(rows).tolist() == [one.act(row) for one, row in zip(alone, rows, strict=True)]
    agent.reset([False, True, False])
    alone[1].reset()
    kept = agent._state.copy()
    assert kept[[0, 2]].all()
    assert not kept[1].any()
    for rows in seen[3:]:
        assert agent.act(rows).tolist() == [one.act(row) for one, row in zip(alone, rows, strict=True)]
    np.testing.assert_allclose(agent._state, np.concatenate([one._state for one in alone]), rtol=1e-5, atol=1e-6)
    with pytest.raises(UserError, match=r"2 observations were given, 3 before: call reset\(\)"):
        agent.act(seen[0, :2])
    with pytest.raises(UserError, match="reset takes a flag for each of 3 rows"):
        agent.reset([True])
    agent.reset()
    assert agent.act(seen[0, :2]).shape == (2,)


@settings(max_examples=100, deadline=None)
@given(trees)
def test_a_saved_space_reads_observations_as_the_space_does(space: Space[Any]) -> None:
    again = read_space(write_space(space))
    space.seed(0)
    samples = [space.sample() for _ in range(3)]
    assert Encoder(again).spec == Encoder(space).spec
    assert leading_axes(again, samples[0]) == ()
    batch = batched(space, samples)
    assert leading_axes(again, batch) == (3,)
    np.testing.assert_array_equal(Encoder(again).many(batch, 3, copy=True), Encoder(space).stack(samples))


def test_a_run_prints_as_one_short_line(cartpole: Path) -> None:
    told = json.loads((cartpole / "result.json").read_bytes())
    text = repr(repertory.Run(cartpole, told))
    assert "\n" not in text
    assert len(text) < 120 + 2 * len(str(cartpole))
    steps = f"{told['env_steps']:,} env steps"
    for part in ("run", told["status"], f"score {told['score']:.1f}", steps, str(cartpole)):
        assert part in text
    unscored = repertory.Run(cartpole, {**told, "score": None, "status": "interrupted"})
    assert "interrupted, score none" in repr(unscored)


def test_everything_public_is_listed_before_it_is_used() -> None:
    names = "import repertory; print(*dir(repertory))"
    listed = subprocess.run([sys.executable, "-c", names], capture_output=True, text=True, timeout=60).stdout.split()
    assert {"train", "load", "resume", "evaluate", "compare", "Run"} <= set(listed)


def test_train_explains_every_option() -> None:
    text = inspect.getdoc(repertory.train) or ""
    own = {name.partition(".")[0] for name in names_of(options_for("dqn", "apex"))}
    renamed = {"agent": "agent_options", "network": "network_options", "topology": "topology_options"}
    renamed |= {"agent_name": "agent", "topology_name": "topology"}
    for name in sorted(own):
        assert f"{renamed.get(name, name)}:" in text, f"{name} is not explained"
    assert "repertory.train(" in text, "there is an example"
