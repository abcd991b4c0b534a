"""What every agent is: a frozen record of pure functions, and the batches that it learns from."""

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
    """A batch of transitions. `reward` is the n-step return, `discount` multiplies the bootstrap value (0 = none).

    Only Sarsa reads `next_action`; -1 = none was taken, and then the discount is 0.
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
    """The target network's values of `next_observation`, one for each action, where they were prefetched."""


class Rollout(NamedTuple):
    """A batch of unrolls, `[rows, unrolls]`: actions and their probabilities in the order of time.

    Of the last row only the observation counts: its value is the bootstrap. Where an episode ended, the next row holds
    its final observation and no step: its weight is 0, and a truncated step bootstraps from it.
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
    """For each sample of a batch of transitions; 0 for a rollout."""
    entropy: jax.Array
    """The policy's mean entropy; 0 for agents without a policy."""
    value: jax.Array
    """Mean absolute value estimate of the batch: Q of the actions taken, or V."""
    gradient_norm: jax.Array | None = None
    """Norm of the gradient before it is clipped. Only `learn` gives it: callers of `gradient` sum gradients first."""


class CachedForward(NamedTuple):
    """Forward passes whose activations are cached while acting, and gradients from them: see `learning.py`."""

    observe: Callable[..., tuple[jax.Array, Any]]
    """From layers, observations and masks to outputs as `respond` gives them, and the pass."""
    gradient: Callable[..., tuple[jax.Array, Learned]]
    """From layers, the passes of each row of an unroll but its last, and the batch."""


@dataclass(frozen=True, eq=False)
class Agent:
    """Pure functions; `layout` says how the weight vector is cut into layers, `strategy` how they are computed.

    `apply` is `clip` and then `optimizer_step`. Topologies that divide the work use the parts: `clip` needs the whole
    gradient, `optimizer_step` works on any slice of the vectors, and `change` is what it adds to the weights.
    `change`, `optimizer_step`, `apply` and `learn` take the learning rate as their last argument; the default is the
    learning rate at the start.
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
    """From weights to a NumPy forward pass, where the strategy has one: see `strategy.py`."""
    respond: Callable[..., tuple[jax.Array, jax.Array]] | None = None
    """Actor-critic agents: from weights, observations, masks, recurrent states and first steps to a row of policy
    logits and a value for each observation, and the next recurrent states."""
    layers: Callable[[jax.Array], Any] | None = None
    """The weights, cut into layers: `respond` takes these as well, and then need not cut them again."""
    cached_forward: CachedForward | None = None
    """For workers that learn with the weights that acted, where the strategy has it."""
    state_size: int = 0
    """Numbers of the recurrent state of each environment."""
    updates_per_call: int = 1
    """Updates that `learn` makes of a rollout."""
    target_period: int = 0
    """Updates between copies into the target network; 0 = it moves with each update, or there is none."""
    max_gradient_norm: float = 0.0
    """`clip` clips gradients to this global norm; 0 = no clipping."""

    @property
    def prefetch_target(self) -> bool:
        """Whether another thread can run the target network by NumPy before it changes."""
        return self.strategy.prefetch_target and self.target_period > 0

    @property
    def numpy_rows(self) -> int:
        """Largest batch of observations for the NumPy forward pass; 0 = no NumPy."""
        return self.strategy.numpy_rows if self.numpy_forward is not None else 0

    @cache  # noqa: B019  # workers that are built anew compile nothing anew; an agent lives as long as its process
    def compiled_update(self, decode: Callable[[Any], jax.Array], mean: bool, whole: bool) -> Callable[..., Any]:
        """One compiled call from several encoded gradients and a learning rate to the next state.

        `whole` = not a slice: the gradient is clipped, and its norm before that is returned beside the state.
        """

        def update(state: LearnerState, payloads: list[Any], rate: Rate) -> tuple[LearnerState, jax.Array]:
            total = jnp.sum(jnp.stack([decode(payload) for payload in payloads]), axis=0)
            total = total / len(payloads) if mean else total
            if not whole:
                return self.optimizer_step(state, total, rate), jnp.zeros(())
            return self.apply(state, total, rate), jnp.linalg.norm(total)

        return jax.jit(update, donate_argnums=0)
