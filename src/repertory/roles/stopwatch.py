"""What the time is spent on; imports nothing of ours."""

from __future__ import annotations

import time


class Unwatched:
    """Nobody asks what the time is spent on."""

    def lap(self, name: str) -> None:
        """It does not matter."""


class Stopwatch:
    """Laps: the time since the last lap belongs to the name it is given."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Everything since the last lap was `name`."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now

    def shares(self) -> dict[str, float]:
        """Share of each name since the last call, adding up to 1."""
        total = sum(self.seconds.values()) or 1.0
        shares = {f"time/{name}": round(value / total, 4) for name, value in self.seconds.items()}
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        return shares
