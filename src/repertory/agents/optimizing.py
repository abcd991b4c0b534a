"""From a gradient to new weights, the same for every agent; works on one vector, or on any slice of it.

Imports JAX and Optax.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from repertory.agents.agent import LearnerState

OptimizerName = Literal["adam", "rmsprop", "shared_rmsprop", "adagrad"]
Follow = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""From target, new weights and updates made to the next target."""


def falling(start: float, end: float, updates: float) -> Any:
    """A step size that falls linearly over so many updates; 0 = it stays."""
    return start if updates <= 0 else optax.linear_schedule(start, end, max(1, int(updates)))


def make_optimizer(name: OptimizerName, rate: Any, epsilon: float) -> optax.GradientTransformation:
    """The optimiser; all of them work number by number, so a slice of the vector is enough."""
    if name == "adam":
        return optax.adam(rate, eps=epsilon)
    if name == "adagrad":
        return optax.adagrad(rate, eps=epsilon)
    if name == "shared_rmsprop":
        return optax.rmsprop(rate, decay=0.99, eps=epsilon)
    return optax.rmsprop(rate, decay=0.95, eps=epsilon, centered=True)


def shorten_gradient(gradient: jax.Array, limit: float) -> jax.Array:
    """The gradient, or if it is longer than `limit` one of that length; 0 = as it is."""
    if limit <= 0:
        return gradient
    norm = jnp.linalg.norm(gradient)
    return gradient * jnp.minimum(1.0, limit / jnp.maximum(norm, 1e-12))


def make_advance(
    optimizer: optax.GradientTransformation, follow: Follow
) -> Callable[[LearnerState, jax.Array], LearnerState]:
    """Step, move the target. A gradient that is not finite changes nothing and is counted."""

    def advance(state: LearnerState, gradient: jax.Array) -> LearnerState:
        finite = jnp.isfinite(jnp.sum(jnp.abs(gradient)))
        safe = jnp.where(finite, gradient, 0.0)
        step, moments = optimizer.update(safe, state.optimizer, state.weights)
        weights = jnp.where(finite, optax.apply_updates(state.weights, step), state.weights)
        moments = jax.tree_util.tree_map(lambda new, old: jnp.where(finite, new, old), moments, state.optimizer)
        updates = state.updates + 1
        target = jnp.where(finite, follow(state.target, weights, updates), state.target)
        return LearnerState(weights, target, moments, updates, state.skipped + ~finite, state.key)

    return advance
