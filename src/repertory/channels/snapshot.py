"""`Snapshot`: a learner state that survives its owner. `Shared`: one live learner state that all workers write."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import LearnerState
from repertory.channels.channel import (
    ALL_WORKERS,
    WRITER,
    Arrays,
    Channel,
    Item,
    Marks,
    Place,
    TwoCopies,
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

    `structure()` gives a learner state of the right shapes.
    """

    layer = 3

    def __init__(self, name: str, structure: Callable[[], Any], *, parts: int = 1, **labels: str) -> None:
        super().__init__(name, **labels)
        self.structure, self.parts = structure, parts

    @property
    def row_count(self) -> int:
        return self.parts

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
        """Owns the part of this rank, if there are several."""
        return self._owner(me.rank if self.parts > 1 else 0)

    def _owner(self, part: int) -> Owner:
        return Owner(self._cut(part), _part(self.arrays, part))

    @property
    def updates(self) -> int:
        return int(self._owner(0).load().updates)

    def state(self) -> dict[str, NDArray[Any]]:
        """The whole state as named arrays, joined over all owners."""
        parts = [self._owner(part).state() for part in range(self.parts)]
        vectors = self._vectors()
        return {
            name: np.concatenate([part[name] for part in parts]) if name in vectors and self.parts > 1 else array
            for name, array in parts[0].items()
        }

    def _vectors(self) -> set[str]:
        structure = self.structure()
        return {name for name, leaf in _leaves(structure).items() if leaf.shape == structure.weights.shape}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        vectors = self._vectors()
        for part, cut in enumerate(slices(self.structure().weights.shape[0], self.parts)):
            own = {name: np.asarray(array)[cut] if name in vectors else array for name, array in state.items()}
            self._owner(part).load_state(own if self.parts > 1 else state)

    def mirror(self, source: Arrays, target: Arrays, side: str = WRITER, rows: Sequence[int] | None = None) -> int:
        parts = own_rows(self.parts, rows).tolist() if side == WRITER else []
        return sum(_part(target, part).copy_from(_part(source, part)) for part in parts)

    def pack(self, marks: Marks, side: str = WRITER, rows: Sequence[int] | None = None) -> list[Item]:
        items: list[Item] = []
        for part in own_rows(self.parts, rows).tolist() if side == WRITER else []:
            if int(self.arrays[f"{part}/count"][0]) not in (0, marks.get(part)):
                count, found = _part(self.arrays, part).read()
                items += [Item(f"{part}/{name}", count % 2, values) for name, values in found.items()]
                items.append(Item(f"{part}/count", 0, count))
                marks[part] = count
        return items

    def seed(self, rows: Sequence[int]) -> list[Item]:  # noqa: ARG002
        """All parts: an owner loads its part when it starts."""
        return self.pack({})

    def lose(self, rows: Sequence[int]) -> None:
        for part in rows:
            self.arrays[f"{part}/mirrored"][:] = 0


def _part(arrays: Arrays, part: int) -> TwoCopies:
    return TwoCopies(under(f"{part}", arrays))


class Owner:
    """One owner's port to its part."""

    def __init__(self, structure: Any, part: TwoCopies) -> None:
        self._names, self._tree = list(_leaves(structure)), jax.tree_util.tree_structure(structure)
        self._part, self._saved = part, time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time for the next save."""
        return time.monotonic() - self._saved > EVERY_S

    def save(self, learned: LearnerState) -> None:
        self._part.write(dict(zip(self._names, jax.tree_util.tree_leaves(learned), strict=True)))
        self._saved = time.monotonic()

    def load(self) -> LearnerState:
        leaves = [jax.numpy.array(array) for array in self.state().values()]
        learned: LearnerState = jax.tree_util.tree_unflatten(self._tree, leaves)
        return learned

    def state(self) -> dict[str, NDArray[Any]]:
        found = self._part.valid()
        return {name: found[name] for name in self._names}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        _check_shapes(state, {name: array.shape for name, array in self.state().items()})
        self._part.write(state)


class Shared(Channel):
    """One live copy of a learner state, read and written by all workers without a lock (Hogwild: Niu et al. 2011).

    `total_updates()` tells how many were made: the count inside the state may lose some, since nothing is locked.
    """

    one_machine = True

    def __init__(self, name: str, structure: Callable[[], Any], **labels: str) -> None:
        super().__init__(name, **labels)
        self.structure = structure

    def fields(self) -> dict[str, Field]:
        fields = {
            name: Field(leaf.shape, np.dtype(leaf.dtype).name, ALL_WORKERS)
            for name, leaf in _leaves(self.structure()).items()
        }
        return {**fields, "target_copies": Field((1,), "int64", ALL_WORKERS)}

    @port("both")
    def sharer(self, me: Place | None = None) -> SharedState:  # noqa: ARG002
        return SharedState(self.structure(), self.arrays, self.total_updates)

    @port("in")
    def reader(self, me: Place | None = None) -> SharedState:
        return self.sharer(me)

    published = True

    def latest(self) -> tuple[int, NDArray[np.float32]]:
        return self.sharer().latest()

    def state(self) -> dict[str, NDArray[Any]]:
        return dict(self.arrays)

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        _check_shapes(state, {name: array.shape for name, array in self.arrays.items() if name in state})
        for name, array in state.items():
            self.arrays[name][...] = np.asarray(array)

    def restart(self) -> None:
        """A checkpoint saves all of it."""

    def mirror(self, source: Arrays, target: Arrays, side: str = WRITER, rows: Sequence[int] | None = None) -> int:
        raise NotImplementedError(f"{self.name} is one live memory: it can't be copied to another machine")


class SharedState:
    def __init__(self, structure: Any, arrays: Arrays, updates: Callable[[], int]) -> None:
        tree = jax.tree_util.tree_structure(structure)
        self._state: Any = jax.tree_util.tree_unflatten(tree, [arrays[name] for name in _leaves(structure)])
        self._copies, self._count = arrays["target_copies"], updates

    def live(self) -> LearnerState:
        """The state now; other workers write it meanwhile."""
        learned: LearnerState = self._state
        return learned

    def latest(self) -> tuple[int, NDArray[np.float32]]:
        """The count of updates, and a copy of the weights as they are now."""
        return self._count(), self._state.weights.copy()

    def add(self, change: Any, statistics: Any, skipped: Any) -> None:
        """Add a change to the weights, number by number; the optimizer's statistics are replaced."""
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
    """Arrays of a learner state by names that sort in their order: 00, 01, ..."""
    return {f"{index:02d}": leaf for index, leaf in enumerate(jax.tree_util.tree_leaves(structure))}


def _check_shapes(saved: Mapping[str, Any], own: Mapping[str, tuple[int, ...]]) -> None:
    if {name: np.shape(array) for name, array in saved.items()} != dict(own):
        raise UserError(
            "the checkpoint's network differs from this configuration's; resume with the options it was started with"
        )


def cut_state(state: Any, size: int, at: slice) -> Any:
    """A learner state, or its shapes, with only a slice of every vector."""

    def cut(leaf: Any) -> Any:
        if leaf.shape != (size,):
            return leaf
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct((at.stop - at.start,), leaf.dtype)
        return leaf[at]

    return jax.tree_util.tree_map(cut, state)
