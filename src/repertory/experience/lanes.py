"""Lanes: one environment's steps in time order, in a ring of preallocated arrays; numpy only.

Every observation is stored once, in its own slot, with the action taken there, the reward that followed, and how the
step ended. An episode of L steps takes L + 1 slots: the last holds its final observation and no action, so that a
truncated step can bootstrap from it. Slot numbers only grow; slot s of lane e is at `[e, s % length]`.

The arrays may be given from outside (shared memory): a writer fills a slot first and moves `head` afterwards, so a
reader never sees half a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.errors import UserError
from repertory.specs import EnvironmentSpec, Field

TERMINATED = 1
TRUNCATED = 2
FINAL = 4
"""The slot holds a final observation: no action was taken there."""

MOST_UNSENT, SPARE_SLOTS = 1024, 8
"""Slots of a lane that may be on their way to another machine; and slots beside them: the frames of a stack, the step
that is being written."""

Indices = NDArray[np.int64]


class LaneStorage:
    """`count` rings of `length` slots each."""

    def __init__(
        self, spec: EnvironmentSpec, count: int, length: int, arrays: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        self.spec, self.count, self.length = spec, count, length
        if arrays is None:
            fields = self.fields(spec, count, length)
            arrays = {name: np.zeros(field.shape, field.dtype) for name, field in fields.items()}
        self.arrays = dict(arrays)
        self.observation = self.arrays["observation"]
        self.action = self.arrays["action"]
        self.reward = self.arrays["reward"]
        self.flags = self.arrays["flags"]
        self.age = self.arrays["age"]
        self.version = self.arrays["version"]
        self.mask = self.arrays.get("mask")
        self.value = self.arrays.get("value")
        self.head = self.arrays["head"]
        self.start = self.arrays["start"]
        self.sent, self._most_unsent = self.arrays.get("sent"), min(length, MOST_UNSENT) - SPARE_SLOTS

    @staticmethod
    def fields(spec: EnvironmentSpec, count: int, length: int, stores_values: bool = False) -> dict[str, Field]:
        """What has to be allocated, so that memory can be counted before it is taken.

        With `stores_values` each step also has the policy's value of its action, and of the best one.
        """
        grid = (count, length)
        fields = {
            "observation": Field((*grid, *spec.observation.shape), spec.observation.dtype, commit="head"),
            "action": Field(grid, "int32" if spec.actions > 128 else "int8", commit="head"),
            "reward": Field(grid, "float32", commit="head"),
            "flags": Field(grid, "uint8", commit="head"),
            "age": Field(grid, "int32", commit="head"),
            "version": Field(grid, "int32", commit="head"),
            "head": Field((count,), "int64"),
            "start": Field((count,), "int64"),
        }
        if stores_values:
            fields["value"] = Field((2, *grid), "float32", commit="head")
        if spec.masked:
            fields["mask"] = Field((*grid, spec.actions), "bool", commit="head")
        return fields

    @staticmethod
    def length_for(capacity: int, count: int) -> int:
        """Slots a lane so that all lanes together hold `capacity` steps, final observations aside."""
        return -(-capacity // count) + 2

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def open(self) -> bool:
        """There is always room, since the oldest steps are overwritten; but none that still has to be sent."""
        return self.sent is None or int((self.head - self.sent).max()) < self._most_unsent

    def begin(self, lanes: Indices, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """An episode begins with `observation`, at which the lane's next action is chosen."""
        self._place(lanes, self.head[lanes], observation, mask)
        self.age[lanes, self.head[lanes] % self.length] = 0
        self.start[lanes] = self.head[lanes]

    def append(
        self,
        lanes: Indices,
        action: NDArray[np.integer[Any]],
        reward: NDArray[np.float32],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        observation: NDArray[Any],
        mask: NDArray[np.bool_] | None,
        version: int | NDArray[np.int32],
        values: NDArray[np.float32] | None = None,
    ) -> None:
        """One step: taken at the lane's head, it led to `observation` (the final one, where the episode ended)."""
        if len(lanes) == 1:
            step = (action, reward, terminated, truncated, observation, mask, version, values)
            self._append_one(int(lanes[0]), *step)
            return
        here = self.head[lanes]
        at = here % self.length
        after = (here + 1) % self.length
        self.action[lanes, at] = action
        self.reward[lanes, at] = reward
        self.version[lanes, at] = version
        if self.value is not None:
            self.value[:, lanes, at] = np.nan if values is None else values
        self._place(lanes, here + 1, observation, mask)
        self.age[lanes, after] = self.age[lanes, at] + 1
        ended = terminated | truncated
        self.flags[lanes, after] = np.where(ended, np.uint8(FINAL), np.uint8(0))
        self.flags[lanes, at] = terminated * np.uint8(TERMINATED) + truncated * np.uint8(TRUNCATED)
        self.head[lanes] = here + 1 + ended
        if ended.any():
            self.start[lanes[ended]] = self.head[lanes[ended]]

    def _append_one(self, lane: int, *step: Any) -> None:
        """`append` for a single lane: plain numbers are several times faster than arrays of one."""
        action, reward, terminated, truncated, observation, mask, version, values = step
        here, over, cut = int(self.head[lane]), bool(terminated[0]), bool(truncated[0])
        at, after = here % self.length, (here + 1) % self.length
        self.action[lane, at] = action[0]
        self.reward[lane, at] = reward[0]
        self.version[lane, at] = version
        if self.value is not None:
            self.value[:, lane, at] = np.nan if values is None else values[:, 0]
        self.observation[lane, after] = observation[0, -1] if self.spec.observation.stack > 1 else observation[0]
        if self.mask is not None:
            self.mask[lane, after] = True if mask is None else mask[0]
        self.age[lane, after] = self.age[lane, at] + 1
        self.flags[lane, after] = FINAL if over or cut else 0
        self.flags[lane, at] = over * TERMINATED + cut * TRUNCATED
        self.head[lane] = here + 1 + (over or cut)
        if over or cut:
            self.start[lane] = here + 2

    def interrupt(self, lanes: Indices | None = None) -> None:
        """End the running episodes as truncated, as before the environments are reset from outside.

        A writer that was killed between moving `head` and moving `start` has ended its episode already.
        """
        lanes = np.arange(self.count) if lanes is None else lanes
        last = (self.head[lanes] - 1) % self.length
        open_ = (self.head[lanes] > self.start[lanes]) & ((self.flags[lanes, last] & FINAL) == 0)
        running, last = lanes[open_], last[open_]
        self.flags[running, last] |= TRUNCATED
        self.flags[running, self.head[running] % self.length] = FINAL
        self.head[running] += 1
        self.start[lanes] = self.head[lanes]

    def part(self, first: int, count: int) -> LaneStorage:
        """Some of the lanes by themselves: the same memory, numbered from 0."""
        arrays = {
            name: array[:, first : first + count] if name == "value" else array[first : first + count]
            for name, array in self.arrays.items()
        }
        return LaneStorage(self.spec, count, self.length, arrays)

    def _place(self, lanes: Indices, slots: Indices, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        at = slots % self.length
        newest = observation[:, -1] if self.spec.observation.stack > 1 else observation
        self.observation[lanes, at] = newest
        self.flags[lanes, at] = 0
        if self.mask is not None:
            self.mask[lanes, at] = True if mask is None else mask

    def index(self, lanes: Indices, slots: Indices) -> Indices:
        """Positions with the first two axes read as one: `take` with them is the fastest gather."""
        return lanes * self.length + slots % self.length

    def stacks(self, lanes: Indices, slots: Indices, index: Indices, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Observations as a network gets them: the newest frame last, none from before the episode began."""
        depth = self.spec.observation.stack
        frames = self.observation.reshape(-1, *self.spec.observation.shape)
        if depth == 1:
            return frames.take(index, axis=0, out=out, mode="clip")
        age = self.age.take(index)[:, None]
        back = np.arange(depth - 1, -1, -1)
        reached = self.index(lanes[:, None], slots[:, None] - np.minimum(back, age))
        seen = frames.take(reached, axis=0, out=out, mode="clip")
        if self.spec.observation.padding == "zero" and age.min(initial=depth) < depth - 1:
            seen[back > age] = 0
        return seen

    @property
    def filled(self) -> int:
        """Slots that were written in the fullest lane, the one at its head included; the rest are zeros."""
        return self._filled(self.head)

    def state(self) -> dict[str, NDArray[Any]]:
        """What was written, as views, for a checkpoint: unused slots are not saved.

        Counts are copied first, `head` last: in a run that failed, an actor may still be writing.
        """
        counts = {name: self.arrays[name].copy() for name in ("start", "head")}
        return self._first(self._filled(counts["head"])) | counts

    def _filled(self, head: Indices) -> int:
        return min(self.length, int(np.max(head, initial=0)) + 1)

    def flags_at(self, lanes: Indices, slots: Indices) -> NDArray[np.uint8]:
        return self.flags.take(self.index(lanes, slots))

    def _first(self, slots: int) -> dict[str, NDArray[Any]]:
        """The arrays with the first slots of each lane only."""
        cuts: dict[str, Any] = {"value": np.s_[:, :, :slots], "head": np.s_[:], "start": np.s_[:]}
        return {name: array[cuts.get(name, np.s_[:, :slots])] for name, array in self.arrays.items()}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        for name, array in self._first(self._filled(state["head"])).items():
            if state[name].shape != array.shape or state[name].dtype != array.dtype:
                raise UserError(
                    f"the checkpoint's {name} has shape {state[name].shape}, this run needs {array.shape}; "
                    "resume with the options it was started with"
                )
            array[...] = state[name]
