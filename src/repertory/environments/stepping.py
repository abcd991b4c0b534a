"""The result of a step of several environments, and the checks that name an environment that fails."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from repertory.errors import EnvironmentFailure, UserError, missing_extra
from repertory.specs import EnvironmentSpec

Array = NDArray[Any]
Flags = NDArray[np.bool_]
FEW = 64
"""Below this many numbers, summing them is faster than `isfinite`; a sum is finite only if all of them are."""


class Step(NamedTuple):
    """The result of one step of E environments, the same for every autoreset mode; every array begins with [E].

    Arrays may be shared between fields and are never overwritten later; treat them as read-only.
    """

    stepped: Flags
    """Environments in which a real transition took place."""
    reward: NDArray[np.float32]
    terminated: Flags
    truncated: Flags
    observation: Array
    """[E, *seen_shape] after the step, the final one if it ended an episode; valid where stepped."""
    mask: Flags | None
    """[E, A] legal actions in `observation`; all true where it is terminal and has none."""
    begun: Flags
    """Environments in which a new episode began."""
    first: Array
    """[E, *seen_shape] its first observation, valid where begun; may be `observation` itself."""
    first_mask: Flags | None
    """[E, A] legal actions in `first`."""

    @property
    def no_boundary(self) -> bool:
        """All were stepped and no episode ended or began: then these two are one array."""
        return self.begun is self.terminated

    def onward(self) -> tuple[Array, Flags | None]:
        """Observations and masks for the next actions: the first ones where an episode began."""
        if self.first is self.observation or not np.count_nonzero(self.begun):
            return self.observation, self.mask
        rows = self.begun.reshape(-1, *[1] * (self.first.ndim - 1))
        observation = np.where(rows, self.first, self.observation)
        if self.mask is None or self.first_mask is None:
            return observation, None
        return observation, np.where(self.begun[:, None], self.first_mask, self.mask)


class Environments(Protocol):
    """E environments of one kind, stepped together; an episode that ends is followed by another."""

    spec: EnvironmentSpec
    count: int

    def reset(self, seeds: Sequence[int]) -> tuple[Array, Flags | None]:
        """Resets each environment with its own seed: observations [E, *seen_shape] and masks [E, A]."""

    def step(self, actions: NDArray[np.integer[Any]]) -> Step:
        """Actions [E] are in 0..A-1."""

    def report_to(self, place: NDArray[np.int64]) -> None:
        """Write there which environment is being stepped (-1 = none), its seed, step and worker, in case it hangs."""

    def render(self) -> NDArray[np.uint8]:
        """A picture of environment 0 (height × width × 3)."""

    def close(self) -> None: ...


class Watch:
    """Checks what environments return; an error names the environment, its seed and its step."""

    def __init__(self, worker: int, count: int, actions: int) -> None:
        self._worker, self._count, self._actions = worker, count, actions
        self.place: NDArray[np.int64] = np.full(4, -1)
        self.restart([0] * count)

    def enter(self, index: int) -> None:
        place = self.place
        place[1] = self._seeds[index]
        place[2] = self.calls
        place[3] = self._worker
        place[0] = index

    def leave(self) -> None:
        self.place[0] = -1

    def restart(self, seeds: Sequence[int]) -> None:
        if len(seeds) != self._count:
            raise ValueError(f"{len(seeds)} seeds for {self._count} environments")
        self._seeds = list(seeds)
        self.calls = 0
        self._idle = np.zeros(self._count, np.int64)

    def idled(self, which: Flags) -> None:
        """In this call, `which` environments were only reset."""
        self._idle += which

    def failure(self, index: int, what: str) -> EnvironmentFailure:
        """Names the environment, and how to get there again: seed, and steps since."""
        step = self.calls - int(self._idle[index])
        label = f"environment {index} of worker {self._worker} (seed {self._seeds[index]}, step {step})"
        return EnvironmentFailure(f"{label} {what}")

    def failure_of_all(self, what: str) -> EnvironmentFailure:
        """Where a vector environment does not say which one failed."""
        seeds = ", ".join(map(str, self._seeds[:3])) + (", ..." if self._count > 3 else "")
        label = f"the vector environment of worker {self._worker} (seeds {seeds}, step {self.calls})"
        return EnvironmentFailure(f"{label} {what}")

    def check_observations(self, observations: Array) -> None:
        """No NaN and no infinity, in any of [E, ...]."""
        if observations.dtype.kind != "f":
            return
        if observations.size < FEW and math.isfinite(sum(observations.ravel().tolist())):
            return
        finite = np.isfinite(observations)
        if np.count_nonzero(finite) == finite.size:
            return
        index, *place = np.argwhere(~finite)[0].tolist()
        value = observations[(index, *place)]
        raise self.failure(index, f"returned an observation that is not finite: {value} at {place}")

    def check_rewards(self, rewards: NDArray[np.float32]) -> None:
        finite = np.isfinite(rewards)
        if np.count_nonzero(finite) < self._count:
            index = int(np.argmin(finite))
            raise self.failure(index, f"returned a reward that is not finite: {rewards[index]}")

    def legal(self, index: int, mask: Any, terminal: bool) -> Flags:
        """One environment's mask [A], checked; only in a terminal state it may forbid all actions."""
        if mask is None:
            raise self.failure(index, "returned no action_mask in its info, although its first reset did")
        legal = np.asarray(mask)
        if legal.shape != (self._actions,):
            shapes = f"of shape {legal.shape} where {(self._actions,)} is expected"
            raise self.failure(index, f"returned an action_mask {shapes}")
        legal = legal.astype(np.bool_)
        if legal.any():
            return legal
        if not terminal:
            raise self.failure(index, "returned an action_mask that forbids every action, yet not at an end")
        # All true, so that a maximum over the legal actions stays finite.
        return np.ones(self._actions, np.bool_)


def raised(error: Exception) -> str:
    return f"raised {type(error).__name__}: {error}"


def missing_dependency(name: str, error: Exception) -> UserError:
    """The sentence for a missing package: our extra if it is in one, else Gymnasium's own advice."""
    if re.search(r"box2d|classic[-_]control|toy[-_]text|pygame", str(error), re.IGNORECASE):
        return missing_extra(name, "video")
    return UserError(f"{name} needs a package that is not installed: {error}")
