"""Environments: no transition crosses a reset in any autoreset mode, and a failure says whose it was."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from repertory.environments import factory
from repertory.environments.factory import Environments, describe, evaluation_options, make, seeds
from repertory.environments.vectors import Vectorised, one_seed
from repertory.errors import EnvironmentFailure, UserError
from repertory.specs import Part

MODES = [None, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]
needs_atari = pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="extra atari")
needs_minatar = pytest.mark.skipif(importlib.util.find_spec("minatar") is None, reason="extra minatar")


class Counter(gym.Env[Any, Any]):
    """Observations say which seed, episode, step and action they come from, so that bad stitching shows."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        masked: bool = False,
        fault: str = "",
        at: int = 4,
        reuses_buffer: bool = True,
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(3, start=5)
        self.masked, self.fault, self.at, self.render_mode = masked, fault, at, render_mode
        self.buffer, self.reuses_buffer = np.zeros(4, np.float32), reuses_buffer

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        if seed is not None:
            self.seed, self.episode, self.total = seed, -1, 0
        self.episode, self.steps = self.episode + 1, 0
        if self.fault == "reset" and self.episode == 1:
            raise RuntimeError("no more")
        return self.look(-1), self.info()

    def step(self, action: int) -> Any:
        assert 5 <= action < 8
        self.steps, self.total = self.steps + 1, self.total + 1
        over = self.steps >= 1 + (self.episode + self.seed) % 3
        faulty = self.fault if self.total == self.at and self.seed == 12 else ""
        if faulty == "raise":
            raise ValueError("x")
        reward = {"nan reward": np.nan, "odd reward": None}.get(faulty, 100.0 * self.episode + self.steps)
        observation = np.zeros(3) if faulty == "shape" else self.look(np.nan if faulty == "nan" else action)
        return (
            observation,
            reward,
            over and self.episode % 2 == 0,
            over and self.episode % 2 == 1,
            self.info(),
        )

    def look(self, action: float) -> Any:
        self.buffer[:] = self.seed, self.episode, self.steps, action
        return self.buffer if self.reuses_buffer else self.buffer.copy()

    def info(self) -> dict[str, Any]:
        if not self.masked:
            return {}
        mask = np.roll(np.array([1, 1, 0], np.int8), self.episode + self.steps)
        if self.total == self.at:
            mask = {"no mask": None, "empty mask": mask * 0, "long mask": np.ones(4)}.get(self.fault, mask)
        return {} if mask is None else {"action_mask": mask}

    def render(self) -> Any:
        return np.full((2, 2, 3), self.steps, np.uint8)


gym.register("Counter-v0", Counter)


def policy(observation: np.ndarray) -> int:
    return int(observation.sum()) % 3


def transitions(envs: Environments, start: list[int], length: int) -> list[list[tuple[Any, ...]]]:
    """Each environment's transitions, as someone who stores them would see them."""
    current, mask = envs.reset(start)
    kept: list[list[tuple[Any, ...]]] = [[] for _ in start]
    while min(map(len, kept)) < length:
        actions = np.array([policy(row) for row in current])
        step = envs.step(actions)
        for e in np.flatnonzero(step.stepped):
            masks = () if mask is None else (mask[e].tolist(), step.mask[e].tolist())
            ends = (step.reward[e], bool(step.terminated[e]), bool(step.truncated[e]))
            kept[e].append((current[e].tolist(), actions[e], *ends, step.observation[e].tolist(), *masks))
        begun = step.begun[:, None]
        current = np.where(begun, step.first, step.observation)
        mask = None if step.mask is None else np.where(begun, step.first_mask, step.mask)
    return [rows[:length] for rows in kept]


