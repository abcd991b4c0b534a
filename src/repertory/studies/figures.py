"""The figures of a study. A function gives None where there is nothing to show: no figure is blank.

Figures of rows have a row for each contestant, the best on top. In figures of curves up to six contestants share one
panel; with more, each has its own, on common axes, with the reference in grey behind it.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from repertory.studies import drawing, statistics
from repertory.studies.drawing import BAR, DASHED, INK, MOST, MUTED, NARROW, Look, beside, looks, rows_of, ticks
from repertory.studies.results import Results
from repertory.studies.statistics import FINAL_SCORE, Axis, Criterion, Curve, Place, Rung
from repertory.studies.words import number, percent

NAMES: dict[Axis, str] = {"env_steps": "env steps", "seconds": "seconds of training", "updates": "updates"}


@dataclass(frozen=True)
class Sketch:
    """One kind of figure: how to draw it in one of the two widths, and its texts in `figures.toml`."""

    name: str
    draw: Callable[[Results, float], Figure | None]
    title: str
    caption: str
    shared: str = ""
    alone: str = ""


def rows(results: Results, width: float, *criteria: Criterion) -> Figure | None:
    """For each criterion and contestant: every seed, their middle, its interval and its number."""
    found: dict[Criterion, dict[str, Place]] = {}
    for criterion in criteria:
        standing = statistics.standing(results, criterion)
        if standing is not None and any(place.reached for place in standing.places):
            found[criterion] = {place.contestant: place for place in standing.places}
    names = [one.name for one in statistics.ranked(results) if any(one.name in places for places in found.values())]
    if not names:
        return None
    figure, grid = drawing.side_by_side(width, len(found), 0.75 + 0.24 * len(names))
    for axes, (criterion, places) in zip(grid, found.items(), strict=True):
        for row, name in enumerate(names):
            if name in places:
                _row(axes, row, places[name], looks(results)[name])
        rows_of(axes, beside(names, width))
        label = criterion.unit if criterion.steady else f"{criterion.name} ({criterion.unit or 'mean return'})"
        if criterion.unit:
            ends = [place.estimate.value for place in places.values()]
            seen = [value for place in places.values() for value in place.values if math.isfinite(value)]
            drawing.across(axes, label, [end for end in ends if math.isfinite(end)], seen)
        else:
            axes.set_xlabel(label)
            ticks(axes.xaxis)
    if results.target is not None and FINAL_SCORE in found:
        grid[0].axvline(results.target, **DASHED)
    return figure


def _row(axes: Axes, row: int, place: Place, style: Look) -> None:
    one, seen = place.estimate, [value for value in place.values if math.isfinite(value)]
    axes.plot(seen, [row] * len(seen), "|", color=MUTED, markersize=6, markeredgewidth=0.8)
    if one.low is not None and one.high is not None:
        axes.plot([one.low, one.high], [row, row], color=style.colour, **BAR)
    if math.isfinite(one.value):
        axes.plot(one.value, row, color=style.colour, marker=style.marker, markersize=5.5)
    reached = number(one.value) if math.isfinite(one.value) else f"{len(seen)} of {len(place.values)}"
    axes.text(1.02, row, reached if seen else "never", va="center", fontsize=7, transform=axes.get_yaxis_transform())


def duels(results: Results, width: float) -> Figure | None:
    """The probability that a run of the reference does better than one of each other contestant."""
    found = statistics.rivals(results)
    if found is None:
        return None
    criterion, first, others = found
    figure = drawing.new_figure(width, 0.85 + 0.24 * len(others))
    axes = figure.subplots()
    axes.axvline(50, **DASHED)
    for row, place in enumerate(others):
        better, worse = (first, place) if criterion.higher_is_better else (place, first)
        one, style = statistics.improvement(better.values, worse.values), looks(results)[place.contestant]
        axes.plot([100 * (one.low or 0.0), 100 * (one.high or 0.0)], [row, row], color=style.colour, **BAR)
        fill = style.colour if statistics.told_apart(first.values, place.values) else "none"
        axes.plot(100 * one.value, row, color=style.colour, marker=style.marker, markersize=6, markerfacecolor=fill)
    rows_of(axes, beside([place.contestant for place in others], width))
    axes.set(xlim=(-3, 103), xlabel="pairs that it loses (%)")
    return figure


def utilisation(results: Results, width: float) -> Figure | None:
    """Each role's share of time at work, the mean of the seeds, busiest first."""
    found: dict[str, list[tuple[str, float]]] = {}
    for contestant in statistics.ranked(results):
        told = [trial.busy for trial in results.of(contestant.name) if trial.busy]
        shares = {role: 100 * float(np.mean([busy.get(role, 0.0) for busy in told])) for busy in told for role in busy}
        if shares:
            found[contestant.name] = sorted(shares.items(), key=lambda one: -one[1])
    if not found:
        return None
    counts = [len(shares) for shares in found.values()]
    figure, grid, columns = drawing.panels(width, list(found), [0.36 + 0.16 * count for count in counts], sharey=False)
    for index, (axes, (name, bars)) in enumerate(zip(grid, found.items(), strict=True)):
        axes.barh(range(len(bars)), [share for _, share in bars], height=0.62, color=looks(results)[name].colour)
        start = index - index % columns
        rows_of(axes, [role for role, _ in bars], max(counts[start : start + columns]))
        axes.set(xlim=(0, 104), xticks=(0, 50, 100))
    figure.supxlabel("time at work (%)", fontsize=8)
    return figure


