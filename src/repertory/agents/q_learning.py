"""The DQN family as options of one agent; imports JAX, RLax, Optax.

Mnih et al. 2015 (DQN), van Hasselt et al. 2016 (double), Wang et al. 2016 (dueling), Schaul et al. 2016 (prioritised),
Bellemare et al. 2017 (C51), Fortunato et al. 2018 (noisy), Hessel et al. 2018 (all of them: Rainbow). n-step returns
are summed when a batch is sampled, so every target here is `reward + discount · bootstrap`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import rlax

from repertory.agents.agent import Agent, Array, Learned, Transitions
from repertory.agents.learning import legal, make_gradient, make_init, make_learn
from repertory.agents.network_registry import build_network, measure_layout
from repertory.agents.networks import NetworkOptions
from repertory.agents.optimizing import OptimizerName, make_optimization
from repertory.agents.strategy import choose_strategy, device, make_numpy_forward
from repertory.errors import UserError
from repertory.limits import NonNegative, Positive, Range, Share
from repertory.specs import EnvironmentSpec


@dataclass(frozen=True)
class QLearningOptions:
    """A member of the DQN family: each part on or off alone."""

    batch_size: Positive[int] = 32
    """Samples an update learns from."""
    learning_rate: Positive[float] = 2.5e-4
    """Step size of the optimiser."""
    learning_rate_end: NonNegative[float] = 0.0
    """Step size from `learning_rate_steps` on."""
    learning_rate_steps: NonNegative[int] = 0
    """Env steps over which the step size falls linearly; 0 = it stays."""
    discount: Share[float] = 0.99
    """γ: what a reward one step later is worth."""
    n_step: Positive[int] = 1
    """Rewards summed before bootstrapping."""
    double: bool = True
    """Choose the bootstrap action by the online network."""
    dueling: bool = False
    """Separate streams for the state's value and the actions' advantages."""
    prioritized: bool = False
    """Sample in proportion to the temporal-difference error."""
    distributional: bool = False
    """Learn the return's distribution over fixed atoms (C51)."""
    noisy: bool = False
    """Explore by noise on the weights instead of ε."""
    sarsa: bool = False
    """Bootstrap from the action that was taken next, not from the best."""
    replay: bool = True
    """Learn from a memory; without it, each step is learned from once, as it comes."""
    target: bool = True
    """Bootstrap from a slower copy of the network."""
    target_period: Positive[int] = 500
    """Updates between copies into the target network."""
    target_tau: Share[float] = 0.0
    """If above 0, the target follows at this rate every update instead of being copied."""
    loss: Literal["huber", "squared"] = "huber"
    """Shape of the penalty on the temporal-difference error."""
    max_gradient_norm: NonNegative[float] = 10.0
    """Gradients longer than this are shortened to it; 0 = never."""
    optimizer: OptimizerName = "adam"
    """Which Optax optimiser follows the gradient; shared_rmsprop is RMSProp as in Mnih et al. 2016, not centred."""
    optimizer_epsilon: Positive[float] = 1e-8
    """Added to the optimiser's denominator."""
    replay_capacity: Positive[int] = 100_000
    """Steps that the memory holds, all lanes together."""
    learning_starts: NonNegative[int] = 1_000
    """Env steps before the first update."""
    replay_ratio: Positive[float] = 8.0
    """Samples learned per env step."""
    updates_per_call: Positive[int] = 1
    """Updates in one compiled call; more is faster, and acts on weights that many updates old."""
    epsilon_start: Share[float] = 1.0
    """Share of random actions at the start."""
    epsilon_end: Share[float] = 0.05
    """Share of random actions from `epsilon_steps` on."""
    epsilon_steps: NonNegative[int] = 10_000
    """Env steps over which ε falls linearly."""
    priority_exponent: Share[float] = 0.6
    """α: 0 samples uniformly, 1 in full proportion to the error."""
    importance_exponent: Share[float] = 0.4
    """β at the start: how far unequal sampling is weighed back."""
    importance_steps: NonNegative[int] = 0
    """Env steps over which β rises to 1; 0 = it stays."""
    atoms: Annotated[int, Range(2)] = 51
    """Support points of the distribution."""
    value_min: float = -10.0
    """Lowest return on the support."""
    value_max: float = 10.0
    """Highest return on the support."""

    def check(self) -> None:
        """Refuse options that contradict each other."""
        if self.value_min >= self.value_max:
            raise UserError(f"--agent.value-min {self.value_min} must lie below --agent.value-max {self.value_max}")
        if self.replay and self.replay_capacity < max(self.batch_size, self.learning_starts):
            raise UserError(
                f"--agent.replay-capacity {self.replay_capacity} can't hold --agent.learning-starts "
                f"{self.learning_starts} steps and a batch of {self.batch_size}; make it larger"
            )
        if self.prioritized and not self.replay:
            raise UserError("--agent.prioritized needs a replay; drop it or drop --agent.no-replay")
        if self.epsilon_end > self.epsilon_start:
            raise UserError(
                f"--agent.epsilon-end {self.epsilon_end} lies above --agent.epsilon-start {self.epsilon_start}"
            )