def literal_transitions(masked: bool, seed: int, length: int) -> list[tuple[Any, ...]]:
    """The same by the plainest loop over one environment."""
    env, kept = Counter(masked), []
    observation, info = env.reset(seed=seed)
    while len(kept) < length:
        before, mask, action = observation.tolist(), info.get("action_mask"), policy(observation)
        observation, reward, terminated, truncated, info = env.step(action + 5)
        masks = (mask.astype(bool).tolist(), info["action_mask"].astype(bool).tolist()) if masked else ()
        kept.append((before, action, reward, terminated, truncated, observation.tolist(), *masks))
        if terminated or truncated:
            observation, info = env.reset()
    return kept


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_every_autoreset_mode_gives_the_same_transitions(mode: AutoresetMode | None, masked: bool) -> None:
    # Gymnasium's SyncVectorEnv keeps final observations in SAME_STEP mode without copying them.
    options = {"masked": masked, "reuses_buffer": mode is not AutoresetMode.SAME_STEP}
    envs = make("Counter-v0", 3, options=options, autoreset=mode)
    assert envs.spec.masked == masked
    assert envs.spec.actions == 3
    for start in ([10, 11, 12], [3, 4, 5]):  # the second reset comes in the middle of episodes
        expected = [literal_transitions(masked, seed, 20) for seed in start]
        assert transitions(envs, start, 20) == expected


def test_next_step_mode_does_not_count_the_reset_as_a_step() -> None:
    envs = make("Counter-v0", 1, autoreset=AutoresetMode.NEXT_STEP)
    envs.reset([0])  # its first episode has one step
    first, second = envs.step(np.zeros(1, int)), envs.step(np.zeros(1, int))
    assert (first.stepped[0], first.terminated[0], first.begun[0]) == (True, True, False)
    assert (second.stepped[0], second.terminated[0], second.begun[0]) == (False, False, True)


@pytest.mark.parametrize("mode", MODES)
def test_arrays_handed_out_are_not_overwritten(mode: AutoresetMode | None) -> None:
    envs = make("Counter-v0", 2, autoreset=mode)
    kept = [(envs.reset([1, 2])[0],)]
    copies = [tuple(array.copy() for array in kept[0])]
    for _ in range(8):
        step = envs.step(np.zeros(2, int))
        kept.append((step.observation, step.first, step.reward, step.terminated, step.begun))
        copies.append(tuple(array.copy() for array in kept[-1]))
    for arrays, before in zip(kept, copies, strict=True):
        for array, copy in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise", r"environment 2 of worker 7 \(seed 12, step 4\) raised ValueError: x"),
        (
            "nan",
            r"environment 2 of worker 7 \(seed 12, step 4\) returned an observation that is not finite: nan",
        ),
        (
            "nan reward",
            r"environment 2 of worker 7 \(seed 12, step 4\) returned a reward that is not finite: nan",
        ),
        (
            "odd reward",
            r"environment 2 of worker 7 \(seed 12, step 4\) returned a reward that is not a number",
        ),
        ("shape", r"environment 2 of worker 7 \(seed 12, step 4\) returned an observation of shape \(3,\)"),
        ("reset", r"environment \d of worker 7 \(seed 1\d, step \d\) raised RuntimeError: no more"),
        ("no mask", r"environment \d of worker 7 .* returned no action_mask"),
        ("empty mask", r"environment \d of worker 7 .* forbids every action"),
        ("long mask", r"environment \d of worker 7 .* action_mask of shape \(4,\)"),
    ],
)
def test_failure_names_worker_environment_seed_and_step(fault: str, words: str) -> None:
    masked = "mask" in fault
    envs = make("Counter-v0", 3, options={"fault": fault, "masked": masked}, worker=7)
    with pytest.raises(EnvironmentFailure, match=words) as caught:
        transitions(envs, [10, 11, 12], 20)
    assert (caught.value.__cause__ is not None) == (fault in ("raise", "reset", "odd reward", "shape"))


@pytest.mark.parametrize("mode", MODES[1:])
def test_vector_environment_names_the_one_with_nan_and_its_step(mode: AutoresetMode) -> None:
    envs = make("Counter-v0", 3, options={"fault": "nan"}, worker=7, autoreset=mode)
    words = r"environment 2 of worker 7 \(seed 12, step 4\) returned an observation that is not finite"
    with pytest.raises(EnvironmentFailure, match=words):
        transitions(envs, [10, 11, 12], 20)


def test_vector_environment_that_raises_keeps_the_cause() -> None:
    envs = make("Counter-v0", 3, options={"fault": "raise"}, worker=7, autoreset=AutoresetMode.SAME_STEP)
    with pytest.raises(EnvironmentFailure, match=r"the vector environment of worker 7 .*raised ValueError: x") as it:
        transitions(envs, [10, 11, 12], 20)
    assert isinstance(it.value.__cause__, ValueError)


