"""What contestants are judged by, each run by one number; and who is best at what, as far as the seeds can tell."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from repertory.studies.curves import Axis, mean_score
from repertory.studies.findings import Contestant, Findings, Trial
from repertory.studies.statistics import Estimate, estimate, pairs_won, told_apart


@dataclass(frozen=True)
class Criterion:
    """One way to be better than another."""

    name: str
    unit: str
    """Of the number; empty for scores."""
    higher_is_better: bool
    of: Callable[[Findings, Trial], float | None]
    """A run's number; None if it has none, `inf` if it never got there."""
    steady: bool = False
    """Whether runs of one contestant scatter little and evenly, as rates do and scores do not."""
    median: bool = False
    """Whether seeds are told by their median, because some may never get there."""

    def values(self, findings: Findings, contestant: str) -> tuple[float, ...]:
        """One number for each finished run that has one."""
        found = (self.of(findings, trial) for trial in findings.of(contestant))
        return tuple(value for value in found if value is not None and not math.isnan(value))

    def estimate(self, values: tuple[float, ...]) -> Estimate:
        """What the seeds have in the middle."""
        return estimate(values, self.median)


def _to_target(axis: Axis) -> Callable[[Findings, Trial], float | None]:
    def of(findings: Findings, trial: Trial) -> float | None:
        if findings.target is None or not trial.evaluations:
            return None
        reached = trial.reached(findings.target)
        return math.inf if reached is None else float(getattr(reached, axis))

    return of


def _lag(_: Findings, trial: Trial) -> float | None:
    lags = [lag for lag in trial.lags if math.isfinite(lag)]
    return sum(lags) / len(lags) if lags else None


FINAL_SCORE = Criterion("final score", "", True, lambda _, trial: trial.finite_score)
SCORE_PER_STEP = Criterion(
    "mean score over the same env steps", "", True, lambda findings, trial: mean_score(findings, trial, "env_steps")
)
SCORE_PER_SECOND = Criterion(
    "mean score over the same time", "", True, lambda findings, trial: mean_score(findings, trial, "seconds")
)
SECONDS_TO_TARGET = Criterion("time to target", "s", False, _to_target("seconds"), median=True)
STEPS_TO_TARGET = Criterion("env steps to target", "env steps", False, _to_target("env_steps"), median=True)
ENV_STEPS_PER_S = Criterion(
    "env steps per second", "env steps/s", True, lambda _, trial: trial.env_steps_per_s, steady=True
)
UPDATES_PER_S = Criterion("updates per second", "updates/s", True, lambda _, trial: trial.updates_per_s, steady=True)
LAG = Criterion("mean policy lag", "updates", False, _lag)

SCORES = (FINAL_SCORE, SCORE_PER_STEP, SCORE_PER_SECOND)
CRITERIA = (*SCORES, SECONDS_TO_TARGET, STEPS_TO_TARGET, ENV_STEPS_PER_S, UPDATES_PER_S)


@dataclass(frozen=True)
class Place:
    """One contestant's place by one criterion."""

    contestant: str
    values: tuple[float, ...]
    estimate: Estimate
    apart: bool
    """Whether the seeds tell it from the best."""


@dataclass(frozen=True)
class Standing:
    """One criterion: the contestants from best to worst."""

    criterion: Criterion
    places: tuple[Place, ...]

    @property
    def best(self) -> Place:
        """The first."""
        return self.places[0]

    @property
    def behind(self) -> tuple[str, ...]:
        """Those that the seeds show to be behind the best."""
        return tuple(place.contestant for place in self.places[1:] if place.apart)

    @property
    def level(self) -> tuple[str, ...]:
        """Those that the seeds can't tell from the best."""
        return tuple(place.contestant for place in self.places[1:] if not place.apart)

    @property
    def seeds(self) -> int:
        """The most that any has."""
        return max(place.estimate.seeds for place in self.places)

    @property
    def tied(self) -> bool:
        """Whether all have the same number."""
        return len({place.estimate.value for place in self.places}) == 1

    def of(self, contestant: str) -> Place | None:
        """One contestant's place, if it has one."""
        return next((place for place in self.places if place.contestant == contestant), None)


def standing(findings: Findings, criterion: Criterion) -> Standing | None:
    """Those who have a number, best first; None if nobody has one."""
    found = {one.name: criterion.values(findings, one.name) for one in findings.contestants}
    numbers = {name: (values, criterion.estimate(values)) for name, values in found.items() if values}
    if not numbers:
        return None
    sign = -1 if criterion.higher_is_better else 1
    order = sorted(numbers, key=lambda name: (*_rank(*numbers[name], sign), -_final(findings, name)))
    best = numbers[order[0]][0]
    return Standing(
        criterion, tuple(Place(name, *numbers[name], _behind(criterion, best, numbers[name][0])) for name in order)
    )


def _behind(criterion: Criterion, best: tuple[float, ...], values: tuple[float, ...]) -> bool:
    """Whether the seeds show it; not where one who gets there less often is the faster one when it does."""
    higher = pairs_won(best, values)
    return told_apart(best, values, criterion.steady) and (higher if criterion.higher_is_better else 1 - higher) > 0.5


def _rank(values: tuple[float, ...], estimated: Estimate, sign: int) -> tuple[float, float]:
    """Those who get there with more of their seeds come first, then those who do best."""
    return sum(map(math.isinf, values)) / len(values), sign * estimated.value


def _final(findings: Findings, name: str) -> float:
    """Between equals, the one that scores more is named first."""
    values = FINAL_SCORE.values(findings, name)
    return FINAL_SCORE.estimate(values).value if values else -math.inf


def leading(findings: Findings) -> Criterion:
    """What answers the title: of actors the speed, else the time to a target that somebody reached, or the score."""
    if findings.kind == "scale":
        return ENV_STEPS_PER_S
    times = (SECONDS_TO_TARGET.values(findings, one.name) for one in findings.contestants)
    return SECONDS_TO_TARGET if any(math.isfinite(time) for each in times for time in each) else FINAL_SCORE


def ranked(findings: Findings) -> tuple[Contestant, ...]:
    """As tables and figures show them: best first; variants and numbers of actors in the order of the command."""
    found = None if findings.kind in ("ablate", "scale") else standing(findings, leading(findings))
    order = [] if found is None else [place.contestant for place in found.places]
    return tuple(sorted(findings.contestants, key=lambda one: order.index(one.name) if one.name in order else math.inf))


def reference(findings: Findings) -> str:
    """What the others are held against: the best, of an ablation the one with every part, of actors the fewest."""
    return next((one.name for one in ranked(findings)), "")


def standings(findings: Findings) -> tuple[Standing, ...]:
    """By every criterion for which there are numbers, and which somebody met; first that which answers the title."""
    first = leading(findings)
    found = (standing(findings, one) for one in sorted(CRITERIA, key=lambda criterion: criterion is not first))
    return tuple(one for one in found if one is not None and math.isfinite(one.best.estimate.value))
