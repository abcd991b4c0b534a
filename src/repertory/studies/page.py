"""The page of a study: one HTML file that needs no network. Its frame, its style and its notes are in `page.html`.
Everything that comes from data is escaped."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from matplotlib import rc_context

from repertory.runs.directory import write_text
from repertory.studies import drawing, statistics
from repertory.studies.drawing import COLOURS, INK, MUTED, NARROW, PAPER, RULE, WIDE
from repertory.studies.figures import SKETCHES, Sketch
from repertory.studies.results import Contestant, Results, Trial
from repertory.studies.statistics import FEWEST, SECONDS_TO_TARGET, Criterion, Estimate, Standing
from repertory.studies.words import DASH, NO_CAUSE, amount, answer, failed, number, plural, remarks, seeds_of, some

DOTS_PER_INCH = 200
KINDS = {
    "compare": ("Comparison", "Which topology suits {}?"),
    "ablate": ("Ablation", "What is each part worth on {}?"),
    "scale": ("Scaling study", "What do more actors bring on {}?"),
    "report": ("Report", "Runs on {}, side by side"),
}
COLUMNS = {
    SECONDS_TO_TARGET: "Time to target",
    statistics.FINAL_SCORE: "Final score",
    statistics.ENV_STEPS_PER_S: "Env steps/s",
    statistics.UPDATES_PER_S: "Updates/s",
    statistics.LAG: "Policy lag",
}
DARK = {"#111111": "#eceff1", "#a89a00": "#f0e442", "#0072b2": "#1f83c8", "#56b4e9": "#8fd0f7"}
"""Replacements for colours that are too dark for dark paper."""
_UNIT = re.compile(r"(?<=\d) (?=%|s\b|seeds?\b)")
"""No line break between a number and a short unit."""
_NAME = re.compile("`([^`]*)`")
_NOTE = re.compile(r'<li data-if="(\w+)">(.*)</li>\n')
"""A note of `page.html` that is shown only under a condition."""


def write(results: Results, directory: Path) -> Path:
    """Write the figures and `report.html`; the page is replaced whole, never seen half written."""
    statistics.require()
    (directory / "figures").mkdir(parents=True, exist_ok=True)
    with rc_context(drawing.SETTINGS):
        figures = [_figure(sketch, results, directory / "figures") for sketch in SKETCHES]
    write_text(directory / "report.html", render(results, figures))
    return directory / "report.html"


def _figure(sketch: Sketch, results: Results, directory: Path) -> str:
    """Write a figure as PNG and SVG; its HTML has SVG in both widths. Empty if there is nothing to show."""
    png, svg = (directory / f"{sketch.name}.{ending}" for ending in ("png", "svg"))
    wide, narrow = sketch.draw(results, WIDE), sketch.draw(results, NARROW)
    if wide is None or narrow is None:
        for earlier in (png, svg):
            earlier.unlink(missing_ok=True)
        return ""
    texts = {"wide": drawing.plain(wide), "narrow": drawing.plain(narrow)}
    svg.write_text(texts["wide"], encoding="utf-8")
    wide.set_layout_engine("none")  # it is laid out by now; to do it again takes as long as to draw it
    wide.savefig(png, dpi=DOTS_PER_INCH)
    caption = f"{sketch.caption} {sketch.shared if len(wide.axes) == 1 else sketch.alone}".strip()
    shown = (drawing.inline(text, f"{sketch.name}-{kind}", sketch.title, kind) for kind, text in texts.items())
    return "\n".join(
        [
            f'<figure id="{sketch.name}">\n<h3>{html.escape(sketch.title)}</h3>',
            *shown,
            f"<figcaption>{_said(caption.format(statistics.reference(results)))}</figcaption>\n</figure>",
        ]
    )


def render(results: Results, figures: list[str]) -> str:
    kind, title = KINDS[results.kind]
    bodies = {
        "All contestants": _contestants(results),
        "The best by each criterion": _winners(results),
        "Figures": "\n".join(filter(None, figures)),
        "Failed runs": _failures(results),
    }
    sections = [f"<section>\n<h2>{head}</h2>\n{body}\n</section>" for head, body in bodies.items() if body]
    target = "" if results.target is None else f"{results.target:g}"
    facts = {"Environment": results.environment, "Budget of a run": results.budget, "Target score": target}
    facts["Machine"] = results.machine
    steps, seconds = (statistics.shared_span(results, axis) for axis in ("env_steps", "seconds"))
    several = len(results.contestants) > 1
    conditions = {
        "several": several,
        "shared": several and steps is not None and seconds is not None,
        "study": results.kind != "report",
        "target": results.target is not None,
    }
    text = files("repertory.studies").joinpath("page.html").read_text(encoding="utf-8")
    text = _NOTE.sub(lambda note: f"<li>{note[2]}</li>\n" if conditions[note[1]] else "", text)
    return Template(text).substitute(
        {"ink": INK, "muted": MUTED, "rule": RULE, "paper": PAPER},
        colours=_variables(COLOURS),
        dark_colours=_variables([DARK.get(colour, colour) for colour in COLOURS]),
        title=html.escape(title.format(results.environment)),
        kind=kind,
        answer=_NAME.sub(r"<code>\1</code>", _said(answer(results))),
        remarks=f'<p class="words">{_said(told)}</p>' if (told := remarks(results)) else "",
        facts="".join(f"<dt>{key}</dt><dd>{html.escape(value)}</dd>" for key, value in facts.items() if value),
        command=" ".join(f"<span>{html.escape(word)}</span>" for word in results.command.split(" ")),
        sections="\n".join(sections),
        repetitions=f"{statistics.REPETITIONS:,}",
        fewest=FEWEST,
        chance=f"{100 * statistics.CHANCE:.0f}",
        steps="" if steps is None else " to ".join(map(number, steps)),
        seconds="" if seconds is None else " to ".join(map(number, seconds)),
    )


def _variables(colours: Sequence[str]) -> str:
    return " ".join(f"--c{index}: {colour};" for index, colour in enumerate(colours))


def _said(words: str) -> str:
    return _UNIT.sub("&nbsp;", html.escape(words, quote=False))


def _table(label: str, heads: Sequence[tuple[str, str]], rows: Iterable[str]) -> str:
    """A table in a box that scrolls; a head is a text and a class."""
    head = "".join(f'<th scope="col" class="{css}">{html.escape(text)}</th>' for text, css in heads)
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{html.escape(label)}"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _cell(text: str, css: str = "n", small: str = "") -> str:
    below = f"<small>{html.escape(small)}</small>" if small else ""
    return f'<td class="{css}">{html.escape(text)}{below}</td>'


def _name(text: str) -> str:
    return f'<th scope="row" class="name">{html.escape(text)}</th>'


def _winners(results: Results) -> str:
    found = [one for one in statistics.standings(results) if len(one.places) > 1]
    heads = (("Criterion", "name"), ("Best", ""), ("Do the seeds show it?", "wrap"))
    return _table("The best by each criterion", heads, map(_winner, found)) if found else ""


def _winner(found: Standing) -> str:
    one = found.best.estimate
    reached = f"{amount(found.criterion, one.value)}{f' ({_range(one)})' if _range(one) else ''}"
    best = _cell("all the same" if found.tied else found.best.contestant, "wrap", reached)
    return f"{_name(found.criterion.name)}{best}{_cell(_shown(found), 'wrap')}"


def _shown(found: Standing) -> str:
    seeds = seeds_of(found.places)
    if found.seeds < FEWEST:
        return f"{seeds} can't show it"
    if not found.behind:
        return f"no difference that {seeds} can show"
    return f"yes, but not against {some(found.level)}" if found.level else "yes, against every other"


def _range(one: Estimate) -> str:
    return "" if one.low is None else f"{number(one.low)} to {number(one.high)}"


def _contestants(results: Results) -> str:
    """Best first; the column that answers the title comes first."""
    known = [one for one in COLUMNS if one is not SECONDS_TO_TARGET or results.target is not None]
    columns = sorted(known, key=lambda criterion: criterion is not statistics.leading(results))
    heads = [("Contestant", "name"), *((COLUMNS[criterion], "n") for criterion in columns), ("Seeds", "n")]
    rows = []
    for one in statistics.ranked(results):
        cells = "".join(_estimated(criterion, criterion.values(results, one.name)) for criterion in columns)
        done, every = len(results.of(one.name)), sum(trial.contestant == one.name for trial in results.trials)
        seeds = _cell(str(done) if done == every else f"{done} of {every}")
        rows.append(f"{_contestant(results, one)}{cells}{seeds}")
    return _table("All contestants", heads, rows)


def _contestant(results: Results, one: Contestant) -> str:
    """With its colour in the figures and its differences from the first; long names break after `_=:.`."""
    first, index = results.contestants[0], results.contestants.index(one)
    others = {key: value for key, value in one.settings.items() if one is first or first.settings.get(key) != value}
    facts = [one.topology if one.topology != one.name else "", one.agent, plural(one.actors, "actor")]
    facts += [f"{key}={value}" for key, value in others.items() if key != "actors"]
    key = f'<span class="key" style="background: var(--c{index % len(COLOURS)})"></span>'
    name = re.sub(r"(?<=[_=:.])(?=\w)", "<wbr>", html.escape(one.name))
    below = html.escape(" · ".join(fact for fact in facts if fact))
    return f'<th scope="row" class="name keyed">{key}{name}<small>{below}</small></th>'


def _estimated(criterion: Criterion, values: tuple[float, ...]) -> str:
    if not values:
        return _cell(DASH)
    found, reached = criterion.estimate(values), sum(map(math.isfinite, values))
    if criterion is not SECONDS_TO_TARGET:
        return _cell(number(found.value), small=_range(found))
    below = _range(found) if reached == len(values) else f"{reached} of {len(values)} seeds"
    return _cell("never" if reached == 0 else amount(criterion, found.value), small=below)


def _failures(results: Results) -> str:
    runs = [trial for trials in failed(results).values() for trial in trials]
    heads = (("Contestant", "name"), ("Seed", "n"), ("After", "n"), ("Cause", "wrap"))
    return _table("Failed runs", heads, map(_failure, runs)) if runs else ""


def _failure(trial: Trial) -> str:
    cause = f'<td class="wrap"><code>{html.escape(trial.cause or NO_CAUSE)}</code></td>'
    return f"{_name(trial.contestant)}{_cell(str(trial.seed))}{_cell(f'{number(trial.seconds)} s')}{cause}"