class EndsForbidden(Counter):
    """Forbids every action in its terminal state, as many games do."""

    def __init__(self) -> None:
        super().__init__(masked=True)

    def step(self, action: int) -> Any:
        observation, reward, _, _, info = super().step(action)
        return observation, reward, True, False, {"action_mask": info["action_mask"] * 0}


@pytest.mark.parametrize("mode", MODES)
def test_terminal_state_may_forbid_every_action(mode: AutoresetMode | None) -> None:
    gym.register("EndsForbidden-v0", EndsForbidden)
    envs = make("EndsForbidden-v0", 2, autoreset=mode)
    envs.reset([1, 2])
    step = envs.step(np.zeros(2, int))
    assert step.mask is not None
    assert step.mask.all()
    del gym.registry["EndsForbidden-v0"]


def test_native_vector_environment_is_used_for_many_and_is_seeded_by_the_whole_list() -> None:
    envs = make("CartPole-v1", 16)
    assert isinstance(envs, Vectorised)
    assert envs.spec == describe("CartPole-v1")
    one, same, other = envs.reset(range(16))[0], envs.reset(range(16))[0], envs.reset(range(1, 17))[0]
    np.testing.assert_array_equal(one, same)
    assert not np.any(one == other)
    assert one_seed([1, 2]) != one_seed([2, 1])


def test_native_cartpole_never_steps_across_a_reset() -> None:
    envs = make("CartPole-v1", 16, options={"max_episode_steps": 30})
    current, _ = envs.reset(seeds(0, 0, 16))
    rng, lengths = np.random.default_rng(0), np.zeros(16, int)
    for _ in range(300):
        step = envs.step(rng.integers(0, 2, 16))
        # A pole moves by at most its speed times 0.02 s; a reset would jump.
        jump = np.abs(step.observation[:, 0] - current[:, 0] - 0.02 * current[:, 1])
        assert np.all(jump[step.stepped] < 1e-5)
        assert np.all(step.reward == step.stepped)
        lengths += step.stepped
        assert np.all(lengths[step.truncated] == 30)
        lengths[step.begun] = 0
        assert np.all(np.abs(step.first[step.begun]) <= 0.05)
        current = np.where(step.begun[:, None], step.first, step.observation)


def test_native_vector_environment_gives_way_where_options_break_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> VectorEnv[Any, Any, Any]:
        raise TypeError("not that option")

    monkeypatch.setattr(gym, "make_vec", broken)
    assert not isinstance(make("CartPole-v1", 16), Vectorised)


def test_seeds_do_not_collide() -> None:
    drawn = [s for run in range(4) for worker in range(16) for s in seeds(run, worker, 16)]
    drawn += [s for restart in range(3) for s in seeds(0, 0, 64, restart)]
    drawn += seeds(0, 0, 16, 0, 0)
    assert len(set(drawn)) == len(drawn)
    assert seeds(5, 1, 8)[:3] == seeds(5, 1, 3)
    assert all(0 <= s < 2**31 for s in drawn)


FACTORY = """
import gymnasium as gym
def good(**options): return gym.make("CartPole-v1", **options)
def raises(): raise KeyError("sprocket")
def wrong(): return 3
def needs_box2d(): raise gym.error.DependencyNotInstalled('run `pip install "gymnasium[box2d]"`')
def needs_other(): raise gym.error.DependencyNotInstalled('run `pip install "gymnasium[mujoco]"`')
"""


