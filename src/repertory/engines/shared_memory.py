"""Memory, bells and a lifeline that processes share and the kernel frees; for Linux, with slower fallbacks elsewhere.

Everything here is a file descriptor without a name: the memory is a `memfd`, a bell is an `eventfd`, the lifeline is a
pipe. The kernel frees it when the last process that holds it ends, however it ends. The blocks of
`multiprocessing.shared_memory` have names, and a tracker that unlinks them too early or never.

Writers write data first and then a counter; readers read the counter first. On processors that keep the order of a
thread's stores (x86-64) that is enough; elsewhere the system calls of the bells are between the two.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import tempfile
import threading
from collections.abc import Callable, Mapping
from multiprocessing import reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.specs import Field

ALIGNMENT = 4096


class Descriptor:
    """A file descriptor that can be sent to a process that is being started."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.fd)

    def __setstate__(self, state: Any) -> None:
        self.fd = state.detach()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Block:
    """One piece of shared memory with named arrays; pages that were never written take no memory."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.fields = dict(fields)
        size = ALIGNMENT + sum(_room(field) for field in self.fields.values())
        self.file = Descriptor(anonymous_file(size))
        self.size = size

    def arrays(self) -> dict[str, NDArray[Any]]:
        memory = mmap.mmap(self.file.fd, self.size)
        arrays, offset = {}, 0
        for name, field in self.fields.items():
            count = field.nbytes // np.dtype(field.dtype).itemsize
            arrays[name] = np.frombuffer(memory, field.dtype, count, offset).reshape(field.shape)
            offset += _room(field)
        return arrays


def _room(field: Field) -> int:
    return -(-field.nbytes // ALIGNMENT) * ALIGNMENT


def anonymous_file(size: int) -> int:
    """The descriptor of a file without a name, in memory if the system can do that."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("repertory")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


class Bell:
    """Wakes a worker that waits; if none waits, the next wait returns at once."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            both = Descriptor(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
            self._ends = (both, both)
        else:
            read, write = os.pipe()
            os.set_blocking(read, False)
            os.set_blocking(write, False)
            self._ends = (Descriptor(read), Descriptor(write))

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it was rung often enough
            os.write(self._ends[1].fd, b"\x01\0\0\0\0\0\0\0")

    def wait(self, seconds: float) -> None:
        if select.select([self._ends[0].fd], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._ends[0].fd, 4096)

    def close(self) -> None:
        for end in self._ends:
            end.close()


class Lifeline:
    """A pipe whose only writer is the driver: its end of file means that the driver is gone."""

    def __init__(self) -> None:
        read, self._write = os.pipe()
        self.end = Descriptor(read)

    def __getstate__(self) -> Any:
        return self.end

    def __setstate__(self, end: Any) -> None:
        self.end, self._write = end, -1

    def watch(self, leave: Callable[[], None]) -> None:
        """Call `leave` when the driver is gone, whatever the other threads do."""

        def wait() -> None:
            os.read(self.end.fd, 1)
            leave()

        threading.Thread(target=wait, name="lifeline", daemon=True).start()

    def close(self) -> None:
        self.end.close()
        if self._write >= 0:
            os.close(self._write)
            self._write = -1
