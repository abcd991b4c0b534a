"""A study from its first run to its report."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from repertory.errors import UserError
from repertory.output import forgiving
from repertory.runs.staging import gigabytes
from repertory.studies.entries import Entry
from repertory.studies.findings import Findings
from repertory.studies.options import StudyOptions
from repertory.studies.programme import Part, Programme, programme_of
from repertory.studies.reading import read_study
from repertory.studies.running import Rounds, duration
from repertory.studies.statistics import require
from repertory.studies.study import StudyDirectory, has_moved, place_of, state_of
from repertory.studies.tables import write_tables

START_S = 6.0
"""Start-up and end of a run, about."""


@dataclass(frozen=True)
class Outcome:
    """What came of a study; `report` is None if it was interrupted or nothing finished."""

    directory: Path
    findings: Findings
    report: Path | None
    interrupted: bool = False


def conduct(kind: str, asked: StudyOptions, entries: list[Entry], say: Callable[[str], None]) -> Outcome:
    """Make the runs that are not there yet, then the tables and the report."""
    require()  # before any run is made that could not be reported
    study, programme = place_of(kind, asked), programme_of(kind, asked, entries)
    study.make()
    with study.hold():
        begun = study.take_up(programme)
        moved = has_moved(begun, programme)
        if moved:
            say(f"note: this study was begun elsewhere or with other versions: {begun.machine}")
        programme = study.move(begun, programme) if moved else begun
        parts = programme.parts(study.runs)
        if not asked.drop_checkpoints:
            _check_disk(study, parts, {entry.contestant.name: entry.kept_bytes for entry in entries})
        say(_announcement(study, programme))
        rounds = Rounds(study, parts, drop_checkpoints=asked.drop_checkpoints, say=say)
        try:
            complete = rounds.play(retry_failed=asked.retry_failed, warm_up=not asked.cold, moved=moved)
            findings = read_study(programme, study.runs)
            report = publish(findings, study.path) if complete else None
        except OSError as error:
            raise UserError(
                f"the study can't go on: {error}; runs that have finished are kept: once that is mended, the same "
                "command goes on"
            ) from None
        return Outcome(study.path, findings, report, interrupted=not complete)


def say(text: str) -> None:
    """To whoever watches."""
    print(text, file=forgiving(sys.stderr), flush=True)


def silently(_text: str) -> None:
    """To nobody."""


def publish(findings: Findings, directory: Path) -> Path | None:
    """The tables; and the report, if there is anything to tell."""
    directory.mkdir(parents=True, exist_ok=True)
    write_tables(findings, directory)
    if not any(trial.finished for trial in findings.trials):
        return None
    from repertory.studies import page

    return page.write(findings, directory)


def _check_disk(study: StudyDirectory, parts: list[Part], kept_bytes: Mapping[str, int]) -> None:
    """Each run keeps its last checkpoint, in which the replay takes most of the room."""
    needed = sum(kept_bytes[part.contestant.name] for part in parts if state_of(part.path) != "finished")
    free = shutil.disk_usage(study.path).free
    if needed > free:
        raise UserError(
            f"the runs would keep checkpoints of up to {gigabytes(needed)}, but {gigabytes(free)} of disk is free in "
            f"{study.path}; give --drop-checkpoints, or another --studies-dir"
        )


def _announcement(study: StudyDirectory, programme: Programme) -> str:
    contestants, seeds = len(programme.contestants), programme.seeds
    each = f"{_counted(contestants, 'contestant')} × {_counted(seeds, 'seed')}"
    runs, seconds = contestants * seeds, programme.options[0].seconds
    most = "" if seconds is None else f", about {duration(runs * (seconds + START_S))} in all at most"
    return f"{each}: {_counted(runs, 'run')}, {programme.budget} each{most}; the study lies in {study.path}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
