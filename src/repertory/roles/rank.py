"""One of several equal learners that average their gradients before each update; sees only ports.

What Horovod does (Sergeev and Del Balso 2018): everybody holds the whole state, starts from rank 0's, computes a
gradient of its own batch, gets the average of all, and makes the same update; so all stay bit-equal.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent, Learned, LearnerState
from repertory.agents.compression import Compression
from repertory.experience.replay import Sample
from repertory.roles.batches import Drawer
from repertory.roles.learner import lesson
from repertory.roles.ledger import Page
from repertory.roles.ports import Weights
from repertory.roles.safe import Safe
from repertory.roles.stopwatch import Stopwatch, Unwatched
from repertory.roles.unroll_batches import UnrollBatches


class Collective(Protocol):
    """All ranks together: each submits, then polls until all have."""

    def submit(self, payload: dict[str, jax.Array]) -> None:
        """This rank's part."""

    def poll(self) -> list[dict[str, Any]] | None:
        """Everybody's parts, in the order of ranks; None while some are missing."""

    def broadcast(self, learned: LearnerState) -> LearnerState:
        """Rank 0's state."""

    @property
    def adjourned(self) -> bool:
        """Whether the last round was given up, by whichever rank: then nobody updates."""

    def adjourn(self, payload: dict[str, jax.Array]) -> None:
        """Give up the round that others may be waiting in, so that all can pause at the same update."""

    def reconvene(self) -> None:
        """Go on after a pause."""


class Rank:
    """A whole learner; rank 0 also counts the updates and keeps the state safe."""

    def __init__(
        self,
        agent: Agent,
        learned: LearnerState,
        batches: Drawer | UnrollBatches,
        collective: Collective,
        compression: Compression,
        weights: Weights,
        page: Page,
        watch: Stopwatch | Unwatched,
        safe: Safe,
        checksums: NDArray[np.int64],
        *,
        rank: int,
    ) -> None:
        self.agent, self.batches, self.collective, self.compression = agent, batches, collective, compression
        self.weights, self.page, self.watch, self.safe = weights, page, watch, safe
        self.checksums, self.rank = checksums, rank
        self.learned = collective.broadcast(learned)
        self._residual = self._residual_before = compression.residual()
        self._waiting: tuple[Any, Learned] | None = None
        self._settled = False
        self._update = agent.compiled_update(compression.decode, mean=True, whole=True)
        self._version = int(self.learned.updates)
        self._count()
        weights.publish(self.version, np.array(self.learned.weights))  # a copy: the next update takes the array itself

    @property
    def version(self) -> int:
        """Updates made."""
        return self._version

    def step(self) -> bool:
        """Submit a gradient, or take the average of all and update."""
        if self.collective.adjourned:
            if not self._settled:
                return False  # the pause that the others have seen already
            self.collective.reconvene()
        self._settled = False
        if self._waiting is None and not self._submit():
            return False
        return self._update_together()

    def _update_together(self) -> bool:
        """With everybody's gradients, once they are there."""
        payloads = self.collective.poll()
        if self.collective.adjourned:
            self._give_up()
        if payloads is None or self._waiting is None:
            return False
        sample, learned = self._waiting
        self._waiting = None
        self.learned = self._update(self.learned, payloads)
        self._version += 1
        self.batches.release(sample, jnp.asarray(learned.priority)[None])
        self._conclude(sample, learned)
        self.watch.lap("learn")
        return True

    def _give_up(self) -> None:
        """The gradient that was submitted counts for nobody: as if it had never been computed."""
        if self._waiting is not None:
            self.batches.give_back(self._waiting[0])
            self._waiting, self._residual = None, self._residual_before

    def _submit(self) -> bool:
        sample = self.batches.take()
        if sample is None:
            return False
        self.watch.lap("sample")
        batch = lesson(sample.batch() if isinstance(sample, Sample) else sample)
        state = self.learned
        gradient, learned = self.agent.gradient(state.weights, state.target, batch, state.key)
        self._residual_before = self._residual
        payload, self._residual = self.compression.encode(gradient, self._residual)
        self.page.count("bytes_sent", self.compression.nbytes)
        self._waiting = (sample, learned)
        self.collective.submit(payload)
        return True

    def _conclude(self, sample: Any, learned: Learned) -> None:
        self.page.count("gradients")
        self.page.lag(self.version - 1 - sample.version.astype(np.int64))
        self.page.loss(float(learned.loss), 1, float(learned.entropy))
        weights = np.asarray(self.learned.weights)
        self.checksums[self.version % self.checksums.shape[0]] = (self.version, zlib.crc32(weights.tobytes()))
        self.weights.publish(self.version, weights)
        self._count()
        if self.rank == 0 and self.safe.due():
            self.page.set("skipped", int(self.learned.skipped))
            self.safe.save(self.learned)

    def _count(self) -> None:
        if self.rank == 0:
            self.page.set("updates", self.version)

    def settle(self) -> None:
        """All stand at the same update, nobody is left waiting, and the state goes into the safe."""
        if self._settled:  # it has slept through the time since the last pause, in which others may have gone on
            self.collective.reconvene()
        if self._waiting is not None:
            self._update_together()  # others may have made it already
        if not self.collective.adjourned:
            fields = self.compression.fields.items()
            self.collective.adjourn({name: jnp.zeros(shape, dtype) for name, (shape, dtype) in fields})
        self._give_up()
        self._settled = True
        self.batches.settle()
        if self.rank == 0:
            self.page.set("skipped", int(self.learned.skipped))
            self.safe.save(self.learned)

    def state(self) -> dict[str, Any]:
        """The stream of draws."""
        return {"batches": self.batches.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue the stream."""
        self.batches.load_state(state["batches"])

    def close(self) -> None:
        """Nothing to free."""
