"""The DQN family as options of one agent.

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

from repertory.agents.agent import Agent, Array, Learned, Transitions
from repertory.agents.learning import Optimization, OptimizerName, legal, make_agent, make_gradient, make_learn
from repertory.agents.networks import NetworkOptions, build_network, measure_layout
from repertory.agents.strategy import choose_strategy, device
from repertory.errors import UserError
from repertory.limits import NonNegative, Positive, Range, Share
from repertory.specs import EnvironmentSpec


@dataclass(frozen=True)
class QLearningOptions:
    """The DQN family: each part can be turned on or off alone."""

    batch_size: Positive[int] = 32
    """Batch size: transitions of each update; typically 32 to 512."""
    learning_rate: Positive[float] = 2.5e-4
    """Learning rate at the start of training; typically 5e-5 to 1e-3."""
    learning_rate_end: NonNegative[float] = 0.0
    """Learning rate at the end of its linear schedule; unused if `learning_rate_steps` is 0."""
    learning_rate_steps: NonNegative[int] = 0
    """Learning rate schedule: env steps over which it falls linearly to `learning_rate_end`; 0 = constant."""
    discount: Share[float] = 0.99
    """Discount factor γ; typically 0.95 to 0.999."""
    n_step: Positive[int] = 1
    """n-step returns: rewards summed before bootstrapping; typically 1 to 5."""
    double: bool = True
    """Double DQN: the online network chooses the bootstrap action."""
    dueling: bool = False
    """Dueling network: separate streams for the state's value and the actions' advantages."""
    prioritized: bool = False
    """Prioritized experience replay (PER): sample in proportion to the TD error."""
    distributional: bool = False
    """Distributional RL (C51): learn the return's distribution over fixed atoms."""
    noisy: bool = False
    """Noisy networks (NoisyNet): explore by noise on the weights instead of ε-greedy."""
    sarsa: bool = False
    """Sarsa: bootstrap from the action that was taken next, not from the best."""
    replay: bool = True
    """Experience replay (replay buffer); without it, each step is learned from once, as it comes."""
    target: bool = True
    """Target network: bootstrap from an older copy of the network."""
    target_period: Positive[int] = 500
    """Target network update period, in updates; typically 100 to 10,000."""
    target_tau: Share[float] = 0.0
    """Soft target updates (Polyak averaging) at rate τ every update, instead of copies; 0 = copies, typically 0.005."""
    loss: Literal["huber", "squared"] = "huber"
    """Loss of the TD error: Huber or squared error."""
    max_gradient_norm: NonNegative[float] = 10.0
    """Clip gradients to this global norm (max grad norm); 0 = no clipping, typically 0.5 to 40."""
    optimizer: OptimizerName = "adam"
    """Optax optimizer; `shared_rmsprop` is RMSProp as in Mnih et al. 2016, not centred."""
    optimizer_epsilon: Positive[float] = 1e-8
    """Epsilon in the optimizer's denominator; typically 1e-8 to 0.01."""
    replay_capacity: Positive[int] = 100_000
    """Replay buffer size in env steps, all lanes together; typically 10,000 to 1,000,000."""
    learning_starts: NonNegative[int] = 1_000
    """Warm-up: env steps before the first update; typically 1,000 to 50,000."""
    replay_ratio: Positive[float] = 8.0
    """Replay ratio: samples learned from per env step; typically 1 to 32 (DQN on Atari: 8)."""
    updates_per_call: Positive[int] = 1
    """Updates in one compiled call; more is faster, but actors get new weights only after all of them."""
    epsilon_start: Share[float] = 1.0
    """ε-greedy exploration: share of random actions at the start of training; typically 1."""
    epsilon_end: Share[float] = 0.05
    """ε-greedy exploration: share of random actions from `epsilon_steps` on; typically 0.01 to 0.1."""
    epsilon_steps: NonNegative[int] = 10_000
    """ε-greedy exploration: env steps over which ε falls linearly to `epsilon_end`; typically 10,000 to 1,000,000."""
    priority_exponent: Share[float] = 0.6
    """Priority exponent α: 0 = uniform sampling, 1 = in full proportion to the TD error; typically 0.5 to 0.7."""
    importance_exponent: Share[float] = 0.4
    """Importance-sampling exponent β at the start of training: 0 = no correction for PER, 1 = full; typically 0.4."""
    importance_steps: NonNegative[int] = 0
    """Importance sampling: env steps over which β rises linearly to 1; 0 = constant."""
    atoms: Annotated[int, Range(2)] = 51
    """C51: number of atoms of the return distribution; typically 51."""
    value_min: float = -10.0
    """C51: lowest return of the support (v_min); lower targets are clipped to it."""
    value_max: float = 10.0
    """C51: highest return of the support (v_max); higher targets are clipped to it."""

    def check(self) -> None:
        if self.value_min >= self.value_max:
            raise UserError(f"--agent.value-min {self.value_min} must be below --agent.value-max {self.value_max}")
        if self.replay and self.replay_capacity < max(self.batch_size, self.learning_starts):
            raise UserError(
                f"--agent.replay-capacity {self.replay_capacity} can't hold --agent.learning-starts "
                f"{self.learning_starts} steps and a batch of {self.batch_size}; make it larger"
            )
        if self.prioritized and not self.replay:
            raise UserError("--agent.prioritized needs a replay; drop it or drop --agent.no-replay")
        if self.epsilon_end > self.epsilon_start:
            raise UserError(
                f"--agent.epsilon-end {self.epsilon_end} is above --agent.epsilon-start {self.epsilon_start}"
            )


