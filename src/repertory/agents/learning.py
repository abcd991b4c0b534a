"""What all agents share: the optimizer step, and updates in one compiled scan or in slices.

A worker that acts and learns with the same weights (A3C: θ′ lasts a whole unroll) has computed for each action what
its gradient needs. Cached until the unroll is complete, these activations need not be computed again: on the Nature
network that saves a fifth of all work.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from repertory.agents.agent import Agent, Array, CachedForward, Learned, LearnerState, Rate
from repertory.agents.networks import CACHED, NetworkOptions
from repertory.agents.strategy import ILLEGAL, Strategy, make_numpy_forward
from repertory.agents.vector import Layout
from repertory.specs import EnvironmentSpec, ObservationSpec

OptimizerName = Literal["adam", "rmsprop", "shared_rmsprop", "adagrad"]
Loss = Callable[[Any, Any, Any, Any], tuple[jax.Array, Learned]]
"""From layers, target vector, batch and key."""
Gradient = Callable[[Any, Any, Any, Any], tuple[jax.Array, Learned]]
"""From weights, target, batch and key."""
Update = Callable[[LearnerState, Any, Rate], tuple[LearnerState, Learned]]
Apply = Callable[[LearnerState, jax.Array, Rate], LearnerState]
Follow = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""From target, new weights and updates made to the next target."""


def make_optimizer(name: OptimizerName, rate: Any, epsilon: float) -> optax.GradientTransformation:
    """Every optimizer works number by number, so a slice of the vector is enough."""
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

    def update(gradient: Any, moments: Any, _weights: Any = None) -> Any:
        mean = decay * moments[0] + (1 - decay) * gradient
        square = decay * moments[1] + (1 - decay) * gradient**2
        return gradient * jax.lax.rsqrt(jnp.maximum(square - mean**2, 0.0) + epsilon), (mean, square)

    return optax.GradientTransformation(init, update)


@dataclass(frozen=True, eq=False)
class Optimization:
    """From a gradient to new weights, on the whole vector or any slice of it; what `Agent` has under the same names.

    `transform` is built for learning rate 1: its step is multiplied by the rate given, or by `learning_rate`.
    """

    transform: optax.GradientTransformation
    learning_rate: float
    max_gradient_norm: float
    follow: Follow

    @staticmethod
    def of(options: Any, follow: Follow) -> Optimization:
        """By an agent's options."""
        transform = make_optimizer(options.optimizer, 1.0, options.optimizer_epsilon)
        return Optimization(transform, options.learning_rate, options.max_gradient_norm, follow)

    def clip(self, gradient: jax.Array) -> jax.Array:
        """Clip by global norm."""
        if self.max_gradient_norm <= 0:
            return gradient
        norm = jnp.linalg.norm(gradient)
        return gradient * jnp.minimum(1.0, self.max_gradient_norm / jnp.maximum(norm, 1e-12))

    def change(
        self, state: LearnerState, gradient: jax.Array, rate: Rate | None = None
    ) -> tuple[jax.Array, Any, jax.Array]:
        """What to add to the weights, the optimizer's new moments, and whether the gradient was finite.

        A gradient that is not finite changes nothing.
        """
        rate = self.learning_rate if rate is None else rate
        finite = jnp.isfinite(jnp.sum(jnp.abs(gradient)))
        step, moments = self.transform.update(jnp.where(finite, gradient, 0.0), state.optimizer, state.weights)
        moments = jax.tree.map(lambda new, old: jnp.where(finite, new, old), moments, state.optimizer)
        return jnp.where(finite, rate * step, 0.0), moments, finite

    def optimizer_step(self, state: LearnerState, gradient: jax.Array, rate: Rate | None = None) -> LearnerState:
        """Also moves the target, and counts gradients that are not finite."""
        step, moments, finite = self.change(state, gradient, rate)
        weights = state.weights + step
        updates = state.updates + 1
        target = jnp.where(finite, self.follow(state.target, weights, updates), state.target)
        return LearnerState(weights, target, moments, updates, state.skipped + ~finite, state.key)

    def apply(self, state: LearnerState, gradient: jax.Array, rate: Rate | None = None) -> LearnerState:
        return self.optimizer_step(state, self.clip(gradient), rate)


