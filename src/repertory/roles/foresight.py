"""What the target network says of the next lesson, asked for while the last one is still being learned from.

The target stays as it is for many updates, so its answers need not wait for the updates before them. Where a core is
free, a thread has them ready: a fifth of a small network's update. NumPy answers, because XLA runs the calls on one
device one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent, LearnerState
from repertory.agents.light import LightValues
from repertory.experience.replay import Sample

PATIENCE_S, WITHOUT = 0.02, 50
"""Who has waited so long for an answer computes it without help, and so do that many lessons after it."""


class Queue(Protocol):
    """Where the next lesson waits."""

    def next(self) -> Sample | None:
        """The one after that which is being learned from, if it is there."""


class Foresight:
    """One lesson ahead, as long as the target that was asked is the one that the lesson will be learned with."""

    def __init__(self, agent: Agent, queue: Queue, cores: Sequence[int] = ()) -> None:
        """`cores`: where its thread may run, if not wherever this process may."""
        assert agent.light is not None
        self.queue = queue
        self._prepare, self._period = agent.light, agent.target_period
        self._target: LightValues | None = None
        self._epoch = -1
        self._asked: Future[NDArray[np.float32]] | None = None
        self._without = 0
        self._thread = ThreadPoolExecutor(1, "repertory-foresight", initializer=_keep_to, initargs=(cores,))

    @staticmethod
    def possible(agent: Agent) -> bool:
        """Whether the target stays for a while, and NumPy can answer for it."""
        return agent.target_period > 0 and agent.light is not None

    def begin(self, updates: int) -> None:
        """Ask about the lesson that begins after so many updates, if the target will still be this one at its end."""
        sample = self.queue.next()
        self._without -= 1
        if sample is None or self._target is None or self._without >= 0:
            return
        if (updates + sample.updates - 1) // self._period == self._epoch:
            self._asked = self._thread.submit(_answers, self._target, sample)

    def end(self, learned: LearnerState, updates: int) -> NDArray[np.float32] | None:
        """The answers for the lesson that begins now, if they were asked for; else the target is looked up."""
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
        """Answers of the right shape, to compile with."""
        return _answers(self._prepare(np.array(learned.target)), batch)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _answers(target: LightValues, sample: Any) -> NDArray[np.float32]:
    """`[updates, batch, actions]`."""
    seen = sample.next_observation
    rows = target(seen.reshape(-1, *seen.shape[2:]), None)
    return rows.reshape(*seen.shape[:2], -1)


def _keep_to(cores: Sequence[int]) -> None:
    if cores:
        os.sched_setaffinity(0, cores)  # of this thread alone
