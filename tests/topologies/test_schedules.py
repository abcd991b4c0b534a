"""Schedules count env steps, on every topology: however few steps an update learns from, the learning rate lasts."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from commands import rows
from inline_runs import inline_run, play, roles, small_plan, weights_of
from repertory import api
from repertory.agents.agent import Learned, LearnerState, Transitions
from repertory.agents.learning import make_learn
from repertory.agents.strategy import Strategy
from repertory.roles.learner import Learner
from repertory.roles.replica import Replica
from repertory.topologies import known

STEPS = 600
FALLING = {"learning_rate_steps": STEPS}
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("hogwild", {"method": "n_step_q"}),
    ("hogwild", {"method": "sarsa"}),
    ("hogwild", {"method": "replay"}),
    ("parameter_server", {"mode": "synchronous", "shards": 2}),
    ("impala", {"learners": 2}),
]
TOPOLOGIES = [(name, {}) for name in sorted(set(known()) - {"single"})] + OTHERS


@pytest.mark.parametrize(("topology", "options"), TOPOLOGIES, ids=str)
def test_weights_change_until_the_learning_rate_is_0_and_no_longer(topology: str, options: dict[str, Any]) -> None:
    """One environment a worker, so that episodes of about 20 steps cut segments short and cost rows of unrolls."""
    wishes = {"envs_per_actor": 2 if topology == "sample_factory" else 1, "actors": 4, "env_steps": 2 * STEPS}
    with closing(inline_run(topology, options, FALLING, **wishes)) as driver:
        moved = told = 0

        def watch() -> None:
            nonlocal moved, told
            made = driver.counters.updates
            if made > watched["updates"] and 0.9 * STEPS < driver.counters.env_steps < STEPS:
                moved += not np.array_equal(watched["weights"], weights_of(driver))
                told += 1
            watched.update(updates=made, weights=weights_of(driver).copy())

        watched: dict[str, Any] = {"updates": 0, "weights": weights_of(driver).copy()}
        play(driver, STEPS, watch)
        assert moved == told > 0
        play(driver, STEPS + 40)  # replicas count their own steps; what is under way comes to its end
        before, updates = weights_of(driver).copy(), driver.counters.updates
        play(driver, 2 * STEPS - 40)
        assert driver.counters.updates > updates
        np.testing.assert_array_equal(weights_of(driver), before)
        assert driver.metrics()["learning_rate"] == 0.0


def test_weights_of_a_single_learner_change_until_the_learning_rate_is_0_and_no_longer() -> None:
    with closing(inline_run("single", None, FALLING, actors=1, envs_per_actor=2, env_steps=2 * STEPS)) as driver:
        (learner,), seen = roles(driver, Learner), []
        play(driver, watch=lambda: seen.append((driver.counters.env_steps, np.array(learner.learned.weights))))
        late = [weights for env_steps, weights in seen if 0.9 * STEPS < env_steps < STEPS]
        after = [weights for env_steps, weights in seen if env_steps >= STEPS]
        assert not np.array_equal(late[0], late[-1])
        assert all(np.array_equal(weights, after[0]) for weights in after)
        assert driver.metrics()["learning_rate"] == 0.0


@pytest.mark.parametrize("steps", [0, 1000])
def test_learning_rate_falls_linearly_to_its_end_or_stays(steps: int) -> None:
    wishes = {"learning_rate": 1e-2, "learning_rate_end": 2e-3, "learning_rate_steps": steps}
    for topology in ("single", "impala"):
        plan = small_plan(topology, None, wishes, actors=1 if topology == "single" else 2)
        rates = [plan.learning_rate(env_steps) for env_steps in (0, 250, 500, 1000, 5000)]
        assert rates == pytest.approx([1e-2, 8e-3, 6e-3, 2e-3, 2e-3] if steps else [1e-2] * 5)


def test_updates_take_the_learning_rate_that_they_are_given() -> None:
    """RMSProp's statistics do not depend on it, so steps are in proportion."""
    for topology in ("single", "impala"):
        plan = small_plan(topology, None, {"optimizer": "shared_rmsprop"}, actors=1 if topology == "single" else 2)
        agent = plan.agent
        gradient = jnp.asarray(np.random.default_rng(0).normal(size=agent.layout.size), jnp.float32)
        start = np.asarray(agent.init(0).weights)
        whole = np.asarray(agent.apply(agent.init(0), gradient).weights) - start
        assert np.abs(whole).min() > 0
        for share in (0.0, 0.5, 2.0):
            rate = share * plan.options.learning_rate
            step = np.asarray(agent.apply(agent.init(0), gradient, rate).weights) - start
            np.testing.assert_allclose(step, share * whole, rtol=1e-3, atol=1e-6)
            change, _, finite = agent.change(agent.init(0), agent.clip(gradient), rate)
            assert finite
            np.testing.assert_allclose(change, step, rtol=1e-3, atol=1e-6)


def test_another_learning_rate_compiles_nothing_anew() -> None:
    traced = []

    def gradient(weights: jax.Array, _target: Any, batch: Transitions, _key: Any) -> tuple[jax.Array, Learned]:
        traced.append(weights.shape)
        told = jnp.mean(jnp.asarray(batch.reward))
        return jnp.ones_like(weights), Learned(told, jnp.asarray(batch.reward), told, told)

    def apply(state: LearnerState, vector: jax.Array, rate: Any) -> LearnerState:
        return state._replace(weights=state.weights - rate * vector)

    plan = small_plan("single", actors=1)
    learn, state = make_learn(Strategy(), gradient, apply, 1.0), plan.agent.init(0)
    start = np.array(state.weights)
    nothing = np.zeros((2, 3), np.float32)
    batch = Transitions(nothing, nothing, nothing, nothing, nothing, nothing, None, nothing)
    for rate in (0.5, 0.25, 0.125):
        state, _ = learn(state, batch, rate)
    np.testing.assert_allclose(state.weights, start - 2 * (0.5 + 0.25 + 0.125), rtol=1e-5)
    assert len(traced) == 1


@pytest.mark.parametrize(("topology", "options"), [("all_reduce", {}), ("impala", {"learners": 2})])
def test_replicas_stay_bit_equal_whatever_learning_rate_each_would_use(topology: str, options: dict[str, Any]) -> None:
    with closing(inline_run(topology, options, FALLING, env_steps=STEPS, envs_per_actor=2)) as driver:
        replicas: list[Replica] = roles(driver, Replica)
        for replica in replicas[1:]:
            replica.rate = lambda number=replica.rank: float(number)  # type: ignore[misc]
        play(driver)
        driver.settle()
        assert replicas[0].version > 5
        for replica in replicas[1:]:
            assert replica.version == replicas[0].version
            np.testing.assert_array_equal(replica.learned.weights, replicas[0].learned.weights)


def falling_rates(run: Any) -> list[tuple[int, float]]:
    return [(row["env_steps"], row["learning_rate"]) for row in rows(run.directory)]


def test_the_learning_rate_is_logged_and_ends_where_it_was_asked_to(tmp_path: Any) -> None:
    run = api.train(
        "CartPole-v1",
        env_steps=1_000,
        log_every=100,
        envs_per_actor=1,
        runs_dir=str(tmp_path),
        quiet=True,
        agent_options={"learning_rate": 1e-3, "learning_rate_end": 1e-4, "learning_rate_steps": 800},
    )
    told = falling_rates(run)
    assert len(told) >= 10
    for env_steps, rate in told:
        assert rate == pytest.approx(1e-3 - 9e-4 * min(1.0, env_steps / 800))