def make_q_learning(
    options: QLearningOptions,
    network: NetworkOptions,
    spec: EnvironmentSpec,
    threads: int = 1,
    errors: Errors | None = None,
) -> Agent:
    """The agent that the options describe, for environments of this kind; `threads` share a convolutional batch.

    An agent of another kind gives its own `errors` in place of `td_errors`, and shares all the rest.
    """
    strategy = choose_strategy(network, spec.observation, device(), threads)
    strategy = strategy.without_numpy() if options.noisy or options.distributional else strategy
    head = Head(spec.actions, options.atoms if options.distributional else 1, options)
    module = build_network(network, spec.observation, head.streams, options.noisy)
    layout = measure_layout(module, spec.observation, sum(head.streams), network)
    rows = partial(rows_of, module, head)

    def values(weights: jax.Array, observation: Array, mask: Array | None, key: jax.Array | None) -> jax.Array:
        return legal(head.expected(rows(layout.unravel(weights), key, observation)), mask)

    def act(weights: jax.Array, observation: Array, mask: Array | None, key: jax.Array | None) -> jax.Array:
        return jnp.argmax(values(weights, observation, mask, key), axis=-1)

    def loss(tree: Any, target: jax.Array, batch: Transitions, key: jax.Array) -> tuple[jax.Array, Learned]:
        keys = jax.random.split(key, 3) if options.noisy else (None, None, None)
        frozen = jax.lax.stop_gradient(tree)
        slow = layout.unravel(target) if options.target else frozen
        networks = Networks(*(partial(rows, *each) for each in zip((tree, slow, frozen), keys, strict=True)))
        return head.loss(*(errors or td_errors)(head, networks, batch), batch)

    gradient = make_gradient(layout, loss)
    optimization = make_optimization(
        options.optimizer,
        options.optimizer_epsilon,
        options.learning_rate,
        options.max_gradient_norm,
        partial(move_target, options),
    )
    return Agent(
        init=make_init(module, spec.observation, layout, optimization.optimizer),
        act=jax.jit(act),
        values=jax.jit(values),
        gradient=jax.jit(gradient),
        learn=make_learn(strategy, gradient, optimization.apply, options.learning_rate),
        layout=layout,
        strategy=strategy,
        noisy=options.noisy,
        target_period=options.target_period if options.target and options.target_tau <= 0 else 0,
        max_gradient_norm=options.max_gradient_norm,
        numpy_forward=make_numpy_forward(layout, spec.observation, len(network.hidden), options.dueling)
        if strategy.numpy_rows
        else None,
        **optimization.compiled(),
    )


def rows_of(module: nn.Module, head: Head, tree: Any, key: jax.Array | None, observation: Array) -> jax.Array:
    """The network's outputs as `Head.shape` gives them; without a key, noisy layers are still."""
    rngs = {"noise": key} if head.options.noisy and key is not None else None
    outputs: Any = module.apply({"params": tree}, observation, rngs=rngs)
    return head.shape(outputs)


@dataclass(frozen=True)
class Networks:
    """Three networks, each from observations to `[batch, actions, atoms]`; gradients flow through `online` alone."""

    online: Callable[[Array], jax.Array]
    target: Callable[[Array], jax.Array]
    frozen: Callable[[Array], jax.Array]
    """The weights of `online`, with noise of its own."""

    def bootstrap(self, batch: Transitions) -> jax.Array:
        """What the target network says of the next observations, prefetched or not."""
        known = batch.bootstrap
        return self.target(batch.next_observation) if known is None else jnp.asarray(known)[..., None]


