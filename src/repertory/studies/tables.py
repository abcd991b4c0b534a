"""Findings as rows: `evaluations.csv` has one for each evaluation, `trials.csv` one for each run."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from repertory.runs.directory import write_text
from repertory.studies.findings import Contestant, Findings, Trial

Row = dict[str, Any]
EVALUATION_KEYS = (
    "contestant", "topology", "agent", "actors", "seed", "env_steps", "updates", "seconds", "score",
)  # fmt: skip
TRIAL_KEYS = (
    "contestant", "topology", "agent", "actors", "seed", "status", "cause", "score", "best", "env_steps", "updates",
    "seconds", "startup_s", "env_steps_per_s", "updates_per_s", "policy_lag", "target_seconds", "target_env_steps",
    "directory",
)  # fmt: skip


def write_tables(findings: Findings, directory: Path) -> None:
    """Both tables, each whole or not at all."""
    write_text(directory / "evaluations.csv", _csv(EVALUATION_KEYS, evaluation_rows(findings)))
    write_text(directory / "trials.csv", _csv(TRIAL_KEYS, trial_rows(findings)))


def evaluation_rows(findings: Findings) -> list[Row]:
    """One row for each evaluation."""
    return [
        {
            **_who(findings, trial),
            "env_steps": evaluation.env_steps,
            "updates": evaluation.updates,
            "seconds": evaluation.seconds,
            "score": evaluation.score,
        }
        for trial in findings.trials
        for evaluation in trial.evaluations
    ]


def trial_rows(findings: Findings) -> list[Row]:
    """One row for each run; None where there is nothing to say."""
    return [_trial_row(findings, trial) for trial in findings.trials]


def _trial_row(findings: Findings, trial: Trial) -> Row:
    reached = None if findings.target is None else trial.reached(findings.target)
    return {
        **_who(findings, trial),
        "status": trial.status,
        "cause": trial.cause,
        "score": trial.finite_score,
        "best": trial.best,
        "env_steps": trial.env_steps,
        "updates": trial.updates,
        "seconds": trial.seconds,
        "startup_s": trial.startup_s,
        "env_steps_per_s": trial.env_steps_per_s,
        "updates_per_s": trial.updates_per_s,
        "policy_lag": sum(trial.lags) / len(trial.lags) if trial.lags else None,
        "target_seconds": None if reached is None else reached.seconds,
        "target_env_steps": None if reached is None else reached.env_steps,
        "directory": trial.directory,
    }


def _who(findings: Findings, trial: Trial) -> Row:
    contestant = _named(findings, trial.contestant)
    return {
        "contestant": contestant.name,
        "topology": contestant.topology,
        "agent": contestant.agent,
        "actors": contestant.actors,
        "seed": trial.seed,
    }


def _named(findings: Findings, name: str) -> Contestant:
    return next(contestant for contestant in findings.contestants if contestant.name == name)


def _csv(keys: tuple[str, ...], rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
