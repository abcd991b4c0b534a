"""Advantage actor-critic agents as options of one: A3C, IMPALA, APPO; imports JAX, RLax, Optax.

Mnih et al. 2016 (A3C), Babaeizadeh et al. 2017 (GA3C: lag, and a floor under the probabilities), Espeholt et al. 2018
(IMPALA: V-trace), Schulman et al. 2017 and Petrenko et al. 2020 (PPO's clip, and both together: APPO).

Targets and advantages follow from one backward pass over the rows of an unroll. On-policy returns are V-trace with all
ratios 1; a row without a step has ratio 0, so nothing flows through it, and the row before it bootstraps from its
value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import rlax

from repertory.agents.agent import Agent, Array, Learned, LearnerState, Rate, Rollout
from repertory.agents.learning import (
    Apply,
    Gradient,
    Update,
    finish_update,
    legal,
    make_cached_forward,
    make_gradient,
    make_init,
    make_update,
    map_on_threads,
    slice_edges,
    stack,
)
from repertory.agents.network_registry import build_policy_network, measure_layout
from repertory.agents.networks import NetworkOptions, Recurrent
from repertory.agents.optimizing import OptimizerName, make_optimization
from repertory.agents.strategy import Strategy, choose_strategy, device, make_numpy_forward
from repertory.agents.vector import Layout
from repertory.errors import UserError
from repertory.limits import NonNegative, Positive, Share
from repertory.specs import EnvironmentSpec


@dataclass(frozen=True)
class ActorCriticOptions:
    """A member of the actor-critic family."""

    unroll: Positive[int] = 20
    """Rows of an unroll: steps that are learned from together (t_max)."""
    batch_unrolls: Positive[int] = 8
    """Unrolls of one environment each that a learner takes at once; a multiple of `envs_per_actor` per group."""
    learning_rate: Positive[float] = 6e-4
    """Step size of the optimiser."""
    learning_rate_end: NonNegative[float] = 0.0
    """Step size from `learning_rate_steps` on."""
    learning_rate_steps: NonNegative[int] = 0
    """Env steps over which the step size falls linearly; 0 = it stays."""
    discount: Share[float] = 0.99
    """γ: what a reward one step later is worth."""
    correction: Literal["none", "vtrace", "gae"] = "vtrace"
    """Returns: as played (A3C), corrected for an older policy (V-trace), or generalised advantages."""
    rho_clip: Positive[float] = 1.0
    """V-trace's ρ̄: the largest weight of a step's error."""
    c_clip: Positive[float] = 1.0
    """V-trace's c̄: the largest weight with which later errors flow back."""
    trace: Share[float] = 1.0
    """λ: how far errors flow back; 1 = returns as long as the unroll, 0 = values are learned from one step."""
    ratio_clip: NonNegative[float] = 0.0
    """PPO: the new probability may differ by the factor 1 + this from the old one; 0 = no clip."""
    epochs: Positive[int] = 1
    """How often a batch is learned from."""
    minibatches: Positive[int] = 1
    """Parts of a batch that make an update each."""
    normalize_advantage: bool = False
    """Advantages of an update get mean 0 and deviation 1."""
    entropy: NonNegative[float] = 0.01
    """Worth of a broad policy, at the start."""
    entropy_end: NonNegative[float] = 0.0
    """Worth of a broad policy from `entropy_steps` on."""
    entropy_steps: NonNegative[int] = 0
    """Env steps over which it falls linearly; 0 = it stays."""
    value_weight: NonNegative[float] = 0.5
    """Weight of the value's squared error."""
    reduction: Literal["mean", "sum"] = "mean"
    """Losses of steps are averaged, or added up as in A3C and IMPALA."""
    probability_floor: NonNegative[float] = 0.0
    """Added to a probability before its logarithm is taken (GA3C: 1e-6)."""
    max_gradient_norm: NonNegative[float] = 40.0
    """Gradients longer than this are shortened to it; 0 = never."""
    optimizer: OptimizerName = "adam"
    """Which Optax optimiser follows the gradient; shared_rmsprop is RMSProp as in Mnih et al. 2016, not centred."""
    optimizer_epsilon: Positive[float] = 1e-5
    """Added to the optimiser's denominator."""

    @property
    def updates_per_batch(self) -> int:
        """Updates that a batch of unrolls makes."""
        return self.epochs * self.minibatches

    def check(self) -> None:
        """Refuse options that contradict each other."""
        if self.minibatches > self.batch_unrolls:
            raise UserError(
                f"--agent.minibatches {self.minibatches} is more than --agent.batch-unrolls {self.batch_unrolls}"
            )