def test_factory_in_a_file_is_an_environment(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FACTORY)
    assert describe(f"{file}:good") == describe("CartPole-v1")
    assert describe(f"{file}:good", {"max_episode_steps": 9}).actions == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("{}/none.py:good", "there is no file .*none.py"),
        ("{}/mine.py:god", "has no function 'god'; did you mean 'good'?"),
        ("{}/mine.py:raises", "environment 0 of worker 0 could not be built: .* raised KeyError: 'sprocket'"),
        ("{}/mine.py:wrong", "returned a int, not a gymnasium.Env"),
        ("{}/mine.py:needs_box2d", r"pip install 'repertory\[video\]'"),
        ("{}/mine.py:needs_other", r"pip install \"gymnasium\[mujoco\]\""),
        ("{}/broken.py:good", "importing .*broken.py raised ZeroDivisionError"),
        ("CartPole-v7", "did you mean 'CartPole-v[01]'"),
        ("Cartpole", "did you mean 'CartPole-v[01]'"),
        ("nowhere_module:Env-v0", "there is no module 'nowhere_module'"),
        ("gymnasium:Env-v0", "there is no environment 'Env-v0' in gymnasium, registered or as a function$"),
        ("highway-fast-v0", r"^there is no environment 'highway-fast-v0' \(if a package registers it, write package:"),
        ("lunar_lander-v2", "did you mean 'LunarLander-v3'"),
        ("Pendulum-v1", "Pendulum-v1 has a continuous action space"),
    ],
)
def test_wrong_name_is_answered_with_one_sentence(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FACTORY)
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(UserError, match=words) as caught:
        make(name.format(tmp_path), 1)
    assert "\n" not in str(caught.value)


def test_module_and_id_imports_the_module() -> None:
    assert describe("gymnasium.envs.classic_control:CartPole-v1") == describe("CartPole-v1")


def test_module_and_function_is_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a module in the current directory is found
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "functions_of_mine.py").write_text(FACTORY)
    assert describe("functions_of_mine:good") == describe("CartPole-v1")


@pytest.mark.parametrize("name", ["CartPole-v1", pytest.param("ALE/Pong-v5", marks=needs_atari)])
def test_unknown_option_is_named(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} has no option 'rewardclipping'"):
        make(name, 16, options={"rewardclipping": 1})


PAYING = """
import gymnasium as gym

def costly():
    return gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: -7.5 * reward)

def halves_itself(reward_clipping=False):
    return gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: 2.5 if reward_clipping else 5)
"""


@pytest.mark.parametrize("count", [1, 16])
@pytest.mark.parametrize(
    ("name", "options", "reward"),
    [
        ("costly", {}, -7.5),
        ("costly", {"reward_clipping": False}, -7.5),
        ("costly", {"reward_clipping": True}, -1.0),
        ("halves_itself", {"reward_clipping": True}, 2.5),
    ],
)
def test_rewards_are_clipped_if_asked_and_if_the_environment_does_not_do_it_itself(
    name: str, options: dict[str, Any], reward: float, count: int, tmp_path: Path
) -> None:
    (tmp_path / "paying.py").write_text(PAYING)
    envs = make(f"{tmp_path}/paying.py:{name}", count, options=options)
    envs.reset(list(range(count)))
    np.testing.assert_array_equal(envs.step(np.zeros(count, np.int64)).reward, np.full(count, reward))
    envs.close()


@pytest.mark.parametrize("count", [1, 16])
def test_rewards_of_registered_environments_are_clipped_but_not_in_evaluations(count: int) -> None:
    name, clipped = "Taxi-v4", {"reward_clipping": True}
    assert evaluation_options(name, clipped) == {"reward_clipping": False}
    for options, lowest in ((clipped, -1.0), (evaluation_options(name, clipped), -10.0)):
        envs = make(name, count, options=options)
        envs.reset(list(range(count)))
        illegal_pickup = np.full(count, 4)
        rewards = np.stack([envs.step(illegal_pickup).reward for _ in range(3)])
        assert rewards.min() == lowest
        envs.close()
    with pytest.raises(UserError, match=f"reward_clipping of {name} must be true or false, not 3"):
        make(name, count, options={"reward_clipping": 3})
    with pytest.raises(UserError, match="did you mean 'reward_clipping'"):
        make(name, count, options={"rewardclipping": True})


