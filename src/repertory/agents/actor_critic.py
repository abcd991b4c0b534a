"""Advantage actor-critic agents as options of one: A3C, IMPALA, APPO.

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
import optax

from repertory.agents.agent import Agent, Array, Learned, LearnerState, Rate, Rollout
from repertory.agents.learning import (
    Gradient,
    Optimization,
    OptimizerName,
    Update,
    add_up,
    finish_update,
    legal,
    make_agent,
    make_cached_forward,
    make_gradient,
    make_update,
    map_on_threads,
    slice_edges,
    stack,
)
from repertory.agents.networks import NetworkOptions, Recurrent, build_policy_network, measure_layout
from repertory.agents.strategy import Strategy, choose_strategy, device
from repertory.agents.vector import Layout
from repertory.errors import UserError
from repertory.limits import NonNegative, Positive, Share
from repertory.specs import EnvironmentSpec


@dataclass(frozen=True)
class ActorCriticOptions:
    """Actor-critic agents."""

    unroll: Positive[int] = 20
    """Unroll length (t_max): steps of one environment that are learned from together; typically 5 to 128."""
    batch_unrolls: Positive[int] = 8
    """Batch size in unrolls of one environment, rounded down to whole groups of environments; typically 8 to 64."""
    learning_rate: Positive[float] = 6e-4
    """Learning rate at the start of training; typically 1e-4 to 1e-3."""
    learning_rate_end: NonNegative[float] = 0.0
    """Learning rate at the end of its linear schedule; unused if `learning_rate_steps` is 0."""
    learning_rate_steps: NonNegative[int] = 0
    """Learning rate schedule: env steps over which it falls linearly to `learning_rate_end`; 0 = constant."""
    discount: Share[float] = 0.99
    """Discount factor γ; typically 0.95 to 0.999."""
    correction: Literal["none", "vtrace", "gae"] = "vtrace"
    """Returns: n-step as played (`none`, A3C), off-policy corrected (`vtrace`), generalized advantage estimation
    (`gae`, PPO)."""
    rho_clip: Positive[float] = 1.0
    """V-trace's ρ̄: clip the importance weight of a step's error to this; typically 1."""
    c_clip: Positive[float] = 1.0
    """V-trace's c̄: clip the importance weight with which later errors flow back to this; typically 1."""
    trace: Share[float] = 1.0
    """Trace decay λ of GAE and V-trace: 1 = returns as long as the unroll, 0 = one-step targets; typically 0.9 to 1."""
    ratio_clip: NonNegative[float] = 0.0
    """PPO clip range ε: the probability ratio is clipped to 1/(1 + ε) … 1 + ε; 0 = no clip, typically 0.1 to 0.2."""
    epochs: Positive[int] = 1
    """Epochs: passes over each batch; typically 1 to 10."""
    minibatches: Positive[int] = 1
    """Minibatches of each batch, with one update each; typically 1 to 8."""
    normalize_advantage: bool = False
    """Normalize the advantages of an update to mean 0 and standard deviation 1."""
    entropy: NonNegative[float] = 0.01
    """Entropy coefficient at the start of training; typically 0.001 to 0.05."""
    entropy_end: NonNegative[float] = 0.0
    """Entropy coefficient at the end of its linear schedule; unused if `entropy_steps` is 0."""
    entropy_steps: NonNegative[int] = 0
    """Entropy schedule: env steps over which the coefficient falls linearly to `entropy_end`; 0 = constant."""
    value_weight: NonNegative[float] = 0.5
    """Value loss coefficient; typically 0.25 to 1."""
    reduction: Literal["mean", "sum"] = "mean"
    """Loss reduction: mean over the steps of a batch, or their sum as in A3C and IMPALA."""
    probability_floor: NonNegative[float] = 0.0
    """Constant added to a probability before its logarithm, which keeps it finite; 0 = none (GA3C: 1e-6)."""
    max_gradient_norm: NonNegative[float] = 40.0
    """Clip gradients to this global norm (max grad norm); 0 = no clipping, typically 0.5 to 40."""
    optimizer: OptimizerName = "adam"
    """Optax optimizer; `shared_rmsprop` is RMSProp as in Mnih et al. 2016, not centred."""
    optimizer_epsilon: Positive[float] = 1e-5
    """Epsilon in the optimizer's denominator; typically 1e-8 to 0.1."""

    @property
    def updates_per_batch(self) -> int:
        return self.epochs * self.minibatches

    def check(self) -> None:
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
    optimization = Optimization.of(options, lambda target, _weights, _updates: target)
    model = Model(module, spec.actions, 2 * network.lstm_size)
    loss = partial(rollout_loss, options, model)

    def respond(
        weights: Any, observation: Array, mask: Array | None, state: Array, first: Array
    ) -> tuple[jax.Array, jax.Array]:
        tree = weights if isinstance(weights, dict) else layout.unravel(weights)
        return model.respond(tree, observation, mask, state, first)

    def logits(weights: jax.Array, observation: Array, mask: Array | None, _key: Any) -> jax.Array:
        count = observation.shape[0]
        rows, _ = respond(weights, observation, mask, jnp.zeros((count, model.state_size)), jnp.ones(count, bool))
        return rows[:, :-1]

    def whole(tree: Any, _target: Any, batch: Rollout, _key: Any) -> tuple[jax.Array, Learned]:
        return loss(tree, model.features(tree, batch.observation), batch)

    update: Update
    if strategy.slice_rows:
        gradient = gradient_in_slices(model, layout, loss, strategy)
        step = jax.jit(partial(finish_update, optimization.apply), donate_argnums=0)

        def update(state: LearnerState, batch: Rollout, rate: Rate) -> tuple[LearnerState, Learned]:
            return step(state, *gradient(state.weights, state.target, batch, state.key), rate)
    else:
        gradient = make_gradient(layout, whole)
        update = jax.jit(make_update(gradient, optimization.apply), donate_argnums=0)
        gradient = jax.jit(gradient)
    cached_forward = None
    if strategy.cached_rows:
        cached_forward = make_cached_forward(
            model.flat_features, model.masked, layout, loss, spec.observation, strategy.cached_rows
        )
    return make_agent(
        network,
        spec,
        module,
        layout,
        strategy,
        optimization,
        logits,
        target=False,
        gradient=gradient,
        learn=partial(learn_from_rollout, options, update),
        respond=jax.jit(respond),
        layers=jax.jit(layout.unravel),
        cached_forward=cached_forward,
        state_size=model.state_size,
        updates_per_call=options.updates_per_batch,
    )


