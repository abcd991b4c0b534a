"""A member of a company that raises where it stands, whatever it is doing, when a signal says so."""

from __future__ import annotations

import signal
import threading
from typing import Any

from repertory.engines import host

ORDER = signal.SIGRTMIN + 5
LAST_WORDS = threading.Event()
"""Whoever writes down what was raised is left in peace."""


def obey(signum: int, frame: Any) -> None:  # noqa: ARG001
    """Between two instructions of the main thread."""
    if not LAST_WORDS.is_set():
        raise RuntimeError("out of wits")


def perform_on_order(kit: host.Kit, crew: tuple[int, ...]) -> None:
    """In place of the child's main function."""
    trace = host.trace_of

    def in_peace(error: BaseException) -> str:
        LAST_WORDS.set()
        return trace(error)

    host.trace_of = in_peace
    signal.signal(ORDER, obey)
    host.perform(kit, crew)
