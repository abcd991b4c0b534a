"""What a study consists of: the runs it plans, in a directory of its own, or runs that exist already.

    studies/compare-cartpole-v1/
      study.json        the plan: command, contestants with all their options, seeds, versions, machine
      runs/             an ordinary run directory for each contestant and seed: runs/apex-s0, ...
      evaluations.csv   every evaluation of every run
      trials.csv        one row a run: how it ended, how fast it was, when it reached the target
      figures/          report.html

The runs' own directories tell which of them are finished. A failed run has a `failure.json`, and what it printed in
`stderr.txt`.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from repertory.errors import UserError
from repertory.runs.config import RunOptions, from_dict, names_of, to_dict, value_of
from repertory.runs.directory import RunDirectory, held, read_json, slug, write_json, write_text
from repertory.runs.presets import train_words, words
from repertory.runtime import usable_cores, versions
from repertory.studies.entrants import Entrant, StudyOptions, budget_in_words
from repertory.studies.results import Contestant, Results, read_trial
from repertory.studies.words import plural

APART = ("name", "studies_dir", "drop_checkpoints", "retry_failed", "quiet", "json")
"""Options of a study that may change when it is continued."""
RUNS_APART = (
    "environment", "topology_name", "seed", "name", "runs_dir", "dry_run", "quiet", "json", "threads", "log_every",
    "checkpoint_every", "keep_checkpoints",
)  # fmt: skip
"""Options in which runs of one contestant may differ."""
FIRST = ("agent_name", "actors")
"""Settings that tell runs of one topology apart better than others."""
ALSO = "; and "
"""Between the machines of a study that was continued elsewhere."""


@dataclass(frozen=True)
class PlannedRun:
    contestant: Contestant
    seed: int
    options: RunOptions

    @property
    def path(self) -> Path:
        return self.options.runs_dir / str(self.options.name)


@dataclass(frozen=True)
class StudyPlan:
    kind: str
    environment: str
    asked: Mapping[str, Any]
    """The options that must be the same when the study is continued, as JSON values."""
    command: str
    budget: str
    target: float | None
    seeds: int
    contestants: tuple[Contestant, ...]
    options: tuple[RunOptions, ...]
    machine: str
    versions: tuple[Mapping[str, str | None], ...]
    """Each set of package versions that made runs, in order."""

    def runs(self, runs_dir: Path) -> list[PlannedRun]:
        """All runs, seed by seed: an interrupted study has about as many seeds of each contestant."""
        names = slugs([contestant.name for contestant in self.contestants])
        return [
            PlannedRun(one, seed, dataclasses.replace(options, seed=seed, name=f"{name}-s{seed}", runs_dir=runs_dir))
            for seed in range(self.seeds)
            for one, options, name in zip(self.contestants, self.options, names, strict=True)
        ]

    def also(self, now: StudyPlan) -> StudyPlan:
        """This plan with the machine and the versions that continue it, if they differ."""
        machines = dict.fromkeys([*self.machine.split(ALSO), *now.machine.split(ALSO)])
        newer = tuple(found for found in now.versions if found not in self.versions)
        return dataclasses.replace(self, machine=ALSO.join(machines), versions=self.versions + newer)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; each contestant with the command that trains it."""
        rows = [
            {**dataclasses.asdict(contestant), "train": shlex.join(["repertory", *train_words(options)])}
            for contestant, options in zip(self.contestants, self.options, strict=True)
        ]
        return {**vars(self), "contestants": rows, "options": [to_dict(options) for options in self.options]}


def plan_of(kind: str, asked: StudyOptions, entrants: list[Entrant]) -> StudyPlan:
    first, values = entrants[0].options, dataclasses.asdict(asked)
    typed = words(asked, type(asked)(), skip=("environment", "quiet", "json", "retry_failed"), repeated=("set",))
    return StudyPlan(
        kind=kind,
        environment=asked.environment,
        asked=json.loads(json.dumps({name: value for name, value in values.items() if name not in APART})),
        command=shlex.join(["repertory", kind, asked.environment, *typed]),
        budget=budget_in_words(first),
        target=first.target_score,
        seeds=asked.seeds,
        contestants=tuple(entrant.contestant for entrant in entrants),
        options=tuple(entrant.options for entrant in entrants),
        machine=describe_machine(),
        versions=(versions(),),
    )


