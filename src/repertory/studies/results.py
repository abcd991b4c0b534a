"""What a study found: its records, the two tables they are saved to, and how they are read from run directories.

`evaluations.csv` has a row for each evaluation, `trials.csv` one for each run. Together they hold all that a report
needs, so it can be made again when the runs themselves are gone. Missing or torn files of a run are left out.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from repertory.errors import UserError
from repertory.runs.directory import RunDirectory, read_json, write_text

Row = dict[str, Any]
Other = TypeVar("Other")
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
    topology: str
    agent: str
    actors: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What was set for it alone."""


@dataclass(frozen=True)
class Trial:
    """One run of one contestant with one seed."""

    contestant: str
    seed: int
    status: str
    """As in result.json (completed, solved, ...), or "failed", or "missing" while the study is not finished."""
    cause: str = ""
    """The error message of a failed run."""
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
        scores = (evaluation.score for evaluation in self.evaluations)
        return max((score for score in scores if math.isfinite(score)), default=None)

    @property
    def policy_lag(self) -> float | None:
        lags = [lag for lag in self.lags if math.isfinite(lag)]
        return sum(lags) / len(lags) if lags else None

    def reached(self, score: float) -> Evaluation | None:
        return next((evaluation for evaluation in self.evaluations if evaluation.score >= score), None)


@dataclass(frozen=True)
class Results:
    kind: str
    """compare, ablate, scale or report."""
    environment: str
    command: str
    budget: str
    """In words: "60 s", "100,000 env steps", "until 475, at most 50,000 env steps"."""
    target: float | None
    contestants: tuple[Contestant, ...]
    trials: tuple[Trial, ...]
    machine: str = ""

    def of(self, contestant: str) -> tuple[Trial, ...]:
        """The finished trials of one contestant, by seed."""
        found = (trial for trial in self.trials if trial.contestant == contestant and trial.finished)
        return tuple(sorted(found, key=lambda trial: trial.seed))

    @property
    def seeds(self) -> int:
        """The most seeds that any contestant finished."""
        return max((len(self.of(contestant.name)) for contestant in self.contestants), default=0)


