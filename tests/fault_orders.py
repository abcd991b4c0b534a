"""A worker that raises where it stands, whatever it is doing, when a signal says so."""

from __future__ import annotations

import signal
import threading
from typing import Any

from repertory.engines import worker_process

ORDER = signal.SIGRTMIN + 5
LAST_WORDS = threading.Event()
"""A worker that writes its report is not interrupted."""


def obey(signum: int, frame: Any) -> None:  # noqa: ARG001
    """Between two instructions of the main thread."""
    if not LAST_WORDS.is_set():
        raise RuntimeError("out of wits")


def run_on_order(given: worker_process.WorkerArguments, workers: tuple[int, ...]) -> None:
    """In place of the child's main function."""
    trace = worker_process.trace_of

    def in_peace(error: BaseException) -> str:
        LAST_WORDS.set()
        return trace(error)

    worker_process.trace_of = in_peace
    signal.signal(ORDER, obey)
    worker_process.run_worker(given, workers)
