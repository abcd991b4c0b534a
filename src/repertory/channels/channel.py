"""What every channel is, and what several are built from; numpy only.

Between two sets of arrays in one process a channel is copied by `mirror`. Between two machines `pack` gives what is new
as a list of items, and `receive` puts them into an image of the sender's arrays and mirrors that: what arrives twice
changes nothing, and what was lost is packed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from repertory.specs import Field

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
Direction: TypeAlias = Literal["out", "in", "both", "own"]
"""Of a port: its worker writes, reads, does both to what all share, or owns a state there that survives it."""
WRITER, READER, ALL_WORKERS = "writer", "reader", "all workers"
"""The sides that write arrays: each array has one. A filler writes its slots, a releaser its count."""
Method = TypeVar("Method", bound=Callable[..., Any])


class Place(Protocol):
    """Which worker a port is for."""

    @property
    def rank(self) -> int: ...


class Item(NamedTuple):
    """A part of an array on its way to another machine."""

    name: str
    index: Any
    values: Any

    @property
    def nbytes(self) -> int:
        return int(np.asarray(self.values).nbytes)


Marks: TypeAlias = dict[Any, Any]
"""What was packed so far: the counts of a channel, as copies."""


class Bells(NamedTuple):
    """Wake the workers at the other end: all of them, or the one of this rank."""

    readers: Callable[..., None]
    writers: Callable[..., None]


SILENT = Bells(lambda _=None: None, lambda _=None: None)
"""For one thread, where no worker sleeps."""
DEADLINE_S = 10.0
"""After so many seconds of writes that overtake a reader, it gives up."""


def port(direction: Direction) -> Callable[[Method], Method]:
    """Marks a method that gives a worker its port: handing the port to a worker is the edge of the graph."""

    def mark(method: Method) -> Method:
        method.direction = direction  # type: ignore[attr-defined]
        return method

    return mark


class Channel:
    """`carries` and `when` are for people: what flows, and when; `back` and `back_when` what flows the other way."""

    one_machine = False
    """Whether its arrays have no single writer, so that they can't be mirrored."""
    not_sent: tuple[str, ...] = ()
    """Arrays that say something of this machine only."""
    layer = 1
    """In which order a message is packed, lower first; it is unpacked in the opposite one: see `engines/courier.py`."""
    read_apart = False
    """Whether each reader reads only what is written on its own machine."""
    stays = False
    """Whether each row is written and read on one and the same machine."""

    def __init__(self, name: str, *, carries: str = "", when: str = "", back: str = "", back_when: str = "") -> None:
        self.name, self.carries, self.when = name, carries or name, when
        self.back, self.back_when = back, back_when
        self.arrays: Arrays = {}
        self.bells = SILENT

    def fields(self) -> dict[str, Field]:
        """What has to be allocated."""
        raise NotImplementedError

    def bind(
        self,
        arrays: Arrays,
        bells: Bells = SILENT,
        *,
        total_updates: Callable[[], int] = lambda: 0,
        in_thread: bool = False,
    ) -> None:
        """Use these arrays, which hold zeros or what an earlier worker has left.

        `total_updates` tells how many updates all workers have made; `in_thread`: all take turns in this thread.
        """
        self.arrays, self.bells, self.total_updates, self.in_thread = arrays, bells, total_updates, in_thread
        self._declared: dict[str, Field] = {}

    def clear(self) -> None:
        """As if just allocated."""
        for array in self.arrays.values():
            array[...] = 0

    def state(self) -> dict[str, Any]:
        """What a checkpoint saves of it."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take that over, before any worker starts."""

    def restart(self) -> None:
        """Keep what a checkpoint saves and forget the rest, so that what follows depends on the checkpoint alone."""
        saved = {name: np.copy(value) for name, value in self.state().items()}
        self.clear()
        self.load_state(saved)

    def metrics(self) -> dict[str, float | int]:
        return {}

    def notes(self) -> list[str]:
        """Sentences for the user about what happened in it since the last call."""
        return []

    def mirror(self, source: Arrays, target: Arrays, side: str = WRITER, rows: Sequence[int] | None = None) -> int:
        """Copy what `side` has committed in `source` since the last time; returns the bytes taken from `source`.

        The count is read first, then the data; the data are written first, then the count. So a copy that is cut off
        anywhere changes nothing for readers of `target`, and the next one makes up for it. Where several machines
        write, `rows` are a machine's own: numbers of its lanes, parts, workers, writers, askers, replicas or servers.
        """
        raise NotImplementedError

    # Between machines

    @property
    def row_count(self) -> int:
        """How many rows there are that workers write: lanes, parts, writers, askers or replicas."""
        return 1

    def rows_of(self, rank: int, count: int) -> range:
        """Those that the worker of this rank writes, of `count` that have a port: equal shares, or one for each."""
        share, rows = self.row_count // count, self.row_count
        return range(rank * share, (rank + 1) * share) if share else range(min(rank, rows), min(rank + 1, rows))

    def span(self, name: str, rows: Sequence[int] | None) -> Any:
        """The index of these rows in an array."""
        return slice(None) if rows is None or len(self.arrays[name]) != self.row_count else np.asarray(rows, np.int64)

    def declared(self, side: str) -> dict[str, Field]:
        """The arrays of one side that other machines know."""
        if not self._declared:
            self._declared = self.fields()
        return {n: f for n, f in self._declared.items() if f.writer == side and n not in self.not_sent}

    def pack(self, marks: Marks, side: str = WRITER, rows: Sequence[int] | None = None) -> list[Item]:
        """What `side` has committed since `marks`, which are moved: counts are read first, then what they commit."""
        items: list[Item] = []
        grown: dict[str, Any] = {}
        declared = self.declared(side)
        for name in [name for name, field in declared.items() if not field.commit]:
            span = self.span(name, rows)
            now, before = np.array(self.arrays[name][span]), marks.get(name)
            if before is None or before.tobytes() != now.tobytes():
                items.append(Item(name, span, now))
                grown[name] = slice(None) if before is None else before != now
                marks[name] = now
        for name, field in declared.items():
            if field.commit not in grown:
                continue
            index = self.span(name, rows)
            if len(self.arrays[name]) == len(self.arrays[field.commit]):
                index = np.arange(len(self.arrays[name]))[index][grown[field.commit]]
            items.append(Item(name, index, np.array(self.arrays[name][index])))
        return items

    def unpack(self, items: Iterable[Item], image: Arrays) -> None:
        for name, index, values in items:
            image[name][index] = values

    def receive(
        self, items: Sequence[Item], image: Arrays, side: str = WRITER, rows: Sequence[int] | None = None
    ) -> None:
        """Take over what another machine has packed; `image` has the sender's arrays as far as they are known here."""
        self.unpack(items, image)
        self.mirror(image, self.arrays, side, rows)

    def image_fields(self) -> dict[str, Field]:
        """Arrays for an image of another machine's."""
        return self.fields()

    def confirm(self, marks: Marks) -> None:
        """What was packed up to these marks has arrived."""

    def pressing(self, *, waiting: bool) -> bool:  # noqa: ARG002
        """Whether what was written here should travel at once; `waiting`: a worker of this machine waits."""
        return False

    def seed(self, rows: Sequence[int]) -> list[Item]:  # noqa: ARG002
        """What a machine needs whose workers are to write these rows from now on: counts go on where they are."""
        items = []
        for side in (WRITER, READER):
            plain = [name for name, field in self.declared(side).items() if not field.commit]
            items += [Item(name, slice(None), np.array(self.arrays[name])) for name in plain]
        return items

    def lose(self, rows: Sequence[int]) -> None:
        """The machine whose workers wrote these rows is gone: what was on its way does not come any more."""