@dataclass(frozen=True)
class Model:
    """The network in two parts: features of each observation alone, and what goes through time."""

    module: nn.Module
    actions: int
    state_size: int
    """Numbers of the recurrent state; 0 = no LSTM."""

    def features(self, tree: Any, observation: Array) -> jax.Array:
        """Of `[rows, unrolls, ...]` observations; without recurrent state, these are the outputs."""
        lead = observation.shape[:2]
        flat = observation.reshape(-1, *observation.shape[2:])
        return self.flat_features(tree, flat).reshape(*lead, -1)

    def flat_features(self, tree: Any, observation: Array) -> jax.Array:
        method = Recurrent.features if self.state_size else None
        found: Any = self.module.apply({"params": tree}, observation, method=method)
        return found

    def through_time(self, tree: Any, features: jax.Array, state: Array, first: Array) -> tuple[jax.Array, jax.Array]:
        """The last recurrent state, and outputs `[rows, unrolls, actions + 1]`."""
        if not self.state_size:
            return jnp.asarray(state), features

        def step(state: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            found: Any = self.module.apply({"params": tree}, state, *now, method=Recurrent.step)
            return found

        return jax.lax.scan(step, jnp.asarray(state), (features, jnp.asarray(first)))

    def respond(
        self, tree: Any, observation: Array, mask: Array | None, state: Array, first: Array
    ) -> tuple[jax.Array, jax.Array]:
        """One row of outputs for each observation, and the next recurrent states."""
        features = self.flat_features(tree, observation)[None]
        state, (rows,) = self.through_time(tree, features, state, jnp.asarray(first)[None])
        return self.masked(rows, mask), state

    @staticmethod
    def masked(rows: jax.Array, mask: Array | None) -> jax.Array:
        return jnp.concatenate([legal(rows[:, :-1], mask), rows[:, -1:]], axis=-1)


def rollout_loss(
    options: ActorCriticOptions, model: Model, tree: Any, features: jax.Array, batch: Rollout
) -> tuple[jax.Array, Learned]:
    """Policy gradient, value and entropy loss of a batch of unrolls."""
    _, outputs = model.through_time(tree, features, batch.recurrent_state, batch.first)
    values, logits = outputs[..., -1], legal(outputs[..., :-1], batch.mask)[:-1]
    log_all = jax.nn.log_softmax(logits)
    probability = jnp.exp(log_all)
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
    entropy = -jnp.sum(probability * jnp.where(probability > 0, log_all, 0.0), axis=-1)
    each = policy + options.value_weight * optax.l2_loss(values[:-1] - returns) - batch.entropy * entropy
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
        advantage = summed_backwards(reward + discount * after - before, discount * options.trace * follows)
        return before + advantage, advantage
    corrected = options.correction == "vtrace"
    rho_clip, c_clip = (options.rho_clip, options.c_clip) if corrected else (1.0, 1.0)
    played = weight * (ratio if corrected else 1.0)
    errors = jnp.minimum(rho_clip, played) * (reward + discount * after - before)
    returns = before + summed_backwards(errors, discount * options.trace * jnp.minimum(c_clip, played))
    bootstrap = jnp.concatenate([returns[1:], after[-1:]])
    advantage = reward + discount * bootstrap - before
    if options.ratio_clip == 0:  # else the ratio is in the objective itself
        advantage = advantage * jnp.minimum(rho_clip, played)
    return returns, advantage


def summed_backwards(errors: jax.Array, decays: jax.Array) -> jax.Array:
    """`[rows, unrolls]`: each error, plus its decay times the sum of the row after it.

    What generalized advantages (Schulman et al. 2016) and V-trace (Espeholt et al. 2018) have in common. RLax has both,
    but importing it takes half a second of every start: it brings Distrax and TensorFlow Probability.
    """

    def add(later: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        total = row[0] + row[1] * later
        return total, total

    return jax.lax.scan(add, jnp.zeros_like(errors[0]), (errors, decays), reverse=True)[1]


def standardized(x: jax.Array, weight: jax.Array, share: jax.Array) -> jax.Array:
    """Mean 0 and standard deviation 1 over the steps that count."""
    mean = jnp.sum(x * weight) * share
    variance = jnp.sum((x - mean) ** 2 * weight) * share
    return (x - mean) / jnp.sqrt(variance + 1e-8)


def learn_from_rollout(
    options: ActorCriticOptions, update: Update, state: LearnerState, batch: Rollout, rate: Rate | None = None
) -> tuple[LearnerState, Learned]:
    """All updates of a batch: every epoch goes through its unrolls in a new order."""
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
    rows = {name: x[:, which] for name, x in batch._asdict().items() if np.ndim(x) > 1 and name != "recurrent_state"}
    return batch._replace(**rows, recurrent_state=batch.recurrent_state[which])


def gradient_in_slices(model: Model, layout: Layout, loss: Callable[..., Any], strategy: Strategy) -> Gradient:
    """For convolutions: forward and backward in slices of observations, side by side on several threads.

    Only the features are cut; the LSTM and the loss are computed for all of them in between. Each slice's forward pass
    caches the activations for its backward pass. Not to be called inside a compiled function.
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

    unravel, each = jax.jit(layout.unravel), map_on_threads(strategy.threads)

    def gradient(weights: jax.Array, _target: Any, batch: Rollout, _key: Any) -> tuple[jax.Array, Learned]:
        tree = unravel(weights)
        flat = batch.observation.reshape(-1, *batch.observation.shape[2:])
        pieces = [flat[low:high] for low, high in slice_edges(len(flat), strategy.slice_rows)]
        seen = each(partial(forward, tree), pieces)
        small = batch._replace(observation=np.zeros(0, np.uint8))  # the loss does not look at it
        (_, learned), own, wanted = between(tree, [features for features, _ in seen], small)
        return add_up([own, *each(backward, [pull for _, pull in seen], wanted)]), learned

    return gradient
