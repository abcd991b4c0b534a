"""One parameter server: owns a slice of the weights and of the optimiser, and applies gradients to it.

Downpour SGD (Dean et al. 2012): servers know nothing of each other. Asynchronous, each gradient is an update; a
synchronous server waits for one from each worker. Gorila (Nair et al. 2015) drops gradients that are too old.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent, LearnerState
from repertory.agents.compression import Compression
from repertory.roles.ledger import Page
from repertory.roles.ports import Weights
from repertory.roles.safe import Safe


class Incoming(Protocol):
    """Gradients from the workers."""

    def arrived(self, server: int) -> NDArray[np.int64]:
        """Workers whose gradient this server has not taken."""

    def payload(self, server: int, worker: int) -> tuple[int, dict[str, Any]]:
        """The version of the weights behind it, and the payload."""

    def take(self, server: int, workers: NDArray[np.int64]) -> None:
        """Done with these workers' gradients."""


@dataclass(frozen=True)
class Rules:
    """When and how gradients become updates."""

    workers: int
    synchronous: bool
    combine: str
    max_age: int


class ParameterServer:
    """Rank 0 counts the updates; with several servers, the others may be a few ahead or behind."""

    def __init__(
        self,
        agent: Agent,
        learned: LearnerState,
        incoming: Incoming,
        compression: Compression,
        boards: tuple[Weights, Weights],
        rules: Rules,
        page: Page,
        safe: Safe,
        *,
        rank: int,
        tell_workers: Callable[[], None],
    ) -> None:
        self.agent, self.learned, self.incoming, self.compression = agent, learned, incoming, compression
        self.boards, self.rules, self.page, self.safe = boards, rules, page, safe
        self.rank, self.tell_workers = rank, tell_workers
        self._target_copied = -1
        self._count()
        self._publish()

    @property
    def version(self) -> int:
        """Updates behind this slice."""
        return int(self.learned.updates)

    def step(self) -> bool:
        """Turn the gradients that have arrived into updates."""
        workers = self.incoming.arrived(self.rank)
        self.page.set("queue", len(workers))
        if not len(workers) or (self.rules.synchronous and len(workers) < self.rules.workers):
            return False
        if self.rules.synchronous:
            gradients = [self._decoded(int(worker)) for worker in workers]
            self._apply([gradient for gradient in gradients if gradient is not None])
        else:
            for worker in workers:
                gradient = self._decoded(int(worker))
                self._apply([] if gradient is None else [gradient])
        self._publish()
        self.incoming.take(self.rank, workers)
        self.tell_workers()
        if self.safe.due():
            self.safe.save(self.learned)
        return True

    def _decoded(self, worker: int) -> jax.Array | None:
        """A worker's gradient, unless it is too old."""
        version, payload = self.incoming.payload(self.rank, worker)
        age = max(0, self.version - version)
        if self.rank == 0:
            self.page.age(np.array([age]))
        if 0 < self.rules.max_age < age:
            self.page.count("dropped_stale")
            return None
        return self.compression.decode(payload)

    def _apply(self, gradients: list[jax.Array]) -> None:
        """One update from these gradients together."""
        if not gradients:
            return
        total = gradients[0] if len(gradients) == 1 else jnp.sum(jnp.stack(gradients), axis=0)
        if self.rules.combine == "mean":
            total = total / len(gradients)
        self.learned = self.agent.advance(self.learned, total)
        self._count()

    def _count(self) -> None:
        if self.rank == 0:
            self.page.set("updates", self.version)
            self.page.set("skipped", int(self.learned.skipped))

    def _publish(self) -> None:
        """The weights always; the target where it may have moved."""
        self.boards[0].publish(self.version, self.learned.weights)
        self.boards[1].publish(self.version, self.learned.target)

    def settle(self) -> None:
        """The state goes into the safe."""
        self.safe.save(self.learned)

    def state(self) -> dict[str, Any]:
        """Everything lies in the safe."""
        return {}

    def load_state(self, state: Any) -> None:
        """Nothing to take over."""

    def close(self) -> None:
        """Nothing to free."""
