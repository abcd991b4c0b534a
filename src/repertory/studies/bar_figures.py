"""Figures with a row for each contestant: scores, times, rates, how busy roles are; and histograms of lag."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from repertory.studies.criteria import ENV_STEPS_PER_S, UPDATES_PER_S, Criterion
from repertory.studies.drawing import (
    BAR,
    COLOURS,
    HATCHES,
    INK,
    MUTED,
    NARROW,
    PAPER,
    clip,
    looks,
    new_figure,
    panels,
    rows_of,
    thousands,
)
from repertory.studies.findings import Findings
from repertory.studies.numerals import number
from repertory.studies.standings import Place, standing
from repertory.studies.statistics import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 24


def _height(rows: int) -> float:
    return 0.75 + 0.24 * rows


def dots(findings: Findings, criterion: Criterion, width: float) -> Figure | None:
    """A row for each contestant, best on top: every seed, the interquartile mean, its interval."""
    found = standing(findings, criterion)
    places = [] if found is None else [place for place in found.places if any(map(math.isfinite, place.values))]
    if not places:
        return None
    figure = new_figure(width, _height(len(places)))
    axes = figure.subplots()
    for row, place in enumerate(places):
        _row(axes, row, place, findings)
    rows_of(axes, [clip(place.contestant, width) for place in places])
    if findings.target is not None and not criterion.unit:
        axes.axvline(findings.target, color=MUTED, linewidth=0.7, linestyle=(0, (2, 2)))
    axes.grid(axis="x")
    if criterion.unit:
        axes.set_xlim(left=0)
    axes.set_xlabel(f"{criterion.name} ({criterion.unit or 'mean return'})")
    thousands(axes.xaxis)
    return figure


def _row(axes: Axes, row: int, place: Place, findings: Findings) -> None:
    style, seen = looks(findings)[place.contestant], [value for value in place.values if math.isfinite(value)]
    axes.plot(seen, [row] * len(seen), "|", color=MUTED, markersize=6, markeredgewidth=0.8)
    if place.estimate.low is not None and place.estimate.high is not None:
        axes.plot([place.estimate.low, place.estimate.high], [row, row], color=style.colour, **BAR)
    if math.isfinite(place.estimate.value):
        axes.plot(place.estimate.value, row, color=style.colour, marker=style.marker, markersize=5.5)


def throughput(findings: Findings, width: float) -> Figure | None:
    """Bars of env steps and of updates per second, side by side or, on a telephone, one below the other."""
    names = [one.name for one in findings.contestants]
    rates = [(criterion, standing(findings, criterion)) for criterion in (ENV_STEPS_PER_S, UPDATES_PER_S)]
    found = [(criterion, {p.contestant: p for p in one.places}) for criterion, one in rates if one is not None]
    if not found:
        return None
    names = [name for name in names if any(name in places for _, places in found)]
    narrow = width == NARROW
    figure = new_figure(width, _height(len(names)) * (len(found) if narrow else 1))
    grid = figure.subplots(*((len(found), 1) if narrow else (1, len(found))), sharey=True, squeeze=False)
    for axes, (criterion, places) in zip(grid.flat, found, strict=True):
        _bars(axes, names, places, findings)
        rows_of(axes, [clip(name, width) for name in names])
        axes.set_xlabel(criterion.unit)
    return figure


def _bars(axes: Axes, names: list[str], places: dict[str, Place], findings: Findings) -> None:
    styles, highest = looks(findings), 0.0
    for row, name in ((row, name) for row, name in enumerate(names) if name in places):
        one = places[name].estimate
        axes.barh(row, one.value, height=0.62, color=styles[name].colour, alpha=0.75)
        if one.low is not None and one.high is not None:
            axes.plot([one.low, one.high], [row, row], color=INK, linewidth=0.9)
        end = max(one.value, one.high or 0.0)
        highest = max(highest, end)
        axes.annotate(number(one.value), (end, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_xlim(0, 1.22 * highest or 1.0)
    axes.grid(axis="x")
    thousands(axes.xaxis)


def busy_roles(findings: Findings) -> dict[str, dict[str, float]]:
    """For each contestant that says so, each role's share of time at work, the mean of its seeds."""
    found: dict[str, dict[str, float]] = {}
    for contestant in findings.contestants:
        told = [trial.busy for trial in findings.of(contestant.name) if trial.busy]
        roles = list(dict.fromkeys(role for busy in told for role in busy))
        if roles:
            found[contestant.name] = {role: float(np.mean([busy.get(role, 0.0) for busy in told])) for role in roles}
    return found


def utilisation(findings: Findings, width: float) -> Figure | None:
    """A bar for each contestant: how busy each of its roles is, one behind the other."""
    found = busy_roles(findings)
    if not found:
        return None
    roles, across = list(dict.fromkeys(role for busy in found.values() for role in busy)), 2 if width == NARROW else 5
    figure = new_figure(width, _height(len(found)) + 0.2 * math.ceil(len(roles) / across))
    axes = figure.subplots()
    _stack(axes, roles, found)
    rows_of(axes, [clip(name, width) for name in found])
    axes.grid(axis="x")
    axes.set_xlabel("time at work, roles added up (%)")
    figure.legend(loc="outside lower center", ncols=across)
    return figure


def _stack(axes: Axes, roles: list[str], found: dict[str, dict[str, float]]) -> None:
    start = np.zeros(len(found))
    for index, role in enumerate(roles):
        shares = np.asarray([100 * busy.get(role, 0.0) for busy in found.values()])
        style: dict[str, Any] = {
            "color": COLOURS[index % len(COLOURS)],
            "hatch": HATCHES[index % len(HATCHES)],
            "edgecolor": PAPER,
        }
        axes.barh(range(len(found)), shares, height=0.62, left=start, linewidth=0.5, label=role, **style)
        start += shares


def lags(findings: Findings, width: float) -> Figure | None:
    """A histogram for each contestant: how old the weights were that chose what is learned from."""
    found = _finite_lags(findings)
    if not found:
        return None
    highest = max(float(values.max()) for values in found.values())
    edges = np.concatenate([[0.0], np.geomspace(1.0, max(highest, 2.0) * 1.05, BINS)])
    figure, grid = panels(width, len(found), 0.95)
    styles = looks(findings)
    for axes, (name, values) in zip(grid, found.items(), strict=True):
        _histogram(axes, values, edges, styles[name].colour)
        axes.set_title(clip(name, width))
    figure.supxlabel("policy lag (updates; linear up to 1, then logarithmic)", fontsize=8)
    figure.supylabel("lines of metrics (%)", fontsize=8)
    return figure


def _finite_lags(findings: Findings) -> dict[str, Array]:
    every = {one.name: [lag for trial in findings.of(one.name) for lag in trial.lags] for one in findings.contestants}
    found = {name: np.asarray([lag for lag in lags if math.isfinite(lag)]) for name, lags in every.items()}
    return {name: values for name, values in found.items() if len(values)}


def _histogram(axes: Axes, values: Array, edges: Array, colour: str) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.hist(values, edges.tolist(), weights=np.full(len(values), 100 / len(values)), color=colour, alpha=0.75)
    axes.set_xscale("symlog", linthresh=1.0)
    axes.set_xticks(_decades(float(edges[-1])))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.minorticks_off()
    axes.grid(axis="y")


def _decades(highest: float) -> list[float]:
    """0, 1, 10, 100, ...; every other one where they would be crowded."""
    powers = range(int(math.log10(highest)) + 1)
    return [0.0, *(10.0**power for power in powers[:: 1 if len(powers) < 4 else 2])]
