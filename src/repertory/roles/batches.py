"""Batches from a replay in the same process, as many as the replay ratio allows; numpy only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from repertory.experience.pacing import Pacing
from repertory.experience.replay import Sample
from repertory.roles.exploration import generator
from repertory.roles.ports import ExperienceSource


@dataclass(frozen=True)
class Lesson:
    """How a learner draws: batches of `batch_size`, `updates_per_call` at a time, from a memory or as steps come."""

    batch_size: int
    updates_per_call: int
    replay: bool
    prioritized: bool


class Drawer:
    """Draws batches when updates are owed; `env_steps` tells how many steps there were."""

    def __init__(
        self,
        experience: ExperienceSource,
        pacing: Pacing,
        lesson: Lesson,
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
        self.experience, self.pacing, self.lesson = experience, pacing, lesson
        self.importance, self.env_steps = importance, env_steps
        self.rng, self.ring = generator(seed, rank, 2, start), ring
        self._drawn: Sample | None = None

    def owed(self) -> bool:
        """Whether a whole call's updates are owed."""
        return self.pacing.owed(self.env_steps()) >= self.lesson.updates_per_call

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
        if self.lesson.replay and not self.lesson.prioritized:
            self._drawn = self._draw()

    def release(self, sample: Sample, priority: Any) -> None:
        """Hand priorities back, and let actors play on that were ahead of the learner."""
        if self.lesson.prioritized:
            self.experience.update_priorities(sample.lane, sample.slot, np.asarray(priority))
        self.ring()

    def example(self) -> Sample:
        """A sample of the right shapes, to compile with."""
        rows = self.lesson.batch_size * self.lesson.updates_per_call
        at = np.zeros(rows, np.int64)
        return self.experience.gather(at, at, np.ones(rows, np.float32)).split(self.lesson.updates_per_call)

    def give_back(self, sample: Sample) -> None:
        """It was not learned from after all, and is owed again."""
        self.pacing.made(-sample.action.shape[0])

    def settle(self) -> None:
        """Forget what was drawn ahead."""
        self._drawn = None

    def _draw(self) -> Sample | None:
        lesson = self.lesson
        if not lesson.replay:
            sample = self.experience.next(lesson.batch_size)
            return None if sample is None else sample.split(1)
        size = lesson.batch_size * lesson.updates_per_call
        beta = self.importance(self.env_steps()) if lesson.prioritized else 0.0
        return self.experience.sample(size, self.rng, beta, lesson.updates_per_call).split(lesson.updates_per_call)

    def state(self) -> dict[str, Any]:
        """The stream of draws, and how many updates were made."""
        return {"rng": dict(self.rng.bit_generator.state), "updates": self.pacing.updates}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue the stream."""
        self.rng.bit_generator.state = dict(state["rng"])
        self.pacing.updates = int(state["updates"])
