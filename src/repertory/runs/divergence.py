"""Notices learning that diverges: values or losses far beyond anything that the episodes' returns allow.

A discounted sum of rewards is seldom larger than the largest return that was seen. Estimates that stay above many times
that have fed on themselves: the "deadly triad" of bootstrapping, approximation and off-policy data (Sutton and Barto
2018, chapter 11.3), often without a target network or with too large steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

FACTOR = 20.0
"""Estimates may be this many times the largest return that was seen, and of a return below 1 as if it were 1."""
LINES = 3
"""So many lines of metrics in a row must show it: a single batch may be odd."""

Values = Mapping[str, float | int | str | None]


class Divergence:
    """Looks at each line of metrics; warns once."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._largest_return = 1.0
        self._beyond = 0

    def look(self, values: Values) -> str | None:
        """A warning, the first time that the values have been beyond their bounds for several lines."""
        returned = _number(values, "episode_return")
        self._largest_return = max(self._largest_return, abs(returned or 0.0))
        sign = self._sign(values)
        self._beyond = self._beyond + 1 if sign else 0
        if self._beyond < LINES or self.warnings:
            return None
        self.warnings.append(
            f"warning: learning diverges: {sign}, where the largest return so far is {self._largest_return:.3g}; "
            "lower --agent.learning-rate, keep the target network, or scale the environment's rewards"
        )
        return self.warnings[0]

    def _sign(self, values: Values) -> str:
        """What is beyond its bound; a loss grows with the square of the error at most."""
        bound = FACTOR * self._largest_return
        bounds = {"value_mean": bound, "loss": bound**2, "gradient_norm": 1_000 * bound}
        for key, most in bounds.items():
            number = _number(values, key)
            if number is not None and number > most:
                return f"{key} is {number:.3g}"
        return ""


def _number(values: Values, key: str) -> float | None:
    found = values.get(key)
    return float(found) if isinstance(found, float | int) and math.isfinite(found) else None