def make_actor_critic(
    options: ActorCriticOptions,
    network: NetworkOptions,
    spec: EnvironmentSpec,
    threads: int = 1,
) -> Agent:
    """The agent that the options describe; `threads` share a convolutional batch."""
    strategy = choose_strategy(network, spec.observation, device(), threads)
    module = build_policy_network(network, spec.observation, spec.actions)
    layout = measure_layout(module, spec.observation, spec.actions + 1, network)
    model = Model(module, spec.actions, 2 * network.lstm_size)
    loss = partial(rollout_loss, options, model)

    def respond(
        weights: Any, observation: Array, mask: Array | None, state: Array, first: Array
    ) -> tuple[jax.Array, jax.Array]:
        tree = weights if isinstance(weights, dict) else layout.unravel(weights)
        return model.respond(tree, observation, mask, state, first)

    def preferences(weights: jax.Array, observation: Array, mask: Array | None, _key: Any) -> jax.Array:
        count = observation.shape[0]
        rows, _ = respond(weights, observation, mask, jnp.zeros((count, model.state_size)), jnp.ones(count, bool))
        return rows[:, :-1]

    def act(weights: jax.Array, observation: Array, mask: Array | None, key: Any) -> jax.Array:
        return jnp.argmax(preferences(weights, observation, mask, key), axis=-1)

    def whole(tree: Any, _target: Any, batch: Rollout, _key: Any) -> tuple[jax.Array, Learned]:
        return loss(tree, model.features(tree, batch.observation), batch)

    optimization = make_optimization(
        options.optimizer,
        options.optimizer_epsilon,
        options.learning_rate,
        options.max_gradient_norm,
        lambda target, _weights, _updates: target,
    )
    if strategy.slice_rows:
        gradient = gradient_in_slices(model, layout, loss, strategy)
        update = update_in_parts(gradient, optimization.apply)
    else:
        gradient = make_gradient(layout, whole)
        update = jax.jit(make_update(gradient, optimization.apply), donate_argnums=0)
        gradient = jax.jit(gradient)
    return Agent(
        init=make_init(module, spec.observation, layout, optimization.optimizer, with_target=False),
        act=jax.jit(act),
        values=jax.jit(preferences),
        gradient=gradient,
        learn=partial(learn_from_rollout, options, update),
        layout=layout,
        strategy=strategy,
        numpy_forward=make_numpy_forward(layout, spec.observation, len(network.hidden), dueling=False)
        if strategy.numpy_rows
        else None,
        respond=jax.jit(respond),
        layers=jax.jit(layout.unravel),
        cached_forward=make_cached_forward(
            model.flat_features, model.answers, layout, loss, spec.observation, strategy.cached_rows
        )
        if strategy.cached_rows
        else None,
        state_size=model.state_size,
        updates_per_call=options.updates_per_batch,
        max_gradient_norm=options.max_gradient_norm,
        **optimization.compiled(),
    )


