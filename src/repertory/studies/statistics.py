"""Statistics of several seeds, as in rliable (Agarwal et al. 2021, https://arxiv.org/abs/2108.13264), and the ranking
of contestants by each criterion. Below three seeds there is no interval. The same data always give the same numbers.

A learning curve goes from where all seeds of a contestant have been evaluated to where the first unsolved one ends.
Between two evaluations a run's score is interpolated; after its last one it is held constant only if it was solved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats

from repertory.errors import missing_extra
from repertory.studies.results import Contestant, Results, Trial

Array: TypeAlias = npt.NDArray[np.float64]
Axis: TypeAlias = Literal["env_steps", "seconds", "updates"]
FEWEST = 3
"""Seeds below which no interval is given."""
REPETITIONS = 2000
"""Bootstrap resamples."""
CHANCE = 0.05
"""Significance level: two contestants differ where the p-value is at most this."""
PERMUTATIONS = 9999
THRESHOLDS = 161
"""Scores at which a performance profile is computed."""
POINTS = 100
"""Points of a learning curve."""
PAYS = 0.5
"""More actors pay while they add at least this share of what they would ideally add."""


def require() -> None:
    if find_spec("matplotlib") is None:
        raise missing_extra("the report of a study", "studies")


@dataclass(frozen=True)
class Estimate:
    """An interquartile mean, a median or a probability, with its 95 % interval if there are enough seeds."""

    value: float
    low: float | None
    high: float | None
    seeds: int


def interquartile_mean(values: Array, axis: int = 0) -> Array:
    middle: Array = stats.trim_mean(values, 0.25, axis=axis)
    return middle


def interval(statistic: Callable[..., Array], *samples: Array) -> Array:
    """The ends of the 95 % percentile bootstrap interval; seeds, along the first axis, are resampled whole."""
    random = np.random.RandomState(0)
    resampled = [sample[random.randint(len(sample), size=(REPETITIONS, len(sample)))] for sample in samples]
    ends: Array = np.percentile(statistic(*resampled, axis=1), [2.5, 97.5], axis=0)
    return ends


@lru_cache(maxsize=4096)
def estimate(values: tuple[float, ...], median: bool = False) -> Estimate:
    """Of one number a seed; where some are `inf` (never reached), the median without an interval."""
    scores = np.asarray(values, np.float64)
    finite = bool(np.isfinite(scores).all())
    middle: Callable[..., Any] = np.median if median or not finite else interquartile_mean
    low, high = map(float, interval(middle, scores)) if finite and len(scores) >= FEWEST else (None, None)
    return Estimate(float(middle(scores)), low, high, len(scores))


@lru_cache(maxsize=4096)
def improvement(ours: tuple[float, ...], theirs: tuple[float, ...]) -> Estimate:
    """The probability that a run of ours scores above one of theirs; a tie counts half."""
    seeds = min(len(ours), len(theirs))
    enough = seeds >= FEWEST
    low, high = map(float, interval(pairs_won, np.asarray(ours), np.asarray(theirs))) if enough else (None, None)
    return Estimate(float(pairs_won(ours, theirs)), low, high, seeds)


def pairs_won(ours: npt.ArrayLike, theirs: npt.ArrayLike, axis: int = 0) -> Any:
    """The share of all pairs of runs in which ours has the higher number; a tie counts half. Seeds: the last axis."""
    mine, others = np.expand_dims(np.asarray(ours), axis + 1), np.expand_dims(np.asarray(theirs), axis)
    return np.mean((mine > others) + 0.5 * (mine == others), axis=(axis, axis + 1))


@lru_cache(maxsize=4096)
def told_apart(ours: tuple[float, ...], theirs: tuple[float, ...], steady: bool = False) -> bool:
    """Whether two contestants differ significantly.

    Scores may have any distribution: a permutation test of their ranks. `steady` numbers, such as rates, scatter
    evenly: for Welch's t test, three runs each can be enough.
    """
    if min(len(ours), len(theirs)) < FEWEST or sorted(ours) == sorted(theirs):
        return False
    if not steady:  # the bootstrap would be sure of any three above three others, which is chance 1 time in 10
        permuted = stats.PermutationMethod(n_resamples=PERMUTATIONS, rng=np.random.default_rng(0))
        return bool(stats.mannwhitneyu(ours, theirs, method=permuted).pvalue <= CHANCE)
    scatter = len({*ours}) > 1 or len({*theirs}) > 1  # runs that do not scatter at all are different if they differ
    return not scatter or bool(stats.ttest_ind(ours, theirs, equal_var=False).pvalue <= CHANCE)


def chance_of_parting(ours: int, theirs: int) -> float:
    """How often chance puts all runs of one of two equal contestants above all of the other."""
    return 2 / math.comb(ours + theirs, ours)


@dataclass(frozen=True)
class Curve:
    """A contestant's runs `[seeds, x]` and their middle, with a 95 % band if there are enough seeds."""

    contestant: str
    x: Array
    runs: npt.NDArray[Any]
    middle: Callable[..., Array] = interquartile_mean

    @property
    def y(self) -> Array:
        return self.middle(self.runs, axis=0)

    @property
    def low(self) -> Array | None:
        return self._band[0]

    @property
    def high(self) -> Array | None:
        return self._band[1]

    @property
    def _band(self) -> tuple[Array | None, Array | None]:
        return _band(self.middle, tuple(map(tuple, self.runs.tolist()))) if len(self.runs) >= FEWEST else (None, None)


