"""Environments stepped one after the other in this process; imports numpy and gymnasium.

Not `gymnasium.vector.SyncVectorEnv`: that does not say which environment failed, and it is slower. An
environment whose episode ends is reset in the same step, and both its last and its first observation are kept; or,
with `next_step_autoreset`, in the next one, which for this environment only resets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from repertory.environments import saved_spaces
from repertory.environments.deadlines import doing
from repertory.environments.spaces import Encoder, discrete_actions
from repertory.environments.stepping import Array, Flags, Step, Watch, missing_dependency, raised
from repertory.errors import UserError
from repertory.specs import EnvironmentSpec

Env = gym.Env[Any, Any]
_LARGEST = float(np.finfo(np.float32).max)


class OneByOne:
    """A list of environments behind the interface of `Environments`."""

    def __init__(
        self, name: str, build: Callable[[int], Env], count: int, worker: int, *, next_step_autoreset: bool = False
    ) -> None:
        self.count, self._next_step_autoreset = count, next_step_autoreset
        self._over: list[int] = []
        self._name = name
        self._envs: list[Env] = []
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._envs.extend(build(index) for index in range(count))
            self._look(worker)
            undo.pop_all()
        self._always, self._never = constants(count)
        self._steps = [env.step for env in self._envs]

    def _look(self, worker: int) -> None:
        """Reads the spaces, and from a first reset whether there are masks."""
        space = self._envs[0].observation_space
        self._encoder = Encoder(space)
        actions, self._start = discrete_actions(self._name, self._envs[0].action_space)
        self._watch = Watch(worker, self.count, actions)
        masked = "action_mask" in self._reset_one(0, seed=0)[1]
        self.spec = EnvironmentSpec(
            self._encoder.spec, actions, masked, first_action=self._start, space=saved_spaces.write(space)
        )

    def reset(self, seeds: Sequence[int]) -> tuple[Array, Flags | None]:
        """Starts all environments anew, each from its own seed."""
        self._watch.restart(seeds)
        self._over = []
        begun = [self._reset_one(index, seed) for index, seed in enumerate(seeds)]
        return self._stored([observation for observation, _ in begun]), self._masks([info for _, info in begun])

    def step(self, actions: NDArray[np.integer[Any]]) -> Step:
        """Steps all environments; where an episode ends, the next begins."""
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
        if over or (ends and self._next_step_autoreset):
            return self._wait(rewards, ends, observations, infos)
        if ends:
            return self._turn(rewards, ends, seen, observations, infos)
        masks, none = self._masks(infos), self._never
        return Step(self._always, rewards, none, none, observations, masks, none, observations, masks)

    def _wait(
        self, rewards: Array, ends: list[tuple[int, bool, bool]], observations: Array, infos: list[dict[str, Any]]
    ) -> Step:
        """Where an episode ended before, the next has begun; where one ends now, it will in the next step."""
        terminated, truncated, begun = (self._never.copy() for _ in range(3))
        begun[self._over] = True
        for index, over, cut in ends:
            terminated[index], truncated[index] = over, cut
        self._over = [index for index, _, _ in ends]
        self._watch.idled(begun)
        masks = self._masks(infos, terminated)
        return Step(~begun, rewards, terminated, truncated, observations, masks, begun, observations, masks)

    def _turn(
        self,
        rewards: Array,
        ends: list[tuple[int, bool, bool]],
        seen: list[Any],
        observations: Array,
        infos: list[dict[str, Any]],
    ) -> Step:
        """Begins the next episode where one ended."""
        terminated, truncated = self._never.copy(), self._never.copy()
        for index, over, cut in ends:
            terminated[index], truncated[index] = over, cut
        masks = self._masks(infos, terminated)
        for index, _, _ in ends:
            seen[index], infos[index] = self._reset_one(index, None)
        first, first_masks = self._stored(seen), self._masks(infos)
        begun = terminated | truncated
        return Step(self._always, rewards, terminated, truncated, observations, masks, begun, first, first_masks)

    def report_to(self, place: NDArray[np.int64]) -> None:
        """Keep there which environment is being stepped."""
        place[:] = self._watch.place
        self._watch.place = place

    def _reset_one(self, index: int, seed: int | None) -> tuple[Any, dict[str, Any]]:
        self._watch.enter(index)
        try:
            with doing(f"reset() of {self._name}"):
                observation, info = self._envs[index].reset(seed=seed)
        except Exception as error:
            raise self._watch.failure(index, f"{raised(error)} (in reset)") from error
        self._watch.leave()
        return observation, info

    def _stored(self, seen: list[Any]) -> Array:
        """The observations in a new array: who got the last one may keep it."""
        try:
            stored = self._encoder.stack(seen)
        except Exception:
            stored = self._stored_singly(seen)
        self._watch.check_observations(self._encoder.numbers(stored))
        return stored

    def _stored_singly(self, seen: list[Any]) -> Array:
        """The same, slower, to say whose observation it is that does not fit."""
        stored = np.empty((self.count, *self.spec.observation.shape), self.spec.observation.dtype)
        for index, observation in enumerate(seen):
            try:
                stored[index] = self._encoder.one(observation)
            except Exception as error:
                raise self._watch.failure(index, f"returned an observation of {error}") from error
        return stored

    def _masks(self, infos: list[dict[str, Any]], terminal: Flags | None = None) -> Flags | None:
        if not self.spec.masked:
            return None
        over = self._never if terminal is None else terminal
        masks = np.empty((self.count, self.spec.actions), np.bool_)
        for index, info in enumerate(infos):
            masks[index] = self._watch.legal(index, info.get("action_mask"), bool(over[index]))
        return masks

    def render(self) -> NDArray[np.uint8]:
        """A picture of environment 0."""
        try:
            frame = self._envs[0].render()
        except gym.error.DependencyNotInstalled as error:
            raise missing_dependency(self._name, error) from error
        except Exception as error:
            raise self._watch.failure(0, f"{raised(error)} (in render)") from error
        return picture(self._name, frame)

    def close(self) -> None:
        """Closes every environment, whatever the others do."""
        with doing(f"close() of {self._name}"), contextlib.ExitStack() as stack:
            for env in self._envs:
                stack.callback(env.close)


def picture(name: str, frame: Any) -> NDArray[np.uint8]:
    """What `render` returned, if it is a picture."""
    if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3:
        got = f"an array of shape {frame.shape}" if isinstance(frame, np.ndarray) else repr(frame)[:60]
        raise UserError(
            f"{name} cannot be rendered: its render() returned {got}, not height × width × 3; make it with "
            "render=True, and let the environment take render_mode='rgb_array'"
        )
    return frame.astype(np.uint8, copy=False)


def constants(count: int) -> tuple[Flags, Flags]:
    """All true and all false, safe to hand out again and again: they cannot be written."""
    always, never = np.ones(count, np.bool_), np.zeros(count, np.bool_)
    always.flags.writeable = never.flags.writeable = False
    return always, never
