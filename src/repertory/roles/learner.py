"""The learner: takes batches, improves the weights, publishes them; sees only ports.

Target prefetch computes the target network's values of the next batch while the learner is busy with the last one: the
target changes once in many updates, so its values need not wait for the updates before them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent, Learned, LearnerState, Rollout, Transitions
from repertory.agents.strategy import NumpyForward
from repertory.channels.counters import WorkerStats
from repertory.channels.slots import Batches, BatchReader
from repertory.channels.snapshot import Owner
from repertory.errors import UserError
from repertory.experience.replay import Sample
from repertory.experience.unrolls import UnrollBatch
from repertory.roles.ports import Publisher, Role, Stopwatch, Unwatched

PATIENCE_S, WITHOUT = 0.02, 50
"""After `PATIENCE_S` seconds of waiting, a learner computes the values itself, also for `WITHOUT` more batches."""


class TargetPrefetch:
    """Works one batch ahead, as long as the target will be the same when that batch is learned from."""

    def __init__(self, agent: Agent, queue: BatchReader, cores: Sequence[int] = ()) -> None:
        """`cores`: where its thread may run; empty = wherever this process may."""
        assert agent.numpy_forward is not None
        self.queue = queue
        self._prepare, self._period = agent.numpy_forward, agent.target_period
        self._target: NumpyForward | None = None
        self._epoch = -1
        self._pending: Future[NDArray[np.float32]] | None = None
        self._without = 0
        self._thread = ThreadPoolExecutor(1, "repertory-prefetch", initializer=_keep_to, initargs=(cores,))

    def begin(self, updates: int) -> None:
        """Start on the batch that begins after so many updates, if its target is known by now."""
        sample = self.queue.next()
        self._without -= 1
        if sample is None or self._target is None or self._without >= 0:
            return
        if (updates + sample.updates - 1) // self._period == self._epoch:
            self._pending = self._thread.submit(_values, self._target, sample)

    def end(self, learned: LearnerState, updates: int) -> NDArray[np.float32] | None:
        """The values for the batch that begins now, if they were prefetched; takes over a new target."""
        pending, self._pending = self._pending, None
        if updates // self._period != self._epoch:
            self._epoch = updates // self._period
            self._target = self._prepare(np.array(learned.target))
        try:
            return pending.result(PATIENCE_S) if pending is not None else None
        except TimeoutError:
            self._without = WITHOUT
            return None

    def example(self, learned: LearnerState, batch: Any) -> NDArray[np.float32]:
        return _values(self._prepare(np.array(learned.target)), batch)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _values(target: NumpyForward, sample: Any) -> NDArray[np.float32]:
    """`[updates, batch, actions]`."""
    seen = sample.next_observation
    rows = target(seen.reshape(-1, *seen.shape[2:]), None)
    return rows.reshape(*seen.shape[:2], -1)


def _keep_to(cores: Sequence[int]) -> None:
    if cores:
        os.sched_setaffinity(0, cores)  # of this thread alone


@dataclass(eq=False)
class Learner(Role):
    """Owns the learner state; other workers see it through published weights."""

    agent: Agent
    learned: LearnerState
    batches: Batches
    weights: Publisher
    stats: WorkerStats
    watch: Stopwatch | Unwatched
    snapshot: Owner | None = None
    prefetch: TargetPrefetch | None = None
    rate: Callable[[int], float] = field(kw_only=True)
    """The learning rate by env steps."""

    def __post_init__(self) -> None:
        self._unreported: list[Learned] = []
        self.weights.publish(self.stats.updates, self.learned.weights)

    def step(self) -> bool:
        """One compiled call of updates, if as many are owed; meanwhile the next batches are sampled."""
        sample = self.batches.take()
        if sample is None:
            return False
        self.watch.lap("sample")
        batch = self._with_targets(sample)
        if self.prefetch is not None:
            self.prefetch.begin(self.stats.updates + sample.updates)
        self.learned, learned = self.agent.learn(self.learned, batch, self.rate(self.stats.env_steps))
        self._conclude(sample, learned)
        self.watch.lap("learn")
        self.batches.ahead()
        self.watch.lap("sample")
        return True

    def warm_up(self) -> None:
        """On a copy of the state."""
        batch = agent_batch(self.batches.example())
        self._compile(batch)
        if self.prefetch is not None and isinstance(batch, Transitions):
            self._compile(batch._replace(bootstrap=self.prefetch.example(self.learned, batch)))

    def _compile(self, batch: Transitions | Rollout) -> None:
        copied = jax.tree_util.tree_map(jnp.array, self.learned)
        self.agent.learn(copied, batch, self.rate(self.stats.env_steps))

    def _with_targets(self, sample: Sample | UnrollBatch) -> Transitions | Rollout:
        """The batch, with the target network's values if they were prefetched."""
        batch = agent_batch(sample)
        if self.prefetch is None or isinstance(batch, Rollout):
            return batch
        return batch._replace(bootstrap=self.prefetch.end(self.learned, self.stats.updates))

    def _conclude(self, sample: Sample | UnrollBatch, learned: Learned) -> None:
        """Count, publish, release the batch.

        Updates count while they are still being computed, so that actors need not wait. Publishing to another process
        waits for them, so then their losses are known; in one thread, those of the last updates come later.
        """
        stats = self.stats
        stats.lag(stats.updates - sample.version.astype(np.int64))
        stats.learned(sample.updates)
        stats.sampled(sample.steps)
        self.weights.publish(stats.updates, self.learned.weights)
        self.batches.release(sample, learned.priority)
        self._unreported.append(learned)
        self.tell_losses(wait=False)
        if self.snapshot is not None and self.snapshot.due:
            self.snapshot.save(self.learned)

    def tell_losses(self, *, wait: bool = True) -> None:
        """Count losses, norms and values of all updates, or of those that are computed already."""
        while self._unreported and (wait or _computed(self._unreported[0])):
            learned = self._unreported.pop(0)
            self.stats.loss(learned.loss, learned.entropy, learned.value)
            assert learned.gradient_norm is not None  # every `learn` gives it
            self.stats.gradient_norm(learned.gradient_norm, self.agent.max_gradient_norm)
            if not np.isfinite(learned.gradient_norm).all():
                self.stats.set("skipped", int(self.learned.skipped))

    def settle(self) -> None:
        """All losses counted, nothing sampled ahead, the state in the snapshot."""
        self.tell_losses()
        self.batches.settle()
        if self.snapshot is not None:
            self.snapshot.save(self.learned)

    def state(self) -> dict[str, Any]:
        return {"batches": self.batches.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.batches.load_state(state["batches"])

    def close(self) -> None:
        if self.prefetch is not None:
            self.prefetch.close()


def _computed(learned: Learned) -> bool:
    loss: Any = learned.loss  # one program computes all its numbers
    return not isinstance(loss, jax.Array) or bool(loss.is_ready())  # type: ignore[attr-defined]


def agent_batch(sample: Sample | UnrollBatch) -> Transitions | Rollout:
    """The arrays that an agent learns from."""
    return Rollout(*sample[:10]) if isinstance(sample, UnrollBatch) else Transitions(*sample[:8])


def check_finite(weights: np.ndarray[Any, Any], updates: int) -> None:
    if not np.isfinite(weights).all():
        raise UserError(
            f"the weights are not finite after {updates} updates; "
            "lower --agent.learning-rate or scale the environment's rewards"
        )


def one_batch(sample: Sample | UnrollBatch) -> Transitions | Rollout:
    """The only batch of a sample, for `Agent.gradient`."""
    return agent_batch(sample.batch() if isinstance(sample, Sample) and sample.weight.ndim > 1 else sample)


def count_gradient(stats: WorkerStats, sample: Sample | UnrollBatch, version: int, learned: Learned) -> None:
    """Count one gradient, computed with weights of this version."""
    stats.count("gradients")
    stats.sampled(sample.steps)
    stats.lag(version - sample.versions())
    stats.loss(learned.loss, learned.entropy, learned.value)