def rising(results: Results, width: float, *axes: Axis) -> Figure | None:
    """Learning curves against env steps, seconds or updates; many contestants only against the first of these."""
    found: dict[Axis | None, list[Curve]] = {axis: curves for axis in axes if (curves := _curves(results, axis))}
    if not found or max(map(len, found.values())) > MOST:
        return _apart(results, width, _curves(results, axes[0]), axes[0])
    return _together(results, width, found)


def each_alone(results: Results, width: float) -> Figure | None:
    """A panel for each of the contestants that share one elsewhere, on the axis of their budget."""
    axis: Axis = "env_steps" if "env steps" in results.budget else "seconds"
    found = _curves(results, axis)
    return _apart(results, width, found, axis) if 1 < len(found) <= MOST else None


def profiles(results: Results, width: float) -> Figure | None:
    found = list(
        statistics.profiles(
            {one.name: FINAL_SCORE.values(results, one.name) for one in statistics.ranked(results)}
        ).values()
    )
    if 0 < len(found) <= MOST:
        return _together(results, width, {None: found})
    return _apart(results, width, found, None)


def _curves(results: Results, axis: Axis) -> list[Curve]:
    found = (statistics.curve(results, contestant.name, axis) for contestant in statistics.ranked(results))
    return [one for one in found if one is not None and one.x[-1] > 0]


def _together(results: Results, width: float, found: Mapping[Axis | None, list[Curve]]) -> Figure:
    """A panel for each axis; None is that of performance profiles."""
    figure, grid = drawing.side_by_side(width, len(found), 2.6 if width == NARROW else 3.3)
    names = [one.name for one in statistics.ranked(results)]
    labels = dict(zip(names, beside(names, width), strict=True))
    for axes, (axis, curves) in zip(grid, found.items(), strict=True):
        for one in curves:
            _line(axes, results, one, axis, markevery=0.17, label=labels[one.contestant])
        _frame(axes, results, axis, curves, 5)
        if axes is not grid[0] and width != NARROW:
            axes.set_ylabel("")
    _legend(figure, grid[0], width)
    return figure


def _apart(results: Results, width: float, found: list[Curve], axis: Axis | None) -> Figure | None:
    """A panel for each contestant, with the curve of the reference behind it."""
    if not found:
        return None
    figure, grid, _ = drawing.panels(width, [one.contestant for one in found], [1.35] * len(found))
    for axes, one in zip(grid, found, strict=True):
        for first in found:
            if first is not one and first.contestant == statistics.reference(results):
                axes.plot(first.x, first.y, color=MUTED, linewidth=0.9, alpha=0.7)
        _line(axes, results, one, axis, linestyle="-", marker="", linewidth=1.8)
        _frame(axes, results, axis, found, 3)
        figure.supxlabel(axes.get_xlabel(), fontsize=8)
        figure.supylabel(axes.get_ylabel(), fontsize=8)
        axes.set(xlabel="", ylabel="")
    return figure


