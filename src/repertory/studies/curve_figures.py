"""Figures of scores as they rise: all contestants against one axis, and each alone before the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from repertory.studies.curves import Axis, Curve, curve, points
from repertory.studies.drawing import MUTED, NARROW, WIDE, Look, clip, looks, new_figure, panels, thousands
from repertory.studies.findings import Findings, Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES: dict[Axis, str] = {"env_steps": "env steps", "seconds": "seconds of training", "updates": "updates"}
NEAR = 0.9
"""A curve that ends beyond this share of the width has a stroke to its name."""
MARKS = 6
"""On each line, one of them at its end."""
LABEL_GAP = 0.048
"""Between two labels at the right, as a share of the height."""


def curves_of(findings: Findings, axis: Axis) -> list[Curve]:
    """Of all contestants that have one."""
    found = (curve(findings, contestant.name, axis) for contestant in findings.contestants)
    return [one for one in found if one is not None]


def rising(findings: Findings, axis: Axis, width: float) -> Figure | None:
    """Score against env steps, seconds or updates."""
    found = [one for one in curves_of(findings, axis) if one.x[-1] > 0]
    if not found:
        return None
    narrow = width == NARROW
    figure = new_figure(width, (2.5 + 0.16 * -(-len(found) // 2)) if narrow else 3.9)
    axes, styles = figure.subplots(), looks(findings)
    for one in found:
        _line(axes, one, styles[one.contestant])
    _frame(axes, findings, axis)
    if narrow:
        figure.legend(loc="outside lower center", ncols=2, handlelength=3.2, columnspacing=1.2)
    else:
        _name_ends(axes, found, styles)
    return figure


def _line(axes: Axes, one: Curve, style: Look) -> None:
    if one.low is not None and one.high is not None:
        axes.fill_between(one.x, one.low, one.high, color=style.colour, alpha=0.13, linewidth=0)
    marked = np.unique(np.linspace(0, len(one.x) - 1, MARKS).round().astype(int))
    axes.plot(one.x, one.score, markevery=marked.tolist(), label=clip(one.contestant, NARROW), **style.stroke)


def _frame(axes: Axes, findings: Findings, axis: Axis) -> None:
    """Labels, and a line where the target is."""
    axes.grid(axis="y")
    axes.set_xlim(left=0)
    axes.set(xlabel=NAMES[axis], ylabel="score (mean return)")
    thousands(axes.xaxis)
    thousands(axes.yaxis)
    if findings.target is not None:
        axes.axhline(findings.target, color=MUTED, linewidth=0.7, linestyle=(0, (2, 2)))


def _name_ends(axes: Axes, found: list[Curve], styles: dict[str, Look]) -> None:
    """Names at the right in the order of the last scores, as near to them as there is room."""
    low, high = axes.get_ylim()
    order = sorted(found, key=lambda one: float(one.score[-1]))
    heights = apart([(float(one.score[-1]) - low) / (high - low) for one in order], LABEL_GAP)
    for one, height in zip(order, heights, strict=True):
        _name_end(axes, one, height, styles[one.contestant])


def _name_end(axes: Axes, one: Curve, height: float, style: Look) -> None:
    """A piece of the line, then the name; a thin stroke leads to it from curves that end nearby."""
    right, place = axes.get_xlim()[1], axes.get_ylim()[0] + height * (axes.get_ylim()[1] - axes.get_ylim()[0])
    across = axes.get_yaxis_transform()
    if one.x[-1] > NEAR * right:
        lead = [float(one.x[-1]) / right, 1.015], [float(one.score[-1]), place]
        axes.plot(*lead, color=style.colour, linewidth=0.6, clip_on=False, transform=across)
    sample = [1.02, 1.045, 1.07], [place] * 3
    axes.plot(*sample, markevery=[1], clip_on=False, transform=across, **style.stroke)
    axes.text(1.08, place, clip(one.contestant, WIDE), va="center", fontsize=7.5, transform=across)


def apart(wished: list[float], gap: float) -> list[float]:
    """Heights in rising order, as near to those wished for as a gap between them allows."""
    count = len(wished)
    offsets = gap * np.arange(count)
    flat = _rising_fit(np.asarray(wished) - offsets)
    highest = max(1.0 - gap * (count - 1), 0.0)
    return [float(height) for height in np.clip(flat, min(0.0, highest), highest) + offsets]


def _rising_fit(values: np.ndarray) -> np.ndarray:
    """The nearest sequence that never falls: neighbours that would are pooled at their mean."""
    pools: list[list[float]] = []
    for value in values:
        pools.append([float(value)])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    return np.concatenate([np.full(len(pool), np.mean(pool)) for pool in pools])


def shared_axis(findings: Findings) -> Axis:
    """What the runs had in common: the axis on which they end closest to each other."""
    trials = [trial for one in findings.contestants for trial in findings.of(one.name) if trial.evaluations]
    steps, seconds = ([float(getattr(t.evaluations[-1], axis)) for t in trials] for axis in ("env_steps", "seconds"))
    return "seconds" if trials and _spread(seconds) < _spread(steps) else "env_steps"


def _spread(ends: list[float]) -> float:
    return max(ends) / max(min(ends), 1e-9)


def multiples(findings: Findings, width: float) -> Figure | None:
    """A panel for each contestant: its seeds, its mean, and the others in grey behind it."""
    axis = shared_axis(findings)
    found = [one for one in curves_of(findings, axis) if one.x[-1] > 0]
    if len(found) < 2:
        return None
    figure, grid = panels(width, len(found), 1.3)
    styles = looks(findings)
    for axes, one in zip(grid, found, strict=True):
        for other in found:
            axes.plot(other.x[::3], other.score[::3], color=MUTED, alpha=0.3, linewidth=0.6)
        _seeds(axes, findings.of(one.contestant), axis, styles[one.contestant])
        axes.plot(one.x, one.score, color=styles[one.contestant].colour, linewidth=1.8)
        _frame(axes, findings, axis)
        axes.set(title=clip(one.contestant, width), xlabel="", ylabel="")
    figure.supxlabel(NAMES[axis], fontsize=8)
    figure.supylabel("score (mean return)", fontsize=8)
    return figure


def _seeds(axes: Axes, trials: tuple[Trial, ...], axis: Axis, style: Look) -> None:
    for trial in trials:
        x, score = points(trial, axis)
        step = max(1, len(x) // 120)
        axes.plot(x[::step], score[::step], color=style.colour, alpha=0.55, linewidth=0.6)
