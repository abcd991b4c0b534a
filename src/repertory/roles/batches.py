"""Batches for a learner in the same process: from a replay, as many as the replay ratio allows; or of unrolls, taken
from their slots in the order in which they were finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from repertory.channels.counters import WorkerStats
from repertory.experience.pacing import Pacing
from repertory.experience.replay import Sample
from repertory.experience.unrolls import UnrollBatch, UnrollStorage
from repertory.roles.exploration import generator
from repertory.roles.ports import ExperienceSource


@dataclass(frozen=True)
class SamplerOptions:
    """How a learner draws: batches of `batch_size`, `updates_per_call` at a time, from a memory or as steps come."""

    batch_size: int
    updates_per_call: int
    replay: bool
    prioritized: bool


class BatchSampler:
    """Draws batches when updates are owed; `env_steps` tells how many steps there were."""

    def __init__(
        self,
        experience: ExperienceSource,
        pacing: Pacing,
        options: SamplerOptions,
        importance: Callable[[int], float],
        env_steps: Callable[[], int],
        *,
        seed: int,
        rank: int = 0,
        start: int = 0,
        ring: Callable[[], None] = lambda: None,
    ) -> None:
        """`start` tells the streams of those apart that have the same rank, one after the other; `ring` wakes actors
        that wait for the learner."""
        self.experience, self.pacing, self.options = experience, pacing, options
        self.importance, self.env_steps = importance, env_steps
        self.rng, self.ring = generator(seed, rank, 2, start), ring
        self._drawn: Sample | None = None

    def owed(self) -> bool:
        """Whether a whole call's updates are owed."""
        return self.pacing.owed(self.env_steps()) >= self.options.updates_per_call

    def take(self) -> Sample | None:
        """Batches for one call, if as many updates are owed."""
        if not self.owed():
            return None
        sample, self._drawn = self._drawn or self._draw(), None
        if sample is not None:
            self.pacing.made(sample.action.shape[0])
        return sample

    def ahead(self) -> None:
        """Draw what comes next while the last batch is learned from; prioritised ones wait for its priorities."""
        if self.options.replay and not self.options.prioritized:
            self._drawn = self._draw()

    def release(self, sample: Sample, priority: Any) -> None:
        """Hand priorities back, and let actors play on that were ahead of the learner."""
        if self.options.prioritized:
            self.experience.update_priorities(sample.lane, sample.slot, np.asarray(priority))
        self.ring()

    def example(self) -> Sample:
        """A sample of the right shapes, to compile with."""
        rows = self.options.batch_size * self.options.updates_per_call
        at = np.zeros(rows, np.int64)
        return self.experience.gather(at, at, np.ones(rows, np.float32)).split(self.options.updates_per_call)

    def give_back(self, sample: Sample) -> None:
        """It was not learned from after all, and is owed again."""
        self.pacing.made(-sample.action.shape[0])

    def settle(self) -> None:
        """Forget what was drawn ahead."""
        self._drawn = None

    def _draw(self) -> Sample | None:
        options = self.options
        if not options.replay:
            sample = self.experience.next(options.batch_size)
            return None if sample is None else sample.split(1)
        size = options.batch_size * options.updates_per_call
        beta = self.importance(self.env_steps()) if options.prioritized else 0.0
        return self.experience.sample(size, self.rng, beta, options.updates_per_call).split(options.updates_per_call)

    def state(self) -> dict[str, Any]:
        """The stream of draws, and how many updates were made."""
        return {"rng": dict(self.rng.bit_generator.state), "updates": self.pacing.updates}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue the stream."""
        self.rng.bit_generator.state = dict(state["rng"])
        self.pacing.updates = int(state["updates"])


class UnrollBatches:
    """Takes `size` slots at once; those whose weights are more than `most_lag` updates old are dropped and counted.

    One that is no longer `at_work` does not wait for a whole batch: nobody may send it any more.
    """

    def __init__(
        self,
        unrolls: UnrollStorage,
        size: int,
        stats: WorkerStats,
        *,
        reader: int,
        discount: float,
        state_size: int,
        updates: int,
        entropy: Callable[[int], float],
        ring: Callable[[], None],
        most_lag: int = 0,
        at_work: Callable[[], bool] = lambda: True,
    ) -> None:
        self.unrolls, self.size, self.stats, self.reader = unrolls, size, stats, reader
        self.discount, self.state_size, self.updates, self.entropy = discount, state_size, updates, entropy
        self.ring, self.most_lag, self.at_work = ring, most_lag, at_work

    def take(self) -> UnrollBatch | None:
        """The oldest, if there are enough."""
        ready = self.unrolls.ready(self.reader)
        if self.most_lag and len(ready):
            ready = self._fresh_enough(ready)
        self.stats.queue(len(ready))
        if len(ready) < self.size and (self.at_work() or len(ready) == 0):
            return None
        return self._gathered(ready[: self.size])

    def _gathered(self, slots: Any) -> UnrollBatch:
        """One who is no longer at work learns from what was meant for it, filled up with what weighs nothing."""
        missing = self.size - len(slots)
        whole = np.concatenate([slots, np.repeat(slots[:1], missing)])
        entropy = self.entropy(self.stats.env_steps)
        batch = self.unrolls.gather(whole, self.discount, entropy, self.state_size, self.updates)
        if missing:
            batch.weight[:, len(slots) * self.unrolls.environments :] = 0.0
        return batch

    def _fresh_enough(self, ready: Any) -> Any:
        lag = self.stats.updates - self.unrolls.arrays["version"][ready, : self.unrolls.rows].min(axis=1)
        self._drop(ready[lag > self.most_lag])
        return ready[lag <= self.most_lag]

    def _drop(self, stale: Any) -> None:
        if len(stale):
            self.unrolls.free(stale)
            self.stats.count("dropped_stale", len(stale))
            self.ring()

    def example(self) -> UnrollBatch:
        """A batch of the right shapes, to compile with."""
        slots = np.zeros(self.size, np.int64)
        return self.unrolls.gather(slots, self.discount, 0.0, self.state_size, self.updates)

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
