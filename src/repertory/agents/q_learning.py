"""The DQN family as options of one agent; imports JAX, RLax, Optax.

Mnih et al. 2015 (DQN), van Hasselt et al. 2016 (double), Wang et al. 2016 (dueling), Schaul et al. 2016 (prioritised),
Bellemare et al. 2017 (C51), Fortunato et al. 2018 (noisy), Hessel et al. 2018 (all of them: Rainbow). n-step returns
are summed when a batch is sampled, so every target here is `reward + discount · bootstrap`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import rlax

from repertory.agents.agent import Agent, Array, Learned, LearnerState, Rate, Transitions
from repertory.agents.light import make_light
from repertory.agents.networks import NetworkOptions, build_network, choose_kind, convolves
from repertory.agents.optimizing import OptimizerName, make_advance, make_change, make_optimizer, shorten_gradient
from repertory.agents.vector import Layout
from repertory.errors import UserError
from repertory.limits import NonNegative, Positive, Range, Share
from repertory.specs import EnvironmentSpec, ObservationSpec

ILLEGAL = -1e9
SLICE = 32


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
) -> Agent:
    """The agent that the options describe, for environments of this kind; `threads` share a convolutional batch."""
    atoms = options.atoms if options.distributional else 1
    streams = (atoms, spec.actions * atoms) if options.dueling else (spec.actions * atoms,)
    module = build_network(network, spec.observation, streams, options.noisy)
    layout = measure_layout(module, spec.observation, sum(streams), network)
    head = Head(spec.actions, atoms, options)

    def rows(tree: Any, observation: Array, key: jax.Array | None) -> jax.Array:
        rngs = {"noise": key} if options.noisy and key is not None else None
        outputs: Any = module.apply({"params": tree}, observation, rngs=rngs)
        return head.shape(outputs)

    def values(weights: jax.Array, observation: Array, mask: Array | None, key: jax.Array | None) -> jax.Array:
        return legal(head.expected(rows(layout.unravel(weights), observation, key)), mask)

    def act(weights: jax.Array, observation: Array, mask: Array | None, key: jax.Array | None) -> jax.Array:
        return jnp.argmax(values(weights, observation, mask, key), axis=-1)

    def loss(tree: Any, target: jax.Array, batch: Transitions, key: jax.Array) -> tuple[jax.Array, Any]:
        keys = jax.random.split(key, 3) if options.noisy else (None, None, None)
        frozen = jax.lax.stop_gradient(tree)
        slow = layout.unravel(target) if options.target else frozen
        known = batch.bootstrap
        bootstrap = rows(slow, batch.next_observation, keys[1]) if known is None else jnp.asarray(known)[..., None]
        chooser = rows(frozen, batch.next_observation, keys[2]) if options.double else bootstrap
        selector = head.selector(chooser, batch)
        now = rows(tree, batch.observation, keys[0])
        errors = head.errors(now, batch, bootstrap, selector)
        return jnp.mean(batch.weight * head.penalty(errors)), (jnp.abs(errors), head.size_of_values(now, batch))

    def gradient(
        weights: jax.Array, target: jax.Array, batch: Transitions, key: jax.Array
    ) -> tuple[jax.Array, Learned]:
        found, tree = jax.value_and_grad(loss, has_aux=True)(layout.unravel(weights), target, batch, key)
        total, (priority, value) = found
        vector = layout.ravel(tree)
        return vector, Learned(total, priority, jnp.linalg.norm(vector), jnp.zeros(()), value)

    optimizer = make_optimizer(options.optimizer, 1.0, options.optimizer_epsilon)
    shorten = partial(shorten_gradient, limit=options.max_gradient_norm)
    change = make_change(optimizer, options.learning_rate)
    advance = make_advance(change, partial(move_target, options), options.learning_rate)

    def apply(state: LearnerState, vector: jax.Array, rate: Rate = options.learning_rate) -> LearnerState:
        return advance(state, shorten(vector), rate)

    start = jax.jit(partial(fresh_state, module=module, spec=spec.observation, layout=layout, optimizer=optimizer))
    return Agent(
        init=lambda seed: start(jax.random.key(seed)),
        act=jax.jit(act),
        values=jax.jit(values),
        gradient=jax.jit(gradient),
        shorten=jax.jit(shorten),
        change=jax.jit(change),
        advance=jax.jit(advance),
        apply=jax.jit(apply, donate_argnums=0),
        learn=learn_in_slices(gradient, apply, threads, options.learning_rate)
        if convolves(network, spec.observation)
        else learn_in_scan(gradient, apply, options.learning_rate),
        layout=layout,
        noisy=options.noisy,
        target_period=options.target_period if options.target and options.target_tau <= 0 else 0,
        max_gradient_norm=options.max_gradient_norm,
        light=None
        if options.noisy or options.distributional or network.module or choose_kind(network, spec.observation) != "mlp"
        else make_light(layout, spec.observation, len(network.hidden), options.dueling),
    )


@dataclass(frozen=True)
class Head:
    """What the network's outputs mean, and how far they are from their targets."""

    actions: int
    atoms: int
    options: QLearningOptions

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

    def penalty(self, errors: jax.Array) -> jax.Array:
        """The loss of each error."""
        if self.options.distributional:
            return errors
        return rlax.huber_loss(errors) if self.options.loss == "huber" else rlax.l2_loss(errors)


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