def unreadable(path: Path, written_with: Mapping[str, Any], error: Exception) -> UserError:
    then, now = written_with.get("repertory", "of an unknown version"), versions()["repertory"]
    reason = error if isinstance(error, UserError) else "an option is missing or has the wrong type"
    return UserError(f"{path} can't be read: it was written by repertory {then}, this is repertory {now}; {reason}")


def read_study(plan: StudyPlan, runs_dir: Path) -> Results:
    trials = (read_trial(run.path, run.contestant.name, run.seed) for run in plan.runs(runs_dir))
    shared = {item.name: getattr(plan, item.name) for item in dataclasses.fields(Results) if item.name != "trials"}
    return Results(**shared, trials=tuple(trials))


def describe_machine() -> str:
    found, memory, processor = versions(), psutil.virtual_memory().total / 1e9, None
    packages = ", ".join(f"{name} {found[name]}" for name in ("repertory", "jax", "python"))
    with suppress(OSError):  # only Linux has this file
        processor = re.search(r"^model name\s*:\s*(.*?)\s*$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    cores = plural(usable_cores(), "core") + (f" ({processor[1]})" if processor else "")
    return f"{cores}, {memory:.1f} GB of memory, {platform.system()} {platform.machine()}; {packages}"


def slugs(names: Sequence[str]) -> list[str]:
    """The names as parts of file names, unique also on file systems that ignore case."""
    plain = [re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-_")[:100] or "contestant" for name in names]
    return numbered(plain, "{}-{}")


def numbered(names: Sequence[str], form: str = "{} ({})") -> list[str]:
    """Unique names: a repeated one gets a number that makes it no other's name."""
    found: list[str] = []
    for name in names:
        free, count = name, 1
        while free in found or (count > 1 and free in names):
            count += 1
            free = form.format(name, count)
        found.append(free)
    return found


class StudyDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan_path = path / "study.json"
        self.runs = path / "runs"

    @classmethod
    def of(cls, kind: str, asked: StudyOptions) -> StudyDirectory:
        """The study of these options; created if it does not exist."""
        study = cls(asked.studies_dir / (asked.name or f"{kind}-{slug(asked.environment)}"))
        try:
            study.runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{study.path} cannot be made: {error.strerror}; choose another --studies-dir") from None
        return study

    @property
    def exists(self) -> bool:
        return self.plan_path.is_file()

    def read(self) -> StudyPlan:
        values = read_json(self.plan_path)
        found: list[dict[str, Any]] = []
        try:
            rows = [{key: value for key, value in row.items() if key != "train"} for row in values["contestants"]]
            found = [dict(each) for each in values["versions"]]
            read = {
                "contestants": tuple(Contestant(**row) for row in rows),
                "options": tuple(from_dict(options) for options in values["options"]),
                "versions": tuple(found),
            }
            return StudyPlan(**{**values, **read})
        except (KeyError, TypeError, AttributeError, ValueError, UserError) as error:
            raise unreadable(self.plan_path, found[-1] if found else {}, error) from None

    def write(self, plan: StudyPlan) -> StudyPlan:
        write_json(self.plan_path, plan.to_dict())
        return plan

    def take_up(self, plan: StudyPlan) -> StudyPlan:
        """The plan to follow here: this one, or the one that was begun if its options are the same."""
        if not self.exists:
            return self.write(plan)
        begun = self.read()
        differing = _differences(begun, plan)
        if differing:
            raise UserError(
                f"{self.path} was begun with other options ({', '.join(differing)}); give another --name, or remove it"
            )
        return begun

    def hold(self) -> AbstractContextManager[None]:
        return held(self.path, "is being worked on by another process; wait for that one, or stop it")


def _differences(begun: StudyPlan, now: StudyPlan) -> list[str]:
    if begun.kind != now.kind:
        return [f"it is of 'repertory {begun.kind}'"]
    names = sorted({*begun.asked, *now.asked})
    values = [(name, begun.asked.get(name), now.asked.get(name)) for name in names]
    found = [f"{name.replace('_', '-')} was {then}, is {is_}" for name, then, is_ in values if then != is_]
    return found or [f"it names other code: {name}" for name in sorted(_code_names(begun) - _code_names(now))]


def _code_names(plan: StudyPlan) -> set[str]:
    """What its runs would import: a study.json must not make a run import other code than the command names."""
    made = {" ".join([each.environment, *each.env_option]) for each in plan.options}
    return made | {each.network.module for each in plan.options if each.network.module}


def clear(run: Path) -> None:
    """Remove an unfinished run, if there is one, so that it can be made again.

    It is not resumed: its clock would count start-up and compilation twice, and with several workers a resumed run
    differs from an uninterrupted one. So its speed and its scores would not be comparable.
    """
    if run.exists():
        shutil.rmtree(run)


def record_failure(run: Path, exit_code: int, cause: str, printed: str) -> None:
    run.mkdir(parents=True, exist_ok=True)
    write_text(run / "stderr.txt", printed)
    write_json(run / "failure.json", {"cause": cause, "exit_code": exit_code})


@dataclass(frozen=True)
class ExistingRun:
    path: Path
    options: RunOptions
    versions: Mapping[str, Any]

    @property
    def topology(self) -> str:
        return self.options.topology_name

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All that makes it a run of its contestant, besides the topology."""
        names = [name for name in names_of(type(self.options)) if name not in RUNS_APART]
        return {name: value_of(self.options, name) for name in dict.fromkeys([*FIRST, *names])}

    @property
    def key(self) -> str:
        """Equal for runs of one contestant."""
        return f"{self.topology} {self.settings}"


def read_runs(paths: list[Path], target: float | None, command: str) -> Results:
    """Existing runs; those with the same settings and different seeds are one contestant."""
    runs = [_read(path) for path in paths]
    environments = list(dict.fromkeys(run.options.environment for run in runs))
    if len(environments) != 1:
        each = ", ".join(environments)
        raise UserError(f"runs of several environments can't be compared: {each}; report each by itself")
    seen: dict[tuple[str, int], Path] = {}
    for run in runs:
        twin = seen.setdefault((run.key, run.options.seed), run.path)
        if twin is not run.path:
            raise UserError(f"{twin} and {run.path} have the same settings and the same seed; name one of them")
    firsts = {run.key: run for run in runs}
    rivals, targets = list(firsts.values()), {run.options.target_score for run in runs}
    titles = distinct([one.topology for one in rivals], [one.settings for one in rivals])
    names = dict(zip(firsts, titles, strict=True))
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


def _read(path: Path) -> ExistingRun:
    directory = RunDirectory(path)
    config, found = directory.read_config(), directory.read_origin().get("versions") or {}
    try:
        return ExistingRun(path, from_dict(config), found)
    except (KeyError, TypeError, UserError) as error:
        raise unreadable(directory.config_path, found, error) from None


def _shared(texts: list[str], otherwise: str) -> str:
    return texts[0] if len({*texts}) == 1 else otherwise


def _contestant(name: str, run: ExistingRun, others: list[ExistingRun]) -> Contestant:
    """With the settings in which it differs from others of its topology."""
    rivals = [other.settings for other in others if other.topology == run.topology]
    own = {key: value for key, value in run.settings.items() if any(rival.get(key) != value for rival in rivals)}
    settings = {key: value for key, value in own.items() if key not in FIRST}
    return Contestant(name, run.topology, run.options.agent_name, run.options.actors, settings)


def distinct(names: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each name with as many of its settings as make it unique, as in `apex, dqn, 4 actors, agent.double=False`."""
    found = list(names)
    for key in dict.fromkeys(key for each in settings for key in each):
        repeated = [name for name, count in Counter(found).items() if count > 1]
        for group in [[index for index, name in enumerate(found) if name == one] for one in repeated]:
            values = [settings[index].get(key) for index in group]
            if len({*map(repr, values)}) > 1:
                for index, value in zip(group, values, strict=True):
                    known = {"agent_name": f"{value}", "actors": f"{value} actor{'' if value == 1 else 's'}"}
                    found[index] += f", {known.get(key, f'{key}={value}')}"
    return numbered(found)
