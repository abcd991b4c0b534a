"""What a study says, in plain words made from its numbers alone: a pure function of the findings.

Contestants are named in the order of their results, never in that of the command, so that swapping two results swaps
what is said. Nothing is claimed that the seeds do not show. Imports `criteria`, `numerals`, `scaling`, `standings`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from repertory.studies import scaling
from repertory.studies.criteria import (
    ENV_STEPS_PER_S,
    FINAL_SCORE,
    SCORE_PER_STEP,
    SECONDS_TO_TARGET,
    UPDATES_PER_S,
    Criterion,
)
from repertory.studies.failures import failures, not_there, without_score
from repertory.studies.findings import Findings
from repertory.studies.numerals import DASH, capital, counted, listed, number, percent
from repertory.studies.standings import Place, Standing, standing
from repertory.studies.statistics import FEWEST, Estimate, chance_of_parting, told_apart

MOST_NAMES = 4
KINDS = {"ablate": "variant", "scale": "company size"}


def paragraph(findings: Findings) -> str:
    """All that can be said, from the most to the least important."""
    body = {"ablate": _parts, "scale": _scale}.get(findings.kind, _comparison)
    said = [_opening(findings), *body(findings), *failures(findings), *without_score(findings), *not_there(findings)]
    return " ".join([*said, *_caution(findings)])


def reference(findings: Findings) -> str:
    """What the others of an ablation are held against: the first, which has every part."""
    return findings.contestants[0].name if findings.contestants else ""


def amount(criterion: Criterion, value: float | None) -> str:
    """A number with its unit; a dash for what most seeds never reach."""
    if value is not None and math.isinf(value):
        return DASH
    return f"{number(value)} {criterion.unit}".strip()


def with_interval(criterion: Criterion, estimate: Estimate) -> str:
    """`487 (470 to 498)`, or the number alone where there is no interval."""
    shown = amount(criterion, estimate.value)
    if estimate.low is None:
        return shown
    return f"{shown} ({number(estimate.low)} to {number(estimate.high)})"


def seeds_of(places: Sequence[Place]) -> str:
    """`5 seeds`, `1 seed`, `3 to 5 seeds`."""
    counts = sorted({place.estimate.seeds for place in places})
    if len(counts) > 1:
        return f"{counts[0]} to {counts[-1]} seeds"
    return "1 seed" if counts == [1] else f"{counts[0]} seeds"


def verdict(found: Standing) -> str:
    """Who is best by one criterion, and whether the seeds show it."""
    best = f"{found.best.contestant}: {with_interval(found.criterion, found.best.estimate)}"
    if len(found.places) == 1:
        return f"{capital(found.criterion.name)} of {best}."
    if found.tied:
        shared = amount(found.criterion, found.best.estimate.value)
        return (
            f"{capital(found.criterion.name)}: {shared} for all, no difference that {seeds_of(found.places)} can show."
        )
    return f"{capital(found.criterion.best)} is that of {best}{_lead(found)}."


def _lead(found: Standing) -> str:
    """What the seeds show of the others."""
    seeds, second = seeds_of(found.places), found.places[1]
    if found.seeds < FEWEST and math.isinf(second.estimate.value):
        return ""
    if found.seeds < FEWEST:
        equals = [place.contestant for place in found.places[1:] if place.estimate.value == found.best.estimate.value]
        return f", and of {some(equals)}" if equals else f"; next is {_with_amount(found.criterion, second)}"
    ahead = f", ahead of {some(found.behind) if found.level or len(found.behind) == 1 else 'every other'}"
    if not found.level:
        return ahead
    level = some(found.level) if found.behind or len(found.level) == 1 else "the others"
    return f"{ahead if found.behind else ''}; between it and {level} there is no difference that {seeds} can show"


def _with_amount(criterion: Criterion, place: Place) -> str:
    return f"{place.contestant} with {amount(criterion, place.estimate.value)}"


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    if len(names) <= MOST_NAMES:
        return listed(names)
    return f"{', '.join(names[: MOST_NAMES - 1])} and {counted(len(names) - MOST_NAMES + 1, 'other')}"


def _opening(findings: Findings) -> str:
    what = counted(len(findings.contestants), KINDS.get(findings.kind, "contestant"))
    runs = counted(sum(trial.finished for trial in findings.trials), "finished run")
    return f"{capital(what)} on {findings.environment}, {runs}; budget of a run: {findings.budget}."


def _comparison(findings: Findings) -> list[str]:
    """Score, target, score for the same play, speed."""
    return [*_scores(findings), *_target(findings), *_verdicts(findings, SCORE_PER_STEP, ENV_STEPS_PER_S)]


def _scores(findings: Findings) -> list[str]:
    return _verdicts(findings, FINAL_SCORE) or ["No run has a score, so nothing can be said of how well they play."]


def _verdicts(findings: Findings, *criteria: Criterion) -> list[str]:
    found = [standing(findings, criterion) for criterion in criteria]
    return [verdict(one) for one in found if one is not None and math.isfinite(one.best.estimate.value)]


def _target(findings: Findings) -> list[str]:
    """How many seeds of whom reached the target, and who was first."""
    found = standing(findings, SECONDS_TO_TARGET)
    if found is None:
        return []
    target = number(findings.target)
    reached = {place.contestant: sum(map(math.isfinite, place.values)) for place in found.places}
    every = [place.contestant for place in found.places if reached[place.contestant] == len(place.values)]
    none = [name for name, count in reached.items() if count == 0]
    partly = [place for place in found.places if place.contestant not in {*every, *none}]
    with_some = [f"{place.contestant} ({reached[place.contestant]} of {len(place.values)})" for place in partly]
    groups = (("with all seeds by", every), ("with some by", with_some), ("with none by", none))
    said = "; ".join(f"{how} {some(names)}" for how, names in groups if names)
    return [f"The target of {target} was reached {said}.", *_verdicts(findings, SECONDS_TO_TARGET)]


def _parts(findings: Findings) -> list[str]:
    """What each part is worth: every variant against the reference."""
    scores = standing(findings, FINAL_SCORE)
    full = None if scores is None else scores.of(reference(findings))
    if scores is None or full is None:
        return [*_scores(findings), *_target(findings)]
    others = [place for place in scores.places if place is not full]
    apart = [place for place in others if told_apart(full.values, place.values)]
    worse = [place for place in reversed(apart) if place.estimate.value < full.estimate.value]
    better = [place for place in apart if place.estimate.value >= full.estimate.value]
    level = [place for place in others if place not in apart]
    said = [f"The final score of {full.contestant} is {with_interval(FINAL_SCORE, full.estimate)}."]
    groups = (("Below it", worse), ("Above it", better))
    said += [f"{where}, as {seeds_of(scores.places)} show: {_gaps(full, found)}." for where, found in groups if found]
    return [*said, *_undecided(full, level), *_target(findings)]


def _undecided(full: Place, level: Sequence[Place]) -> list[str]:
    if not level:
        return []
    return [f"No difference that {seeds_of([full, *level])} can show: {_gaps(full, level)}."]


def _gaps(full: Place, places: Sequence[Place]) -> str:
    """`without target (262, 225 lower), ...`."""
    return "; ".join(f"{place.contestant} ({_gap(full, place)})" for place in places)


def _gap(full: Place, place: Place) -> str:
    difference = place.estimate.value - full.estimate.value
    if difference == 0:
        return f"{number(place.estimate.value)}, the same"
    return f"{number(place.estimate.value)}, {number(abs(difference))} {'higher' if difference > 0 else 'lower'}"


def _scale(findings: Findings) -> list[str]:
    """Rates against ideal ones, where more actors stop paying, then scores."""
    rates = [_climb(scaling.ladder(findings, criterion), criterion) for criterion in (ENV_STEPS_PER_S, UPDATES_PER_S)]
    return [*(rate for rate in rates if rate), *_scores(findings), *_target(findings)]


def _climb(rungs: tuple[scaling.Rung, ...], criterion: Criterion) -> str:
    if not rungs:
        return ""
    first, last = rungs[0], rungs[-1]
    times = number(last.rate.value / first.rate.value)
    rise = f"{counted(first.actors, 'actor')} {_make(first)} {amount(criterion, first.rate.value)}, {last.actors} make"
    reached = f"{capital(rise)} {number(last.rate.value)}: {times} times as many, {percent(last.efficiency)} of ideal"
    return f"{reached}; {_stops(rungs)}." if criterion is ENV_STEPS_PER_S else f"{reached}."


def _make(rung: scaling.Rung) -> str:
    return "makes" if rung.actors == 1 else "make"


def _stops(rungs: tuple[scaling.Rung, ...]) -> str:
    """Where a step first adds less than half of what it would ideally add."""
    last = scaling.last_that_pays(rungs)
    if last is rungs[-1]:
        return f"every step up to {last.actors} adds at least half of what it ideally would"
    above = rungs[rungs.index(last) + 1]
    share = (above.rate.value - last.rate.value) / (above.ideal - last.ideal)
    gain = f"adds {percent(share)} of what it ideally would" if share > 0 else "adds nothing"
    return f"it stops paying at {last.actors}, for the step to {above.actors} {gain}"


def _caution(findings: Findings) -> list[str]:
    """How little a few seeds prove."""
    seeds = findings.seeds
    if len(findings.contestants) < 2 or seeds == 0 or seeds > FEWEST:
        return []
    if seeds == FEWEST:
        often = round(1 / chance_of_parting(seeds, seeds))
        return [
            f"{seeds} seeds prove little: even where all {seeds} runs of one lie above all {seeds} of another, "
            f"chance does the same one time in {often}, so no two scores are called different."
        ]
    each = "1 seed proves" if seeds == 1 else f"{seeds} seeds prove"
    return [f"{each} very little: there is no interval to give, and other seeds may turn any of this round."]
