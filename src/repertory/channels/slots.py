"""Slots: fixed places that are filled, handed over by a count, and handed back by another count.

The filler moves its count after the data, the releaser moves its own after it has used them. So either may be killed at
any moment, and no slot is ever lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.channels.channel import (
    READER,
    WRITER,
    Arrays,
    Channel,
    Place,
    copy_rows,
    mirror_changed,
    mirror_counted,
    mirror_grown,
    own_rows,
    port,
)
from repertory.experience.replay import Sample
from repertory.experience.unrolls import UnrollStorage
from repertory.specs import EnvironmentSpec, Field


class Batches:
    """Where a learner gets its batches; methods that a source does not need do nothing."""

    def take(self) -> Any:
        """What one call learns from: a `Sample` or an `UnrollBatch`; None if there is not enough."""
        raise NotImplementedError

    def example(self) -> Any:
        """A batch of the right shapes, to compile with."""
        raise NotImplementedError

    def ahead(self) -> None:
        """A good moment to sample the next batch: the last one is being learned from."""

    def release(self, sample: Any, priority: Any) -> None:
        """The sample was learned from; `priority` are its TD errors."""

    def give_back(self, sample: Any) -> None:
        """The sample was not learned from after all."""

    def settle(self) -> None:
        """Forget what was sampled ahead, so that the state alone decides what comes next."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint saves of it, as JSON values."""
        return {}

    def load_state(self, state: Any) -> None:
        """Continue from that."""


class BatchSlots(Channel):
    """Batches from a replay to a learner, and their priorities on the way back.

    Slot i of `count` is used by batches i, i + count, ... A released slot holds the errors of its steps until the
    replay has read them. `example()` gives a sample of the right shapes, of `updates` batches.
    """

    def __init__(self, name: str, example: Callable[[], Sample], count: int, updates: int, **labels: str) -> None:
        super().__init__(name, **labels)
        self.example, self.count, self.updates = example, count, updates

    def fields(self) -> dict[str, Field]:
        example = self.example()
        fields = {
            name: Field((self.count, *array.shape), array.dtype.name, commit="filled")
            for name, array in example._asdict().items()
            if array is not None
        }
        return {
            **fields,
            "priority": Field((self.count, len(example.weight)), "float32", READER, "freed"),
            "filled": Field((1,), "int64"),
            "freed": Field((1,), "int64", READER),
        }

    @port("out")
    def writer(self, me: Place | None = None) -> BatchWriter:  # noqa: ARG002
        return BatchWriter(self.arrays, self.bells.readers)

    @port("in")
    def reader(self, me: Place | None = None) -> BatchReader:  # noqa: ARG002
        return BatchReader(self.arrays, self.updates, self.bells.writers)

    def mirror(self, source: Arrays, target: Arrays, side: str = WRITER, rows: Sequence[int] | None = None) -> int:  # noqa: ARG002
        count, names = ("filled", Sample._fields) if side == WRITER else ("freed", ("priority",))
        done, made = int(target[count][0]), int(source[count][0])
        if made == done:
            return 0
        new = np.arange(max(done, made - self.count), made) % self.count
        moved = copy_rows(source, target, [name for name in names if name in source], new)
        target[count][0] = made
        return moved + source[count].nbytes


