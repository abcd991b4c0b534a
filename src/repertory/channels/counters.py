"""`Counters`: one row of numbers for each worker, written by that worker alone; numpy only.

There is one array for each entry, with a number for each worker, so that a sum over all workers touches few lines of
memory. The rows outlive the workers: supervisor and driver read heartbeats, progress and metrics from them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from repertory.channels.channel import WRITER, Arrays, Channel, Item, Marks, Place, mirror_changed, own_rows, port
from repertory.specs import Field

RECENT = 128
"""How many of the latest episodes, lags and ages a row holds."""

ENTRIES: dict[str, tuple[str, tuple[int, ...]]] = {
    # supervision
    "epoch": ("int64", ()),  # which start of its process writes this row now
    "beat": ("int64", ()),  # heartbeats since that start
    "starts": ("int64", ()),  # starts of the worker and of its environments
    "settled": ("int64", ()),  # the number of the last pause that it has reached
    "waiting": ("int64", ()),  # it sleeps until its bell rings
    "failures": ("int64", ()),  # failures that it has recovered from by itself
    "place": ("int64", (4,)),  # environment, seed, step and worker of the step being taken; -1 = in none
    # counts of the whole run
    "env_steps": ("int64", ()),
    "updates": ("int64", ()),
    "gradients": ("int64", ()),
    "dropped_stale": ("int64", ()),
    "dropped_outlier": ("int64", ()),
    "skipped": ("int64", ()),
    "bytes_sent": ("int64", ()),
    "episodes": ("int64", ()),
    "dropped_unrolls": ("int64", ()),
    "samples": ("int64", ()),  # steps learned from, counted each time
    # what happened lately
    "episode_return": ("float64", (RECENT,)),
    "episode_length": ("int64", (RECENT,)),
    "lags": ("int64", ()),
    "lag": ("int64", (RECENT,)),
    "ages": ("int64", ()),
    "age": ("int64", (RECENT,)),
    "losses": ("int64", ()),
    "loss_sum": ("float64", ()),
    "entropy_sum": ("float64", ()),
    "value_sum": ("float64", ()),
    "norms": ("int64", ()),  # gradients of updates, the sum of their norms, and how many were clipped
    "norm_sum": ("float64", ()),
    "clipped": ("int64", ()),
    "queue": ("int64", ()),  # 1 + what waits for this worker; 0 = it has no queue
    "replies": ("int64", ()),  # replies of the policy, and the seconds that they took
    "reply_s": ("float64", ()),
    "idle_s": ("float64", ()),
    "work": ("int64", ()),
}
SAVED = (
    "starts", "env_steps", "updates", "gradients", "dropped_stale", "dropped_outlier", "skipped", "bytes_sent",
    "episodes", "dropped_unrolls", "samples",
)  # fmt: skip
"""What a checkpoint saves."""
COMMITS = {"episode_return": "episodes", "episode_length": "episodes", "lag": "lags", "age": "ages"}
ORDER = tuple(sorted(ENTRIES, key=lambda name: (name not in COMMITS, name == "epoch")))
"""In which a mirror writes: what is counted, then the counts, then which start of a worker they are of."""
NOTE_BYTES = 8192
TOTALS = ("env_steps", "updates")
"""What workers of other machines read: how far all have come."""

Table: TypeAlias = Mapping[str, NDArray[Any]]


class Counters(Channel):
    """The rows of `workers` workers, and beside each a note: the worker's own state, as JSON, for a checkpoint."""

    def __init__(self, name: str, workers: int) -> None:
        super().__init__(name)
        self.workers = workers

    not_sent = ("waiting",)
    layer = 0

    @property
    def row_count(self) -> int:
        return self.workers

    def fields(self) -> dict[str, Field]:
        table = {
            name: Field((self.workers, *shape), dtype, commit=COMMITS.get(name, ""))
            for name, (dtype, shape) in ENTRIES.items()
        }
        note = Field((self.workers, NOTE_BYTES), "uint8", commit="note_size")
        return {**table, "note": note, "note_size": Field((self.workers,), "int64")}

    def stats(self, worker: int = 0) -> WorkerStats:
        return WorkerStats(self.arrays, worker)

    def total(self, name: str) -> int:
        return int(self.arrays[name].sum())

    def write_note(self, worker: int, state: Mapping[str, Any]) -> None:
        text = json.dumps(state).encode()
        if len(text) > NOTE_BYTES:
            raise ValueError(f"the state of worker {worker} has {len(text)} bytes, more than fit")
        self.arrays["note_size"][worker] = 0
        self.arrays["note"][worker, : len(text)] = np.frombuffer(text, np.uint8)
        self.arrays["note_size"][worker] = len(text)

    def read_note(self, worker: int) -> dict[str, Any]:
        """Empty if there was none, or if the worker was killed while it wrote one."""
        size = int(self.arrays["note_size"][worker])
        return dict(json.loads(self.arrays["note"][worker, :size].tobytes())) if size else {}

    def state(self) -> dict[str, Any]:
        return {name: self.arrays[name].copy() for name in SAVED}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for name in SAVED:
            self.arrays[name][:] = state[name]

    def mirror(self, source: Arrays, target: Arrays, side: str = WRITER, rows: Sequence[int] | None = None) -> int:
        """`rows` are numbers of workers: those of one machine."""
        if side != WRITER:
            return 0
        workers = own_rows(self.workers, rows)
        return _mirror_notes(source, target, workers) + mirror_changed(source, target, ORDER, workers)

    def pack(self, marks: Marks, side: str = WRITER, rows: Sequence[int] | None = None) -> list[Item]:
        """Of one machine's workers all that has changed; a note is written anew for each pause."""
        before = {name: marks.get(name) for name in COMMITS.values()}
        items = super().pack(marks, side, rows)
        items = [self._new_only(item, before, marks, rows) if item.name in COMMITS else item for item in items]
        if any(item.name == "settled" for item in items) and not any(item.name == "note" for item in items):
            span = self.span("note", rows)
            items.append(Item("note", span, np.array(self.arrays["note"][span])))
        return items

    def _new_only(self, item: Item, before: Marks, now: Marks, rows: Sequence[int] | None) -> Item:
        """Of the rings of episodes, lags and ages: what they have got since the last time."""
        count = COMMITS[item.name]
        if before[count] is None:
            return item
        workers = own_rows(self.workers, rows)
        spans = [(first, last) for first, last in zip(before[count].tolist(), now[count].tolist(), strict=True)]
        new = [np.arange(max(first, last - RECENT), last) % RECENT for first, last in spans]
        index = (np.repeat(workers, [len(each) for each in new]), np.concatenate(new))
        return Item(item.name, index, self.arrays[item.name][index])

    def pack_totals(self, marks: Marks, rows: Sequence[int]) -> list[Item]:
        """For another machine: how far these workers have come."""
        now = {name: self.arrays[name][list(rows)] for name in TOTALS}
        new = {name: found for name, found in now.items() if not np.array_equal(found, marks.get(name, ()))}
        marks.update(new)
        return [Item(name, list(rows), found) for name, found in new.items()]

    def receive(
        self, items: Sequence[Item], image: Arrays, side: str = WRITER, rows: Sequence[int] | None = None
    ) -> None:
        """Written in place: what is counted before the counts, and which start of a worker they are of last."""
        del image, side, rows
        order = {name: place for place, name in enumerate(("note", "note_size", *ORDER))}
        self.unpack(sorted(items, key=lambda item: order[item.name]), self.arrays)


