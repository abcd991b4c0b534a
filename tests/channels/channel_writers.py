"""What other processes do in tests of channels: they write until they are killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from commands import SERVER
from repertory.agents.agent import LearnerState
from repertory.channels.latest import Latest
from repertory.channels.snapshot import Shared, Snapshot
from repertory.engines.shared_memory import Block

SIZE, ADDITIONS = 20_000, 1_000
LEARNED: Any = LearnerState(
    *[jax.ShapeDtypeStruct((SIZE,), "float32")] * 3,  # type: ignore[no-untyped-call]
    *[jax.ShapeDtypeStruct((), "int32")] * 3,  # type: ignore[no-untyped-call]
)


class First:
    """The place of the first worker."""

    rank = 0


@contextmanager
def child(work: Callable[..., None], *arguments: Any) -> Iterator[Any]:
    """Another process, which does not outlive the test."""
    process = SERVER.Process(target=work, args=arguments, daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join(30)


def publish_for_ever(block: Block) -> None:
    channel, version = Latest("weights", lambda: SIZE), 0
    channel.bind(block.arrays())
    writer = channel.writer(First())
    while True:
        version += 1
        writer.publish(version, np.float32(version))
        if version % 3 == 0:
            time.sleep(1e-4)  # between bursts there is time to read


def save_for_ever(block: Block, count: int) -> None:
    channel = Snapshot("learner", lambda: LEARNED)
    channel.bind(block.arrays())
    owner = channel.owner(First())
    while True:
        count += 1
        vectors = [np.full(SIZE, count, np.float32)] * 3
        owner.save(LearnerState(*vectors, *[np.int32(count)] * 3))  # type: ignore[arg-type]


def shared_on(block: Block) -> Shared:
    channel = Shared("weights", lambda: LEARNED)
    channel.bind(block.arrays())
    return channel


def add_ones(block: Block, barrier: Any) -> None:
    store = shared_on(block).sharer()
    barrier.wait(60)
    for _ in range(ADDITIONS):
        store.add(np.ones(SIZE, np.float32), np.zeros(SIZE, np.float32), 0)
