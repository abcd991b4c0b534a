"""Samples indices in proportion to their priorities. Imports NumPy only.

A sum tree with 32 children to a node: a million leaves are two levels of rows under one short list, and a whole batch
is sampled or updated by a handful of NumPy calls a level. A sum is always computed afresh from what it sums, never
adjusted by a difference: it does not drift, and the priorities alone determine it.

Prioritized Experience Replay: https://arxiv.org/abs/1511.05952
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

SHIFT = 5  # a row has 2**SHIFT children
WIDTH = 1 << SHIFT
LONGEST_TOP = 1024  # a running sum over more than this costs more than another level
FEW_ROWS = 32  # up to so many touched rows, summing some twice is faster than removing duplicates
MOST_WAITING = 1024  # calls of set whose sums may wait for the next sample


class PriorityTree:
    """Leaves 0 … capacity - 1, each with a priority; all are 0 at first."""

    def __init__(self, capacity: int, leaves: NDArray[np.float64] | None = None) -> None:
        """`leaves` may be given from outside (shared memory), `padded(capacity)` of them; they keep their values."""
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        top, depth = _height(capacity)
        # From the leaves up, each (rows, WIDTH); padded, so that every child of a level is a row below it.
        self._levels = [np.zeros((top * WIDTH**height, WIDTH)) for height in reversed(range(depth))]
        self._top = np.zeros(top)
        if leaves is not None and depth:
            self._levels[0] = leaves.reshape(-1, WIDTH)
        elif leaves is not None:
            self._top = leaves
        self._bounds = np.zeros(top + 1)  # running sum of the top, from 0
        above = [*(level.reshape(-1) for level in self._levels[1:]), self._top]
        self._sums = list(zip(self._levels, above, strict=False))
        self._leaves = self._levels[0].reshape(-1) if self._levels else self._top
        self._priorities = self._leaves[:capacity]  # without the padding
        self._waiting: list[NDArray[np.int64]] = []  # rows of leaves whose sums are out of date
        if leaves is not None:
            self._waiting.append(np.arange(capacity, step=WIDTH) >> SHIFT)

    @staticmethod
    def padded(capacity: int) -> int:
        """How many `leaves` have to be given."""
        top, depth = _height(capacity)
        return top << SHIFT * depth

    def set(self, leaves: NDArray[np.int64], values: ArrayLike) -> None:
        """Sets priorities, which are finite and not negative; of a leaf given twice the last one counts."""
        self._priorities[leaves] = values
        self._waiting.append(leaves >> SHIFT)
        if len(self._waiting) == MOST_WAITING:
            self._refresh()

    def get(self, leaves: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._priorities.take(leaves)

    @property
    def total(self) -> float:
        if self._waiting:
            self._refresh()
        return float(self._bounds[-1])

    def sample(self, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Maps numbers in [0, 1) to leaves by the inverse of the cumulative distribution; [N] to [N]."""
        total = self.total
        if not 0 < total < np.inf:
            raise ValueError(f"cannot sample from priorities whose sum is {total}")
        rest = uniforms * total
        places = self._bounds[1:-1].searchsorted(rest, "right")
        rest -= self._bounds.take(places)
        for level in reversed(self._levels):
            ends = level.take(places, axis=0)
            np.add.accumulate(ends, axis=1, out=ends)
            beyond = ends > rest[:, None]
            beyond[:, -1] = True  # rounding must not lead out of the row
            within = beyond.argmax(axis=1)
            places = (places << SHIFT) + within
            if level is not self._levels[0]:
                rest -= ends.take(within + np.arange(0, ends.size, WIDTH)) - level.take(places)
        if np.count_nonzero(self._leaves.take(places)) < places.size:
            places = self._nearest_positive(places)
        return places

    def state(self) -> dict[str, NDArray[np.float64]]:
        return {"priorities": self._priorities.copy()}

    def load_state(self, state: Mapping[str, NDArray[np.float64]]) -> None:
        if state["priorities"].shape != self._priorities.shape:
            raise ValueError(f"{state['priorities'].size} priorities for {self._priorities.size} leaves")
        self.set(np.arange(self._priorities.size), state["priorities"])

    def _refresh(self) -> None:
        rows = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)
        self._waiting = []
        for level, sums in self._sums:
            if rows.size > FEW_ROWS:
                rows = _distinct(rows, len(level))
            sums[rows] = np.add.reduce(level.take(rows, axis=0), axis=1)
            rows = rows >> SHIFT
        np.add.accumulate(self._top, out=self._bounds[1:])

    def _nearest_positive(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Steps back from leaves of priority 0, to which rounding can lead at the edge of a sum."""
        positive = np.flatnonzero(self._priorities)
        return positive.take(positive.searchsorted(places, "right") - 1, mode="clip")


def _height(capacity: int) -> tuple[int, int]:
    """Entries of the top, and levels below it."""
    top, depth = capacity, 0
    while top > LONGEST_TOP:
        top, depth = -(-top // WIDTH), depth + 1
    return top, depth


def _distinct(rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Like np.unique, several times faster for numbers below a small count."""
    seen = np.zeros(count, np.bool_)
    seen[rows] = True
    return np.flatnonzero(seen)