@dataclass(frozen=True)
class Head:
    """What the network's outputs mean, and how far they are from their targets."""

    actions: int
    atoms: int
    options: QLearningOptions

    @property
    def streams(self) -> tuple[int, ...]:
        """Outputs of the network's streams: of a dueling one the state's value, then the advantages."""
        each = self.actions * self.atoms
        return (self.atoms, each) if self.options.dueling else (each,)

    @property
    def support(self) -> jax.Array:
        """The returns that the atoms stand for."""
        return jnp.linspace(self.options.value_min, self.options.value_max, self.atoms)

    def shape(self, outputs: jax.Array) -> jax.Array:
        """`[batch, actions, atoms]`: logits of the distribution, or values in a last axis of one."""
        if not self.options.dueling:
            return outputs.reshape(-1, self.actions, self.atoms)
        return dueling(outputs, self.actions, self.atoms)

    def expected(self, rows: jax.Array) -> jax.Array:
        """Q-values `[batch, actions]`."""
        if not self.options.distributional:
            return rows[..., 0]
        return jnp.sum(jax.nn.softmax(rows) * self.support, axis=-1)

    def selector(self, chooser: jax.Array, batch: Transitions) -> jax.Array:
        """Scores whose maximum is the action to bootstrap from: for Sarsa the one taken next."""
        if self.options.sarsa:
            return jax.nn.one_hot(batch.next_action, self.actions)
        return legal(self.expected(chooser), batch.next_mask)

    def errors(self, rows: jax.Array, batch: Transitions, bootstrap: jax.Array, selector: jax.Array) -> jax.Array:
        """Temporal-difference errors, or how far distributions diverge from their projected targets."""
        chex.assert_equal_shape([rows, bootstrap])
        if self.options.distributional:
            each = jax.vmap(divergence, (None, 0, 0, 0, 0, 0, 0))
            return each(self.support, rows, batch.action, batch.reward, batch.discount, bootstrap, selector)
        return jax.vmap(rlax.double_q_learning)(
            rows[..., 0], batch.action, batch.reward, batch.discount, bootstrap[..., 0], selector
        )

    def size_of_values(self, rows: jax.Array, batch: Transitions) -> jax.Array:
        """Mean of |Q| of the actions taken; rows that weigh nothing do not count."""
        taken = jnp.take_along_axis(self.expected(rows), jnp.asarray(batch.action)[:, None], axis=-1)[:, 0]
        counts = jnp.asarray(batch.weight) > 0
        return jnp.sum(jnp.abs(taken) * counts) / jnp.maximum(1, jnp.sum(counts))

    def loss(self, errors: jax.Array, rows: jax.Array, batch: Transitions) -> tuple[jax.Array, Learned]:
        """The weighted mean penalty; priorities are the size of the errors."""
        total = jnp.mean(batch.weight * self.penalty(errors))
        return total, Learned(total, jnp.abs(errors), jnp.zeros(()), self.size_of_values(rows, batch))

    def penalty(self, errors: jax.Array) -> jax.Array:
        """The loss of each error."""
        if self.options.distributional:
            return errors
        return rlax.huber_loss(errors) if self.options.loss == "huber" else rlax.l2_loss(errors)


Errors = Callable[[Head, Networks, Transitions], tuple[jax.Array, jax.Array]]
"""Temporal-difference errors `[batch]`, and the online network's rows of `batch.observation`."""


def td_errors(head: Head, networks: Networks, batch: Transitions) -> tuple[jax.Array, jax.Array]:
    """DQN's errors; the online network chooses the bootstrap action if the agent is `double`."""
    bootstrap = networks.bootstrap(batch)
    chooser = networks.frozen(batch.next_observation) if head.options.double else bootstrap
    selector = head.selector(chooser, batch)
    rows = networks.online(batch.observation)
    return head.errors(rows, batch, bootstrap, selector), rows


def dueling(outputs: jax.Array, actions: int, atoms: int) -> jax.Array:
    """Value plus centred advantages (Wang et al. 2016, equation 9)."""
    value = outputs[:, None, :atoms]
    advantage = outputs[:, atoms:].reshape(-1, actions, atoms)
    return value + advantage - jnp.mean(advantage, axis=1, keepdims=True)


def divergence(
    support: jax.Array,
    logits: jax.Array,
    action: Array,
    reward: Array,
    discount: Array,
    next_logits: jax.Array,
    selector: jax.Array,
) -> jax.Array:
    """Kullback-Leibler divergence from the projected target distribution: what C51 minimises and Rainbow prioritises.

    The target's own entropy has no gradient, so that of the cross-entropy is the same.
    """
    ahead = jax.nn.softmax(next_logits[jnp.argmax(selector)])
    target = jax.lax.stop_gradient(rlax.categorical_l2_project(reward + discount * support, ahead, support))
    return -jnp.sum(target * jax.nn.log_softmax(logits[action])) - jnp.sum(jax.scipy.special.entr(target))


def move_target(options: QLearningOptions, target: jax.Array, weights: jax.Array, updates: jax.Array) -> jax.Array:
    """The target network after this many updates: untouched if there is none, following, or copied in turn."""
    if not options.target:
        return target
    if options.target_tau > 0:
        return optax.incremental_update(weights, target, options.target_tau)
    return optax.periodic_update(weights, target, updates, options.target_period)