def _mirror_notes(source: Arrays, target: Arrays, workers: NDArray[np.int64]) -> int:
    """A note is withdrawn before it is changed; one that is being written is left for the next time."""
    size, note = source["note_size"][workers], source["note"][workers]
    new = (size != target["note_size"][workers]) | ((size > 0) & (note != target["note"][workers]).any(axis=1))
    new &= (source["note_size"][workers] == size) & (source["note"][workers] == note).all(axis=1)
    if not new.any():
        return 0
    target["note_size"][workers[new]] = 0
    target["note"][workers[new]] = note[new]
    target["note_size"][workers[new]] = size[new]
    return int(note[new].nbytes + size[new].nbytes)


class Numbers(Channel):
    """A few arrays of numbers with one writer; `start` gives their first values.

    `names` gives some numbers their names as metrics; `tell(arrays, since)` gives sentences about what has happened.
    """

    def __init__(
        self,
        name: str,
        shapes: Mapping[str, Field],
        *,
        start: Mapping[str, Sequence[int]],
        names: Mapping[str, Sequence[str]],
        tell: Callable[[Arrays, int], list[str]],
        **labels: str,
    ) -> None:
        super().__init__(name, **labels)
        self.shapes, self.start, self.names, self._tell, self._told = shapes, start, names, tell, 0

    def fields(self) -> dict[str, Field]:
        return dict(self.shapes)

    @port("out")
    def writer(self, me: Place | None = None) -> Arrays:  # noqa: ARG002
        return self.arrays

    @port("in")
    def reader(self, me: Place | None = None) -> Arrays:  # noqa: ARG002
        return self.arrays

    def clear(self) -> None:
        super().clear()
        for name, numbers in self.start.items():
            self.arrays[name][:] = numbers

    def state(self) -> dict[str, Any]:
        return {name: self.arrays[name].copy() for name in self.start}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for name in self.start:
            self.arrays[name][:] = state[name]

    def metrics(self) -> dict[str, float | int]:
        found = [(names, self.arrays[array].tolist()) for array, names in self.names.items()]
        return {
            f"{self.name}/{name}": number for names, all_ in found for name, number in zip(names, all_, strict=True)
        }

    def notes(self) -> list[str]:
        found = self._tell(self.arrays, self._told)
        self._told += len(found)
        return found

    def mirror(self, source: Arrays, target: Arrays, side: str = WRITER, rows: Sequence[int] | None = None) -> int:
        """`rows` select nothing, since there is one writer; none at all = another machine's."""
        if side != WRITER or (rows is not None and not len(rows)):
            return 0
        return sum(mirror_changed(source, target, (name,), np.arange(len(array))) for name, array in source.items())


