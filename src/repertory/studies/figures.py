"""The figures of a study: drawn for paper as PNG and SVG, and for the page as SVG in two widths. None is ever blank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repertory.studies import bar_figures, curve_figures
from repertory.studies.drawing import NARROW, SETTINGS, WIDE, inline, plain
from repertory.studies.findings import Findings
from repertory.studies.standings import ENV_STEPS_PER_S, FINAL_SCORE, LAG, SECONDS_TO_TARGET, UPDATES_PER_S, reference
from repertory.studies.statistics import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 200
BAND = "Line: interquartile mean of the seeds; band: its 95 % bootstrap interval, from three seeds on."
ALONE = "Thin: the seeds, as they were evaluated; thick: their interquartile mean; grey: {0}."
ROWS = "Thin strokes: seeds; marker: {}; bar: its 95 % interval."


@dataclass(frozen=True)
class Sketch:
    """One kind of figure; `draw` gives None where there is nothing to show."""

    name: str
    title: str
    caption: str
    draw: Callable[[Findings, float], Figure | None]
    shared: str = ""
    """What the caption goes on with where contestants share one panel."""
    alone: str = ""
    """And where each has its own; `{0}` is the reference."""


@dataclass(frozen=True)
class Drawn:
    """A figure for the page."""

    name: str
    title: str
    caption: str
    wide: str
    narrow: str


SKETCHES = (
    Sketch(
        "scaling",
        "Scaling against ideal",
        "Dashed: the rate of the fewest actors times how many more there are; percentages: what is reached of it.",
        curve_figures.scaling_figure,
    ),
    Sketch(
        "time_to_target",
        "Time to target",
        f"Seconds of training until an evaluation first reached the target. {ROWS.format('their median')} A seed that "
        "never got there has no stroke, but counts as infinitely late; then there is no bar.",
        lambda findings, width: bar_figures.dots(findings, width, SECONDS_TO_TARGET),
    ),
    Sketch(
        "final_score",
        "Final score",
        f"The last evaluation of every run. {ROWS.format('their interquartile mean')} Dashed: the target, if "
        "there is one.",
        lambda findings, width: bar_figures.dots(findings, width, FINAL_SCORE),
    ),
    Sketch(
        "score_seconds",
        "Score against wall-clock time",
        "What you wait for. Start-up and compilation are not in it.",
        lambda findings, width: curve_figures.rising(findings, width, "seconds"),
        BAND,
        ALONE,
    ),
    Sketch(
        "score_env_steps",
        "Score against env steps",
        "What the play of all environments together has taught.",
        lambda findings, width: curve_figures.rising(findings, width, "env_steps"),
        BAND,
        ALONE,
    ),
    Sketch(
        "score_updates",
        "Score against updates",
        "What an optimiser step is worth.",
        lambda findings, width: curve_figures.rising(findings, width, "updates"),
        BAND,
        ALONE,
    ),
    Sketch("curves_each", "Each alone", "", curve_figures.each, alone=ALONE),
    Sketch(
        "improvement",
        "Probability of improvement",
        "How likely a run of {0} does better than one of each other, in time to the target if anybody reached it, else "
        "in score; ties count half. Marker: share of pairs; bar: 95 % interval. Filled: the seeds tell the two apart.",
        bar_figures.duels,
    ),
    Sketch(
        "profiles",
        "Performance profiles",
        "For each score, the share of runs that end above it; higher is better. Band: 95 % interval.",
        curve_figures.profile_figure,
        alone="Grey: {0}.",
    ),
    Sketch(
        "throughput",
        "Throughput",
        f"Env steps and updates per second of training. {ROWS.format('their interquartile mean')}",
        lambda findings, width: bar_figures.dots(findings, width, ENV_STEPS_PER_S, UPDATES_PER_S),
    ),
    Sketch(
        "utilisation",
        "Who works and who waits",
        "For each role, the share of its time in which it does not wait for others. The role that all wait for is near "
        "100 %.",
        bar_figures.utilisation,
    ),
    Sketch(
        "lag",
        "Policy lag",
        "How many updates old the weights were that chose what is learned from, on average over a run. "
        f"{ROWS.format('their interquartile mean')} With a replay it is about the replay's age, and harmless.",
        lambda findings, width: bar_figures.dots(findings, width, LAG),
    ),
)


def draw(findings: Findings, directory: Path) -> list[Drawn]:
    """Write PNG and SVG of every figure that has something to show, and give those for the page."""
    require()
    from matplotlib import rc_context

    directory.mkdir(parents=True, exist_ok=True)
    settings: Any = SETTINGS
    with rc_context(settings):
        found = (_drawn(sketch, findings, directory) for sketch in SKETCHES)
        return [drawn for drawn in found if drawn is not None]


def _drawn(sketch: Sketch, findings: Findings, directory: Path) -> Drawn | None:
    wide, narrow = sketch.draw(findings, WIDE), sketch.draw(findings, NARROW)
    if wide is None or narrow is None:
        for ending in ("png", "svg"):  # of an earlier report, when there was something to show
            (directory / f"{sketch.name}.{ending}").unlink(missing_ok=True)
        return None
    texts = {kind: plain(figure) for kind, figure in (("wide", wide), ("narrow", narrow))}
    (directory / f"{sketch.name}.svg").write_text(texts["wide"], encoding="utf-8")
    wide.set_layout_engine("none")  # it is laid out by now; to do it again takes as long as to draw it
    wide.savefig(directory / f"{sketch.name}.png", dpi=DOTS_PER_INCH)
    caption = f"{sketch.caption} {sketch.shared if len(wide.axes) == 1 else sketch.alone}".strip()
    shown = (inline(text, f"{sketch.name}-{kind}", sketch.title, kind) for kind, text in texts.items())
    return Drawn(sketch.name, sketch.title, caption.format(reference(findings)), *shown)
