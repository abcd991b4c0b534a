"""ε-greedy choice over whatever a policy answers; numpy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def linear(start: float, end: float, steps: int, env_steps: int) -> float:
    """A value that moves linearly from `start` to `end` over `steps` env steps and stays there."""
    if steps <= 0 or env_steps >= steps:
        return end
    return start + (end - start) * env_steps / steps


def random_actions(
    rng: np.random.Generator, count: int, actions: int, mask: NDArray[np.bool_] | None
) -> NDArray[np.int64]:
    """Uniformly random legal actions."""
    if mask is None:
        return rng.integers(0, actions, count)
    return np.asarray(np.argmax(np.where(mask, rng.random((count, actions)), -1.0), axis=1))


def generator(*key: int) -> np.random.Generator:
    """An independent stream for each key."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


def ladder(base: float, exponent: float, rank: int, actors: int) -> float:
    """ε of one of many actors, fixed (Horgan et al. 2018): base ** (1 + exponent · i / (N - 1))."""
    return float(base ** (1.0 + exponent * rank / max(actors - 1, 1)))
