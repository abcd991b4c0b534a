"""Gradients: from workers to parameter servers, and among replicas that average them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.agents.compression import Fields
from repertory.channels.channel import (
    READER,
    WRITER,
    Arrays,
    Channel,
    Place,
    copy_rows,
    mirror_changed,
    mirror_counted,
    mirror_grown,
    own_rows,
    port,
    under,
)
from repertory.specs import Field


class GradientSlots(Channel):
    """Gradients from workers to servers: one slot for each worker and server.

    `pushed` counts a worker's gradients; server s has taken `taken[s]` of them. A worker pushes again when all servers
    have taken its last one. `payloads()` gives the arrays of an encoded gradient for each server.
    """

    def __init__(self, name: str, payloads: Callable[[], Sequence[Fields]], workers: int, **labels: str) -> None:
        super().__init__(name, **labels)
        self.payloads, self.workers = payloads, workers

    @property
    def row_count(self) -> int:
        return self.workers

    def fields(self) -> dict[str, Field]:
        payloads, workers = self.payloads(), self.workers
        fields = {
            f"payload{server}/{name}": Field((workers, *shape), dtype, commit="pushed")
            for server, payload in enumerate(payloads)
            for name, (shape, dtype) in payload.items()
        }
        return {
            **fields,
            "version": Field((workers, len(payloads)), "int64", commit="pushed"),
            "pushed": Field((workers,), "int64"),
            "taken": Field((len(payloads), workers), "int64", READER),
        }

    @port("out")
    def writer(self, me: Place) -> GradientWriter:
        return GradientWriter(self, me.rank)

    @port("in")
    def reader(self, me: Place) -> GradientReader:
        return GradientReader(self, me.rank)

    def mirror(self, source: Arrays, target: Arrays, side: str = WRITER, rows: Sequence[int] | None = None) -> int:
        if side == READER:
            return mirror_grown(source, target, "taken")
        names = [name for name in source if name not in ("pushed", "taken")]
        return mirror_counted(source, target, "pushed", names, own_rows(self.workers, rows))

    def payload(self, server: int) -> dict[str, NDArray[Any]]:
        return under(f"payload{server}", self.arrays)


class GradientWriter:
    """A worker's port, to all servers."""

    def __init__(self, slots: GradientSlots, worker: int) -> None:
        self._arrays, self._worker = slots.arrays, worker
        self._payloads = [slots.payload(server) for server in range(len(slots.arrays["taken"]))]
        self._bells = slots.bells

    @property
    def free(self) -> bool:
        """Whether all servers have taken this worker's last gradient."""
        return bool((self._arrays["taken"][:, self._worker] >= self._arrays["pushed"][self._worker]).all())

    @property
    def ahead_of_slowest(self) -> int:
        """How many more gradients this worker has pushed than the slowest one."""
        pushed = self._arrays["pushed"]
        return int(pushed[self._worker] - pushed.min())

    def push(self, versions: Sequence[int], payloads: Sequence[Mapping[str, Any]], *, wake_workers: bool) -> None:
        """One payload for each server, with the version of the slice that it was computed with."""
        self._arrays["version"][self._worker] = versions
        for arrays, payload in zip(self._payloads, payloads, strict=True):
            for name, array in arrays.items():
                array[self._worker] = np.asarray(payload[name])
        self._arrays["pushed"][self._worker] += 1
        self._bells.readers()
        if wake_workers:
            self._bells.writers()


class GradientReader:
    """One server's port."""

    def __init__(self, slots: GradientSlots, server: int) -> None:
        self._arrays, self._server, self._payload = slots.arrays, server, slots.payload(server)
        self._ring = slots.bells.writers

    def arrived(self) -> NDArray[np.int64]:
        """Workers whose gradient this server has not taken."""
        return np.flatnonzero(self._arrays["pushed"] > self._arrays["taken"][self._server])

    def payload(self, worker: int) -> tuple[int, dict[str, Any]]:
        """The version of the weights behind a worker's gradient, and the payload."""
        arrays = {name: array[worker].copy() for name, array in self._payload.items()}
        return int(self._arrays["version"][worker, self._server]), arrays

    def take(self, workers: NDArray[np.int64]) -> None:
        """Free the slots of these workers."""
        self._arrays["taken"][self._server, workers] = self._arrays["pushed"][workers]
        self._ring()


CHECKSUMS = 1024
"""Latest versions whose checksums are held; bit-equal replicas have equal ones."""
GATHER_COUNTS = ("epoch", "halted", "submitted", "pause")
BESIDE = (*GATHER_COUNTS, "checksums")