def make_agent(
    network: NetworkOptions,
    spec: EnvironmentSpec,
    module: nn.Module,
    layout: Layout,
    strategy: Strategy,
    optimization: Optimization,
    values: Callable[..., jax.Array],
    *,
    dueling: bool = False,
    target: bool = True,
    **own: Any,
) -> Agent:
    """What all agents have, and what is the agent's `own`. The maximum of `values` is the best action.

    The target network starts as a copy of the weights; without `target` it is a single number that is not used.
    """

    def act(weights: jax.Array, observation: Array, mask: Array | None, key: Any) -> jax.Array:
        return jnp.argmax(values(weights, observation, mask, key), axis=-1)

    @jax.jit
    def start(key: jax.Array) -> LearnerState:
        key_weights, key = jax.random.split(key)
        sample = jnp.zeros((1, *spec.observation.seen_shape), spec.observation.dtype)
        weights = layout.ravel(module.init(key_weights, sample)["params"])
        slow = weights + 0.0 if target else jnp.zeros(1)
        zero, moments = jnp.zeros((), jnp.int32), optimization.transform.init(weights)
        return LearnerState(weights, slow, moments, zero, zero, jax.random.key_data(key))

    forward = make_numpy_forward(layout, spec.observation, len(network.hidden), dueling)
    return Agent(
        init=lambda seed: start(jax.random.key(seed)),
        act=jax.jit(act),
        values=jax.jit(values),
        clip=jax.jit(optimization.clip),
        change=jax.jit(optimization.change),
        optimizer_step=jax.jit(optimization.optimizer_step),
        apply=jax.jit(optimization.apply, donate_argnums=0),
        layout=layout,
        strategy=strategy,
        numpy_forward=forward if strategy.numpy_rows else None,
        max_gradient_norm=optimization.max_gradient_norm,
        **own,
    )


def legal(values: jax.Array, mask: Array | None) -> jax.Array:
    """Values with illegal actions so low that no maximum finds them."""
    return values if mask is None else jnp.where(mask, values, ILLEGAL)


def make_gradient(layout: Layout, loss: Loss) -> Gradient:
    def gradient(weights: Any, target: Any, batch: Any, key: Any) -> tuple[jax.Array, Learned]:
        (_, learned), tree = jax.value_and_grad(loss, has_aux=True)(layout.unravel(weights), target, batch, key)
        return layout.ravel(tree), learned

    return gradient


def finish_update(
    apply: Apply, state: LearnerState, vector: jax.Array, learned: Learned, rate: Rate
) -> tuple[LearnerState, Learned]:
    """The optimizer step, and the gradient's norm before it was clipped."""
    return apply(state, vector, rate), learned._replace(gradient_norm=jnp.linalg.norm(vector))


def make_update(gradient: Gradient, apply: Apply) -> Update:
    """Gradient and step; every update has a random key of its own."""

    def update(state: LearnerState, batch: Any, rate: Rate) -> tuple[LearnerState, Learned]:
        vector, learned = gradient(state.weights, state.target, batch, update_key(state))
        return finish_update(apply, state, vector, learned, rate)

    return update


def update_key(state: LearnerState) -> jax.Array:
    return jax.random.fold_in(state.key, state.updates)


def make_learn(
    strategy: Strategy, gradient: Gradient, apply: Apply, start: float
) -> Callable[..., tuple[LearnerState, Learned]]:
    """Updates at one learning rate, by default `start`; batches carry a leading axis of updates."""
    if strategy.slice_rows:
        return _learn_in_slices(strategy, gradient, apply, start)
    update = make_update(gradient, apply)

    @partial(jax.jit, donate_argnums=0)
    def learn(state: LearnerState, batches: Any, rate: Rate = start) -> tuple[LearnerState, Learned]:
        if batches.action.shape[0] == 1:
            state, learned = update(state, jax.tree.map(lambda x: x[0], batches), rate)
            return state, jax.tree.map(lambda x: x[None], learned)
        return jax.lax.scan(lambda state, batch: update(state, batch, rate), state, batches)

    return learn


def _learn_in_slices(
    strategy: Strategy, gradient: Gradient, apply: Apply, start: float
) -> Callable[..., tuple[LearnerState, Learned]]:
    """Python counts updates and slices; a batch of one slice is one compiled call."""

    @partial(jax.jit, donate_argnums=0)
    def combine(state: LearnerState, parts: list[tuple[jax.Array, Learned]], rate: Rate) -> Any:
        return finish_update(apply, state, *_mean_of_slices(parts), rate)

    whole, part = jax.jit(make_update(gradient, apply), donate_argnums=0), jax.jit(gradient)
    each = map_on_threads(strategy.threads)

    def update(state: LearnerState, batch: Any, rate: Rate) -> tuple[LearnerState, Learned]:
        edges = slice_edges(batch.action.shape[0], strategy.slice_rows, strategy.threads)
        if len(edges) == 1:
            return whole(state, batch, rate)
        slices = [jax.tree.map(lambda x, a=low, b=high: x[a:b], batch) for low, high in edges]
        key = update_key(state)
        return combine(state, each(lambda piece: part(state.weights, state.target, piece, key), slices), rate)

    def learn(state: LearnerState, batches: Any, rate: Rate = start) -> tuple[LearnerState, Learned]:
        results = []
        for index in range(batches.action.shape[0]):
            state, learned = update(state, jax.tree.map(lambda x, i=index: x[i], batches), rate)
            results.append(learned)
        return state, stack(results)

    return learn


def _mean_of_slices(parts: list[tuple[jax.Array, Learned]]) -> tuple[jax.Array, Learned]:
    """Weighted by the slices' sizes."""
    vectors, learned = zip(*parts, strict=True)
    sizes = [each.priority.shape[0] for each in learned]

    def mean(values: Iterable[jax.Array]) -> jax.Array:
        return jnp.asarray(sum(size / sum(sizes) * value for size, value in zip(sizes, values, strict=True)))

    vector, loss, value = mean(vectors), mean(each.loss for each in learned), mean(each.value for each in learned)
    return vector, Learned(loss, jnp.concatenate([each.priority for each in learned]), jnp.zeros(()), value)


