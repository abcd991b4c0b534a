"""What a study is to play, as `study.json` keeps it: contestants, seeds, budget, and where it was begun."""

from __future__ import annotations

import dataclasses
import platform
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from repertory.errors import UserError
from repertory.runs.config import RunOptions, from_dict, to_dict
from repertory.runs.origin import versions
from repertory.runs.spelling import train_words, words
from repertory.runtime import usable_cores
from repertory.studies.budget import in_words
from repertory.studies.entries import Entry
from repertory.studies.findings import Contestant
from repertory.studies.naming import slugs
from repertory.studies.options import StudyOptions

APART = ("name", "studies_dir", "drop_checkpoints", "retry_failed", "quiet", "json")
"""Options that don't change what is found: the same study with another one of these goes on."""


@dataclass(frozen=True)
class Part:
    """One run that is to be made."""

    contestant: Contestant
    seed: int
    options: RunOptions
    """With its seed, its name and its place."""

    @property
    def path(self) -> Path:
        """Its run directory."""
        return self.options.runs_dir / str(self.options.name)


@dataclass(frozen=True)
class Programme:
    """A whole study before it is played."""

    kind: str
    environment: str
    asked: Mapping[str, Any]
    """The options that decide what is found."""
    command: str
    budget: str
    target: float | None
    seeds: int
    contestants: tuple[Contestant, ...]
    options: tuple[RunOptions, ...]
    """Of each contestant."""
    machine: str
    versions: tuple[Mapping[str, str | None], ...]
    """One for each with which it was played, in their order."""

    def parts(self, runs_dir: Path) -> list[Part]:
        """All runs, seed by seed, so that a study that is cut short is fair to everybody."""
        names = slugs([contestant.name for contestant in self.contestants])
        return [
            Part(contestant, seed, dataclasses.replace(options, seed=seed, name=f"{name}-s{seed}", runs_dir=runs_dir))
            for seed in range(self.seeds)
            for contestant, options, name in zip(self.contestants, self.options, names, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; each contestant with the words that train it."""
        rows = [
            {**dataclasses.asdict(contestant), "train": shlex.join(["repertory", *train_words(options)])}
            for contestant, options in zip(self.contestants, self.options, strict=True)
        ]
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return {**values, "contestants": rows, "options": [to_dict(options) for options in self.options]}


def read_programme(values: Mapping[str, Any]) -> Programme:
    """What `to_dict` wrote."""
    try:
        rows = [{key: value for key, value in row.items() if key != "train"} for row in values["contestants"]]
        read = {
            "contestants": tuple(Contestant(**row) for row in rows),
            "options": tuple(from_dict(options) for options in values["options"]),
            "versions": tuple(dict(found) for found in values["versions"]),
        }
        return Programme(**{**values, **read})
    except (KeyError, TypeError, AttributeError, ValueError):
        raise UserError("study.json is not the programme of a study, or of another version of repertory") from None


def programme_of(kind: str, asked: StudyOptions, entries: list[Entry]) -> Programme:
    """What will be played."""
    first = entries[0].options
    typed = words(asked, type(asked)(), skip=("environment", "quiet", "json", "retry_failed"), repeated=("set",))
    return Programme(
        kind=kind,
        environment=asked.environment,
        asked=_plain({name: value for name, value in dataclasses.asdict(asked).items() if name not in APART}),
        command=shlex.join(["repertory", kind, asked.environment, *typed]),
        budget=in_words(first.seconds, first.env_steps, first.target_score),
        target=first.target_score,
        seeds=asked.seeds,
        contestants=tuple(entry.contestant for entry in entries),
        options=tuple(entry.options for entry in entries),
        machine=describe_machine(),
        versions=(versions(),),
    )


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives them back."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def describe_machine() -> str:
    """Cores, memory and versions, in words."""
    found = versions()
    packages = ", ".join(f"{name} {found[name]}" for name in ("repertory", "jax", "python"))
    memory = psutil.virtual_memory().total / 1e9
    count = usable_cores()
    cores = f"{count} core{'' if count == 1 else 's'}{_processor()}"
    return f"{cores}, {memory:.1f} GB of memory, {platform.system()} {platform.machine()}; {packages}"


def _processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f" ({names[0]})" if names else ""