def make_q_learning(
    options: QLearningOptions,
    network: NetworkOptions,
    spec: EnvironmentSpec,
    threads: int = 1,
    errors: Errors | None = None,
) -> Agent:
    """The agent that the options describe; `threads` share a convolutional batch.

    An agent of another kind gives its own `errors` in place of `td_errors`, and shares all the rest.
    """
    strategy = choose_strategy(network, spec.observation, device(), threads)
    strategy = strategy.without_numpy() if options.noisy or options.distributional else strategy
    head = Head(spec.actions, options.atoms if options.distributional else 1, options)
    module = build_network(network, spec.observation, head.streams, options.noisy)
    layout = measure_layout(module, spec.observation, sum(head.streams), network)
    optimization = Optimization.of(options, partial(move_target, options))
    rows = partial(rows_of, module, head)

    def values(weights: jax.Array, observation: Array, mask: Array | None, key: jax.Array | None) -> jax.Array:
        return legal(head.expected(rows(layout.unravel(weights), key, observation)), mask)

    def loss(tree: Any, target: jax.Array, batch: Transitions, key: jax.Array) -> tuple[jax.Array, Learned]:
        keys = jax.random.split(key, 3) if options.noisy else (None, None, None)
        frozen = jax.lax.stop_gradient(tree)
        slow = layout.unravel(target) if options.target else frozen
        networks = Networks(*(partial(rows, *each) for each in zip((tree, slow, frozen), keys, strict=True)))
        return head.loss(*(errors or td_errors)(head, networks, batch), batch)

    gradient = make_gradient(layout, loss)
    return make_agent(
        network,
        spec,
        module,
        layout,
        strategy,
        optimization,
        values,
        dueling=options.dueling,
        gradient=jax.jit(gradient),
        learn=make_learn(strategy, gradient, optimization.apply, options.learning_rate),
        noisy=options.noisy,
        target_period=options.target_period if options.target and options.target_tau <= 0 else 0,
    )


def rows_of(module: nn.Module, head: Head, tree: Any, key: jax.Array | None, observation: Array) -> jax.Array:
    """The network's outputs as `Head.shape` gives them; without a key, noisy layers have no noise."""
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
        """The target network's values of the next observations, prefetched or not."""
        known = batch.bootstrap
        return self.target(batch.next_observation) if known is None else jnp.asarray(known)[..., None]


@dataclass(frozen=True)
class Head:
    """The meaning of the network's outputs, and their errors."""

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
        """TD errors, or the divergence of distributions from their projected targets."""
        chex.assert_equal_shape([rows, bootstrap])
        if self.options.distributional:
            each = jax.vmap(divergence, (None, 0, 0, 0, 0, 0, 0))
            return each(self.support, rows, batch.action, batch.reward, batch.discount, bootstrap, selector)
        ahead = _one_of_each(bootstrap[..., 0], jnp.argmax(selector, axis=-1))
        target = jax.lax.stop_gradient(jnp.asarray(batch.reward + batch.discount * ahead))
        return target - _one_of_each(rows[..., 0], batch.action)

    def size_of_values(self, rows: jax.Array, batch: Transitions) -> jax.Array:
        """Mean of |Q| of the actions taken, over rows whose weight is above 0."""
        taken = _one_of_each(self.expected(rows), batch.action)
        counts = jnp.asarray(batch.weight) > 0
        return jnp.sum(jnp.abs(taken) * counts) / jnp.maximum(1, jnp.sum(counts))

    def loss(self, errors: jax.Array, rows: jax.Array, batch: Transitions) -> tuple[jax.Array, Learned]:
        """The weighted mean penalty; priorities are the size of the errors."""
        total = jnp.mean(batch.weight * self.penalty(errors))
        return total, Learned(total, jnp.abs(errors), jnp.zeros(()), self.size_of_values(rows, batch))

    def penalty(self, errors: jax.Array) -> jax.Array:
        if self.options.distributional:
            return errors
        return optax.huber_loss(errors) if self.options.loss == "huber" else optax.l2_loss(errors)


Errors = Callable[[Head, Networks, Transitions], tuple[jax.Array, jax.Array]]
"""TD errors `[batch]`, and the online network's rows of `batch.observation`."""


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


def _one_of_each(rows: jax.Array, index: Array) -> jax.Array:
    return jnp.take_along_axis(rows, jnp.asarray(index)[:, None], axis=-1)[:, 0]


def projected(values: jax.Array, probabilities: jax.Array, support: jax.Array) -> jax.Array:
    """Probabilities on an evenly spaced support: each value's is divided among its two neighbours (Bellemare et al.
    2017, equation 7)."""
    inside = jnp.clip(values, support[0], support[-1])
    distance = jnp.abs(inside[None, :] - support[:, None]) / (support[1] - support[0])
    return jnp.clip(1.0 - distance, 0.0, 1.0) @ probabilities


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
    target = jax.lax.stop_gradient(projected(jnp.asarray(reward + discount * support), ahead, support))
    return -jnp.sum(target * jax.nn.log_softmax(logits[action])) - jnp.sum(jax.scipy.special.entr(target))


def move_target(options: QLearningOptions, target: jax.Array, weights: jax.Array, updates: jax.Array) -> jax.Array:
    """The target network after this many updates: unchanged if there is none, averaged, or copied periodically."""
    if not options.target:
        return target
    if options.target_tau > 0:
        return optax.incremental_update(weights, target, options.target_tau)
    return optax.periodic_update(weights, target, updates, options.target_period)