def slice_edges(size: int, rows: int, threads: int = 1) -> list[tuple[int, int]]:
    """First row and last row + 1 of slices of at most `rows`, at least one slice for each thread."""
    count = max(-(-size // rows), min(threads, size))
    return list(itertools.pairwise(size * index // count for index in range(count + 1)))


def map_on_threads(threads: int) -> Callable[..., list[Any]]:
    """Like `map`, on several threads side by side; all results are computed when it returns."""
    pool = ThreadPoolExecutor(threads, "repertory-slice") if threads > 1 else None

    def each(work: Callable[..., Any], *arguments: Any) -> list[Any]:
        def one(*args: Any) -> Any:
            return jax.block_until_ready(work(*args))

        return list(pool.map(one, *arguments) if pool is not None else map(one, *arguments))

    return each


def stack(results: list[Learned]) -> Learned:
    """Several updates as one, with a leading axis."""
    return jax.tree.map(lambda *xs: np.stack([np.asarray(x) for x in xs]), *results)


@jax.jit
def add_up(parts: list[jax.Array]) -> jax.Array:
    return sum(parts[1:], parts[0])


class Pass(NamedTuple):
    """A forward pass: its outputs `[N, outputs]`, and the cached activations that its backward pass needs."""

    outputs: jax.Array
    rows: list[jax.Array]


def make_cached_forward(
    network: Callable[[Any, Array], jax.Array],
    finish: Callable[[jax.Array, Array | None], jax.Array],
    layout: Layout,
    loss: Callable[[Any, jax.Array, Any], Any],
    observation: ObservationSpec,
    rows: int,
) -> CachedForward:
    """`network` must treat every row alone, `finish` masks illegal actions in its outputs, and a backward pass has at
    most `rows` rows.

    JAX's own backward pass is cut open: some of its residuals grow with the rows, and are put together from several
    passes; the others are the weights.
    """
    spare = jax.checkpoint(network, policy=jax.checkpoint_policies.save_only_these_names(CACHED))

    def forward(tree: Any, seen: Array) -> tuple[jax.Array, Any]:
        seen = seen + jnp.zeros((), observation.dtype)  # a copy: the caller's array may change before it is needed
        return jax.vjp(lambda tree: spare(tree, seen), tree)

    def residuals(rows: int) -> Any:
        seen = jax.ShapeDtypeStruct((rows, *observation.seen_shape), observation.dtype)
        return jax.eval_shape(forward, layout.shapes_of_tree(), seen)[1]

    grows = [
        one.shape != two.shape for one, two in zip(*(jax.tree.leaves(residuals(rows)) for rows in (1, 2)), strict=True)
    ]

    compiled_network = jax.jit(lambda tree, seen: network(tree, seen))

    @jax.jit
    def observe(tree: Any, seen: Array, mask: Array | None) -> tuple[jax.Array, Pass]:
        outputs, pull = forward(tree, seen)
        leaves = zip(jax.tree.leaves(pull), grows, strict=True)
        return finish(outputs, mask), Pass(outputs, [leaf for leaf, grown in leaves if grown])

    @jax.jit
    def fixed(tree: Any) -> list[jax.Array]:
        _, pull = forward(tree, jnp.zeros((1, *observation.seen_shape), observation.dtype))
        leaves = zip(jax.tree.leaves(pull), grows, strict=True)
        return [leaf for leaf, grown in leaves if not grown]

    @jax.jit
    def between(tree: Any, outputs: list[jax.Array], batch: Any) -> Any:
        return jax.value_and_grad(loss, 1, has_aux=True)(tree, jnp.stack(outputs), batch)

    @jax.jit
    def backward(same: list[jax.Array], passes: list[list[jax.Array]], wanted: jax.Array) -> jax.Array:
        wanted = wanted.reshape(-1, wanted.shape[-1])
        grown, rest = iter([jnp.concatenate(leaves) for leaves in zip(*passes, strict=True)]), iter(same)
        leaves = [next(grown) if each else next(rest) for each in grows]
        structure = jax.tree.structure(residuals(wanted.shape[0]))
        return layout.ravel(jax.tree.unflatten(structure, leaves)(wanted)[0])

    def gradient(tree: Any, passes: list[Pass], batch: Any) -> tuple[jax.Array, Learned]:
        last = compiled_network(tree, batch.observation[-1])  # its value is needed, but nothing flows back through it
        small = batch._replace(observation=np.zeros(0, np.uint8))  # the loss does not look at it
        (_, learned), wanted = between(tree, [*(each.outputs for each in passes), last], small)
        steps, same = max(1, rows // batch.action.shape[1]), fixed(tree)
        parts = [
            backward(same, [each.rows for each in passes[i : i + steps]], wanted[i : min(i + steps, len(passes))])
            for i in range(0, len(passes), steps)
        ]
        return add_up(parts), learned

    return CachedForward(observe, gradient)
