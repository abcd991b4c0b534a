"""`Latest`: the newest vector, older ones are skipped. Weights go this way from learners to actors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.channels.channel import (
    SILENT,
    WRITER,
    Arrays,
    Bells,
    Channel,
    Item,
    Marks,
    Place,
    TwoCopies,
    own_rows,
    port,
    slices,
)
from repertory.specs import Field


class Latest(Channel):
    """A vector of `size()` numbers in `parts` slices, each with one publisher.

    With `lend`, workers of one thread get the published array itself, without a copy.
    """

    layer = 3

    def __init__(
        self, name: str, size: Callable[[], int], *, parts: int = 1, lend: bool = False, **labels: str
    ) -> None:
        super().__init__(name, **labels)
        self.size, self.parts, self._lend = size, parts, lend
        self._lent: Lent | None = None

    not_sent = ("mirrored",)

    @property
    def row_count(self) -> int:
        return self.parts

    def fields(self) -> dict[str, Field]:
        return {
            "copies": Field((2, self.size()), "float32", commit="count"),
            "version": Field((self.parts, 2), "int64", commit="count"),
            "count": Field((self.parts,), "int64"),
            "mirrored": Field((self.parts,), "int64"),
        }

    def bind(self, arrays: Arrays, bells: Bells = SILENT, **engine: Any) -> None:
        super().bind(arrays, bells, **engine)
        self._lent = Lent() if self._lend and self.in_thread else None

    def _part(self, arrays: Arrays, part: int) -> TwoCopies:
        own = slice(part, part + 1)
        return TwoCopies(
            {
                "vector": arrays["copies"][:, slices(arrays["copies"].shape[1], self.parts)[part]],
                "version": arrays["version"][part],
                "count": arrays["count"][own],
                "mirrored": arrays["mirrored"][own],
            }
        )

    @port("out")
    def writer(self, me: Place) -> Publisher | Lent:
        """Publishes the part of this rank, if there are several."""
        return self._lent or Publisher(self._part(self.arrays, me.rank if self.parts > 1 else 0), self.bells.readers)

    @port("in")
    def reader(self, me: Place | None = None) -> Reader | Lent:  # noqa: ARG002
        parts = [self._part(self.arrays, part) for part in range(self.parts)]
        return self._lent or Reader(self.arrays["count"], parts)

    @property
    def published(self) -> bool:
        """Whether every part has been published."""
        return self._lent is not None or bool((self.arrays["count"] > 0).all())

    def latest(self) -> tuple[int, Any]:
        """The version of the first part, and the newest vector: a copy."""
        return self.reader().latest()

    def mirror(self, source: Arrays, target: Arrays, side: str = WRITER, rows: Sequence[int] | None = None) -> int:
        parts = own_rows(self.parts, rows).tolist() if side == WRITER else []
        return sum(self._part(target, part).copy_from(self._part(source, part)) for part in parts)

    def pack(self, marks: Marks, side: str = WRITER, rows: Sequence[int] | None = None) -> list[Item]:
        """The newest version of each part; versions in between are never sent."""
        items: list[Item] = []
        cuts = slices(self.arrays["copies"].shape[1], self.parts)
        for part in own_rows(self.parts, rows).tolist() if side == WRITER else []:
            if int(self.arrays["count"][part]) not in (0, marks.get(part)):
                count, found = self._part(self.arrays, part).read()
                items.append(Item("copies", (count % 2, cuts[part]), found["vector"]))
                items.append(Item("version", (part, count % 2), found["version"]))
                items.append(Item("count", part, count))
                marks[part] = count
        return items

    def seed(self, rows: Sequence[int]) -> list[Item]:  # noqa: ARG002
        """Nothing: a publisher publishes again when it starts."""
        return []

    def lose(self, rows: Sequence[int]) -> None:
        self.arrays["mirrored"][list(rows)] = 0


class Publisher:
    """Writes one part."""

    def __init__(self, part: TwoCopies, ring: Callable[[], None]) -> None:
        self._part, self._ring = part, ring

    def publish(self, version: int, weights: Any) -> None:
        self._part.write({"vector": weights, "version": version})
        self._ring()


class Reader:
    """Reads all parts."""

    def __init__(self, counts: NDArray[np.int64], parts: list[TwoCopies]) -> None:
        self._counts, self._parts = counts, parts
        self._seen = [-1] * len(parts)
        self._found: list[tuple[int, NDArray[np.float32]]] = [(-1, np.zeros(0, np.float32))] * len(parts)

    @property
    def changed(self) -> bool:
        """Whether there is something newer than `latest` returned last."""
        return bool((self._counts != self._seen).any())

    def latest(self) -> tuple[int, NDArray[np.float32]]:
        """The first part's version, and the vector: a copy that does not change, the same until there is a newer."""
        found = self.by_part()
        return found[0] if len(found) == 1 else (found[0][0], np.concatenate([vector for _, vector in found]))

    def by_part(self) -> list[tuple[int, NDArray[np.float32]]]:
        """Version and vector of each part."""
        for index, part in enumerate(self._parts):
            if int(self._counts[index]) != self._seen[index]:
                self._seen[index], found = part.read()
                self._found[index] = int(found["version"]), found["vector"]
        return self._found


class Lent:
    """Both ends in one thread: the published array itself is handed over."""

    def __init__(self) -> None:
        self._latest: tuple[int, Any] = (-1, np.zeros(0, np.float32))

    def publish(self, version: int, weights: Any) -> None:
        self._latest = (version, weights)

    def latest(self) -> tuple[int, Any]:
        return self._latest
