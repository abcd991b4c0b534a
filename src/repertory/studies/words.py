"""A study's results as sentences. Contestants are named in the order of their results, never in that of the command, so
swapping two results swaps the sentences. Nothing is claimed that the seeds do not show."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from repertory.studies import statistics
from repertory.studies.results import Results, Trial
from repertory.studies.statistics import FEWEST, FINAL_SCORE, SECONDS_TO_TARGET, Criterion, Place, Rung, Standing

DASH = "–"
SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
MOST_NAMES = 4
LONGEST = 160
"""Letters of a cause in a sentence."""
NO_CAUSE = "no cause was written down"
KINDS = {"compare": "topology", "ablate": "variant", "scale": "contestant", "report": "contestant"}


def number(value: float | None) -> str:
    """Three significant digits: 12,300, 487, 9.71, −0.0421; a dash for what is not known."""
    if value is None or math.isnan(value):
        return DASH
    if value < 0:
        return f"−{number(-value)}"
    if value == 0 or math.isinf(value):
        return "∞" if value else "0"
    places = 2 - math.floor(math.log10(value))
    rounded = round(value, places)
    if places <= 0 or rounded == int(rounded):
        return f"{rounded:,.0f}"
    return f"{rounded:,.{places}f}".rstrip("0") if places <= 6 else f"{rounded:.2g}"


def brief(value: float) -> str:
    """A number for the tick of an axis: 500, 20k, 1.5M."""
    size, letter = (1e6, "M") if abs(value) >= 1e6 else (1e3, "k") if abs(value) >= 1e3 else (1.0, "")
    return f"{number(value / size)}{letter}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def amount(criterion: Criterion, value: float) -> str:
    """A number with its unit; a dash for what most seeds never reach."""
    return DASH if math.isinf(value) else f"{number(value)} {criterion.unit}".strip()


def duration(seconds: float) -> str:
    """ "40 s", "12 min", "3 h 20 min"."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def counted(count: int, noun: str) -> str:
    """`three seeds`, `one seed`, `13 topologies`."""
    word = SMALL[count] if 0 <= count < len(SMALL) else f"{count:,}"
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{word} {noun if count == 1 else many}"


def seeds_of(places: Sequence[Place]) -> str:
    """`5 seeds`, `1 seed`, `3 to 5 seeds`."""
    counts = sorted({place.estimate.seeds for place in places})
    return f"{counts[0]} to {counts[-1]} seeds" if counts[1:] else plural(counts[0], "seed")


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if names[1:] else "".join(names)


def some(names: Sequence[str]) -> str:
    if len(names) <= MOST_NAMES:
        return listed(names)
    return listed([*names[: MOST_NAMES - 1], counted(len(names) - MOST_NAMES + 1, "other")])


def answer(results: Results) -> str:
    """One sentence, with names in backticks: speed for `scale`, else the time to the target, else the score."""
    rungs = statistics.ladder(results, statistics.ENV_STEPS_PER_S) if results.kind == "scale" else ()
    if rungs:
        return f"{_scaling(rungs)}."
    found = statistics.standing(results, statistics.leading(dataclasses.replace(results, kind="report")))
    if found is None:
        return _unanswered(results)
    full = found.of(statistics.reference(results)) if results.kind == "ablate" else None
    return f"{_best(results, found) if full is None else _parts(found, full)}."


def _unanswered(results: Results) -> str:
    if any(trial.finished for trial in results.trials):
        return "There is no answer: no run has a score."
    failed = results.trials and all(trial.status == "failed" for trial in results.trials)
    return "There is no answer: every run failed." if failed else "There is no answer yet: no run has finished."


def _scaling(rungs: tuple[Rung, ...]) -> str:
    """How far more actors raise the rate, and where a step first adds less than half of what it ideally would."""
    first, most, last = rungs[0], rungs[-1], statistics.last_that_pays(rungs)
    rates = f"{number(most.rate.value)} against {number(first.rate.value)}"
    times = number(most.rate.value / first.rate.value)
    more = f"{most.actors} actors play {times} times as many env steps/s as {first.actors}"
    rise = f"{more} ({rates}), {percent(most.efficiency)} of ideal"
    if last is most:
        return f"{rise}; every step up to {last.actors} adds at least half of what it ideally would"
    above = rungs[rungs.index(last) + 1]
    share = (above.rate.value - last.rate.value) / (above.ideal - last.ideal)
    gain = f"adds {percent(share)} of what it ideally would" if share > 0 else "adds nothing"
    return f"{rise}; it stops paying at {last.actors}, for the step to {above.actors} {gain}"


