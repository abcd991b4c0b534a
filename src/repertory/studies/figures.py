"""The figures of a study. None is ever blank: where there is nothing to show, a function gives None.

Rows: a row for each contestant, the best on top: scores, times, rates, lag, probabilities of improvement, how busy
roles are. Curves: scores as they rise, performance profiles, rates against ideal ones; up to six contestants share one
panel; of more, each has its own, on common axes, with the reference in grey behind it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from repertory.studies.drawing import (
    BAR,
    COLOURS,
    DASHED,
    INK,
    MOST,
    MUTED,
    NARROW,
    Look,
    Sketch,
    across,
    beside,
    look,
    looks,
    new_figure,
    panels,
    powers,
    rows_of,
    side_by_side,
    ticks,
)
from repertory.studies.results import Results, Trial
from repertory.studies.standings import (
    ENV_STEPS_PER_S,
    FINAL_SCORE,
    LAG,
    SECONDS_TO_TARGET,
    UPDATES_PER_S,
    Criterion,
    Place,
    Rung,
    ladder,
    ranked,
    reference,
    rivals,
    standing,
)
from repertory.studies.statistics import Axis, Curve, curve, improvement, points, profiles, told_apart
from repertory.studies.words import number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES: dict[Axis, str] = {"env_steps": "env steps", "seconds": "seconds of training", "updates": "updates"}
SCORE, ENDS, ABOVE = "score (mean return)", "final score (mean return)", "runs that score more (%)"


def dots(results: Results, width: float, *criteria: Criterion) -> Figure | None:
    """For each criterion and contestant: every seed, what they have in the middle, its interval and its number."""
    found = {criterion: places for criterion in criteria if (places := _places(results, criterion))}
    names = [one.name for one in ranked(results) if any(one.name in places for places in found.values())]
    if not names:
        return None
    figure, grid = side_by_side(width, len(found), 0.75 + 0.24 * len(names))
    for axes, (criterion, places) in zip(grid, found.items(), strict=True):
        for row, name in enumerate(names):
            if name in places:
                _row(axes, row, places[name], looks(results)[name])
        rows_of(axes, beside(names, width))
        label = criterion.unit if criterion.steady else f"{criterion.name} ({criterion.unit or 'mean return'})"
        if criterion.unit:
            ends = [place.estimate.value for place in places.values()]
            seen = [value for place in places.values() for value in place.values if math.isfinite(value)]
            across(axes, label, [end for end in ends if math.isfinite(end)], seen)
        else:
            axes.set_xlabel(label)
            ticks(axes.xaxis)
    if results.target is not None and FINAL_SCORE in found:
        grid[0].axvline(results.target, **DASHED)
    return figure


def _places(results: Results, criterion: Criterion) -> dict[str, Place]:
    """By contestant; empty if nobody has a finite number."""
    found = standing(results, criterion)
    places = {} if found is None else {place.contestant: place for place in found.places}
    return places if any(place.reached for place in places.values()) else {}


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
    """The probability that a run of the reference does better than one of each other."""
    found = rivals(results)
    if found is None:
        return None
    criterion, first, others = found
    figure = new_figure(width, 0.85 + 0.24 * len(others))
    axes, styles = figure.subplots(), looks(results)
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


def _busy_roles(results: Results) -> dict[str, dict[str, float]]:
    """For each contestant that says so, each role's share of time at work, the mean of its seeds; busiest first."""
    found: dict[str, dict[str, float]] = {}
    for contestant in ranked(results):
        told = [trial.busy for trial in results.of(contestant.name) if trial.busy]
        roles = {role: float(np.mean([busy.get(role, 0.0) for busy in told])) for busy in told for role in busy}
        if roles:
            found[contestant.name] = dict(sorted(roles.items(), key=lambda one: -one[1]))
    return found


def utilisation(results: Results, width: float) -> Figure | None:
    found = _busy_roles(results)
    if not found:
        return None
    counts, styles = [len(shares) for shares in found.values()], looks(results)
    figure, grid, columns = panels(width, list(found), [0.36 + 0.16 * count for count in counts], sharey=False)
    for index, (axes, (name, shares)) in enumerate(zip(grid, found.items(), strict=True)):
        widths = [100 * share for share in shares.values()]
        axes.barh(range(len(shares)), widths, height=0.62, color=styles[name].colour)
        start = index - index % columns
        rows_of(axes, list(shares), max(counts[start : start + columns]))
        axes.set(xlim=(0, 104), xticks=(0, 50, 100))
    figure.supxlabel("time at work (%)", fontsize=8)
    return figure


def _curves(results: Results, axis: Axis, band: bool = False) -> list[Curve]:
    found = (curve(results, contestant.name, axis, band) for contestant in ranked(results))
    return [one for one in found if one is not None and one.x[-1] > 0]


