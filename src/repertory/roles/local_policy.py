"""A policy that answers at once, from weights on a board in the same process; imports JAX through the agent only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent
from repertory.roles.ports import Weights


class LocalPolicy:
    """Greedy actions by the newest weights; a noisy network draws fresh noise for every call."""

    def __init__(self, agent: Agent, weights: Weights, *, seed: int, rank: int) -> None:
        self.agent, self.weights = agent, weights
        self.version = 0
        self.calls = 0
        word = np.random.SeedSequence([seed, rank, 3]).generate_state(1)[0]
        self._key = np.array([word, 0], np.uint32)

    def submit(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """Remember the question."""
        self._question = (observation, mask)

    def poll(self) -> NDArray[np.integer[Any]]:
        """Answer it."""
        self.version, weights = self.weights.latest()
        key = None
        if self.agent.noisy:
            self.calls += 1
            key = self._key.copy()
            key[1] = self.calls
        observation, mask = self._question
        return np.asarray(self.agent.act(weights, observation, mask, key))

    def state(self) -> dict[str, int]:
        """How many answers were given: the noise's position."""
        return {"calls": self.calls}

    def load_state(self, state: dict[str, int]) -> None:
        """Continue the noise where it was."""
        self.calls = int(state["calls"])
