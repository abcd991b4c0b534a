"""Gradients from activations that were cached while acting; imports JAX and the rest of this room.

A worker that acts and learns with the same weights (A3C: θ′ lasts a whole unroll) has computed for each action what
its gradient needs. Cached until the unroll is whole, it need not be computed again: on the Nature network a fifth of
all work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from repertory.agents.agent import Array, CachedForward, Learned
from repertory.agents.networks import CACHED
from repertory.agents.vector import Layout
from repertory.specs import ObservationSpec


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
