"""The evaluator: whole greedy episodes with fixed weights, in environments of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent
from repertory.experience.environments import Environments


class Episodes(NamedTuple):
    """Returns and lengths of whole episodes."""

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]

    def summary(self) -> dict[str, Any]:
        """Mean, spread and the single episodes, as JSON values."""
        return {
            "mean": float(self.returns.mean()),
            "std": float(self.returns.std()),
            "episodes": len(self.returns),
            "returns": self.returns.tolist(),
            "lengths": self.lengths.tolist(),
        }


class Evaluator:
    """Plays one episode in each environment; those that end early wait for the rest."""

    def __init__(self, agent: Agent, environments: Environments, *, max_steps: int = 100_000) -> None:
        self.agent, self.environments, self.max_steps = agent, environments, max_steps

    def evaluate(self, weights: Any, seeds: list[int], watch: Callable[[], None] = lambda: None) -> Episodes:
        """Each environment's first episode from its seed; `watch` is called before every step."""
        observation, mask = self.environments.reset(seeds)
        count = self.environments.count
        returns, lengths = np.zeros(count), np.zeros(count, np.int64)
        playing = np.ones(count, bool)
        for _ in range(self.max_steps):
            watch()
            actions = np.asarray(self.agent.act(weights, observation, mask, None))
            result = self.environments.step(actions)
            counted = playing & result.stepped
            returns += np.where(counted, result.reward, 0.0)
            lengths += counted
            playing &= ~(counted & (result.terminated | result.truncated))
            if not playing.any():
                break
            observation, mask = result.onward()
        return Episodes(returns, lengths)
