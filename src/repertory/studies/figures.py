"""The figures of a study: drawn for paper as PNG and SVG, and for the page as SVG in two widths. None is ever blank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repertory.studies import bar_figures, curve_figures, svg, versus_figures
from repertory.studies.criteria import FINAL_SCORE, SECONDS_TO_TARGET
from repertory.studies.drawing import NARROW, SETTINGS, WIDE
from repertory.studies.findings import Findings
from repertory.studies.statistics import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 200
BAND = "Line: interquartile mean of the seeds; band: its 95 % bootstrap interval, from three seeds on."


@dataclass(frozen=True)
class Sketch:
    """One kind of figure; `draw` gives None where there is nothing to show."""

    name: str
    title: str
    caption: str
    draw: Callable[[Findings, float], Figure | None]


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
        "final_score",
        "Final score",
        "The last evaluation of every run. Thin strokes: seeds; marker: interquartile mean; bar: its 95 % interval; "
        "dashed, where one was asked for: the target.",
        lambda findings, width: bar_figures.dots(findings, FINAL_SCORE, width),
    ),
    Sketch(
        "score_env_steps",
        "Score against env steps",
        f"What the play of all environments together has taught. {BAND}",
        lambda findings, width: curve_figures.rising(findings, "env_steps", width),
    ),
    Sketch(
        "score_seconds",
        "Score against wall-clock time",
        f"What you wait for. Start-up and compilation are not in it. {BAND}",
        lambda findings, width: curve_figures.rising(findings, "seconds", width),
    ),
    Sketch(
        "score_updates",
        "Score against updates",
        f"What an optimiser step is worth. {BAND}",
        lambda findings, width: curve_figures.rising(findings, "updates", width),
    ),
    Sketch(
        "curves_each",
        "Each alone",
        "Thin: its seeds, as they were evaluated; thick: their interquartile mean; grey: the others.",
        curve_figures.multiples,
    ),
    Sketch(
        "time_to_target",
        "Time to target",
        "Seconds of training until an evaluation first reached the target. Seeds that never did have no stroke, but "
        "count as infinitely late; then there is no bar.",
        lambda findings, width: bar_figures.dots(findings, SECONDS_TO_TARGET, width),
    ),
    Sketch(
        "improvement",
        "Probability of improvement",
        "How likely a run of one scores above a run of the other; ties count half. Marker: share of pairs; bar: 95 % "
        "interval. Filled: the seeds tell the two apart; hollow: they do not.",
        versus_figures.improvement_figure,
    ),
    Sketch(
        "profiles",
        "Performance profiles",
        "For each score, the share of runs that end above it; higher is better. Band, where there are few "
        "contestants: 95 % interval.",
        versus_figures.profile_figure,
    ),
    Sketch(
        "scaling",
        "Scaling against ideal",
        "Dashed: the rate of the fewest actors times how many more there are; percentages: what is reached of it.",
        versus_figures.scaling_figure,
    ),
    Sketch(
        "throughput",
        "Throughput",
        "Env steps and updates per second of training. Dark stroke: 95 % interval.",
        bar_figures.throughput,
    ),
    Sketch(
        "utilisation",
        "Who works and who waits",
        "For each role, the share of its time in which it does not wait for others, put end to end. The role that all "
        "wait for is near 100 %.",
        bar_figures.utilisation,
    ),
    Sketch(
        "lag",
        "Policy lag",
        "How many updates old the weights were that chose what is learned from, line by line of metrics. With a replay "
        "it is about the replay's age, and harmless.",
        bar_figures.lags,
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
    texts = {kind: svg.plain(figure) for kind, figure in (("wide", wide), ("narrow", narrow))}
    (directory / f"{sketch.name}.svg").write_text(texts["wide"], encoding="utf-8")
    wide.set_layout_engine("none")  # it is laid out by now; to do it again takes as long as to draw it
    wide.savefig(directory / f"{sketch.name}.png", dpi=DOTS_PER_INCH)
    shown = (svg.inline(text, f"{sketch.name}-{kind}", sketch.title, kind) for kind, text in texts.items())
    return Drawn(sketch.name, sketch.title, sketch.caption, *shown)
