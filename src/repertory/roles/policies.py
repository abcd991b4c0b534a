"""Policies: those that reply at once with a copy of the weights of their own, small ones without starting JAX at all;
and one that has no network, and polls for the replies of a server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent
from repertory.channels.counters import WorkerStats
from repertory.channels.mailbox import InferenceRequest
from repertory.roles.exploration import generator
from repertory.roles.inference import CachedPasses, Rows, SampledActions, best
from repertory.roles.ports import Weights

NO_STATE: NDArray[Any] = np.zeros((0, 0))
"""Agents that learn values remember nothing from step to step."""


class LocalPolicy:
    """Greedy actions; a noisy network samples fresh noise each time.

    Weights are pulled when each of `environments` was answered `pull_period` times, on average if not all always ask.
    """

    def __init__(
        self,
        agent: Agent,
        weights: Weights,
        *,
        seed: int,
        rank: int,
        pull_period: int = 1,
        environments: int = 1,
        stores_values: bool = False,
    ) -> None:
        self.agent, self.weights, self.stores_values = agent, weights, stores_values
        self.pull_period = pull_period * environments
        self.version = -1
        self.calls = 0
        self.values: NDArray[np.float32] | None = None
        self.current: Any = None
        self._rows = Rows(agent)
        self._until_pull = 0
        word = np.random.SeedSequence([seed, rank, 3]).generate_state(1)[0]
        self._key = np.array([word, 0], np.uint32)

    def pull(self) -> None:
        """Copy the newest weights."""
        version, weights = self.weights.latest()
        if version != self.version:
            self.version, self.current = version, weights
            self._rows.load(weights)

    def warm_up(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """Compile what answers such a request; changes nothing."""
        self._rows(InferenceRequest(observation, mask, NO_STATE, NO_STATE), self._key if self.agent.noisy else None)

    def submit(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """Remember the request."""
        self._request = (observation, mask)

    def poll(self) -> NDArray[np.integer[Any]]:
        """InferenceReply it."""
        if self._until_pull <= 0:
            self.pull()
            self._until_pull = self.pull_period
        self._until_pull -= len(self._request[0])
        key = None
        if self.agent.noisy:
            self.calls += 1
            key = self._key.copy()
            key[1] = self.calls
        values, _ = self._rows(InferenceRequest(*self._request, NO_STATE, NO_STATE), key)
        self.values = values if self.stores_values else None
        return best(values)

    def state(self) -> dict[str, int]:
        """How many answers were given: the noise's position."""
        return {"calls": self.calls}

    def load_state(self, state: dict[str, int]) -> None:
        """Continue the noise where it was."""
        self.calls = int(state["calls"])

    def extras(self, actions: NDArray[np.integer[Any]]) -> NDArray[np.float32] | None:
        """Value of the action taken and of the best one, [2, E], if they are stored."""
        if self.values is None:
            return None
        return np.stack([self.values[np.arange(len(actions)), actions], self.values.max(axis=1)])

    def reset(self, environments: Any) -> None:
        """Nothing is remembered from step to step."""


class SamplingPolicy:
    """Actions sampled from the policy, by weights that are copied when told to; holds recurrent states."""

    stores_values = False

    def __init__(
        self,
        agent: Agent,
        weights: Weights,
        environments: int,
        stats: WorkerStats,
        *,
        seed: int,
        rank: int,
        start: int,
        caches: bool = False,
    ) -> None:
        """`caches`: activations since the last pull are cached, for a worker that learns with the same weights."""
        self.weights, self.stats, self.version = weights, stats, -1
        self.current: Any = None
        self.states = np.zeros((environments, agent.state_size), np.float32)
        self._inference = SampledActions(agent, generator(seed, rank, 5, start), caches=caches)
        self._first = np.ones(environments, bool)

    def pull(self) -> None:
        """Copy the newest weights."""
        version, weights = self.weights.latest()
        if version != self.version:
            self.version, self.current = version, weights
            self._inference.load(weights)
        self._inference.drop_cached()

    def cached(self) -> CachedPasses | None:
        """Layers and forward passes since the last pull."""
        return self._inference.cached()

    def warm_up(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """Compile what answers such a request; changes nothing."""
        self._inference.warm_up(InferenceRequest(observation, mask, self.states, self._first))

    def submit(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """Remember the request."""
        self._request = (observation, mask)

    def poll(self) -> NDArray[np.integer[Any]]:
        """InferenceReply it."""
        began = time.perf_counter()
        reply = self._inference.reply(InferenceRequest(*self._request, self.states, self._first))
        self.stats.replied(time.perf_counter() - began)
        self._extras, self.states = reply.extras, reply.state
        self._first = np.zeros_like(self._first)
        return reply.action

    def extras(self, actions: NDArray[np.integer[Any]]) -> NDArray[np.float32] | None:  # noqa: ARG002
        """Logarithms of the actions' probabilities, [1, E]."""
        return self._extras

    def reset(self, environments: Any) -> None:
        """Episodes begin there."""
        self._first[environments] = True

    def state(self) -> dict[str, Any]:
        """The random stream."""
        return {"rng": dict(self._inference.rng.bit_generator.state)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue the stream."""
        self._inference.rng.bit_generator.state = dict(state["rng"])


class Mailbox(Protocol):
    """Where requests are put and replies are found, one place for each client."""

    def ask(
        self,
        asker: int,
        server: int,
        observation: NDArray[Any],
        mask: NDArray[np.bool_] | None,
        first: NDArray[np.bool_],
    ) -> None:
        """Put a request to a server."""

    def reply(self, asker: int) -> tuple[NDArray[Any], NDArray[np.float32], int] | None:
        """Actions, what is stored beside them, and the version of the weights; None while there is no reply."""

    def version(self, asker: int) -> int:
        """Of the weights behind the last reply."""


class RemotePolicy:
    """One client's requests; `server` says who is to reply to the next one."""

    stores_values = False

    def __init__(
        self, mailbox: Mailbox, client: int, environments: int, stats: WorkerStats, server: Callable[[], int]
    ) -> None:
        self.mailbox, self.client, self.stats, self.server = mailbox, client, stats, server
        self.version = 0
        self._first = np.ones(environments, bool)
        self._extras: NDArray[np.float32] | None = None
        self._requested_at = 0.0

    def pull(self) -> None:
        """The server has the weights; random actions name the version of its last reply."""
        self.version = self.mailbox.version(self.client)

    def warm_up(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """The server compiles."""

    def submit(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """Request actions."""
        self._requested_at = time.perf_counter()
        self.mailbox.ask(self.client, self.server(), observation, mask, self._first)
        self._first[:] = False

    def poll(self) -> NDArray[np.integer[Any]] | None:
        """The actions, or None if they are not there yet."""
        found = self.mailbox.reply(self.client)
        if found is None:
            return None
        actions, self._extras, self.version = found
        self.stats.replied(time.perf_counter() - self._requested_at)
        return actions

    def extras(self, actions: NDArray[np.integer[Any]]) -> NDArray[np.float32] | None:  # noqa: ARG002
        """What the server gave with them."""
        return self._extras

    def reset(self, environments: Any) -> None:
        """Episodes begin there."""
        self._first[environments] = True

    def state(self) -> dict[str, Any]:
        """Nothing: the server samples."""
        return {}

    def load_state(self, state: Any) -> None:
        """Nothing to continue."""
