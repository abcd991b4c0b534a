"""Inference: an agent's actions for observations; small networks run in NumPy, without starting JAX.

The DQN family takes the best action by value, actor-critic agents sample one from the policy. `InferenceServer` replies
to actors without networks, several at once: GA3C's predictor, SEED RL's inference, Sample Factory's policy worker. They
differ in the number of servers, in which worker learns, and in whether servers wait for more requests.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent
from repertory.agents.strategy import ILLEGAL, NumpyForward
from repertory.channels.counters import WorkerStats
from repertory.channels.mailbox import InferenceReply, InferenceRequest, InferenceServerPort
from repertory.roles.ports import Role, Weights

GLANCE_S = 0.0002
"""Seconds between two looks of a server that waits for more requests."""


class CachedPasses(NamedTuple):
    """The layers of the network, and the cached activations of each forward pass with them."""

    layers: Any
    passes: list[Any]


class GreedyActions:
    """The first of the best actions by value."""

    def __init__(self, agent: Agent) -> None:
        self.rows = Rows(agent)

    def reply(self, request: InferenceRequest) -> InferenceReply:
        rows, state = self.rows(request)
        return InferenceReply(best(rows), None, state)


class SampledActions:
    """Actions sampled from the policy, and the logarithms of their probabilities."""

    def __init__(self, agent: Agent, rng: np.random.Generator, *, caches: bool = False) -> None:
        self.rows, self.rng = Rows(agent, caches=caches), rng

    def reply(self, request: InferenceRequest) -> InferenceReply:
        """Gumbel-max trick: the argmax of preferences plus noise is a sample of their softmax."""
        rows, state = self.rows(request)
        preferences = rows[:, :-1]
        noise = -np.log(-np.log(np.maximum(self.rng.random(preferences.shape, np.float32), 1e-20)))
        action = best(preferences + noise)
        return InferenceReply(action, log_probabilities(preferences, action)[None], state)


class Rows:
    """The network's outputs: values, or preferences and a value. Caches activations if `caches` and the agent can."""

    def __init__(self, agent: Agent, *, caches: bool = False) -> None:
        self.agent, self.caches = agent, caches and agent.cached_forward is not None
        self.cached: CachedPasses | None = None
        self._weights: Any = None
        self._numpy: NumpyForward | None = None
        self._numpy_rows = agent.numpy_rows
        self._copy: Any = None

    def load(self, weights: Any) -> None:
        self._weights, self._numpy, self._copy, self.cached = weights, None, None, None

    def __call__(
        self, request: InferenceRequest, noise: NDArray[np.uint32] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """A row for each observation, and the next recurrent states; `noise` is the key of a noisy network."""
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
    """The first of the highest values in each row; of a single row without giving up the interpreter's lock."""
    if len(values) > 1:
        return np.asarray(values.argmax(axis=-1))
    row = values[0].tolist()
    return np.array([row.index(max(row))])


def log_probabilities(preferences: NDArray[np.float32], action: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
    shifted = preferences - preferences.max(axis=-1, keepdims=True)
    taken = shifted[np.arange(len(action)), action]
    result: NDArray[np.float32] = taken - np.log(np.exp(shifted).sum(axis=-1))
    return result


class InferenceServer(Role):
    """Replies to the requests that are there, or waits up to `patience_s` until `least` actors have one.

    The wait is counted in looks, not by the clock: workers that take turns in one thread repeat to the bit.
    """

    def __init__(
        self,
        inference: GreedyActions | SampledActions,
        weights: Weights,
        requests: InferenceServerPort,
        stats: WorkerStats,
        *,
        most: int = 1,
        least: int = 1,
        patience_s: float = 0.0,
    ) -> None:
        """At most `most` actors have a request at once."""
        self.inference, self.weights, self.requests, self.stats = inference, weights, requests, stats
        self.most, self.least = most, least
        self.patience = round(patience_s / GLANCE_S)
        self.version = -1
        self._glances = 0

    def warm_up(self) -> None:
        """Compile for each number of requests that may be replied to at once; sends no reply."""
        self._pull()
        for power in range(self.most.bit_length()):
            request, _ = self.requests.read(range(1 << power))
            self.inference.rows(request)

    def step(self) -> bool:
        waiting = self.requests.waiting()
        if not waiting:
            return False
        if len(waiting) < self.least and self._glances < self.patience:
            self._glances += 1
            time.sleep(GLANCE_S)
            return True
        self._glances = 0
        self.stats.queue(len(waiting))
        self._pull()
        while waiting:
            size = 1 << (len(waiting).bit_length() - 1)  # few sizes, so few compilations, and nothing is padded
            some, waiting = waiting[:size], waiting[size:]
            request, numbers = self.requests.read(some)
            self.requests.reply(some, numbers, self.inference.reply(request), self.version)
        return True

    def _pull(self) -> None:
        version, weights = self.weights.latest()
        if version != self.version:
            self.version = version
            self.inference.rows.load(weights)

    def state(self) -> dict[str, Any]:
        inference = self.inference
        return {"rng": dict(inference.rng.bit_generator.state)} if isinstance(inference, SampledActions) else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        if isinstance(self.inference, SampledActions) and "rng" in state:
            self.inference.rng.bit_generator.state = dict(state["rng"])
