"""Environments stepped in this process: one after the other, or by a Gymnasium vector environment.

Not `gymnasium.vector.SyncVectorEnv`: that does not say which environment failed, and it is slower. An environment whose
episode ends is reset in the same step, and both its last and its first observation are returned; or, with
`next_step_autoreset`, in the next step, which for this environment only resets.

The autoreset mode of a vector environment is normalised. What the three modes do when an episode ends
(https://farama.org/Vector-Autoreset-Mode):

NEXT_STEP: its final observation is returned; the next call ignores its action and only resets it.
SAME_STEP: the next episode's first observation is returned, the final one is in `info["final_obs"]`.
DISABLED:  its final observation is returned; the caller must reset it: done here in the same step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from repertory.environments.deadlines import doing
from repertory.environments.spaces import Encoder, discrete_actions, write_space
from repertory.environments.stepping import Array, Flags, Step, Watch, missing_dependency, raised
from repertory.errors import UserError
from repertory.specs import EnvironmentSpec, ObservationSpec

Env = gym.Env[Any, Any]
Vector = VectorEnv[Any, Any, Any]
Info = dict[str, Any]
_LARGEST = float(np.finfo(np.float32).max)


class _Checked:
    """What both ways of stepping share: spaces, checks, and flags that are all true or all false."""

    spec: EnvironmentSpec

    def __init__(self, name: str, count: int, worker: int, space: gym.Space[Any], actions: gym.Space[Any]) -> None:
        self.count, self._name, self._space = count, name, space
        self._encoder = Encoder(space)
        self._actions, self._start = discrete_actions(name, actions)
        self._watch = Watch(worker, count, self._actions)
        # Read-only, for they are returned again and again.
        self._always, self._never = np.ones(count, np.bool_), np.zeros(count, np.bool_)
        self._always.flags.writeable = self._never.flags.writeable = False

    def _describe(self, masked: bool, observation: ObservationSpec | None = None, frame_skip: int = 1) -> None:
        observation, space = observation or self._encoder.spec, write_space(self._space)
        self.spec = EnvironmentSpec(observation, self._actions, masked, frame_skip, self._start, space)

    def report_to(self, place: NDArray[np.int64]) -> None:
        """Write there which environment is being stepped; a vector environment does not tell which: 0 means all."""
        place[:] = self._watch.place
        self._watch.place = place


class OneByOne(_Checked):
    """A list of environments behind the interface of `Environments`."""

    def __init__(
        self, name: str, build: Callable[[int], Env], count: int, worker: int, *, next_step_autoreset: bool = False
    ) -> None:
        self._next_step_autoreset = next_step_autoreset
        self._name, self._over, self._envs = name, list[int](), list[Env]()
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._envs.extend(build(index) for index in range(count))
            super().__init__(name, count, worker, self._envs[0].observation_space, self._envs[0].action_space)
            self._describe(masked="action_mask" in self._reset_one(0, seed=0)[1])
            undo.pop_all()
        self._steps = [env.step for env in self._envs]

    def reset(self, seeds: Sequence[int]) -> tuple[Array, Flags | None]:
        self._watch.restart(seeds)
        self._over = []
        begun = [self._reset_one(index, seed) for index, seed in enumerate(seeds)]
        return self._stored([observation for observation, _ in begun]), self._masks([info for _, info in begun])

    def step(self, actions: NDArray[np.integer[Any]]) -> Step:
        watch = self._watch
        watch.calls += 1
        seen, infos, ends = [], [], []
        rewards = np.empty(self.count, np.float32)
        if self._start:
            actions = actions + self._start
        over = self._over
        for index, (step, action) in enumerate(zip(self._steps, actions.tolist(), strict=True)):
            if index in over:
                first, info = self._reset_one(index, None)
                rewards[index] = 0.0
                seen.append(first)
                infos.append(info)
                continue
            watch.enter(index)
            try:
                observation, reward, terminated, truncated, info = step(action)
            except Exception as error:
                raise watch.failure(index, raised(error)) from error
            try:
                rewards[index] = reward
                if not -_LARGEST <= reward <= _LARGEST:  # type: ignore[operator]  # any number will do
                    raise watch.failure(index, f"returned a reward that is not finite: {reward}")
            except (TypeError, ValueError) as error:
                raise watch.failure(index, f"returned a reward that is not a number: {reward!r}") from error
            seen.append(observation)
            infos.append(info)
            if terminated or truncated:
                ends.append((index, bool(terminated), bool(truncated)))
        watch.leave()
        observations = self._stored(seen)
        if over or ends:
            return self._boundary(rewards, ends, seen, observations, infos)
        masks, none = self._masks(infos), self._never
        return Step(self._always, rewards, none, none, observations, masks, none, observations, masks)

    def _boundary(
        self,
        rewards: Array,
        ends: list[tuple[int, bool, bool]],
        seen: list[Any],
        observations: Array,
        infos: list[Info],
    ) -> Step:
        """Where an episode ends, the next begins: at once, or with `next_step_autoreset` in the next step."""
        terminated, truncated, begun = (self._never.copy() for _ in range(3))
        for index, terminal, cut in ends:
            terminated[index], truncated[index] = terminal, cut
        if self._next_step_autoreset:
            begun[self._over] = True
            self._over = [index for index, _, _ in ends]
            self._watch.idled(begun)
        masks = self._masks(infos, terminated)
        if self._next_step_autoreset:
            return Step(~begun, rewards, terminated, truncated, observations, masks, begun, observations, masks)
        for index, _, _ in ends:
            seen[index], infos[index] = self._reset_one(index, None)
        first, first_masks = self._stored(seen), self._masks(infos)
        begun = terminated | truncated
        return Step(self._always, rewards, terminated, truncated, observations, masks, begun, first, first_masks)

    def _reset_one(self, index: int, seed: int | None) -> tuple[Any, Info]:
        self._watch.enter(index)
        try:
            with doing(f"reset() of {self._name}"):
                observation, info = self._envs[index].reset(seed=seed)
        except Exception as error:
            raise self._watch.failure(index, f"{raised(error)} (in reset)") from error
        self._watch.leave()
        return observation, info

    def _stored(self, seen: list[Any]) -> Array:
        """The observations in a new array, so that the caller may keep it."""
        try:
            stored = self._encoder.stack(seen)
        except Exception:
            stored = self._stored_singly(seen)
        self._watch.check_observations(self._encoder.numbers(stored))
        return stored

    def _stored_singly(self, seen: list[Any]) -> Array:
        """The same, slower, to say which environment's observation does not fit."""
        stored = np.empty((self.count, *self.spec.observation.shape), self.spec.observation.dtype)
        for index, observation in enumerate(seen):
            try:
                stored[index] = self._encoder.one(observation)
            except Exception as error:
                raise self._watch.failure(index, f"returned an observation of {error}") from error
        return stored

    def _masks(self, infos: list[Info], terminal: Flags | None = None) -> Flags | None:
        if not self.spec.masked:
            return None
        over = self._never if terminal is None else terminal
        masks = np.empty((self.count, self.spec.actions), np.bool_)
        for index, info in enumerate(infos):
            masks[index] = self._watch.legal(index, info.get("action_mask"), bool(over[index]))
        return masks

    def render(self) -> NDArray[np.uint8]:
        try:
            frame = self._envs[0].render()
        except gym.error.DependencyNotInstalled as error:
            raise missing_dependency(self._name, error) from error
        except Exception as error:
            raise self._watch.failure(0, f"{raised(error)} (in render)") from error
        return picture(self._name, frame)

    def close(self) -> None:
        """Closes every environment, also if another one's `close` raises."""
        with doing(f"close() of {self._name}"), contextlib.ExitStack() as stack:
            for env in self._envs:
                stack.callback(env.close)


