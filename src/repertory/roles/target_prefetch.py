"""Target prefetch: the target network's values of the next batch, computed while the learner is busy with the last.

The target stays as it is for many updates, so its values need not wait for the updates before them. Where a core is
free, a thread has them ready: a fifth of a small network's update. NumPy computes them, because XLA runs the calls on
one device one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent, LearnerState
from repertory.agents.numpy_forward import NumpyForward
from repertory.experience.replay import Sample

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