def rising(results: Results, width: float, *axes: Axis) -> Figure | None:
    """Score against env steps, seconds or updates: one panel for each axis, or of many contestants one for each."""
    found = {axis: curves for axis in axes if (curves := _curves(results, axis))}
    if not found or max(map(len, found.values())) > MOST:
        return _multiples(results, width, axes[0])
    figure, grid = side_by_side(width, len(found), 2.6 if width == NARROW else 3.3)
    labels = dict(zip(names := [one.name for one in ranked(results)], beside(names, width), strict=True))
    for place, (axis, curves) in zip(grid, found.items(), strict=True):
        for one in _curves(results, axis, band=True):
            _line(place, results, one, axis, labels[one.contestant])
        _frame(place, results, axis, curves)
        if place is not grid[0] and width != NARROW:
            place.set_ylabel("")
    _legend(figure, grid[0], width)
    return figure


def _line(axes: Axes, results: Results, one: Curve, axis: Axis, label: str) -> None:
    """With its band; where seeds are too few for one, with the seeds."""
    style = looks(results)[one.contestant]
    if one.low is not None and one.high is not None:
        axes.fill_between(one.x, one.low, one.high, color=style.colour, alpha=0.13, linewidth=0)
    elif len(results.of(one.contestant)) > 1:
        _seeds(axes, results.of(one.contestant), axis, style)
    axes.plot(one.x, one.y, markevery=0.17, label=label, **style.stroke)


def _frame(axes: Axes, results: Results, axis: Axis, found: list[Curve], most: int = 5) -> None:
    """Labels, and a line where the target is."""
    axes.grid(axis="y")
    runs = [points(trial, axis)[0] for one in found for trial in results.of(one.contestant)]
    seen = [float(x[place]) for x in runs for place in (0, -1) if len(x)]
    across(axes, NAMES[axis], [float(one.x[-1]) for one in found], seen, most)
    ticks(axes.yaxis, most)
    axes.set_ylabel(SCORE)
    if results.target is not None:
        axes.axhline(results.target, **DASHED)


def _legend(figure: Figure, axes: Axes, width: float) -> None:
    """In the order in which the lines end, the highest on top; on a telephone below, in two columns if names allow."""
    named = axes.get_legend_handles_labels()[0]
    lines = [line for line in axes.lines if line in named]
    lines.sort(key=lambda line: -float(np.asarray(line.get_ydata())[-1]))
    columns = 1 if any(len(str(line.get_label())) > 18 for line in lines) else 2
    where = {"loc": "outside lower center", "ncols": columns} if width == NARROW else {"loc": "outside right upper"}
    figure.legend(handles=lines, handlelength=3.2, **where)


def each_alone(results: Results, width: float) -> Figure | None:
    """A panel for each of the contestants that share one elsewhere, on the axis of their budget."""
    axis: Axis = "env_steps" if "env steps" in results.budget else "seconds"
    return _multiples(results, width, axis) if 1 < len(_curves(results, axis)) <= MOST else None


def _multiples(results: Results, width: float, axis: Axis) -> Figure | None:
    """A panel for each contestant: its seeds, their middle, and the reference behind it."""
    found = _curves(results, axis)
    if not found:
        return None
    figure, grid = _alone(results, width, found, 1.35, NAMES[axis], SCORE)
    for axes, one in zip(grid, found, strict=True):
        style = looks(results)[one.contestant]
        _seeds(axes, results.of(one.contestant), axis, style)
        axes.plot(one.x, one.y, color=style.colour, linewidth=1.8)
        _frame(axes, results, axis, found, most=3)
        figure.supxlabel(axes.get_xlabel(), fontsize=8)
        axes.set(xlabel="", ylabel="")
    return figure


def _alone(
    results: Results, width: float, found: list[Curve], height: float, xlabel: str, ylabel: str
) -> tuple[Figure, list[Axes]]:
    """A panel for each curve, with that of the reference behind it."""
    figure, grid, _ = panels(width, [one.contestant for one in found], [height] * len(found))
    first = next((one for one in found if one.contestant == reference(results)), None)
    for axes, one in zip(grid, found, strict=True):
        if first is not None and first is not one:
            axes.plot(first.x, first.y, color=MUTED, linewidth=0.9, alpha=0.7)
    figure.supxlabel(xlabel, fontsize=8)
    figure.supylabel(ylabel, fontsize=8)
    return figure, grid


