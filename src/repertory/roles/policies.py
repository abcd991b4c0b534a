"""Policies, and ε-greedy exploration with any of them.

`LocalPolicy` and `SamplingPolicy` reply at once with a copy of the weights; small networks run in NumPy, without JAX.
`RemotePolicy` has no network and polls for the replies of an inference server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent
from repertory.channels.counters import WorkerStats
from repertory.channels.mailbox import InferenceAsker, InferenceRequest
from repertory.roles.inference import CachedPasses, Rows, SampledActions, best
from repertory.roles.ports import Policy, Weights

NO_STATE: NDArray[Any] = np.zeros((0, 0))
"""Agents that learn values have no recurrent state."""


class Move(NamedTuple):
    """Actions [E] for one step, the version of the weights that chose them, and what is stored beside them [k, E]."""

    actions: NDArray[np.integer[Any]]
    version: int
    extras: NDArray[np.float32] | None


class EpsilonGreedy:
    """Actions for the environments of one or several actors that share a policy and a random stream.

    The policy gets no request where all actions are random, unless it stores values.
    """

    def __init__(self, policy: Policy, rng: np.random.Generator, actions: int) -> None:
        self.policy, self.rng, self.actions = policy, rng, actions
        self.pending = False
        self._explore: Any = None
        self._random: NDArray[np.integer[Any]] | None = None

    def choose(
        self, observation: NDArray[Any], mask: NDArray[np.bool_] | None, rates: float | NDArray[np.float64]
    ) -> Move | None:
        """The actions, with one ε for all or with `rates` [E]; None = pending: the policy has the request.

        A single environment goes by plain numbers, which are several times faster than arrays of one.
        """
        rng, policy, count = self.rng, self.policy, len(observation)
        explore: Any = rng.random() < rates if count == 1 else rng.random(count) < rates
        chances = explore if count == 1 else np.count_nonzero(explore)
        chance = random_actions(rng, count, self.actions, mask) if chances else None
        if chance is not None and chances == count and not policy.stores_values:
            return Move(chance, policy.version, policy.extras(chance))
        policy.submit(observation, mask)
        self._explore, self._random = explore, chance
        return self.poll()

    def poll(self) -> Move | None:
        """The actions, or None while the policy has not replied."""
        policy, chance = self.policy, self._random
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
    if mask is None:
        return rng.integers(0, actions, count)
    return np.asarray(np.argmax(np.where(mask, rng.random((count, actions)), -1.0), axis=1))


def generator(*key: int) -> np.random.Generator:
    """An independent stream for each key."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


def ladder(base: float, exponent: float, rank: int, actors: int) -> float:
    """ε of one of many actors, fixed (Horgan et al. 2018): base ** (1 + exponent · i / (N - 1))."""
    return float(base ** (1.0 + exponent * rank / max(actors - 1, 1)))


class LocalPolicy(Policy):
    """Greedy actions; a noisy network samples fresh noise each time.

    Weights are pulled after `pull_period` replies to each of `environments`, on average if some send no request.
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
        version, weights = self.weights.latest()
        if version != self.version:
            self.version, self.current = version, weights
            self._rows.load(weights)

    def warm_up(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        self._rows(InferenceRequest(observation, mask, NO_STATE, NO_STATE), self._key if self.agent.noisy else None)

    def submit(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        self._request = (observation, mask)

    def poll(self) -> NDArray[np.integer[Any]]:
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
        """How many replies were given: the position in the stream of noise."""
        return {"calls": self.calls}

    def load_state(self, state: dict[str, int]) -> None:
        self.calls = int(state["calls"])

    def extras(self, actions: NDArray[np.integer[Any]]) -> NDArray[np.float32] | None:
        """Value of the action taken and of the best one, [2, E], if they are stored."""
        if self.values is None:
            return None
        return np.stack([self.values[np.arange(len(actions)), actions], self.values.max(axis=1)])


class SamplingPolicy(Policy):
    """Actions sampled from the policy, with weights that are copied by `pull`; holds recurrent states."""

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
        version, weights = self.weights.latest()
        if version != self.version:
            self.version, self.current = version, weights
            self._inference.rows.load(weights)
        self._inference.rows.cached = None

    def cached(self) -> CachedPasses | None:
        return self._inference.rows.cached

    def warm_up(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        self._inference.rows(InferenceRequest(observation, mask, self.states, self._first))
        self._inference.rows.cached = None

    def submit(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        self._request = (observation, mask)

    def poll(self) -> NDArray[np.integer[Any]]:
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
        self._first[environments] = True

    def state(self) -> dict[str, Any]:
        return {"rng": dict(self._inference.rng.bit_generator.state)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._inference.rng.bit_generator.state = dict(state["rng"])


class RemotePolicy(Policy):
    """Requests of one client; `server` says which server gets the next one."""

    def __init__(
        self, mailbox: InferenceAsker, client: int, environments: int, stats: WorkerStats, server: Callable[[], int]
    ) -> None:
        self.mailbox, self.client, self.stats, self.server = mailbox, client, stats, server
        self.version = 0
        self._first = np.ones(environments, bool)
        self._extras: NDArray[np.float32] | None = None
        self._requested_at = 0.0

    def pull(self) -> None:
        """The server has the weights; random actions name the version of its last reply."""
        self.version = self.mailbox.version(self.client)

    def submit(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        self._requested_at = time.perf_counter()
        self.mailbox.ask(self.client, self.server(), observation, mask, self._first)
        self._first[:] = False

    def poll(self) -> NDArray[np.integer[Any]] | None:
        found = self.mailbox.reply(self.client)
        if found is None:
            return None
        actions, self._extras, self.version = found
        self.stats.replied(time.perf_counter() - self._requested_at)
        return actions

    def extras(self, actions: NDArray[np.integer[Any]]) -> NDArray[np.float32] | None:  # noqa: ARG002
        return self._extras

    def reset(self, environments: Any) -> None:
        self._first[environments] = True
