"""A network as one flat float32 vector.

Everything outside `agents/` sees weights, gradients and optimizer moments as vectors: a server's shard is a slice, a
shared store is one array, a checkpoint a few named arrays. `Layout` remembers which slice belongs to which layer.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from repertory.errors import UserError

Tree = Any


@dataclass(frozen=True)
class Layout:
    """Names, shapes and offsets of the parameters inside the vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    size: int
    structure: Any

    @staticmethod
    def of(tree: Tree) -> Layout:
        """The layout of a tree of arrays, or of their shapes."""
        paths, structure = jax.tree_util.tree_flatten_with_path(tree)
        shapes = tuple(tuple(leaf.shape) for _, leaf in paths)
        sizes = [math.prod(shape) for shape in shapes]
        offsets = tuple(sum(sizes[:i]) for i in range(len(sizes)))
        names = tuple("/".join(str(getattr(key, "key", key)) for key in path) for path, _ in paths)
        return Layout(names, shapes, offsets, sum(sizes), structure)

    @property
    def fingerprint(self) -> int:
        """Differs between layouts, also between those of the same size."""
        return zlib.crc32(repr((self.names, self.shapes)).encode())

    def check(self, fingerprint: int | None) -> None:
        """Refuse weights that were saved with another layout."""
        if fingerprint != self.fingerprint:
            raise UserError(
                "the checkpoint's network differs from this configuration's; resume with the options, the module and "
                "the version of repertory that it was started with"
            )

    def shapes_of_tree(self) -> Tree:
        leaves = [jax.ShapeDtypeStruct(shape, np.float32) for shape in self.shapes]
        return jax.tree_util.tree_unflatten(self.structure, leaves)

    def ravel(self, tree: Tree) -> jax.Array:
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree_util.tree_leaves(tree)])

    def unravel(self, vector: jax.Array) -> Tree:
        """The inverse of `ravel`; inside `jit` the leaves are views."""
        return jax.tree_util.tree_unflatten(self.structure, self._cut(vector))

    def views(self, vector: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """The parameters by name, as NumPy views of the vector."""
        return dict(zip(self.names, self._cut(vector), strict=True))

    def _cut(self, vector: Any) -> list[Any]:
        places = zip(self.offsets, self.shapes, strict=True)
        return [vector[offset : offset + math.prod(shape)].reshape(shape) for offset, shape in places]