@dataclass(frozen=True)
class Model:
    """The network in two parts: features of each observation alone, and what goes through time."""

    module: nn.Module
    actions: int
    state_size: int
    """Numbers of the recurrent state; 0 = none."""

    def features(self, tree: Any, observation: Array) -> jax.Array:
        """`[rows, unrolls, ...]` observations, or any two leading axes; without recurrent state, the outputs."""
        lead = observation.shape[:2]
        flat = observation.reshape(-1, *observation.shape[2:])
        return self.flat_features(tree, flat).reshape(*lead, -1)

    def flat_features(self, tree: Any, observation: Array) -> jax.Array:
        """The same for a list of observations."""
        method = Recurrent.features if self.state_size else None
        found: Any = self.module.apply({"params": tree}, observation, method=method)
        return found

    def through_time(self, tree: Any, features: jax.Array, state: Array, first: Array) -> tuple[jax.Array, jax.Array]:
        """The last state, and outputs `[rows, unrolls, actions + 1]`."""
        if not self.state_size:
            return jnp.asarray(state), features

        def turn(state: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            found: Any = self.module.apply({"params": tree}, state, *now, method=Recurrent.turn)
            return found

        return jax.lax.scan(turn, jnp.asarray(state), (features, jnp.asarray(first)))

    def respond(
        self, tree: Any, observation: Array, mask: Array | None, state: Array, first: Array
    ) -> tuple[jax.Array, jax.Array]:
        """One row for each observation, illegal actions never preferred, and the next states."""
        features = self.flat_features(tree, observation)[None]
        state, (rows,) = self.through_time(tree, features, state, jnp.asarray(first)[None])
        return self.answers(rows, mask), state

    @staticmethod
    def answers(rows: jax.Array, mask: Array | None) -> jax.Array:
        """Outputs in which illegal actions are never preferred."""
        return jnp.concatenate([legal(rows[:, :-1], mask), rows[:, -1:]], axis=-1)


def rollout_loss(
    options: ActorCriticOptions, model: Model, tree: Any, features: jax.Array, batch: Rollout
) -> tuple[jax.Array, Learned]:
    """The loss of a batch of unrolls."""
    _, outputs = model.through_time(tree, features, batch.recurrent_state, batch.first)
    values, preferences = outputs[..., -1], legal(outputs[..., :-1], batch.mask)[:-1]
    log_all = jax.nn.log_softmax(preferences)
    chances = jnp.exp(log_all)
    taken = jnp.asarray(batch.action)[:-1, :, None]
    log_prob = jnp.take_along_axis(log_all, taken, axis=-1)[..., 0]
    if options.probability_floor > 0:
        log_prob = jnp.log(jnp.exp(log_prob) + options.probability_floor)
    weight = jnp.asarray(batch.weight)
    ratio = jnp.exp(log_prob - batch.log_prob[:-1])
    chex.assert_equal_shape([ratio, log_prob, values[:-1], weight[:-1]])
    returns, advantage = jax.lax.stop_gradient(targets_and_advantages(options, values, ratio, batch))
    weight = weight[:-1]
    share = 1.0 / jnp.maximum(1.0, jnp.sum(weight))
    if options.normalize_advantage:
        advantage = standardized(advantage, weight, share)
    if options.ratio_clip > 0:
        high = 1.0 + options.ratio_clip
        policy = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 / high, high) * advantage)
    else:
        policy = -log_prob * advantage
    entropy = -jnp.sum(chances * jnp.where(chances > 0, log_all, 0.0), axis=-1)
    each = policy + options.value_weight * rlax.l2_loss(values[:-1] - returns) - batch.entropy * entropy
    total = jnp.sum(each * weight)
    total = total * share if options.reduction == "mean" else total
    mean_entropy, mean_value = (jnp.sum(x * weight) * share for x in (entropy, jnp.abs(values[:-1])))
    return total, Learned(total, jnp.zeros(()), mean_entropy, mean_value)


def targets_and_advantages(
    options: ActorCriticOptions, values: jax.Array, ratio: jax.Array, batch: Rollout
) -> tuple[jax.Array, jax.Array]:
    """Targets of the values, and advantages of the actions taken: `[rows - 1, unrolls]` each."""
    weight, reward, discount = (jnp.asarray(x)[:-1] for x in (batch.weight, batch.reward, batch.discount))
    before, after = values[:-1], values[1:]
    if options.correction == "gae":
        follows = jnp.concatenate([weight[1:], jnp.zeros_like(weight[:1])])  # a final observation passes nothing back
        estimate = jax.vmap(rlax.truncated_generalized_advantage_estimation, in_axes=1, out_axes=1)
        advantage = estimate(reward, discount, options.trace * follows, values)
        return before + advantage, advantage
    corrected = options.correction == "vtrace"
    rho_clip, c_clip = (options.rho_clip, options.c_clip) if corrected else (1.0, 1.0)
    played = weight * (ratio if corrected else 1.0)
    flows = options.trace * jnp.minimum(c_clip, played) / jnp.maximum(jnp.minimum(1.0, played), 1e-8)
    trace = partial(rlax.vtrace, clip_rho_threshold=rho_clip)
    errors = jax.vmap(trace, in_axes=1, out_axes=1)(before, after, reward, discount, played, flows)
    returns = before + errors
    bootstrap = jnp.concatenate([returns[1:], after[-1:]])
    advantage = reward + discount * bootstrap - before
    if options.ratio_clip == 0:  # else the ratio is in the objective itself
        advantage = advantage * jnp.minimum(rho_clip, played)
    return returns, advantage


