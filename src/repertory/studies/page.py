"""One self-contained page of a study: answer, words, tables and figures in a single file that needs no network.

Its frame and its style stand in `page.html`. `write` is all that the rest of the library calls. Whatever comes from
data is escaped.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from repertory.runs.directory import write_text
from repertory.studies.drawing import COLOURS, INK, MUTED, PAPER, RULE, Drawn, draw
from repertory.studies.figures import SKETCHES
from repertory.studies.results import Contestant, Results, Trial
from repertory.studies.standings import (
    ENV_STEPS_PER_S,
    FINAL_SCORE,
    LAG,
    SECONDS_TO_TARGET,
    UPDATES_PER_S,
    Criterion,
    Standing,
    leading,
    ranked,
    standings,
)
from repertory.studies.statistics import CHANCE, FEWEST, REPETITIONS, Estimate, shared_span
from repertory.studies.words import DASH, NO_CAUSE, amount, answer, failed, number, plural, remarks, seeds_of, some

TITLES = {
    "compare": "Which topology suits {}?",
    "ablate": "What is each part worth on {}?",
    "scale": "What do more actors bring on {}?",
}
KINDS = {"compare": "Comparison", "ablate": "Ablation", "scale": "Scaling study"}

COLUMNS = {
    SECONDS_TO_TARGET: "Time to target",
    FINAL_SCORE: "Final score",
    ENV_STEPS_PER_S: "Env steps/s",
    UPDATES_PER_S: "Updates/s",
    LAG: "Policy lag",
}
DARK = {"#111111": "#eceff1", "#a89a00": "#f0e442", "#0072b2": "#1f83c8", "#56b4e9": "#8fd0f7"}
"""Colours of contestants that dark paper would swallow."""
_UNIT = re.compile(r"(?<=\d) (?=%|s\b|seeds?\b)")
"""No line ends between a number and so short a unit."""
_NAME = re.compile("`([^`]*)`")


def write(results: Results, directory: Path) -> Path:
    """Write the figures and `report.html`; the page is replaced whole, never seen half written."""
    drawn, path = draw(SKETCHES, results, directory / "figures"), directory / "report.html"
    write_text(path, render(results, drawn))
    return path


def render(results: Results, drawn: list[Drawn]) -> str:
    title = TITLES.get(results.kind, "Runs on {}, side by side").format(results.environment)
    bodies = {
        "All contestants": _contestants(results),
        "The best by each criterion": _winners(results),
        "Figures": "\n".join(map(_figure, drawn)),
        "Failed runs": _failures(results),
        "How to read this": _notes(results),
    }
    sections = [f"<section>\n<h2>{head}</h2>\n{body}\n</section>" for head, body in bodies.items() if body]
    template = Template(files("repertory.studies").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        {"ink": INK, "muted": MUTED, "rule": RULE, "paper": PAPER},
        colours=_variables(COLOURS),
        dark_colours=_variables([DARK.get(colour, colour) for colour in COLOURS]),
        title=html.escape(title),
        kind=KINDS.get(results.kind, "Report"),
        answer=_NAME.sub(r"<code>\1</code>", _said(answer(results))),
        remarks=f'<p class="words">{_said(told)}</p>' if (told := remarks(results)) else "",
        facts=_facts(results),
        command=" ".join(f"<span>{html.escape(word)}</span>" for word in results.command.split(" ")),
        sections="\n".join(sections),
    )


def _variables(colours: Sequence[str]) -> str:
    return " ".join(f"--c{index}: {colour};" for index, colour in enumerate(colours))


def _facts(results: Results) -> str:
    target = "" if results.target is None else f"{results.target:g}"
    told = {"Environment": results.environment, "Budget of a run": results.budget, "Target score": target}
    told["Machine"] = results.machine
    return "".join(f"<dt>{key}</dt><dd>{html.escape(value)}</dd>" for key, value in told.items() if value)


def _said(words: str) -> str:
    return _UNIT.sub("&nbsp;", html.escape(words, quote=False))


def _figure(drawn: Drawn) -> str:
    return (
        f'<figure id="{drawn.name}">\n<h3>{html.escape(drawn.title)}</h3>\n{drawn.wide}\n{drawn.narrow}\n'
        f"<figcaption>{_said(drawn.caption)}</figcaption>\n</figure>"
    )


def _notes(results: Results) -> str:
    notes = [*_how_seeds_count(results), *_what_is_counted(results)]
    return f'<ul class="notes">{"".join(f"<li>{html.escape(note)}</li>" for note in notes)}</ul>'


def _how_seeds_count(results: Results) -> list[str]:
    notes = [
        "Scores are interquartile means: the lowest and the highest quarter of the seeds are left out, the rest is "
        "averaged. With three seeds or fewer, nothing is left out, and it is the mean.",
        f"Intervals hold 95 % of {REPETITIONS:,} bootstrap draws of the seeds (rliable). They tell what other seeds "
        "might have given, on this environment and this machine; from few seeds they come out too narrow. Below "
        f"{FEWEST} seeds there are none.",
    ]
    if len(results.contestants) > 1:
        notes.append(
            "Two contestants count as different where a permutation test of their ranks gives a chance of at most "
            f"{100 * CHANCE:.0f} %; of rates, which scatter evenly, Welch's t test. Each pair is judged alone: of "
            "twenty pairs that are equal, about one is called different."
        )
    return [
        *notes,
        "Curves: between two evaluations a run's score is the straight line between them. The last score is carried "
        "forward only for runs that ended because they were solved. A curve begins where all seeds of the contestant "
        "have been evaluated and ends where the first of them that was not solved ends.",
        "Failed runs have no part in scores or curves. A run that ends with a score that is not a finite number has "
        "no final score.",
    ]


def _what_is_counted(results: Results) -> list[str]:
    steps, seconds = shared_span(results, "env_steps"), shared_span(results, "seconds")
    alone = "" if results.kind == "report" else " Runs were made one after another, never two at once."
    notes = [
        "Seconds are those of the wall clock from the first step on: start-up and compilation are not in them, "
        f"evaluations are.{alone}",
        "Env steps are decisions of the agent, those of all environments added up. Policy lag is the learner's number "
        "of updates minus that of the weights that acted.",
    ]
    if len(results.contestants) > 1 and steps is not None and seconds is not None:
        notes.insert(
            0,
            "Mean scores over the same env steps, or the same time, are taken where every run has a score: from "
            f"{number(steps[0])} to {number(steps[1])} env steps, and from {number(seconds[0])} to "
            f"{number(seconds[1])} s. The slowest run sets the end.",
        )
    if results.target is not None:
        notes.append(
            "Time to target is that of the first evaluation at or above the target, the median of the seeds; one that "
            "never gets there counts as infinitely late. Where there are such seeds, there is no interval."
        )
    return notes


def _table(label: str, heads: Sequence[tuple[str, str]], rows: Iterable[str]) -> str:
    """A table in a box of its own that scrolls; heads are a text and a class each."""
    head = "".join(f'<th scope="col" class="{css}">{html.escape(text)}</th>' for text, css in heads)
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{html.escape(label)}"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _cell(text: str, css: str = "n", small: str = "") -> str:
    """With a smaller line under its text if there is one."""
    below = f"<small>{html.escape(small)}</small>" if small else ""
    return f'<td class="{css}">{html.escape(text)}{below}</td>'


def _name(text: str) -> str:
    return f'<th scope="row" class="name">{html.escape(text)}</th>'


def _winners(results: Results) -> str:
    """Who is best by each criterion, and from whom the seeds tell it; empty with a single contestant."""
    found = [one for one in standings(results) if len(one.places) > 1]
    heads = (("Criterion", "name"), ("Best", ""), ("Do the seeds show it?", "wrap"))
    return _table("The best by each criterion", heads, map(_winner, found)) if found else ""


def _winner(found: Standing) -> str:
    one = found.best.estimate
    reached = f"{amount(found.criterion, one.value)}{f' ({_range(one)})' if _range(one) else ''}"
    best = _cell("all the same" if found.tied else found.best.contestant, "wrap", reached)
    return f"{_name(found.criterion.name)}{best}{_cell(_shown(found), 'wrap')}"


def _shown(found: Standing) -> str:
    """Whether the best one's lead is more than the seeds' chance."""
    seeds = seeds_of(found.places)
    if found.seeds < FEWEST:
        return f"{seeds} can't show it"
    if not found.behind:
        return f"no difference that {seeds} can show"
    return f"yes, but not against {some(found.level)}" if found.level else "yes, against every other"


def _range(one: Estimate) -> str:
    return "" if one.low is None else f"{number(one.low)} to {number(one.high)}"


def _contestants(results: Results) -> str:
    """All of them, best first, and first what answers the title."""
    known = [one for one in COLUMNS if one is not SECONDS_TO_TARGET or results.target is not None]
    columns = sorted(known, key=lambda criterion: criterion is not leading(results))
    heads = [("Contestant", "name"), *((COLUMNS[criterion], "n") for criterion in columns), ("Seeds", "n")]
    rows = []
    for one in ranked(results):
        cells = "".join(_estimated(criterion, criterion.values(results, one.name)) for criterion in columns)
        done, every = len(results.of(one.name)), sum(trial.contestant == one.name for trial in results.trials)
        seeds = _cell(str(done) if done == every else f"{done} of {every}")
        rows.append(f"{_contestant(results, one)}{cells}{seeds}")
    return _table("All contestants", heads, rows)


def _contestant(results: Results, one: Contestant) -> str:
    """With the colour it has in the figures, and in what it differs from the first.

    Where its name is too long for one line, the next begins behind a mark, not within a word.
    """
    first, index = results.contestants[0], results.contestants.index(one)
    others = {key: value for key, value in one.settings.items() if one is first or first.settings.get(key) != value}
    facts = [one.topology if one.topology != one.name else "", one.agent, plural(one.actors, "actor")]
    facts += [f"{key}={value}" for key, value in others.items() if key != "actors"]
    key = f'<span class="key" style="background: var(--c{index % len(COLOURS)})"></span>'
    name = re.sub(r"(?<=[_=:.])(?=\w)", "<wbr>", html.escape(one.name))
    below = html.escape(" · ".join(fact for fact in facts if fact))
    return f'<th scope="row" class="name keyed">{key}{name}<small>{below}</small></th>'


def _estimated(criterion: Criterion, values: tuple[float, ...]) -> str:
    """The number, and below it its interval, or how many seeds got there."""
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
