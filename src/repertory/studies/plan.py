"""What a study is to run, and the directory in which it does.

    studies/compare-cartpole-v1/
      study.json        the plan: command, contestants with all their options, seeds, versions, machine
      runs/             an ordinary run directory for each contestant and seed: runs/apex-s0, ...
      evaluations.csv   every evaluation of every run
      trials.csv        one row a run: how it ended, how fast it was, when it reached the target
      figures/          report.html

Which runs are finished follows from their own directories, so nothing can contradict them. A run that failed has a
`failure.json` and what it printed in `stderr.txt`. Files are written beside their place and renamed.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from repertory.errors import UserError
from repertory.runs.config import RunOptions, from_dict, to_dict
from repertory.runs.directory import RunDirectory, held, read_json, slug, versions, write_json, write_text
from repertory.runs.presets import train_words, words
from repertory.runtime import usable_cores
from repertory.studies.entrants import Entrant, StudyOptions, budget_in_words
from repertory.studies.results import Contestant
from repertory.studies.words import plural

APART = ("name", "studies_dir", "drop_checkpoints", "retry_failed", "quiet", "json")
"""Options that don't change what is found: the same study with another one of these goes on."""
ALSO = "; and "
"""Between the machines of a study that went on elsewhere."""
FINISHED = ("completed", "solved")
State = Literal["finished", "failed", "unfinished", "absent"]


@dataclass(frozen=True)
class PlannedRun:
    contestant: Contestant
    seed: int
    options: RunOptions
    """With its seed, its name and its place."""

    @property
    def path(self) -> Path:
        return self.options.runs_dir / str(self.options.name)


@dataclass(frozen=True)
class StudyPlan:
    kind: str
    environment: str
    asked: Mapping[str, Any]
    """The options that decide what is found, as JSON gives them back."""
    command: str
    budget: str
    target: float | None
    seeds: int
    contestants: tuple[Contestant, ...]
    options: tuple[RunOptions, ...]
    """Of each contestant."""
    machine: str
    versions: tuple[Mapping[str, str | None], ...]
    """One for each with which runs were made, in their order."""

    def runs(self, runs_dir: Path) -> list[PlannedRun]:
        """All runs, seed by seed, so that a study that is cut short is fair to everybody."""
        names = slugs([contestant.name for contestant in self.contestants])
        return [
            PlannedRun(one, seed, dataclasses.replace(options, seed=seed, name=f"{name}-s{seed}", runs_dir=runs_dir))
            for seed in range(self.seeds)
            for one, options, name in zip(self.contestants, self.options, names, strict=True)
        ]

    def also(self, now: StudyPlan) -> StudyPlan:
        """The same, with the machine and the versions with which it goes on, if they are others."""
        machines = dict.fromkeys([*self.machine.split(ALSO), *now.machine.split(ALSO)])
        newer = tuple(found for found in now.versions if found not in self.versions)
        return dataclasses.replace(self, machine=ALSO.join(machines), versions=self.versions + newer)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; each contestant with the words that train it."""
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


def _read_plan(values: Mapping[str, Any]) -> StudyPlan:
    try:
        rows = [{key: value for key, value in row.items() if key != "train"} for row in values["contestants"]]
        read = {
            "contestants": tuple(Contestant(**row) for row in rows),
            "options": tuple(from_dict(options) for options in values["options"]),
            "versions": tuple(dict(found) for found in values["versions"]),
        }
        return StudyPlan(**{**values, **read})
    except (KeyError, TypeError, AttributeError, ValueError):
        raise UserError("study.json is not the plan of a study, or of another version of repertory") from None


def describe_machine() -> str:
    """Cores, memory and versions, in words; the processor's name, where the system tells it."""
    found, memory = versions(), psutil.virtual_memory().total / 1e9
    packages = ", ".join(f"{name} {found[name]}" for name in ("repertory", "jax", "python"))
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [f" ({line.partition(':')[2].strip()})" for line in lines if line.startswith("model name")]
    cores = "".join([plural(usable_cores(), "core"), *names[:1]])
    return f"{cores}, {memory:.1f} GB of memory, {platform.system()} {platform.machine()}; {packages}"


def slugs(names: Sequence[str]) -> list[str]:
    """The names as parts of file names, no two alike even where capitals don't count."""
    plain = [re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-_")[:100] or "contestant" for name in names]
    return numbered(plain, "{}-{}")


def numbered(names: Sequence[str], form: str = "{} ({})") -> list[str]:
    """A number behind each name that was there before; nobody gets a name that is another's own."""
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
        """Made, if there is none."""
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
        return _read_plan(read_json(self.plan_path))

    def write(self, plan: StudyPlan) -> StudyPlan:
        write_json(self.plan_path, plan.to_dict())
        return plan

    def take_up(self, plan: StudyPlan) -> StudyPlan:
        """The plan that is to be followed here: this one, or the one that was begun if it is the same."""
        if not self.exists:
            return self.write(plan)
        begun = self.read()
        differing = _differences(begun, plan)
        if differing:
            raise UserError(
                f"{self.path} was begun with other options ({', '.join(differing)}); give another --name, or remove it"
            )
        return begun

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep other processes from this study."""
        with held(self.path, "is being worked on by another process; wait for that one, or stop it"):
            yield


def _differences(begun: StudyPlan, now: StudyPlan) -> list[str]:
    """In words, what was asked then and is now."""
    if begun.kind != now.kind:
        return [f"it is of 'repertory {begun.kind}'"]
    names = sorted({*begun.asked, *now.asked})
    values = [(name, begun.asked.get(name), now.asked.get(name)) for name in names]
    found = [f"{name.replace('_', '-')} was {then}, is {is_}" for name, then, is_ in values if then != is_]
    return found or [f"it names other code: {name}" for name in sorted(_code_names(begun) - _code_names(now))]


def _code_names(plan: StudyPlan) -> set[str]:
    """What its runs would import, with options: nobody's study.json makes a run import what was not asked for."""
    made = {" ".join([each.environment, *each.env_option]) for each in plan.options}
    return made | {each.network.module for each in plan.options if each.network.module}


def state_of(run: Path) -> State:
    if not run.exists():
        return "absent"
    if (run / "failure.json").is_file():
        return "failed"
    with suppress(UserError):
        if (RunDirectory(run).read_result() or {}).get("status") in FINISHED:
            return "finished"
    return "unfinished"


def clear(run: Path) -> None:
    """Remove a run that is to be begun anew, if it is there.

    It is not resumed: its clock would count the start-up, and the compiling, twice, and a resumed run of several
    workers is not the run that nobody interrupted; so its speed and its scores would not be comparable.
    """
    if run.exists():
        shutil.rmtree(run)


def record_failure(run: Path, exit_code: int, cause: str, printed: str) -> None:
    run.mkdir(parents=True, exist_ok=True)
    write_text(run / "stderr.txt", printed)
    write_json(run / "failure.json", {"cause": cause, "exit_code": exit_code})
