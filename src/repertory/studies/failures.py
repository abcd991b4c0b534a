"""What went wrong in a study, in words: failed runs with their cause, runs without a score, runs not there yet."""

from __future__ import annotations

from repertory.studies.findings import Findings, Trial
from repertory.studies.numerals import counted

LONGEST = 160


def first_line(cause: str) -> str:
    """The start of a cause, short enough for a sentence."""
    line = cause.strip().partition("\n")[0].strip().rstrip(".") or "no cause was written down"
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def failed(findings: Findings) -> dict[str, list[Trial]]:
    """The failed runs of each contestant that has any."""
    found = {one.name: [t for t in findings.trials if t.contestant == one.name] for one in findings.contestants}
    broken = {name: [trial for trial in trials if trial.status == "failed"] for name, trials in found.items()}
    return {name: trials for name, trials in broken.items() if trials}


def failures(findings: Findings) -> list[str]:
    """One sentence for each contestant with failed runs."""
    return [_failure(findings, name, trials) for name, trials in failed(findings).items()]


def _failure(findings: Findings, name: str, trials: list[Trial]) -> str:
    all_of_it = sum(trial.contestant == name for trial in findings.trials)
    causes = list(dict.fromkeys(first_line(trial.cause) for trial in trials))
    more = f" (and {counted(len(causes) - 1, 'other cause')})" if len(causes) > 1 else ""
    return f"Failed: {name}, with {len(trials)} of {all_of_it} seeds: {causes[0]}{more}."


def without_score(findings: Findings) -> list[str]:
    """Runs that ended with a score that is no finite number have no part in the scores: say which."""
    bad = [trial.contestant for trial in findings.trials if trial.finished and _bad(trial)]
    counts = {name: bad.count(name) for name in dict.fromkeys(bad)}
    return [
        f"Left out of the scores of {name}: {counted(n, 'run')}, not a finite number." for name, n in counts.items()
    ]


def _bad(trial: Trial) -> bool:
    return trial.score is not None and trial.finite_score is None


def not_there(findings: Findings) -> list[str]:
    """Runs that are missing, or were interrupted."""
    count = sum(trial.status in ("missing", "interrupted") for trial in findings.trials)
    if count and findings.kind == "report":
        return [f"Not finished, and left out: {counted(count, 'run')}."]
    return [f"The study is not finished: {counted(count, 'run')} to go."] if count else []
