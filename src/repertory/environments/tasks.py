"""This package's own environments, to measure and test with.

`SlowCartPole` is CartPole-v1 in which a step takes time, as it does in a simulator. `latency_s` is slept, as while
waiting for a reply: any number of environments can wait on one core. `busy_s` is computed, in CPU time of the thread
that steps: two environments on one core take twice as long. The game is the same, so evaluations use neither
(`SCORED`). There is no vector implementation: each environment waits by itself.

`MaskedCartPole` hides the velocities, which two observations in a row give away: a memory of a few steps is enough.
`TMaze` shows once what decides the episode at its end: the corridor's length is how long it must be remembered.
The maze is that of Bakker, https://papers.nips.cc/paper/1953-reinforcement-learning-with-long-short-term-memory.
"""

from __future__ import annotations

import math
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

from repertory.environments import SLOW_CARTPOLE, T_MAZE
from repertory.errors import UserError

SCORED = {"latency_s": 0.0, "busy_s": 0.0}
"""The options for evaluations."""


class SlowCartPole(CartPoleEnv):
    """A step first sleeps until `latency_s` after it was called, then computes for `busy_s`."""

    def __init__(
        self,
        latency_s: float = 0.005,
        busy_s: float = 0.0,
        sutton_barto_reward: bool = False,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(sutton_barto_reward, render_mode)
        self._latency_s = _duration("latency_s", latency_s)
        self._busy_s = _duration("busy_s", busy_s)

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        called = time.perf_counter()
        result: tuple[NDArray[Any], float, bool, bool, dict[str, Any]] = super().step(action)  # type: ignore[no-untyped-call]
        _sleep_until(called + self._latency_s)
        _compute(self._busy_s)
        return result


def _duration(option: str, value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise UserError(f"{SLOW_CARTPOLE} needs a finite number of seconds, 0 or more, as {option}, not {value!r}")
    return float(value)


def _sleep_until(deadline: float) -> None:
    # Again, where a sleep was cut short: never less than `latency_s`.
    while (left := deadline - time.perf_counter()) > 0:
        time.sleep(left)


def _compute(seconds: float) -> None:
    """Occupies the core and the interpreter's lock, as a game in Python would."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


FORWARD, LEFT, RIGHT = range(3)
_SHOWN = [0, 2]
"""Cart position and pole angle, in CartPole's observation."""
_BUMP = -0.02


class MaskedCartPole(CartPoleEnv):
    """CartPole-v1 with only the cart's position and the pole's angle as observation."""

    def __init__(self, sutton_barto_reward: bool = False, render_mode: str | None = None) -> None:
        super().__init__(sutton_barto_reward, render_mode)
        whole = self.observation_space
        assert isinstance(whole, spaces.Box)
        self.observation_space = spaces.Box(whole.low[_SHOWN], whole.high[_SHOWN], dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return observation[_SHOWN], info

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]
        return observation[_SHOWN], reward, terminated, truncated, info


class TMaze(gym.Env[NDArray[np.float32], np.int64]):
    """A corridor of `length` steps forward to a junction, where the goal is to the left or to the right.

    An observation is [goal is left, goal is right, at the junction]. The goal is in the first one only: after it, even
    at the start, it must be remembered; in the corridor all three are 0. Actions are forward, left and right. The right
    turn at the junction gives 1, the wrong one -1, and both end the episode: without memory no more than 0 can be
    expected (Bakker's 4 and -0.1 reward a guess). A step forward gives 0; bumping into a wall, with a turn in the
    corridor or forward at the junction, costs 0.02 and moves nothing.

    The shortest episode takes `length` + 1 steps, and all are truncated after 100: a `length` of 100 or more needs
    `max_episode_steps` too.
    """

    def __init__(self, length: int = 10) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._length = _steps(length)
        self._place, self._goal = 0, LEFT

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._place, self._goal = 0, int(self.np_random.integers(LEFT, RIGHT + 1))
        return np.array([self._goal == LEFT, self._goal == RIGHT, False], np.float32), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is no action of {T_MAZE}"
        at_junction, turns = self._place == self._length, action != FORWARD
        ends, reward = at_junction and bool(turns), 0.0
        if ends:
            reward = 1.0 if action == self._goal else -1.0
        elif at_junction or turns:
            reward = _BUMP
        else:
            self._place += 1
        return np.array([False, False, self._place == self._length], np.float32), reward, ends, False, {}


def _steps(length: Any) -> int:
    if not isinstance(length, int) or length < 2:
        raise UserError(f"{T_MAZE} needs a whole number, 2 or more, as length, not {length!r}")
    return length
