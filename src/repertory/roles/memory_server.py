"""The memory server: draws batches from everybody's lanes and keeps their priorities; sees only ports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from repertory.channels.counters import WorkerStats
from repertory.experience.replay import Sample
from repertory.roles.batches import BatchSampler
from repertory.roles.ports import Role


class Outgoing(Protocol):
    """Batches on their way to a learner; freed ones bring errors back."""

    count: int

    @property
    def filled(self) -> int:
        """Batches put in."""

    @property
    def freed(self) -> int:
        """Batches that the learner is done with."""

    def put(self, sample: Sample) -> None:
        """One more."""

    def errors(self, batch: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """LaneStorage, slots and errors of a freed batch."""


class MemoryServer(Role):
    """Fills the outgoing slots as the replay ratio allows, and takes errors back.

    `wake_at` tells the actors how many env steps it waits for, so that they do not wake it for less.
    """

    def __init__(
        self, sampler: BatchSampler, outgoing: Outgoing, stats: WorkerStats, wake_at: Callable[[int | None], None]
    ) -> None:
        self.sampler, self.outgoing, self.stats, self.wake_at = sampler, outgoing, stats, wake_at
        self._absorbed = outgoing.freed

    def warm_up(self) -> None:
        """Nothing is compiled."""

    def step(self) -> bool:
        """Take back the errors that have come; then draw one batch, if it is owed and there is a slot."""
        worked = self._absorb()
        self.stats.queue(self.outgoing.filled - self.outgoing.freed)
        if self.outgoing.filled - self._absorbed >= self.outgoing.count:
            self.wake_at(None)
            return worked
        self._count()
        self.wake_at(self.sampler.pacing.due_at(self.sampler.options.updates_per_call))
        sample = self.sampler.take()
        if sample is None:
            return worked
        self.outgoing.put(sample.flat())
        return True

    def _count(self) -> None:
        """Updates made or on their way, from what all see: a learner that was killed has lost some, and owes them."""
        on_their_way = self.outgoing.filled - self.outgoing.freed
        self.sampler.pacing.updates = self.stats.updates + on_their_way * self.sampler.options.updates_per_call

    def _absorb(self) -> bool:
        freed = self.outgoing.freed
        for batch in range(self._absorbed, freed):
            if self.sampler.options.prioritized:
                self.sampler.experience.update_priorities(*self.outgoing.errors(batch))
        worked, self._absorbed = freed > self._absorbed, freed
        return worked

    def settle(self) -> None:
        """Take in the errors that have come; what is on its way stays on its way."""
        self._absorb()
        self.sampler.settle()

    def state(self) -> dict[str, Any]:
        """The stream of draws."""
        return {"sampler": self.sampler.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue the stream."""
        self.sampler.load_state(state["sampler"])

    def close(self) -> None:
        """Nothing to free."""
