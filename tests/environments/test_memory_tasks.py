"""The tasks that need memory: what is hidden stays hidden, and memory is rewarded."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from repertory.environments.factory import make
from repertory.environments.tasks import FORWARD, LEFT, RIGHT
from repertory.environments.vectors import OneByOne
from repertory.errors import UserError

MASKED, MAZE = "repertory/MaskedCartPole-v1", "repertory/TMaze-v1"
CORRIDOR, JUNCTION = [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]
Observation = NDArray[np.float32]


def maze(**options: Any) -> gym.Env[Any, Any]:
    return gym.make(MAZE, **options)


def remembers(seen: list[Observation]) -> int:
    """Forward to the junction, then to the side of the first observation."""
    return FORWARD if not seen[-1][2] else LEFT if seen[0][0] else RIGHT


def turns_left(seen: list[Observation]) -> int:
    """Forward to the junction, then left."""
    return LEFT if seen[-1][2] else FORWARD


def play(env: gym.Env[Any, Any], seed: int, policy: Callable[[list[Observation]], int]) -> tuple[float, int]:
    """An episode's return and length."""
    seen, total = [env.reset(seed=seed)[0]], 0.0
    while True:
        observation, reward, terminated, truncated, _ = env.step(policy(seen))
        seen.append(observation)
        total += float(reward)
        if terminated or truncated:
            return total, len(seen) - 1


@pytest.mark.parametrize("name", [MASKED, MAZE])
def test_gymnasium_finds_nothing_wrong(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(name, disable_env_checker=True).unwrapped, skip_render_check=True)


@pytest.mark.parametrize("name", [MASKED, MAZE])
def test_ours_are_stepped_one_by_one(name: str) -> None:
    envs = make(name, 16)
    assert isinstance(envs, OneByOne)
    assert envs.reset(range(16))[0].dtype == np.float32


@pytest.mark.parametrize("options", [{}, {"sutton_barto_reward": True}])
def test_masked_observation_is_position_and_angle_of_cartpole(options: dict[str, Any]) -> None:
    masked, plain = gym.make(MASKED, **options), gym.make("CartPole-v1", **options)
    assert masked.observation_space.shape == (2,)
    assert masked.action_space == plain.action_space
    rng = np.random.default_rng(0)
    for seed in range(5):
        bounds = {"low": -0.1, "high": 0.1}
        one, other = masked.reset(seed=seed, options=bounds), plain.reset(seed=seed, options=bounds)
        over = False
        while not over:
            np.testing.assert_array_equal(one[0], other[0][[0, 2]])
            assert one[0] in masked.observation_space
            assert one[1:] == other[1:]
            action = rng.integers(0, 2)
            one, other = masked.step(action), plain.step(action)
            over = one[2] or one[3]
        np.testing.assert_array_equal(one[0], other[0][[0, 2]])
        assert one[1:] == other[1:]


def test_masked_episodes_are_cut_where_those_of_cartpole_are() -> None:
    masked, plain = gym.spec(MASKED), gym.spec("CartPole-v1")
    assert masked.max_episode_steps == plain.max_episode_steps == 500
    assert masked.reward_threshold == plain.reward_threshold


def test_masked_cartpole_is_drawn_as_cartpole_is() -> None:
    pytest.importorskip("pygame")
    frames = []
    for name in (MASKED, "CartPole-v1"):
        env = gym.make(name, render_mode="rgb_array")
        env.reset(seed=0)
        frames.append(env.render())
        env.close()
    np.testing.assert_array_equal(*frames)


@pytest.mark.parametrize("length", [2, 10, 30])
def test_who_remembers_always_gets_one(length: int) -> None:
    env = maze(length=length)
    assert {play(env, seed, remembers) for seed in range(50)} == {(1.0, length + 1)}


