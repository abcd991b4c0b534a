"""Evaluations as the driver asks for them: one at a time, always with a snapshot of the weights."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from repertory.channels.mailbox import Episodes
from repertory.engines.wiring import Wiring


class Evaluated(NamedTuple):
    """An evaluation, the counters behind the weights that it was played with, and those weights."""

    env_steps: int
    updates: int
    episodes: Episodes
    weights: NDArray[np.float32]


class Request(NamedTuple):
    """An evaluation that is asked for: `number` chooses its seeds, `seconds` is how long it may take."""

    number: int
    env_steps: int
    updates: int
    weights: NDArray[np.float32]
    seconds: float


class Evaluations:
    """One evaluation at a time, always with a snapshot of the weights.

    While one is under way, the newest request waits for it and takes the place of an older one that waits: a slow
    evaluator is asked less often, never ever later. An urgent one takes the place of the one under way.
    """

    def __init__(self, wiring: Wiring) -> None:
        self._wiring, self._mailbox = wiring, wiring.evaluation
        self._asked: Request | None = None
        self._under_way: Request | None = None

    def ask(self, index: int, seconds: float = math.inf, *, urgent: bool = False) -> None:
        """Evaluate the weights of now; `index` chooses the seeds."""
        env_steps = self._wiring.counters.total("env_steps")
        updates, weights = self._wiring.topology.weights.latest()
        self._asked = Request(index, env_steps, updates, np.array(weights), seconds)
        if urgent:
            self._under_way = None
        self._send()

    def _send(self) -> None:
        if self._under_way is None and self._asked is not None:
            self._under_way, self._asked = self._asked, None
            self._mailbox.ask(self._under_way.number, self._under_way.weights, self._under_way.seconds)

    def reply(self) -> Evaluated | None:
        """The next evaluation that is done."""
        done = self._under_way
        if done is None or not self._mailbox.replied:
            return None
        episodes = self._mailbox.episodes_played()
        self._under_way = None
        self._send()
        return Evaluated(done.env_steps, done.updates, episodes, done.weights)

    @property
    def waiting(self) -> bool:
        """Whether an evaluation is under way or asked for."""
        return self._under_way is not None or self._asked is not None

    def withdraw(self) -> str:
        """Nobody is there to play it: says which one that was, if there was any."""
        done = self._mailbox.replied
        lost, self._asked = self._asked if done else self._under_way, None
        if not done:
            self._under_way = None
            self._mailbox.withdraw()
        return "" if lost is None else f"evaluation at {lost.env_steps:,} env steps"
