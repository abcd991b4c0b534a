"""One parameter server: owns a slice of the weights and of the optimiser, and applies gradients to it.

Downpour SGD (Dean et al. 2012): servers know nothing of each other. Asynchronous, each gradient is an update; a
synchronous server waits for one from each worker. Gorila (Nair et al. 2015) drops gradients that are too old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent, LearnerState
from repertory.agents.compression import Compression
from repertory.channels.counters import WorkerStats
from repertory.channels.snapshot import Owner
from repertory.roles.ports import Publisher, Role


class Incoming(Protocol):
    """Gradients from the workers."""

    def arrived(self) -> NDArray[np.int64]:
        """Workers whose gradient this server has not taken."""

    def payload(self, worker: int) -> tuple[int, dict[str, Any]]:
        """The version of the weights behind it, and the payload."""

    def take(self, workers: NDArray[np.int64]) -> None:
        """Done with these workers' gradients."""


@dataclass(frozen=True)
class Rules:
    """When and how gradients become updates."""

    workers: int
    synchronous: bool
    combine: str
    max_age: int

    def numbers(self) -> Iterable[int]:
        """Of how many gradients an update may be made."""
        if not self.synchronous:
            return (1,)
        return range(1 if self.max_age else self.workers, self.workers + 1)


class ParameterServer(Role):
    """Rank 0 counts the updates; with several servers, the others may be a few ahead or behind."""

    def __init__(
        self,
        agent: Agent,
        learned: LearnerState,
        incoming: Incoming,
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
        self._version = int(learned.updates)
        self._count()
        self._publish()

    @property
    def version(self) -> int:
        """Updates behind this slice."""
        return self._version

    def warm_up(self) -> None:
        """Compile the update, on copies of the state and with whatever lies where gradients arrive."""
        _, payload = self.incoming.payload(0)
        for number in self.rules.numbers():
            copied = jax.tree_util.tree_map(jnp.array, self.learned)
            self._update(copied, [payload] * number, self.rate(self.stats.env_steps))

    def step(self) -> bool:
        """Turn the gradients that have arrived into updates."""
        workers = self.incoming.arrived()
        self.stats.queue(len(workers))
        if not len(workers) or (self.rules.synchronous and len(workers) < self.rules.workers):
            return False
        if self.rules.synchronous:
            payloads = [self._accepted(int(worker)) for worker in workers]
            self._apply([payload for payload in payloads if payload is not None])
        else:
            for worker in workers:
                payload = self._accepted(int(worker))
                self._apply([] if payload is None else [payload])
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
        """One update from these gradients together."""
        if payloads:
            self.learned, _ = self._update(self.learned, payloads, self.rate(self.stats.env_steps))
            self._version += 1
            self._count()

    def _count(self) -> None:
        if self.rank == 0:
            self.stats.set("updates", self.version)

    def _publish(self) -> None:
        """The weights always; the target where it may have moved."""
        self.publishers[0].publish(self.version, self.learned.weights)
        self.publishers[1].publish(self.version, self.learned.target)

    def settle(self) -> None:
        """The state goes into the snapshot."""
        if self.rank == 0:
            self.stats.set("skipped", int(self.learned.skipped))
        self.snapshot.save(self.learned)

    def state(self) -> dict[str, Any]:
        """Everything lies in the snapshot."""
        return {}

    def load_state(self, state: Any) -> None:
        """Nothing to take over."""

    def close(self) -> None:
        """Nothing to free."""
