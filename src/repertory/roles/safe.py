"""A learner state in arrays that outlive whoever learns; numpy and JAX's trees.

Two copies and a number that says which one counts: the spare copy is written, then the number moves on. Whoever is
killed while writing leaves the other copy whole.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import LearnerState
from repertory.errors import UserError
from repertory.experience.lanes import Field

EVERY_S = 1.0
"""Seconds between savings: what a killed learner loses at most. Each saving copies the state once."""


class Safe:
    """`structure` is a learner state of the right shapes; `arrays` are as `fields` says."""

    def __init__(self, structure: Any, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._leaves, self._tree = jax.tree_util.tree_flatten(structure)
        self._arrays = [arrays[f"{index:02d}"] for index in range(len(self._leaves))]
        self._flip = arrays["flip"]
        self._saved = time.monotonic()

    @staticmethod
    def fields(structure: Any) -> dict[str, Field]:
        """What has to be allocated."""
        leaves = jax.tree_util.tree_leaves(structure)
        fields = {
            f"{index:02d}": Field((2, *leaf.shape), np.dtype(leaf.dtype).name) for index, leaf in enumerate(leaves)
        }
        return {**fields, "flip": Field((1,), "int64")}

    def due(self) -> bool:
        """Whether the last saving is long enough ago."""
        return time.monotonic() - self._saved > EVERY_S

    def save(self, learned: LearnerState) -> None:
        """Write the spare copy, then let it count."""
        spare = (int(self._flip[0]) + 1) % 2
        for array, leaf in zip(self._arrays, jax.tree_util.tree_leaves(learned), strict=True):
            array[spare] = np.asarray(leaf)
        self._flip[0] += 1
        self._saved = time.monotonic()

    def load(self) -> LearnerState:
        """The state that counts."""
        at = int(self._flip[0]) % 2
        leaves = [jax.numpy.array(array[at]) for array in self._arrays]
        learned: LearnerState = jax.tree_util.tree_unflatten(self._tree, leaves)
        return learned

    def state(self) -> dict[str, NDArray[Any]]:
        """The copy that counts, for a checkpoint."""
        at = int(self._flip[0]) % 2
        return {f"{index:02d}": array[at] for index, array in enumerate(self._arrays)}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what a checkpoint holds."""
        saved = [np.asarray(state[name]) for name in sorted(state)]
        if [x.shape for x in saved] != [x.shape[1:] for x in self._arrays]:
            raise UserError(
                "the checkpoint's network differs from this configuration's; resume with the options "
                "it was started with"
            )
        for array, leaf in zip(self._arrays, saved, strict=True):
            array[:] = leaf