def _best(results: Results, found: Standing) -> str:
    leaders = [place for place in found.places if _level(place, found.best)]
    others = [place for place in found.places if place not in leaders]
    every = f"All {counted(len(leaders), KINDS[results.kind])}".replace("All two", "Both")
    names = every if leaders[1:] and not others else _names(leaders)
    timed = found.criterion is SECONDS_TO_TARGET
    seeds = seeds_of(leaders) if leaders[1:] else _seeds(found.best, "median of " if timed else "")
    said = (_time if timed else _score)(results, found, names, seeds)
    if others:
        return f"{said}; {_margin(found, others, 'them' if leaders[1:] else names)}"
    return f"{said}; {seeds_of(leaders)} show no difference" if leaders[1:] else said


def _level(one: Place, other: Place) -> bool:
    same_share = one.reached * len(other.values) == other.reached * len(one.values)
    return same_share and one.estimate.value == other.estimate.value


def _names(places: Sequence[Place]) -> str:
    return some([f"`{place.contestant}`" for place in places])


def _time(results: Results, found: Standing, names: str, seeds: str) -> str:
    best, target = found.best, number(results.target)
    if best.reached < len(best.values):
        did = f"most often {names} did, {_with(found.criterion, best)}"
        return f"No {KINDS[results.kind]} reached {target} with every seed; {did}"
    after = f"after {amount(found.criterion, best.estimate.value)} ({seeds})"
    sooner = [place for place in found.places if place.estimate.value < best.estimate.value]
    if sooner:
        rival = f"`{sooner[0].contestant}` was sooner, but {_with(found.criterion, sooner[0])}"
        return f"{names} reached {target} with every seed, {after}; {rival}"
    return f"{names} reached {target}{' first' if found.places[1:] and not found.tied else ''}, {after}"


def _with(criterion: Criterion, place: Place) -> str:
    """`with 2 of 3 seeds, after 5.2 s`."""
    after = f", after {amount(criterion, place.estimate.value)}" if math.isfinite(place.estimate.value) else ""
    return f"with {_share(place)}{after}"


def _share(place: Place) -> str:
    return f"{place.reached} of {len(place.values)} seeds"


def _score(results: Results, found: Standing, names: str, seeds: str) -> str:
    limit, value = results.budget.rpartition("at most ")[2], number(found.best.estimate.value)
    own, level = limit.startswith("each"), not found.places[1:] or found.tied
    if results.target is not None:
        within = f"reached {number(results.target)} within {'its budget' if own else limit}"
        best = "all" if found.places[1:] and level else f"the best, {names},"
        return f"No {KINDS[results.kind]} {within}; {best} scored {value} ({seeds})"
    after = "" if own else f" after {limit}"
    return f"{names} scored {value}{after} ({seeds})" if level else f"{names} scored highest{after}, {value} ({seeds})"


def _seeds(place: Place, middle: str) -> str:
    """`median of 3 seeds, 1.6 to 3.3`."""
    one = place.estimate
    seeds = f"{middle if one.seeds > 1 else ''}{plural(one.seeds, 'seed')}"
    return seeds if one.low is None else f"{seeds}, {number(one.low)} to {number(one.high)}"


def _margin(found: Standing, others: Sequence[Place], best: str) -> str:
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
    """A name with its number, or with how many seeds reached the target."""
    value = place.estimate.value
    return f"`{place.contestant}` ({amount(criterion, value) if math.isfinite(value) else _share(place)})"