@lru_cache(maxsize=256)
def _band(middle: Callable[..., Array], runs: tuple[tuple[float, ...], ...]) -> tuple[Array, Array]:
    """Cached, as the same curve is in several figures."""
    low, high = interval(middle, np.asarray(runs))
    return low, high


def profiles(scores: Mapping[str, Sequence[float]]) -> dict[str, Curve]:
    """Performance profiles: the share of runs (%) above each score, over the range of all; below three seeds none."""
    enough = {name: np.asarray(values, np.float64)[:, None] for name, values in scores.items() if len(values) >= FEWEST}
    if not enough:
        return {}
    lowest, highest = min(map(np.min, enough.values())), max(map(np.max, enough.values()))
    margin = 0.02 * (highest - lowest) or 1.0
    thresholds = np.linspace(lowest - margin, highest + margin, THRESHOLDS)
    return {name: Curve(name, thresholds, 100.0 * (runs > thresholds), np.mean) for name, runs in enough.items()}


def points(trial: Trial, axis: Axis) -> tuple[Array, Array]:
    """Where a run was evaluated, and the scores that are finite numbers."""
    pairs = sorted((float(getattr(one, axis)), one.score) for one in trial.evaluations if math.isfinite(one.score))
    x, score = np.asarray(pairs, np.float64).reshape(-1, 2).T
    return x, score


def span(trials: Sequence[Trial], axis: Axis) -> tuple[float, float] | None:
    """Where all of these runs have a score; None if nowhere."""
    ends = [(points(trial, axis)[0], trial.status == "solved") for trial in trials]
    if not ends or any(len(x) == 0 for x, _ in ends):
        return None
    first = max(float(x[0]) for x, _ in ends)
    last = min((float(x[-1]) for x, solved in ends if not solved), default=max(float(x[-1]) for x, _ in ends))
    return (first, last) if first <= last else None


def curve(results: Results, contestant: str, axis: Axis) -> Curve | None:
    """The learning curve of a contestant, from its runs that have a score."""
    trials = [trial for trial in results.of(contestant) if len(points(trial, axis)[0])]
    found = span(trials, axis)
    if found is None:
        return None
    grid = np.unique(np.linspace(*found, POINTS))
    return Curve(contestant, grid, np.stack([np.interp(grid, *points(trial, axis)) for trial in trials]))


def shared_span(results: Results, axis: Axis) -> tuple[float, float] | None:
    """Where every finished run of the study that has scores has one."""
    trials = [trial for contestant in results.contestants for trial in results.of(contestant.name)]
    found = span([trial for trial in trials if len(points(trial, axis)[0])], axis)
    return found if found is not None and found[0] < found[1] else None


def mean_score(results: Results, trial: Trial, axis: Axis) -> float | None:
    """A run's mean score over the range that all runs share."""
    found = shared_span(results, axis)
    if found is None or not len(points(trial, axis)[0]):
        return None
    return float(np.interp(np.linspace(*found, POINTS), *points(trial, axis)).mean())


def to_target(results: Results, trial: Trial, axis: Axis) -> float | None:
    if results.target is None or not trial.evaluations:
        return None
    reached = trial.reached(results.target)
    return math.inf if reached is None else float(getattr(reached, axis))


@dataclass(frozen=True)
class Criterion:
    """A number for each run, by which contestants are ranked."""

    name: str
    unit: str
    """Empty for scores."""
    higher_is_better: bool
    of: Callable[[Results, Trial], float | None]
    """None if a run has no such number, `inf` if it never reached the target."""
    steady: bool = False
    """Runs of one contestant scatter little and evenly, as rates do and scores do not."""
    median: bool = False
    """Summarise seeds by their median, because some may be `inf`."""

    def values(self, results: Results, contestant: str) -> tuple[float, ...]:
        """One number for each finished run that has one."""
        found = (self.of(results, trial) for trial in results.of(contestant))
        return tuple(value for value in found if value is not None and not math.isnan(value))

    def estimate(self, values: tuple[float, ...]) -> Estimate:
        return estimate(values, self.median)


