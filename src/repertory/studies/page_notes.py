"""The small print of the page: what the statistics are, how curves are joined, what a second is."""

from __future__ import annotations

from repertory.studies.curves import shared_span
from repertory.studies.findings import Findings
from repertory.studies.numerals import number
from repertory.studies.statistics import CHANCE, FEWEST, REPETITIONS


def notes(findings: Findings) -> list[str]:
    """Those that apply."""
    return [*_statistics(findings), *_curves(), *_shared(findings), *_units(findings)]


def _statistics(findings: Findings) -> list[str]:
    said = [
        "Scores are interquartile means: the lowest and the highest quarter of the seeds are left out, the rest is "
        "averaged. With three seeds or fewer, nothing is left out, and it is the mean.",
        f"Intervals hold 95 % of {REPETITIONS:,} bootstrap draws of the seeds (rliable). They tell what other seeds "
        "might have given, on this environment and this machine; from few seeds they come out too narrow. Below "
        f"{FEWEST} seeds there are none.",
    ]
    if len(findings.contestants) < 2:
        return said
    return [
        *said,
        "Two contestants count as different where a permutation test of their ranks gives a chance of at most "
        f"{100 * CHANCE:.0f} %; of rates, which scatter evenly, Welch's t test. Each pair is judged alone: of twenty "
        "pairs that are equal, about one is called different.",
    ]


def _curves() -> list[str]:
    return [
        "Curves: between two evaluations a run's score is the straight line between them. The last score is carried "
        "forward only for runs that ended because they were solved. A curve begins where all seeds of the contestant "
        "have been evaluated and ends where the first of them that was not solved ends.",
        "Failed runs have no part in scores or curves. A run that ends with a score that is not a finite number has "
        "no final score.",
    ]


def _shared(findings: Findings) -> list[str]:
    """The ground on which mean scores are compared."""
    steps, seconds = shared_span(findings, "env_steps"), shared_span(findings, "seconds")
    if len(findings.contestants) < 2 or steps is None or seconds is None:
        return []
    return [
        "Mean scores over the same env steps, or the same time, are taken where every run has a score: from "
        f"{number(steps[0])} to {number(steps[1])} env steps, and from {number(seconds[0])} to {number(seconds[1])} s. "
        "The slowest run sets the end."
    ]


def _units(findings: Findings) -> list[str]:
    alone = "" if findings.kind == "report" else " Runs were made one after another, never two at once."
    said = [
        "Seconds are those of the wall clock from the first step on: start-up and compilation are not in them, "
        f"evaluations are.{alone}",
        "Env steps are decisions of the agent, those of all environments added up. Policy lag is the learner's number "
        "of updates minus that of the weights that acted.",
    ]
    if findings.target is not None:
        said.append(
            "Time to target is that of the first evaluation at or above the target; a seed that never gets there "
            "counts as infinitely late. Where there are such seeds, the number is the median of all, without interval."
        )
    return said
