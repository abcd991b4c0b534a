"""Sampled actions: they follow the softmax, with the agent's own log-probabilities, by NumPy as by JAX."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare

import twins
from inference_parts import ACTIONS, TINY, agent_of, legal_masks, log_probabilities_of, vector_of
from repertory.agents.agent import Agent
from repertory.agents.strategy import NUMPY_ROWS
from repertory.channels.mailbox import InferenceRequest
from repertory.roles.inference import SampledActions, log_probabilities

MANY = NUMPY_ROWS + 1
"""More rows than the NumPy forward pass takes."""


def request_of(agent: Agent, count: int, seed: int = 0) -> InferenceRequest:
    rng = np.random.default_rng(seed)
    observation = rng.normal(size=(count, 3)).astype(np.float32)
    return InferenceRequest(
        observation, legal_masks(rng, count), np.zeros((count, agent.state_size), np.float32), np.ones(count, bool)
    )


def rows_of(agent: Agent, weights: NDArray[np.float32], request: InferenceRequest) -> NDArray[Any]:
    """The network's outputs by JAX."""
    assert agent.respond is not None
    return np.asarray(agent.respond(weights, *request)[0])


@pytest.mark.parametrize("count", [1, NUMPY_ROWS, MANY], ids=["one", "numpy", "jax"])
def test_actions_are_sampled_from_the_softmax(count: int) -> None:
    """The same observation again and again; a fixed seed, so the test's outcome never changes."""
    agent = agent_of(TINY)
    weights = vector_of(agent, scale=0.5)
    request = request_of(agent, 1)._replace(mask=np.array([[True, True, False, True]]))
    π = twins.softmax(rows_of(agent, weights, request)[0, :-1])
    assert π[2] == 0
    assert np.sort(π)[1] > 0.03
    sampled = SampledActions(agent, np.random.default_rng(5))
    sampled.rows.load(weights)
    many = InferenceRequest(*(np.repeat(x, count, axis=0) for x in request))  # type: ignore[arg-type,type-var]
    samples = np.concatenate([sampled.reply(many).action for _ in range(8000 // count)])
    counts = np.bincount(samples, minlength=ACTIONS)
    assert counts[2] == 0
    legal = π > 0
    assert chisquare(counts[legal], π[legal] * len(samples)).pvalue > 0.01


@pytest.mark.parametrize("count", [1, 5, MANY])
def test_log_probabilities_are_the_agents_own(count: int) -> None:
    agent, weights = agent_of(TINY), vector_of(agent_of(TINY))
    everything = request_of(agent, MANY)
    some = InferenceRequest(*(x[:count] for x in everything))  # type: ignore[index]
    sampled = SampledActions(agent, np.random.default_rng(0))
    sampled.rows.load(weights)
    reply = sampled.reply(some)
    assert reply.extras is not None
    assert reply.extras.shape == (1, count)
    want = log_probabilities_of(rows_of(agent, weights, everything)[:count], reply.action)
    np.testing.assert_allclose(reply.extras[0], want, rtol=1e-5, atol=1e-5)


def test_log_probabilities_of_huge_preferences_are_finite() -> None:
    preferences = np.array([[1e4, -1e4, -1e9, 0.0]] * 2, np.float32)
    np.testing.assert_allclose(log_probabilities(preferences, np.array([0, 1])), [0.0, -2e4])


@pytest.mark.parametrize("count", [1, 5])
def test_what_numpy_replies_is_what_jax_replies(count: int) -> None:
    agent = agent_of(TINY)
    assert agent.numpy_forward is not None
    request, weights = request_of(agent, count)._replace(mask=None), vector_of(agent, scale=0.5)
    replies = []
    for one in (agent, replace(agent, numpy_forward=None)):
        sampled = SampledActions(one, np.random.default_rng(2))
        sampled.rows.load(weights)
        replies.append([sampled.reply(request) for _ in range(20)])
    for numpy, jitted in zip(*replies, strict=True):
        np.testing.assert_array_equal(numpy.action, jitted.action)
        np.testing.assert_allclose(numpy.extras, jitted.extras, rtol=1e-5, atol=1e-5)
        assert numpy.state.shape == jitted.state.shape == (count, 0)
    assert len({tuple(reply.action.tolist()) for reply in replies[0]}) > 1


def test_new_weights_are_taken_at_once() -> None:
    agent = agent_of(TINY)
    request, sampled = request_of(agent, 1), SampledActions(agent, np.random.default_rng(0))
    found = []
    for seed in (1, 2, 1):
        sampled.rows.load(vector_of(agent, seed))
        sampled.rng = np.random.default_rng(0)
        found.append(float(sampled.reply(request).extras[0, 0]))  # type: ignore[index]
    assert found[0] == found[2] != found[1]
