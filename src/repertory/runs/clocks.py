"""When something is due, and how long training has waited; imports nothing of ours."""

from __future__ import annotations

import time


class Cadence:
    """Due at every multiple of `every`, once."""

    def __init__(self, every: float, now: float) -> None:
        self.every = every
        self.next = (now // every + 1) * every

    def due(self, now: float) -> bool:
        """Whether a multiple was reached since the last time it was."""
        if now < self.next:
            return False
        self.next = (now // self.every + 1) * self.every
        return True


class Pause:
    """Seconds in which nobody trains: `with pause:` adds those that its block takes. Blocks are not nested."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began
