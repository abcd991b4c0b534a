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
        self._asks = False
        self._explore: Any = False
        self._chance: NDArray[np.integer[Any]] | None = None

    def request(
        self, observation: NDArray[Any], mask: NDArray[np.bool_] | None, rates: float | NDArray[np.float64]
    ) -> None:
        """Draw where chance decides, by one ε for all or by `rates` [E], and what; ask the policy for the rest.

        Of a single environment by plain numbers, which are several times faster than arrays of one.
        """
        rng, count = self.rng, len(observation)
        chances: Any
        if count == 1:
            self._explore = chances = rng.random() < rates
        else:
            self._explore = rng.random(count) < rates
            chances = np.count_nonzero(self._explore)
        self._chance = random_actions(rng, count, self.actions, mask) if chances else None
        self._asks = chances < count or self.policy.stores_values
        if self._asks:
            self.policy.submit(observation, mask)
        self.pending = True

    def reply(self) -> Move | None:
        """The actions, or None while the policy has not replied."""
        policy, actions = self.policy, self._chance
        if self._asks:
            greedy = policy.poll()
            if greedy is None:
                return None
            actions = greedy if actions is None else np.where(self._explore, actions, greedy)
        assert actions is not None
        self.pending = False
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
