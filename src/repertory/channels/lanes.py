"""`Lanes`: each environment's steps in a ring of their own, written by its actor and read by samplers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.channels.channel import (
    READER,
    SILENT,
    WRITER,
    Arrays,
    Bells,
    Channel,
    Item,
    Marks,
    Place,
    copy_rows,
    own_rows,
    port,
)
from repertory.experience.lanes import FINAL, MOST_UNSENT, TERMINATED, TRUNCATED, Indices, LaneStorage
from repertory.experience.priorities import PriorityTree
from repertory.specs import EnvironmentSpec, Field


class LaneCopy:
    """Mirrors lanes: slot s of `source` becomes slot s + shift of `target`, one step of each lane at a time, since
    readers of a ring rely on a writer that is at most one slot ahead of its head.

    Steps that are overwritten before they were copied leave no gap: the episode ends as truncated, and the next slot of
    `target` holds the oldest step that is left. The same happens when `source` begins anew on empty arrays.
    """

    def __init__(self, source: LaneStorage, target: LaneStorage, shift: NDArray[np.int64]) -> None:
        self.source, self.target, self.shift, self.moved = source, target, shift, 0

    def catch_up(self, lanes: Indices) -> int:
        """Copy what these lanes have committed; returns the bytes."""
        every, until = lanes, self.source.head[lanes]
        for lane in lanes[self._next(lanes) > until].tolist():
            self._leap(lane)
        while (behind := self._next(lanes) < until).any():
            lanes, until = lanes[behind], until[behind]
            for lane in lanes[self._next(lanes) < self._oldest(lanes)].tolist():
                self._leap(lane)
            self._one_slot(lanes, until)
        self._end_episodes(every)
        return self.moved

    def _end_episodes(self, lanes: Indices) -> None:
        """A copy that was cut off may have left `start` behind."""
        late = lanes[self._closed(lanes) & (self.target.start[lanes] < self.target.head[lanes])]
        if len(late):
            self.target.start[late] = self.target.head[late]

    def _next(self, lanes: Indices) -> Indices:
        return self.target.head[lanes] - self.shift[lanes]

    def _oldest(self, lanes: Indices) -> Indices:
        """The first slot of `source` that its writer does not touch."""
        found: Indices = np.maximum(self.source.head[lanes] + 2 - self.source.length, 0)
        return found

    def _leap(self, lane: int) -> None:
        """Skip slots that were overwritten."""
        self.target.interrupt(np.array([lane]))
        self.shift[lane] = self.target.head[lane] - self._oldest(np.array([lane]))[0]

    def _one_slot(self, lanes: Indices, until: Indices) -> None:
        """A final observation ends the episode, other slots are steps."""
        source, slots = self.source, self._next(lanes)
        flags, age = (array[lanes, slots % source.length] for array in (source.flags, source.age))
        frames = slots - np.minimum(age, source.spec.observation.stack - 1)
        oldest, final, closed = self._oldest(lanes), (flags & FINAL) != 0, self._closed(lanes)
        sound = (slots >= oldest) & (slots < until)
        if (ended := sound & final & ~closed).any():
            self.target.interrupt(lanes[ended])
        if (skipped := sound & closed & (final | (frames < oldest))).any():  # nothing to end, or frames are gone
            self.shift[lanes[skipped]] -= 1
        steps = sound & ~final & ~skipped
        for index in np.flatnonzero(steps & closed).tolist():
            steps[index] = self._begin(int(lanes[index]), int(slots[index]))
        if steps.any():
            self._step(lanes[steps], slots[steps], flags[steps], slots[steps] + 2 <= until[steps])

    def _closed(self, lanes: Indices) -> NDArray[np.bool_]:
        """Whether no episode is running in `target`."""
        target, head = self.target, self.target.head[lanes]
        final = (target.flags[lanes, (head - 1) % target.length] & FINAL) != 0
        found: NDArray[np.bool_] = final | (head == target.start[lanes])
        return found

    def _begin(self, lane: int, slot: int) -> bool:
        """Begin an episode, or the rest of one: frames before it take slots without a step. False = they are gone."""
        source, target, stack = self.source, self.target, self.source.spec.observation.stack
        at, one = slot % source.length, np.array([lane])
        age, mask = int(source.age[lane, at]), None if source.mask is None else source.mask[lane, at][None].copy()
        frames = source.observation[lane, np.arange(slot - min(age, stack - 1), slot + 1) % source.length]
        if slot - len(frames) + 1 < self._oldest(one)[0]:  # overwritten meanwhile
            return False
        for frame in frames[:-1]:
            self._lone_frame(lane, frame)
        target.begin(one, frames[None] if stack > 1 else frames, mask)
        target.age[lane, target.head[lane] % target.length] = age
        self.moved += int(frames.nbytes) + (0 if mask is None else mask.nbytes) + source.age.itemsize
        return True

    def _lone_frame(self, lane: int, frame: NDArray[Any]) -> None:
        """A slot without a step; `head` before `shift`: a copy cut off between them skips a step and doubles none."""
        target = self.target
        at = target.head[lane] % target.length
        target.observation[lane, at] = frame
        target.flags[lane, at] = FINAL
        target.head[lane] += 1
        self.shift[lane] += 1

    def _step(self, lanes: Indices, slots: Indices, flags: NDArray[np.uint8], over: NDArray[np.bool_]) -> None:
        """`over`: the slot after it is committed as well. Else its writer is about to interrupt the episode."""
        source, stack = self.source, self.source.spec.observation.stack
        at, after = slots % source.length, (slots + 1) % source.length
        found = [array[lanes, at] for array in (source.action, source.reward, source.version)]
        values = None if source.value is None else source.value[:, lanes, at]
        seen, mask = source.observation[lanes, after], None if source.mask is None else source.mask[lanes, after]
        whole = slots >= self._oldest(lanes)
        if not whole.all():  # some were overwritten meanwhile
            if whole.any():
                self._step(lanes[whole], slots[whole], flags[whole], over[whole])
            return
        ends = np.where(over, flags, np.uint8(0))
        terminated, truncated = (ends & TERMINATED) != 0, (ends & TRUNCATED) != 0
        action, reward, versions = found
        version = versions if len(lanes) > 1 else int(versions[0])
        after_it = seen[:, None] if stack > 1 else seen
        self.target.append(lanes, action, reward, terminated, truncated, after_it, mask, version, values)
        self.moved += sum(int(array.nbytes) for array in (*found, flags, seen, values, mask) if array is not None)


NEVER = 1 << 62
OF_READERS = ("priorities", "taken", "wake_at")
RELAY_BYTES, FEWEST_SLOTS = 64 << 20, 64
"""Of lanes whose steps are only handed on to another machine: memory of all lanes, and slots of each."""


class Lanes(Channel):
    """`count` lanes of `length` slots; with `values` each step also stores the policy's values.

    Readers store priorities here, which outlive them: one tree for all lanes, or `readers` trees for as many equal
    parts of them. `capacity` is the number of steps that all lanes hold together. `shift` is how much higher a step is
    numbered here than in the lanes that are mirrored.
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
        **labels: str,
    ) -> None:
        super().__init__(name, **labels)
        self.spec, self.count, self.capacity, self.values = spec, count, capacity, values
        self.prioritized, self.readers = prioritized, readers
        self.length = LaneStorage.length_for(capacity, count)
        self.relayed, self.read_apart = False, readers > 1

    not_sent = ("shift", "sent", "priorities")
    layer = 2

    @property
    def row_count(self) -> int:
        return self.count

    def relay(self, lanes: int, *, read_here: bool) -> None:
        """On a machine with so many of the lanes: writers wait while too much is not handed on yet. Where no worker
        reads them, lanes are only as long as that needs."""
        self.relayed = True
        if not read_here:
            fitting = RELAY_BYTES // max(1, lanes * self.spec.observation.nbytes)
            self.length = min(self.length, MOST_UNSENT, max(FEWEST_SLOTS, fitting))

    def bind(self, arrays: Arrays, bells: Bells = SILENT, **engine: Any) -> None:
        super().bind(arrays, bells, **engine)
        self.length = arrays["action"].shape[1]

    def fields(self) -> dict[str, Field]:
        fields = LaneStorage.fields(self.spec, self.count, self.length, self.values)
        fields["shift"] = Field((self.count,), "int64")
        if self.relayed:
            fields["sent"] = Field((self.count,), "int64")
        fields["wake_at"] = Field((1,), "int64", READER)
        fields["taken"] = Field((self.count,), "int64", READER)
        if self.prioritized:
            leaves = PriorityTree.padded(self.count // self.readers * self.length)
            fields["priorities"] = Field((self.readers, leaves), "float64", READER)
        return fields

    @property
    def nbytes(self) -> int:
        """Memory of full lanes, with the sums of the priorities, which each reader holds itself."""
        fields = self.fields()
        sums = math.prod(fields["priorities"].shape) if self.prioritized else 0
        return sum(field.nbytes for field in fields.values()) + sums

    def storage(self) -> LaneStorage:
        return self._storage(self.arrays)

    def _storage(self, arrays: Arrays) -> LaneStorage:
        own = {name: array for name, array in arrays.items() if name not in (*OF_READERS, "shift")}
        return LaneStorage(self.spec, self.count, own["action"].shape[1], own)

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
        """Running episodes end as truncated, as they do when a checkpoint is loaded; the rest stays.

        An end takes a slot, which the mirrored lanes may not have.
        """
        storage = self.storage()
        before = storage.head.copy()
        storage.interrupt()
        self.arrays["shift"][:] += storage.head - before
        self.arrays["wake_at"][:] = 0

    def _priorities(self) -> NDArray[np.float64]:
        """[reader, lane, slot], live; without the leaves that only fill up a tree."""
        leaves, lanes = self.arrays["priorities"], self.count // self.readers
        return leaves[:, : lanes * self.length].reshape(len(leaves), lanes, -1)

    def metrics(self) -> dict[str, float | int]:
        return {"replay_size": int(min(self.arrays["head"].clip(max=self.length).sum(), self.capacity))}

    def mirror(self, source: Arrays, target: Arrays, side: str = WRITER, rows: Sequence[int] | None = None) -> int:
        """`rows` are numbers of lanes."""
        if side == READER:
            names = [name for name in OF_READERS if name in source]
            changed = [name for name in names if not np.array_equal(source[name], target[name])]
            return copy_rows(source, target, changed, slice(None))
        copy = LaneCopy(self._storage(source), self._storage(target), target["shift"])
        return copy.catch_up(own_rows(self.count, rows))

    def pack(self, marks: Marks, side: str = WRITER, rows: Sequence[int] | None = None) -> list[Item]:
        """The slots since the last time, up to and with the one at the head: its observation is there already.

        Items carry numbers of slots, not places: lanes are shorter on some machines.
        """
        if side == READER:
            return super().pack(marks, side, rows)
        lanes = own_rows(self.count, rows)
        head, start = self.arrays["head"][lanes], self.arrays["start"][lanes]
        before = marks.get("head", head - self.length + 2)
        if np.array_equal(head, before) and np.array_equal(start, marks.get("start", ())):
            return []
        first = np.maximum(np.maximum(before, head - self.length + 2), 0)
        counts = head - first + 1
        where = np.repeat(lanes, counts)
        slots = np.concatenate([np.arange(a, b + 1) for a, b in zip(first.tolist(), head.tolist(), strict=True)])
        marks |= {"lanes": lanes, "head": head, "start": start}
        at = (where, slots % self.length)
        data = [name for name, field in self.declared(WRITER).items() if field.commit]
        found = {name: self.arrays[name][(slice(None), *at) if name == "value" else at] for name in data}
        moved = [Item(name, (where, slots), values) for name, values in found.items()]
        return [*moved, Item("start", lanes, start), Item("head", lanes, head)]

    def unpack(self, items: Iterable[Item], image: Arrays) -> None:
        length = image["action"].shape[1]
        for name, index, values in items:
            if isinstance(index, tuple):
                lanes, at = index[0], index[1] % length
                image[name][(slice(None), lanes, at) if name == "value" else (lanes, at)] = values
            else:
                image[name][index] = values

    def image_fields(self) -> dict[str, Field]:
        return LaneStorage.fields(self.spec, self.count, MOST_UNSENT, self.values) | {
            "taken": Field((self.count,), "int64", READER),
            "wake_at": Field((1,), "int64", READER),
        }

    def confirm(self, marks: Marks) -> None:
        if "sent" in self.arrays and "lanes" in marks:
            self.arrays["sent"][marks["lanes"]] = marks["head"]

    def pressing(self, *, waiting: bool) -> bool:
        """If actors and samplers wait for each other, or lanes are half full of steps that have not travelled."""
        unsent = self.arrays["head"] - self.arrays["sent"] if self.relayed else np.zeros(1)
        return (waiting and bool(self.arrays["wake_at"][0] < NEVER)) or bool(unsent.max() > self.length // 2)

    def seed(self, rows: Sequence[int]) -> list[Item]:
        """Slots go on with the numbers that they have here."""
        head = self.arrays["head"][list(rows)]
        return [Item("head", list(rows), head), Item("start", list(rows), head), Item("sent", list(rows), head)]

    def seed_steps(self, rows: Sequence[int]) -> list[Item]:
        """The steps themselves, for a machine where workers read them."""
        filled = self.storage().filled
        data = [name for name, field in self.declared(WRITER).items() if field.commit]
        cut = (list(rows), slice(filled))
        return [
            Item(name, (slice(None), *cut), self.arrays[name][:, list(rows), :filled])
            if name == "value"
            else Item(name, cut, self.arrays[name][list(rows), :filled])
            for name in data
        ]

    def lose(self, rows: Sequence[int]) -> None:
        """Running episodes end as truncated; the next writer goes on with the numbers that slots have here."""
        self.storage().interrupt(np.asarray(rows, np.int64))
        self.arrays["shift"][list(rows)] = 0


class LaneWriter:
    """An actor's port."""

    def __init__(self, lanes: Lanes) -> None:
        self.storage, self._wake_at, self._ring = lanes.storage(), lanes.arrays["wake_at"], lanes.bells.readers

    def wake_reader(self, env_steps: int) -> None:
        """Wake the sampler, if it waits for so many env steps of all actors together."""
        if env_steps >= self._wake_at[0]:
            self._ring()


class LaneReader:
    """A sampler's port."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes, self.storage, self.wake_writers = lanes, lanes.storage(), lanes.bells.writers

    def part(self, index: int, parts: int) -> LaneStorage:
        """The lanes of one of so many equal parts."""
        each = self.storage.count // parts
        return self.storage.part(index * each, each)

    def priorities(self, index: int = 0) -> NDArray[np.float64] | None:
        """The priorities of this reader's part, live; None = not prioritised."""
        return self._lanes.arrays["priorities"][index] if self._lanes.prioritized else None

    @property
    def taken(self) -> NDArray[np.int64]:
        """By lane, live: the first slot not yet learned from, where each step is learned from once."""
        taken: NDArray[np.int64] = self._lanes.arrays["taken"]
        return taken

    def wake_at(self, env_steps: int | None) -> None:
        """Actors wake this reader after so many env steps; None = never."""
        self._lanes.arrays["wake_at"][0] = NEVER if env_steps is None else env_steps
