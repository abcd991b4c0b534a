"""Curves of several seeds on one grid, and where they end; imports `findings` and `statistics`.

Between two evaluations a run's score is the straight line between them; before the first there is none. After the last
it is carried forward only where the run ended because it was solved. So a contestant's curve goes from where all its
seeds have been evaluated to where the first that was not solved ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from repertory.studies.findings import Findings, Trial
from repertory.studies.statistics import FEWEST, Array, interquartile_mean, interval

Axis: TypeAlias = Literal["env_steps", "seconds", "updates"]

POINTS = 100


@dataclass(frozen=True)
class Curve:
    """Interquartile mean of the seeds, and its 95 % band where there are seeds enough."""

    contestant: str
    x: Array
    score: Array
    low: Array | None
    high: Array | None


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


def curve(findings: Findings, contestant: str, axis: Axis, band: bool = True) -> Curve | None:
    """A contestant's curve, if it has one; runs without a single score have no part in it. A band takes its time."""
    trials = [trial for trial in findings.of(contestant) if len(points(trial, axis)[0])]
    found = span(trials, axis)
    if found is None:
        return None
    grid = np.unique(np.linspace(*found, POINTS))
    scores = on_grid(trials, axis, grid)
    if len(trials) < FEWEST or not band:
        return Curve(contestant, grid, interquartile_mean(scores), None, None)
    return Curve(contestant, grid, interquartile_mean(scores), *_band(tuple(map(tuple, scores.tolist()))))


@lru_cache(maxsize=256)
def _band(scores: tuple[tuple[float, ...], ...]) -> tuple[Array, Array]:
    """The interval at each point of the grid; kept, as the same curve is drawn in several figures.

    Seeds are drawn, not scores, so that a run is drawn whole: rliable draws each point of the grid anew.
    """
    runs = np.asarray(scores)
    return interval(np.arange(len(runs))[:, None], lambda drawn: interquartile_mean(runs[drawn[:, 0]]))


def shared_span(findings: Findings, axis: Axis) -> tuple[float, float] | None:
    """Where every finished run of the study has a score: the ground on which scores are compared like with like."""
    trials = [trial for contestant in findings.contestants for trial in findings.of(contestant.name)]
    found = span([trial for trial in trials if len(points(trial, axis)[0])], axis)
    return found if found is not None and found[0] < found[1] else None


def mean_score(findings: Findings, trial: Trial, axis: Axis) -> float | None:
    """A run's mean score over the ground that all runs share."""
    found = shared_span(findings, axis)
    if found is None or not len(points(trial, axis)[0]):
        return None
    return float(on_grid([trial], axis, np.linspace(*found, POINTS)).mean())