@pytest.mark.parametrize(("name", "extra"), [("ALE/Pong-v5", "atari"), ("MinAtar/Breakout-v1", "minatar")])
def test_missing_extra_is_named(name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(gym, "registry", {})
    with pytest.raises(UserError, match=rf"pip install 'repertory\[{extra}\]'"):
        make(name, 1)


@pytest.mark.parametrize("mode", [None, AutoresetMode.NEXT_STEP])
def test_render_shows_environment_0(mode: AutoresetMode | None) -> None:
    envs = make("Counter-v0", 1, render=True, autoreset=mode)
    envs.reset([2])
    envs.step(np.zeros(1, int))
    np.testing.assert_array_equal(envs.render(), np.ones((2, 2, 3), np.uint8))


def rebuilt(frames: list[np.ndarray]) -> np.ndarray:
    """A stack of four from the frames of one episode, missing ones zero."""
    missing = [np.zeros_like(frames[0])] * (4 - len(frames))
    return np.stack([*missing, *frames[-4:]])


@needs_atari
@pytest.mark.parametrize("life", [False, True])
@pytest.mark.parametrize("mode", [None, AutoresetMode.SAME_STEP])
def test_atari_stacks_are_rebuilt_from_single_frames(mode: AutoresetMode | None, life: bool) -> None:
    options = {"episodic_life": life, "max_num_frames_per_episode": 400, "noop_max": 4}
    envs = make("ALE/Breakout-v5", 2, options=options, autoreset=mode)
    spec = envs.spec.observation
    assert (spec.seen_shape, spec.stack, spec.padding, spec.dtype) == ((4, 84, 84), 4, "zero", "uint8")
    frames = [[stack[-1]] for stack in envs.reset([1, 2])[0]]
    rng, episodes = np.random.default_rng(0), 0
    for _ in range(220):
        step = envs.step(rng.integers(0, 4, 2))
        for e in range(2):
            if step.stepped[e]:
                frames[e].append(step.observation[e, -1])
                np.testing.assert_array_equal(rebuilt(frames[e]), step.observation[e])
            if step.begun[e]:
                frames[e], episodes = [step.first[e, -1]], episodes + 1
                np.testing.assert_array_equal(rebuilt(frames[e]), step.first[e])
    assert episodes >= 2
    envs.close()


@needs_atari
def test_atari_names_and_options() -> None:
    envs = make("PongNoFrameskip-v4", 1)
    assert (envs.spec.actions, envs.spec.frame_skip, envs.spec.masked) == (6, 4, False)
    start = envs.reset([3])[0]
    np.testing.assert_array_equal(start, envs.reset([3])[0])
    assert envs.render().shape == (336, 336, 3)
    raw = {"reward_clipping": False, "episodic_life": False}
    assert evaluation_options("ALE/Pong-v5", {"noop_max": 3}) == {"noop_max": 3, **raw}
    assert evaluation_options("CartPole-v1") == {}
    with pytest.raises(UserError, match=r"ALE/Pung-v5.*did you mean 'ALE/Pong-v5'"):
        make("ALE/Pung-v5", 1)


@needs_minatar
@pytest.mark.parametrize(("name", "actions"), [("MinAtar/Breakout-v1", 3), ("MinAtar/SpaceInvaders-v0", 6)])
def test_minatar_is_stored_as_small_numbers_and_repeats_with_its_seed(name: str, actions: int) -> None:
    envs = make(name, 2, render=True)
    size = int(np.prod(envs.spec.observation.shape))
    assert (envs.spec.actions, envs.spec.observation.dtype) == (actions, "uint8")
    assert envs.spec.observation.parts == (Part("number", size),)
    runs = []
    for _ in range(2):
        envs.reset([1, 2])
        rng = np.random.default_rng(0)
        steps = [envs.step(rng.integers(0, actions, 2)) for _ in range(100)]
        runs.append(np.stack([step.first for step in steps]))
    np.testing.assert_array_equal(*runs)
    assert runs[0].max() == 1
    assert envs.render().shape == (160, 160, 3)


@needs_minatar
def test_minatar_plays_as_the_package_does() -> None:
    minatar = pytest.importorskip("minatar")
    package = minatar.Environment("breakout")
    package.seed(4)
    package.reset()
    envs = make("MinAtar/Breakout-v0", 1)
    envs.reset([4])
    for action in np.random.default_rng(0).integers(0, 6, 200):
        step, (reward, over) = envs.step(np.array([action])), package.act(action)
        assert (step.reward[0], step.terminated[0]) == (reward, over)
        np.testing.assert_array_equal(step.observation[0], package.state())
        if over:
            package.reset()


def test_public_names_are_there() -> None:
    assert all(hasattr(factory, name) for name in factory.__all__)
