"""From run directories to results: those of a study, and runs that there are, of which those with the same settings
and other seeds are one contestant. What is missing or torn is left out, not guessed."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from repertory.errors import UserError
from repertory.runs.config import RunOptions, from_dict, names_of, value_of
from repertory.runs.directory import RunDirectory, read_json
from repertory.studies.entrants import budget_in_words
from repertory.studies.plan import StudyPlan, numbered
from repertory.studies.results import Contestant, Evaluation, Results, Trial
from repertory.studies.words import plural

Other = TypeVar("Other")
BUSY, SHARE = "busy/", "time/"
"""How metrics begin that say who was at work; `single` has one process, and says what it did."""
FIRST = ("agent_name", "actors")
"""Settings that tell runs of one topology apart better than others."""
APART = (
    "environment", "topology_name", "seed", "name", "runs_dir", "dry_run", "quiet", "json", "threads", "log_every",
    "checkpoint_every", "keep_checkpoints",
)  # fmt: skip
"""Options that don't make another contestant."""


def read_study(plan: StudyPlan, runs_dir: Path) -> Results:
    trials = (read_trial(run.path, run.contestant.name, run.seed) for run in plan.runs(runs_dir))
    shared = {item.name: getattr(plan, item.name) for item in fields(Results) if item.name != "trials"}
    return Results(**shared, trials=tuple(trials))


def read_trial(path: Path, contestant: str, seed: int) -> Trial:
    """One run, whatever there is of it."""
    if not path.is_dir():
        return Trial(contestant, seed, "missing")
    run = RunDirectory(path)
    result, failure = _values(run.result_path), _values(path / "failure.json")
    lines = _lines(run.metrics_path)
    status = "failed" if failure else str(result.get("status", "interrupted"))
    training = _while_training(lines, _values(run.config_path))
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


def _lines(metrics: Path) -> list[dict[str, Any]]:
    found: list[Any] = []
    with suppress(OSError):
        for text in metrics.read_bytes().split(b"\n"):
            with suppress(ValueError):
                found.append(json.loads(text))
    return [values for values in found if isinstance(values, dict) and values]


def _values(path: Path) -> dict[str, Any]:
    """What a JSON file holds; nothing, if it is not there or can't be read."""
    try:
        return read_json(path)
    except UserError:
        return {}


def _number(values: Mapping[str, Any], key: str, otherwise: Other) -> float | Other:
    value = values.get(key)
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if fits and value is not None else otherwise


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
    budget = _number(options, "seconds", None) if isinstance(options, Mapping) else None
    within = [line for line in lines if (_number(line, "seconds", None) or math.inf) <= (budget or math.inf)]
    return within[-1] if within else {}


def _rate(key: str, training: Mapping[str, Any], result: Mapping[str, Any]) -> float | None:
    """Of the whole run until the end of its training, by the clock."""
    seconds, count = _number(training, "seconds", None), _number(training, key, None)
    return round(count / seconds, 3) if seconds and count is not None else _number(result, f"{key}_per_s", None)


def _busy(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Shares of time by role; for `single`, by what its one process did."""
    keys = dict.fromkeys(key for line in lines for key in line if key.startswith((BUSY, SHARE)))
    means = {key.partition("/")[2]: _numbers(lines, key) for key in keys}
    return {role: round(sum(values) / len(values), 4) for role, values in means.items() if values}


@dataclass(frozen=True)
class Run:
    """A run that there is."""

    path: Path
    options: RunOptions
    versions: Mapping[str, Any]

    @property
    def topology(self) -> str:
        return self.options.topology_name

    @property
    def settings(self) -> dict[str, Any]:
        """What makes it this contestant's, besides its topology."""
        names = [name for name in names_of(type(self.options)) if name not in APART]
        return {name: value_of(self.options, name) for name in dict.fromkeys([*FIRST, *names])}

    @property
    def key(self) -> str:
        """Equal for runs of one contestant."""
        return f"{self.topology} {self.settings}"


def read_runs(paths: list[Path], target: float | None, command: str) -> Results:
    runs = [_read(path) for path in paths]
    environments = list(dict.fromkeys(run.options.environment for run in runs))
    if len(environments) != 1:
        each = ", ".join(environments)
        raise UserError(f"runs of several environments can't be compared: {each}; report each by itself")
    _refuse_twins(runs)
    firsts = {run.key: run for run in runs}
    rivals, targets = list(firsts.values()), {run.options.target_score for run in runs}
    names = dict(zip(firsts, distinct([one.topology for one in rivals], [one.settings for one in rivals]), strict=True))
    return Results(
        kind="report",
        environment=environments[0],
        command=command,
        budget=_shared([budget_in_words(run.options) for run in runs], "each run's own"),
        target=target if target is not None or len(targets) > 1 else targets.pop(),
        contestants=tuple(_contestant(names[key], run, rivals) for key, run in firsts.items()),
        trials=tuple(read_trial(run.path, names[run.key], run.options.seed) for run in runs),
        machine=_shared([", ".join(f"{name} {found}" for name, found in run.versions.items()) for run in runs], ""),
    )


def _read(path: Path) -> Run:
    directory = RunDirectory(path)
    try:
        options = from_dict(directory.read_config())
    except (KeyError, TypeError):
        raise UserError(f"{directory.config_path} is not the configuration of a run") from None
    return Run(path, options, directory.read_origin().get("versions") or {})


def _refuse_twins(runs: list[Run]) -> None:
    """Two runs that differ in nothing would count twice."""
    seen: dict[tuple[str, int], Path] = {}
    for run in runs:
        twin = seen.setdefault((run.key, run.options.seed), run.path)
        if twin is not run.path:
            raise UserError(f"{twin} and {run.path} have the same settings and the same seed; name one of them")


def _shared(texts: list[str], otherwise: str) -> str:
    """What is the same for all runs."""
    return texts[0] if len({*texts}) == 1 else otherwise


def _contestant(name: str, run: Run, others: list[Run]) -> Contestant:
    """With what makes it differ from others of its topology."""
    rivals = [other.settings for other in others if other.topology == run.topology]
    own = {
        key: value
        for key, value in run.settings.items()
        if key not in FIRST and any(rival.get(key) != value for rival in rivals)
    }
    return Contestant(name, run.topology, run.options.agent_name, run.options.actors, own)


def distinct(names: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names, each with as many of its settings as it takes to be the only one; at last a number."""
    found = list(names)
    for key in dict.fromkeys(key for each in settings for key in each):
        repeated = [name for name, count in Counter(found).items() if count > 1]
        for group in [[index for index, name in enumerate(found) if name == one] for one in repeated]:
            if len({repr(settings[index].get(key)) for index in group}) > 1:
                for index in group:
                    found[index] += f", {_setting(key, settings[index].get(key))}"
    return numbered(found)


def _setting(key: str, value: Any) -> str:
    """`dqn`, `4 actors`, or `agent.double=False`."""
    if key == "agent_name":
        return str(value)
    return plural(value, "actor") if key == "actors" else f"{key}={value}"
