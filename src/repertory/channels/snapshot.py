"""`Snapshot`: a learner state that survives its owner, and `Shared`: one live copy that all write."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import LearnerState
from repertory.channels.channel import (
    EVERYBODY,
    WRITER,
    Arrays,
    Channel,
    Place,
    own_rows,
    port,
    prefixed,
    slices,
    under,
)
from repertory.errors import UserError
from repertory.specs import Field

EVERY_S = 1.0
"""Seconds between saves: what a killed owner loses at most. Each save copies the state once."""


class Snapshot(Channel):
    """The state of one owner, or of several that own a slice of every vector each.

    `structure()` gives a learner state of the right shapes. Two copies and a count that says which one is valid: who is
    killed while saving leaves the other copy whole.
    """

    def __init__(self, name: str, structure: Callable[[], Any], *, parts: int = 1, **told: str) -> None:
        super().__init__(name, **told)
        self.structure, self.parts = structure, parts

    def fields(self) -> dict[str, Field]:
        fields: dict[str, Field] = {}
        for part in range(self.parts):
            own = {
                name: Field((2, *leaf.shape), np.dtype(leaf.dtype).name, commit=f"{part}/count")
                for name, leaf in _leaves(self._cut(part)).items()
            }
            fields |= prefixed(str(part), {**own, "count": Field((1,), "int64"), "mirrored": Field((1,), "int64")})
        return fields

    def _cut(self, part: int) -> Any:
        structure = self.structure()
        size = structure.weights.shape[0]
        return structure if self.parts == 1 else cut_state(structure, size, slices(size, self.parts)[part])

    @port("own")
    def owner(self, me: Place) -> Owner:
        """Of the part of this rank, if there are several."""
        return self._owner(me.rank if self.parts > 1 else 0)

    def _owner(self, part: int) -> Owner:
        return Owner(self._cut(part), under(str(part), self.arrays))

    @property
    def updates(self) -> int:
        """Updates behind the saved state."""
        return int(self._owner(0).load().updates)

    def state(self) -> dict[str, NDArray[Any]]:
        """The whole state as named arrays, whoever owns which part."""
        parts = [self._owner(part).state() for part in range(self.parts)]
        vectors = self._vectors()
        return {
            name: np.concatenate([part[name] for part in parts]) if name in vectors and self.parts > 1 else array
            for name, array in parts[0].items()
        }

    def _vectors(self) -> set[str]:
        """Names of the arrays that are as long as the weights."""
        structure = self.structure()
        return {name for name, leaf in _leaves(structure).items() if leaf.shape == structure.weights.shape}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        vectors = self._vectors()
        for part, cut in enumerate(slices(self.structure().weights.shape[0], self.parts)):
            own = {name: np.asarray(array)[cut] if name in vectors else array for name, array in state.items()}
            self._owner(part).load_state(own if self.parts > 1 else state)

    def mirror(self, source: Arrays, target: Arrays, side: str = WRITER, rows: Sequence[int] | None = None) -> int:
        if side != WRITER:
            return 0
        parts = own_rows(self.parts, rows).tolist()
        return sum(_mirror_copy(under(f"{part}", source), under(f"{part}", target)) for part in parts)


def _mirror_copy(source: Arrays, target: Arrays) -> int:
    """The valid copy into the spare one of the target; again if its owner saves twice meanwhile."""
    if int(source["count"][0]) in (0, int(target["mirrored"][0])):
        return 0
    count, moved, spare = -1, 0, (int(target["count"][0]) + 1) % 2
    while count != int(source["count"][0]):
        count, moved = int(source["count"][0]), source["count"].nbytes
        for name, array in source.items():
            if name not in ("count", "mirrored"):
                target[name][spare] = array[count % 2]
                moved += array[0].nbytes
    target["count"][0] += 1
    target["mirrored"][0] = count  # last: who is cut off before copies once more
    return moved


class Owner:
    """One owner's end: `arrays` are its own part."""

    def __init__(self, structure: Any, arrays: Arrays) -> None:
        self._tree = jax.tree_util.tree_structure(structure)
        self._arrays = {name: arrays[name] for name in _leaves(structure)}
        self._count = arrays["count"]
        self._saved = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether the last save is long enough ago."""
        return time.monotonic() - self._saved > EVERY_S

    def save(self, learned: LearnerState) -> None:
        self._write(dict(zip(self._arrays, jax.tree_util.tree_leaves(learned), strict=True)))
        self._saved = time.monotonic()

    def _write(self, leaves: Mapping[str, Any]) -> None:
        """The spare copy, then let it count."""
        spare = (int(self._count[0]) + 1) % 2
        for name, array in self._arrays.items():
            array[spare] = np.asarray(leaves[name])
        self._count[0] += 1

    def load(self) -> LearnerState:
        leaves = [jax.numpy.array(array) for array in self.state().values()]
        learned: LearnerState = jax.tree_util.tree_unflatten(self._tree, leaves)
        return learned

    def state(self) -> dict[str, NDArray[Any]]:
        """The valid copy."""
        return {name: array[int(self._count[0]) % 2] for name, array in self._arrays.items()}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        _check_shapes(state, {name: array.shape[1:] for name, array in self._arrays.items()})
        self._write(state)


class Shared(Channel):
    """One live copy of a learner state, read and written by everybody without a lock (Hogwild: Niu et al. 2011).

    `total_updates()` tells how many were made: the count inside the state may lose some, since nothing is locked.
    """

    one_machine = True

    def __init__(self, name: str, structure: Callable[[], Any], **told: str) -> None:
        super().__init__(name, **told)
        self.structure = structure

    def fields(self) -> dict[str, Field]:
        fields = {
            name: Field(leaf.shape, np.dtype(leaf.dtype).name, EVERYBODY)
            for name, leaf in _leaves(self.structure()).items()
        }
        return {**fields, "target_copies": Field((1,), "int64", EVERYBODY)}

    @port("both")
    def sharer(self, me: Place | None = None) -> SharedState:  # noqa: ARG002
        return SharedState(self.structure(), self.arrays, self.total_updates)

    @port("in")
    def reader(self, me: Place | None = None) -> SharedState:
        """For those who only read the weights."""
        return self.sharer(me)

    @property
    def published(self) -> bool:
        """It always is."""
        return True

    def latest(self) -> tuple[int, NDArray[np.float32]]:
        """A copy of the weights as they are now, whose version is the count of updates."""
        return self.sharer().latest()

    def state(self) -> dict[str, NDArray[Any]]:
        return dict(self.arrays)

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        _check_shapes(state, {name: array.shape for name, array in self.arrays.items() if name in state})
        for name, array in state.items():
            self.arrays[name][...] = np.asarray(array)

    def restart(self) -> None:
        """All of it is kept."""

    def mirror(self, source: Arrays, target: Arrays, side: str = WRITER, rows: Sequence[int] | None = None) -> int:
        raise NotImplementedError(f"{self.name} is one live memory: it can't be copied to another machine")


class SharedState:
    """One worker's end."""

    def __init__(self, structure: Any, arrays: Arrays, updates: Callable[[], int]) -> None:
        tree = jax.tree_util.tree_structure(structure)
        self._state: Any = jax.tree_util.tree_unflatten(tree, [arrays[name] for name in _leaves(structure)])
        self._copies, self._count = arrays["target_copies"], updates

    def live(self) -> LearnerState:
        """What is there now; others write it meanwhile."""
        learned: LearnerState = self._state
        return learned

    def latest(self) -> tuple[int, NDArray[np.float32]]:
        """For a policy: a copy of the weights as they are now."""
        return self._count(), self._state.weights.copy()

    def add(self, change: Any, statistics: Any, skipped: Any) -> None:
        """Add the change, number by number; the optimizer's statistics are replaced by their new values."""
        state = self._state
        np.add(state.weights, np.asarray(change), out=state.weights)
        moments = jax.tree_util.tree_leaves(state.optimizer)
        for array, leaf in zip(moments, jax.tree_util.tree_leaves(statistics), strict=True):
            array[...] = np.asarray(leaf)
        np.add(state.updates, 1, out=state.updates)
        state.skipped[...] = np.asarray(skipped)

    def move_target(self, env_steps: int, period: int) -> None:
        """Copy the weights into the target at every multiple of `period` env steps, if there is a target."""
        due = env_steps // period
        if self._state.target.shape == self._state.weights.shape and due > int(self._copies[0]):
            self._copies[0] = due
            self._state.target[...] = self._state.weights


def _leaves(structure: Any) -> dict[str, Any]:
    """Arrays of a learner state by a name that sorts as they stand: 00, 01, ..."""
    return {f"{index:02d}": leaf for index, leaf in enumerate(jax.tree_util.tree_leaves(structure))}


def _check_shapes(saved: Mapping[str, Any], own: Mapping[str, tuple[int, ...]]) -> None:
    if {name: np.shape(array) for name, array in saved.items()} != dict(own):
        raise UserError(
            "the checkpoint's network differs from this configuration's; resume with the options it was started with"
        )


def cut_state(state: Any, size: int, at: slice) -> Any:
    """A learner state of which every vector keeps a slice only; also of shapes."""

    def cut(leaf: Any) -> Any:
        if leaf.shape != (size,):
            return leaf
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct((at.stop - at.start,), leaf.dtype)
        return leaf[at]

    return jax.tree_util.tree_map(cut, state)