def legal(values: jax.Array, mask: Array | None) -> jax.Array:
    """Values with illegal actions so low that no maximum finds them."""
    return values if mask is None else jnp.where(mask, values, ILLEGAL)


def move_target(options: QLearningOptions, target: jax.Array, weights: jax.Array, updates: jax.Array) -> jax.Array:
    """The target network after this many updates: untouched if there is none, following, or copied in turn."""
    if not options.target:
        return target
    if options.target_tau > 0:
        return optax.incremental_update(weights, target, options.target_tau)
    return optax.periodic_update(weights, target, updates, options.target_period)


def learn_in_scan(gradient: Any, apply: Any, start: float) -> Callable[..., tuple[LearnerState, Learned]]:
    """Several updates in one compiled call, at one learning rate; batches carry a leading axis of updates."""

    @partial(jax.jit, donate_argnums=0)
    def learn(state: LearnerState, batches: Transitions, rate: Rate = start) -> tuple[LearnerState, Learned]:
        def update(state: LearnerState, batch: Transitions) -> tuple[LearnerState, Learned]:
            key = jax.random.fold_in(state.key, state.updates)
            vector, learned = gradient(state.weights, state.target, batch, key)
            return apply(state, vector, rate), learned

        if batches.action.shape[0] == 1:
            state, learned = update(state, jax.tree_util.tree_map(lambda x: x[0], batches))
            return state, jax.tree_util.tree_map(lambda x: x[None], learned)
        return jax.lax.scan(update, state, batches)

    return learn


