"""Batches of unrolls, taken from their slots in the order in which they were finished; numpy only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from repertory.experience.unrolls import UnrollBatch, Unrolls
from repertory.roles.ledger import Page


class UnrollBatches:
    """Takes `size` slots at once; those whose weights are more than `most_lag` updates old are dropped and counted."""

    def __init__(
        self,
        unrolls: Unrolls,
        size: int,
        page: Page,
        *,
        reader: int,
        discount: float,
        core: int,
        updates: int,
        entropy: Callable[[int], float],
        ring: Callable[[], None],
        most_lag: int = 0,
    ) -> None:
        self.unrolls, self.size, self.page, self.reader = unrolls, size, page, reader
        self.discount, self.core, self.updates, self.entropy = discount, core, updates, entropy
        self.ring, self.most_lag = ring, most_lag

    def take(self) -> UnrollBatch | None:
        """The oldest, if there are enough."""
        ready = self.unrolls.ready(self.reader)
        if self.most_lag and len(ready):
            ready = self._fresh_enough(ready)
        self.page.set("queue", len(ready))
        if len(ready) < self.size:
            return None
        entropy = self.entropy(self.page.env_steps)
        return self.unrolls.gather(ready[: self.size], self.discount, entropy, self.core, self.updates)

    def _fresh_enough(self, ready: Any) -> Any:
        lag = self.page.updates - self.unrolls.arrays["version"][ready, : self.unrolls.rows].min(axis=1)
        stale = ready[lag > self.most_lag]
        if len(stale):
            self.unrolls.free(stale)
            self.page.count("dropped_stale", len(stale))
            self.ring()
        return ready[lag <= self.most_lag]

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
