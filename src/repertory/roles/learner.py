"""The learner: draws batches, improves the weights, publishes them; sees only ports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent, Learned, Transitions
from repertory.errors import UserError
from repertory.experience.pacing import Pacing
from repertory.experience.replay import Sample
from repertory.roles.exploration import generator
from repertory.roles.ports import Counters, ExperienceSource, Weights
from repertory.roles.stopwatch import Stopwatch


@dataclass(frozen=True)
class Lesson:
    """How a learner draws: batches of `batch_size`, `updates_per_call` at a time, from a memory or as steps come."""

    batch_size: int
    updates_per_call: int
    replay: bool
    prioritized: bool


class Learner:
    """Owns the learner state; everything else learns of it through the weights' board."""

    def __init__(
        self,
        agent: Agent,
        experience: ExperienceSource,
        weights: Weights,
        counters: Counters,
        pacing: Pacing,
        lesson: Lesson,
        importance: Callable[[int], float],
        *,
        seed: int,
        watch: Stopwatch,
    ) -> None:
        self.agent, self.experience, self.weights = agent, experience, weights
        self.counters, self.pacing, self.lesson, self.importance = counters, pacing, lesson, importance
        self.watch, self.rng = watch, generator(seed, 0, 2)
        self.learned = agent.init(seed)
        self._losses: list[jax.Array] = []
        self._loss_sum, self._loss_count = 0.0, 0
        self.lag: NDArray[np.int64] = np.zeros(0, np.int64)
        self._drawn: Sample | None = None
        weights.publish(0, self.learned.weights)

    def step(self) -> bool:
        """One compiled call of updates, if as many are owed.

        The call runs by itself; meanwhile the next batches are drawn. Prioritised ones wait for its priorities.
        """
        lesson = self.lesson
        if self.pacing.owed(self.counters.env_steps) < lesson.updates_per_call:
            return False
        sample = self._drawn or self._draw()
        if sample is None:
            return False
        self.watch.lap("sample")
        self.learned, learned = self.agent.learn(self.learned, Transitions(*sample[:8]))
        self._conclude(sample, learned)
        self.watch.lap("learn")
        self._drawn = self._draw() if lesson.replay and not lesson.prioritized else None
        self.watch.lap("sample")
        return True

    def settle(self) -> None:
        """Forget what was drawn ahead, so that nothing but the state decides what comes next."""
        self._drawn = None

    def _draw(self) -> Sample | None:
        lesson = self.lesson
        if not lesson.replay:
            sample = self.experience.next(lesson.batch_size)
            return None if sample is None else sample.split(1)
        size = lesson.batch_size * lesson.updates_per_call
        beta = self.importance(self.counters.env_steps) if lesson.prioritized else 0.0
        return self.experience.sample(size, self.rng, beta).split(lesson.updates_per_call)

    def _conclude(self, sample: Sample, learned: Learned) -> None:
        """Tell the replay, the board and the counters."""
        if self.lesson.prioritized:
            self.experience.update_priorities(sample.lane, sample.slot, np.asarray(learned.priority))
        self.lag = self.counters.updates - sample.version.astype(np.int64)
        updates = sample.action.shape[0]
        self.pacing.made(updates)
        self.counters.updates += updates
        self._losses.append(learned.loss)
        if len(self._losses) >= 64:
            self._add_up_losses()
        self.weights.publish(self.counters.updates, self.learned.weights)

    def _add_up_losses(self) -> None:
        """Losses stay on the device until there are many: fetching each would wait for its update."""
        for loss in self._losses:
            values = np.asarray(loss)
            self._loss_sum += float(values.sum())
            self._loss_count += values.size
        self._losses = []

    def mean_loss(self) -> float | None:
        """Mean loss of the updates since the last call."""
        self._add_up_losses()
        mean = self._loss_sum / self._loss_count if self._loss_count else None
        self._loss_sum, self._loss_count = 0.0, 0
        return mean

    def check(self) -> None:
        """Refuse to go on, or to save, with weights that are not numbers."""
        if not np.isfinite(np.asarray(self.learned.weights)).all():
            raise UserError(
                f"the weights are not finite after {self.counters.updates} updates; "
                "lower --agent.learning-rate or scale the environment's rewards"
            )

    def state(self) -> dict[str, Any]:
        """Everything that learning changed, as arrays."""
        leaves = jax.tree_util.tree_leaves(self.learned)
        arrays = {f"{index:02d}": np.asarray(leaf) for index, leaf in enumerate(leaves)}
        return {"learned": arrays, "rng": dict(self.rng.bit_generator.state), "updates": self.pacing.updates}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint of an agent with the same layout."""
        leaves, structure = jax.tree_util.tree_flatten(self.learned)
        saved = [np.asarray(state["learned"][name]) for name in sorted(state["learned"])]
        if [x.shape for x in saved] != [x.shape for x in leaves]:
            raise UserError(
                "the checkpoint's network differs from this configuration's; resume with the options "
                "it was started with"
            )
        self.learned = jax.tree_util.tree_unflatten(structure, [jax.numpy.array(x) for x in saved])
        self.rng.bit_generator.state = dict(state["rng"])
        self.pacing.updates = int(state["updates"])
        self.weights.publish(self.counters.updates, self.learned.weights)
