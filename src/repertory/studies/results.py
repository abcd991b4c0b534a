"""What a study found: plain records without numpy, and the two tables in which they are kept.

`evaluations.csv` has a row for each evaluation, `trials.csv` one for each run. All that a report needs stands in them,
so that it can be made again when the runs themselves are gone.
"""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from repertory.runs.directory import write_text

Row = dict[str, Any]
EVALUATION_KEYS = (
    "contestant", "topology", "agent", "actors", "seed", "env_steps", "updates", "seconds", "score",
)  # fmt: skip
TRIAL_KEYS = (
    "contestant", "topology", "agent", "actors", "seed", "status", "cause", "score", "best", "env_steps", "updates",
    "seconds", "startup_s", "env_steps_per_s", "updates_per_s", "policy_lag", "busy", "target_seconds",
    "target_env_steps", "directory",
)  # fmt: skip


@dataclass(frozen=True)
class Evaluation:
    env_steps: int
    updates: int
    seconds: float
    score: float


@dataclass(frozen=True)
class Contestant:
    """One of the things compared: a topology, an agent without one of its parts, or a number of actors."""

    name: str
    """Unique in the study; what figures and words call it."""
    topology: str
    agent: str
    actors: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What was set for it, beyond what all have in common."""


@dataclass(frozen=True)
class Trial:
    """One run of one contestant with one seed."""

    contestant: str
    seed: int
    status: str
    """As in result.json (completed, solved, ...), or "failed", or "missing" while the study is not finished."""
    cause: str = ""
    """Of a failure, in the run's own words."""
    env_steps: int = 0
    updates: int = 0
    seconds: float = 0.0
    startup_s: float = 0.0
    evaluations: tuple[Evaluation, ...] = ()
    env_steps_per_s: float | None = None
    updates_per_s: float | None = None
    lags: tuple[float, ...] = ()
    """Mean policy lag of each line of metrics, in updates."""
    busy: Mapping[str, float] = field(default_factory=dict)
    """For each role, the share of its time at work, averaged over the lines of metrics."""
    directory: str = ""

    @property
    def finished(self) -> bool:
        return self.status not in ("failed", "missing", "interrupted")

    @property
    def score(self) -> float | None:
        return self.evaluations[-1].score if self.evaluations else None

    @property
    def finite_score(self) -> float | None:
        """The last evaluation, if it is a finite number: an older one would flatter a run that diverged."""
        return self.score if self.score is not None and math.isfinite(self.score) else None

    @property
    def best(self) -> float | None:
        """The best evaluation that is a finite number."""
        scores = (evaluation.score for evaluation in self.evaluations)
        return max((score for score in scores if math.isfinite(score)), default=None)

    def reached(self, score: float) -> Evaluation | None:
        return next((evaluation for evaluation in self.evaluations if evaluation.score >= score), None)


@dataclass(frozen=True)
class Results:
    kind: str
    """compare, ablate, scale or report."""
    environment: str
    command: str
    """What to type to make it again."""
    budget: str
    """In words: "60 s", "100,000 env steps", "until 475 or 50,000 env steps"."""
    target: float | None
    """The score that counts as solved, if one was named."""
    contestants: tuple[Contestant, ...]
    trials: tuple[Trial, ...]
    machine: str = ""
    """Cores, memory, versions: where the study was made."""

    def of(self, contestant: str) -> tuple[Trial, ...]:
        """The finished trials of one contestant, by seed."""
        found = (trial for trial in self.trials if trial.contestant == contestant and trial.finished)
        return tuple(sorted(found, key=lambda trial: trial.seed))

    @property
    def seeds(self) -> int:
        """The most seeds that any contestant finished."""
        return max((len(self.of(contestant.name)) for contestant in self.contestants), default=0)


def write_tables(results: Results, directory: Path) -> None:
    """Each table whole or not at all."""
    write_text(directory / "evaluations.csv", _csv(EVALUATION_KEYS, evaluation_rows(results)))
    write_text(directory / "trials.csv", _csv(TRIAL_KEYS, trial_rows(results)))


def evaluation_rows(results: Results) -> list[Row]:
    told = [(trial, evaluation) for trial in results.trials for evaluation in trial.evaluations]
    return [_chosen(EVALUATION_KEYS, {**_who(results, trial), **vars(evaluation)}) for trial, evaluation in told]


def trial_rows(results: Results) -> list[Row]:
    """One row for each run; None where there is nothing to say."""
    return [_chosen(TRIAL_KEYS, _trial_row(results, trial)) for trial in results.trials]


def _trial_row(results: Results, trial: Trial) -> Row:
    reached = None if results.target is None else trial.reached(results.target)
    return {
        **_who(results, trial),
        "score": trial.finite_score,
        "best": trial.best,
        "policy_lag": sum(trial.lags) / len(trial.lags) if trial.lags else None,
        "busy": "; ".join(f"{role}={share}" for role, share in trial.busy.items()),
        "target_seconds": getattr(reached, "seconds", None),
        "target_env_steps": getattr(reached, "env_steps", None),
    }


def _who(results: Results, trial: Trial) -> Row:
    """The values of a run and of its contestant; no two have the same name."""
    contestant = next(one for one in results.contestants if one.name == trial.contestant)
    return {**vars(contestant), **vars(trial)}


def _chosen(keys: Iterable[str], values: Row) -> Row:
    return {key: values[key] for key in keys}


def _csv(keys: tuple[str, ...], rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read_tables(directory: Path) -> dict[tuple[str, int], Trial]:
    """What both tables tell of each contestant and seed; nothing, where there are none or they can't be read."""
    try:
        evaluations: dict[tuple[str, int], list[Evaluation]] = defaultdict(list)
        for row in _rows(directory / "evaluations.csv"):
            counts = int(row["env_steps"]), int(row["updates"])
            one = Evaluation(*counts, float(row["seconds"]), float(row["score"]))
            evaluations[row["contestant"], int(row["seed"])].append(one)
        trials = (_trial(row) for row in _rows(directory / "trials.csv"))
        keyed = {(one.contestant, one.seed): one for one in trials}
        return {key: replace(one, evaluations=tuple(evaluations[key])) for key, one in keyed.items()}
    except (OSError, KeyError, TypeError, ValueError):
        return {}


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _trial(row: dict[str, str]) -> Trial:
    """Of the lags only their mean is there; an older table has no `busy`."""
    values: Row = _chosen(("contestant", "status", "cause", "directory"), row)
    values |= {key: int(row[key]) for key in ("seed", "env_steps", "updates")}
    values |= {key: float(row[key]) for key in ("seconds", "startup_s")}
    values |= {key: _known(row[key]) for key in ("env_steps_per_s", "updates_per_s")}
    lags = tuple(lag for lag in [_known(row["policy_lag"])] if lag is not None)
    shares = (told.rpartition("=") for told in row.get("busy", "").split("; ") if told)
    return Trial(**values, lags=lags, busy={role: float(share) for role, _, share in shares})


def _known(text: str) -> float | None:
    return float(text) if text and math.isfinite(float(text)) else None