class TwoCopies:
    """Arrays [2, ...] and a `count` that says which copy is valid: a writer fills the other one, then moves the count.

    A writer that is killed leaves the valid copy whole. `mirrored` is the count of what was copied here last.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.count, self._mirrored = arrays["count"], arrays["mirrored"]
        self.copies = {name: array for name, array in arrays.items() if name not in ("count", "mirrored")}

    def write(self, values: Mapping[str, Any]) -> None:
        spare = (int(self.count[0]) + 1) % 2
        for name, array in self.copies.items():
            array[spare] = np.asarray(values[name])
        self.count[0] += 1

    def valid(self) -> dict[str, NDArray[Any]]:
        """Views of the valid copy, for the only writer or while there is none."""
        return {name: array[int(self.count[0]) % 2] for name, array in self.copies.items()}

    def read(self) -> tuple[int, dict[str, NDArray[Any]]]:
        """The count, and a copy that the writer has not touched meanwhile."""
        end = time.monotonic() + DEADLINE_S
        while True:
            count = int(self.count[0])
            found = {name: array[count % 2].copy() for name, array in self.copies.items()}
            if int(self.count[0]) == count:  # else the writer may have come round to this copy
                return count, found
            if time.monotonic() > end:
                raise TimeoutError("the weights changed faster than they could be read")

    def copy_from(self, source: TwoCopies) -> int:
        """Mirror the valid copy of `source`, if it is new; returns the bytes."""
        if int(source.count[0]) in (0, int(self._mirrored[0])):
            return 0
        count, found = source.read()
        self.write(found)
        self._mirrored[0] = count  # last: a mirror that is cut off before copies once more
        return source.count.nbytes + sum(array.nbytes for array in found.values())


def allocate(fields: Mapping[str, Field]) -> dict[str, NDArray[Any]]:
    """Arrays in this process's memory; the system provides pages when they are first written."""
    return {name: np.zeros(field.shape, field.dtype) for name, field in fields.items()}