_seconds, _steps = (partial(to_target, axis=axis) for axis in ("seconds", "env_steps"))
_over_seconds, _over_steps = (partial(mean_score, axis=axis) for axis in ("seconds", "env_steps"))
FINAL_SCORE = Criterion("final score", "", True, lambda _, t: t.finite_score)
SCORE_PER_STEP = Criterion("mean score over the same env steps", "", True, _over_steps)
SCORE_PER_SECOND = Criterion("mean score over the same time", "", True, _over_seconds)
SECONDS_TO_TARGET = Criterion("time to target", "s", False, _seconds, median=True)
STEPS_TO_TARGET = Criterion("env steps to target", "env steps", False, _steps, median=True)
ENV_STEPS_PER_S = Criterion("env steps per second", "env steps/s", True, lambda _, t: t.env_steps_per_s, steady=True)
UPDATES_PER_S = Criterion("updates per second", "updates/s", True, lambda _, t: t.updates_per_s, steady=True)
LAG = Criterion("mean policy lag", "updates", False, lambda _, t: t.policy_lag)
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
    """Significantly behind the best."""

    @property
    def reached(self) -> int:
        """How many of its seeds reached the target; by a score, all do."""
        return sum(map(math.isfinite, self.values))


@dataclass(frozen=True)
class Standing:
    """The contestants ranked by one criterion, best first."""

    criterion: Criterion
    places: tuple[Place, ...]

    @property
    def best(self) -> Place:
        return self.places[0]

    @property
    def behind(self) -> tuple[str, ...]:
        return tuple(place.contestant for place in self.places[1:] if place.apart)

    @property
    def level(self) -> tuple[str, ...]:
        """Those that do not differ significantly from the best."""
        return tuple(place.contestant for place in self.places[1:] if not place.apart)

    @property
    def seeds(self) -> int:
        """The most that any contestant has."""
        return max(place.estimate.seeds for place in self.places)

    @property
    def tied(self) -> bool:
        return len({place.estimate.value for place in self.places}) == 1

    def of(self, contestant: str) -> Place | None:
        return next((place for place in self.places if place.contestant == contestant), None)


def standing(results: Results, criterion: Criterion) -> Standing | None:
    """Contestants that have a number, best first; None if there are none.

    Those that reach the target with more of their seeds come first, then those with the better number; ties are broken
    by the final score.
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

    def behind(values: tuple[float, ...]) -> bool:
        """Not where a contestant reaches the target less often but is the faster one when it does."""
        higher = pairs_won(best, values)
        ahead = (higher if criterion.higher_is_better else 1 - higher) > 0.5
        return ahead and told_apart(best, values, criterion.steady)

    order = sorted(numbers, key=rank)
    best = numbers[order[0]][0]
    return Standing(criterion, tuple(Place(name, *numbers[name], behind(numbers[name][0])) for name in order))


def leading(results: Results) -> Criterion:
    """The criterion that answers the title: speed for `scale`, else time to a target that was reached, else score."""
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
    """What others are compared with: the best, the agent with every part, or the fewest actors."""
    return next((one.name for one in ranked(results)), "")


def standings(results: Results) -> tuple[Standing, ...]:
    """By every criterion that has finite numbers; the one that answers the title first."""
    first = leading(results)
    found = (standing(results, one) for one in sorted(CRITERIA, key=lambda criterion: criterion is not first))
    return tuple(one for one in found if one is not None and math.isfinite(one.best.estimate.value))


def rivals(results: Results) -> tuple[Criterion, Place, list[Place]] | None:
    """The deciding criterion, the reference, and the others; None if there are too few seeds."""
    criterion = FINAL_SCORE if results.kind == "scale" else leading(results)
    found = standing(results, criterion)
    places = [] if found is None else [place for one in ranked(results) if (place := found.of(one.name))]
    enough = [place for place in places if place.estimate.seeds >= FEWEST]
    compared = len(enough) > 1 and enough[0].contestant == reference(results)
    return (criterion, enough[0], enough[1:]) if compared else None


@dataclass(frozen=True)
class Rung:
    """A number of actors and their total rate; `ideal`: the rate of the fewest actors times how many more these are."""

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
