"""Threads that each do one thing at a time, for environments that mostly wait; imports nothing of ours."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)
"""Let whoever else is ready run first, without the interpreter's lock."""


class Threads:
    """`count` threads; what one is given while it is busy waits for its turn.

    Each tells what came of it, what was raised included, by `tell(index, outcome)`: a call in that thread itself, so
    that whoever has the next thing to do at hand goes on without anybody being woken.
    """

    def __init__(self, count: int, tell: Callable[[int, Any], None]) -> None:
        self._given: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(count)]
        self._tell = tell
        self._threads = [threading.Thread(target=self._work, args=(index,), daemon=True) for index in range(count)]
        for thread in self._threads:
            thread.start()

    def do(self, index: int, what: Callable[..., Any], *given: Any) -> None:
        """Let one thread call `what`."""
        self._given[index].put((what, given))

    def end(self, seconds: float) -> None:
        """Let all end once they have done what they were given; those that have not after so long are left behind."""
        for given in self._given:
            given.put(None)
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _work(self, index: int) -> None:
        take, tell = self._given[index].get, self._tell
        while (given := take()) is not None:
            what, arguments = given
            try:
                outcome = what(*arguments)
            except BaseException as error:
                outcome = error
            tell(index, outcome)
