"""What several seeds can tell, by rliable (Agarwal et al. 2021, https://arxiv.org/abs/2108.13264).

Interquartile means, bootstrap intervals, performance profiles and probabilities of improvement of one environment's
runs. Below three seeds no interval is invented. The same data always give the same numbers.

Curves of several seeds lie on one grid. Between two evaluations a run's score is the straight line between them; before
the first there is none. After the last it is carried forward only where the run ended because it was solved. So a
contestant's curve goes from where all its seeds have been evaluated to where the first that was not solved ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats

from repertory.errors import missing_extra
from repertory.studies.results import Results, Trial

Array: TypeAlias = npt.NDArray[np.float64]
Axis: TypeAlias = Literal["env_steps", "seconds", "updates"]

FEWEST = 3
"""Seeds below which no interval is given."""
REPETITIONS = 2000
CHANCE = 0.05
"""Two contestants are told apart where chance alone would part them less often than this."""
PERMUTATIONS = 9999
THRESHOLDS = 161
"""Scores at which a performance profile is looked at."""
POINTS = 100
"""Of the grid of a curve."""


@dataclass(frozen=True)
class Estimate:
    """An interquartile mean, a median or a probability, and the 95 % interval where there are seeds enough for one."""

    value: float
    low: float | None
    high: float | None
    seeds: int


@dataclass(frozen=True)
class Curve:
    """Of one contestant: a number of its seeds for each x, and its 95 % band where there are seeds enough."""

    contestant: str
    x: Array
    y: Array
    low: Array | None
    high: Array | None


def require() -> None:
    """Refuse, with what to install, where the packages that studies need are not there."""
    if find_spec("rliable") is None or find_spec("matplotlib") is None:
        raise missing_extra("the report of a study", "studies")


def interquartile_mean(values: Array) -> Array:
    """Along the first axis: the mean of what is left when the lowest and the highest quarter are cut off."""
    cut = len(values) // 4
    middle: Array = np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)
    return middle


@lru_cache(maxsize=4096)
def estimate(values: tuple[float, ...], median: bool = False) -> Estimate:
    """Of one number from each seed; where some are `inf` (never), it is the median, without an interval."""
    scores = np.asarray(values, np.float64)
    endless = not np.isfinite(scores).all()
    middle: Callable[..., Any] = np.median if median or endless else interquartile_mean
    if len(scores) < FEWEST or endless:
        return Estimate(float(middle(scores)), None, None, len(scores))
    low, high = interval(scores[:, None], lambda drawn: np.atleast_1d(middle(drawn[:, 0])))
    return Estimate(float(middle(scores)), float(low[0]), float(high[0]), len(scores))


def interval(scores: npt.NDArray[Any] | list[Array], what: Callable[..., Array]) -> tuple[Array, Array]:
    """The 95 % bootstrap interval of a function of scores, each `[seeds, 1, ...]`, that returns a vector."""
    require()
    from rliable import library

    with _same_draws():
        _, bounds = library.get_interval_estimates({"": scores}, what, reps=REPETITIONS)
    low, high = bounds[""]
    return low, high


@lru_cache(maxsize=4096)
def improvement(ours: tuple[float, ...], theirs: tuple[float, ...]) -> Estimate:
    """The probability that a run of ours scores above one of theirs; a tie counts half."""
    x, y = np.asarray(ours, np.float64)[:, None], np.asarray(theirs, np.float64)[:, None]
    seeds, value = min(len(x), len(y)), pairs_won(ours, theirs)
    if seeds < FEWEST:
        return Estimate(value, None, None, seeds)
    low, high = interval([x, y], _pairs_won)
    return Estimate(value, float(low[0]), float(high[0]), seeds)


def pairs_won(ours: tuple[float, ...], theirs: tuple[float, ...]) -> float:
    """The share of all pairs of runs in which ours has the higher number; a tie counts half."""
    return float(_pairs_won(np.asarray(ours, np.float64)[:, None], np.asarray(theirs, np.float64)[:, None])[0])


def _pairs_won(x: Array, y: Array) -> Array:
    """Equal to rliable's `probability_of_improvement`, and fifty times faster."""
    won: Array = np.array([np.mean(x > y.T) + 0.5 * np.mean(x == y.T)])
    return won


@lru_cache(maxsize=4096)
def told_apart(ours: tuple[float, ...], theirs: tuple[float, ...], steady: bool = False) -> bool:
    """Whether chance would part two contestants this far less than one time in twenty.

    Scores may lie anyhow, so only their order is looked at, by a permutation test; `steady` numbers, such as rates,
    scatter evenly, so that three runs each can be enough for Welch's t test.
    """
    if min(len(ours), len(theirs)) < FEWEST or sorted(ours) == sorted(theirs):
        return False
    if not steady:  # the bootstrap would be sure of any three above three others, which is chance 1 time in 10
        drawn = stats.PermutationMethod(n_resamples=PERMUTATIONS, rng=np.random.default_rng(0))
        return bool(stats.mannwhitneyu(ours, theirs, method=drawn).pvalue <= CHANCE)
    scatter = len({*ours}) > 1 or len({*theirs}) > 1  # runs that do not scatter at all are different if they differ
    return not scatter or bool(stats.ttest_ind(ours, theirs, equal_var=False).pvalue <= CHANCE)


