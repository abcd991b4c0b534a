"""How ranks of one machine exchange their gradients: on arrays that all of them have, in one process or in several.

Each rank has two slots for what it submits, and a count of its submissions that moves last. A round is complete when
every count has reached it. Nobody submits to the next round but one before all have taken this one, so two slots are
enough, and no port is opened that somebody else could connect to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.agents.compression import Fields
from repertory.experience.lanes import Field


class SharedCollective:
    """One rank's part of it; `ring` wakes the others.

    `wait` is called again and again by a rank that has halted, until all have: it sleeps for a moment, and says whether
    to wait on. Without it the others are in this thread, where none of them runs meanwhile.
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray[Any]],
        rank: int,
        ring: Callable[[], None] = lambda: None,
        wait: Callable[[], bool] | None = None,
    ) -> None:
        self._rank, self._ring, self._wait = rank, ring, wait
        self._submitted, self._halted = arrays["submitted"], arrays["halted"]
        self._payloads = {name: array for name, array in arrays.items() if name not in ("submitted", "halted")}
        self._round = int(self._submitted[rank])

    @staticmethod
    def fields(payload: Fields, ranks: int) -> dict[str, Field]:
        """What has to be allocated; all zero is the beginning."""
        payloads = {name: Field((2, ranks, *shape), dtype) for name, (shape, dtype) in payload.items()}
        return {**payloads, "submitted": Field((ranks,), "int64"), "halted": Field((ranks,), "int64")}

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self._submitted)

    def submit(self, payload: Mapping[str, Any]) -> None:
        """This rank's part of its next round."""
        for name, array in self._payloads.items():
            array[self._round % 2, self._rank] = np.asarray(payload[name])
        self._submitted[self._rank] = self._round + 1
        self._ring()

    def poll(self) -> list[dict[str, Any]] | None:
        """Everybody's parts, valid until this rank submits again; None while some are missing."""
        if (self._submitted <= self._round).any():
            return None
        slot = self._round % 2
        self._round += 1
        return [
            {name: array[slot, rank] for name, array in self._payloads.items()} for rank in range(len(self._submitted))
        ]

    def halt(self) -> None:
        """Return when all ranks have halted: from then on no count moves forward until all go on.

        All ranks halt equally often, once for each pause.
        """
        self._halted[self._rank] += 1
        while self._wait is not None and (self._halted < self._halted[self._rank]).any() and self._wait():
            pass

    def withdraw(self) -> None:
        """After all have halted: the round that not all have joined was never submitted to."""
        self._submitted[self._rank] = self._round
