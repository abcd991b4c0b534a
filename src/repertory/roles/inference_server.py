"""Answers the questions of actors without networks, several at once; sees only ports.

GA3C's predictor, SEED RL's inference, Sample Factory's policy worker: they differ in how many there are, in who learns
beside them, and in whether they wait for company.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from repertory.channels.counters import WorkerStats
from repertory.channels.mailbox import InferenceReply, InferenceRequest
from repertory.roles.inference import GreedyActions, SampledActions
from repertory.roles.ports import Role, Weights

GLANCE_S = 0.0002
"""While a server waits for more questions it looks again after so long."""


class Questions(Protocol):
    """Where the questions are."""

    def waiting(self) -> list[int]:
        """Who waits for this server."""

    def read(self, askers: Sequence[int]) -> tuple[InferenceRequest, list[int]]:
        """The questions of these, one behind the other, and their numbers."""

    def reply(self, askers: Sequence[int], numbers: Sequence[int], reply: InferenceReply, version: int) -> None:
        """InferenceReply them."""


class InferenceServer(Role):
    """Takes the questions that are there, or waits up to `patience_s` until `least` askers have one.

    Patience is counted in glances, not by the clock: members that take turns in one thread repeat to the bit.
    """

    def __init__(
        self,
        inference: GreedyActions | SampledActions,
        weights: Weights,
        requests: Questions,
        stats: WorkerStats,
        *,
        most: int = 1,
        least: int = 1,
        patience_s: float = 0.0,
    ) -> None:
        """`most` askers may wait at once."""
        self.inference, self.weights, self.requests, self.stats = inference, weights, requests, stats
        self.most, self.least = most, least
        self.patience = round(patience_s / GLANCE_S)
        self.version = -1
        self._glances = 0

    def warm_up(self) -> None:
        """Compile for each number of askers that are answered at once; answers nobody."""
        self._pull()
        for power in range(self.most.bit_length()):
            request, _ = self.requests.read(range(1 << power))
            self.inference.warm_up(request)

    def step(self) -> bool:
        """InferenceReply whoever waits."""
        waiting = self.requests.waiting()
        if not waiting:
            return False
        if len(waiting) < self.least and self._glances < self.patience:
            self._glances += 1
            time.sleep(GLANCE_S)
            return True
        self._glances = 0
        self.stats.queue(len(waiting))
        self._pull()
        while waiting:
            size = 1 << (len(waiting).bit_length() - 1)  # few sizes, so few compilations, and nothing is padded
            some, waiting = waiting[:size], waiting[size:]
            request, numbers = self.requests.read(some)
            self.requests.reply(some, numbers, self.inference.reply(request), self.version)
        return True

    def _pull(self) -> None:
        version, weights = self.weights.latest()
        if version != self.version:
            self.version = version
            self.inference.load(weights)

    def settle(self) -> None:
        """Nothing of a server must be put away."""

    def state(self) -> dict[str, Any]:
        """The stream of draws."""
        return (
            {"rng": dict(self.inference.rng.bit_generator.state)} if isinstance(self.inference, SampledActions) else {}
        )

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue the stream."""
        if isinstance(self.inference, SampledActions) and "rng" in state:
            self.inference.rng.bit_generator.state = dict(state["rng"])

    def close(self) -> None:
        """Nothing to free."""
