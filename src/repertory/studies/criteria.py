"""What contestants are judged by: for each run one number, and which way is better. Imports `findings` and `curves`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from repertory.studies.curves import mean_score
from repertory.studies.findings import Findings, Trial


@dataclass(frozen=True)
class Criterion:
    """One way to be better than another."""

    name: str
    unit: str
    """Of the number; empty for scores."""
    best: str
    """What the best one has, in words."""
    higher_is_better: bool
    of: Callable[[Findings, Trial], float | None]
    """A run's number; None if it has none, `inf` if it never got there."""
    steady: bool = False
    """Whether runs of one contestant scatter little and evenly, as rates do and scores do not."""

    def values(self, findings: Findings, contestant: str) -> tuple[float, ...]:
        """One number for each finished run that has one."""
        found = (self.of(findings, trial) for trial in findings.of(contestant))
        return tuple(value for value in found if value is not None and not math.isnan(value))


def _score(_: Findings, trial: Trial) -> float | None:
    return trial.finite_score


def _score_per_step(findings: Findings, trial: Trial) -> float | None:
    return mean_score(findings, trial, "env_steps")


def _score_per_second(findings: Findings, trial: Trial) -> float | None:
    return mean_score(findings, trial, "seconds")


def _seconds_to_target(findings: Findings, trial: Trial) -> float | None:
    if findings.target is None or not trial.evaluations:
        return None
    reached = trial.reached(findings.target)
    return math.inf if reached is None else reached.seconds


def _steps_to_target(findings: Findings, trial: Trial) -> float | None:
    if findings.target is None or not trial.evaluations:
        return None
    reached = trial.reached(findings.target)
    return math.inf if reached is None else float(reached.env_steps)


def _env_steps_per_s(_: Findings, trial: Trial) -> float | None:
    return trial.env_steps_per_s


def _updates_per_s(_: Findings, trial: Trial) -> float | None:
    return trial.updates_per_s


def _lag(_: Findings, trial: Trial) -> float | None:
    lags = [lag for lag in trial.lags if math.isfinite(lag)]
    return sum(lags) / len(lags) if lags else None


FINAL_SCORE = Criterion("final score", "", "the highest final score", True, _score)
SCORE_PER_STEP = Criterion(
    "mean score over the same env steps", "", "the highest mean score over the same env steps", True, _score_per_step
)
SCORE_PER_SECOND = Criterion(
    "mean score over the same time", "", "the highest mean score over the same time", True, _score_per_second
)
SECONDS_TO_TARGET = Criterion("time to target", "s", "the best time to target", False, _seconds_to_target)
STEPS_TO_TARGET = Criterion(
    "env steps to target", "env steps", "the best number of env steps to target", False, _steps_to_target
)
ENV_STEPS_PER_S = Criterion(
    "env steps per second", "env steps/s", "the fastest play", True, _env_steps_per_s, steady=True
)
UPDATES_PER_S = Criterion("updates per second", "updates/s", "the fastest learning", True, _updates_per_s, steady=True)
LAG = Criterion("mean policy lag", "updates", "the lowest mean policy lag", False, _lag)

CRITERIA = (
    FINAL_SCORE,
    SCORE_PER_STEP,
    SCORE_PER_SECOND,
    SECONDS_TO_TARGET,
    STEPS_TO_TARGET,
    ENV_STEPS_PER_S,
    UPDATES_PER_S,
)
