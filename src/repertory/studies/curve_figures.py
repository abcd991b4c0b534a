"""Figures of curves: scores as they rise, performance profiles, rates against ideal ones.

Up to six contestants share one panel; of more, each has its own, on common axes, with the reference in grey behind it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from repertory.studies import scaling
from repertory.studies.curves import Axis, Curve, curve, points
from repertory.studies.drawing import (
    COLOURS,
    DASHED,
    INK,
    MOST,
    MUTED,
    NARROW,
    Look,
    across,
    beside,
    look,
    looks,
    panels,
    powers,
    side_by_side,
    ticks,
)
from repertory.studies.findings import Findings, Trial
from repertory.studies.numerals import percent
from repertory.studies.standings import ENV_STEPS_PER_S, FINAL_SCORE, UPDATES_PER_S, Criterion, ranked, reference
from repertory.studies.statistics import Profile, profiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES: dict[Axis, str] = {"env_steps": "env steps", "seconds": "seconds of training", "updates": "updates"}
SCORE, ENDS, ABOVE = "score (mean return)", "final score (mean return)", "runs that score more (%)"
BEHIND: dict[str, Any] = {"color": MUTED, "linewidth": 0.9, "alpha": 0.7}
"""How the reference is drawn behind another."""


def curves_of(findings: Findings, axis: Axis, band: bool = False) -> list[Curve]:
    """Of all contestants that have one."""
    found = (curve(findings, contestant.name, axis, band) for contestant in ranked(findings))
    return [one for one in found if one is not None and one.x[-1] > 0]


def rising(findings: Findings, width: float, *axes: Axis) -> Figure | None:
    """Score against env steps, seconds or updates: one panel for each axis, or of many contestants one for each."""
    found = {axis: curves for axis in axes if (curves := curves_of(findings, axis))}
    if not found or max(map(len, found.values())) > MOST:
        return _multiples(findings, width, axes[0])
    figure, grid = side_by_side(width, len(found), 2.6 if width == NARROW else 3.3)
    labels = dict(zip(names := [one.name for one in ranked(findings)], beside(names, width), strict=True))
    for place, (axis, curves) in zip(grid, found.items(), strict=True):
        for one in curves_of(findings, axis, band=True):
            _line(place, findings, one, axis, labels[one.contestant])
        _frame(place, findings, axis, curves)
        if place is not grid[0] and width != NARROW:
            place.set_ylabel("")
    _legend(figure, grid[0], width)
    return figure


def _line(axes: Axes, findings: Findings, one: Curve, axis: Axis, label: str) -> None:
    """With its band; where seeds are too few for one, with the seeds."""
    style = looks(findings)[one.contestant]
    if one.low is not None and one.high is not None:
        axes.fill_between(one.x, one.low, one.high, color=style.colour, alpha=0.13, linewidth=0)
    elif len(findings.of(one.contestant)) > 1:
        _seeds(axes, findings.of(one.contestant), axis, style)
    axes.plot(one.x, one.score, markevery=0.17, label=label, **style.stroke)


def _frame(axes: Axes, findings: Findings, axis: Axis, found: list[Curve], most: int = 5) -> None:
    """Labels, and a line where the target is."""
    axes.grid(axis="y")
    runs = [points(trial, axis)[0] for one in found for trial in findings.of(one.contestant)]
    seen = [float(x[place]) for x in runs for place in (0, -1) if len(x)]
    across(axes, NAMES[axis], [float(one.x[-1]) for one in found], seen, most)
    ticks(axes.yaxis, most)
    axes.set_ylabel(SCORE)
    if findings.target is not None:
        axes.axhline(findings.target, **DASHED)


def _legend(figure: Figure, axes: Axes, width: float) -> None:
    """In the order in which the lines end, the highest on top; on a telephone below, in two columns if names allow."""
    named = axes.get_legend_handles_labels()[0]
    lines = [line for line in axes.lines if line in named]
    lines.sort(key=lambda line: -float(np.asarray(line.get_ydata())[-1]))
    columns = 1 if any(len(str(line.get_label())) > 18 for line in lines) else 2
    where = {"loc": "outside lower center", "ncols": columns} if width == NARROW else {"loc": "outside right upper"}
    figure.legend(handles=lines, handlelength=3.2, **where)


def each(findings: Findings, width: float) -> Figure | None:
    """A panel for each of the contestants that share one elsewhere, on the axis of their budget."""
    axis: Axis = "env_steps" if "env steps" in findings.budget else "seconds"
    return _multiples(findings, width, axis) if 1 < len(curves_of(findings, axis)) <= MOST else None


def _multiples(findings: Findings, width: float, axis: Axis) -> Figure | None:
    """A panel for each contestant: its seeds, their middle, and the reference behind it."""
    found = curves_of(findings, axis)
    if not found:
        return None
    figure, grid, _ = panels(width, [one.contestant for one in found], [1.35] * len(found))
    styles, first = looks(findings), reference(findings)
    for axes, one in zip(grid, found, strict=True):
        for other in found:
            if other.contestant == first != one.contestant:
                axes.plot(other.x, other.score, **BEHIND)
        _seeds(axes, findings.of(one.contestant), axis, styles[one.contestant])
        axes.plot(one.x, one.score, color=styles[one.contestant].colour, linewidth=1.8)
        _frame(axes, findings, axis, found, most=3)
        label = axes.get_xlabel()
        axes.set(xlabel="", ylabel="")
    figure.supxlabel(label, fontsize=8)
    figure.supylabel(SCORE, fontsize=8)
    return figure


def _seeds(axes: Axes, trials: tuple[Trial, ...], axis: Axis, style: Look) -> None:
    """All of them as one thing, which is not among the curves."""
    from matplotlib.collections import LineCollection

    every = [points(one, axis) for one in trials]
    lines = [list(zip(x[:: max(1, len(x) // 120)], y[:: max(1, len(x) // 120)], strict=True)) for x, y in every]
    axes.add_collection(LineCollection(lines, colors=style.colour, alpha=0.5, linewidths=0.6))
    axes.autoscale_view()


def profile_figure(findings: Findings, width: float) -> Figure | None:
    """The share of runs that score above each threshold."""
    names = [one.name for one in ranked(findings)]
    found = profiles({name: FINAL_SCORE.values(findings, name) for name in names})
    if not found:
        return None
    if len(found) <= MOST:
        figure, grid = side_by_side(width, 1, 2.6 if width == NARROW else 3.3)
        for (name, one), label in zip(found.items(), beside(list(found), width), strict=True):
            _profile(grid[0], one, looks(findings)[name], label=label, markevery=0.17)
        grid[0].set(xlabel=ENDS, ylabel=ABOVE)
        _legend(figure, grid[0], width)
        return figure
    figure, grid, _ = panels(width, list(found), [1.2] * len(found))
    first = found.get(reference(findings))
    for axes, (name, one) in zip(grid, found.items(), strict=True):
        if first is not None and first is not one:
            axes.plot(first.thresholds, 100 * first.share, **BEHIND)
        _profile(axes, one, looks(findings)[name], linestyle="-", marker="")
    figure.supxlabel(ENDS, fontsize=8)
    figure.supylabel(ABOVE, fontsize=8)
    return figure


def _profile(axes: Axes, one: Profile, style: Look, **line: Any) -> None:
    axes.fill_between(one.thresholds, 100 * one.low, 100 * one.high, color=style.colour, alpha=0.1, linewidth=0)
    axes.plot(one.thresholds, 100 * one.share, **{**style.stroke, **line})
    axes.grid(axis="y")
    axes.set_ylim(-3, 103)
    ticks(axes.xaxis, 5 if "label" in line else 3)


def scaling_figure(findings: Findings, width: float) -> Figure | None:
    """Rates of more and more actors beside what they would ideally be."""
    kinds = (ENV_STEPS_PER_S, UPDATES_PER_S) if findings.kind == "scale" else ()
    found = [(criterion, scaling.ladder(findings, criterion)) for criterion in kinds]
    found = [(criterion, rungs) for criterion, rungs in found if rungs]
    if not found:
        return None
    figure, grid = side_by_side(width, len(found), 2.5 if width == NARROW else 3.2, sharey=False)
    for index, (axes, (criterion, rungs)) in enumerate(zip(grid, found, strict=True)):
        _ladder(axes, rungs, criterion, look(index))
    return figure


def _ladder(axes: Axes, rungs: tuple[scaling.Rung, ...], criterion: Criterion, style: Look) -> None:
    actors, rates = [rung.actors for rung in rungs], [rung.rate.value for rung in rungs]
    axes.plot(actors, [rung.ideal for rung in rungs], color=MUTED, linewidth=0.9, linestyle=(0, (3, 2)), label="ideal")
    bands = [(rung.actors, rung.rate.low, rung.rate.high) for rung in rungs if rung.rate.low is not None]
    axes.vlines(*zip(*bands, strict=True), color=style.colour, linewidth=4, alpha=0.4) if bands else None
    axes.plot(actors, rates, color=COLOURS[0], marker=style.marker, label="measured")
    for rung in (rung for rung in rungs[1:] if rung.actors in _spaced(actors, 0.15)):
        below: dict[str, Any] = {"xytext": (3, -10), "textcoords": "offset points", "fontsize": 7, "color": INK}
        axes.annotate(percent(rung.efficiency), (rung.actors, rung.rate.value), **below)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    powers(axes.yaxis, (1.0, 2.0, 5.0))
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
