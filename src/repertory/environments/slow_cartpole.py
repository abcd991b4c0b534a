"""CartPole-v1 in which a step takes time, as it does in a simulator; imports gymnasium and our errors.

For measuring what waiting costs and what more actors give. `latency_s` passes asleep, as for an answer from
elsewhere: any number of environments can wait on one core. `busy_s` is computed, in CPU time of the thread that steps:
two environments on one core take twice as long. The game is the same, so a score needs neither (`SCORED`). There is no
vector implementation: each environment waits by itself.
"""

from __future__ import annotations

import math
import time
from typing import Any

from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

from repertory.environments.registration import SLOW_CARTPOLE
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
        """CartPole's step, later."""
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
    # Again, where a sleep was cut short: never less than was asked for.
    while (left := deadline - time.perf_counter()) > 0:
        time.sleep(left)


def _compute(seconds: float) -> None:
    """Holds the core, and the interpreter's lock, as a game in Python would."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
