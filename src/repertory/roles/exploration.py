"""ε-greedy choice over whatever a policy answers; numpy only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from repertory.roles.ports import Policy


class Move(NamedTuple):
    """Actions [E] for one step, the version of the weights that chose them, and what is stored beside them [k, E]."""

    actions: NDArray[np.integer[Any]]
    version: int
    extras: NDArray[np.float32] | None


class EpsilonGreedy:
    """Actions for the environments of one or several actors that share a policy and a random stream.

    The policy is not asked where chance decides in every environment, unless it stores values.
    """

    def __init__(self, policy: Policy, rng: np.random.Generator, actions: int) -> None:
        self.policy, self.rng, self.actions = policy, rng, actions
        self.pending = False
        self._explore: Any = None
        self._chance: NDArray[np.integer[Any]] | None = None

    def choose(
        self, observation: NDArray[Any], mask: NDArray[np.bool_] | None, rates: float | NDArray[np.float64]
    ) -> Move | None:
        """The actions, where chance decides by one ε for all or by `rates` [E]; None = pending: the policy was asked.

        A single environment goes by plain numbers, which are several times faster than arrays of one.
        """
        rng, policy, count = self.rng, self.policy, len(observation)
        explore: Any = rng.random() < rates if count == 1 else rng.random(count) < rates
        chances = explore if count == 1 else np.count_nonzero(explore)
        chance = random_actions(rng, count, self.actions, mask) if chances else None
        if chance is not None and chances == count and not policy.stores_values:
            return Move(chance, policy.version, policy.extras(chance))
        policy.submit(observation, mask)
        self._explore, self._chance = explore, chance
        return self.poll()

    def poll(self) -> Move | None:
        """The actions, or None while the policy has not replied."""
        policy, chance = self.policy, self._chance
        actions = policy.poll()
        self.pending = actions is None
        if actions is None:
            return None
        if chance is not None:
            actions = np.where(self._explore, chance, actions)
        return Move(actions, policy.version, policy.extras(actions))


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