def prefixed(prefix: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same under the names `prefix/...`."""
    return {f"{prefix}/{name}": field for name, field in fields.items()}


def under(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `prefixed`: what is under this prefix."""
    return {name.partition("/")[2]: array for name, array in arrays.items() if name.startswith(f"{prefix}/")}


def copy_rows(source: Arrays, target: Arrays, names: Iterable[str], rows: Any) -> int:
    moved = 0
    for name in names:
        found = source[name][rows]
        target[name][rows] = found
        moved += found.nbytes
    return moved


def own_rows(count: int, rows: Sequence[int] | None) -> NDArray[np.int64]:
    """All of `count` rows, or those that a machine owns."""
    return np.arange(count) if rows is None else np.asarray(rows, np.int64)


def mirror_counted(source: Arrays, target: Arrays, count: str, names: Iterable[str], rows: NDArray[np.int64]) -> int:
    """Of those of `rows` whose `count` has grown, the data, then the count as it was before the data were read."""
    made = source[count][rows]
    grown = made > target[count][rows]
    if not grown.any():
        return 0
    moved = copy_rows(source, target, names, rows[grown])
    target[count][rows[grown]] = made[grown]
    return moved + int(made[grown].nbytes)


def mirror_grown(source: Arrays, target: Arrays, name: str) -> int:
    """Counts that only grow and commit nothing: a source that knows less changes nothing."""
    made = np.asarray(source[name])
    grown = made > target[name]
    if grown.any():
        target[name][grown] = made[grown]
    return int(made[grown].nbytes)


def mirror_changed(source: Arrays, target: Arrays, names: Sequence[str], rows: NDArray[np.int64]) -> int:
    """Those of `rows` that differ in a bit; written in the order of `names`, so read in the opposite one."""
    moved, found = 0, {name: source[name][rows] for name in reversed(names)}
    for name in names:
        differ = _bits(found[name]) != _bits(target[name][rows])
        differ = differ.any(axis=tuple(range(1, differ.ndim)))
        if differ.any():
            target[name][rows[differ]] = found[name][differ]
            moved += int(found[name][differ].nbytes)
    return moved


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    """Floats as integers of their bits, so that NaN is equal to itself."""
    return array.view(f"i{array.itemsize}") if array.dtype.kind == "f" else array


def slices(size: int, parts: int) -> list[slice]:
    """`parts` pieces of nearly equal length."""
    return [slice(size * part // parts, size * (part + 1) // parts) for part in range(parts)]
