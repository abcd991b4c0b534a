"""Who is best at what, as far as the seeds can tell; imports `criteria`, `findings` and `statistics`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from repertory.studies.criteria import CRITERIA, FINAL_SCORE, Criterion
from repertory.studies.findings import Findings
from repertory.studies.statistics import Estimate, estimate, pairs_won, told_apart


@dataclass(frozen=True)
class Place:
    """One contestant's place by one criterion."""

    contestant: str
    values: tuple[float, ...]
    estimate: Estimate
    apart: bool
    """Whether the seeds tell it from the best."""


@dataclass(frozen=True)
class Standing:
    """One criterion: the contestants from best to worst."""

    criterion: Criterion
    places: tuple[Place, ...]

    @property
    def best(self) -> Place:
        """The first."""
        return self.places[0]

    @property
    def behind(self) -> tuple[str, ...]:
        """Those that the seeds show to be behind the best."""
        return tuple(place.contestant for place in self.places[1:] if place.apart)

    @property
    def level(self) -> tuple[str, ...]:
        """Those that the seeds can't tell from the best."""
        return tuple(place.contestant for place in self.places[1:] if not place.apart)

    @property
    def seeds(self) -> int:
        """The most that any has."""
        return max(place.estimate.seeds for place in self.places)

    @property
    def tied(self) -> bool:
        """Whether all have the same number."""
        return len({place.estimate.value for place in self.places}) == 1

    def of(self, contestant: str) -> Place | None:
        """One contestant's place, if it has one."""
        return next((place for place in self.places if place.contestant == contestant), None)


def standing(findings: Findings, criterion: Criterion) -> Standing | None:
    """Those who have a number, best first; None if nobody has one."""
    found = {one.name: criterion.values(findings, one.name) for one in findings.contestants}
    numbers = {name: (values, estimate(values)) for name, values in found.items() if values}
    if not numbers:
        return None
    sign = -1 if criterion.higher_is_better else 1
    order = sorted(numbers, key=lambda name: (*_rank(*numbers[name], sign), -_score(findings, name)))
    best = numbers[order[0]][0]
    return Standing(
        criterion, tuple(Place(name, *numbers[name], _behind(criterion, best, numbers[name][0])) for name in order)
    )


def _behind(criterion: Criterion, best: tuple[float, ...], values: tuple[float, ...]) -> bool:
    """Whether the seeds show it; not where one who gets there less often is the faster one when it does."""
    higher = pairs_won(best, values)
    return told_apart(best, values, criterion.steady) and (higher if criterion.higher_is_better else 1 - higher) > 0.5


def _rank(values: tuple[float, ...], estimated: Estimate, sign: int) -> tuple[float, float]:
    """Those who get there with more of their seeds come first, then those who do best."""
    return sum(map(math.isinf, values)) / len(values), sign * estimated.value


def _score(findings: Findings, name: str) -> float:
    """Between equals, the one that scores more is named first."""
    values = FINAL_SCORE.values(findings, name)
    return estimate(values).value if values else -math.inf


def standings(findings: Findings) -> tuple[Standing, ...]:
    """By every criterion for which there are numbers, and which somebody met."""
    found = (standing(findings, criterion) for criterion in CRITERIA)
    return tuple(one for one in found if one is not None and math.isfinite(one.best.estimate.value))
