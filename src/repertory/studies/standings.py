"""What contestants are judged by, each run by one number; who is best at what, as far as the seeds can tell; and what
more actors bring, against the ideal: the rate of the fewest actors times how many more there are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from repertory.studies.results import Contestant, Results, Trial
from repertory.studies.statistics import FEWEST, Axis, Estimate, estimate, mean_score, pairs_won, told_apart

PAYS = 0.5
"""More actors pay while at least this share of what they would ideally add is added."""


@dataclass(frozen=True)
class Criterion:
    """One way to be better than another."""

    name: str
    unit: str
    """Of the number; empty for scores."""
    higher_is_better: bool
    of: Callable[[Results, Trial], float | None]
    """A run's number; None if it has none, `inf` if it never got there."""
    steady: bool = False
    """Whether runs of one contestant scatter little and evenly, as rates do and scores do not."""
    median: bool = False
    """Whether seeds are told by their median, because some may never get there."""

    def values(self, results: Results, contestant: str) -> tuple[float, ...]:
        """One number for each finished run that has one."""
        found = (self.of(results, trial) for trial in results.of(contestant))
        return tuple(value for value in found if value is not None and not math.isnan(value))

    def estimate(self, values: tuple[float, ...]) -> Estimate:
        return estimate(values, self.median)


def _to_target(axis: Axis) -> Callable[[Results, Trial], float | None]:
    def of(results: Results, trial: Trial) -> float | None:
        if results.target is None or not trial.evaluations:
            return None
        reached = trial.reached(results.target)
        return math.inf if reached is None else float(getattr(reached, axis))

    return of


def _over(axis: Axis) -> Callable[[Results, Trial], float | None]:
    return lambda results, trial: mean_score(results, trial, axis)


def _lag(_: Results, trial: Trial) -> float | None:
    lags = [lag for lag in trial.lags if math.isfinite(lag)]
    return sum(lags) / len(lags) if lags else None


