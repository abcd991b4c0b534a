"""The learner: takes batches, improves the weights, publishes them; sees only ports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from repertory.agents.agent import Agent, Learned, LearnerState, Rollout, Transitions
from repertory.errors import UserError
from repertory.experience.replay import Sample
from repertory.experience.unrolls import UnrollBatch
from repertory.roles.foresight import Foresight
from repertory.roles.ledger import Page
from repertory.roles.ports import Batches, Weights
from repertory.roles.safe import Safe
from repertory.roles.stopwatch import Stopwatch, Unwatched

LOSSES_AT_ONCE = 64
"""Losses stay on the device until there are so many: fetching each would wait for its update."""


class Learner:
    """Owns the learner state; everything else learns of it through the weights' board."""

    def __init__(
        self,
        agent: Agent,
        learned: LearnerState,
        batches: Batches,
        weights: Weights,
        page: Page,
        watch: Stopwatch | Unwatched,
        safe: Safe | None = None,
        foresight: Foresight | None = None,
    ) -> None:
        self.agent, self.learned, self.batches, self.weights = agent, learned, batches, weights
        self.page, self.watch, self.safe, self.foresight = page, watch, safe, foresight
        self._losses: list[tuple[Any, Any]] = []
        weights.publish(page.updates, learned.weights)

    def step(self) -> bool:
        """One compiled call of updates, if as many are owed; meanwhile the next batches are drawn."""
        sample = self.batches.take()
        if sample is None:
            return False
        self.watch.lap("sample")
        batch = self._lesson(sample)
        if self.foresight is not None:
            self.foresight.begin(self.page.updates + sample.updates)
        self.learned, learned = self.agent.learn(self.learned, batch)
        self._conclude(sample, learned)
        self.watch.lap("learn")
        self.batches.ahead()
        self.watch.lap("sample")
        return True

    def _lesson(self, sample: Sample | UnrollBatch) -> Transitions | Rollout:
        """With what the target says of it, if that is known."""
        batch = lesson(sample)
        if self.foresight is None or isinstance(batch, Rollout):
            return batch
        return batch._replace(bootstrap=self.foresight.end(self.learned, self.page.updates))

    def _conclude(self, sample: Sample | UnrollBatch, learned: Learned) -> None:
        """Tell the board, the replay and the ledger."""
        page = self.page
        page.lag(page.updates - sample.version.astype(np.int64))
        page.learned(sample.updates)
        self.weights.publish(page.updates, self.learned.weights)
        self.batches.release(sample, learned.priority)
        self._losses.append((learned.loss, learned.entropy))
        if len(self._losses) >= LOSSES_AT_ONCE:
            self.add_up_losses()
        if self.safe is not None and self.safe.due():
            self.safe.save(self.learned)

    def add_up_losses(self) -> None:
        """Into the ledger."""
        for loss, entropy in self._losses:
            values = np.asarray(loss)
            self.page.loss(float(values.sum()), values.size, float(np.asarray(entropy).sum()))
        self._losses = []
        self.page.set("skipped", int(self.learned.skipped))

    def settle(self) -> None:
        """Before a pause or a checkpoint: all losses told, nothing drawn ahead, the state in the safe."""
        self.add_up_losses()
        self.batches.settle()
        if self.safe is not None:
            self.safe.save(self.learned)

    def check(self) -> None:
        """Refuse to go on, or to save, with weights that are not numbers."""
        check_finite(np.asarray(self.learned.weights), self.page.updates)

    def state(self) -> dict[str, Any]:
        """What lies in no safe."""
        return {"batches": self.batches.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue the batches."""
        self.batches.load_state(state["batches"])

    def replace(self, learned: LearnerState) -> None:
        """Go on from another state."""
        self.learned = learned
        self.weights.publish(self.page.updates, learned.weights)

    def close(self) -> None:
        """End the thread that looks ahead."""
        if self.foresight is not None:
            self.foresight.close()


def lesson(sample: Sample | UnrollBatch) -> Transitions | Rollout:
    """What an agent learns from, without what only the roles need."""
    return Rollout(*sample[:10]) if isinstance(sample, UnrollBatch) else Transitions(*sample[:8])


def check_finite(weights: np.ndarray[Any, Any], updates: int) -> None:
    """Weights that are not numbers are a user's error: too large steps."""
    if not np.isfinite(weights).all():
        raise UserError(
            f"the weights are not finite after {updates} updates; "
            "lower --agent.learning-rate or scale the environment's rewards"
        )
