"""The tables of the page; everything that comes from data is escaped here."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from repertory.studies.criteria import (
    ENV_STEPS_PER_S,
    FINAL_SCORE,
    LAG,
    SECONDS_TO_TARGET,
    UPDATES_PER_S,
    Criterion,
)
from repertory.studies.drawing import COLOURS
from repertory.studies.failures import failed
from repertory.studies.findings import Contestant, Findings, Trial
from repertory.studies.numerals import DASH, number
from repertory.studies.standings import Standing, standings
from repertory.studies.statistics import FEWEST, Estimate, estimate
from repertory.studies.words import amount, seeds_of, some


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
    heads = (("Criterion", "name"), ("Best", ""), ("Its number", "n"), ("Do the seeds show it?", "wrap"))
    return table("The best by each criterion", heads, (_winner(one) for one in found))


def _winner(found: Standing) -> str:
    best = found.best
    name = "all the same" if found.tied else best.contestant
    row = f'<th scope="row" class="name">{html.escape(found.criterion.name)}</th>{cell(name)}'
    number_cell = cell(amount(found.criterion, best.estimate.value), "n", _range(best.estimate))
    return f"{row}{number_cell}{cell(shown(found), 'wrap')}"


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
    """All of them, in the order of the command."""
    columns = (FINAL_SCORE, ENV_STEPS_PER_S, UPDATES_PER_S, LAG)
    heads = [("Contestant", "name"), ("Seeds", "n"), ("Final score", "n"), ("Env steps/s", "n"), ("Updates/s", "n")]
    heads += [("Policy lag", "n")] + ([] if findings.target is None else [("Time to target", "n")])
    rows = []
    for index, one in enumerate(findings.contestants):
        cells = "".join(_estimated(findings, one, criterion) for criterion in columns)
        rows.append(f"{_name(findings, index)}{_seeds(findings, one)}{cells}{_target(findings, one)}")
    return table("All contestants", heads, rows)


def _name(findings: Findings, index: int) -> str:
    """With the colour it has in the figures, and in what it differs from the first."""
    one, first = findings.contestants[index], findings.contestants[0]
    facts = [
        one.topology if one.topology != one.name else "",
        one.agent,
        f"{one.actors} actor{'' if one.actors == 1 else 's'}",
    ]
    others = {key: value for key, value in one.settings.items() if index == 0 or first.settings.get(key) != value}
    facts += [f"{key}={value}" for key, value in others.items() if key != "actors"]
    key = f'<span class="key" style="background: var(--c{index % len(COLOURS)})"></span>'
    below = html.escape(" · ".join(fact for fact in facts if fact))
    return f'<th scope="row" class="name">{key}{html.escape(one.name)}<small>{below}</small></th>'


def _seeds(findings: Findings, one: Contestant) -> str:
    every = sum(trial.contestant == one.name for trial in findings.trials)
    done = len(findings.of(one.name))
    return cell(str(done) if done == every else f"{done} of {every}", "n")


def _estimated(findings: Findings, one: Contestant, criterion: Criterion) -> str:
    values = criterion.values(findings, one.name)
    if not values:
        return cell(DASH, "n")
    found = estimate(values)
    return cell(number(found.value), "n", _range(found))


def _target(findings: Findings, one: Contestant) -> str:
    if findings.target is None:
        return ""
    values = SECONDS_TO_TARGET.values(findings, one.name)
    if not values:
        return cell(DASH, "n")
    reached = sum(map(math.isfinite, values))
    below = f"{reached} of {len(values)} seeds"
    return cell("never" if reached == 0 else amount(SECONDS_TO_TARGET, estimate(values).value), "n", below)


def failures(findings: Findings) -> str:
    """Every failed run, with its cause in full."""
    runs = [trial for trials in failed(findings).values() for trial in trials]
    heads = (("Contestant", "name"), ("Seed", "n"), ("After", "n"), ("Cause", "wrap"))
    return table("Failed runs", heads, map(_failure, runs)) if runs else ""


def _failure(trial: Trial) -> str:
    cause = f'<td class="wrap"><code>{html.escape(trial.cause or "no cause was written down")}</code></td>'
    name = f'<th scope="row" class="name">{html.escape(trial.contestant)}</th>'
    return f"{name}{cell(str(trial.seed), 'n')}{cell(f'{number(trial.seconds)} s', 'n')}{cause}"
