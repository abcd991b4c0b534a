"""The learner: takes batches, improves the weights, publishes them; sees only ports.

Target prefetch computes the target network's values of the next batch while the learner is busy with the last: the
target stays as it is for many updates, so its values need not wait for the updates before them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent, Learned, LearnerState, Rollout, Transitions
from repertory.agents.strategy import NumpyForward
from repertory.channels.counters import WorkerStats
from repertory.channels.snapshot import Owner
from repertory.errors import UserError
from repertory.experience.replay import Sample
from repertory.experience.unrolls import UnrollBatch
from repertory.roles.ports import Batches, Publisher, Role, Stopwatch, Unwatched

PATIENCE_S, WITHOUT = 0.02, 50
"""A learner that has waited so long computes the values itself, and so it does for that many batches after it."""


class Queue(Protocol):
    """Where the next batch waits."""

    def next(self) -> Sample | None:
        """The batch after the one in use, if it is there."""


class TargetPrefetch:
    """One batch ahead, as long as the target that was asked is the one that the batch will be learned with."""

    def __init__(self, agent: Agent, queue: Queue, cores: Sequence[int] = ()) -> None:
        """`cores`: where its thread may run, if not wherever this process may."""
        assert agent.numpy_forward is not None
        self.queue = queue
        self._prepare, self._period = agent.numpy_forward, agent.target_period
        self._target: NumpyForward | None = None
        self._epoch = -1
        self._asked: Future[NDArray[np.float32]] | None = None
        self._without = 0
        self._thread = ThreadPoolExecutor(1, "repertory-prefetch", initializer=_keep_to, initargs=(cores,))

    def begin(self, updates: int) -> None:
        """Ask about the batch that begins after so many updates, if the target will still be this one at its end."""
        sample = self.queue.next()
        self._without -= 1
        if sample is None or self._target is None or self._without >= 0:
            return
        if (updates + sample.updates - 1) // self._period == self._epoch:
            self._asked = self._thread.submit(_values, self._target, sample)

    def end(self, learned: LearnerState, updates: int) -> NDArray[np.float32] | None:
        """The values for the batch that begins now, if they were asked for; else the target is looked up."""
        asked, self._asked = self._asked, None
        if updates // self._period != self._epoch:
            self._epoch = updates // self._period
            self._target = self._prepare(np.array(learned.target))
        try:
            return asked.result(PATIENCE_S) if asked is not None else None
        except TimeoutError:
            self._without = WITHOUT
            return None

    def example(self, learned: LearnerState, batch: Any) -> NDArray[np.float32]:
        """Values of the right shape, to compile with."""
        return _values(self._prepare(np.array(learned.target)), batch)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _values(target: NumpyForward, sample: Any) -> NDArray[np.float32]:
    """`[updates, batch, actions]`."""
    seen = sample.next_observation
    rows = target(seen.reshape(-1, *seen.shape[2:]), None)
    return rows.reshape(*seen.shape[:2], -1)


def _keep_to(cores: Sequence[int]) -> None:
    if cores:
        os.sched_setaffinity(0, cores)  # of this thread alone


class Learner(Role):
    """Owns the learner state; everything else learns of it through the weights' board."""

    def __init__(
        self,
        agent: Agent,
        learned: LearnerState,
        batches: Batches,
        weights: Publisher,
        stats: WorkerStats,
        watch: Stopwatch | Unwatched,
        snapshot: Owner | None = None,
        prefetch: TargetPrefetch | None = None,
        *,
        rate: Callable[[int], float],
    ) -> None:
        """`rate` is the learning rate by env steps."""
        self.agent, self.learned, self.batches, self.weights = agent, learned, batches, weights
        self.stats, self.watch, self.snapshot, self.prefetch, self.rate = stats, watch, snapshot, prefetch, rate
        self._untold: list[Learned] = []
        weights.publish(stats.updates, learned.weights)

    def step(self) -> bool:
        """One compiled call of updates, if as many are owed; meanwhile the next batches are drawn."""
        sample = self.batches.take()
        if sample is None:
            return False
        self.watch.lap("sample")
        batch = self._sampler_options(sample)
        if self.prefetch is not None:
            self.prefetch.begin(self.stats.updates + sample.updates)
        self.learned, learned = self.agent.learn(self.learned, batch, self.rate(self.stats.env_steps))
        self._conclude(sample, learned)
        self.watch.lap("learn")
        self.batches.ahead()
        self.watch.lap("sample")
        return True

    def warm_up(self) -> None:
        """Compile before the clock runs, on a copy of the state: changes nothing."""
        batch = agent_batch(self.batches.example())
        self._compile(batch)
        if self.prefetch is not None and isinstance(batch, Transitions):
            self._compile(batch._replace(bootstrap=self.prefetch.example(self.learned, batch)))

    def _compile(self, batch: Transitions | Rollout) -> None:
        copied = jax.tree_util.tree_map(jnp.array, self.learned)
        self.agent.learn(copied, batch, self.rate(self.stats.env_steps))

    def _sampler_options(self, sample: Sample | UnrollBatch) -> Transitions | Rollout:
        """With what the target says of it, if that is known."""
        batch = agent_batch(sample)
        if self.prefetch is None or isinstance(batch, Rollout):
            return batch
        return batch._replace(bootstrap=self.prefetch.end(self.learned, self.stats.updates))

    def _conclude(self, sample: Sample | UnrollBatch, learned: Learned) -> None:
        """Tell the board, the replay and the ledger.

        Updates count while they are still being computed, so that those who play need not wait. Publishing to another
        process waits for them, so then their losses are there; in one thread, those of the last updates come later.
        """
        stats = self.stats
        stats.lag(stats.updates - sample.version.astype(np.int64))
        stats.learned(sample.updates)
        stats.sampled(sample.steps)
        self.weights.publish(stats.updates, self.learned.weights)
        self.batches.release(sample, learned.priority)
        self._untold.append(learned)
        self.tell_losses(wait=False)
        if self.snapshot is not None and self.snapshot.due:
            self.snapshot.save(self.learned)

    def tell_losses(self, *, wait: bool = True) -> None:
        """Losses, norms and values go into the ledger: all of them, or those that are computed already."""
        while self._untold and (wait or _computed(self._untold[0])):
            learned = self._untold.pop(0)
            self.stats.loss(learned.loss, learned.entropy, learned.value)
            assert learned.gradient_norm is not None  # every `learn` gives it
            self.stats.gradient_norm(learned.gradient_norm, self.agent.max_gradient_norm)
            if not np.isfinite(learned.gradient_norm).all():
                self.stats.set("skipped", int(self.learned.skipped))

    def settle(self) -> None:
        """Before a pause or a checkpoint: all losses told, nothing drawn ahead, the state in the snapshot."""
        self.tell_losses()
        self.batches.settle()
        if self.snapshot is not None:
            self.snapshot.save(self.learned)

    def check(self) -> None:
        """Refuse to go on, or to save, with weights that are not numbers."""
        check_finite(np.asarray(self.learned.weights), self.stats.updates)

    def state(self) -> dict[str, Any]:
        """What lies in no snapshot."""
        return {"batches": self.batches.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue the batches."""
        self.batches.load_state(state["batches"])

    def replace(self, learned: LearnerState) -> None:
        """Go on from another state."""
        self.learned = learned
        self.weights.publish(self.stats.updates, learned.weights)

    def close(self) -> None:
        """End the thread of the target prefetch."""
        if self.prefetch is not None:
            self.prefetch.close()


def _computed(learned: Learned) -> bool:
    told: tuple[Any, ...] = (learned.loss, learned.gradient_norm)
    return all(not isinstance(x, jax.Array) or bool(x.is_ready()) for x in told)  # type: ignore[attr-defined]


def agent_batch(sample: Sample | UnrollBatch) -> Transitions | Rollout:
    """What an agent learns from, without what only the roles need."""
    return Rollout(*sample[:10]) if isinstance(sample, UnrollBatch) else Transitions(*sample[:8])


def check_finite(weights: np.ndarray[Any, Any], updates: int) -> None:
    """Publisher that are not numbers are a user's error: too large steps."""
    if not np.isfinite(weights).all():
        raise UserError(
            f"the weights are not finite after {updates} updates; "
            "lower --agent.learning-rate or scale the environment's rewards"
        )
