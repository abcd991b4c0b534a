"""Findings as rows: `evaluations.csv` has one for each evaluation, `trials.csv` one for each run.

All that a report needs stands in them, so that it can be made again when the runs themselves are gone.
"""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from repertory.runs.directory import write_text
from repertory.studies.findings import Contestant, Evaluation, Findings, Trial

Row = dict[str, Any]
EVALUATION_KEYS = (
    "contestant", "topology", "agent", "actors", "seed", "env_steps", "updates", "seconds", "score",
)  # fmt: skip
TRIAL_KEYS = (
    "contestant", "topology", "agent", "actors", "seed", "status", "cause", "score", "best", "env_steps", "updates",
    "seconds", "startup_s", "env_steps_per_s", "updates_per_s", "policy_lag", "busy", "target_seconds",
    "target_env_steps", "directory",
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
        "busy": "; ".join(f"{role}={share}" for role, share in trial.busy.items()),
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
    """Of the lags only their mean is there."""
    shares = (told.rpartition("=") for told in row.get("busy", "").split("; ") if told)
    return Trial(
        contestant=row["contestant"],
        seed=int(row["seed"]),
        status=row["status"],
        cause=row["cause"],
        env_steps=int(row["env_steps"]),
        updates=int(row["updates"]),
        seconds=float(row["seconds"]),
        startup_s=float(row["startup_s"]),
        env_steps_per_s=_known(row["env_steps_per_s"]),
        updates_per_s=_known(row["updates_per_s"]),
        lags=tuple(lag for lag in [_known(row["policy_lag"])] if lag is not None),
        busy={role: float(share) for role, _, share in shares},
        directory=row["directory"],
    )


def _known(text: str) -> float | None:
    return float(text) if text and math.isfinite(float(text)) else None