def learn_in_slices(
    gradient: Any, apply: Any, threads: int = 1, start: float = 1.0
) -> Callable[..., tuple[LearnerState, Learned]]:
    """One compiled call for each slice of a batch, slices side by side on several threads.

    XLA's CPU back end runs a convolution inside `scan` 10 to 30 times slower, and gives one call no second core; so
    updates and slices are counted by Python. A batch of one slice is one call.
    """

    def update(state: LearnerState, batch: Transitions, rate: Rate) -> tuple[LearnerState, Learned]:
        vector, learned = gradient(state.weights, state.target, batch, jax.random.fold_in(state.key, state.updates))
        return apply(state, vector, rate), learned

    def combine(
        state: LearnerState, parts: list[tuple[jax.Array, Learned]], rate: Rate
    ) -> tuple[LearnerState, Learned]:
        vectors, told = zip(*parts, strict=True)
        sizes = [learned.priority.shape[0] for learned in told]

        def mean(values: Iterable[jax.Array]) -> jax.Array:
            return jnp.asarray(sum(size / sum(sizes) * value for size, value in zip(sizes, values, strict=True)))

        vector, loss, value = mean(vectors), mean(each.loss for each in told), mean(each.value for each in told)
        priority = jnp.concatenate([learned.priority for learned in told])
        return apply(state, vector, rate), Learned(loss, priority, jnp.linalg.norm(vector), jnp.zeros(()), value)

    whole, part, finish = jax.jit(update, donate_argnums=0), jax.jit(gradient), jax.jit(combine, donate_argnums=0)
    pool = ThreadPoolExecutor(threads, "repertory-slice") if threads > 1 else None

    def update_in_slices(state: LearnerState, batch: Transitions, rate: Rate) -> tuple[LearnerState, Learned]:
        slices = slice_batch(batch, threads)
        if len(slices) == 1:
            return whole(state, batch, rate)
        key = jax.random.fold_in(state.key, state.updates)

        def one(piece: Transitions) -> tuple[jax.Array, Learned]:
            return jax.block_until_ready(part(state.weights, state.target, piece, key))

        return finish(state, list(pool.map(one, slices) if pool is not None else map(one, slices)), rate)

    def learn(state: LearnerState, batches: Transitions, rate: Rate = start) -> tuple[LearnerState, Learned]:
        results = []
        for index in range(batches.action.shape[0]):
            state, learned = update_in_slices(state, jax.tree_util.tree_map(lambda x, i=index: x[i], batches), rate)
            results.append(learned)
        return state, jax.tree_util.tree_map(lambda *xs: np.stack([np.asarray(x) for x in xs]), *results)

    return learn


def slice_batch(batch: Transitions, threads: int) -> list[Transitions]:
    """Pieces of at most `SLICE` samples, as many as keep the threads busy."""
    size = batch.action.shape[0]
    count = max(-(-size // SLICE), min(threads, size))
    edges = [size * index // count for index in range(count + 1)]
    return [jax.tree_util.tree_map(lambda x, a=low, b=high: x[a:b], batch) for low, high in itertools.pairwise(edges)]


def measure_layout(module: nn.Module, spec: ObservationSpec, outputs: int, network: NetworkOptions) -> Layout:
    """The layout of the module's weights; refuses a module that can't read or has the wrong outputs."""
    sample = jax.ShapeDtypeStruct((2, *spec.seen_shape), spec.dtype)
    name = network.module or network.kind
    try:
        result, variables = jax.eval_shape(lambda x: module.init_with_output(jax.random.key(0), x), sample)
    except UserError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"the network {name!r} can't read observations {spec.seen_shape}: {reason}") from None
    if getattr(result, "shape", None) != (2, outputs):
        given = getattr(result, "shape", type(result).__name__)
        raise UserError(f"the network {name!r} returned shape {given} for a batch of 2; it must return (2, {outputs})")
    if set(variables) != {"params"}:
        raise UserError(f"the network {name!r} has variables {sorted(variables)}; it must have 'params' and no others")
    return Layout.of(variables["params"])


def fresh_state(
    key: jax.Array,
    *,
    module: nn.Module,
    spec: ObservationSpec,
    layout: Layout,
    optimizer: optax.GradientTransformation,
    with_target: bool = True,
) -> LearnerState:
    """Fresh weights; the target starts as a copy, or is a single number that stands for none."""
    key_weights, key = jax.random.split(key)
    sample = jnp.zeros((1, *spec.seen_shape), spec.dtype)
    weights = layout.ravel(module.init(key_weights, sample)["params"])
    moments = optimizer.init(weights)
    zero = jnp.zeros((), jnp.int32)
    target = weights + 0.0 if with_target else jnp.zeros(1)
    return LearnerState(weights, target, moments, zero, zero, jax.random.key_data(key))
