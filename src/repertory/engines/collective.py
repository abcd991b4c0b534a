"""Ranks in processes of their own meet through `jax.distributed`: gloo between CPUs, NCCL where there are GPUs."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from repertory.agents.agent import LearnerState
from repertory.roles.ledger import Page

MEETING_S = 60
"""Seconds that a rank waits for the others at the start."""


def meeting_place() -> str:
    """An address on this machine for rank 0 to receive the others at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


class GlooCollective:
    """One rank's part: what it submits is gathered from all, and everybody gets the same in the same order."""

    def __init__(self, rank: int, ranks: int, page: Page) -> None:
        self.rank, self.ranks, self.page = rank, ranks, page
        self.adjourned = False
        mesh = Mesh(np.array(jax.devices()), ("rank",))
        self._spread = NamedSharding(mesh, PartitionSpec("rank"))
        self._gather = jax.jit(lambda parts: parts, out_shardings=NamedSharding(mesh, PartitionSpec()))
        self._device = jax.local_devices()[0]
        self._shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._result: Any = None

    @staticmethod
    def join(meeting: str, ranks: int, rank: int) -> None:
        """Meet the others; before anything is computed."""
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            meeting,
            ranks,
            rank,
            initialization_timeout=MEETING_S,
            heartbeat_timeout_seconds=100,
            coordinator_bind_address=meeting,  # by default it would listen on every network of the machine
        )

    def submit(self, payload: dict[str, jax.Array], adjourn: bool = False) -> None:
        """Start gathering; nobody goes on before all have submitted. One message carries all arrays and a flag."""
        arrays = {name: np.asarray(array) for name, array in payload.items()}
        self._shapes = {name: (array.shape, array.dtype) for name, array in arrays.items()}
        message = np.frombuffer(b"".join(array.tobytes() for array in arrays.values()) + bytes([adjourn]), np.uint8)
        row = jax.device_put(message[None], self._device)
        whole = (self.ranks, message.size)
        with self._together():  # on CPUs the call itself waits for the others
            self._result = self._gather(jax.make_array_from_single_device_arrays(whole, self._spread, [row]))

    def _parts(self, message: NDArray[np.uint8]) -> dict[str, Any]:
        parts, offset = {}, 0
        for name, (shape, dtype) in self._shapes.items():
            end = offset + math.prod(shape) * dtype.itemsize
            parts[name] = np.frombuffer(message[offset:end].tobytes(), dtype).reshape(shape)
            offset = end
        return parts

    def poll(self) -> list[dict[str, Any]] | None:
        """Everybody's parts. Waits for the others: if one of them is gone, the driver ends them all."""
        with self._together():
            whole = np.asarray(self._result.addressable_data(0))
        if whole[:, -1].any():
            self.adjourned = True
            return None
        return [self._parts(message) for message in whole]

    @contextmanager
    def _together(self) -> Iterator[None]:
        """While this rank may be waiting for others, its own silence is no sign."""
        self.page.set("together", 1)
        try:
            yield
        finally:
            self.page.beat()
            self.page.set("together", 0)

    def broadcast(self, learned: LearnerState) -> LearnerState:
        """Rank 0's state, so that all begin equal wherever they run."""
        leaves, tree = jax.tree_util.tree_flatten(learned)
        self.submit({f"{index:02d}": jnp.asarray(leaf) for index, leaf in enumerate(leaves)})
        parts = self.poll()
        assert parts is not None
        received = [jnp.array(parts[0][f"{index:02d}"]) for index in range(len(leaves))]
        result: LearnerState = jax.tree_util.tree_unflatten(tree, received)
        return result

    def adjourn(self, payload: dict[str, jax.Array]) -> None:
        """Give up the round that others may be waiting in."""
        self.submit(payload, adjourn=True)
        self.poll()

    def reconvene(self) -> None:
        """Go on after a pause."""
        self.adjourned = False
