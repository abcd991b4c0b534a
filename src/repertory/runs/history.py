"""A run's history, what is due (logs, evaluations, checkpoints), seconds without training, and divergence."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from repertory.runs.metrics import Values, number

Evaluation = dict[str, float | int]

FACTOR = 20.0
"""Estimates may be this many times the largest return that was seen; a return below 1 counts as 1."""
LINES = 3
"""So many lines of metrics in a row must show divergence: a single batch may be odd."""
MEASURED = ("value_mean", "loss", "gradient_norm")


@dataclass
class History:
    """Saved with the run's checkpoints."""

    evaluations: list[Evaluation] = field(default_factory=list)
    seconds: float = 0.0
    resumes: int = 0

    @staticmethod
    def load(state: Mapping[str, Any] | None) -> History:
        """The history in a checkpoint; an empty one for a run that starts from nothing."""
        return History() if state is None else History(**state["history"])

    def state(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def finished(self) -> list[Evaluation]:
        """The evaluations of which no episode was cut off."""
        return [evaluation for evaluation in self.evaluations if not evaluation.get("unfinished")]

    @property
    def score(self) -> Evaluation | None:
        """The last finished evaluation; the last one if none is finished."""
        return next(reversed(self.finished or self.evaluations), None)


class Cadence:
    """Due at every multiple of `every`, once."""

    def __init__(self, every: float, now: float) -> None:
        self.every = every
        self.next = (now // every + 1) * every

    def due(self, now: float) -> bool:
        """Whether a multiple was reached since the last call that returned True."""
        if now < self.next:
            return False
        self.next = (now // self.every + 1) * self.every
        return True


class Pause:
    """Seconds without training: `with pause:` adds those of its block. Blocks are not nested."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began


class Divergence:
    """Looks at each line of metrics; warns once."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._largest_return: float | None = None
        self._skipped: float | None = None
        self._beyond = 0

    def look(self, values: Values) -> str | None:
        """A warning, the first time that values were out of their bounds for several lines."""
        returned = number(values, "episode_return")
        if returned is not None:
            self._largest_return = max(self._largest_return or 1.0, abs(returned))
        sign = self._overflow(values) or self._sign(values)
        if sign:
            self._beyond += 1
        elif any(number(values, key) is not None for key in MEASURED):
            self._beyond = 0
        if self._beyond < LINES or not sign or self.warnings:
            return None
        self.warnings.append(
            f"warning: learning diverges: {sign}; lower --agent.learning-rate, keep the target network, or scale the "
            "environment's rewards"
        )
        return self.warnings[0]

    def _overflow(self, values: Values) -> str:
        """Updates with gradients that are not finite are skipped, so only their count can be measured."""
        skipped, before = number(values, "skipped_updates") or 0.0, self._skipped
        self._skipped = skipped
        return f"{skipped:,.0f} gradients were not finite" if before is not None and skipped > before else ""

    def _sign(self, values: Values) -> str:
        """The value that is out of its bound; a loss grows at most with the square of the error."""
        if self._largest_return is None:
            return ""
        bound = FACTOR * self._largest_return
        for key, most in zip(MEASURED, (bound, bound**2, 1_000 * bound), strict=True):
            found = number(values, key)
            if found is not None and found > most:
                return f"{key} is {found:.3g}, where the largest return so far is {self._largest_return:.3g}"
        return ""
