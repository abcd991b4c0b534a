"""Unrolls: fixed numbers of steps in slots that are handed over by their index; numpy only.

Each writer (one group of environments) owns a few slots of `rows + 1` observations. Row t holds observation, action and
reward; the last row only an observation. An environment whose episode ended spends the next row being reset: the row
holds the final observation and no step, so that a truncated step can bootstrap from it.

A slot is free while its writer has filled it as often as a reader has freed it, else it is ready. Counts are moved
after the data, each by one side only; so a writer or reader may be killed at any moment, and no slot is ever lost.

No clock says which unroll is older, since writers and readers may be on different machines: a reader takes slots in the
order in which it first saw them ready, and those it saw at once by how many unrolls their writers had handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from repertory.experience.lanes import FINAL, TERMINATED, TRUNCATED, Indices
from repertory.specs import EnvironmentSpec, Field

Arrays = Mapping[str, NDArray[Any]]


class UnrollBatch(NamedTuple):
    """Unrolls side by side, `[rows + 1, unrolls]`; `agents/` explains how they are learned from."""

    observation: NDArray[Any]
    action: NDArray[np.int32]
    reward: NDArray[np.float32]
    discount: NDArray[np.float32]
    log_prob: NDArray[np.float32]
    weight: NDArray[np.float32]
    first: NDArray[np.bool_]
    mask: NDArray[np.bool_] | None
    state: NDArray[np.float32]
    entropy: NDArray[np.float32]
    slots: Indices
    version: NDArray[np.int64]
    """`[slots, rows]`: of the weights that acted."""
    updates: int

    @property
    def steps(self) -> int:
        """Steps that are learned from; rows of resets have weight 0."""
        return int(np.count_nonzero(self.weight))

    def versions(self) -> NDArray[np.int64]:
        """One for each step of a slot."""
        return self.version.ravel()


class Census(NamedTuple):
    """How many slots are in each condition."""

    free: int
    ready: int
    in_use: int


class UnrollStorage:
    """The slots of all writers; writer w owns slots `w · depth` to `(w + 1) · depth - 1`."""

    def __init__(self, spec: EnvironmentSpec, depth: int, arrays: Arrays) -> None:
        self.spec, self.depth, self.arrays = spec, depth, arrays
        self.count, self.rows, self.environments = arrays["action"].shape
        self.rows -= 1
        self.filled, self.freed = arrays["filled"], arrays["freed"]
        self._seen = np.zeros(self.count, np.int64)  # the fill of each slot that was last seen ready, and as which
        self._place = np.zeros(self.count, np.int64)
        self._places = 0

    @staticmethod
    def fields(
        spec: EnvironmentSpec, writers: int, depth: int, rows: int, environments: int, state_size: int
    ) -> dict[str, Field]:
        slots, seen = writers * depth, spec.observation
        grid = (slots, rows + 1, environments)
        fields = {
            "observation": Field((slots, rows + seen.stack, environments, *seen.shape), seen.dtype, commit="filled"),
            "action": Field(grid, "int32", commit="filled"),
            "reward": Field(grid, "float32", commit="filled"),
            "flags": Field(grid, "uint8", commit="filled"),
            "log_prob": Field(grid, "float32", commit="filled"),
            "age": Field(grid, "int32", commit="filled"),
            "version": Field((slots, rows + 1), "int64", commit="filled"),
            "state": Field((slots, environments, max(1, state_size)), "float32", commit="filled"),
            "filled": Field((slots,), "int64"),
            "freed": Field((slots,), "int64", "reader"),
            "sequence": Field((slots,), "int64", commit="filled"),
            "reader": Field((slots,), "int64", commit="filled"),
            "progress": Field((writers,), "int64"),
        }
        if spec.masked:
            fields["mask"] = Field((*grid, spec.actions), "bool", commit="filled")
        return fields

    def ready(self, reader: int | None = None) -> Indices:
        """Slots that wait for this reader, or for any, the oldest first."""
        filled = self.filled.copy()
        waiting = filled > self.freed
        self._note(np.flatnonzero(waiting & (filled != self._seen)), filled)
        if reader is not None:
            waiting &= self.arrays["reader"] == reader
        slots = np.flatnonzero(waiting)
        return slots[np.argsort(self._place[slots])]

    def _note(self, slots: Indices, filled: Indices) -> None:
        """These are ready now, and were not at the last look."""
        slots = slots[np.argsort(self.arrays["sequence"][slots], kind="stable")]
        self._place[slots] = self._places + np.arange(len(slots))
        self._seen[slots] = filled[slots]
        self._places += len(slots)

    def free(self, slots: Indices) -> None:
        self.freed[slots] = self.filled[slots]

    def census(self) -> Census:
        """In use are the slots that are being written."""
        ready, writing = int((self.filled > self.freed).sum()), int((self.arrays["progress"] > 0).sum())
        return Census(self.count - ready - writing, ready, writing)

    def gather(self, slots: Indices, discount: float, entropy: float, state_size: int, updates: int) -> UnrollBatch:
        flags = self._columns("flags", slots)
        weight = ((flags & FINAL) == 0).astype(np.float32)
        weight[-1] = 0.0
        age = self._columns("age", slots)
        return UnrollBatch(
            self._stacks(slots, age),
            self._columns("action", slots),
            self._columns("reward", slots),
            np.where(flags & (TERMINATED | FINAL), np.float32(0.0), np.float32(discount)),
            self._columns("log_prob", slots),
            weight,
            age == 0,
            self._columns("mask", slots) if "mask" in self.arrays else None,
            self.arrays["state"][slots].reshape(len(slots) * self.environments, -1)[:, :state_size],
            np.float32(entropy),  # type: ignore[arg-type]
            slots,
            self.arrays["version"][slots, : self.rows],
            updates,
        )

    def _columns(self, name: str, slots: Indices) -> NDArray[Any]:
        """`[rows + 1, unrolls, ...]`."""
        found = self.arrays[name][slots]
        return np.ascontiguousarray(np.moveaxis(found, 0, 1)).reshape(self.rows + 1, -1, *found.shape[3:])

    def _stacks(self, slots: Indices, age: NDArray[np.int32]) -> NDArray[Any]:
        """Observations as a network sees them: the newest frame last, none from before the episode began."""
        depth, rows, frames = self.spec.observation.stack, self.rows + 1, self.arrays["observation"]
        if depth == 1:
            return self._columns("observation", slots)
        seen = np.empty((rows, len(slots), self.environments, depth, *self.spec.observation.shape), frames.dtype)
        for index, slot in enumerate(slots.tolist()):
            for layer in range(depth):
                seen[:, index, :, layer] = frames[slot, layer : layer + rows]
        seen = seen.reshape(rows, -1, *seen.shape[3:])
        row, column = np.nonzero(age < depth - 1)
        for r, c in zip(row.tolist(), column.tolist(), strict=True):
            oldest = depth - 1 - int(age[r, c])
            seen[r, c, :oldest] = 0 if self.spec.observation.padding == "zero" else seen[r, c, oldest]
        return seen


@dataclass(eq=False)
class UnrollWriter:
    """Writes the steps of one group of environments.

    `begin_unroll` is called before the first step of each; `states` gives the recurrent states of that moment.

    A full unroll is handed over as soon as its last row is whole, which holds the observations to bootstrap from.
    Where all environments were stepped, `append` writes that row. Where some were only reset, `begin` does: it follows
    in the same step, since environments here take a step of their own to begin an episode (NEXT_STEP autoreset).
    """

    unrolls: UnrollStorage
    writer: int
    _: KW_ONLY
    begin_unroll: Callable[[], None]
    states: Callable[[], NDArray[np.float32]]
    reader: Callable[[], int]
    ring: Callable[[], None]
    dropped: Callable[[], None]

    def __post_init__(self) -> None:
        unrolls, writer = self.unrolls, self.writer
        own = writer * unrolls.depth + np.arange(unrolls.depth)
        self._own: list[int] = own.tolist()
        self._next = int(unrolls.filled[own].sum()) % unrolls.depth
        self._progress = unrolls.arrays["progress"][writer : writer + 1]
        if self._progress[0]:  # an earlier writer was cut off in the middle of an unroll
            self.interrupt()
        seen, count = unrolls.spec.observation, unrolls.environments
        self._frames = np.zeros((seen.stack, count, *seen.shape), seen.dtype)
        self._age = np.zeros(count, np.int32)
        self._mask = np.ones((count, unrolls.spec.actions), bool) if "mask" in unrolls.arrays else None
        self._slot: int | None = None
        self._row = 0

    def open(self) -> bool:
        """Whether there is a row to write: begins the next unroll if none is being written and a slot is free."""
        return self._slot is not None or self._take()

    def _take(self) -> bool:
        slot, unrolls = self._free_slot(), self.unrolls
        if slot is None:
            return False
        self.begin_unroll()
        arrays, depth = unrolls.arrays, unrolls.spec.observation.stack
        arrays["observation"][slot, :depth] = self._frames
        states = self.states()
        arrays["state"][slot, :, : states.shape[1]] = states
        self._slot, self._row = slot, 0
        self._note()
        self._progress[0] = 1
        return True

    def _free_slot(self) -> int | None:
        """The next one in turn; another where that one still waits: one of several readers may be slow."""
        filled, freed, depth = self.unrolls.filled, self.unrolls.freed, self.unrolls.depth
        for _ in range(depth):
            slot, self._next = self._own[self._next], (self._next + 1) % depth
            if filled[slot] == freed[slot]:
                return slot
        return None

    def _hand_over(self) -> None:
        arrays, slot = self.unrolls.arrays, self._slot
        arrays["sequence"][slot] = self.unrolls.filled[self._own].sum() + 1
        arrays["reader"][slot] = self.reader()
        self._progress[0] = 0
        self.unrolls.filled[slot] += 1
        self._slot = None
        self.ring()

    def _note(self) -> None:
        """Write what is known of the next row, besides its observation."""
        arrays, at = self.unrolls.arrays, (self._slot, self._row)
        arrays["age"][at] = self._age
        if self._mask is not None:
            arrays["mask"][at] = self._mask

    def begin(self, lanes: Indices, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        self._see(lanes, observation, mask)
        self._age[lanes] = 0
        if self._slot is not None:
            self._write_row()

    def append(
        self,
        lanes: Indices,
        action: NDArray[np.integer[Any]],
        reward: NDArray[np.float32],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        observation: NDArray[Any],
        mask: NDArray[np.bool_] | None,
        version: int,
        values: NDArray[np.float32] | None = None,
    ) -> None:
        """A row: steps in these lanes, in the others none; then the observations that they led to."""
        arrays, at = self.unrolls.arrays, (self._slot, self._row)
        if len(lanes) < self.unrolls.environments:
            arrays["flags"][at] = FINAL
            for name in ("action", "reward", "log_prob"):
                arrays[name][at] = 0
        arrays["flags"][at][lanes] = terminated * np.uint8(TERMINATED) + truncated * np.uint8(TRUNCATED)
        arrays["action"][at][lanes] = action
        arrays["reward"][at][lanes] = reward
        if values is not None:
            arrays["log_prob"][at][lanes] = values[0]
        arrays["version"][at] = version
        if self._frames.shape[0] > 1:
            self._frames[:-1] = self._frames[1:]
        self._see(lanes, observation, mask)
        self._age[lanes] += 1
        self._row += 1
        self._progress[0] = 1 + self._row
        self._write_row(whole=len(lanes) == self.unrolls.environments)

    def _write_row(self, whole: bool = True) -> None:
        """Write what is known of the next row; with a whole last row, the unroll is handed over."""
        self._note()
        depth = self._frames.shape[0]
        self.unrolls.arrays["observation"][self._slot, self._row + depth - 1] = self._frames[-1]
        if whole and self._row == self.unrolls.rows:
            self._hand_over()

    def _see(self, lanes: Indices, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        self._frames[-1][lanes] = observation[:, -1] if self._frames.shape[0] > 1 else observation
        if self._mask is not None:
            self._mask[lanes] = True if mask is None else mask

    def interrupt(self, lanes: Indices | None = None) -> None:  # noqa: ARG002
        """Drop and count an unroll that was begun."""
        self._slot, self._row = None, 0
        if self._progress[0] > 1:
            self.dropped()
        self._progress[0] = 0
