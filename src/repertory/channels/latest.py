"""`Latest`: the newest vector, older ones are skipped. Weights go this way from whoever learns to whoever plays."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.channels.channel import SILENT, WRITER, Arrays, Bells, Channel, Place, own_rows, port, slices
from repertory.specs import Field

DEADLINE_S = 10.0
NUMBERS = 16
"""Bytes of a version and a count."""


class Latest(Channel):
    """A vector of `size()` numbers in `parts` slices, each with one publisher: two copies, and a count that says which
    one is valid. With `lend`, workers of one thread are handed the published array itself, without a copy.
    """

    def __init__(self, name: str, size: Callable[[], int], *, parts: int = 1, lend: bool = False, **told: str) -> None:
        super().__init__(name, **told)
        self.size, self.parts, self._lend = size, parts, lend
        self._lent: Lent | None = None

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

    @port("out")
    def writer(self, me: Place) -> Publisher | Lent:
        """Of the part of this rank, if there are several."""
        return self._lent or Publisher(self.arrays, *self._part(me.rank if self.parts > 1 else 0), self.bells.readers)

    @port("in")
    def reader(self, me: Place | None = None) -> Reader | Lent:  # noqa: ARG002
        return self._lent or Reader(self.arrays, [self._part(part) for part in range(self.parts)])

    def _part(self, part: int) -> tuple[int, slice]:
        return part, slices(self.arrays["copies"].shape[1], self.parts)[part]

    @property
    def published(self) -> bool:
        """Whether every part has been published."""
        return self._lent is not None or bool((self.arrays["count"] > 0).all())

    def latest(self) -> tuple[int, Any]:
        """The version of the first part, and the newest vector: a copy."""
        return self.reader().latest()

    def mirror(self, source: Arrays, target: Arrays, side: str = WRITER, rows: Sequence[int] | None = None) -> int:
        if side != WRITER:
            return 0
        return sum(self._mirror_part(source, target, part) for part in own_rows(self.parts, rows).tolist())

    def _mirror_part(self, source: Arrays, target: Arrays, part: int) -> int:
        if int(source["count"][part]) in (0, int(target["mirrored"][part])):
            return 0
        cut = slices(source["copies"].shape[1], self.parts)[part]
        count, version, copy = _read(source, part, cut)
        spare = (int(target["count"][part]) + 1) % 2
        target["copies"][spare, cut] = copy
        target["version"][part, spare] = version
        target["count"][part] += 1
        target["mirrored"][part] = count  # last: who is cut off before copies once more
        return int(copy.nbytes) + NUMBERS


def _read(arrays: Arrays, part: int, cut: slice) -> tuple[int, int, NDArray[np.float32]]:
    """Count, version and a copy that no publisher has touched meanwhile."""
    end, counts = time.monotonic() + DEADLINE_S, arrays["count"]
    while True:
        count = int(counts[part])
        version, copy = int(arrays["version"][part, count % 2]), arrays["copies"][count % 2, cut].copy()
        if int(counts[part]) == count:  # else the publisher may have come round to this copy
            return count, version, copy
        if time.monotonic() > end:
            raise TimeoutError("the weights changed faster than they could be read")


class Publisher:
    """One part's writing end."""

    def __init__(self, arrays: Arrays, part: int, cut: slice, ring: Callable[[], None]) -> None:
        self._copies, self._versions = arrays["copies"][:, cut], arrays["version"][part]
        self._count, self._ring = arrays["count"][part : part + 1], ring

    def publish(self, version: int, weights: Any) -> None:
        """Write the spare copy, then let it count."""
        spare = (int(self._count[0]) + 1) % 2
        self._copies[spare] = np.asarray(weights)
        self._versions[spare] = version
        self._count[0] += 1
        self._ring()


class Reader:
    """The reading end of all parts."""

    def __init__(self, arrays: Arrays, parts: list[tuple[int, slice]]) -> None:
        self._arrays, self._parts, self._counts = arrays, parts, arrays["count"]
        self._seen = [-1] * len(parts)
        self._found: list[tuple[int, NDArray[np.float32]]] = [(-1, np.zeros(0, np.float32))] * len(parts)

    @property
    def changed(self) -> bool:
        """Whether there is something newer than `latest` returned last."""
        return bool((self._counts != self._seen).any())

    def latest(self) -> tuple[int, NDArray[np.float32]]:
        """The first part's version, and the vector: a copy that stays as it is, the same one until there is a newer."""
        found = self.by_part()
        return found[0] if len(found) == 1 else (found[0][0], np.concatenate([vector for _, vector in found]))

    def by_part(self) -> list[tuple[int, NDArray[np.float32]]]:
        """Version and vector of each part."""
        for part, cut in self._parts:
            if int(self._counts[part]) != self._seen[part]:
                self._seen[part], version, copy = _read(self._arrays, part, cut)
                self._found[part] = (version, copy)
        return self._found


class Lent:
    """Both ends in one thread: what was published is handed over as it is."""

    def __init__(self) -> None:
        self._latest: tuple[int, Any] = (-1, np.zeros(0, np.float32))

    def publish(self, version: int, weights: Any) -> None:
        self._latest = (version, weights)

    def latest(self) -> tuple[int, Any]:
        return self._latest