def _parts(found: Standing, full: Place) -> str:
    """Which variants differ significantly from the one with every part, and how many do not."""
    others = [place for place in found.places if place is not full]
    seeds, base, rank = seeds_of(found.places), _told(found.criterion, full), found.places.index(full)
    if not others:
        return f"There is nothing to hold {base} against"
    if found.seeds < FEWEST:
        furthest = others[0] if rank == len(others) else others[-1]
        return f"Furthest from {base} is {_told(found.criterion, furthest)}, but {seeds} can't show a difference"
    apart = [place for place in others if statistics.told_apart(full.values, place.values)]
    if not apart:
        return f"No part makes a difference that {seeds} can show: {base} can't be told from any other variant"
    behind = [place for place in reversed(found.places[rank:]) if place in apart]
    groups = {"behind": behind, "ahead of": [place for place in apart if place not in behind]}
    told = {where: some([_told(found.criterion, place) for place in group]) for where, group in groups.items()}
    said = "; ".join(f"{names} {where} {base}" for where, names in told.items() if names)
    rest = [place for place in others if place not in apart]
    if any(map(_one_off, rest)) and not any(map(_one_off, apart)):
        return f"No part switched off alone makes a difference that {seeds} can show; they show {said}"
    return f"{seeds} show {said}" + (f"; {counted(len(rest), 'other')} can't be told from it" if rest else "")


def _one_off(place: Place) -> bool:
    """Whether it lacks one part: `no replay`, not `target only`."""
    return place.contestant.startswith("no ")


def remarks(results: Results) -> str:
    """Which contestants reached the target, what failed or is missing, how little few seeds prove."""
    failures = [_failure(results, name, trials) for name, trials in failed(results).items()]
    said = [*_target(results), *failures, *_without_score(results), *_not_there(results), *_caution(results)]
    return " ".join(said)


def _target(results: Results) -> list[str]:
    found = statistics.standing(results, SECONDS_TO_TARGET)
    if found is None or statistics.leading(results) is FINAL_SCORE:
        return []
    groups: dict[str, list[str]] = {"with all seeds": [], "with some": [], "with none": []}
    for place in found.places:
        reached, every = place.reached, len(place.values)
        how = "with all seeds" if reached == every else "with some" if reached else "with none"
        groups[how].append(f"{place.contestant} ({reached} of {every})" if 0 < reached < every else place.contestant)
    said = "; ".join(f"{how} by {some(names)}" for how, names in groups.items() if names)
    return [f"The target of {number(results.target)} was reached {said}."]


def _caution(results: Results) -> list[str]:
    seeds = results.seeds
    if len(results.contestants) < 2 or seeds == 0 or seeds > FEWEST:
        return []
    if seeds == FEWEST:
        often = round(1 / statistics.chance_of_parting(seeds, seeds))
        return [
            f"{seeds} seeds prove little: even where all {seeds} runs of one score above all {seeds} of another, "
            f"chance does the same one time in {often}, so no two scores are called different."
        ]
    each = f"{plural(seeds, 'seed')} prove{'s' if seeds == 1 else ''}"
    return [f"{each} very little: there is no interval, and other seeds may reverse any of this."]


def failed(results: Results) -> dict[str, list[Trial]]:
    broken = [trial for trial in results.trials if trial.status == "failed"]
    found = {one.name: [trial for trial in broken if trial.contestant == one.name] for one in results.contestants}
    return {name: trials for name, trials in found.items() if trials}


def _failure(results: Results, name: str, trials: list[Trial]) -> str:
    all_of_it = sum(trial.contestant == name for trial in results.trials)
    lines = (trial.cause.strip().partition("\n")[0].strip().rstrip(".") or NO_CAUSE for trial in trials)
    causes = list(dict.fromkeys(line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…" for line in lines))
    more = f" (and {counted(len(causes) - 1, 'other cause')})" if len(causes) > 1 else ""
    return f"Failed: {name}, with {len(trials)} of {all_of_it} seeds: {causes[0]}{more}."


def _without_score(results: Results) -> list[str]:
    ended = [trial for trial in results.trials if trial.finished and trial.score is not None]
    bad = [trial.contestant for trial in ended if trial.finite_score is None]
    counts = {name: counted(bad.count(name), "run") for name in dict.fromkeys(bad)}
    return [f"Left out of the scores of {name}: {runs}, not a finite number." for name, runs in counts.items()]


def _not_there(results: Results) -> list[str]:
    count = sum(trial.status in ("missing", "interrupted") for trial in results.trials)
    if count and results.kind == "report":
        return [f"Not finished, and left out: {counted(count, 'run')}."]
    return [f"The study is not finished: {counted(count, 'run')} to go."] if count else []
