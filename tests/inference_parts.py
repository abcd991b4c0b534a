"""Clients, servers and a mailbox between them, for tests of policies and inference servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import twins
from repertory.agents.actor_critic import ActorCriticOptions, make_actor_critic
from repertory.agents.agent import Agent
from repertory.agents.networks import NetworkOptions
from repertory.channels.channel import allocate
from repertory.channels.counters import Counters, WorkerStats
from repertory.channels.latest import Latest
from repertory.channels.mailbox import InferenceMailbox, InferenceReply, InferenceRequest
from repertory.roles.inference import InferenceServer
from repertory.roles.policies import RemotePolicy
from repertory.specs import EnvironmentSpec, ObservationSpec, Part

ACTIONS, ENVIRONMENTS = 4, 3
SPEC = EnvironmentSpec(ObservationSpec((3,), "float32", (Part("number", 3),)), ACTIONS, masked=True)
OPTIONS = ActorCriticOptions(discount=0.9, reduction="sum")
TINY = NetworkOptions(kind="mlp", hidden=(5,))
LSTM = replace(TINY, lstm_size=4)


@dataclass(frozen=True)
class Rank:
    """Which worker a port is for."""

    rank: int = 0


@cache
def agent_of(network: NetworkOptions, spec: EnvironmentSpec = SPEC) -> Agent:
    """Programs are compiled once for all tests."""
    return make_actor_critic(OPTIONS, network, spec)


def vector_of(agent: Agent, seed: int = 3, scale: float = 1.0) -> NDArray[np.float32]:
    """Random weights."""
    return np.random.default_rng(seed).normal(scale=scale, size=agent.layout.size).astype(np.float32)


def worker_stats() -> WorkerStats:
    return WorkerStats(allocate(Counters("counters", 1).fields()))


def published(weights: NDArray[np.float32], version: int = 7) -> Latest:
    """A channel with these weights in it."""
    channel = Latest("weights", lambda: len(weights))
    channel.bind(allocate(channel.fields()))
    channel.writer(Rank()).publish(version, weights)
    return channel


def mailbox_of(clients: int, state_size: int = 0, spec: EnvironmentSpec = SPEC) -> InferenceMailbox:
    mailbox = InferenceMailbox("requests", spec, askers=clients, environments=ENVIRONMENTS, state_size=state_size)
    mailbox.bind(allocate(mailbox.fields()))
    return mailbox


def policy_of(mailbox: InferenceMailbox, client: int, server: Callable[[], int] = lambda: 0) -> RemotePolicy:
    return RemotePolicy(mailbox.asker(), client, ENVIRONMENTS, worker_stats(), server)


class Echo:
    """Replies with the contents of the request, so that a reply that went astray shows."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.loaded: list[Any] = []
        self.rows = self

    def load(self, weights: Any) -> None:
        self.loaded.append(weights)

    def reply(self, request: InferenceRequest) -> InferenceReply:
        self.sizes.append(len(request.observation))
        first = request.observation[:, 0]
        # What was seen adds up from the episode's first step on.
        state = np.where(request.first[:, None], 0.0, request.state) + first[:, None]
        return InferenceReply(first.astype(int), request.observation[None, :, 1], state.astype(np.float32))


def server_of(
    mailbox: InferenceMailbox, rank: int = 0, inference: Any = None, weights: Latest | None = None, **options: Any
) -> InferenceServer:
    newest = (weights or published(np.zeros(1, np.float32))).reader()
    return InferenceServer(inference or Echo(), newest, mailbox.server(Rank(rank)), worker_stats(), **options)


def everything_legal() -> NDArray[np.bool_]:
    return np.ones((ENVIRONMENTS, ACTIONS), bool)


def legal_masks(rng: np.random.Generator, count: int = ENVIRONMENTS) -> NDArray[np.bool_]:
    mask = rng.random((count, ACTIONS)) < 0.6
    mask[np.arange(count), rng.integers(0, ACTIONS, count)] = True
    return mask


def log_probabilities_of(rows: NDArray[Any], action: NDArray[Any]) -> NDArray[Any]:
    """Logarithms of the probabilities of these actions, by the twins."""
    return np.array([np.log(twins.softmax(row[:-1])[a]) for row, a in zip(rows, action, strict=True)])
