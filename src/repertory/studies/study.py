"""The directory of one study.

    studies/compare-cartpole-v1/
      study.json        the command, the contestants with all their options, seeds, versions, machine
      runs/             an ordinary run directory for each contestant and seed: runs/apex-s0, ...
      evaluations.csv   every evaluation of every run
      trials.csv        one row a run: how it ended, how fast it was, when it reached the target
      figures/          report.html

Which runs are finished follows from their own directories, so nothing can contradict them. A run that failed has a
`failure.json` and what it printed in `stderr.txt`. Files are written beside their place and renamed.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from repertory.errors import UserError
from repertory.runs.directory import RunDirectory, held, read_json, slug, write_json, write_text
from repertory.studies.options import StudyOptions
from repertory.studies.programme import Part, Programme, read_programme

ALSO = "; and "
"""Between the machines of a study that went on elsewhere."""
FINISHED = ("completed", "solved")
State = Literal["finished", "failed", "unfinished", "absent"]


class StudyDirectory:
    """Where the files of one study lie."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.programme_path = path / "study.json"
        self.runs = path / "runs"

    @property
    def exists(self) -> bool:
        """Whether a study was begun here."""
        return self.programme_path.is_file()

    def make(self) -> None:
        """Make the directory, if there is none."""
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.path} cannot be made: {error.strerror}; choose another --studies-dir") from None

    def take_up(self, programme: Programme) -> Programme:
        """The programme that is to be played here: this one, or the one that was begun if it is the same."""
        if not self.exists:
            write_json(self.programme_path, programme.to_dict())
            return programme
        begun = self.read()
        differing = _differences(begun, programme)
        if differing:
            raise UserError(
                f"{self.path} was begun with other options ({', '.join(differing)}); give another --name, or remove it"
            )
        return begun

    def move(self, begun: Programme, now: Programme) -> Programme:
        """The programme that was begun, with the machine and the versions with which it goes on besides."""
        machines = dict.fromkeys([*_machines(begun), *_machines(now)])
        newer = tuple(found for found in now.versions if found not in begun.versions)
        moved = dataclasses.replace(begun, machine=ALSO.join(machines), versions=begun.versions + newer)
        write_json(self.programme_path, moved.to_dict())
        return moved

    def read(self) -> Programme:
        """The programme."""
        return read_programme(read_json(self.programme_path))

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep other processes from this study."""
        with held(self.path, "is being worked on by another process; wait for that one, or stop it"):
            yield


def has_moved(begun: Programme, now: Programme) -> bool:
    """Whether some runs were made on another machine, or with other versions."""
    return now.versions[-1] not in begun.versions or now.machine not in _machines(begun)


def _machines(programme: Programme) -> list[str]:
    return programme.machine.split(ALSO)


def place_of(kind: str, asked: StudyOptions) -> StudyDirectory:
    """Where a study with these options lies."""
    return StudyDirectory(asked.studies_dir / (asked.name or f"{kind}-{slug(asked.environment)}"))


def _differences(begun: Programme, now: Programme) -> list[str]:
    """In words, what was asked then and is now."""
    if begun.kind != now.kind:
        return [f"it is of 'repertory {begun.kind}'"]
    names = sorted({*begun.asked, *now.asked})
    values = [(name, begun.asked.get(name), now.asked.get(name)) for name in names]
    found = [f"{name.replace('_', '-')} was {then}, is {is_}" for name, then, is_ in values if then != is_]
    return found or [f"it names other code: {name}" for name in sorted(_code_names(begun) - _code_names(now))]


def _code_names(programme: Programme) -> set[str]:
    """What its runs would import, with options: nobody's study.json makes a run import what was not asked for."""
    made = {" ".join([each.environment, *each.env_option]) for each in programme.options}
    return made | {each.network.module for each in programme.options if each.network.module}


def state_of(run: Path) -> State:
    """How far a run of a study has come."""
    if not run.exists():
        return "absent"
    if (run / "failure.json").is_file():
        return "failed"
    return "finished" if _result(run).get("status") in FINISHED else "unfinished"


def _result(run: Path) -> dict[str, Any]:
    try:
        return RunDirectory(run).read_result() or {}
    except UserError:
        return {}


def clear(run: Path) -> None:
    """Remove a run that is to be begun anew, if it is there.

    It is not resumed: its clock would count the start-up, and the compiling, twice, and a company's resumed run is not
    the run that nobody interrupted; so its speed and its scores would not be comparable.
    """
    if run.exists():
        shutil.rmtree(run)


def record_failure(part: Part, exit_code: int, cause: str, printed: str) -> None:
    """Leave behind why a run failed."""
    part.path.mkdir(parents=True, exist_ok=True)
    write_text(part.path / "stderr.txt", printed)
    write_json(part.path / "failure.json", {"cause": cause, "exit_code": exit_code})