def _seeds(axes: Axes, trials: tuple[Trial, ...], axis: Axis, style: Look) -> None:
    """All of them as one thing, which is not among the curves."""
    from matplotlib.collections import LineCollection

    every = [points(one, axis) for one in trials]
    lines = [list(zip(x[:: max(1, len(x) // 120)], y[:: max(1, len(x) // 120)], strict=True)) for x, y in every]
    axes.add_collection(LineCollection(lines, colors=style.colour, alpha=0.5, linewidths=0.6))
    axes.autoscale_view()


def profile_figure(results: Results, width: float) -> Figure | None:
    scores = {one.name: FINAL_SCORE.values(results, one.name) for one in ranked(results)}
    found = list(profiles(scores).values())
    if not found:
        return None
    if len(found) > MOST:
        figure, grid = _alone(results, width, found, 1.2, ENDS, ABOVE)
        for axes, one in zip(grid, found, strict=True):
            _profile(axes, one, looks(results)[one.contestant], linestyle="-", marker="")
        return figure
    figure, grid = side_by_side(width, 1, 2.6 if width == NARROW else 3.3)
    for one, label in zip(found, beside([one.contestant for one in found], width), strict=True):
        _profile(grid[0], one, looks(results)[one.contestant], label=label, markevery=0.17)
    grid[0].set(xlabel=ENDS, ylabel=ABOVE)
    _legend(figure, grid[0], width)
    return figure


def _profile(axes: Axes, one: Curve, style: Look, **line: Any) -> None:
    if one.low is not None and one.high is not None:
        axes.fill_between(one.x, one.low, one.high, color=style.colour, alpha=0.1, linewidth=0)
    axes.plot(one.x, one.y, **{**style.stroke, **line})
    axes.grid(axis="y")
    axes.set_ylim(-3, 103)
    ticks(axes.xaxis, 5 if "label" in line else 3)


def scaling(results: Results, width: float) -> Figure | None:
    """Rates of more and more actors beside what they would ideally be."""
    kinds = (ENV_STEPS_PER_S, UPDATES_PER_S) if results.kind == "scale" else ()
    found = [(criterion, rungs) for criterion in kinds if (rungs := ladder(results, criterion))]
    if not found:
        return None
    figure, grid = side_by_side(width, len(found), 2.5 if width == NARROW else 3.2, sharey=False)
    for index, (axes, (criterion, rungs)) in enumerate(zip(grid, found, strict=True)):
        _ladder(axes, rungs, criterion, look(index))
    return figure


def _ladder(axes: Axes, rungs: tuple[Rung, ...], criterion: Criterion, style: Look) -> None:
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


def _rows(name: str, title: str, caption: str, *criteria: Criterion) -> Sketch:
    """The caption goes on where it has `{rows}`."""
    middle = "their median" if criteria[0].median else "their interquartile mean"
    rows = f"Thin strokes: seeds; marker: {middle}; bar: its 95 % interval."
    return Sketch(name, title, caption.replace("{rows}", rows), lambda *given: dots(*given, *criteria))


def _rises(axis: Axis, title: str, caption: str) -> Sketch:
    return Sketch(f"score_{axis}", title, caption, lambda *given: rising(*given, axis), BAND, ALONE)


BAND = "Line: interquartile mean of the seeds; band: its 95 % bootstrap interval, from three seeds on."
ALONE = "Thin: the seeds, as they were evaluated; thick: their interquartile mean; grey: {0}."
SKETCHES = (
    Sketch(
        "scaling",
        "Scaling against ideal",
        "Dashed: the rate of the fewest actors times how many more there are; percentages: what is reached of it.",
        scaling,
    ),
    _rows(
        "time_to_target",
        "Time to target",
        "Seconds of training until an evaluation first reached the target. {rows} A seed that never got there has no "
        "stroke, but counts as infinitely late; then there is no bar.",
        SECONDS_TO_TARGET,
    ),
    _rows(
        "final_score",
        "Final score",
        "The last evaluation of every run. {rows} Dashed: the target, if there is one.",
        FINAL_SCORE,
    ),
    _rises("seconds", "Score against wall-clock time", "What you wait for. Start-up and compilation are not in it."),
    _rises("env_steps", "Score against env steps", "What the play of all environments together has taught."),
    _rises("updates", "Score against updates", "What an optimiser step is worth."),
    Sketch("curves_each", "Each alone", "", each_alone, alone=ALONE),
    Sketch(
        "improvement",
        "Probability of improvement",
        "How likely a run of {0} does better than one of each other, in time to the target if anybody reached it, else "
        "in score; ties count half. Marker: share of pairs; bar: 95 % interval. Filled: the seeds tell the two apart.",
        duels,
    ),
    Sketch(
        "profiles",
        "Performance profiles",
        "For each score, the share of runs that end above it; higher is better. Band: 95 % interval.",
        profile_figure,
        alone="Grey: {0}.",
    ),
    _rows(
        "throughput",
        "Throughput",
        "Env steps and updates per second of training. {rows}",
        *(ENV_STEPS_PER_S, UPDATES_PER_S),
    ),
    Sketch(
        "utilisation",
        "Who works and who waits",
        "For each role, the share of its time in which it does not wait for others. The role that all wait for is near "
        "100 %.",
        utilisation,
    ),
    _rows(
        "lag",
        "Policy lag",
        "How many updates old the weights were that chose what is learned from, on average over a run. {rows} With a "
        "replay it is about the replay's age, and harmless.",
        LAG,
    ),
)