def test_who_always_turns_left_gets_nothing_on_average() -> None:
    returns = [play(maze(), seed, turns_left)[0] for seed in range(200)]
    assert set(returns) == {1.0, -1.0}
    assert abs(np.mean(returns)) < 0.25  # 3.5 standard errors


def test_corridor_is_ten_steps_unless_given() -> None:
    assert play(maze(), 0, remembers)[1] == 11


def test_sides_differ_from_episode_to_episode_and_follow_from_the_seed() -> None:
    def sides() -> list[list[float]]:
        env = maze()
        first = env.reset(seed=7)[0]
        return [first.tolist(), *(env.reset()[0].tolist() for _ in range(20))]

    assert sides() == sides()
    assert sorted({tuple(side) for side in sides()}) == [(0.0, 1.0, 0.0), (1.0, 0.0, 0.0)]


def test_cue_is_in_the_first_observation_only() -> None:
    env = maze(length=3)
    for seed in range(10):
        assert env.reset(seed=seed)[0][:2].sum() == 1.0
        seen = [env.step(action)[0].tolist() for action in (LEFT, FORWARD, RIGHT, FORWARD, FORWARD, FORWARD, LEFT)]
        assert seen == [CORRIDOR] * 4 + [JUNCTION] * 3


@pytest.mark.parametrize("wall", [LEFT, RIGHT])
def test_turning_in_the_corridor_costs_a_little_and_moves_nothing(wall: int) -> None:
    env = maze(length=2)
    env.reset(seed=0)
    for place in (CORRIDOR, JUNCTION):
        observation, reward, terminated, truncated, _ = env.step(wall)
        assert (observation.tolist(), reward, terminated, truncated) == (CORRIDOR, -0.02, False, False)
        observation, reward, terminated, truncated, _ = env.step(FORWARD)
        assert (observation.tolist(), reward, terminated, truncated) == (place, 0.0, False, False)


def test_going_on_at_the_junction_costs_a_little_and_the_turn_still_counts() -> None:
    env = maze(length=2)
    for turn in (LEFT, RIGHT):
        for seed in range(10):
            left = env.reset(seed=seed)[0][0] == 1.0
            rewards = [env.step(action)[1] for action in (FORWARD, FORWARD, FORWARD, FORWARD)]
            assert rewards == [0.0, 0.0, -0.02, -0.02]
            observation, reward, terminated, truncated, _ = env.step(turn)
            assert (observation.tolist(), terminated, truncated) == (JUNCTION, True, False)
            assert reward == (1.0 if left == (turn == LEFT) else -1.0)


def test_maze_is_cut_after_a_hundred_steps_or_as_asked() -> None:
    assert gym.spec(MAZE).reward_threshold == 0.9
    total, steps = play(maze(), 0, lambda _: LEFT)
    assert (round(total, 9), steps) == (-2.0, 100)
    assert play(maze(length=150, max_episode_steps=151), 0, remembers) == (1.0, 151)


@pytest.mark.parametrize("value", [1, 0, -3, 2.0, 10.5, True, "10", None, float("nan")])
def test_wrong_length_is_refused_in_one_sentence(value: Any) -> None:
    words = rf"^{MAZE} needs a whole number, 2 or more, as length, not "
    for attempt in (lambda: make(MAZE, 1, options={"length": value}), lambda: maze(length=value)):
        with pytest.raises(UserError, match=words) as caught:
            attempt()
        assert str(caught.value).endswith(repr(value))


def test_unknown_option_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=rf"{MAZE} has no option 'lenght'; did you mean 'length'"):
        make(MAZE, 1, options={"lenght": 5})


def test_gymnasium_knows_both_after_repertory_which_imports_neither() -> None:
    code = f"""
import sys, repertory
assert not {{"jax", "gymnasium", "numpy"}} & set(sys.modules)
import gymnasium
assert "repertory.environments.tasks" not in sys.modules
gymnasium.make("{MASKED}"), gymnasium.make("{MAZE}", length=5)
assert "jax" not in sys.modules"""
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stderr
