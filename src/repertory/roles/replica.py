"""One of several equal learners that average their gradients before each update; sees only ports.

What Horovod does (Sergeev and Del Balso 2018): each replica holds the whole state, starts from the same weights,
computes a gradient of its own batch, gets the average of all, and makes the same update; so all stay bit-equal.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent, Learned, LearnerState
from repertory.agents.compression import Compression, Fields
from repertory.channels.counters import WorkerStats
from repertory.channels.gradients import Gathering
from repertory.channels.latest import Lent
from repertory.channels.slots import Batches
from repertory.channels.snapshot import Owner
from repertory.roles.learner import count_gradient, one_batch
from repertory.roles.ports import Publisher, Role, Stopwatch, Unwatched

RATE = "rate"


def payload_fields(compression: Compression) -> Fields:
    """What each replica submits: its gradient, and the learning rate that it would use."""
    return {**compression.fields, RATE: ((1,), "float32")}


@dataclass(eq=False)
class Replica(Role):
    """A whole learner; replica 0 also counts the updates and saves the learner snapshot."""

    agent: Agent
    learned: LearnerState
    batches: Batches
    collective: Gathering
    compression: Compression
    weights: Publisher
    stats: WorkerStats
    watch: Stopwatch | Unwatched
    snapshot: Owner
    _: KW_ONLY
    rank: int
    rate: Callable[[], float]
    """The learning rate now; all replicas use that of replica 0, which comes with its gradient."""

    def __post_init__(self) -> None:
        self.newest = Lent()
        self._residual = self._residual_before = self.compression.residual()
        self._waiting: tuple[Any, Learned] | None = None
        self._update = self.agent.compiled_update(self.compression.decode, mean=True, whole=True)
        self.version = int(self.learned.updates)
        self._count()
        self._publish(np.array(self.learned.weights))  # a copy: the next update takes the array itself

    @property
    def waiting(self) -> bool:
        """Whether a gradient was submitted to a round that is not complete."""
        return self._waiting is not None

    def step(self) -> bool:
        """Submit a gradient, or take the average of all and update."""
        if self._waiting is None and not self._submit():
            return False
        return self._update_together()

    def warm_up(self) -> None:
        """Compile the gradient and, on a copy of the state, the update; needs no other replica."""
        gradient, _ = self._gradient(self.batches.example())
        payload = self._payload(self.compression.encode(gradient, self._residual)[0])
        copied = jax.tree_util.tree_map(jnp.array, self.learned)
        self._update(copied, [payload] * self.collective.replicas, payload[RATE])

    def _update_together(self) -> bool:
        payloads = self.collective.poll()
        if payloads is None:
            return False
        assert self._waiting is not None
        sample, learned = self._waiting
        self._waiting = None
        self.learned, norm = self._update(self.learned, payloads, payloads[0][RATE])
        self.version += 1
        self.batches.release(sample, np.asarray(learned.priority)[None])
        self.stats.gradient_norm(norm, self.agent.max_gradient_norm)
        self._conclude(sample, learned)
        self.watch.lap("learn")
        return True

    def _give_up(self) -> None:
        """Take back the submitted gradient, as if it had never been computed."""
        assert self._waiting is not None
        self.collective.withdraw()
        self.batches.give_back(self._waiting[0])
        self._waiting, self._residual = None, self._residual_before

    def _submit(self) -> bool:
        sample = self.batches.take()
        if sample is None:
            return False
        self.watch.lap("sample")
        gradient, learned = self._gradient(sample)
        self._residual_before = self._residual
        payload, self._residual = self.compression.encode(gradient, self._residual)
        self.stats.count("bytes_sent", self.compression.nbytes)
        self._waiting = (sample, learned)
        self.collective.submit(self._payload(payload))
        return True

    def _gradient(self, sample: Any) -> tuple[jax.Array, Learned]:
        state = self.learned
        return self.agent.gradient(state.weights, state.target, one_batch(sample), state.key)

    def _payload(self, encoded: dict[str, jax.Array]) -> dict[str, Any]:
        return {**encoded, RATE: np.full(1, self.rate(), np.float32)}

    def _conclude(self, sample: Any, learned: Learned) -> None:
        count_gradient(self.stats, sample, self.version - 1, learned)
        weights = np.asarray(self.learned.weights)
        self.collective.check(self.version, zlib.crc32(weights.tobytes()))
        self._publish(weights)
        self._count()
        if self.snapshot.due:
            self._save()

    def _publish(self, weights: NDArray[np.float32]) -> None:
        """To the own policy; replica 0 also to all other workers."""
        self.newest.publish(self.version, weights)
        if self.rank == 0:
            self.weights.publish(self.version, weights)

    def _count(self) -> None:
        if self.rank == 0:
            self.stats.set("updates", self.version)

    def settle(self) -> None:
        """All replicas stop at the same update, and the state goes into the snapshot."""
        self.collective.halt()
        if self.waiting and not self._update_together():
            self._give_up()
        self.batches.settle()
        self._save()

    def _save(self) -> None:
        if self.rank == 0:
            self.stats.set("skipped", int(self.learned.skipped))
            self.snapshot.save(self.learned)

    def state(self) -> dict[str, Any]:
        return {"batches": self.batches.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.batches.load_state(state["batches"])
