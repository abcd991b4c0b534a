"""One parameter server: owns a slice of the weights and of the optimizer state, and applies gradients to it.

Downpour SGD (Dean et al. 2012): servers know nothing of each other. Asynchronous, each gradient is an update; a
synchronous server waits for one from each worker. Gorila (Nair et al. 2015) drops gradients that are too old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from repertory.agents.agent import Agent, LearnerState
from repertory.agents.compression import Compression
from repertory.channels.counters import WorkerStats
from repertory.channels.gradients import GradientReader
from repertory.channels.snapshot import Owner
from repertory.roles.ports import Publisher, Role


@dataclass(frozen=True)
class Rules:
    """When and how gradients become updates."""

    workers: int
    synchronous: bool
    combine: str
    max_age: int

    def numbers(self) -> Iterable[int]:
        """The numbers of gradients that an update may be made of."""
        if not self.synchronous:
            return (1,)
        return range(1 if self.max_age else self.workers, self.workers + 1)


class ParameterServer(Role):
    """Rank 0 counts the updates; with several servers, the others may be a few ahead or behind."""

    def __init__(
        self,
        agent: Agent,
        learned: LearnerState,
        incoming: GradientReader,
        compression: Compression,
        publishers: tuple[Publisher, Publisher],
        rules: Rules,
        stats: WorkerStats,
        snapshot: Owner,
        *,
        rank: int,
        rate: Callable[[int], float],
    ) -> None:
        """`rate` is the learning rate by env steps."""
        self.learned, self.incoming, self.rate = learned, incoming, rate
        self.publishers, self.rules, self.stats, self.snapshot = publishers, rules, stats, snapshot
        self.rank = rank
        self._update = agent.compiled_update(compression.decode, mean=rules.combine == "mean", whole=False)
        self.version = int(learned.updates)
        self._count()
        self._publish()

    def warm_up(self) -> None:
        """Compile the update, on copies of the state and with what is in the gradient slots."""
        _, payload = self.incoming.payload(0)
        for number in self.rules.numbers():
            copied = jax.tree_util.tree_map(jnp.array, self.learned)
            self._update(copied, [payload] * number, self.rate(self.stats.env_steps))

    def step(self) -> bool:
        workers = self.incoming.arrived()
        self.stats.queue(len(workers))
        if not len(workers) or (self.rules.synchronous and len(workers) < self.rules.workers):
            return False
        for some in [workers] if self.rules.synchronous else workers[:, None]:
            payloads = [self._accepted(int(worker)) for worker in some]
            self._apply([payload for payload in payloads if payload is not None])
        self._publish()
        self.incoming.take(workers)
        if self.snapshot.due:
            self.settle()
        return True

    def _accepted(self, worker: int) -> dict[str, Any] | None:
        """A worker's gradient, unless it is too old."""
        version, payload = self.incoming.payload(worker)
        age = max(0, self.version - version)
        if 0 < self.rules.max_age < age:
            self.stats.count("dropped_stale")
            return None
        if self.rank == 0:
            self.stats.age(np.array([age]))
        return payload

    def _apply(self, payloads: list[dict[str, Any]]) -> None:
        if payloads:
            self.learned, _ = self._update(self.learned, payloads, self.rate(self.stats.env_steps))
            self.version += 1
            self._count()

    def _count(self) -> None:
        if self.rank == 0:
            self.stats.set("updates", self.version)

    def _publish(self) -> None:
        self.publishers[0].publish(self.version, self.learned.weights)
        self.publishers[1].publish(self.version, self.learned.target)

    def settle(self) -> None:
        if self.rank == 0:
            self.stats.set("skipped", int(self.learned.skipped))
        self.snapshot.save(self.learned)