def _line(axes: Axes, results: Results, one: Curve, axis: Axis | None, **line: Any) -> None:
    """With its band; with the seeds where there are too few for a band, or where the contestant has its own panel."""
    style, trials = looks(results)[one.contestant], results.of(one.contestant)
    alone = "label" not in line
    if axis is not None and (alone or (one.low is None and len(trials) > 1)):
        runs = [np.stack(statistics.points(trial, axis), axis=1) for trial in trials]
        thinned = [run[:: max(1, len(run) // 120)] for run in runs]
        axes.add_collection(LineCollection(thinned, colors=style.colour, alpha=0.5, linewidths=0.6))
        axes.autoscale_view()
    elif one.low is not None and one.high is not None:
        axes.fill_between(one.x, one.low, one.high, color=style.colour, alpha=0.13, linewidth=0)
    axes.plot(one.x, one.y, **{**style.stroke, **line})


def _frame(axes: Axes, results: Results, axis: Axis | None, found: list[Curve], most: int) -> None:
    """Axes with about `most` ticks, their labels, and a line at the target."""
    axes.grid(axis="y")
    if axis is None:
        axes.set(xlabel="final score (mean return)", ylabel="runs that score more (%)", ylim=(-3, 103))
        ticks(axes.xaxis, most)
        return
    runs = [statistics.points(trial, axis)[0] for one in found for trial in results.of(one.contestant)]
    seen = [float(x[place]) for x in runs for place in (0, -1) if len(x)]
    drawing.across(axes, NAMES[axis], [float(one.x[-1]) for one in found], seen, most)
    ticks(axes.yaxis, most)
    axes.set_ylabel("score (mean return)")
    if results.target is not None:
        axes.axhline(results.target, **DASHED)


def _legend(figure: Figure, axes: Axes, width: float) -> None:
    """In the order in which the lines end, the highest on top; on a phone below, in two columns if names allow."""
    lines = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    lines.sort(key=lambda line: -float(np.asarray(line.get_ydata())[-1]))
    columns = 1 if any(len(str(line.get_label())) > 18 for line in lines) else 2
    where = {"loc": "outside lower center", "ncols": columns} if width == NARROW else {"loc": "outside right upper"}
    figure.legend(handles=lines, handlelength=3.2, **where)


def scaling(results: Results, width: float) -> Figure | None:
    """Rates of more and more actors beside what they would ideally be."""
    kinds = (statistics.ENV_STEPS_PER_S, statistics.UPDATES_PER_S) if results.kind == "scale" else ()
    found = [(criterion, rungs) for criterion in kinds if (rungs := statistics.ladder(results, criterion))]
    if not found:
        return None
    figure, grid = drawing.side_by_side(width, len(found), 2.5 if width == NARROW else 3.2, sharey=False)
    for index, (axes, (criterion, rungs)) in enumerate(zip(grid, found, strict=True)):
        _ladder(axes, rungs, criterion, drawing.look(index))
    return figure


def _ladder(axes: Axes, rungs: tuple[Rung, ...], criterion: Criterion, style: Look) -> None:
    actors, rates = [rung.actors for rung in rungs], [rung.rate.value for rung in rungs]
    axes.plot(actors, [rung.ideal for rung in rungs], color=MUTED, linewidth=0.9, linestyle=(0, (3, 2)), label="ideal")
    bands = [(rung.actors, rung.rate.low, rung.rate.high) for rung in rungs if rung.rate.low is not None]
    axes.vlines(*zip(*bands, strict=True), color=style.colour, linewidth=4, alpha=0.4) if bands else None
    axes.plot(actors, rates, color=drawing.COLOURS[0], marker=style.marker, label="measured")
    for rung in (rung for rung in rungs[1:] if rung.actors in _spaced(actors, 0.15)):
        below: dict[str, Any] = {"xytext": (3, -10), "textcoords": "offset points", "fontsize": 7, "color": INK}
        axes.annotate(percent(rung.efficiency), (rung.actors, rung.rate.value), **below)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    drawing.powers(axes.yaxis, (1.0, 2.0, 5.0))
    axes.set_xticks(_spaced(actors, 0.06))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xticks([], minor=True)
    axes.grid(axis="y")
    axes.set(xlabel="actors", ylabel=criterion.unit)
    axes.legend(loc="upper left")


def _spaced(actors: list[int], gap: float) -> list[int]:
    """From the most to the fewest, those that are a share of the logarithmic axis away from the one before."""
    found = actors[-1:]
    for count in reversed(actors):
        if math.log(found[-1] / count) >= gap * math.log(actors[-1] / actors[0]) > 0:
            found.append(count)
    return found


DRAW: Mapping[str, Callable[[Results, float], Figure | None]] = {
    "scaling": scaling,
    "time_to_target": lambda *given: rows(*given, statistics.SECONDS_TO_TARGET),
    "final_score": lambda *given: rows(*given, FINAL_SCORE),
    "score_seconds": lambda *given: rising(*given, "seconds"),
    "score_env_steps": lambda *given: rising(*given, "env_steps"),
    "score_updates": lambda *given: rising(*given, "updates"),
    "curves_each": each_alone,
    "improvement": duels,
    "profiles": profiles,
    "throughput": lambda *given: rows(*given, statistics.ENV_STEPS_PER_S, statistics.UPDATES_PER_S),
    "utilisation": utilisation,
    "lag": lambda *given: rows(*given, statistics.LAG),
}
_TEXTS = tomllib.loads(files("repertory.studies").joinpath("figures.toml").read_text(encoding="utf-8"))
SKETCHES = tuple(Sketch(name, draw=DRAW[name], **texts) for name, texts in _TEXTS.items())
