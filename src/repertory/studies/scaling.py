"""What more actors bring, against what they would bring at best.

Ideal is the rate of the fewest actors times how many more there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from repertory.studies.findings import Findings
from repertory.studies.standings import Criterion
from repertory.studies.statistics import Estimate

PAYS = 0.5
"""More actors pay while at least this share of what they would ideally add is added."""


@dataclass(frozen=True)
class Rung:
    """A number of actors, and the rate they reach together."""

    contestant: str
    actors: int
    rate: Estimate
    ideal: float

    @property
    def efficiency(self) -> float:
        """The rate as a share of the ideal one."""
        return self.rate.value / self.ideal


def ladder(findings: Findings, criterion: Criterion) -> tuple[Rung, ...]:
    """From the fewest actors to the most; empty where there are no rates to compare."""
    found = sorted((one.actors, one.name, criterion.values(findings, one.name)) for one in findings.contestants)
    rates = [(actors, name, criterion.estimate(values)) for actors, name, values in found if values and actors > 0]
    if len(rates) < 2 or rates[0][2].value <= 0:
        return ()
    each = rates[0][2].value / rates[0][0]
    return tuple(Rung(name, actors, rate, each * actors) for actors, name, rate in rates)


def last_that_pays(rungs: tuple[Rung, ...]) -> Rung:
    """The last rung before the first step that adds less than half of what it would ideally add."""
    for below, above in pairwise(rungs):
        ideal = above.ideal - below.ideal
        if ideal > 0 and above.rate.value - below.rate.value < PAYS * ideal:
            return below
    return rungs[-1]
