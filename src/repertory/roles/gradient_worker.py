"""A worker that computes gradients and sends them to parameter servers; sees only ports.

Downpour SGD (Dean et al. 2012) with the agent's loss; with outliers dropped, Gorila's learner (Nair et al. 2015).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from repertory.agents.agent import Agent, Transitions
from repertory.agents.compression import Compression, Encoded
from repertory.channels.channel import slices
from repertory.channels.counters import WorkerStats
from repertory.channels.gradients import GradientWriter
from repertory.channels.latest import Reader
from repertory.experience.replay import Sample
from repertory.roles.batches import BatchSampler
from repertory.roles.ports import Role, Stopwatch, Unwatched


class ServerConnection:
    """One worker's connection to every server: weights and targets to fetch, slots to push gradients into.

    `methods` says how the slice of each server is sent; with `bound` a worker is at most so many gradients ahead of the
    slowest.
    """

    def __init__(
        self,
        weights: Reader,
        targets: Reader,
        slots: GradientWriter,
        methods: Sequence[Compression],
        bound: int | None,
    ) -> None:
        self._weights, self._targets, self._slots, self._methods, self._bound = weights, targets, slots, methods, bound
        self._slices = slices(sum(method.size for method in methods), len(methods))
        self._residuals = [method.residual() for method in methods]
        self._versions = [0] * len(methods)

    def fetch(self) -> tuple[int, Any, Any]:
        """Version, weights and target, the newest of each slice."""
        self._versions = [version for version, _ in self._weights.by_part()]
        return *self._weights.latest(), self._targets.latest()[1]

    def ready(self) -> bool:
        """Whether the servers have taken the last gradient, and with one more this worker is not too far ahead."""
        return self._slots.free and (self._bound is None or self._slots.ahead_of_slowest < self._bound)

    def push(self, gradient: jax.Array) -> int:
        """Send each server its slice; returns the bytes sent."""
        encoded = self._encoded(gradient)
        self._residuals = [residual for _, residual in encoded]
        payloads = [payload for payload, _ in encoded]
        # The slowest one's push may be what another worker waits for.
        self._slots.push(self._versions, payloads, wake_workers=self._bound is not None)
        return sum(method.nbytes for method in self._methods)

    def warm_up(self, gradient: jax.Array) -> None:
        """Compile what encodes it; sends nothing, and keeps nothing for the next."""
        self._encoded(gradient)

    def _encoded(self, gradient: jax.Array) -> list[Encoded]:
        """A payload for each server, and what it leaves for the next gradient."""
        parts = zip(self._methods, self._slices, self._residuals, strict=True)
        return [method.encode(gradient[cut], residual) for method, cut, residual in parts]


class OutlierFilter:
    """Running mean and deviation of the losses; says which lie far above."""

    WARM_UP = 100
    RATE = 0.01

    def __init__(self, deviations: float) -> None:
        self.deviations = deviations
        self.mean = self.square = 0.0
        self.seen = 0

    def refuses(self, loss: float) -> bool:
        """Whether the loss is an outlier; a refused one still moves the mean, so that a new level is learned."""
        spread = math.sqrt(max(self.square - self.mean**2, 0.0))
        refused = self.seen >= self.WARM_UP and loss > self.mean + self.deviations * spread
        self.seen += 1
        rate = max(self.RATE, 1.0 / self.seen)
        self.mean += rate * (loss - self.mean)
        self.square += rate * (loss * loss - self.square)
        return refused


@dataclass(frozen=True)
class Exchange:
    """How often weights are fetched and gradients pushed, in gradients."""

    fetch_period: int
    push_period: int
    outlier_deviations: float


class GradientWorker(Role):
    """Draws, computes, sends; the weights it computes with are the servers'."""

    def __init__(
        self,
        agent: Agent,
        batches: BatchSampler,
        servers: ServerConnection,
        exchange: Exchange,
        stats: WorkerStats,
        watch: Stopwatch | Unwatched,
        *,
        key: jax.Array,
    ) -> None:
        self.agent, self.batches, self.servers, self.exchange = agent, batches, servers, exchange
        self.stats, self.watch, self._key = stats, watch, key
        self.outliers = OutlierFilter(exchange.outlier_deviations) if exchange.outlier_deviations > 0 else None
        self._fetched: tuple[int, Any, Any] | None = None
        self._sum: Any = None
        self._made = 0
        self._clip = _compiled_clip(agent)

    def step(self) -> bool:
        """One gradient, if a batch is owed and the servers are ready for it."""
        if not self.servers.ready():
            return False
        sample = self.batches.take()
        if sample is None:
            return False
        self.watch.lap("sample")
        version, weights, target = self._fetch()
        batch = Transitions(*sample.batch()[:8])
        gradient, learned = self.agent.gradient(weights, target, batch, self._key)
        self._made += 1
        self._conclude(sample, version, gradient, learned)
        self.watch.lap("learn")
        return True

    def warm_up(self) -> None:
        """Compile the gradient, the sum of several, and how it is sent; sends nothing."""
        _, weights, target = self.servers.fetch()
        batch = Transitions(*self.batches.example().batch()[:8])
        gradient, _ = self.agent.gradient(jnp.asarray(weights), jnp.asarray(target), batch, self._key)
        if self.exchange.push_period > 1:
            gradient = gradient + gradient
        self.servers.warm_up(self._clip(gradient)[0])

    def _fetch(self) -> tuple[int, Any, Any]:
        if self._fetched is None or self._made % self.exchange.fetch_period == 0:
            version, weights, target = self.servers.fetch()
            self._fetched = version, jnp.asarray(weights), jnp.asarray(target)
        return self._fetched

    def _conclude(self, sample: Sample, version: int, gradient: jax.Array, learned: Any) -> None:
        """Keep or drop it, and send what has added up."""
        stats = self.stats
        stats.count("gradients")
        stats.sampled(sample.steps)
        stats.lag(version - sample.version.astype(np.int64))
        loss = float(learned.loss)
        stats.loss(loss, learned.entropy, learned.value)
        self.batches.release(sample, np.asarray(learned.priority)[None])
        if not math.isfinite(loss):  # first: it would spoil the mean of the others
            stats.count("skipped")
        elif self.outliers is not None and self.outliers.refuses(loss):
            stats.count("dropped_outlier")
        else:
            self._sum = gradient if self._sum is None else self._sum + gradient
        if self._made % self.exchange.push_period == 0 and self._sum is not None:
            gradient, norm = self._clip(self._sum)
            stats.gradient_norm(norm, self.agent.max_gradient_norm)
            stats.count("bytes_sent", self.servers.push(gradient))
            self._sum = None

    def settle(self) -> None:
        """Nothing is kept that the servers do not have, but for gradients not yet pushed."""
        self.batches.settle()

    def state(self) -> dict[str, Any]:
        """The stream of draws."""
        return {"batches": self.batches.state(), "made": self._made}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue the stream."""
        self.batches.load_state(state["batches"])
        self._made = int(state["made"])

    def close(self) -> None:
        """Nothing to free."""


@cache
def _compiled_clip(agent: Agent) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """Clips a gradient, and tells its norm before."""
    return jax.jit(lambda gradient: (agent.clip(gradient), jnp.linalg.norm(gradient)))