class AllGather(Channel):
    """Equal replicas exchange their gradients: each submits, and gets those of all once all have submitted.

    Each replica has two slots, and a count of its submissions that moves last. A round is complete when every count
    has reached it. No replica submits to the next round but one before all have taken this one, so two slots are
    enough. Replicas are started together: `epoch` says for which of their starts a row counts. `pause` is the pause
    after which a replica submitted: what it withdrew in a later one does not count, even before the others know.
    """

    def __init__(self, name: str, payload: Callable[[], Fields], replicas: int, **labels: str) -> None:
        super().__init__(name, **labels)
        self.payload, self.replicas = payload, replicas

    @property
    def row_count(self) -> int:
        return self.replicas

    def fields(self) -> dict[str, Field]:
        payloads = {
            name: Field((self.replicas, 2, *shape), dtype, commit="submitted")
            for name, (shape, dtype) in self.payload().items()
        }
        count = Field((self.replicas,), "int64")
        checksums = Field((self.replicas, CHECKSUMS, 2), "int64")
        return {**payloads, **dict.fromkeys(GATHER_COUNTS, count), "checksums": checksums}

    @port("both")
    def replica(self, me: Any) -> Gathering:
        """`me.epoch` is equal for all that were started together; `me.await_others` sleeps a moment inside a pause."""
        return Gathering(self.arrays, me.rank, me.epoch, self.bells.readers, me.await_others)

    def mirror(self, source: Arrays, target: Arrays, side: str = WRITER, rows: Sequence[int] | None = None) -> int:
        """Each machine copies the rows of its own replicas, since all read and write all."""
        if side != WRITER:
            return 0
        own = own_rows(self.replicas, rows)
        moved = sum(self._mirror_row(source, target, row) for row in own.tolist())
        return moved + mirror_changed(source, target, ("checksums",), own)

    def _mirror_row(self, source: Arrays, target: Arrays, row: int) -> int:
        """What was submitted since, at most two rounds; a row of an earlier epoch is withdrawn first."""
        counts = {name: int(source[name][row]) for name in GATHER_COUNTS}  # in the order in which they are read
        known = {name: int(target[name][row]) for name in GATHER_COUNTS}
        if counts == known:
            return 0
        moved, again = 8 * len(counts), counts["epoch"] != known["epoch"]
        if again:
            target["submitted"][row] = 0
        new = counts["submitted"] - known["submitted"]
        if again or new > 0 or counts["pause"] != known["pause"]:
            slots = np.arange(2) if again or new != 1 else np.array([known["submitted"] % 2])
            moved += copy_rows(source, target, [name for name in source if name not in BESIDE], (row, slots))
        for name in ("epoch", "pause", "submitted", "halted"):
            target[name][row] = counts[name]
        return moved


class Gathering:
    """One replica's port.

    A replica that has halted calls `wait` until all have: it sleeps for a moment, and says whether to wait on. None =
    the others take turns in this thread, so waiting would not end.
    """

    def __init__(
        self,
        arrays: Arrays,
        rank: int,
        epoch: int,
        ring: Callable[[], None] = lambda: None,
        wait: Callable[[], bool] | None = None,
    ) -> None:
        self._rank, self._ring, self._wait, self._started = rank, ring, wait, epoch
        self._epoch, self._halted, self._submitted, self._pause = (arrays[name] for name in GATHER_COUNTS)
        self._payloads = {name: array for name, array in arrays.items() if name not in BESIDE}
        self._checksums = arrays["checksums"][rank]
        self._round = 0
        self._submitted[rank] = self._halted[rank] = 0
        self._epoch[rank] = epoch  # last: until then the others count this row as not there

    @property
    def replicas(self) -> int:
        return len(self._submitted)

    def _all(self, reached: NDArray[np.bool_]) -> bool:
        return bool((reached & (self._epoch == self._started)).all())

    def submit(self, payload: Mapping[str, Any]) -> None:
        for name, array in self._payloads.items():
            array[self._rank, self._round % 2] = np.asarray(payload[name])
        self._pause[self._rank] = self._halted[self._rank]
        self._submitted[self._rank] = self._round + 1
        self._ring()

    def poll(self) -> list[dict[str, Any]] | None:
        """The payloads of all replicas, valid until this one submits again; None while some are missing."""
        if not self._all((self._submitted > self._round) & (self._pause == self._pause[self._rank])):
            return None
        slot = self._round % 2
        self._round += 1
        return [{name: array[rank, slot] for name, array in self._payloads.items()} for rank in range(self.replicas)]

    def check(self, version: int, checksum: int) -> None:
        """Publish the checksum of the weights of this version, to be compared with the other replicas'."""
        self._checksums[version % CHECKSUMS] = (version, checksum)

    def halt(self) -> None:
        """Return when all replicas have halted: from then on no count moves forward until all go on.

        All halt equally often, once for each pause.
        """
        self._halted[self._rank] += 1
        mine = int(self._halted[self._rank])
        while self._wait is not None and not self._all(self._halted >= mine) and self._wait():
            pass

    def withdraw(self) -> None:
        """After all have halted: take back what was submitted to an incomplete round."""
        self._submitted[self._rank] = self._round
