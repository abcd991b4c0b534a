"""What all agents share: fresh states, gradients as vectors, and updates in one compiled scan or in slices.

A worker that acts and learns with the same weights (A3C: θ′ lasts a whole unroll) has computed for each action what
its gradient needs. Cached until the unroll is whole, it need not be computed again: on the Nature network a fifth of
all work.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from repertory.agents.agent import Array, CachedForward, Learned, LearnerState, Rate
from repertory.agents.networks import CACHED
from repertory.agents.strategy import ILLEGAL, Strategy
from repertory.agents.vector import Layout
from repertory.specs import ObservationSpec

Gradient = Callable[[Any, Any, Any, Any], tuple[jax.Array, Learned]]
"""From weights, target, batch and key."""
Update = Callable[[LearnerState, Any, Rate], tuple[LearnerState, Learned]]
Apply = Callable[[LearnerState, jax.Array, Rate], LearnerState]


def legal(values: jax.Array, mask: Array | None) -> jax.Array:
    """Values with illegal actions so low that no maximum finds them."""
    return values if mask is None else jnp.where(mask, values, ILLEGAL)


def make_init(
    module: nn.Module,
    spec: ObservationSpec,
    layout: Layout,
    optimizer: optax.GradientTransformation,
    *,
    with_target: bool = True,
) -> Callable[[int], LearnerState]:
    """From a seed to fresh weights; the target starts as a copy, or is a single number that stands for none."""

    @jax.jit
    def start(key: jax.Array) -> LearnerState:
        key_weights, key = jax.random.split(key)
        sample = jnp.zeros((1, *spec.seen_shape), spec.dtype)
        weights = layout.ravel(module.init(key_weights, sample)["params"])
        target = weights + 0.0 if with_target else jnp.zeros(1)
        zero = jnp.zeros((), jnp.int32)
        return LearnerState(weights, target, optimizer.init(weights), zero, zero, jax.random.key_data(key))

    return lambda seed: start(jax.random.key(seed))


def make_gradient(layout: Layout, loss: Callable[[Any, Any, Any, Any], tuple[jax.Array, Learned]]) -> Gradient:
    """The gradient of a loss of layers, target vector, batch and key."""

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
    """The random key of the next update."""
    return jax.random.fold_in(state.key, state.updates)


def make_learn(
    strategy: Strategy, gradient: Gradient, apply: Apply, start: float
) -> Callable[..., tuple[LearnerState, Learned]]:
    """Updates at one learning rate, by default that of the `start`; batches carry a leading axis of updates."""
    if strategy.slice_rows:
        return _learn_in_slices(strategy, gradient, apply, start)
    update = make_update(gradient, apply)

    @partial(jax.jit, donate_argnums=0)
    def learn(state: LearnerState, batches: Any, rate: Rate = start) -> tuple[LearnerState, Learned]:
        if batches.action.shape[0] == 1:
            state, learned = update(state, jax.tree_util.tree_map(lambda x: x[0], batches), rate)
            return state, jax.tree_util.tree_map(lambda x: x[None], learned)
        return jax.lax.scan(lambda state, batch: update(state, batch, rate), state, batches)

    return learn


def _learn_in_slices(
    strategy: Strategy, gradient: Gradient, apply: Apply, start: float
) -> Callable[..., tuple[LearnerState, Learned]]:
    """Python counts updates and slices; a batch of one slice is one compiled call."""

    def combine(
        state: LearnerState, parts: list[tuple[jax.Array, Learned]], rate: Rate
    ) -> tuple[LearnerState, Learned]:
        return finish_update(apply, state, *_mean_of_slices(parts), rate)

    whole, part = jax.jit(make_update(gradient, apply), donate_argnums=0), jax.jit(gradient)
    finish, each = jax.jit(combine, donate_argnums=0), map_on_threads(strategy.threads)

    def update(state: LearnerState, batch: Any, rate: Rate) -> tuple[LearnerState, Learned]:
        edges = slice_edges(batch.action.shape[0], strategy.slice_rows, strategy.threads)
        if len(edges) == 1:
            return whole(state, batch, rate)
        slices = [jax.tree_util.tree_map(lambda x, a=low, b=high: x[a:b], batch) for low, high in edges]
        key = update_key(state)
        return finish(state, each(lambda piece: part(state.weights, state.target, piece, key), slices), rate)

    def learn(state: LearnerState, batches: Any, rate: Rate = start) -> tuple[LearnerState, Learned]:
        results = []
        for index in range(batches.action.shape[0]):
            state, learned = update(state, jax.tree_util.tree_map(lambda x, i=index: x[i], batches), rate)
            results.append(learned)
        return state, stack(results)

    return learn


def _mean_of_slices(parts: list[tuple[jax.Array, Learned]]) -> tuple[jax.Array, Learned]:
    """Slices count by their size."""
    vectors, learned = zip(*parts, strict=True)
    sizes = [each.priority.shape[0] for each in learned]

    def mean(values: Iterable[jax.Array]) -> jax.Array:
        return jnp.asarray(sum(size / sum(sizes) * value for size, value in zip(sizes, values, strict=True)))

    vector, loss, value = mean(vectors), mean(each.loss for each in learned), mean(each.value for each in learned)
    return vector, Learned(loss, jnp.concatenate([each.priority for each in learned]), jnp.zeros(()), value)


def slice_edges(size: int, rows: int, threads: int = 1) -> list[tuple[int, int]]:
    """First and last-plus-one of slices of at most `rows`, as many as keep the threads busy."""
    count = max(-(-size // rows), min(threads, size))
    return list(itertools.pairwise(size * index // count for index in range(count + 1)))


def map_on_threads(threads: int) -> Callable[..., list[Any]]:
    """Like `map`, but each result is computed when it returns; on several threads side by side."""
    pool = ThreadPoolExecutor(threads, "repertory-slice") if threads > 1 else None

    def each(work: Callable[..., Any], *arguments: Any) -> list[Any]:
        def one(*args: Any) -> Any:
            return jax.block_until_ready(work(*args))

        return list(pool.map(one, *arguments) if pool is not None else map(one, *arguments))

    return each


def stack(results: list[Learned]) -> Learned:
    """Several updates as one, with a leading axis."""
    stacked: Learned = jax.tree_util.tree_map(lambda *xs: np.stack([np.asarray(x) for x in xs]), *results)
    return stacked


class Pass(NamedTuple):
    """What one forward pass leaves: its outputs `[N, outputs]`, and what its backward pass needs of each row."""

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
    """`network` must treat every row alone, `finish` makes answers of its outputs and of what is legal, and `rows` are
    those of one backward pass.

    JAX's own backward pass is cut open: some of its residuals grow with the rows, and are put together from several
    passes; the rest is the weights.
    """

    spare = jax.checkpoint(network, policy=jax.checkpoint_policies.save_only_these_names(CACHED))

    def forward(tree: Any, seen: Array) -> tuple[jax.Array, Any]:
        seen = seen + jnp.zeros((), observation.dtype)  # a copy: the caller's array may change before it is needed
        return jax.vjp(lambda tree: spare(tree, seen), tree)

    def residuals(rows: int) -> Any:
        seen = jax.ShapeDtypeStruct((rows, *observation.seen_shape), observation.dtype)
        return jax.eval_shape(forward, layout.shapes_of_tree(), seen)[1]

    grows = [
        one.shape != two.shape
        for one, two in zip(*(jax.tree_util.tree_leaves(residuals(rows)) for rows in (1, 2)), strict=True)
    ]

    @jax.jit
    def observe(tree: Any, seen: Array, mask: Array | None) -> tuple[jax.Array, Pass]:
        outputs, pull = forward(tree, seen)
        leaves = zip(jax.tree_util.tree_leaves(pull), grows, strict=True)
        return finish(outputs, mask), Pass(outputs, [leaf for leaf, grown in leaves if grown])

    @jax.jit
    def last_outputs(tree: Any, seen: Array) -> jax.Array:
        return network(tree, seen)

    @jax.jit
    def fixed(tree: Any) -> list[jax.Array]:
        _, pull = forward(tree, jnp.zeros((1, *observation.seen_shape), observation.dtype))
        leaves = zip(jax.tree_util.tree_leaves(pull), grows, strict=True)
        return [leaf for leaf, grown in leaves if not grown]

    @jax.jit
    def between(tree: Any, outputs: list[jax.Array], batch: Any) -> Any:
        return jax.value_and_grad(loss, 1, has_aux=True)(tree, jnp.stack(outputs), batch)

    @jax.jit
    def backward(same: list[jax.Array], passes: list[list[jax.Array]], wanted: jax.Array) -> jax.Array:
        wanted = wanted.reshape(-1, wanted.shape[-1])
        grown, rest = iter([jnp.concatenate(leaves) for leaves in zip(*passes, strict=True)]), iter(same)
        leaves = [next(grown) if each else next(rest) for each in grows]
        structure = jax.tree_util.tree_structure(residuals(wanted.shape[0]))
        return layout.ravel(jax.tree_util.tree_unflatten(structure, leaves)(wanted)[0])

    @jax.jit
    def added(parts: list[jax.Array]) -> jax.Array:
        return sum(parts[1:], parts[0])

    def gradient(tree: Any, passes: list[Pass], batch: Any) -> tuple[jax.Array, Learned]:
        last = last_outputs(tree, batch.observation[-1])  # its value is needed, but nothing flows back through it
        small = batch._replace(observation=np.zeros(0, np.uint8))  # the loss does not look at it
        (_, learned), wanted = between(tree, [*(each.outputs for each in passes), last], small)
        steps, same = max(1, rows // batch.action.shape[1]), fixed(tree)
        parts = [
            backward(same, [each.rows for each in passes[i : i + steps]], wanted[i : min(i + steps, len(passes))])
            for i in range(0, len(passes), steps)
        ]
        return added(parts), learned

    return CachedForward(observe, gradient)
