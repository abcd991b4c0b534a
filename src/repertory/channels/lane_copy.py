"""Lanes that follow others: each step that was written there is written here, by the same commits; numpy only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.experience.lanes import FINAL, TERMINATED, TRUNCATED, Indices, LaneStorage


class LaneCopy:
    """Slot s of `source` becomes slot s + shift of `target`, one step of each lane at a time: readers of a ring rely on
    a writer that is at most one slot ahead of its head.

    Steps that are gone before they were copied leave no gap: the episode ends as truncated, and the next slot of
    `target` holds what is still there. The same happens when `source` begins anew on empty arrays.
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
        """The slot of `source` that comes next."""
        return self.target.head[lanes] - self.shift[lanes]

    def _oldest(self, lanes: Indices) -> Indices:
        """The first slot of `source` that its writer does not touch."""
        found: Indices = np.maximum(self.source.head[lanes] + 2 - self.source.length, 0)
        return found

    def _leap(self, lane: int) -> None:
        """Over slots that are gone."""
        self.target.interrupt(np.array([lane]))
        self.shift[lane] = self.target.head[lane] - self._oldest(np.array([lane]))[0]

    def _one_slot(self, lanes: Indices, until: Indices) -> None:
        """Final observations end the episode here as well, others are steps."""
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
        """Whether no episode is running here."""
        target, head = self.target, self.target.head[lanes]
        final = (target.flags[lanes, (head - 1) % target.length] & FINAL) != 0
        found: NDArray[np.bool_] = final | (head == target.start[lanes])
        return found

    def _begin(self, lane: int, slot: int) -> bool:
        """An episode, or the rest of one: the frames before it take slots without a step. False = they are gone."""
        source, target, stack = self.source, self.target, self.source.spec.observation.stack
        at, one = slot % source.length, np.array([lane])
        age, mask = int(source.age[lane, at]), None if source.mask is None else source.mask[lane, at][None].copy()
        frames = source.observation[lane, np.arange(slot - min(age, stack - 1), slot + 1) % source.length]
        if slot - len(frames) + 1 < self._oldest(one)[0]:  # their writer has come round to them meanwhile
            return False
        for frame in frames[:-1]:
            self._lone_frame(lane, frame)
        target.begin(one, frames[None] if stack > 1 else frames, mask)
        target.age[lane, target.head[lane] % target.length] = age
        self.moved += int(frames.nbytes) + (0 if mask is None else mask.nbytes) + source.age.itemsize
        return True

    def _lone_frame(self, lane: int, frame: NDArray[Any]) -> None:
        """A slot without a step; `head` before `shift`: who is cut off between them skips a step, and doubles none."""
        target = self.target
        at = target.head[lane] % target.length
        target.observation[lane, at] = frame
        target.flags[lane, at] = FINAL
        target.head[lane] += 1
        self.shift[lane] += 1

    def _step(self, lanes: Indices, slots: Indices, flags: NDArray[np.uint8], over: NDArray[np.bool_]) -> None:
        """`over`: the slot after it counts as well. Else a writer is just about to interrupt the episode."""
        source, stack = self.source, self.source.spec.observation.stack
        at, after = slots % source.length, (slots + 1) % source.length
        found = [array[lanes, at] for array in (source.action, source.reward, source.version)]
        values = None if source.value is None else source.value[:, lanes, at]
        seen, mask = source.observation[lanes, after], None if source.mask is None else source.mask[lanes, after]
        whole = slots >= self._oldest(lanes)
        if not whole.all():  # its writer has come round to some meanwhile
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
