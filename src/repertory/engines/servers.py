"""All parameter servers as one worker sees them: boards to fetch from, slots to push into."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from repertory.agents.compression import Encoded
from repertory.engines.stage import Stage


class ShardedServers:
    """One worker's connection to every server."""

    def __init__(self, stage: Stage, worker: int) -> None:
        company = stage.plan.company
        self._worker = worker
        self._weights, self._target = stage.server_boards("weights"), stage.server_boards("target")
        self._slots, self._slices = stage.gradient_slots(), stage.slices
        self._bound = company.staleness_bound if company.mode == "bounded" else None
        self._ring, self._ring_workers = stage.bell("server"), stage.bell("worker")
        self._methods = [stage.compression(cut.stop - cut.start) for cut in self._slices]
        self._residuals = [method.residual() for method in self._methods]
        self._versions = [0] * len(self._slices)

    def latest(self) -> tuple[int, Any]:
        """For a policy: the newest version of the first slice, and the weights put together."""
        found = [board.latest() for board in self._weights]
        return found[0][0], _joined([vector for _, vector in found])

    def publish(self, version: int, weights: Any) -> None:
        """Workers publish nothing."""

    def fetch(self) -> tuple[int, Any, Any]:
        """Version, weights and target, the newest of each slice."""
        found = [board.latest() for board in self._weights]
        self._versions = [version for version, _ in found]
        target = _joined([board.latest()[1] for board in self._target])
        return self._versions[0], _joined([vector for _, vector in found]), target

    def ready(self) -> bool:
        """Whether the servers have taken the last gradient, and with one more this worker is not too far ahead."""
        if not self._slots.free(self._worker):
            return False
        return self._bound is None or self._slots.ahead_of_slowest(self._worker) < self._bound

    def push(self, gradient: jax.Array) -> int:
        """Send each server its slice; returns the bytes sent."""
        encoded = self._encoded(gradient)
        self._residuals = [residual for _, residual in encoded]
        self._slots.push(self._worker, self._versions, [payload for payload, _ in encoded])
        self._ring()
        if self._bound is not None:
            self._ring_workers()  # the slowest one's push may be what another waits for
        return sum(method.nbytes for method in self._methods)

    def warm_up(self, gradient: jax.Array) -> None:
        """Compile what encodes it; sends nothing, and keeps nothing for the next."""
        self._encoded(gradient)

    def _encoded(self, gradient: jax.Array) -> list[Encoded]:
        """A payload for each server, and what it leaves for the next gradient."""
        parts = zip(self._methods, self._slices, self._residuals, strict=True)
        return [method.encode(gradient[cut], residual) for method, cut, residual in parts]


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
