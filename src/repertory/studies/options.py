"""The options of each study on the command line, and their checks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from repertory import topologies
from repertory.errors import UserError, nearest
from repertory.runs.config import SEEDS, flag, value_of
from repertory.runs.directory import check_name


@dataclass(frozen=True)
class StudyOptions:
    """What every study with runs of its own is told."""

    environment: tyro.conf.Positional[str] = ""
    """A Gymnasium id, `module:Id`, or `path/file.py:factory`."""
    seeds: int = 5
    """Runs of each contestant: with the seeds 0, 1, 2, ..."""
    seconds: float | None = None
    """Each run trains for so many seconds, evaluations included."""
    env_steps: int | None = None
    """Each run ends after so many env steps."""
    target_score: float | None = None
    """Each run ends as soon as an evaluation's mean reaches this."""
    evaluations: int = 25
    """How often each run is evaluated, spread evenly over its seconds or env steps."""
    envs_per_actor: int | None = None
    """Environments that each actor steps together; by default as many as the preset says."""
    env_option: tuple[str, ...] = ()
    """KEY=VALUE handed to the environment's constructor."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """KEY=VALUE: an option of `repertory train` for all contestants that have it, as agent.learning_rate=1e-3; again
    for each further one."""
    name: str | None = None
    """The study directory's name; by default made of the command and the environment."""
    studies_dir: Path = Path("studies")
    """Where study directories lie."""
    cold: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """No short run of each contestant first: then compiling is on the clock of its first run."""
    drop_checkpoints: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Remove each run's checkpoint, replay included, as soon as it has finished."""
    retry_failed: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Make runs again that failed before."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(aliases=("-q",))] = False
    """No line for each run."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as one JSON line and nothing else."""


@dataclass(frozen=True)
class CompareOptions(StudyOptions):
    """Train topologies on an environment one after another, with the same budget, and report which suits it."""

    topologies: str = "all"
    """Comma-separated: NAME, or NAME:AGENT as seed_rl:dqn; `all` is every topology with the agent it is for."""
    actors: int | None = None
    """Actors of each topology but `single`; by default as many as the topology says."""


@dataclass(frozen=True)
class AblateOptions(StudyOptions):
    """Train a DQN with every part on, then with each part off, then the four DQNs, and report what each is worth."""

    components: str = "replay,target,double,dueling,n-step,prioritized"
    """Comma-separated parts that are on, and each off once; also distributional and noisy."""
    envs_per_actor: int | None = 1
    """Environments that are stepped together. With several, an agent without a replay would still learn from a mix of
    episodes."""


@dataclass(frozen=True)
class ScaleOptions(StudyOptions):
    """Train one topology with more and more actors, and report what each doubling gives."""

    topology: str = topologies.SCALED
    """NAME, or NAME:AGENT as seed_rl:dqn."""
    actors: str = "1,2,4,8,16"
    """Comma-separated numbers of actors."""
    seeds: int = 1
    """Runs for each number of actors: with the seeds 0, 1, 2, ..."""


@dataclass(frozen=True)
class ReportOptions:
    """Make the report of a study from runs that there are, or that of a study anew."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Names or directories of runs, or the directory of one study."""
    runs_dir: Path = Path("runs")
    """Where run directories lie."""
    target_score: float | None = None
    """The score that counts as solved; by default what all runs were told."""
    to: Path | None = None
    """The directory to write; by default studies/report-ENVIRONMENT, and of a study its own."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as one JSON line and nothing else."""


POSITIVE = ("seeds", "seconds", "env_steps", "evaluations", "envs_per_actor")


def check(options: StudyOptions) -> None:
    if not options.environment:
        raise UserError("a study needs an environment, for example: repertory compare CartPole-v1")
    for name in (*POSITIVE, "target_score"):
        value = value_of(options, name)
        if value is not None and not math.isfinite(value):
            raise UserError(f"{flag(name)} must be a finite number, not {value}")
        if name in POSITIVE and value is not None and value <= 0:
            raise UserError(f"{flag(name)} must be above 0, not {value}")
    if options.seeds > SEEDS:
        raise UserError(f"--seeds must not be above {SEEDS}, it is {options.seeds}")
    if options.name is not None:
        check_name(options.name)


def items_of(text: str, option: str) -> list[str]:
    """The items of a comma-separated list, each once."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise UserError(f"{option} needs at least one item")
    for item in items:
        if items.count(item) > 1:
            raise UserError(f"{option} names {item!r} twice")
    return items


def known(item: str, names: tuple[str, ...], what: str) -> str:
    if item not in names:
        raise UserError(f"unknown {what} {item!r}{nearest(item, names)}")
    return item