def standardized(x: jax.Array, weight: jax.Array, share: jax.Array) -> jax.Array:
    """Mean 0 and deviation 1 over what counts."""
    mean = jnp.sum(x * weight) * share
    variance = jnp.sum((x - mean) ** 2 * weight) * share
    return (x - mean) / jnp.sqrt(variance + 1e-8)


def learn_from_rollout(
    options: ActorCriticOptions, update: Update, state: LearnerState, batch: Rollout, rate: Rate | None = None
) -> tuple[LearnerState, Learned]:
    """All updates of a batch: every epoch goes through its unrolls in another order."""
    rate = options.learning_rate if rate is None else rate
    if options.updates_per_batch == 1:
        return update(state, batch, rate)
    unrolls, parts = batch.action.shape[1], options.minibatches
    chance = np.random.default_rng(np.random.SeedSequence([int(state.updates), unrolls]))
    found = []
    for _ in range(options.epochs):
        order = chance.permutation(unrolls) if parts > 1 else np.arange(unrolls)
        for part in range(parts):
            some = order[part * unrolls // parts : (part + 1) * unrolls // parts]
            state, learned = update(state, some_unrolls(batch, some) if parts > 1 else batch, rate)
            found.append(learned)
    return state, stack(found)


def some_unrolls(batch: Rollout, which: np.ndarray[Any, Any]) -> Rollout:
    """A part of a batch."""
    rows = {name: x[:, which] for name, x in batch._asdict().items() if np.ndim(x) > 1 and name != "recurrent_state"}
    return batch._replace(**rows, recurrent_state=batch.recurrent_state[which])


def update_in_parts(gradient: Gradient, apply: Apply) -> Update:
    """The gradient by itself, then the step."""
    step = jax.jit(partial(finish_update, apply), donate_argnums=0)

    def update(state: LearnerState, batch: Rollout, rate: Rate) -> tuple[LearnerState, Learned]:
        return step(state, *gradient(state.weights, state.target, batch, state.key), rate)

    return update


def gradient_in_slices(model: Model, layout: Layout, loss: Callable[..., Any], strategy: Strategy) -> Gradient:
    """For convolutions: forward and backward in slices of observations, side by side on several threads.

    Only the features are cut; what goes through time is computed for all of them in between. Each slice's forward pass
    keeps what its backward pass needs, so nothing is computed twice. Not to be called inside a compiled function.
    """

    @jax.jit
    def forward(tree: Any, observation: Array) -> tuple[jax.Array, Any]:
        return jax.vjp(lambda tree: model.flat_features(tree, observation), tree)

    @jax.jit
    def between(tree: Any, pieces: list[jax.Array], batch: Rollout) -> Any:
        features = jnp.concatenate(pieces).reshape(*batch.action.shape, -1)
        found, (own, wanted) = jax.value_and_grad(loss, (0, 1), has_aux=True)(tree, features, batch)
        edges = np.cumsum([piece.shape[0] for piece in pieces])[:-1]
        return found, layout.ravel(own), jnp.split(wanted.reshape(-1, wanted.shape[-1]), edges)

    @jax.jit
    def backward(pull: Any, wanted: jax.Array) -> jax.Array:
        return layout.ravel(pull(wanted)[0])

    @jax.jit
    def added(parts: list[jax.Array]) -> jax.Array:
        return sum(parts[1:], parts[0])

    unravel, each = jax.jit(layout.unravel), map_on_threads(strategy.threads)

    def gradient(weights: jax.Array, _target: Any, batch: Rollout, _key: Any) -> tuple[jax.Array, Learned]:
        tree = unravel(weights)
        flat = batch.observation.reshape(-1, *batch.observation.shape[2:])
        pieces = [flat[low:high] for low, high in slice_edges(len(flat), strategy.slice_rows)]
        seen = each(partial(forward, tree), pieces)
        small = batch._replace(observation=np.zeros(0, np.uint8))  # the loss does not look at it
        (_, learned), own, wanted = between(tree, [features for features, _ in seen], small)
        return added([own, *each(backward, [pull for _, pull in seen], wanted)]), learned

    return gradient
