"""What a run has been through, what is due, how long training has waited, and whether it diverges."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping


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


FACTOR = 20.0
"""Estimates may be this many times the largest return that was seen, and of a return below 1 as if it were 1."""
LINES = 3
"""So many lines of metrics in a row must show it: a single batch may be odd."""

MEASURED = ("value_mean", "loss", "gradient_norm")

Values = Mapping[str, float | int | str | None]


class Divergence:
    """Looks at each line of metrics; warns once."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._largest_return: float | None = None
        self._skipped: float | None = None
        self._beyond = 0

    def look(self, values: Values) -> str | None:
        """A warning, the first time that the values have been beyond their bounds for several lines."""
        returned = _number(values, "episode_return")
        if returned is not None:
            self._largest_return = max(self._largest_return or 1.0, abs(returned))
        sign = self._overflow(values) or self._sign(values)
        if sign:
            self._beyond += 1
        elif any(_number(values, key) is not None for key in MEASURED):
            self._beyond = 0
        if self._beyond < LINES or not sign or self.warnings:
            return None
        self.warnings.append(
            f"warning: learning diverges: {sign}; lower --agent.learning-rate, keep the target network, or scale the "
            "environment's rewards"
        )
        return self.warnings[0]

    def _overflow(self, values: Values) -> str:
        """Gradients that are no finite numbers are skipped, and leave nothing to measure but their count."""
        skipped, before = _number(values, "skipped_updates") or 0.0, self._skipped
        self._skipped = skipped
        return f"{skipped:,.0f} gradients were not finite" if before is not None and skipped > before else ""

    def _sign(self, values: Values) -> str:
        """What is beyond its bound; a loss grows with the square of the error at most. No return, no bound."""
        if self._largest_return is None:
            return ""
        bound = FACTOR * self._largest_return
        bounds = zip(MEASURED, (bound, bound**2, 1_000 * bound), strict=True)
        for key, most in bounds:
            number = _number(values, key)
            if number is not None and number > most:
                return f"{key} is {number:.3g}, where the largest return so far is {self._largest_return:.3g}"
        return ""


def _number(values: Values, key: str) -> float | None:
    found = values.get(key)
    return float(found) if isinstance(found, float | int) and math.isfinite(found) else None
