"""Where learners get their batches: sampled from a replay as the replay ratio allows, or unrolls in the order in which
they were finished. A memory server samples for a learner in another process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from repertory.channels.counters import WorkerStats
from repertory.channels.slots import Batches, BatchWriter
from repertory.experience.replay import Replay, Sample
from repertory.experience.unrolls import UnrollBatch, UnrollStorage
from repertory.roles.policies import generator
from repertory.roles.ports import Role


@dataclass
class Pacing:
    """Which updates the replay ratio (samples learned per env step) allows, from `learning_starts` on.

    It holds whatever the speeds of actors and learners: more actors change how fast a run learns, not how much it
    learns from a step.
    """

    replay_ratio: float
    batch_size: int
    learning_starts: int
    updates: int = 0

    def owed(self, env_steps: int) -> int:
        """Updates that may be made now; a late start is not caught up in a burst."""
        seen = env_steps - self.learning_starts
        return max(0, int(seen * self.replay_ratio / self.batch_size) - self.updates)

    def due_at(self, updates: int) -> int:
        """The first count of env steps at which so many more updates will be owed."""
        at = self.learning_starts + math.floor((self.updates + updates) * self.batch_size / self.replay_ratio) - 1
        while self.owed(at) < updates:  # a step or two: division rounds
            at += 1
        return at

    def made(self, updates: int) -> None:
        self.updates += updates


@dataclass(frozen=True)
class SamplerOptions:
    """Batches of `batch_size`, `updates_per_call` at a time, from a replay or each step once as it comes."""

    batch_size: int
    updates_per_call: int
    replay: bool
    prioritized: bool


class BatchSampler(Batches):
    """Samples batches when updates are owed for `env_steps()`."""

    def __init__(
        self,
        experience: Replay,
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
        """`start` makes the random streams of workers different that have the same rank, one after the other; `ring`
        wakes actors that wait for the learner."""
        self.experience, self.pacing, self.options = experience, pacing, options
        self.importance, self.env_steps = importance, env_steps
        self.rng, self.ring = generator(seed, rank, 2, start), ring
        self._sampled: Sample | None = None

    def owed(self) -> bool:
        """Whether the updates of a whole call are owed."""
        return self.pacing.owed(self.env_steps()) >= self.options.updates_per_call

    def take(self) -> Sample | None:
        """Batches for one call, if as many updates are owed."""
        if not self.owed():
            return None
        sample, self._sampled = self._sampled or self._sample(), None
        if sample is not None:
            self.pacing.made(sample.updates)
        return sample

    def ahead(self) -> None:
        """Prioritised batches wait for the priorities of the last one."""
        if self.options.replay and not self.options.prioritized:
            self._sampled = self._sample()

    def release(self, sample: Sample, priority: Any) -> None:
        if self.options.prioritized:
            self.experience.update_priorities(sample.lane, sample.slot, np.asarray(priority))
        self.ring()

    def example(self) -> Sample:
        rows = self.options.batch_size * self.options.updates_per_call
        at = np.zeros(rows, np.int64)
        return self.experience.gather(at, at, np.ones(rows, np.float32)).split(self.options.updates_per_call)

    def give_back(self, sample: Sample) -> None:
        self.pacing.made(-sample.updates)

    def settle(self) -> None:
        self._sampled = None

    def _sample(self) -> Sample | None:
        options = self.options
        if not options.replay:
            sample = self.experience.next(options.batch_size)
            return None if sample is None else sample.split(1)
        size = options.batch_size * options.updates_per_call
        beta = self.importance(self.env_steps()) if options.prioritized else 0.0
        return self.experience.sample(size, self.rng, beta, options.updates_per_call).split(options.updates_per_call)

    def state(self) -> dict[str, Any]:
        return {"rng": dict(self.rng.bit_generator.state), "updates": self.pacing.updates}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.rng.bit_generator.state = dict(state["rng"])
        self.pacing.updates = int(state["updates"])


class MemoryServer(Role):
    """Fills the slots of batches as the replay ratio allows, and takes back the errors of freed ones.

    `wake_at` tells the actors how many env steps it waits for, so that they do not wake it for less.
    """

    def __init__(
        self, sampler: BatchSampler, outgoing: BatchWriter, stats: WorkerStats, wake_at: Callable[[int | None], None]
    ) -> None:
        self.sampler, self.outgoing, self.stats, self.wake_at = sampler, outgoing, stats, wake_at
        self._absorbed = outgoing.freed

    def step(self) -> bool:
        """Take back the errors that have come; then sample one batch, if it is owed and a slot is free."""
        worked, outgoing, sampler = self._absorb(), self.outgoing, self.sampler
        waiting = outgoing.filled - outgoing.freed
        self.stats.queue(waiting)
        if outgoing.filled - self._absorbed >= outgoing.count:
            self.wake_at(None)
            return worked
        # Updates made or on their way, from shared counts: a learner that was killed has lost some, and owes them.
        sampler.pacing.updates = self.stats.updates + waiting * sampler.options.updates_per_call
        self.wake_at(sampler.pacing.due_at(sampler.options.updates_per_call))
        sample = sampler.take()
        if sample is None:
            return worked
        outgoing.put(sample.flat())
        return True

    def _absorb(self) -> bool:
        freed = self.outgoing.freed
        for batch in range(self._absorbed, freed):
            if self.sampler.options.prioritized:
                self.sampler.experience.update_priorities(*self.outgoing.errors(batch))
        worked, self._absorbed = freed > self._absorbed, freed
        return worked

    def settle(self) -> None:
        self._absorb()
        self.sampler.settle()

    def state(self) -> dict[str, Any]:
        return {"sampler": self.sampler.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.sampler.load_state(state["sampler"])


@dataclass(eq=False)
class UnrollBatches(Batches):
    """Takes `size` slots at once. Slots whose weights are more than `most_lag` updates old are dropped and counted.

    A worker that is no longer `at_work` does not wait for a whole batch, since no more unrolls may be sent to it.
    """

    unrolls: UnrollStorage
    size: int
    stats: WorkerStats
    _: KW_ONLY
    reader: int
    discount: float
    state_size: int
    updates: int
    entropy: Callable[[int], float]
    ring: Callable[[], None]
    most_lag: int = 0
    at_work: Callable[[], bool] = lambda: True

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
        """A batch of too few slots is filled up with rows of weight 0."""
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
        slots = np.zeros(self.size, np.int64)
        return self.unrolls.gather(slots, self.discount, 0.0, self.state_size, self.updates)

    def skip(self) -> None:
        """Drop the unrolls that wait: the weights that played them are lost."""
        self._drop(self.unrolls.ready(self.reader))

    def release(self, sample: UnrollBatch, priority: Any) -> None:  # noqa: ARG002
        self.unrolls.free(sample.slots)
        self.ring()
