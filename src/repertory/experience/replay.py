"""Sampling from lanes: uniform, prioritised (Schaul et al. 2016), or only the newest; numpy only.

Next observations, frame stacks and n-step returns are gathered when a batch is sampled; no sample crosses an episode's
end. The reader compares `head` with what it saw last, so writers need not know of it.

Sarsa bootstraps from the action taken next. After a truncated step none was taken, so with `next_actions` that step is
left out, and returns of the steps before it stop at it: they bootstrap from its action, which is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from repertory.errors import UserError
from repertory.experience.lanes import FINAL, TERMINATED, TRUNCATED, Indices, LaneStorage
from repertory.experience.priorities import PriorityTree

LARGE = 1_024
"""Bytes of an observation from which it pays to use its buffers again."""


class Sample(NamedTuple):
    """A batch of steps: `[batch, ...]`, or `[updates, batch, ...]` after `split`."""

    observation: NDArray[Any]
    action: NDArray[np.int32]
    reward: NDArray[np.float32]
    discount: NDArray[np.float32]
    next_observation: NDArray[Any]
    next_action: NDArray[np.int32]
    next_mask: NDArray[np.bool_] | None
    weight: NDArray[np.float32]
    lane: Indices
    slot: Indices
    version: NDArray[np.int32]

    @property
    def updates(self) -> int:
        """After `split`."""
        return int(self.action.shape[0])

    @property
    def steps(self) -> int:  # rows that only fill a batch up weigh nothing
        return int(np.count_nonzero(self.weight))

    def versions(self) -> NDArray[np.int64]:
        """Of the weights that acted, for each step that counts."""
        found: NDArray[np.int64] = self.version[self.weight > 0].astype(np.int64)
        return found

    def split(self, updates: int) -> Sample:
        """The same as `updates` batches; weights are scaled so that each batch's largest is 1."""
        rows = [None if x is None else x.reshape(updates, -1, *x.shape[1:]) for x in self]
        batches = Sample(*rows)  # type: ignore[arg-type]
        return batches._replace(weight=batches.weight / batches.weight.max(axis=1, keepdims=True))

    def batch(self) -> Sample:
        """The only batch of a sample that was split into one."""
        return Sample(*[None if x is None else x[0] for x in self])  # type: ignore[arg-type]

    def flat(self) -> Sample:
        """The inverse of `split`, but for the scale of the weights."""
        return self._map(lambda x: x.reshape(-1, *x.shape[2:]))

    def padded(self, size: int) -> Sample:
        """Filled up to `size` rows by repeating the first one with weight 0."""
        missing = size - len(self.weight)
        if missing <= 0:
            return self
        rows = np.concatenate([np.arange(len(self.weight)), np.zeros(missing, np.int64)])
        filled = self._map(lambda x: x[rows])
        filled.weight[-missing:] = 0.0
        return filled

    def _map(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Sample:
        return Sample(*[None if x is None else change(x) for x in self])  # type: ignore[arg-type]


@dataclass(frozen=True)
class Prioritization:
    """The exponent α, and the floor that keeps every priority positive."""

    exponent: float = 0.6
    floor: float = 1e-6


class Replay:
    """A reader of lanes that samples batches of n-step transitions."""

    def __init__(
        self,
        lanes: LaneStorage,
        *,
        n_step: int = 1,
        discount: float = 0.99,
        next_actions: bool = False,
        prioritization: Prioritization | None = None,
        guard: int = 0,
        buffers: int = 0,
        leaves: NDArray[np.float64] | None = None,
    ) -> None:
        """With `buffers`, large observations are gathered into that many arrays in turn: fresh memory for each batch
        costs as much as the gathering, but a sample is overwritten after `buffers` more.

        `leaves` are priorities in memory that outlives this reader; those of an earlier reader stay in force.
        """
        self.lanes, self.n_step, self.next_actions, self.guard = lanes, n_step, next_actions, guard
        self.discounts = discount ** np.arange(n_step + 1)
        self._one_step_discount = np.array([discount, 0.0], np.float32)
        self.prioritization = prioritization
        self.low = np.zeros(lanes.count, np.int64)
        self.ready = np.zeros(lanes.count, np.int64)
        self.taken = np.zeros(lanes.count, np.int64)
        self.tree = PriorityTree(lanes.count * lanes.length, leaves) if prioritization else None
        self.stores_values = prioritization is not None and lanes.value is not None
        self.highest = 1.0 if leaves is None else max(1.0, float(leaves.max()))
        self._inherited = leaves is not None
        self._written, self._head = b"", np.zeros(lanes.count, np.int64)
        self._buffers, self._turn = [dict[str, NDArray[Any]]() for _ in range(buffers)], 0

    def __len__(self) -> int:
        """Slots that can be sampled, final observations included."""
        return int((self.ready - self.low).sum())

    def refresh(self) -> None:
        lanes = self.lanes
        lookahead = self.n_step + (self.next_actions or self.stores_values)
        start, head = lanes.start.copy(), lanes.head.copy()
        written = start.tobytes() + head.tobytes()
        if written == self._written:
            return
        self._written, self._head = written, head
        ready = np.maximum(np.maximum(head - lookahead + 1, start), self.ready)
        low = self._oldest(head, self.guard)
        if self.tree is not None:
            self._reprioritize(self.tree, ready, low)
        self.ready, self.low = ready, np.minimum(low, ready)

    def _complete(self, flags: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Whether slots with these flags hold a step whose bootstrap action or observation is known."""
        steps: NDArray[np.bool_] = (flags & FINAL) == 0
        return steps & ~_cut_off(flags) if self.next_actions else steps

    def _oldest(self, head: Indices, guard: int) -> Indices:
        """The first slot with all its frames that a writer at `head` does not touch within `guard` slots."""
        low = np.maximum(head + (1 + guard - self.lanes.length), 0)
        return low + np.where(low > 0, self.lanes.spec.observation.stack - 1, 0)

    def _reprioritize(self, tree: PriorityTree, ready: Indices, low: Indices) -> None:
        """New steps get the highest priority so far, or that of the error that the actor computed (Ape-X: Horgan et al.
        2018); steps about to be overwritten get 0.
        """
        lanes, slots = _ranges(np.maximum(self.ready, low), ready)
        gone_lanes, gone_slots = _ranges(self.low, np.minimum(low, self.ready))
        fresh = self.lanes.index(lanes, slots)
        is_step = self._complete(self.lanes.flags.take(fresh))
        leaves = np.concatenate([self.lanes.index(gone_lanes, gone_slots), fresh])
        if len(leaves):
            first = self._first_priorities(lanes, slots) if self.stores_values else self.highest
            if self._inherited:
                first = self._inherit(tree, fresh, first)
            tree.set(leaves, np.concatenate([np.zeros(len(gone_lanes)), np.where(is_step, first, 0.0)]))

    def _inherit(self, tree: PriorityTree, fresh: Indices, first: NDArray[np.float64] | float) -> NDArray[np.float64]:
        """Priorities of an earlier reader; its steps that can't be sampled any more get 0."""
        self._inherited = False
        known = tree.get(fresh)
        everywhere = np.arange(self.lanes.count * self.lanes.length)
        tree.set(everywhere, np.zeros(len(everywhere)))
        return np.where(known > 0, known, first)

    def _first_priorities(self, lanes: Indices, slots: Indices) -> NDArray[np.float64]:
        """From the values that the actor computed with the steps; the highest where there are none."""
        value, options = self.lanes.value, self.prioritization
        assert value is not None
        assert options is not None
        reward, discount, after = self._n_step(lanes, slots)
        seen, best = value.reshape(2, -1)[0], value.reshape(2, -1)[1]
        after_at = self.lanes.index(lanes, after)
        final = (self.lanes.flags.take(after_at) & FINAL) != 0
        follows = seen if self.next_actions else best
        ahead = np.where(discount == 0, 0.0, np.where(final, np.nan, follows.take(after_at)))
        error = np.abs(reward + discount * ahead - seen.take(self.lanes.index(lanes, slots)))
        return np.where(np.isnan(error), self.highest, (error + options.floor) ** options.exponent)

    def sample(self, size: int, rng: np.random.Generator, importance: float = 0.0, batches: int = 1) -> Sample:
        """`size` steps, to be `split` into so many batches; `importance` is β, the importance sampling exponent.

        Prioritised samples are spread evenly over each batch.
        """
        while True:
            self.refresh()
            turn = self._turn
            lane, slot, weight = self._choose(size, rng, importance, batches)
            sample = self.gather(lane, slot, weight)
            if self.guard == 0 or (slot >= self._oldest(self.lanes.head[lane], 1)).all():
                return sample
            self._turn = turn  # a writer has overwritten one of these steps meanwhile: sample anew

    def _choose(
        self, size: int, rng: np.random.Generator, importance: float, batches: int
    ) -> tuple[Indices, Indices, NDArray[np.float32]]:
        if self.tree is None:
            return *self._choose_uniform(size, rng), np.ones(size, np.float32)
        if self.next_actions and self.tree.total == 0:
            self._check_any_complete()
        uniforms = rng.random(size)
        uniforms += _strata(size, batches)
        uniforms /= size
        leaf = self.tree.sample(uniforms)
        lane, position = leaf // self.lanes.length, leaf % self.lanes.length
        head = self._head[lane]  # as `refresh` saw it: the writer may have moved on
        slot = head - (head - position) % self.lanes.length
        share = self.tree.get(leaf) * (max(len(self), 1) / self.tree.total)
        return lane, slot, (share**-importance).astype(np.float32)

    def _choose_uniform(self, size: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
        """Every step has the same chance: choose among all slots, and again for those that hold no step."""
        ends = np.cumsum(self.ready - self.low)
        offset = self.low - (ends - (self.ready - self.low))
        lane, slot = np.empty(size, np.int64), np.empty(size, np.int64)
        missing = np.arange(size)
        while len(missing):
            numbers = rng.integers(0, ends[-1], len(missing))
            lanes = np.searchsorted(ends, numbers, side="right")
            slots = numbers + offset[lanes]
            lane[missing], slot[missing] = lanes, slots
            missing = missing[~self._complete(self.lanes.flags_at(lanes, slots))]
            if self.next_actions and len(missing) == size:
                self._check_any_complete()
        return lane, slot

    def _check_any_complete(self) -> None:
        """Raise where sampling would never end."""
        lane, slot = _ranges(self.low, self.ready)
        if not self._complete(self.lanes.flags_at(lane, slot)).any():
            raise UserError(
                "Sarsa can learn from no step so far: every episode was truncated after its first step, so no action "
                "was taken next; use --agent dqn, or an environment with longer episodes"
            )

    def next(self, size: int) -> Sample | None:
        """The oldest `size` steps that were not taken yet, or None if there are fewer: learning without a replay."""
        lane, slot = self._untaken()
        if len(lane) < size:
            return None
        oldest = np.argsort(slot - self.taken[lane], kind="stable")[:size]
        lane, slot = lane[oldest], slot[oldest]
        np.maximum.at(self.taken, lane, slot + 1)
        return self.gather(lane, slot, np.ones(size, np.float32))

    def fresh(self) -> Sample | None:
        """All steps that were not taken yet, or None if there are none."""
        lane, slot = self._untaken()
        self.taken = self.ready.copy()
        return self.gather(lane, slot, np.ones(len(lane), np.float32)) if len(lane) else None

    def _untaken(self) -> tuple[Indices, Indices]:
        self.refresh()
        lane, slot = _ranges(np.maximum(self.taken, self.low), self.ready)
        is_step = self._complete(self.lanes.flags_at(lane, slot))
        return lane[is_step], slot[is_step]

    def most_steps_since(self, slots: Indices) -> int:
        """Steps that were taken since the lanes' heads stood at these slots, in the lane with the most of them."""
        lane, slot = _ranges(slots, self.lanes.head)
        is_step = (self.lanes.flags_at(lane, slot) & FINAL) == 0
        return int(np.bincount(lane[is_step], minlength=1).max())

    def unroll(self) -> Sample | None:
        """All steps that were not taken yet, each with the longest return that they allow (Mnih et al. 2016, S2)."""
        lanes = self.lanes
        head, taken = lanes.head.copy(), np.maximum(self.taken, lanes.head - lanes.length + 2)
        lane, slot = _ranges(taken, head)
        is_step = (lanes.flags_at(lane, slot) & FINAL) == 0
        lane, slot = lane[is_step], slot[is_step]
        self.taken = head
        return self.gather(lane, slot, np.ones(len(lane), np.float32), head[lane]) if len(lane) else None

    def gather(self, lane: Indices, slot: Indices, weight: NDArray[np.float32], until: Indices | None = None) -> Sample:
        """The transitions that begin at these steps; returns reach to slot `until` at most."""
        lanes = self.lanes
        at = lanes.index(lane, slot)
        if self.n_step == 1:
            reward, after = lanes.reward.take(at), slot + 1
            discount = self._one_step_discount.take(lanes.flags.take(at) & TERMINATED)
        else:
            reward, discount, after = self._n_step(lane, slot, until)
        after_at = lanes.index(lane, after)
        next_action = np.full(len(lane), -1, np.int32)
        if self.next_actions:
            known = (lanes.flags.take(after_at) & FINAL) == 0
            next_action = np.where(known, lanes.action.take(after_at), -1).astype(np.int32)
        return Sample(
            observation=lanes.stacks(lane, slot, at, self._buffer("now", len(lane))),
            action=lanes.action.take(at).astype(np.int32),
            reward=reward,
            discount=discount,
            next_observation=lanes.stacks(lane, after, after_at, self._buffer("next", len(lane))),
            next_action=next_action,
            next_mask=None if lanes.mask is None else lanes.mask.reshape(-1, lanes.mask.shape[-1])[after_at],
            weight=weight,
            lane=lane,
            slot=slot,
            version=lanes.version.take(at),
        )

    def _buffer(self, use: str, size: int) -> NDArray[Any] | None:
        """Where to gather observations, if they are large and may be overwritten later."""
        seen = self.lanes.spec.observation
        if not self._buffers or seen.nbytes < LARGE:
            return None
        if use == "now":
            self._turn = (self._turn + 1) % len(self._buffers)
        arrays = self._buffers[self._turn]
        if use not in arrays or len(arrays[use]) != size:
            arrays[use] = np.empty((size, *seen.seen_shape), seen.dtype)
        return arrays[use]

    def _n_step(
        self, lane: Indices, slot: Indices, until: Indices | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], Indices]:
        """Sum of discounted rewards up to n steps or the episode's end, and where to bootstrap from."""
        reached = slot[:, None] + np.arange(self.n_step)
        window = self.lanes.index(lane[:, None], reached)
        flags = self.lanes.flags.take(window)
        ended = (flags & (TERMINATED | TRUNCATED)) != 0
        live = (np.cumsum(ended, axis=1) - ended) == 0
        if self.next_actions:
            live &= ~_cut_off(flags)
        if until is not None:
            live &= reached < until[:, None]
        steps = live.sum(axis=1)
        reward = np.where(live, self.lanes.reward.take(window), 0.0) @ self.discounts[:-1]
        terminated = (((flags & TERMINATED) != 0) & live).any(axis=1)
        discount = np.where(terminated, 0.0, self.discounts[steps])
        return reward.astype(np.float32), discount.astype(np.float32), slot + steps

    def update_priorities(self, lane: Indices, slot: Indices, errors: NDArray[np.float32]) -> None:
        """Steps that were overwritten and errors that are not finite are ignored."""
        if self.tree is None or self.prioritization is None:
            return
        lane, slot, errors = lane.ravel(), slot.ravel(), errors.ravel()
        values = (errors.astype(np.float64) + self.prioritization.floor) ** self.prioritization.exponent
        valid = (slot >= self.low[lane]) & np.isfinite(values)
        if not valid.all():
            lane, slot, values = lane[valid], slot[valid], values[valid]
        if len(values):
            self.highest = max(self.highest, float(values.max()))
            self.tree.set(self.lanes.index(lane, slot), values)

    def state(self) -> dict[str, Any]:
        """What the lanes themselves do not hold."""
        tree, shape = {}, (self.lanes.count, self.lanes.length)
        if self.tree is not None:
            tree = {"priorities": self.tree.state()["priorities"].reshape(shape)[:, : self.lanes.filled]}
        return {"low": self.low, "ready": self.ready, "taken": self.taken, "highest": self.highest, "tree": tree}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.low, self.ready, self.taken = (np.array(state[name]) for name in ("low", "ready", "taken"))
        self.highest = float(state["highest"])
        self._written = b""
        if self.tree is not None:
            saved, priorities = state["tree"]["priorities"], np.zeros((self.lanes.count, self.lanes.length))
            priorities[:, : saved.shape[1]] = saved
            self.tree.load_state({"priorities": priorities.ravel()})


def _cut_off(flags: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Steps that were truncated and not terminated: they would bootstrap, but no action follows them."""
    found: NDArray[np.bool_] = (flags & (TERMINATED | TRUNCATED)) == TRUNCATED
    return found


@cache
def _strata(size: int, batches: int) -> NDArray[np.float64]:
    """Which of `size` equal parts of the priorities' sum each number is from (Schaul et al. 2016, appendix B.2.1).

    A batch takes every `batches`-th part, so that each covers the whole sum.
    """
    return np.arange(float(size)).reshape(-1, batches).T.reshape(-1)


def _ranges(low: Indices, high: Indices) -> tuple[Indices, Indices]:
    """Lane and slot of every number in `[low, high)` of each lane, flat."""
    counts = np.maximum(high - low, 0)
    lanes = np.repeat(np.arange(len(low)), counts)
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return lanes, low[lanes] + offsets
