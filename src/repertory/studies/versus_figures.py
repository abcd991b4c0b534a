"""Figures that hold one against another: performance profiles, probability of improvement, rates against ideal ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repertory.studies import scaling
from repertory.studies.criteria import ENV_STEPS_PER_S, FINAL_SCORE, UPDATES_PER_S, Criterion
from repertory.studies.drawing import (
    BAR,
    COLOURS,
    INK,
    MUTED,
    NARROW,
    Look,
    clip,
    look,
    looks,
    new_figure,
    powers,
    rows_of,
    thousands,
)
from repertory.studies.findings import Findings
from repertory.studies.numerals import percent
from repertory.studies.standings import Place, standing
from repertory.studies.statistics import FEWEST, Profile, improvement, profiles, told_apart
from repertory.studies.words import reference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BANDS = 6
"""More would hide each other."""


def profile_figure(findings: Findings, width: float) -> Figure | None:
    """The share of runs that score above each threshold."""
    found = profiles({one.name: FINAL_SCORE.values(findings, one.name) for one in findings.contestants})
    if not found:
        return None
    narrow, styles = width == NARROW, looks(findings)
    figure = new_figure(width, (2.5 + 0.16 * -(-len(found) // 2)) if narrow else 3.6)
    axes = figure.subplots()
    for name, one in found.items():
        _profile(axes, clip(name, width), one, styles[name], band=len(found) <= MOST_BANDS)
    axes.grid(axis="y")
    axes.set(xlabel="final score (mean return)", ylabel="runs that score more (%)", ylim=(-3, 103))
    thousands(axes.xaxis)
    where = {"loc": "outside lower center", "ncols": 2} if narrow else {"loc": "outside right center"}
    figure.legend(handlelength=3.2, **where)
    return figure


def _profile(axes: Axes, label: str, one: Profile, style: Look, *, band: bool) -> None:
    if band:
        axes.fill_between(one.thresholds, 100 * one.low, 100 * one.high, color=style.colour, alpha=0.1, linewidth=0)
    axes.plot(one.thresholds, 100 * one.share, markevery=27, label=label, **style.stroke)


def pairs(findings: Findings) -> tuple[Place, list[Place]] | None:
    """The best, or of an ablation the reference, and those held against it; None if seeds are too few."""
    found = standing(findings, FINAL_SCORE)
    first = None if found is None else found.best
    if found is not None and findings.kind == "ablate":
        first = found.of(reference(findings))
    if found is None or first is None or first.estimate.seeds < FEWEST:
        return None
    others = [place for place in found.places if place is not first and place.estimate.seeds >= FEWEST]
    return (first, others) if others else None


def improvement_figure(findings: Findings, width: float) -> Figure | None:
    """The probability that a run of the best scores above one of each other."""
    found = pairs(findings)
    if found is None:
        return None
    first, others = found
    figure = new_figure(width, 0.85 + 0.24 * len(others))
    axes, styles = figure.subplots(), looks(findings)
    axes.axvline(50, color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)))
    for row, place in enumerate(others):
        _improvement(axes, row, first, place, styles[place.contestant])
    rows_of(axes, [clip(place.contestant, width) for place in others])
    axes.grid(axis="x")
    axes.set(xlim=(-3, 103), xlabel=f"runs of {clip(first.contestant, width)} score above it (% of pairs)")
    return figure


def _improvement(axes: Axes, row: int, first: Place, place: Place, style: Look) -> None:
    """Filled where the seeds tell the two apart."""
    one = improvement(first.values, place.values)
    axes.plot([100 * (one.low or 0.0), 100 * (one.high or 0.0)], [row, row], color=style.colour, **BAR)
    fill = style.colour if told_apart(first.values, place.values) else "none"
    axes.plot(100 * one.value, row, color=style.colour, marker=style.marker, markersize=6, markerfacecolor=fill)


def scaling_figure(findings: Findings, width: float) -> Figure | None:
    """Rates of more and more actors beside what they would ideally be."""
    kinds = (ENV_STEPS_PER_S, UPDATES_PER_S)
    found = [(criterion, scaling.ladder(findings, criterion)) for criterion in kinds]
    found = [(criterion, rungs) for criterion, rungs in found if rungs]
    if findings.kind != "scale" or not found:
        return None
    narrow = width == NARROW
    figure = new_figure(width, 2.5 * len(found) if narrow else 3.2)
    grid = figure.subplots(*((len(found), 1) if narrow else (1, len(found))), squeeze=False)
    for index, (axes, (criterion, rungs)) in enumerate(zip(grid.flat, found, strict=True)):
        _ladder(axes, rungs, criterion, look(index))
    return figure


def _ladder(axes: Axes, rungs: tuple[scaling.Rung, ...], criterion: Criterion, style: Look) -> None:
    actors, rates = [rung.actors for rung in rungs], [rung.rate.value for rung in rungs]
    axes.plot(actors, [rung.ideal for rung in rungs], color=MUTED, linewidth=0.9, linestyle=(0, (3, 2)), label="ideal")
    bands = [(rung.actors, rung.rate.low, rung.rate.high) for rung in rungs if rung.rate.low is not None]
    axes.vlines(*zip(*bands, strict=True), color=style.colour, linewidth=4, alpha=0.4) if bands else None
    axes.plot(actors, rates, color=COLOURS[0], marker=style.marker, label="measured")
    for rung in rungs[1:]:
        below: dict[str, Any] = {"xytext": (3, -10), "textcoords": "offset points", "fontsize": 7, "color": INK}
        axes.annotate(percent(rung.efficiency), (rung.actors, rung.rate.value), **below)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    powers(axes.yaxis, (1.0, 2.0, 5.0))
    axes.set_xticks(actors, [str(count) for count in actors])
    axes.set_xticks([], minor=True)
    axes.grid(axis="y")
    axes.set(xlabel="actors", ylabel=criterion.unit)
    axes.legend(loc="upper left")