def chance_of_parting(ours: int, theirs: int) -> float:
    """How often chance puts all runs of one of two equal contestants above all of the other."""
    return 2 / math.comb(ours + theirs, ours)


def profiles(scores: Mapping[str, Sequence[float]]) -> dict[str, Curve]:
    """Performance profiles: the share of runs (%) above each score, over the range of all; below three seeds none."""
    enough = {name: np.asarray(values, np.float64)[:, None] for name, values in scores.items() if len(values) >= FEWEST}
    if not enough:
        return {}
    lowest, highest = min(map(np.min, enough.values())), max(map(np.max, enough.values()))
    margin = 0.02 * (highest - lowest) or 1.0
    thresholds = np.linspace(lowest - margin, highest + margin, THRESHOLDS)

    def above(runs: Array) -> Array:
        share: Array = np.mean(runs > thresholds, axis=0)
        return share

    shares = {name: (above(runs), *interval(runs, above)) for name, runs in enough.items()}
    return {name: Curve(name, thresholds, *(100 * share for share in each)) for name, each in shares.items()}


@contextmanager
def _same_draws() -> Iterator[None]:
    """rliable 1.2 draws from NumPy's global state, whatever `random_state` it is given: set it, then put it back."""
    before: Any = np.random.get_state()
    np.random.seed(0)
    try:
        yield
    finally:
        np.random.set_state(before)


def points(trial: Trial, axis: Axis) -> tuple[Array, Array]:
    """Where a run was evaluated, and the scores that are finite numbers."""
    pairs = sorted((float(getattr(one, axis)), one.score) for one in trial.evaluations if math.isfinite(one.score))
    if not pairs:
        return np.empty(0), np.empty(0)
    x, score = np.asarray(pairs, np.float64).T
    return x, score


def span(trials: Sequence[Trial], axis: Axis) -> tuple[float, float] | None:
    """Where all of these runs have a score; None if nowhere."""
    ends = [(points(trial, axis)[0], trial.status == "solved") for trial in trials]
    if not ends or any(len(x) == 0 for x, _ in ends):
        return None
    first = max(float(x[0]) for x, _ in ends)
    last = min((float(x[-1]) for x, solved in ends if not solved), default=max(float(x[-1]) for x, _ in ends))
    return (first, last) if first <= last else None


def on_grid(trials: Sequence[Trial], axis: Axis, grid: Array) -> Array:
    """Scores `[seeds, grid]`; `np.interp` holds the last value, which `span` allows for solved runs only."""
    return np.stack([np.interp(grid, *points(trial, axis)) for trial in trials])


def curve(results: Results, contestant: str, axis: Axis, band: bool = True) -> Curve | None:
    """A contestant's curve, if it has one; runs without a single score have no part in it. A band takes its time."""
    trials = [trial for trial in results.of(contestant) if len(points(trial, axis)[0])]
    found = span(trials, axis)
    if found is None:
        return None
    grid = np.unique(np.linspace(*found, POINTS))
    scores = on_grid(trials, axis, grid)
    banded = band and len(trials) >= FEWEST
    low, high = _band(tuple(map(tuple, scores.tolist()))) if banded else (None, None)
    return Curve(contestant, grid, interquartile_mean(scores), low, high)


@lru_cache(maxsize=256)
def _band(scores: tuple[tuple[float, ...], ...]) -> tuple[Array, Array]:
    """The interval at each point of the grid; kept, as the same curve is drawn in several figures.

    Seeds are drawn, not scores, so that a run is drawn whole: rliable draws each point of the grid anew.
    """
    runs = np.asarray(scores)
    return interval(np.arange(len(runs))[:, None], lambda drawn: interquartile_mean(runs[drawn[:, 0]]))


def shared_span(results: Results, axis: Axis) -> tuple[float, float] | None:
    """Where every finished run of the study has a score: the ground on which scores are compared like with like."""
    trials = [trial for contestant in results.contestants for trial in results.of(contestant.name)]
    found = span([trial for trial in trials if len(points(trial, axis)[0])], axis)
    return found if found is not None and found[0] < found[1] else None


def mean_score(results: Results, trial: Trial, axis: Axis) -> float | None:
    """A run's mean score over the ground that all runs share."""
    found = shared_span(results, axis)
    if found is None or not len(points(trial, axis)[0]):
        return None
    return float(on_grid([trial], axis, np.linspace(*found, POINTS)).mean())
