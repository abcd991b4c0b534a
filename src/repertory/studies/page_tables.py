"""The tables of the page; everything that comes from data is escaped here."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence

from repertory.studies.drawing import COLOURS
from repertory.studies.findings import Contestant, Findings, Trial
from repertory.studies.numerals import DASH, number
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
from repertory.studies.statistics import FEWEST, Estimate
from repertory.studies.words import amount, failed, seeds_of, some

HEADS = {
    SECONDS_TO_TARGET: "Time to target",
    FINAL_SCORE: "Final score",
    ENV_STEPS_PER_S: "Env steps/s",
    UPDATES_PER_S: "Updates/s",
    LAG: "Policy lag",
}


def table(label: str, heads: Sequence[tuple[str, str]], rows: Iterable[str]) -> str:
    """A table in a box of its own that scrolls; heads are a text and a class each."""
    head = "".join(f'<th scope="col" class="{css}">{html.escape(text)}</th>' for text, css in heads)
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{html.escape(label)}"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def cell(text: str, css: str = "", small: str = "") -> str:
    """A cell, with a smaller line under its text if there is one."""
    below = f"<small>{html.escape(small)}</small>" if small else ""
    return f'<td class="{css}">{html.escape(text)}{below}</td>'


def winners(findings: Findings) -> str:
    """Who is best by each criterion, and from whom the seeds tell it; empty with a single contestant."""
    found = [one for one in standings(findings) if len(one.places) > 1]
    if not found:
        return ""
    heads = (("Criterion", "name"), ("Best", ""), ("Do the seeds show it?", "wrap"))
    return table("The best by each criterion", heads, (_winner(one) for one in found))


def _winner(found: Standing) -> str:
    one = found.best.estimate
    reached = f"{amount(found.criterion, one.value)}{f' ({_range(one)})' if _range(one) else ''}"
    best = cell("all the same" if found.tied else found.best.contestant, "wrap", reached)
    return f'<th scope="row" class="name">{html.escape(found.criterion.name)}</th>{best}{cell(shown(found), "wrap")}'


def shown(found: Standing) -> str:
    """Whether the best one's lead is more than the seeds' chance."""
    seeds = seeds_of(found.places)
    if found.seeds < FEWEST:
        return f"{seeds} can't show it"
    if not found.behind:
        return f"no difference that {seeds} can show"
    if not found.level:
        return "yes, against every other"
    return f"yes, but not against {some(found.level)}"


def _range(one: Estimate) -> str:
    return "" if one.low is None else f"{number(one.low)} to {number(one.high)}"


def contestants(findings: Findings) -> str:
    """All of them, best first, and first what answers the title."""
    every = (SECONDS_TO_TARGET, FINAL_SCORE, ENV_STEPS_PER_S, UPDATES_PER_S, LAG)
    known = [one for one in every if one is not SECONDS_TO_TARGET or findings.target is not None]
    columns = sorted(known, key=lambda criterion: criterion is not leading(findings))
    heads = [("Contestant", "name"), *((HEADS[criterion], "n") for criterion in columns), ("Seeds", "n")]
    rows = []
    for one in ranked(findings):
        cells = "".join(_estimated(findings, one, criterion) for criterion in columns)
        rows.append(f"{_name(findings, one)}{cells}{_seeds(findings, one)}")
    return table("All contestants", heads, rows)


def _name(findings: Findings, one: Contestant) -> str:
    """With the colour it has in the figures, and in what it differs from the first."""
    first, index = findings.contestants[0], findings.contestants.index(one)
    facts = [
        one.topology if one.topology != one.name else "",
        one.agent,
        f"{one.actors} actor{'' if one.actors == 1 else 's'}",
    ]
    others = {key: value for key, value in one.settings.items() if one is first or first.settings.get(key) != value}
    facts += [f"{key}={value}" for key, value in others.items() if key != "actors"]
    key = f'<span class="key" style="background: var(--c{index % len(COLOURS)})"></span>'
    below = html.escape(" · ".join(fact for fact in facts if fact))
    return f'<th scope="row" class="name keyed">{key}{_breakable(one.name)}<small>{below}</small></th>'


def _breakable(name: str) -> str:
    """Where it is too long for one line, the next begins behind a mark, not within a word."""
    return re.sub(r"(?<=[_=:.])(?=\w)", "<wbr>", html.escape(name))


def _seeds(findings: Findings, one: Contestant) -> str:
    every = sum(trial.contestant == one.name for trial in findings.trials)
    done = len(findings.of(one.name))
    return cell(str(done) if done == every else f"{done} of {every}", "n")


def _estimated(findings: Findings, one: Contestant, criterion: Criterion) -> str:
    """The number, and below it its interval, or how many seeds got there."""
    values = criterion.values(findings, one.name)
    if not values:
        return cell(DASH, "n")
    found, reached = criterion.estimate(values), sum(map(math.isfinite, values))
    if criterion is not SECONDS_TO_TARGET:
        return cell(number(found.value), "n", _range(found))
    below = _range(found) if reached == len(values) else f"{reached} of {len(values)} seeds"
    return cell("never" if reached == 0 else amount(criterion, found.value), "n", below)


def failures(findings: Findings) -> str:
    """Every failed run, with its cause in full."""
    runs = [trial for trials in failed(findings).values() for trial in trials]
    heads = (("Contestant", "name"), ("Seed", "n"), ("After", "n"), ("Cause", "wrap"))
    return table("Failed runs", heads, map(_failure, runs)) if runs else ""


def _failure(trial: Trial) -> str:
    cause = f'<td class="wrap"><code>{html.escape(trial.cause or "no cause was written down")}</code></td>'
    name = f'<th scope="row" class="name">{html.escape(trial.contestant)}</th>'
    return f"{name}{cell(str(trial.seed), 'n')}{cell(f'{number(trial.seconds)} s', 'n')}{cause}"
