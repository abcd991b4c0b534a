"""From a gradient to new weights, the same for every agent; works on one vector, or on any slice of it.

Imports JAX and Optax.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from repertory.agents.agent import LearnerState, Rate

OptimizerName = Literal["adam", "rmsprop", "shared_rmsprop", "adagrad"]
Change = Callable[..., tuple[jax.Array, Any, jax.Array]]
"""From a learner state, a gradient and a learning rate to what to add to the weights, the optimiser's new statistics,
and whether the gradient was finite."""
Follow = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""From target, new weights and updates made to the next target."""


def make_optimizer(name: OptimizerName, rate: Any, epsilon: float) -> optax.GradientTransformation:
    """The optimiser; all of them work number by number, so a slice of the vector is enough."""
    if name == "adam":
        return optax.adam(rate, eps=epsilon)
    if name == "adagrad":  # Optax would begin the sum of squares with 0.1, Downpour and Gorila begin with nothing
        return optax.adagrad(rate, initial_accumulator_value=0.0, eps=epsilon)
    if name == "shared_rmsprop":
        return optax.rmsprop(rate, decay=0.99, eps=epsilon)
    return optax.chain(scale_by_deviation(0.95, epsilon), optax.scale_by_learning_rate(rate))


def scale_by_deviation(decay: float, epsilon: float) -> optax.GradientTransformation:
    """Centred RMSProp (Graves 2013): gradients over their running standard deviation.

    In Optax's own, where a gradient hardly changes, rounding can leave a variance below 0, whose root is NaN.
    """

    def init(weights: Any) -> Any:
        return jnp.zeros_like(weights), jnp.zeros_like(weights)

    def update(gradient: Any, moments: Any, weights: Any = None) -> Any:
        del weights
        mean = decay * moments[0] + (1 - decay) * gradient
        square = decay * moments[1] + (1 - decay) * gradient**2
        return gradient * jax.lax.rsqrt(jnp.maximum(square - mean**2, 0.0) + epsilon), (mean, square)

    return optax.GradientTransformation(init, update)


def clip_by_global_norm(gradient: jax.Array, limit: float) -> jax.Array:
    """The gradient, or if its norm is above `limit` one of that norm; 0 = as it is."""
    if limit <= 0:
        return gradient
    norm = jnp.linalg.norm(gradient)
    return gradient * jnp.minimum(1.0, limit / jnp.maximum(norm, 1e-12))


def make_change(optimizer: optax.GradientTransformation, start: float) -> Change:
    """The optimiser's step. A gradient that is not finite changes nothing.

    The optimiser is built for learning rate 1; its step is multiplied by the rate given, or by that at the `start`.
    """

    def change(state: LearnerState, gradient: jax.Array, rate: Rate = start) -> tuple[jax.Array, Any, jax.Array]:
        finite = jnp.isfinite(jnp.sum(jnp.abs(gradient)))
        safe = jnp.where(finite, gradient, 0.0)
        step, moments = optimizer.update(safe, state.optimizer, state.weights)
        moments = jax.tree_util.tree_map(lambda new, old: jnp.where(finite, new, old), moments, state.optimizer)
        return jnp.where(finite, rate * step, 0.0), moments, finite

    return change


def make_optimizer_step(change: Change, follow: Follow, start: float) -> Callable[..., LearnerState]:
    """Step, move the target; gradients that are not finite are counted."""

    def optimizer_step(state: LearnerState, gradient: jax.Array, rate: Rate = start) -> LearnerState:
        step, moments, finite = change(state, gradient, rate)
        weights = state.weights + step
        updates = state.updates + 1
        target = jnp.where(finite, follow(state.target, weights, updates), state.target)
        return LearnerState(weights, target, moments, updates, state.skipped + ~finite, state.key)

    return optimizer_step


@dataclass(frozen=True)
class Optimization:
    """From gradients to new weights, not compiled: what `Agent` has under the same names, and the optimiser."""

    optimizer: optax.GradientTransformation
    clip: Callable[[jax.Array], jax.Array]
    change: Change
    optimizer_step: Callable[..., LearnerState]
    apply: Callable[..., LearnerState]

    def compiled(self) -> dict[str, Any]:
        """The fields of an `Agent`."""
        names = ("clip", "change", "optimizer_step")
        return {name: jax.jit(getattr(self, name)) for name in names} | {"apply": jax.jit(self.apply, donate_argnums=0)}


def make_optimization(
    name: OptimizerName, epsilon: float, start: float, max_gradient_norm: float, follow: Follow
) -> Optimization:
    """`start` is the learning rate where none is given."""
    optimizer = make_optimizer(name, 1.0, epsilon)
    change = make_change(optimizer, start)
    clip = partial(clip_by_global_norm, limit=max_gradient_norm)
    optimizer_step = make_optimizer_step(change, follow, start)

    def apply(state: LearnerState, gradient: jax.Array, rate: Rate = start) -> LearnerState:
        return optimizer_step(state, clip(gradient), rate)

    return Optimization(optimizer, clip, change, optimizer_step, apply)
