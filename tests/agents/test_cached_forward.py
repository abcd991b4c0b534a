"""Activations cached while acting give the gradient that is computed anew, also where episodes end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pictures
from inline_runs import play, roles
from repertory.agents import strategy
from repertory.agents.actor_critic import make_actor_critic
from repertory.agents.agent import Agent, Rollout
from repertory.agents.networks import NetworkOptions
from repertory.engines import make_driver
from repertory.roles.actor import Actor
from repertory.roles.hogwild_worker import HogwildWorker
from repertory.runs.config import change
from repertory.runs.launch import prepare
from repertory.runs.presets import defaults
from test_actor_critic import A3C, IMAGE, begin, make_batch

UNROLLS: list[dict[int, str] | None] = [{}, {1: "truncated"}, {2: "terminated"}, {}, {3: "truncated"}, None]


def image_agent() -> Agent:
    return make_actor_critic(A3C, NetworkOptions("nature"), IMAGE)


def image_batch() -> Rollout:
    batch = make_batch(UNROLLS)
    seen = np.random.default_rng(0).integers(0, 256, (*batch.action.shape, 4, 36, 36)).astype(np.uint8)
    return batch._replace(observation=seen, action=batch.action % 3, mask=None)


@pytest.mark.parametrize("rows", [1, 14, 96], ids=["a step at a time", "groups of two steps and one", "all at once"])
def test_gradient_of_cached_passes_is_the_gradient(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy, "CACHED_ROWS", rows)
    agent, batch = image_agent(), image_batch()
    assert agent.cached_forward is not None
    assert agent.layers is not None
    weights = begin(agent, 0.05).weights
    layers, passes = agent.layers(weights), []
    for seen in batch.observation[:-1]:
        own = np.array(seen)
        outputs, one = agent.cached_forward.observe(layers, own, None)
        passes.append(one)
        want = agent.values(weights, seen, None, None)
        np.testing.assert_allclose(outputs[:, :-1], want, rtol=1e-4, atol=1e-5)
        own[...] = 0  # as environments do that write the next picture over the last
    found, learned = agent.cached_forward.gradient(layers, passes, batch)
    want, expected = agent.gradient(weights, None, batch, None)
    np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-5 * np.abs(want).max())
    np.testing.assert_allclose(learned[:-1], expected[:-1], rtol=1e-4, atol=1e-6)


def test_only_built_in_picture_networks_cache_their_activations() -> None:
    """An LSTM or a user's module may mix rows, and for small networks it does not pay."""
    for network in (
        NetworkOptions("nature", lstm_size=8),
        NetworkOptions("nature", separate=True),
        NetworkOptions("mlp"),
    ):
        assert make_actor_critic(A3C, network, IMAGE).cached_forward is None


def test_a3c_learns_from_what_it_cached_while_episodes_end_and_environments_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wishes = {"engine": "inline", "actors": 2, "envs_per_actor": 3, "env_steps": 400, "eval_episodes": 1}
    options = change(defaults(pictures.NAME, "a3c", "a3c"), {**wishes, "agent": {"unroll": 5, "learning_rate": 1e-3}})
    driver = make_driver("inline", prepare(options)[1])
    driver.start()
    compared, learn = [], HogwildWorker._gradient_of_cached

    def both(worker: HogwildWorker, passes: Any, batch: Any) -> tuple[Any, Any]:
        found = learn(worker, passes, batch)
        assert worker.acted is not None
        want, _ = worker.agent.gradient(worker.acted()[1], None, batch, None)
        np.testing.assert_allclose(found[0], want, rtol=1e-2, atol=1e-4 * float(np.abs(want).max()))
        compared.append(float((batch.weight[:-1] == 0).mean()))
        return found

    monkeypatch.setattr(HogwildWorker, "_gradient_of_cached", both)
    play(driver, 150)
    actor = roles(driver, Actor)[0]
    actor.experience.interrupt(actor.lanes)  # what is half written, and half cached, is dropped
    play(driver, 400)
    assert len(compared) > 10
    assert max(compared) > 0  # episodes ended inside of unrolls
    driver.close()
