"""What a script or a notebook imports: `train`, `resume`, `evaluate`, `compare`, and the records they return."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from repertory.runs import launch
from repertory.runs.config import change
from repertory.runs.directory import RunDirectory
from repertory.runs.player import Player, load_player
from repertory.runs.presets import defaults


@dataclass(frozen=True)
class Run:
    """A run on disk: its result, and the agent that came out of it."""

    directory: Path
    result: Mapping[str, Any]

    @property
    def score(self) -> float:
        """Mean of the last evaluation; NaN before the first."""
        score = self.result["score"]
        return float("nan") if score is None else float(score)

    def act(self, observation: Any, action_mask: Any = None) -> int:
        """The greedy action for one observation of the environment."""
        return self._player.act(observation, action_mask)

    def forget(self) -> None:
        """A new episode begins: a recurrent agent starts `act` with an empty state."""
        self._player.forget()

    @cached_property
    def _player(self) -> Player:
        return load_player(self.directory)


def train(
    environment: str,
    *,
    agent: str | None = None,
    agent_options: Mapping[str, Any] | None = None,
    network_options: Mapping[str, Any] | None = None,
    topology: str = "single",
    company_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Run:
    """Train an agent; `options` are those of the command line, with underscores."""
    called_at = time.time()
    chosen = change(defaults(environment, agent, topology), {"quiet": not _has_viewer(), **options})
    chosen = change(
        chosen, {"agent": agent_options or {}, "network": network_options or {}, "company": company_options or {}}
    )
    result = launch.start(chosen, called_at=called_at)
    return Run(Path(result["directory"]), result)


def resume(run: str | Path | Run, *, env_steps: int | None = None, runs_dir: str | Path = "runs") -> Run:
    """Go on with a run from its newest checkpoint."""
    result = launch.resume(_directory(run, runs_dir), env_steps=env_steps, quiet=not _has_viewer())
    return Run(Path(result["directory"]), result)


def evaluate(
    run: str | Path | Run, *, episodes: int = 20, seed: int = 0, runs_dir: str | Path = "runs"
) -> dict[str, Any]:
    """Greedy episodes with a run's newest checkpoint: mean, std, episodes, and each return and length."""
    played = load_player(_directory(run, runs_dir).path).evaluate(episodes, seed)
    return played.summary()


@dataclass(frozen=True)
class Study:
    """A study on disk: `pandas.DataFrame(study.trials)` has a row for each run, `study.evaluations` for each score."""

    directory: Path
    report: Path | None
    trials: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]


def compare(environment: str, *, topologies: str | Sequence[str] = "all", **options: Any) -> Study:
    """Train topologies one after another with one budget; `options` are those of the command line, with underscores.

    The same call again goes on with a study that was interrupted.
    """
    from repertory.studies.compare import entries
    from repertory.studies.conducting import conduct, say, silently
    from repertory.studies.options import CompareOptions
    from repertory.studies.tables import evaluation_rows, trial_rows

    names = topologies if isinstance(topologies, str) else ",".join(topologies)
    quiet = options.pop("quiet", not _has_viewer())
    asked = change(CompareOptions(environment), {"topologies": names, "quiet": quiet, **options})
    outcome = conduct("compare", asked, entries(asked), silently if asked.quiet else say)
    if outcome.interrupted:
        raise KeyboardInterrupt
    findings = outcome.findings
    return Study(outcome.directory, outcome.report, trial_rows(findings), evaluation_rows(findings))


def _directory(run: str | Path | Run, runs_dir: str | Path) -> RunDirectory:
    return RunDirectory.open(run.directory if isinstance(run, Run) else run, Path(runs_dir))


def _has_viewer() -> bool:
    """Whether somebody watches: a terminal or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules
