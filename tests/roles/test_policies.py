"""Policies that sample actions: states carry on, and unrolls hold the probabilities that they were played with."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from inference_parts import (
    ENVIRONMENTS,
    LSTM,
    OPTIONS,
    agent_of,
    legal_masks,
    log_probabilities_of,
    mailbox_of,
    policy_of,
    published,
    server_of,
    vector_of,
    worker_stats,
)
from repertory.agents.actor_critic import ActorCriticOptions, Model, rollout_loss
from repertory.agents.agent import Agent
from repertory.agents.networks import build_policy_network
from repertory.channels.channel import allocate
from repertory.environments.factory import make
from repertory.experience.unrolls import UnrollStorage, UnrollWriter
from repertory.roles.actor import Actor
from repertory.roles.inference import SampledActions
from repertory.roles.learner import agent_batch
from repertory.roles.policies import SamplingPolicy
from repertory.roles.ports import Unwatched
from repertory.specs import EnvironmentSpec, ObservationSpec, Part


class Reference:
    """One client's environments by the agent itself, step after step."""

    def __init__(self, agent: Agent, weights: NDArray[np.float32]) -> None:
        self.agent, self.weights = agent, jnp.asarray(weights)
        self.state: Any = np.zeros((ENVIRONMENTS, agent.state_size), np.float32)
        self.first = np.ones(ENVIRONMENTS, bool)

    def rows(self, observation: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
        assert self.agent.respond is not None
        rows, self.state = self.agent.respond(self.weights, observation, mask, self.state, self.first)
        self.first = np.zeros(ENVIRONMENTS, bool)
        return np.asarray(rows)


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_states_are_carried_from_step_to_step_and_survive_a_new_server(local: bool) -> None:
    """To 1e-5: batches of other sizes are added up in another order."""
    agent, rng, clients = agent_of(LSTM), np.random.default_rng(0), 3
    vector = vector_of(agent)
    mailbox, weights = mailbox_of(clients, agent.state_size), published(vector)
    policies: list[Any] = []
    for client in range(clients):
        local_one = SamplingPolicy(agent, weights.reader(), ENVIRONMENTS, worker_stats(), seed=0, rank=client, start=0)
        policies.append(local_one if local else policy_of(mailbox, client))
        policies[-1].pull()
    references = [Reference(agent, vector) for _ in range(clients)]
    sampled = SampledActions(agent, np.random.default_rng(1))
    server = server_of(mailbox, inference=sampled, weights=weights)
    for tick in range(12):
        if tick in (4, 9):
            server = server_of(mailbox, inference=SampledActions(agent, rng), weights=weights)
        who = [0, 1] if tick % 3 else [0, 1, 2]
        wanted = []
        for client in who:
            begins = rng.random(ENVIRONMENTS) < 0.25
            policies[client].reset(begins)
            references[client].first |= begins
            observation, mask = rng.normal(size=(ENVIRONMENTS, 3)).astype(np.float32), legal_masks(rng)
            policies[client].submit(observation, mask)
            wanted.append((references[client].rows(observation, mask), mask))
        server.step()
        for client, (rows, mask) in zip(who, wanted, strict=True):
            action = policies[client].poll()
            assert mask[np.arange(ENVIRONMENTS), action].all()
            extras = policies[client].extras(action)
            np.testing.assert_allclose(extras[0], log_probabilities_of(rows, action), rtol=1e-5, atol=1e-5)
            states = policies[client].states if local else mailbox.asker().states(client)
            np.testing.assert_allclose(states, references[client].state, rtol=1e-5, atol=1e-5)
            assert policies[client].version == 7


CARTPOLE = EnvironmentSpec(ObservationSpec((4,), "float32", (Part("number", 4),)), 2)


@cache
def losses() -> dict[str, Any]:
    """Of an unroll, with a correction that clips nothing, and without."""
    agent = agent_of(LSTM, CARTPOLE)
    model = Model(
        build_policy_network(LSTM, CARTPOLE.observation, CARTPOLE.actions), CARTPOLE.actions, agent.state_size
    )

    def loss(options: ActorCriticOptions, weights: Any, batch: Any) -> Any:
        tree = agent.layout.unravel(weights)
        return rollout_loss(options, model, tree, model.features(tree, batch.observation), batch)[0]

    chosen: Any = {name: replace(OPTIONS, correction=name, rho_clip=9.0) for name in ("none", "vtrace")}
    return {name: jax.jit(partial(loss, options)) for name, options in chosen.items()}


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_what_is_learned_from_has_the_probabilities_it_was_played_with(local: bool) -> None:
    """With the weights that played, all ratios are 1, through every end and beginning of an episode.

    To 1e-4: with ratios as far as 1e-5 from 1, a correction that clips nothing is none.
    """
    rows, agent = 6, agent_of(LSTM, CARTPOLE)
    weights = vector_of(agent)
    newest, stats, index = published(weights), worker_stats(), 1
    fields = UnrollStorage.fields(CARTPOLE, 2, 2, rows, ENVIRONMENTS, agent.state_size)
    unrolls = UnrollStorage(CARTPOLE, 2, allocate(fields))
    mailbox = mailbox_of(2, agent.state_size, CARTPOLE)
    policy: Any = (
        SamplingPolicy(agent, newest.reader(), ENVIRONMENTS, stats, seed=0, rank=0, start=0)
        if local
        else policy_of(mailbox, index)
    )
    writer = UnrollWriter(
        unrolls,
        index,
        begin_unroll=policy.pull,
        states=lambda: policy.states if local else mailbox.asker().states(index),
        reader=lambda: 0,
        ring=lambda: None,
        dropped=lambda: None,
    )
    envs = make("CartPole-v1", ENVIRONMENTS, options={"max_episode_steps": 11}, next_step_autoreset=True)
    actor = Actor(
        envs,
        policy,
        writer,
        stats,
        lambda _: 0.0,
        first_lane=0,
        seed=0,
        rank=0,
        watch=Unwatched(),
    )
    actor.restart([1, 2, 3])
    server = server_of(mailbox, inference=SampledActions(agent, np.random.default_rng(1)), weights=newest)
    seen: Counter[str] = Counter()
    for _ in range(300):
        actor.step()
        server.step()
        for slot in unrolls.ready():
            batch = unrolls.gather(np.array([slot]), 0.9, 0.01, agent.state_size, 1)
            unrolls.free(np.array([slot]))
            played, corrected = (float(losses()[name](weights, agent_batch(batch))) for name in ("none", "vtrace"))
            np.testing.assert_allclose(corrected, played, rtol=1e-4)
            off = batch._replace(log_prob=batch.log_prob + 0.01 * batch.weight)
            assert abs(float(losses()["vtrace"](weights, agent_batch(off))) - played) > 1e-3 * abs(played)
            ended = (batch.weight[1:-1] == 0) & (batch.weight[:-2] == 1)
            seen.update(
                unrolls=1,
                terminated=int((ended & (batch.discount[:-2] == 0)).sum()),
                truncated=int((ended & (batch.discount[:-2] > 0)).sum()),
                begun=int(batch.first[1:].sum()),
                carried=int((np.abs(batch.state).sum(axis=1) > 0).sum()),
            )
    assert seen["unrolls"] > 20
    assert min(seen.values()) > 3, seen
