"""Our returns and projections beside RLax's, on random inputs: a second twin, written by others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from repertory.agents.actor_critic import ActorCriticOptions, targets_and_advantages
from repertory.agents.agent import Rollout
from repertory.agents.q_learning import projected

ROWS, UNROLLS = 9, 4


def random_rollout(seed: int) -> tuple[Any, Any, Any]:
    """Values `[rows, unrolls]`, ratios, and a rollout in which episodes end."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(ROWS, UNROLLS)).astype(np.float32)
    ratio = np.exp(rng.normal(size=(ROWS - 1, UNROLLS))).astype(np.float32)
    reward = rng.normal(size=(ROWS, UNROLLS)).astype(np.float32)
    discount = (0.97 * (rng.random((ROWS, UNROLLS)) < 0.8)).astype(np.float32)
    one, none = np.ones_like(reward), np.zeros((0,), np.float32)
    fields = {"reward": reward, "discount": discount, "weight": one}
    return values, ratio, Rollout(**{name: fields.get(name, none) for name in Rollout._fields})


@pytest.mark.parametrize("rho", [0.5, 1.0, 2.0])
def test_vtrace_is_rlaxs(rho: float) -> None:
    values, ratio, batch = random_rollout(1)
    options = replace(ActorCriticOptions(), correction="vtrace", rho_clip=rho, c_clip=1.0, trace=0.9)
    returns, _ = targets_and_advantages(options, jnp.asarray(values), jnp.asarray(ratio), batch)

    def theirs(before: Any, after: Any, reward: Any, discount: Any, rhos: Any) -> Any:
        return rlax.vtrace(before, after, reward, discount, rhos, 0.9, rho)

    wanted = jax.vmap(theirs, 1, 1)(values[:-1], values[1:], batch.reward[:-1], batch.discount[:-1], ratio)
    np.testing.assert_allclose(returns, values[:-1] + wanted, rtol=1e-5, atol=1e-5)


def test_generalized_advantages_are_rlaxs() -> None:
    values, ratio, batch = random_rollout(2)
    options = replace(ActorCriticOptions(), correction="gae", trace=0.8)
    _, advantage = targets_and_advantages(options, jnp.asarray(values), jnp.asarray(ratio), batch)
    theirs = jax.vmap(lambda r, d, v: rlax.truncated_generalized_advantage_estimation(r, d, 0.8, v), 1, 1)
    np.testing.assert_allclose(advantage, theirs(batch.reward[:-1], batch.discount[:-1], values), rtol=1e-5, atol=1e-5)


def test_projection_is_rlaxs() -> None:
    rng, support = np.random.default_rng(3), jnp.linspace(-2.0, 4.0, 11)
    for _ in range(20):
        values = jnp.asarray(rng.normal(scale=3.0, size=11), jnp.float32)
        probabilities = jax.nn.softmax(jnp.asarray(rng.normal(size=11), jnp.float32))
        wanted = rlax.categorical_l2_project(values, probabilities, support)
        np.testing.assert_allclose(projected(values, probabilities, support), wanted, rtol=1e-4, atol=1e-5)
