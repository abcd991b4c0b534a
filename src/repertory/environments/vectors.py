"""A Gymnasium vector environment with its autoreset mode normalised; imports numpy and gymnasium.

What the three modes do when an episode ends (https://farama.org/Vector-Autoreset-Mode):

NEXT_STEP: its final observation is returned; the next call ignores its action and only resets it.
SAME_STEP: the next episode's first observation is returned, the final one is in `info["final_obs"]`.
DISABLED:  its final observation is returned; whoever steps must reset it: done here in the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from repertory.environments import saved_spaces
from repertory.environments.deadlines import doing
from repertory.environments.one_by_one import constants, picture
from repertory.environments.spaces import Encoder, discrete_actions
from repertory.environments.stepping import Array, Flags, Step, Watch, raised
from repertory.specs import EnvironmentSpec, ObservationSpec

Vector = VectorEnv[Any, Any, Any]
Info = dict[str, Any]
Seeding = Callable[[Sequence[int]], Any]
"""The form in which a vector environment takes one seed for each of its environments."""


def one_seed(seeds: Sequence[int]) -> int:
    """A single seed for vector environments that take only one; other lists give other seeds."""
    return int(np.random.SeedSequence(list(seeds)).generate_state(1)[0] >> 1)


class Vectorised:
    """One vector environment behind the interface of `Environments`; a reset tells whether it is `masked`."""

    def __init__(
        self,
        name: str,
        env: Vector,
        worker: int,
        *,
        seeding: Seeding = one_seed,
        observation: ObservationSpec | None = None,
        frame_skip: int = 1,
        masked: bool | None = None,
        reuses_arrays: bool = True,
        picture_of: Callable[[Array], Array] | None = None,
    ) -> None:
        self.count = env.num_envs
        self._name, self._env, self._seeding, self._copy = name, env, seeding, reuses_arrays
        self._picture_of = picture_of
        self._mode = env.metadata["autoreset_mode"]
        self._encoder = Encoder(env.single_observation_space)
        actions, self._start = discrete_actions(name, env.single_action_space)
        self._watch = Watch(worker, self.count, actions)
        self._always, self._never = constants(self.count)
        self._ended = self._never
        if masked is None:
            with doing(f"reset() of {name}"):
                _, info = self._call(self._env.reset, seed=self._seeding([0] * self.count))
            masked = "action_mask" in info
        space = saved_spaces.write(env.single_observation_space)
        self.spec = EnvironmentSpec(observation or self._encoder.spec, actions, masked, frame_skip, self._start, space)

    def reset(self, seeds: Sequence[int]) -> tuple[Array, Flags | None]:
        """Starts all environments anew, from these seeds."""
        self._watch.restart(seeds)
        self._ended = self._never
        with doing(f"reset() of {self._name}"):
            observations, info = self._call(self._env.reset, seed=self._seeding(seeds))
        return self._stored(observations), self._masks(info, self._always, self._never)

    def step(self, actions: NDArray[np.integer[Any]]) -> Step:
        """Steps all environments, or in NEXT_STEP mode resets those that had ended."""
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

    def report_to(self, place: NDArray[np.int64]) -> None:
        """Keep there that the vector is being stepped; it does not tell which environment: 0 stands for all."""
        place[:] = self._watch.place
        self._watch.place = place

    def render(self) -> NDArray[np.uint8]:
        """A picture of environment 0: drawn from its latest observation where it draws none itself."""
        if self._picture_of is not None:
            return picture(self._name, self._picture_of(self._latest[0]))
        frames = self._call(self._env.render)
        return picture(self._name, None if frames is None else frames[0])

    def close(self) -> None:
        """Closes the vector environment."""
        self._env.close()
