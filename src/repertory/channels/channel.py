"""What every channel is, and what several are built from; numpy only."""

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
