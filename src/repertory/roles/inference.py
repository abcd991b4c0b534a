"""What an agent says to observations, with weights that were given to it; small networks without starting JAX.

Two kinds: the best action by value (the DQN family), and one sampled from the policy (actor-critic agents).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent
from repertory.agents.strategy import ILLEGAL, NumpyForward
from repertory.channels.mailbox import InferenceReply, InferenceRequest


class CachedPasses(NamedTuple):
    """The layers that answered, and the cached activations of each reply."""

    layers: Any
    passes: list[Any]


class GreedyActions:
    """The best action by value."""

    def __init__(self, agent: Agent) -> None:
        self._rows = Rows(agent)

    def load(self, weights: Any) -> None:
        """Take these weights from now on."""
        self._rows.load(weights)

    def warm_up(self, request: InferenceRequest) -> None:
        """Compile what answers such a request."""
        self._rows(request)

    def reply(self, request: InferenceRequest) -> InferenceReply:
        """The first of the best in each row."""
        rows, state = self._rows(request)
        return InferenceReply(best(rows), None, state)


class SampledActions:
    """Actions sampled from the policy, and the logarithms of their probabilities."""

    def __init__(self, agent: Agent, rng: np.random.Generator, *, caches: bool = False) -> None:
        self._rows, self.rng = Rows(agent, caches=caches), rng

    def load(self, weights: Any) -> None:
        """Take these weights from now on."""
        self._rows.load(weights)

    def cached(self) -> CachedPasses | None:
        """Layers and forward passes since they were last dropped."""
        return self._rows.cached

    def drop_cached(self) -> None:
        """Forward passes so far are of no use any more."""
        self._rows.cached = None

    def warm_up(self, request: InferenceRequest) -> None:
        """Compile what answers such a request; samples nothing."""
        self._rows(request)
        self.drop_cached()

    def reply(self, request: InferenceRequest) -> InferenceReply:
        """By Gumbel's trick: the highest of preferences with noise is a sample of their softmax."""
        rows, state = self._rows(request)
        preferences = rows[:, :-1]
        noise = -np.log(-np.log(np.maximum(self.rng.random(preferences.shape, np.float32), 1e-20)))
        action = best(preferences + noise)
        return InferenceReply(action, log_probabilities(preferences, action)[None], state)


class Rows:
    """The network's outputs: values, or preferences and a value. Activations are cached if asked and if it pays."""

    def __init__(self, agent: Agent, *, caches: bool = False) -> None:
        self.agent, self.caches = agent, caches and agent.cached_forward is not None
        self.cached: CachedPasses | None = None
        self._weights: Any = None
        self._numpy: NumpyForward | None = None
        self._numpy_rows = agent.numpy_rows
        self._copy: Any = None

    def load(self, weights: Any) -> None:
        """Take these weights from now on."""
        self._weights, self._numpy, self._copy, self.cached = weights, None, None, None

    def __call__(
        self, request: InferenceRequest, noise: NDArray[np.uint32] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """A row for each observation, and the next states; `noise` is the key of a noisy network's."""
        agent, (observation, mask, state, first) = self.agent, request
        if len(observation) <= self._numpy_rows:
            return self._by_numpy(observation, mask), state
        if self._copy is None:
            copy = jnp.asarray(self._weights)
            self._copy = copy if agent.layers is None else agent.layers(copy)
        if agent.respond is None:
            return np.asarray(agent.values(self._copy, observation, mask, noise)), state
        if self.caches:
            return self._cache(observation, mask), state
        found, states = agent.respond(self._copy, observation, mask, state, first)
        return np.asarray(found), np.asarray(states)

    def _by_numpy(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> NDArray[np.float32]:
        if self._numpy is None:
            assert self.agent.numpy_forward is not None
            self._numpy = self.agent.numpy_forward(np.asarray(self._weights))
        if self.agent.respond is None:
            return self._numpy(observation, mask)
        rows = self._numpy(observation, None)
        if mask is not None:
            rows[:, :-1] = np.where(mask, rows[:, :-1], ILLEGAL)
        return rows

    def _cache(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> NDArray[np.float32]:
        assert self.agent.cached_forward is not None
        if self.cached is None:
            self.cached = CachedPasses(self._copy, [])
        found, forward = self.agent.cached_forward.observe(self._copy, observation, mask)
        self.cached.passes.append(forward)
        return np.asarray(found)


def best(values: NDArray[np.float32]) -> NDArray[np.integer[Any]]:
    """The first of the highest values in each row; of a lone row without giving up the interpreter's lock."""
    if len(values) > 1:
        return np.asarray(values.argmax(axis=-1))
    row = values[0].tolist()
    return np.array([row.index(max(row))])


def log_probabilities(preferences: NDArray[np.float32], action: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
    """Of the actions taken."""
    shifted = preferences - preferences.max(axis=-1, keepdims=True)
    taken = shifted[np.arange(len(action)), action]
    result: NDArray[np.float32] = taken - np.log(np.exp(shifted).sum(axis=-1))
    return result
