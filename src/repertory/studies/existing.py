"""Findings of runs that there are: those with the same settings and other seeds are one contestant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repertory.errors import UserError
from repertory.runs.config import RunOptions, from_dict, names_of, value_of
from repertory.runs.directory import RunDirectory
from repertory.studies.budget import in_words
from repertory.studies.findings import Contestant, Findings
from repertory.studies.naming import distinct
from repertory.studies.reading import read_trial

FIRST = ("agent_name", "actors")
"""Settings that tell runs of one topology apart better than others."""
APART = (
    "environment", "topology_name", "seed", "name", "runs_dir", "dry_run", "quiet", "json", "threads", "log_every",
    "checkpoint_every", "keep_checkpoints",
)  # fmt: skip
"""Options that don't make another contestant."""


@dataclass(frozen=True)
class Run:
    """A run that there is."""

    path: Path
    options: RunOptions
    versions: Mapping[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """What makes it this contestant's, besides its topology."""
        names = [name for name in names_of(type(self.options)) if name not in APART]
        ordered = [*FIRST, *(name for name in names if name not in FIRST)]
        return {name: value_of(self.options, name) for name in ordered}

    @property
    def key(self) -> str:
        """Equal for runs of one contestant."""
        return f"{self.options.topology_name} {self.settings}"


def read_runs(paths: list[Path], target: float | None, command: str) -> Findings:
    """What these runs found."""
    runs = [_read(path) for path in paths]
    kinds = list(dict.fromkeys(run.options.environment for run in runs))
    if len(kinds) != 1:
        raise UserError(f"runs of several environments can't be compared: {', '.join(kinds)}; report each by itself")
    _refuse_twins(runs)
    firsts = {run.key: run for run in runs}
    names = dict(zip(firsts, _names(list(firsts.values())), strict=True))
    targets = {run.options.target_score for run in runs}
    return Findings(
        kind="report",
        environment=kinds[0],
        command=command,
        budget=_budget(runs),
        target=target if target is not None or len(targets) > 1 else targets.pop(),
        contestants=tuple(_contestant(names[key], run, list(firsts.values())) for key, run in firsts.items()),
        trials=tuple(read_trial(run.path, names[run.key], run.options.seed) for run in runs),
        machine=_versions(runs),
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


def _names(runs: list[Run]) -> list[str]:
    return distinct([run.options.topology_name for run in runs], [run.settings for run in runs])


def _contestant(name: str, run: Run, others: list[Run]) -> Contestant:
    """With what makes it differ from others of its topology."""
    rivals = [other.settings for other in others if other.options.topology_name == run.options.topology_name]
    own = {
        key: value
        for key, value in run.settings.items()
        if key not in FIRST and any(rival.get(key) != value for rival in rivals)
    }
    return Contestant(name, run.options.topology_name, run.options.agent_name, run.options.actors, own)


def _budget(runs: list[Run]) -> str:
    found = {in_words(run.options.seconds, run.options.env_steps, run.options.target_score) for run in runs}
    return found.pop() if len(found) == 1 else "each run's own"


def _versions(runs: list[Run]) -> str:
    """What they ran with, if it was the same for all."""
    found = {", ".join(f"{name} {version}" for name, version in run.versions.items()) for run in runs}
    return found.pop() if len(found) == 1 else ""
