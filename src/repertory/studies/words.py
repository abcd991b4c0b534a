"""What a study says, in plain words made from its numbers alone: the answer to its title, and remarks.

Contestants are named in the order of their results, never in that of the command, so that swapping two results swaps
what is said. Nothing is claimed that the seeds do not show.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from repertory.studies import scaling
from repertory.studies.findings import Findings, Trial
from repertory.studies.numerals import DASH, counted, listed, number, percent
from repertory.studies.standings import (
    ENV_STEPS_PER_S,
    FINAL_SCORE,
    SECONDS_TO_TARGET,
    Criterion,
    Place,
    Standing,
    leading,
    reference,
    standing,
)
from repertory.studies.statistics import FEWEST, chance_of_parting, told_apart

MOST_NAMES = 4
LONGEST = 160
"""Letters of a cause, in a sentence."""
KINDS = {"compare": "topology", "ablate": "variant"}


def answer(findings: Findings) -> str:
    """One sentence, with names in backticks: by speed for actors, else by the time to the target, else by the score."""
    rungs = scaling.ladder(findings, ENV_STEPS_PER_S) if findings.kind == "scale" else ()
    if rungs:
        return f"{_rise(rungs)}; {_stops(rungs)}."
    found = standing(findings, leading(dataclasses.replace(findings, kind="report")))
    if found is None:
        return _unanswered(findings)
    full = found.of(reference(findings)) if findings.kind == "ablate" else None
    return f"{_best(findings, found) if full is None else _parts(found, full)}."


def _unanswered(findings: Findings) -> str:
    if any(trial.finished for trial in findings.trials):
        return "There is no answer: no run has a score."
    failed = findings.trials and all(trial.status == "failed" for trial in findings.trials)
    return "There is no answer: every run failed." if failed else "There is no answer yet: no run has finished."


def _rise(rungs: tuple[scaling.Rung, ...]) -> str:
    first, last = rungs[0], rungs[-1]
    rates = f"{number(last.rate.value)} against {number(first.rate.value)}"
    times = number(last.rate.value / first.rate.value)
    more = f"{last.actors} actors play {times} times as many env steps/s as {first.actors}"
    return f"{more} ({rates}), {percent(last.efficiency)} of ideal"


def _best(findings: Findings, found: Standing) -> str:
    """Who leads, by how much, and from whom the seeds tell it."""
    leaders = [place for place in found.places if _level(place, found.best)]
    others = [place for place in found.places if place not in leaders]
    noun = KINDS.get(findings.kind, "contestant")
    every = f"All {counted(len(leaders), noun)}".replace("All two", "Both")
    names = every if leaders[1:] and not others else _names(leaders)
    timed = found.criterion is SECONDS_TO_TARGET
    seeds = seeds_of(leaders) if leaders[1:] else _seeds(found.best, "median of " if timed else "")
    said = _time(findings, found, names, seeds) if timed else _score(findings, found, names, seeds)
    if others:
        return f"{said}; {_margin(found, others, 'them' if leaders[1:] else names)}"
    return f"{said}; {seeds_of(leaders)} show no difference" if leaders[1:] else said


def _level(one: Place, other: Place) -> bool:
    same_share = _reached(one) * len(other.values) == _reached(other) * len(one.values)
    return same_share and one.estimate.value == other.estimate.value


def _reached(place: Place) -> int:
    """How many of its seeds got there; by a score, all do."""
    return sum(map(math.isfinite, place.values))


def _names(places: Sequence[Place]) -> str:
    return some([f"`{place.contestant}`" for place in places])


def _time(findings: Findings, found: Standing, names: str, seeds: str) -> str:
    best, target, noun = found.best, number(findings.target), KINDS.get(findings.kind, "contestant")
    if _reached(best) < len(best.values):
        return f"No {noun} reached {target} with every seed; most often {names} did, {_with(found.criterion, best)}"
    after = f"after {amount(found.criterion, best.estimate.value)} ({seeds})"
    sooner = [place for place in found.places if place.estimate.value < best.estimate.value]
    if sooner:
        rival = f"`{sooner[0].contestant}` was sooner, but {_with(found.criterion, sooner[0])}"
        return f"{names} reached {target} with every seed, {after}; {rival}"
    return f"{names} reached {target}{' first' if found.places[1:] and not found.tied else ''}, {after}"


def _with(criterion: Criterion, place: Place) -> str:
    """`with 2 of 3 seeds, after 5.2 s`."""
    after = f", after {amount(criterion, place.estimate.value)}" if math.isfinite(place.estimate.value) else ""
    return f"with {_reached(place)} of {len(place.values)} seeds{after}"


def _score(findings: Findings, found: Standing, names: str, seeds: str) -> str:
    limit, value = findings.budget.rpartition("at most ")[2], number(found.best.estimate.value)
    own = limit.startswith("each")
    if findings.target is not None:
        within = f"reached {number(findings.target)} within {'its budget' if own else limit}"
        best = "all" if found.tied and found.places[1:] else f"the best, {names},"
        return f"No {KINDS.get(findings.kind, 'contestant')} {within}; {best} scored {value} ({seeds})"
    after = "" if own else f" after {limit}"
    if not found.places[1:] or found.tied:
        return f"{names} scored {value}{after} ({seeds})"
    return f"{names} scored highest{after}, {value} ({seeds})"


def _seeds(place: Place, middle: str = "") -> str:
    """`median of 3 seeds, 1.6 to 3.3`."""
    one = place.estimate
    seeds = f"{middle}{one.seeds} seeds" if one.seeds > 1 else "1 seed"
    return seeds if one.low is None else f"{seeds}, {number(one.low)} to {number(one.high)}"


def _margin(found: Standing, others: Sequence[Place], best: str) -> str:
    """What the seeds show of the others."""
    seeds, behind = seeds_of(found.places), [place for place in others if place.apart]
    level = [place for place in others if not place.apart]
    if found.seeds < FEWEST:
        return f"next is {_told(found.criterion, others[0])}, but {seeds} can't show a difference"
    if not behind:
        more = " or any other" if level[1:] else ""
        return f"{seeds} can't tell {best} from {_told(found.criterion, level[0])}{more}"
    if not level:
        return f"{seeds} show {best} ahead of {'every other' if behind[1:] else _told(found.criterion, behind[0])}"
    return f"{seeds} show {best} ahead of {_names(behind)}, but not of {_names(level)}"


def _told(criterion: Criterion, place: Place) -> str:
    """A name with its number, or with how many seeds got there."""
    value = place.estimate.value
    reached = amount(criterion, value) if math.isfinite(value) else f"{_reached(place)} of {len(place.values)} seeds"
    return f"`{place.contestant}` ({reached})"


def _parts(found: Standing, full: Place) -> str:
    """Who is told from the one with every part, and how many are not."""
    others = [place for place in found.places if place is not full]
    seeds, base, rank = seeds_of(found.places), _told(found.criterion, full), found.places.index(full)
    if not others:
        return f"There is nothing to hold {base} against"
    if found.seeds < FEWEST:
        furthest = others[0] if rank == len(others) else others[-1]
        return f"Furthest from {base} is {_told(found.criterion, furthest)}, but {seeds} can't show a difference"
    apart = [place for place in others if told_apart(full.values, place.values)]
    if not apart:
        return f"No part makes a difference that {seeds} can show: {base} can't be told from any other variant"
    behind = [place for place in reversed(found.places[rank:]) if place in apart]
    groups = {"behind": behind, "ahead of": [place for place in apart if place not in behind]}
    told = {where: some([_told(found.criterion, place) for place in group]) for where, group in groups.items()}
    said = "; ".join(f"{names} {where} {base}" for where, names in told.items() if names)
    rest = [place for place in others if place not in apart]
    if any(_one_off(place) for place in rest) and not any(map(_one_off, apart)):
        return f"No part switched off alone makes a difference that {seeds} can show; they show {said}"
    return f"{seeds} show {said}" + (f"; {counted(len(rest), 'other')} can't be told from it" if rest else "")


def _one_off(place: Place) -> bool:
    """Whether it lacks one part only: `no replay`, not `target only`."""
    return place.contestant.startswith("no ")


def _stops(rungs: tuple[scaling.Rung, ...]) -> str:
    """Where a step first adds less than half of what it would ideally add."""
    last = scaling.last_that_pays(rungs)
    if last is rungs[-1]:
        return f"every step up to {last.actors} adds at least half of what it ideally would"
    above = rungs[rungs.index(last) + 1]
    share = (above.rate.value - last.rate.value) / (above.ideal - last.ideal)
    gain = f"adds {percent(share)} of what it ideally would" if share > 0 else "adds nothing"
    return f"it stops paying at {last.actors}, for the step to {above.actors} {gain}"


def remarks(findings: Findings) -> str:
    """What has to be known besides: who reached the target, what failed or is missing, how little few seeds prove."""
    failures = [_failure(findings, name, trials) for name, trials in failed(findings).items()]
    said = [*_target(findings), *failures, *_without_score(findings), *_not_there(findings), *_caution(findings)]
    return " ".join(said)


def _target(findings: Findings) -> list[str]:
    """How many seeds of whom reached the target."""
    found = standing(findings, SECONDS_TO_TARGET)
    if found is None or leading(findings) is FINAL_SCORE:
        return []
    groups: dict[str, list[str]] = {"with all seeds": [], "with some": [], "with none": []}
    for place in found.places:
        reached, every = _reached(place), len(place.values)
        how = "with all seeds" if reached == every else "with some" if reached else "with none"
        groups[how].append(f"{place.contestant} ({reached} of {every})" if 0 < reached < every else place.contestant)
    said = "; ".join(f"{how} by {some(names)}" for how, names in groups.items() if names)
    return [f"The target of {number(findings.target)} was reached {said}."]


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


def _first_line(cause: str) -> str:
    """The start of a cause, short enough for a sentence."""
    line = cause.strip().partition("\n")[0].strip().rstrip(".") or "no cause was written down"
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def failed(findings: Findings) -> dict[str, list[Trial]]:
    """The failed runs of each contestant that has any."""
    found = {one.name: [t for t in findings.trials if t.contestant == one.name] for one in findings.contestants}
    broken = {name: [trial for trial in trials if trial.status == "failed"] for name, trials in found.items()}
    return {name: trials for name, trials in broken.items() if trials}


def _failure(findings: Findings, name: str, trials: list[Trial]) -> str:
    all_of_it = sum(trial.contestant == name for trial in findings.trials)
    causes = list(dict.fromkeys(_first_line(trial.cause) for trial in trials))
    more = f" (and {counted(len(causes) - 1, 'other cause')})" if len(causes) > 1 else ""
    return f"Failed: {name}, with {len(trials)} of {all_of_it} seeds: {causes[0]}{more}."


def _without_score(findings: Findings) -> list[str]:
    """Runs that ended with a score that is no finite number have no part in the scores: say which."""
    ended = [trial for trial in findings.trials if trial.finished and trial.score is not None]
    bad = [trial.contestant for trial in ended if trial.finite_score is None]
    counts = {name: bad.count(name) for name in dict.fromkeys(bad)}
    return [
        f"Left out of the scores of {name}: {counted(n, 'run')}, not a finite number." for name, n in counts.items()
    ]


def _not_there(findings: Findings) -> list[str]:
    """Runs that are missing, or were interrupted."""
    count = sum(trial.status in ("missing", "interrupted") for trial in findings.trials)
    if count and findings.kind == "report":
        return [f"Not finished, and left out: {counted(count, 'run')}."]
    return [f"The study is not finished: {counted(count, 'run')} to go."] if count else []


def amount(criterion: Criterion, value: float | None) -> str:
    """A number with its unit; a dash for what most seeds never reach."""
    if value is not None and math.isinf(value):
        return DASH
    return f"{number(value)} {criterion.unit}".strip()


def seeds_of(places: Sequence[Place]) -> str:
    """`5 seeds`, `1 seed`, `3 to 5 seeds`."""
    counts = sorted({place.estimate.seeds for place in places})
    if len(counts) > 1:
        return f"{counts[0]} to {counts[-1]} seeds"
    return "1 seed" if counts == [1] else f"{counts[0]} seeds"


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    if len(names) <= MOST_NAMES:
        return listed(names)
    return f"{', '.join(names[: MOST_NAMES - 1])} and {counted(len(names) - MOST_NAMES + 1, 'other')}"