class BatchWriter:
    """The replay's port."""

    def __init__(self, arrays: Arrays, ring: Callable[[], None]) -> None:
        self._arrays, self._ring, self.count = arrays, ring, len(arrays["weight"])
        self._names = [name for name in Sample._fields if name in arrays]

    @property
    def filled(self) -> int:
        return int(self._arrays["filled"][0])

    @property
    def freed(self) -> int:
        return int(self._arrays["freed"][0])

    def put(self, sample: Sample) -> None:
        """Fill the next slot; there must be one whose errors were read."""
        at = self.filled % self.count
        for name in self._names:
            self._arrays[name][at] = getattr(sample, name)
        self._arrays["filled"][0] += 1
        self._ring()

    def errors(self, batch: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Lanes, slots and errors of a freed batch."""
        at = batch % self.count
        return self._arrays["lane"][at], self._arrays["slot"][at], self._arrays["priority"][at]


class BatchReader(Batches):
    """The learner's port."""

    def __init__(self, arrays: Arrays, updates: int, ring: Callable[[], None]) -> None:
        self._arrays, self._updates, self._ring, self.count = arrays, updates, ring, len(arrays["weight"])
        self._names = [name for name in Sample._fields if name in arrays]

    @property
    def _freed(self) -> int:
        return int(self._arrays["freed"][0])

    def take(self) -> Sample | None:
        """The oldest batch, which does not change until it is released."""
        return self._at(self._freed)

    def next(self) -> Sample | None:
        """The batch after that, if it is there already."""
        return self._at(self._freed + 1)

    def _at(self, batch: int) -> Sample | None:
        if int(self._arrays["filled"][0]) <= batch:
            return None
        values = {name: self._arrays[name][batch % self.count] for name in self._names}
        return Sample(**{"next_mask": None, **values}).split(self._updates)

    def example(self) -> Sample:
        values = {name: self._arrays[name][0] for name in self._names}
        return Sample(**{"next_mask": None, **values, "weight": np.ones_like(values["weight"])}).split(self._updates)

    def release(self, sample: Sample, priority: Any) -> None:  # noqa: ARG002
        """Hand the slot back with the errors of its steps."""
        self._arrays["priority"][self._freed % self.count] = np.asarray(priority).reshape(-1)
        self._arrays["freed"][0] += 1
        self._ring()


class UnrollSlots(Channel):
    """Unrolls from groups of environments to learners.

    Each of `writers` owns `depth` slots of `rows` steps of `environments`; with a recurrent network, `state_size`
    numbers for each environment go with them.
    """

    def __init__(
        self,
        name: str,
        spec: EnvironmentSpec,
        *,
        writers: int,
        depth: int,
        rows: int,
        environments: int,
        state_size: int,
        **labels: str,
    ) -> None:
        super().__init__(name, **labels)
        self.spec, self.writers, self.depth = spec, writers, depth
        self.rows, self.environments, self.state_size = rows, environments, state_size

    def fields(self) -> dict[str, Field]:
        shape = (self.writers, self.depth, self.rows, self.environments, self.state_size)
        return UnrollStorage.fields(self.spec, *shape)

    @property
    def slots(self) -> int:
        return self.writers * self.depth

    @property
    def row_count(self) -> int:
        return self.writers

    def span(self, name: str, rows: Sequence[int] | None) -> Any:
        if rows is None or len(self.arrays[name]) != self.slots:
            return super().span(name, rows)
        return (np.asarray(rows)[:, None] * self.depth + np.arange(self.depth)).ravel()

    @property
    def nbytes(self) -> int:
        return sum(field.nbytes for field in self.fields().values())

    def storage(self) -> UnrollStorage:
        return UnrollStorage(self.spec, self.depth, self.arrays)

    @port("out")
    def writer(self, me: Place | None = None) -> UnrollPort:  # noqa: ARG002
        return UnrollPort(self.storage(), self.bells.readers)

    @port("in")
    def reader(self, me: Place | None = None) -> UnrollPort:  # noqa: ARG002
        return UnrollPort(self.storage(), self.bells.writers)

    def state(self) -> dict[str, Any]:
        """The slots that wait to be learned from. Of an unroll that is half written only that it was: its episodes end
        with the checkpoint, so its next writer drops and counts it."""
        names, ready = self._data(), self.storage().ready()
        found: dict[str, Any] = {"slots": ready} | {name: self.arrays[name].copy() for name in ("freed", "progress")}
        return found | {name: self.arrays[name][ready] for name in names}

    def load_state(self, state: Mapping[str, Any]) -> None:
        slots = np.asarray(state["slots"], np.int64)
        self.arrays["freed"][:] = self.arrays["filled"][:] = np.asarray(state["freed"])
        self.arrays["progress"][:] = np.asarray(state["progress"])
        for name in self._data():
            self.arrays[name][slots] = state[name]
        self.arrays["filled"][slots] += 1

    def _data(self) -> list[str]:
        return [name for name, field in self.fields().items() if field.commit == "filled"]

    def metrics(self) -> dict[str, float | int]:
        census = self.storage().census()
        return {"unrolls_free": census.free, "unrolls_ready": census.ready, "unrolls_in_use": census.in_use}

    def mirror(self, source: Arrays, target: Arrays, side: str = WRITER, rows: Sequence[int] | None = None) -> int:
        if side == READER:
            return mirror_grown(source, target, "freed")
        writers = own_rows(self.writers, rows)
        slots = (writers[:, None] * self.depth + np.arange(self.depth)).ravel()
        moved = mirror_counted(source, target, "filled", self._data(), slots)
        return moved + mirror_changed(source, target, ("progress",), writers)


class UnrollPort:
    """Either end: the storage, and the bell of the other end."""

    def __init__(self, storage: UnrollStorage, ring: Callable[[], None]) -> None:
        self.storage, self.ring = storage, ring
