"""How figures look: widths, colours, line styles, markers, axes; matplotlib without pyplot, so no global state.

Colours are those of Okabe and Ito (https://jfly.uni-koeln.de/color), safe for the colour-blind, yellow darkened for
white paper; sixteen contestants differ in colour or line, and all of them in marker, so grey print can be read too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repertory.studies.findings import Findings
from repertory.studies.numerals import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, NARROW = 8.0, 3.7
"""Inches: for a page, and for a telephone."""
INK, MUTED, RULE, PAPER = "#1d2329", "#5d6670", "#d5dade", "#fefefe"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#111111", "#a89a00")
LINES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*", "h", "d", "8", "H", (4, 1, 45))
HATCHES = ("", "//", "..", "\\\\", "x", "--", "+", "o")
BAR: dict[str, Any] = {"linewidth": 4, "alpha": 0.4, "solid_capstyle": "butt"}
"""How an interval is drawn."""

SETTINGS: dict[str, Any] = {
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
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "svg.fonttype": "none",
    "text.parse_math": False,
}


@dataclass(frozen=True)
class Look:
    """How one contestant is drawn in every figure."""

    colour: str
    line: Any
    marker: Any

    @property
    def stroke(self) -> dict[str, Any]:
        """As arguments of `plot`."""
        return {"color": self.colour, "linestyle": self.line, "marker": self.marker}


def look(index: int) -> Look:
    """Of the contestant at this place of the study."""
    line = LINES[(index + index // len(COLOURS)) % len(LINES)]
    return Look(COLOURS[index % len(COLOURS)], line, MARKERS[index % len(MARKERS)])


def looks(findings: Findings) -> dict[str, Look]:
    """Of all contestants, the same in every figure."""
    return {contestant.name: look(index) for index, contestant in enumerate(findings.contestants)}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def panels(width: float, count: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels that share both axes, as many side by side as leave the fewest places empty."""
    across = min(count, 2) if width == NARROW else min((5, 4, 3), key=lambda wide: (-count % wide, -wide))
    across = min(across, count)
    rows = -(-count // across)
    figure = new_figure(width, height * rows + 0.35)
    every = list(figure.subplots(rows, across, sharex=True, sharey=True, squeeze=False).flat)
    for spare in every[count:]:
        spare.set_visible(False)
    for axes in every[max(0, count - across) : count]:  # the lowest of each column shows the numbers
        axes.tick_params(labelbottom=True)
    return figure, every[:count]


def thousands(axis: Any) -> None:
    """Ticks as people write them: 50,000."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def powers(axis: Any, subdivisions: tuple[float, ...] = (1.0,)) -> None:
    """Ticks of a logarithmic axis, as people write them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=subdivisions))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def rows_of(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of a figure, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def clip(name: str, width: float) -> str:
    """A name that fits beside narrow axes; what tells it from others mostly stands at its end."""
    longest = 34 if width == WIDE else 18
    end = longest * 2 // 3
    return name if len(name) <= longest else f"{name[: longest - end - 1]}…{name[-end:]}"
