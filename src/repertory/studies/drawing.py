"""How figures look: colours, lines, markers, panels, axes, labels; and their SVG text. matplotlib without pyplot.

Colours are those of Okabe and Ito (https://jfly.uni-koeln.de/color), safe for the colour-blind, yellow darkened for
white paper. Sixteen contestants differ in colour or line, and all of them in marker, so grey print can be read too.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from repertory.studies.results import Results
from repertory.studies.words import brief

WIDE, NARROW = 8.0, 3.7
"""Inches: for a wide page, and for a phone."""
MOST = 6
"""Curves or bands in one panel: more would hide each other."""
FAR = 10.0
"""An axis is logarithmic where the largest value is this many times the smallest."""
LETTER = 0.078
"""Width of a letter of a title in inches, about."""
INK, MUTED, RULE, PAPER = "#1d2329", "#5d6670", "#d5dade", "#fefefe"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#111111", "#a89a00")
LINES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*", "h", "d", "8", "H", (4, 1, 45))
BAR: dict[str, Any] = {"linewidth": 4, "alpha": 0.4, "solid_capstyle": "butt"}
"""How an interval is drawn."""
DASHED: dict[str, Any] = {"color": MUTED, "linewidth": 0.8, "linestyle": (0, (2, 2))}
"""How a target is drawn."""

SETTINGS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "text.color": INK,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "repertory",
    "text.parse_math": False,
}
for _axis in ("xtick", "ytick"):
    SETTINGS |= {f"{_axis}.color": MUTED, f"{_axis}.labelcolor": INK, f"{_axis}.labelsize": 7.5}
    SETTINGS |= {f"{_axis}.major.width": 0.6, f"{_axis}.major.size": 2.5}

VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", RULE: "var(--rule)", PAPER: "var(--paper)", "#ffffff": "none"}
VARIABLES |= {colour: f"var(--c{index})" for index, colour in enumerate(COLOURS)}
_HEAD = re.compile(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>')
_DROPPED = re.compile(r"<metadata>.*?</metadata>|<!--.*?-->| transform=\"rotate\(-0 [^)]*\)\"", re.DOTALL)
_REFERENCE = re.compile(r'(\bid="|href="#|url\(#)')
_COLOUR = re.compile("|".join(VARIABLES))
_LONG = re.compile(r"-?\d+\.\d{3,}")
_TAG = re.compile(r"<[^>]*>")
_SPACE = re.compile(r"\s*\n\s*")


@dataclass(frozen=True)
class Look:
    """One contestant, the same in every figure."""

    colour: str
    line: Any
    marker: Any

    @property
    def stroke(self) -> dict[str, Any]:
        return {"color": self.colour, "linestyle": self.line, "marker": self.marker}


def look(index: int) -> Look:
    line = LINES[(index + index // len(COLOURS)) % len(LINES)]
    return Look(COLOURS[index % len(COLOURS)], line, MARKERS[index % len(MARKERS)])


def looks(results: Results) -> dict[str, Look]:
    return {contestant.name: look(index) for index, contestant in enumerate(results.contestants)}


def new_figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def side_by_side(width: float, count: int, height: float, sharey: bool = True) -> tuple[Figure, list[Axes]]:
    """A figure with a row of panels; on a phone, a column."""
    down, across = (count, 1) if width == NARROW else (1, count)
    figure = new_figure(width, height * down)
    return figure, list(figure.subplots(down, across, squeeze=False, sharey=sharey).flat)


def panels(
    width: float, names: Sequence[str], heights: Sequence[float], sharey: bool = True
) -> tuple[Figure, list[Axes], int]:
    """A titled panel for each name, on common axes, and the number of columns: rows are full and titles fit."""
    count = len(names)
    columns = min(count, 2 if width == NARROW else min((5, 4, 3), key=lambda wide: (-count % wide, -wide)))
    letters = (width - 0.5) / LETTER
    titles = short(names, int(letters / columns))
    while columns > 1 and max(map(len, titles)) > letters / columns:
        columns -= 1
    tallest = [max(heights[start : start + columns]) for start in range(0, count, columns)]
    figure, ratios = new_figure(width, sum(tallest) + 0.35), {"height_ratios": tallest}
    grid = figure.subplots(len(tallest), columns, sharex=True, sharey=sharey, squeeze=False, gridspec_kw=ratios)
    for spare in grid.flat[count:]:
        spare.set_visible(False)
    for axes in grid.flat[max(0, count - columns) : count]:  # the lowest of each column shows the numbers
        axes.tick_params(labelbottom=True)
    for axes, title in zip(grid.flat, titles, strict=False):
        axes.set_title(title, loc="left" if sharey else "right")  # rows have names, above which there is room
    return figure, list(grid.flat[:count]), columns


def short(names: Sequence[str], longest: int) -> list[str]:
    """The names cut to `longest` letters, or to as many more as keep them different."""
    most = max(map(len, names), default=0)
    if most <= longest:
        return list(names)
    start = _shared(names)
    end = _shared([name[len(start) :][::-1] for name in names])
    bare = [name[len(start) : len(name) - len(end)] for name in names]
    rests = [f"{'…' if start else ''}{name}{'…' if end else ''}" for name in bare]
    for length in range(longest, most + 1):
        for head in (length // 3, length // 2, length * 2 // 3, 0, length - 1):
            tail = length - 1 - head
            found = [one if len(one) <= length else f"{one[:head]}…{one[len(one) - tail :]}" for one in rests]
            if len(set(found)) == len(set(names)):
                return found
    return list(names)


def _shared(texts: Sequence[str]) -> str:
    """The common prefix of several texts, up to the end of a word."""
    alike = [one == other for one, other in zip(min(texts), max(texts), strict=False)]
    return re.sub(r"[^\s,=:/.]*$", "", min(texts)[: [*alike, False].index(False)]) if len(texts) > 1 else ""


def ticks(axis: Any, most: int = 5) -> None:
    """Few round numbers, written like 50k."""
    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: brief(value)))


def powers(axis: Any, subdivisions: tuple[float, ...] = (1.0,)) -> None:
    axis.set_major_locator(LogLocator(subs=subdivisions, numticks=8))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: brief(value)))


def across(axes: Axes, label: str, ends: Sequence[float], seen: Sequence[float], most: int = 5) -> None:
    """The horizontal axis for all values that are shown; logarithmic where the ends of contestants are far apart."""
    positive = [end for end in ends if end > 0]
    if not positive or max(positive) < FAR * min(positive):
        axes.set(xlabel=label, xlim=(0, 1.04 * max(seen, default=1.0) or 1.0))
        ticks(axes.xaxis, most)
        return
    axes.set_xlabel(f"{label}, logarithmic")
    if len(positive) == len(ends):
        low, high = min(value for value in seen if value > 0), max(seen)
        axes.set_xscale("log")
        axes.set_xlim(low / (high / low) ** 0.04, high * (high / low) ** 0.04)
        powers(axes.xaxis, (1.0, 3.0) if high < FAR**2.5 * low and most > 3 else (1.0,))
    else:
        axes.set_xscale("symlog", linthresh=1.0)
        axes.set_xlim(-0.1, 1.3 * max(seen))
        marks = [0.0, *(10.0**power for power in range(len(f"{max(positive):.0f}")))]
        axes.set_xticks(marks, [brief(mark) for mark in marks])
        axes.minorticks_off()


def rows_of(axes: Axes, names: Sequence[str], count: int = 0) -> None:
    """Name the rows of a panel, the first on top; with room for `count` rows."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(len(names), count) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")


def beside(names: Sequence[str], width: float) -> list[str]:
    """Names as they fit beside rows, or into a legend."""
    return short(names, 34 if width == WIDE else 18)


def plain(figure: Figure) -> str:
    """SVG with text as text; with `SETTINGS`, the same figure always gives the same SVG."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def inline(text: str, identity: str, label: str, css_class: str) -> str:
    """SVG for inside a page: unique ids, short numbers, colours as the page's variables, no background."""
    text = _DROPPED.sub("", text[text.index("<svg") :])

    def adapted(tag: re.Match[str]) -> str:
        unique = _REFERENCE.sub(lambda found: f"{found[1]}{identity}-", tag[0])
        coloured = _COLOUR.sub(lambda found: VARIABLES[found[0]], unique).replace("'DejaVu Sans'", "var(--sans)")
        return _LONG.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), coloured)

    text = _TAG.sub(adapted, text)  # text between tags is left as it is
    opening = f'<svg class="{css_class}" role="img" aria-label="{html.escape(label)}"'
    text = _HEAD.sub(lambda found: f'{opening} viewBox="{found[1]}">', text, count=1)
    return _SPACE.sub("\n", text).replace("\nL ", "L").replace("\nz\n", "z")
