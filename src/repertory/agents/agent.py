"""What every agent is: a frozen record of pure functions, and what data it eats; imports JAX only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from repertory.agents.strategy import NumpyForward, Strategy
from repertory.agents.vector import Layout

Array: TypeAlias = jax.Array | NDArray[Any]
Rate: TypeAlias = float | Array
"""The learning rate of an update: data, so that a schedule recompiles nothing."""


class Transitions(NamedTuple):
    """A batch to learn from. `reward` is the n-step return, `discount` what multiplies the bootstrap (0 = none).

    `next_action` counts only for Sarsa; -1 = none was taken, and then the discount is 0.
    """

    observation: NDArray[Any]
    action: NDArray[np.int32]
    reward: NDArray[np.float32]
    discount: NDArray[np.float32]
    next_observation: NDArray[Any]
    next_action: NDArray[np.int32]
    next_mask: NDArray[np.bool_] | None
    weight: NDArray[np.float32]
    bootstrap: NDArray[np.float32] | None = None
    """What the target network says of `next_observation`, a value for each action, if somebody has asked it before."""


class Rollout(NamedTuple):
    """Unrolls to learn from, `[rows, unrolls]`: what was played with which probability, in the order of time.

    Of the last row only the observation counts: it is bootstrapped from. Where an episode ended, the next row holds
    its final observation and no step: it weighs nothing, and a truncated step bootstraps from it.
    """

    observation: NDArray[Any]
    action: NDArray[np.int32]
    reward: NDArray[np.float32]
    discount: NDArray[np.float32]
    log_prob: NDArray[np.float32]
    weight: NDArray[np.float32]
    first: NDArray[np.bool_]
    mask: NDArray[np.bool_] | None
    recurrent_state: NDArray[np.float32]
    """`[unrolls, state]`: before the first row."""
    entropy: NDArray[np.float32]
    """The entropy coefficient at this time."""


class LearnerState(NamedTuple):
    """Everything that learning changes; vectors, so that it can be sliced, shared and saved."""

    weights: jax.Array
    target: jax.Array
    optimizer: Any
    updates: jax.Array
    skipped: jax.Array
    key: jax.Array


class Learned(NamedTuple):
    """What one update reports. Several updates of one call have a leading axis."""

    loss: jax.Array
    priority: jax.Array
    """For each sample of a batch of transitions; of a rollout 0."""
    entropy: jax.Array
    """The policy's mean entropy; of agents without a policy 0."""
    value: jax.Array
    """Mean absolute value estimate of the batch: Q of the actions taken, or V."""
    gradient_norm: jax.Array | None = None
    """Norm of the gradient before it is clipped. `learn` gives it; `gradient` does not, since those who call it add
    gradients up first."""


class CachedForward(NamedTuple):
    """Forward passes whose activations are cached while acting, and gradients from them: see `learning.py`."""

    observe: Callable[..., tuple[jax.Array, Any]]
    """Layers, observations and masks give answers as `respond` does, and the pass."""
    gradient: Callable[..., tuple[jax.Array, Learned]]
    """Layers, the passes of each row of an unroll but its last, and the batch."""


@dataclass(frozen=True, eq=False)
class Agent:
    """Pure functions; `layout` says how the weight vector is cut into layers, `strategy` how they are computed.

    `apply` is `clip` and then `optimizer_step`. Both parts stand alone for those who share the work: `clip` needs the
    whole gradient, `optimizer_step` works on any slice of the vectors.

    `change` is what `optimizer_step` adds to the weights, for those who add it themselves. `change`, `optimizer_step`,
    `apply` and `learn` take the learning rate as their last argument; without it, it is that of the start.
    """

    init: Callable[[int], LearnerState]
    act: Callable[..., jax.Array]
    values: Callable[..., jax.Array]
    gradient: Callable[..., tuple[jax.Array, Learned]]
    clip: Callable[[jax.Array], jax.Array]
    change: Callable[..., tuple[jax.Array, Any, jax.Array]]
    optimizer_step: Callable[..., LearnerState]
    apply: Callable[..., LearnerState]
    learn: Callable[..., tuple[LearnerState, Learned]]
    layout: Layout
    strategy: Strategy
    noisy: bool = False
    numpy_forward: Callable[[NDArray[np.float32]], NumpyForward] | None = None
    """From weights to a forward pass by NumPy, where the strategy has one: see `strategy.py`."""
    respond: Callable[..., tuple[jax.Array, jax.Array]] | None = None
    """Actor-critic agents: weights, observations, masks, recurrent states and first steps give a row of preferences and
    a value for each, and the next states. Actions are sampled from the preferences."""
    layers: Callable[[jax.Array], Any] | None = None
    """The same weights, cut into layers: `respond` takes those as well, and need not cut them again."""
    cached_forward: CachedForward | None = None
    """For those who learn with the weights that acted, where the strategy has it."""
    state_size: int = 0
    """Numbers of the recurrent state of each environment."""
    updates_per_call: int = 1
    """Updates that `learn` makes of a rollout."""
    target_period: int = 0
    """Updates for which the target network stays as it is; 0 = it moves with each, or there is none."""
    max_gradient_norm: float = 0.0
    """Longer gradients are clipped by `clip`; 0 = none."""

    @property
    def prefetch_target(self) -> bool:
        """Whether the target stays for a while, and another thread can ask it by NumPy."""
        return self.strategy.prefetch_target and self.target_period > 0

    @property
    def numpy_rows(self) -> int:
        """NumPy answers batches of at most so many observations; 0 = none."""
        return self.strategy.numpy_rows if self.numpy_forward is not None else 0

    @cache  # noqa: B019  # workers that are built anew compile nothing anew; an agent lives as long as its process
    def compiled_update(self, decode: Callable[[Any], jax.Array], mean: bool, whole: bool) -> Callable[..., Any]:
        """One compiled call from several encoded gradients and a learning rate to the next state.

        `whole` = not a slice: it is clipped, and its norm before that is given beside the state.
        """

        def update(state: LearnerState, payloads: list[Any], rate: Rate) -> tuple[LearnerState, jax.Array]:
            total = jnp.sum(jnp.stack([decode(payload) for payload in payloads]), axis=0)
            total = total / len(payloads) if mean else total
            if not whole:
                return self.optimizer_step(state, total, rate), jnp.zeros(())
            return self.apply(state, total, rate), jnp.linalg.norm(total)

        return jax.jit(update, donate_argnums=0)
