"""`Lanes`: every environment's steps in a ring of its own, written by its actor, read by whoever samples them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.channels.channel import READER, WRITER, Arrays, Channel, Place, own_rows, port
from repertory.channels.lane_copy import LaneCopy
from repertory.experience.lanes import LaneStorage
from repertory.experience.priorities import PriorityTree
from repertory.specs import EnvironmentSpec, Field

NEVER = 1 << 62
OF_READERS = ("priorities", "taken", "wake_at")
BESIDE = (*OF_READERS, "shift")
"""Arrays that the storage of the lanes does not know."""


class Lanes(Channel):
    """`count` lanes of `length` slots; with `values` each step also stores what the policy thought of it.

    Readers keep priorities here, where these outlive them: one tree for all lanes, or `readers` trees for as many equal
    parts of them. `capacity` is for people: steps that all lanes hold together. `shift` is how much higher than in the
    lanes that it mirrors a step is numbered here.
    """

    def __init__(
        self,
        name: str,
        spec: EnvironmentSpec,
        count: int,
        capacity: int,
        *,
        values: bool = False,
        prioritized: bool = False,
        readers: int = 1,
        **told: str,
    ) -> None:
        super().__init__(name, **told)
        self.spec, self.count, self.capacity, self.values = spec, count, capacity, values
        self.prioritized, self.readers = prioritized, readers
        self.length = LaneStorage.length_for(capacity, count)

    def fields(self) -> dict[str, Field]:
        fields = LaneStorage.fields(self.spec, self.count, self.length, self.values)
        fields["shift"] = Field((self.count,), "int64")
        fields["wake_at"] = Field((1,), "int64", READER)
        fields["taken"] = Field((self.count,), "int64", READER)
        if self.prioritized:
            leaves = PriorityTree.padded(self.count // self.readers * self.length)
            fields["priorities"] = Field((self.readers, leaves), "float64", READER)
        return fields

    @property
    def nbytes(self) -> int:
        """Memory of full lanes, with the sums of the priorities, which each reader keeps for itself."""
        fields = self.fields()
        sums = math.prod(fields["priorities"].shape) if self.prioritized else 0
        return sum(field.nbytes for field in fields.values()) + sums

    def storage(self) -> LaneStorage:
        return self._storage(self.arrays)

    def _storage(self, arrays: Arrays) -> LaneStorage:
        own = {name: array for name, array in arrays.items() if name not in BESIDE}
        return LaneStorage(self.spec, self.count, self.length, own)

    @port("out")
    def writer(self, me: Place | None = None) -> LaneWriter:  # noqa: ARG002
        return LaneWriter(self)

    @port("in")
    def reader(self, me: Place | None = None) -> LaneReader:  # noqa: ARG002
        return LaneReader(self)

    def state(self) -> dict[str, Any]:
        storage = self.storage()
        state: dict[str, Any] = {"steps": storage.state(), "taken": self.arrays["taken"].copy()}
        if self.prioritized:
            state["priorities"] = self._priorities()[:, :, : storage.filled]
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        storage = self.storage()
        storage.load_state(state["steps"])
        storage.interrupt()
        self.arrays["shift"][:] = 0
        self.arrays["taken"][:] = state["taken"]
        if self.prioritized:
            saved = np.asarray(state["priorities"])
            self._priorities()[:, :, : saved.shape[2]] = saved

    def restart(self) -> None:
        """All of it is kept; running episodes end as truncated, as they do when a checkpoint is loaded.

        An end takes a slot, which lanes that follow others have and those may not.
        """
        storage = self.storage()
        before = storage.head.copy()
        storage.interrupt()
        self.arrays["shift"][:] += storage.head - before
        self.arrays["wake_at"][:] = 0

    def _priorities(self) -> NDArray[np.float64]:
        """[reader, lane, slot], live; a tree has leaves beyond those that only fill it up."""
        leaves, lanes = self.arrays["priorities"], self.count // self.readers
        return leaves[:, : lanes * self.length].reshape(len(leaves), lanes, -1)

    def metrics(self) -> dict[str, float | int]:
        return {"replay_size": int(min(self.arrays["head"].clip(max=self.length).sum(), self.capacity))}

    def mirror(self, source: Arrays, target: Arrays, side: str = WRITER, rows: Sequence[int] | None = None) -> int:
        """`rows` are numbers of lanes."""
        if side == READER:
            return _mirror_whole(source, target, [name for name in OF_READERS if name in source])
        copy = LaneCopy(self._storage(source), self._storage(target), target["shift"])
        return copy.catch_up(own_rows(self.count, rows))


def _mirror_whole(source: Arrays, target: Arrays, names: list[str]) -> int:
    moved = 0
    for name in names:
        if not np.array_equal(source[name], target[name]):
            target[name][...] = source[name]
            moved += source[name].nbytes
    return moved


class LaneWriter:
    """An actor's end."""

    def __init__(self, lanes: Lanes) -> None:
        self.storage, self._wake_at, self._ring = lanes.storage(), lanes.arrays["wake_at"], lanes.bells.readers

    def wake_reader(self, env_steps: int) -> None:
        """Wake whoever samples, if it waits for so many env steps of all actors together."""
        if env_steps >= self._wake_at[0]:
            self._ring()


class LaneReader:
    """A sampler's end."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes, self.storage, self.wake_writers = lanes, lanes.storage(), lanes.bells.writers

    def part(self, index: int, parts: int) -> LaneStorage:
        """The lanes of one of so many equal parts."""
        each = self.storage.count // parts
        return self.storage.part(index * each, each)

    def priorities(self, index: int = 0) -> NDArray[np.float64] | None:
        """Where the priorities of this reader's part lie, if there are any."""
        return self._lanes.arrays["priorities"][index] if self._lanes.prioritized else None

    @property
    def taken(self) -> NDArray[np.int64]:
        """By lane, live: the first slot that was not yet learned from, where each step is learned from once."""
        taken: NDArray[np.int64] = self._lanes.arrays["taken"]
        return taken

    def wake_at(self, env_steps: int | None) -> None:
        """Actors wake this reader once they have played so many env steps; None = they need not."""
        self._lanes.arrays["wake_at"][0] = NEVER if env_steps is None else env_steps
