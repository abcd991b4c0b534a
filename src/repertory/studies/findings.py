"""What a study found, as plain records: read from runs, given to statistics, figures, words and the page; no numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of one trial."""

    env_steps: int
    updates: int
    seconds: float
    score: float


@dataclass(frozen=True)
class Contestant:
    """One of the things compared: a topology, an agent without one of its parts, or a number of actors."""

    name: str
    """Unique in the study; what figures and words call it."""
    topology: str
    agent: str
    actors: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What was set for it, beyond what all have in common."""


@dataclass(frozen=True)
class Trial:
    """One run of one contestant with one seed."""

    contestant: str
    seed: int
    status: str
    """As in result.json (completed, solved, ...), or "failed", or "missing" while the study is not finished."""
    cause: str = ""
    """Of a failure, in the run's own words."""
    env_steps: int = 0
    updates: int = 0
    seconds: float = 0.0
    startup_s: float = 0.0
    evaluations: tuple[Evaluation, ...] = ()
    env_steps_per_s: float | None = None
    updates_per_s: float | None = None
    lags: tuple[float, ...] = ()
    """Mean policy lag of each line of metrics, in updates."""
    busy: Mapping[str, float] = field(default_factory=dict)
    """For each role, the share of its time at work, averaged over the lines of metrics."""
    directory: str = ""

    @property
    def finished(self) -> bool:
        """Whether it has something to say."""
        return self.status not in ("failed", "missing", "interrupted")

    @property
    def score(self) -> float | None:
        """The last evaluation."""
        return self.evaluations[-1].score if self.evaluations else None

    @property
    def finite_score(self) -> float | None:
        """The last evaluation, if it is a finite number: an older one would flatter a run that diverged."""
        return self.score if self.score is not None and math.isfinite(self.score) else None

    @property
    def best(self) -> float | None:
        """The best evaluation that is a finite number."""
        scores = (evaluation.score for evaluation in self.evaluations)
        return max((score for score in scores if math.isfinite(score)), default=None)

    def reached(self, score: float) -> Evaluation | None:
        """The first evaluation at or above a score."""
        return next((evaluation for evaluation in self.evaluations if evaluation.score >= score), None)


@dataclass(frozen=True)
class Findings:
    """A whole study."""

    kind: str
    """compare, ablate, scale or report."""
    environment: str
    command: str
    """What to type to make it again."""
    budget: str
    """In words: "60 s", "100,000 env steps", "until 475 or 50,000 env steps"."""
    target: float | None
    """The score that counts as solved, if one was named."""
    contestants: tuple[Contestant, ...]
    trials: tuple[Trial, ...]
    machine: str = ""
    """Cores, memory, versions: where the figures were seen."""

    def of(self, contestant: str) -> tuple[Trial, ...]:
        """The finished trials of one contestant, by seed."""
        found = (trial for trial in self.trials if trial.contestant == contestant and trial.finished)
        return tuple(sorted(found, key=lambda trial: trial.seed))

    @property
    def seeds(self) -> int:
        """The most seeds that any contestant finished."""
        return max((len(self.of(contestant.name)) for contestant in self.contestants), default=0)
