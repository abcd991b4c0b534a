"""Batches of unrolls, taken from their slots in the order in which they were finished; numpy only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from repertory.channels.counters import WorkerStats
from repertory.experience.unrolls import UnrollBatch, UnrollStorage


class UnrollBatches:
    """Takes `size` slots at once; those whose weights are more than `most_lag` updates old are dropped and counted.

    One that is no longer `at_work` does not wait for a whole batch: nobody may send it any more.
    """

    def __init__(
        self,
        unrolls: UnrollStorage,
        size: int,
        page: WorkerStats,
        *,
        reader: int,
        discount: float,
        core: int,
        updates: int,
        entropy: Callable[[int], float],
        ring: Callable[[], None],
        most_lag: int = 0,
        at_work: Callable[[], bool] = lambda: True,
    ) -> None:
        self.unrolls, self.size, self.page, self.reader = unrolls, size, page, reader
        self.discount, self.core, self.updates, self.entropy = discount, core, updates, entropy
        self.ring, self.most_lag, self.at_work = ring, most_lag, at_work

    def take(self) -> UnrollBatch | None:
        """The oldest, if there are enough."""
        ready = self.unrolls.ready(self.reader)
        if self.most_lag and len(ready):
            ready = self._fresh_enough(ready)
        self.page.queue(len(ready))
        if len(ready) < self.size and (self.at_work() or len(ready) == 0):
            return None
        return self._gathered(ready[: self.size])

    def _gathered(self, slots: Any) -> UnrollBatch:
        """One who is no longer at work learns from what was meant for it, filled up with what weighs nothing."""
        missing = self.size - len(slots)
        whole = np.concatenate([slots, np.repeat(slots[:1], missing)])
        entropy = self.entropy(self.page.env_steps)
        batch = self.unrolls.gather(whole, self.discount, entropy, self.core, self.updates)
        if missing:
            batch.weight[:, len(slots) * self.unrolls.environments :] = 0.0
        return batch

    def _fresh_enough(self, ready: Any) -> Any:
        lag = self.page.updates - self.unrolls.arrays["version"][ready, : self.unrolls.rows].min(axis=1)
        self._drop(ready[lag > self.most_lag])
        return ready[lag <= self.most_lag]

    def _drop(self, stale: Any) -> None:
        if len(stale):
            self.unrolls.free(stale)
            self.page.count("dropped_stale", len(stale))
            self.ring()

    def example(self) -> UnrollBatch:
        """A batch of the right shapes, to compile with."""
        slots = np.zeros(self.size, np.int64)
        return self.unrolls.gather(slots, self.discount, 0.0, self.core, self.updates)

    def skip(self) -> None:
        """What waits is dropped: nobody has the weights any more that it was played with."""
        self._drop(self.unrolls.ready(self.reader))

    def ahead(self) -> None:
        """What comes next is not finished yet."""

    def release(self, sample: UnrollBatch, priority: Any) -> None:  # noqa: ARG002  # the port's name for it
        """The slots are free again."""
        self.unrolls.free(sample.slots)
        self.ring()

    def give_back(self, sample: UnrollBatch) -> None:
        """It was not learned from after all: it is still ready."""

    def settle(self) -> None:
        """What waits, waits on."""

    def state(self) -> dict[str, Any]:
        """Nothing: the order is that of the slots."""
        return {}

    def load_state(self, state: Any) -> None:
        """Nothing to continue."""