class Row:
    """One worker's entries by name."""

    def __init__(self, table: Table, worker: int) -> None:
        self._table, self._worker = table, worker

    def __getitem__(self, name: str) -> Any:
        return self._table[name][self._worker]

    def __setitem__(self, name: str, value: Any) -> None:
        self._table[name][self._worker] = value


class WorkerStats:
    """One worker's row."""

    def __init__(self, table: Table, worker: int = 0) -> None:
        self.table, self.worker = table, worker
        self.row = Row(table, worker)
        self._env_steps, self._updates, self._beat = table["env_steps"], table["updates"], table["beat"]

    @property
    def env_steps(self) -> int:
        """Env steps of all workers."""
        return int(np.add.reduce(self._env_steps))

    @property
    def updates(self) -> int:
        """Updates of all workers."""
        return int(np.add.reduce(self._updates))

    @property
    def own_env_steps(self) -> int:
        return int(self._env_steps[self.worker])

    def played(self, env_steps: int) -> None:
        self._env_steps[self.worker] += env_steps

    def learned(self, updates: int) -> None:
        self._updates[self.worker] += updates

    def count(self, name: str, amount: int = 1) -> None:
        self.row[name] += amount

    def set(self, name: str, value: float) -> None:
        self.row[name] = value

    def beat(self) -> None:
        self._beat[self.worker] += 1

    def enter(self, epoch: int) -> None:
        """The worker starts: the supervision entries of an earlier process are out of date."""
        self.row["beat"] = self.row["waiting"] = 0
        self.row["place"] = -1
        self.row["epoch"] = epoch

    def queue(self, waiting: int) -> None:
        self.row["queue"] = waiting + 1

    def sampled(self, steps: int) -> None:
        self.row["samples"] += steps

    def episode(self, reward: float, length: int) -> None:
        at = int(self.row["episodes"]) % RECENT
        self.row["episode_return"][at] = reward
        self.row["episode_length"][at] = length
        self.row["episodes"] += 1

    def lag(self, lags: NDArray[np.int64]) -> None:
        """Policy lag of each sample of a batch: updates since the weights that acted.

        A learner that was started again from an older state may have fewer updates than the weights that acted.
        """
        self._recent("lag", np.maximum(lags, 0))

    def age(self, ages: NDArray[np.int64]) -> None:
        """How many updates old the weights were that gradients were computed with."""
        self._recent("age", ages)

    def _recent(self, name: str, values: NDArray[np.int64]) -> None:
        values = values.ravel()
        if values.size > RECENT:  # evenly spread, so that all updates of a call have a say
            values = values[:: -(-values.size // RECENT)]
        count = int(self.row[f"{name}s"])
        self.row[name][np.arange(count, count + values.size) % RECENT] = values
        self.row[f"{name}s"] = count + values.size

    def replied(self, seconds: float) -> None:
        self.row["replies"] += 1
        self.row["reply_s"] += seconds

    def loss(self, loss: Any, entropy: Any = 0.0, value: Any = 0.0) -> None:
        """Losses of one or several updates, with the policy's entropy and the mean absolute value of each."""
        losses, entropies, values = np.asarray(loss), np.asarray(entropy), np.asarray(value)
        if losses.size > 1:
            self._add_finite("losses", loss_sum=losses, entropy_sum=entropies, value_sum=values)
            return
        one, its_entropy, its_value = losses.item(), entropies.item(), values.item()
        if math.isfinite(one) and math.isfinite(its_entropy) and math.isfinite(its_value):
            table, at = self.table, self.worker  # plain numbers are faster: some workers learn from every single step
            table["loss_sum"][at] += one
            table["entropy_sum"][at] += its_entropy
            table["value_sum"][at] += its_value
            table["losses"][at] += 1

    def gradient_norm(self, norm: Any, limit: float) -> None:
        """Norms of the gradients of one or several updates, before clipping to `limit`; 0 = no clipping."""
        norms = np.asarray(norm)
        if norms.size > 1:
            self._add_finite("norms", norm_sum=norms, clipped=(norms > limit) & (limit > 0))
            return
        one = norms.item()
        if math.isfinite(one):
            table, at = self.table, self.worker
            table["norm_sum"][at] += one
            table["clipped"][at] += 0 < limit < one
            table["norms"][at] += 1

    def _add_finite(self, count: str, **numbers: Any) -> None:
        """Add up the numbers under each name, without updates of which any number is not finite."""
        several = np.array(list(numbers.values()), np.float64).reshape(len(numbers), -1)
        finite = several[:, np.isfinite(several).all(axis=0)]
        for name, total in zip(numbers, finite.sum(axis=1).tolist(), strict=True):
            self.row[name] += total
        self.row[count] += finite.shape[1]


class GroupStats:
    """The rows of several workers; `which` are numbers among them."""

    def __init__(self, table: Table, workers: Sequence[int]) -> None:
        self._table, self._workers = table, np.array(workers)

    def add(self, name: str, which: int | NDArray[np.integer[Any]], amount: float) -> None:
        self._table[name][self._workers[which]] += amount

    def beat(self, which: int | NDArray[np.integer[Any]]) -> None:
        self._table["beat"][self._workers[which]] += 1
