"""From run directories to findings; what is missing or torn in them is left out, not guessed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from repertory.errors import UserError
from repertory.runs.directory import RunDirectory, read_json
from repertory.studies.findings import Evaluation, Findings, Trial
from repertory.studies.programme import Programme

BUSY, SHARE = "busy/", "time/"
"""How metrics begin that say who was at work; `single` has one process, and says what it did."""


def read_study(programme: Programme, runs_dir: Path) -> Findings:
    """What a study found so far."""
    parts = programme.parts(runs_dir)
    return Findings(
        kind=programme.kind,
        environment=programme.environment,
        command=programme.command,
        budget=programme.budget,
        target=programme.target,
        contestants=programme.contestants,
        trials=tuple(read_trial(part.path, part.contestant.name, part.seed) for part in parts),
        machine=programme.machine,
    )


def read_trial(path: Path, contestant: str, seed: int) -> Trial:
    """One run, whatever there is of it."""
    if not path.is_dir():
        return Trial(contestant, seed, "missing")
    run = RunDirectory(path)
    result, failure = _values(run.result_path), _values(path / "failure.json")
    lines = read_lines(run.metrics_path)
    status = "failed" if failure else str(result.get("status", "interrupted"))
    training = _while_training(lines, _values(run.config_path))
    return Trial(
        contestant=contestant,
        seed=seed,
        status=status,
        cause=str(failure.get("cause") or result.get("error") or "") if status == "failed" else "",
        env_steps=_count(result, "env_steps"),
        updates=_count(result, "updates"),
        seconds=_number(result, "seconds") or 0.0,
        startup_s=_number(result, "startup_s") or 0.0,
        evaluations=_evaluations(result),
        env_steps_per_s=_rate("env_steps", training, result),
        updates_per_s=_rate("updates", training, result),
        lags=tuple(_numbers(lines, "policy_lag_mean")),
        busy=_busy(lines),
        directory=str(path),
    )


def read_lines(metrics: Path) -> list[dict[str, Any]]:
    """The lines of metrics that can be read."""
    try:
        texts = metrics.read_bytes().split(b"\n")
    except OSError:
        return []
    return [values for text in texts if (values := _parsed(text))]


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _values(path: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing, if it is not there or can't be read."""
    try:
        return read_json(path)
    except UserError:
        return {}


def _number(values: Mapping[str, Any], key: str) -> float | None:
    value = values.get(key)
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if fits and value is not None else None


def _count(values: Mapping[str, Any], key: str) -> int:
    return int(_number(values, key) or 0)


def _numbers(lines: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    return [value for line in lines if (value := _number(line, key)) is not None]


def _evaluations(result: Mapping[str, Any]) -> tuple[Evaluation, ...]:
    found = []
    for row in result.get("evaluations") or ():
        if not isinstance(row, Mapping):
            continue
        seconds, score = _number(row, "seconds"), _number(row, "mean")
        if seconds is not None and "mean" in row:
            counts = _count(row, "env_steps"), _count(row, "updates")
            found.append(Evaluation(*counts, seconds, math.nan if score is None else score))
    return tuple(found)


def _while_training(lines: list[dict[str, Any]], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The last line within the budget of seconds: the last evaluation and the last checkpoint are not training."""
    options = config.get("config")
    budget = _number(options, "seconds") if isinstance(options, Mapping) else None
    within = [line for line in lines if (_number(line, "seconds") or math.inf) <= (budget or math.inf)]
    return within[-1] if within else {}


def _rate(key: str, training: Mapping[str, Any], result: Mapping[str, Any]) -> float | None:
    """Of the whole run until the end of its training, by the clock."""
    seconds, count = _number(training, "seconds"), _number(training, key)
    if seconds and count is not None:
        return round(count / seconds, 3)
    return _number(result, f"{key}_per_s")


def _busy(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Shares of time by role; for `single`, by what its one process did."""
    keys = dict.fromkeys(key for line in lines for key in line if key.startswith((BUSY, SHARE)))
    means = {key.partition("/")[2]: _numbers(lines, key) for key in keys}
    return {role: round(sum(values) / len(values), 4) for role, values in means.items() if values}
