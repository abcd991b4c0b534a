"""Two machines with the same arrays, of which one mirrors the other; a writer may be killed between two writes.

Arrays tell what is written to them. So every test also checks that each side writes only what is declared as its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from repertory.channels.channel import ALL_WORKERS, READER, WRITER, Channel
from repertory.specs import Field

AnyChannel = TypeVar("AnyChannel", bound=Channel)
CUTS = st.one_of(st.none(), st.integers(0, 4), st.integers(0, 25))
"""After how many writes to arrays the writer is killed; None = never."""


class Killed(Exception):
    """The process ends here."""


def nothing() -> None:
    """The other machine does nothing."""


class Journal:
    """What was written, after how many more writes the writer is killed, and what happens before which look."""

    def __init__(self) -> None:
        self.written: set[str] = set()
        self.left: int | None = None
        self.looks, self.meanwhile = 0, nothing

    def look(self) -> None:
        self.looks -= 1
        if self.looks == 0:
            self.meanwhile()

    def note(self, name: str) -> None:
        if self.left == 0:
            raise Killed
        self.left = None if self.left is None else self.left - 1
        self.written.add(name)


class Watched(np.ndarray[Any, Any]):
    """An array, or a part of one, that tells a journal of every assignment before it is made; copies of it do not."""

    name: str
    journal: Journal | None
    memory: NDArray[Any]

    def __array_finalize__(self, source: Any) -> None:
        self.name, self.journal = getattr(source, "name", ""), getattr(source, "journal", None)
        self.memory = getattr(source, "memory", None)  # type: ignore[assignment]

    def __getitem__(self, key: Any) -> Any:
        if self.journal is not None:
            self.journal.look()
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.journal is not None and np.may_share_memory(self, self.memory):
            self.journal.note(self.name)
        super().__setitem__(key, value)


def watched(fields: dict[str, Field], journal: Journal) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    for name, field in fields.items():
        memory = np.zeros(field.shape, field.dtype)
        array = memory.view(Watched)
        array.name, array.journal, array.memory = name, journal, memory
        arrays[name] = array
    return arrays


class Me:
    """Which worker a port is for."""

    def __init__(self, rank: int = 0, epoch: int = 1, await_others: Callable[[], bool] | None = None) -> None:
        self.rank, self.epoch, self.await_others = rank, epoch, await_others


class Machine(Generic[AnyChannel]):
    """A channel on arrays of its own."""

    def __init__(self, channel: AnyChannel) -> None:
        self.channel, self.fields, self.journal = channel, channel.fields(), Journal()
        self.arrays = watched(self.fields, self.journal)
        self.plain = {name: array.view(np.ndarray) for name, array in self.arrays.items()}
        channel.bind(self.arrays)

    @contextmanager
    def writing(self, side: str, cut: int | None) -> Iterator[None]:
        """`side` writes here, until it is killed."""
        self.journal.written, self.journal.left = set(), cut
        try:
            yield
        finally:
            self.journal.left = None
            wrong = {name for name in self.journal.written if self.fields[name].writer not in (side, ALL_WORKERS)}
            assert not wrong, f"{side} wrote {wrong}, which are not its own"

    def act(self, side: str, work: Callable[[], Any], cut: int | None = None) -> tuple[bool, Any]:
        """Whether it came to its end, and what came of it."""
        try:
            with self.writing(side, cut):
                return True, work()
        except Killed:
            return False, None

    def copy(self) -> dict[str, NDArray[Any]]:
        return {name: array.copy() for name, array in self.plain.items()}


class Pair(Generic[AnyChannel]):
    """The writer's machine, and the reader's."""

    def __init__(self, make: Callable[[], AnyChannel]) -> None:
        self.near, self.far = Machine(make()), Machine(make())

    def write(self, work: Callable[[], Any], cut: int | None = None) -> tuple[bool, Any]:
        return self.near.act(WRITER, work, cut)

    def read(self, work: Callable[[], Any], cut: int | None = None) -> tuple[bool, Any]:
        return self.far.act(READER, work, cut)

    def forth(self, cut: int | None = None, **options: Any) -> int | None:
        """Mirror what the writer wrote; None if that was cut off."""
        mirror = self.near.channel.mirror
        return self.far.act(WRITER, lambda: mirror(self.near.plain, self.far.arrays, WRITER, **options), cut)[1]  # type: ignore[no-any-return]

    def back(self, cut: int | None = None, **options: Any) -> int | None:
        """Mirror what the reader wrote."""
        mirror = self.far.channel.mirror
        return self.near.act(READER, lambda: mirror(self.far.plain, self.near.arrays, READER, **options), cut)[1]  # type: ignore[no-any-return]

    def forth_while(self, looks: int, work: Callable[[], Any]) -> int:
        """Mirror what the writer wrote; it goes on writing before this look at its arrays."""
        journal, mirror = self.near.journal, self.near.channel.mirror
        journal.looks, journal.meanwhile = looks, lambda: self.write(work) and None
        moved: int = self.far.act(WRITER, lambda: mirror(self.near.arrays, self.far.arrays, WRITER))[1]
        journal.looks = 0
        return moved

    def settle(self) -> None:
        """Mirror both ways; then there is nothing left to mirror."""
        self.forth()
        self.back()
        assert (self.forth(), self.back()) == (0, 0)


def assert_same(found: Any, wanted: Any) -> None:
    """Equal in every bit."""
    np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))
