"""One of several equal learners that average their gradients before each update; sees only ports.

What Horovod does (Sergeev and Del Balso 2018): everybody holds the whole state, starts from the same, computes a
gradient of its own batch, gets the average of all, and makes the same update; so all stay bit-equal.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent, Learned, LearnerState
from repertory.agents.compression import Compression, Fields
from repertory.channels.counters import WorkerStats
from repertory.channels.latest import Lent
from repertory.channels.snapshot import Owner
from repertory.experience.replay import Sample
from repertory.roles.batches import BatchSampler, UnrollBatches
from repertory.roles.learner import agent_batch
from repertory.roles.ports import Publisher, Role, Stopwatch, Unwatched

RATE = "rate"


def payload_fields(compression: Compression) -> Fields:
    """What each rank submits: its gradient, and the learning rate that it would use."""
    return {**compression.fields, RATE: ((1,), "float32")}


class Collective(Protocol):
    """All ranks together: each submits, then polls until all have."""

    @property
    def replicas(self) -> int:
        """How many there are."""

    def submit(self, payload: dict[str, Any]) -> None:
        """This rank's part."""

    def poll(self) -> list[dict[str, Any]] | None:
        """Everybody's parts, in the order of ranks, valid until the next `submit`; None while some are missing."""

    def check(self, version: int, checksum: int) -> None:
        """Put the checksum of the weights of this version where it can be compared with the others'."""

    def halt(self) -> None:
        """Return when all ranks have halted: then either all can complete a round, or none."""

    def withdraw(self) -> None:
        """After `halt`: take back what was submitted to a round that not all have joined."""


class Replica(Role):
    """A whole learner; rank 0 also counts the updates and keeps the state snapshot."""

    def __init__(
        self,
        agent: Agent,
        learned: LearnerState,
        batches: BatchSampler | UnrollBatches,
        collective: Collective,
        compression: Compression,
        weights: Publisher,
        stats: WorkerStats,
        watch: Stopwatch | Unwatched,
        snapshot: Owner,
        *,
        rank: int,
        rate: Callable[[], float],
    ) -> None:
        """`rate` is the learning rate of now; all use that of rank 0, which comes with its gradient."""
        self.agent, self.batches, self.collective, self.compression = agent, batches, collective, compression
        self.weights, self.stats, self.watch, self.snapshot = weights, stats, watch, snapshot
        self.rank, self.rate, self.newest = rank, rate, Lent()
        self.learned = learned
        self._residual = self._residual_before = compression.residual()
        self._waiting: tuple[Any, Learned] | None = None
        self._update = agent.compiled_update(compression.decode, mean=True, whole=True)
        self._version = int(self.learned.updates)
        self._count()
        self._publish(np.array(self.learned.weights))  # a copy: the next update takes the array itself

    @property
    def version(self) -> int:
        """Updates made."""
        return self._version

    @property
    def waiting(self) -> bool:
        """Whether a gradient was submitted that not all have answered yet."""
        return self._waiting is not None

    def step(self) -> bool:
        """Submit a gradient, or take the average of all and update."""
        if self._waiting is None and not self._submit():
            return False
        return self._update_together()

    def warm_up(self) -> None:
        """Compile the gradient and, on a copy of the state, the update; nobody else is needed for it."""
        sample, state = self.batches.example(), self.learned
        batch = agent_batch(sample.batch() if isinstance(sample, Sample) else sample)
        gradient, _ = self.agent.gradient(state.weights, state.target, batch, state.key)
        payload = self._payload(self.compression.encode(gradient, self._residual)[0])
        copied = jax.tree_util.tree_map(jnp.array, state)
        self._update(copied, [payload] * self.collective.replicas, payload[RATE])

    def _update_together(self) -> bool:
        """With everybody's gradients, once they are there."""
        payloads = self.collective.poll()
        if payloads is None:
            return False
        assert self._waiting is not None
        sample, learned = self._waiting
        self._waiting = None
        self.learned, norm = self._update(self.learned, payloads, payloads[0][RATE])
        self._version += 1
        self.batches.release(sample, np.asarray(learned.priority)[None])
        self.stats.gradient_norm(norm, self.agent.max_gradient_norm)
        self._conclude(sample, learned)
        self.watch.lap("learn")
        return True

    def _give_up(self) -> None:
        """The gradient that was submitted counts for nobody: as if it had never been computed."""
        assert self._waiting is not None
        self.collective.withdraw()
        self.batches.give_back(self._waiting[0])
        self._waiting, self._residual = None, self._residual_before

    def _submit(self) -> bool:
        sample = self.batches.take()
        if sample is None:
            return False
        self.watch.lap("sample")
        batch = agent_batch(sample.batch() if isinstance(sample, Sample) else sample)
        state = self.learned
        gradient, learned = self.agent.gradient(state.weights, state.target, batch, state.key)
        self._residual_before = self._residual
        payload, self._residual = self.compression.encode(gradient, self._residual)
        self.stats.count("bytes_sent", self.compression.nbytes)
        self._waiting = (sample, learned)
        self.collective.submit(self._payload(payload))
        return True

    def _payload(self, encoded: dict[str, jax.Array]) -> dict[str, Any]:
        return {**encoded, RATE: np.full(1, self.rate(), np.float32)}

    def _conclude(self, sample: Any, learned: Learned) -> None:
        self.stats.count("gradients")
        self.stats.sampled(sample.steps)
        self.stats.lag(self.version - 1 - sample.version.astype(np.int64))
        self.stats.loss(learned.loss, learned.entropy, learned.value)
        weights = np.asarray(self.learned.weights)
        self.collective.check(self.version, zlib.crc32(weights.tobytes()))
        self._publish(weights)
        self._count()
        if self.rank == 0 and self.snapshot.due:
            self.stats.set("skipped", int(self.learned.skipped))
            self.snapshot.save(self.learned)

    def _publish(self, weights: NDArray[np.float32]) -> None:
        """To its own policy, and rank 0 to everybody who is no replica."""
        self.newest.publish(self.version, weights)
        if self.rank == 0:
            self.weights.publish(self.version, weights)

    def _count(self) -> None:
        if self.rank == 0:
            self.stats.set("updates", self.version)

    def settle(self) -> None:
        """All ranks come to stand at the same update, and the state goes into the snapshot."""
        self.collective.halt()
        if self.waiting and not self._update_together():
            self._give_up()
        self.batches.settle()
        if self.rank == 0:
            self.stats.set("skipped", int(self.learned.skipped))
            self.snapshot.save(self.learned)

    def state(self) -> dict[str, Any]:
        """The stream of draws."""
        return {"batches": self.batches.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue the stream."""
        self.batches.load_state(state["batches"])

    def close(self) -> None:
        """Nothing to free."""