def write_tables(results: Results, directory: Path) -> None:
    for name, keys, rows in (
        ("evaluations.csv", EVALUATION_KEYS, evaluation_rows(results)),
        ("trials.csv", TRIAL_KEYS, trial_rows(results)),
    ):
        text = io.StringIO()
        writer = csv.DictWriter(text, keys, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(directory / name, text.getvalue())


def evaluation_rows(results: Results) -> list[Row]:
    told = [(trial, evaluation) for trial in results.trials for evaluation in trial.evaluations]
    return [_chosen(EVALUATION_KEYS, {**_run_values(results, trial), **vars(one)}) for trial, one in told]


def trial_rows(results: Results) -> list[Row]:
    """One row for each run; None where there is nothing to say."""
    rows = []
    for trial in results.trials:
        reached = None if results.target is None else trial.reached(results.target)
        derived = {
            "score": trial.finite_score,
            "best": trial.best,
            "policy_lag": trial.policy_lag,
            "busy": "; ".join(f"{role}={share}" for role, share in trial.busy.items()),
            "target_seconds": getattr(reached, "seconds", None),
            "target_env_steps": getattr(reached, "env_steps", None),
        }
        rows.append(_chosen(TRIAL_KEYS, {**_run_values(results, trial), **derived}))
    return rows


def _run_values(results: Results, trial: Trial) -> Row:
    """The values of a run and of its contestant; no two have the same name."""
    contestant = next(one for one in results.contestants if one.name == trial.contestant)
    return {**vars(contestant), **vars(trial)}


def _chosen(keys: Iterable[str], values: Row) -> Row:
    return {key: values[key] for key in keys}


def read_tables(directory: Path) -> dict[tuple[str, int], Trial]:
    """Both tables by contestant and seed; nothing where they are missing or can't be read."""
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
    """The table has only the mean of the lags; an older one has no `busy`."""
    rates = {key: float(row[key]) if row[key] else None for key in ("env_steps_per_s", "updates_per_s", "policy_lag")}
    lag = rates.pop("policy_lag")
    shares = (told.rpartition("=") for told in row.get("busy", "").split("; ") if told)
    return Trial(
        **_chosen(("contestant", "status", "cause", "directory"), row),
        seed=int(row["seed"]),
        env_steps=int(row["env_steps"]),
        updates=int(row["updates"]),
        seconds=float(row["seconds"]),
        startup_s=float(row["startup_s"]),
        env_steps_per_s=rates["env_steps_per_s"],
        updates_per_s=rates["updates_per_s"],
        lags=() if lag is None else (lag,),
        busy={role: float(share) for role, _, share in shares},
    )


def read_trial(path: Path, contestant: str, seed: int) -> Trial:
    """One run from its directory, whatever there is of it."""
    status, run = status_of(path), RunDirectory(path)
    if status == "missing":
        return Trial(contestant, seed, status)
    result, failure, config = map(_values, (run.result_path, path / "failure.json", run.config_path))
    lines = _lines(run.metrics_path)
    training = _while_training(lines, config)
    return Trial(
        contestant=contestant,
        seed=seed,
        status=status,
        cause=str(failure.get("cause") or result.get("error") or "") if status == "failed" else "",
        env_steps=_count(result, "env_steps"),
        updates=_count(result, "updates"),
        seconds=_number(result, "seconds", 0.0),
        startup_s=_number(result, "startup_s", 0.0),
        evaluations=_evaluations(result),
        env_steps_per_s=_rate("env_steps", training, result),
        updates_per_s=_rate("updates", training, result),
        lags=tuple(_numbers(lines, "policy_lag_mean")),
        busy=_busy(lines),
        directory=str(path),
    )


def status_of(run: Path) -> str:
    """That of a trial: "missing", "failed", or the one in result.json, "interrupted" without one."""
    if not run.is_dir():
        return "missing"
    return "failed" if _values(run / "failure.json") else str(_values(run / "result.json").get("status", "interrupted"))


def _values(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if it is missing or can't be read."""
    try:
        return read_json(path)
    except UserError:
        return {}


def _lines(metrics: Path) -> list[dict[str, Any]]:
    found: list[Any] = []
    with suppress(OSError):
        for text in metrics.read_bytes().split(b"\n"):
            with suppress(ValueError):
                found.append(json.loads(text))
    return [values for values in found if isinstance(values, dict) and values]


def _number(values: Mapping[str, Any], key: str, otherwise: Other) -> float | Other:
    value: Any = values.get(key)
    return float(value) if type(value) in (int, float) and math.isfinite(value) else otherwise


def _count(values: Mapping[str, Any], key: str) -> int:
    return int(_number(values, key, 0))


def _numbers(lines: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    return [value for line in lines if (value := _number(line, key, None)) is not None]


def _evaluations(result: Mapping[str, Any]) -> tuple[Evaluation, ...]:
    rows = [row for row in result.get("evaluations") or () if isinstance(row, Mapping) and "mean" in row]
    return tuple(
        Evaluation(_count(row, "env_steps"), _count(row, "updates"), seconds, _number(row, "mean", math.nan))
        for row in rows
        if (seconds := _number(row, "seconds", None)) is not None
    )


def _while_training(lines: list[dict[str, Any]], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The last line within the budget of seconds: the last evaluation and the last checkpoint are not training."""
    options = config.get("config")
    budget = _number(options, "seconds", math.inf) if isinstance(options, Mapping) else math.inf
    within = [line for line in lines if _number(line, "seconds", math.inf) <= budget]
    return within[-1] if within else {}


def _rate(key: str, training: Mapping[str, Any], result: Mapping[str, Any]) -> float | None:
    """Of the whole run until the end of its training, by the clock."""
    seconds, count = _number(training, "seconds", None), _number(training, key, None)
    return round(count / seconds, 3) if seconds and count is not None else _number(result, f"{key}_per_s", None)


def _busy(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Shares of time by role; a run of one process says what it did (`time/`)."""
    keys = dict.fromkeys(key for line in lines for key in line if key.startswith(("busy/", "time/")))
    means = {key.partition("/")[2]: _numbers(lines, key) for key in keys}
    return {role: round(sum(values) / len(values), 4) for role, values in means.items() if values}