def picture(name: str, frame: Any) -> NDArray[np.uint8]:
    if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3:
        got = f"an array of shape {frame.shape}" if isinstance(frame, np.ndarray) else repr(frame)[:60]
        raise UserError(
            f"{name} cannot be rendered: its render() returned {got}, not height × width × 3; make it with "
            "render=True, and let the environment take render_mode='rgb_array'"
        )
    return frame.astype(np.uint8, copy=False)


def one_seed(seeds: Sequence[int]) -> int:
    """A single seed for vector environments that take only one; different lists give different seeds."""
    return int(np.random.SeedSequence(list(seeds)).generate_state(1)[0] >> 1)


class Vectorised(_Checked):
    """One vector environment behind the interface of `Environments`; if `masked` is None, a reset tells."""

    def __init__(
        self,
        name: str,
        env: Vector,
        worker: int,
        *,
        seeding: Callable[[Sequence[int]], Any] = one_seed,
        observation: ObservationSpec | None = None,
        frame_skip: int = 1,
        masked: bool | None = None,
        reuses_arrays: bool = True,
        picture_of: Callable[[Array], Array] | None = None,
    ) -> None:
        """`seeding` gives the form in which `env` takes one seed for each of its environments."""
        super().__init__(name, env.num_envs, worker, env.single_observation_space, env.single_action_space)
        self._env, self._seeding, self._copy, self._picture_of = env, seeding, reuses_arrays, picture_of
        self._mode, self._ended = env.metadata["autoreset_mode"], self._never
        if masked is None:
            masked = "action_mask" in self._reset_all([0] * self.count)[1]
        self._describe(masked, observation, frame_skip)

    def reset(self, seeds: Sequence[int]) -> tuple[Array, Flags | None]:
        self._watch.restart(seeds)
        self._ended = self._never
        observations, info = self._reset_all(seeds)
        return self._stored(observations), self._masks(info, self._always, self._never)

    def _reset_all(self, seeds: Sequence[int]) -> Any:
        with doing(f"reset() of {self._name}"):
            return self._call(self._env.reset, seed=self._seeding(seeds))

    def step(self, actions: NDArray[np.integer[Any]]) -> Step:
        self._watch.calls += 1
        if self._start:
            actions = actions + self._start
        observations, rewards, terminated, truncated, info = self._call(self._env.step, actions)
        reward = np.array(rewards, np.float32)
        self._watch.check_rewards(reward)
        ends = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        stored = self._stored(observations)
        if self._mode is AutoresetMode.NEXT_STEP:
            return self._next_step(reward, *ends, stored, info)
        if not (ends[0] | ends[1]).any():
            masks = self._masks(info, self._always, self._never)
            return Step(self._always, reward, *ends, stored, masks, self._never, stored, masks)
        if self._mode is AutoresetMode.SAME_STEP:
            return self._same_step(reward, *ends, stored, info)
        return self._reset_ended(reward, *ends, stored, info)

    def _next_step(self, reward: Array, terminated: Flags, truncated: Flags, stored: Array, info: Info) -> Step:
        begun, self._ended = self._ended, terminated | truncated
        if begun.any():
            self._watch.idled(begun)
        masks = self._masks(info, self._always, terminated)
        return Step(~begun, reward, terminated, truncated, stored, masks, begun, stored, masks)

    def _same_step(self, reward: Array, terminated: Flags, truncated: Flags, first: Array, info: Info) -> Step:
        ended = terminated | truncated
        observations = first.copy()
        for index in np.flatnonzero(ended).tolist():
            self._put_final(index, observations, info.get("final_obs"))
        self._watch.check_observations(self._encoder.numbers(observations))
        first_masks = self._masks(info, self._always, self._never)
        masks = self._masks(info.get("final_info", {}), ended, terminated)
        if masks is not None and first_masks is not None:
            masks = np.where(ended[:, None], masks, first_masks)
        return Step(self._always, reward, terminated, truncated, observations, masks, ended, first, first_masks)

    def _reset_ended(self, reward: Array, terminated: Flags, truncated: Flags, stored: Array, info: Info) -> Step:
        ended = terminated | truncated
        masks = self._masks(info, self._always, terminated)
        # A copy of `ended`: Gymnasium pops the mask and may keep it.
        observations, info = self._call(self._env.reset, options={"reset_mask": ended.copy()})
        first = self._stored(observations)
        first_masks = self._masks(info, ended, self._never)
        return Step(self._always, reward, terminated, truncated, stored, masks, ended, first, first_masks)

    def _put_final(self, index: int, observations: Array, finals: Any) -> None:
        if finals is None or finals[index] is None:
            raise self._watch.failure(index, "ended an episode without final_obs in its info")
        try:
            observations[index] = self._encoder.one(finals[index])
        except Exception as error:
            raise self._watch.failure(index, f"returned a final observation of {error}") from error

    def _stored(self, observations: Any) -> Array:
        try:
            stored = self._encoder.many(observations, self.count, self._copy)
        except Exception as error:
            raise self._watch.failure_of_all(f"returned observations of {error}") from error
        self._watch.check_observations(self._encoder.numbers(stored))
        self._latest = stored
        return stored

    def _masks(self, info: Info, needed: Flags, terminal: Flags) -> Flags | None:
        """The masks [E, A] of the environments that need one; the others' rows are all true."""
        if not self.spec.masked:
            return None
        given, present = info.get("action_mask"), info.get("_action_mask", self._always)
        masks = np.ones((self.count, self.spec.actions), np.bool_)
        for index in np.flatnonzero(needed).tolist():
            mask = given[index] if given is not None and present[index] else None
            masks[index] = self._watch.legal(index, mask, bool(terminal[index]))
        return masks

    def _call(self, what: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._watch.enter(0)
        try:
            return what(*args, **kwargs)
        except Exception as error:
            raise self._watch.failure_of_all(raised(error)) from error
        finally:
            self._watch.leave()

    def render(self) -> NDArray[np.uint8]:
        if self._picture_of is not None:
            return picture(self._name, self._picture_of(self._latest[0]))
        frames = self._call(self._env.render)
        return picture(self._name, None if frames is None else frames[0])

    def close(self) -> None:
        self._env.close()
