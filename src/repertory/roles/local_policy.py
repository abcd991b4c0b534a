"""A policy that answers at once, with a copy of the weights of its own; a small one without starting JAX at all."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent
from repertory.agents.light import ROWS, LightValues
from repertory.roles.ports import Weights


class LocalPolicy:
    """Greedy actions by weights pulled every `pull_period` answers; a noisy network draws fresh noise each time."""

    def __init__(
        self, agent: Agent, weights: Weights, *, seed: int, rank: int, pull_period: int = 1, valued: bool = False
    ) -> None:
        self.agent, self.weights, self.pull_period, self.valued = agent, weights, pull_period, valued
        self.version = -1
        self.calls = 0
        self.values: NDArray[np.float32] | None = None
        self._weights: Any = None
        self._copy: Any = None
        self._light: LightValues | None = None
        self._until_pull = 0
        word = np.random.SeedSequence([seed, rank, 3]).generate_state(1)[0]
        self._key = np.array([word, 0], np.uint32)

    def pull(self) -> None:
        """Copy the newest weights."""
        version, weights = self.weights.latest()
        if version != self.version:
            self.version, self._copy, self._light = version, None, None
            self._weights = weights

    def submit(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """Remember the question."""
        self._question = (observation, mask)

    def poll(self) -> NDArray[np.integer[Any]]:
        """Answer it."""
        if self._until_pull <= 0:
            self.pull()
            self._until_pull = self.pull_period
        self._until_pull -= 1
        key = None
        if self.agent.noisy:
            self.calls += 1
            key = self._key.copy()
            key[1] = self.calls
        values = self._values(*self._question, key)
        self.values = values if self.valued else None
        return best(values)

    def _values(
        self, observation: NDArray[Any], mask: NDArray[np.bool_] | None, key: NDArray[np.uint32] | None
    ) -> NDArray[np.float32]:
        if self.agent.light is not None and len(observation) <= ROWS:
            if self._light is None:
                self._light = self.agent.light(np.asarray(self._weights))
            return self._light(observation, mask)
        if self._copy is None:
            self._copy = jnp.asarray(self._weights)
        return np.asarray(self.agent.values(self._copy, observation, mask, key))

    def state(self) -> dict[str, int]:
        """How many answers were given: the noise's position."""
        return {"calls": self.calls}

    def load_state(self, state: dict[str, int]) -> None:
        """Continue the noise where it was."""
        self.calls = int(state["calls"])


def best(values: NDArray[np.float32]) -> NDArray[np.integer[Any]]:
    """The first of the highest values in each row; of a lone row without giving up the interpreter's lock."""
    if len(values) > 1:
        return np.asarray(values.argmax(axis=-1))
    row = values[0].tolist()
    return np.array([row.index(max(row))])
