"""Figures with a row for each contestant, the best on top: scores, times, rates, lag, duels, and how busy roles are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from repertory.studies.drawing import (
    BAR,
    DASHED,
    MUTED,
    Look,
    across,
    beside,
    looks,
    new_figure,
    panels,
    rows_of,
    side_by_side,
    ticks,
)
from repertory.studies.findings import Findings
from repertory.studies.numerals import number
from repertory.studies.standings import (
    FINAL_SCORE,
    Criterion,
    Place,
    leading,
    ranked,
    reference,
    standing,
)
from repertory.studies.statistics import FEWEST, improvement, told_apart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def dots(findings: Findings, width: float, *criteria: Criterion) -> Figure | None:
    """For each criterion and contestant: every seed, what they have in the middle, its interval and its number."""
    found = {criterion: places for criterion in criteria if (places := _places(findings, criterion))}
    names = [one.name for one in ranked(findings) if any(one.name in places for places in found.values())]
    if not names:
        return None
    figure, grid = side_by_side(width, len(found), 0.75 + 0.24 * len(names))
    for axes, (criterion, places) in zip(grid, found.items(), strict=True):
        for row, name in enumerate(names):
            if name in places:
                _row(axes, row, places[name], looks(findings)[name])
        rows_of(axes, beside(names, width))
        label = criterion.unit if criterion.steady else f"{criterion.name} ({criterion.unit or 'mean return'})"
        if criterion.unit:
            ends = [place.estimate.value for place in places.values()]
            seen = [value for place in places.values() for value in place.values if math.isfinite(value)]
            across(axes, label, [end for end in ends if math.isfinite(end)], seen)
        else:
            axes.set_xlabel(label)
            ticks(axes.xaxis)
    if findings.target is not None and FINAL_SCORE in found:
        grid[0].axvline(findings.target, **DASHED)
    return figure


def _places(findings: Findings, criterion: Criterion) -> dict[str, Place]:
    """By contestant; empty if nobody has a finite number."""
    found = standing(findings, criterion)
    if found is None or not any(math.isfinite(value) for place in found.places for value in place.values):
        return {}
    return {place.contestant: place for place in found.places}


def _row(axes: Axes, row: int, place: Place, style: Look) -> None:
    one, seen = place.estimate, [value for value in place.values if math.isfinite(value)]
    axes.plot(seen, [row] * len(seen), "|", color=MUTED, markersize=6, markeredgewidth=0.8)
    if one.low is not None and one.high is not None:
        axes.plot([one.low, one.high], [row, row], color=style.colour, **BAR)
    if math.isfinite(one.value):
        axes.plot(one.value, row, color=style.colour, marker=style.marker, markersize=5.5)
    reached = number(one.value) if math.isfinite(one.value) else f"{len(seen)} of {len(place.values)}"
    axes.text(1.02, row, reached if seen else "never", va="center", fontsize=7, transform=axes.get_yaxis_transform())


def pairs(findings: Findings) -> tuple[Criterion, Place, list[Place]] | None:
    """What decides, the one that others are held against, and these; None if seeds are too few."""
    criterion = FINAL_SCORE if findings.kind == "scale" else leading(findings)
    found = standing(findings, criterion)
    first = None if found is None else found.of(reference(findings))
    if found is None or first is None or first.estimate.seeds < FEWEST:
        return None
    names = [one.name for one in ranked(findings) if one.name != first.contestant]
    others = [place for name in names if (place := found.of(name)) and place.estimate.seeds >= FEWEST]
    return (criterion, first, others) if others else None


def duels(findings: Findings, width: float) -> Figure | None:
    """The probability that a run of the reference does better than one of each other."""
    found = pairs(findings)
    if found is None:
        return None
    criterion, first, others = found
    figure = new_figure(width, 0.85 + 0.24 * len(others))
    axes, styles = figure.subplots(), looks(findings)
    axes.axvline(50, **DASHED)
    for row, place in enumerate(others):
        _duel(axes, row, criterion, first, place, styles[place.contestant])
    rows_of(axes, beside([place.contestant for place in others], width))
    axes.set(xlim=(-3, 103), xlabel="pairs that it loses (%)")
    return figure


def _duel(axes: Axes, row: int, criterion: Criterion, first: Place, place: Place, style: Look) -> None:
    """Filled where the seeds tell the two apart."""
    better, worse = (first, place) if criterion.higher_is_better else (place, first)
    one = improvement(better.values, worse.values)
    axes.plot([100 * (one.low or 0.0), 100 * (one.high or 0.0)], [row, row], color=style.colour, **BAR)
    fill = style.colour if told_apart(first.values, place.values) else "none"
    axes.plot(100 * one.value, row, color=style.colour, marker=style.marker, markersize=6, markerfacecolor=fill)


def busy_roles(findings: Findings) -> dict[str, dict[str, float]]:
    """For each contestant that says so, each role's share of time at work, the mean of its seeds; busiest first."""
    found: dict[str, dict[str, float]] = {}
    for contestant in ranked(findings):
        told = [trial.busy for trial in findings.of(contestant.name) if trial.busy]
        roles = {role: float(np.mean([busy.get(role, 0.0) for busy in told])) for busy in told for role in busy}
        if roles:
            found[contestant.name] = dict(sorted(roles.items(), key=lambda one: -one[1]))
    return found


def utilisation(findings: Findings, width: float) -> Figure | None:
    """A panel for each contestant, a bar for each of its roles."""
    found = busy_roles(findings)
    if not found:
        return None
    counts, styles = [len(shares) for shares in found.values()], looks(findings)
    figure, grid, columns = panels(width, list(found), [0.36 + 0.16 * count for count in counts], sharey=False)
    for index, (axes, (name, shares)) in enumerate(zip(grid, found.items(), strict=True)):
        widths = [100 * share for share in shares.values()]
        axes.barh(range(len(shares)), widths, height=0.62, color=styles[name].colour)
        start = index - index % columns
        rows_of(axes, list(shares), max(counts[start : start + columns]))
        axes.set(xlim=(0, 104), xticks=(0, 50, 100))
    figure.supxlabel("time at work (%)", fontsize=8)
    return figure