FINAL_SCORE = Criterion("final score", "", True, lambda _, t: t.finite_score)
SCORE_PER_STEP = Criterion("mean score over the same env steps", "", True, _over("env_steps"))
SCORE_PER_SECOND = Criterion("mean score over the same time", "", True, _over("seconds"))
SECONDS_TO_TARGET = Criterion("time to target", "s", False, _to_target("seconds"), median=True)
STEPS_TO_TARGET = Criterion("env steps to target", "env steps", False, _to_target("env_steps"), median=True)
ENV_STEPS_PER_S = Criterion("env steps per second", "env steps/s", True, lambda _, t: t.env_steps_per_s, steady=True)
UPDATES_PER_S = Criterion("updates per second", "updates/s", True, lambda _, t: t.updates_per_s, steady=True)
LAG = Criterion("mean policy lag", "updates", False, _lag)
CRITERIA = (
    FINAL_SCORE, SCORE_PER_STEP, SCORE_PER_SECOND, SECONDS_TO_TARGET, STEPS_TO_TARGET, ENV_STEPS_PER_S, UPDATES_PER_S,
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """One contestant's place by one criterion."""

    contestant: str
    values: tuple[float, ...]
    estimate: Estimate
    apart: bool
    """Whether the seeds show it to be behind the best."""

    @property
    def reached(self) -> int:
        """How many of its seeds got there; by a score, all do."""
        return sum(map(math.isfinite, self.values))


@dataclass(frozen=True)
class Standing:
    criterion: Criterion
    places: tuple[Place, ...]

    @property
    def best(self) -> Place:
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
        return next((place for place in self.places if place.contestant == contestant), None)


def standing(results: Results, criterion: Criterion) -> Standing | None:
    """Those who have a number, best first; None if nobody has one.

    Those who get there with more of their seeds come first, then those who do best; between equals, those who score
    more.
    """
    found = {one.name: criterion.values(results, one.name) for one in results.contestants}
    numbers = {name: (values, criterion.estimate(values)) for name, values in found.items() if values}
    if not numbers:
        return None

    def rank(name: str) -> tuple[float, float, float]:
        values, middle = numbers[name]
        scores, value = FINAL_SCORE.values(results, name), middle.value
        final = FINAL_SCORE.estimate(scores).value if scores else -math.inf
        return sum(map(math.isinf, values)) / len(values), -value if criterion.higher_is_better else value, -final

    order = sorted(numbers, key=rank)
    best = numbers[order[0]][0]
    return Standing(
        criterion, tuple(Place(name, *numbers[name], _behind(criterion, best, numbers[name][0])) for name in order)
    )


def _behind(criterion: Criterion, best: tuple[float, ...], values: tuple[float, ...]) -> bool:
    """Whether the seeds show it; not where one who gets there less often is the faster one when it does."""
    higher = pairs_won(best, values)
    return told_apart(best, values, criterion.steady) and (higher if criterion.higher_is_better else 1 - higher) > 0.5


def leading(results: Results) -> Criterion:
    """What answers the title: of actors the speed, else the time to a target that somebody reached, or the score."""
    if results.kind == "scale":
        return ENV_STEPS_PER_S
    times = (SECONDS_TO_TARGET.values(results, one.name) for one in results.contestants)
    return SECONDS_TO_TARGET if any(math.isfinite(time) for each in times for time in each) else FINAL_SCORE


def ranked(results: Results) -> tuple[Contestant, ...]:
    """As tables and figures show them: best first; variants and numbers of actors in the order of the command."""
    found = None if results.kind in ("ablate", "scale") else standing(results, leading(results))
    order = [] if found is None else [place.contestant for place in found.places]
    return tuple(sorted(results.contestants, key=lambda one: order.index(one.name) if one.name in order else math.inf))


def reference(results: Results) -> str:
    """What the others are held against: the best, of an ablation the one with every part, of actors the fewest."""
    return next((one.name for one in ranked(results)), "")


def standings(results: Results) -> tuple[Standing, ...]:
    """By every criterion for which there are numbers, and which somebody met; first that which answers the title."""
    first = leading(results)
    found = (standing(results, one) for one in sorted(CRITERIA, key=lambda criterion: criterion is not first))
    return tuple(one for one in found if one is not None and math.isfinite(one.best.estimate.value))


def rivals(results: Results) -> tuple[Criterion, Place, list[Place]] | None:
    """What decides, the one that others are held against, and these; None if seeds are too few."""
    criterion = FINAL_SCORE if results.kind == "scale" else leading(results)
    found = standing(results, criterion)
    first = None if found is None else found.of(reference(results))
    if found is None or first is None or first.estimate.seeds < FEWEST:
        return None
    names = [one.name for one in ranked(results) if one.name != first.contestant]
    others = [place for name in names if (place := found.of(name)) and place.estimate.seeds >= FEWEST]
    return (criterion, first, others) if others else None


@dataclass(frozen=True)
class Rung:
    """A number of actors, and the rate they reach together."""

    actors: int
    rate: Estimate
    ideal: float

    @property
    def efficiency(self) -> float:
        return self.rate.value / self.ideal


def ladder(results: Results, criterion: Criterion) -> tuple[Rung, ...]:
    """From the fewest actors to the most; empty where there are no rates to compare."""
    found = sorted((one.actors, one.name, criterion.values(results, one.name)) for one in results.contestants)
    rates = [(actors, criterion.estimate(values)) for actors, _, values in found if values and actors > 0]
    if len(rates) < 2 or rates[0][1].value <= 0:
        return ()
    each = rates[0][1].value / rates[0][0]
    return tuple(Rung(actors, rate, each * actors) for actors, rate in rates)


def last_that_pays(rungs: tuple[Rung, ...]) -> Rung:
    """The last rung before the first step that adds less than half of what it would ideally add."""
    for below, above in pairwise(rungs):
        ideal = above.ideal - below.ideal
        if ideal > 0 and above.rate.value - below.rate.value < PAYS * ideal:
            return below
    return rungs[-1]
