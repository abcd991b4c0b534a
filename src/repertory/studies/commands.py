"""What the commands of studies do once their options are read: make the study, and say what came of it."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

from repertory.errors import UserError
from repertory.output import result_stream
from repertory.runs.directory import RunDirectory, slug
from repertory.studies import ablate, compare, scale
from repertory.studies.conducting import Outcome, conduct, publish, say, silently
from repertory.studies.entries import Entry
from repertory.studies.existing import read_runs
from repertory.studies.findings import Findings
from repertory.studies.options import AblateOptions, CompareOptions, ReportOptions, ScaleOptions, StudyOptions
from repertory.studies.reading import read_study
from repertory.studies.statistics import require
from repertory.studies.study import StudyDirectory
from repertory.studies.tables import read_tables, trial_rows
from repertory.studies.words import answer

INTERRUPTED = 130


def run_compare(asked: CompareOptions) -> int:
    """Topologies side by side."""
    return _study("compare", asked, compare.entries(asked))


def run_ablate(asked: AblateOptions) -> int:
    """Parts off alone."""
    return _study("ablate", asked, ablate.entries(asked))


def run_scale(asked: ScaleOptions) -> int:
    """More and more actors."""
    return _study("scale", asked, scale.entries(asked))


def run_report(asked: ReportOptions) -> int:
    """The report of runs that there are, or of a study anew."""
    if not asked.runs:
        raise UserError("report needs at least one run, for example: repertory report runs/*")
    require()
    studies = [Path(run) for run in asked.runs if StudyDirectory(Path(run)).exists]
    if studies and len(asked.runs) > 1:
        raise UserError(f"{studies[0]} is a study; report it by itself, or name its runs: {studies[0]}/runs/*")
    findings, place = _of_study(studies[0], asked.target_score) if studies else _of_runs(asked)
    place = asked.to or place
    if not studies and StudyDirectory(place).exists:
        raise UserError(f"{place} is a study, whose report this would replace; choose another --to")
    return conclude(Outcome(place, findings, publish(findings, place)), asked.json)


def _of_study(path: Path, target: float | None) -> tuple[Findings, Path]:
    """Runs whose directories are gone are taken from the study's tables."""
    study = StudyDirectory(path)
    findings, kept = read_study(study.read(), study.runs), read_tables(path)
    trials = [kept.get((one.contestant, one.seed), one) if one.status == "missing" else one for one in findings.trials]
    if all(one.status == "missing" for one in trials):
        raise UserError(f"{path} has no runs to report, neither in runs/ nor in trials.csv and evaluations.csv")
    known = findings.target if target is None else target
    return dataclasses.replace(findings, trials=tuple(trials), target=known), path


def _of_runs(asked: ReportOptions) -> tuple[Findings, Path]:
    paths = [RunDirectory.open(run, asked.runs_dir).path for run in asked.runs]
    findings = read_runs(paths, asked.target_score, shlex.join(["repertory", "report", *asked.runs]))
    return findings, Path("studies") / f"report-{slug(findings.environment)}"


def _study(kind: str, asked: StudyOptions, entries: list[Entry]) -> int:
    outcome = conduct(kind, asked, entries, silently if asked.quiet or asked.json else say)
    return conclude(outcome, asked.json)


def conclude(outcome: Outcome, as_json: bool) -> int:
    """Say what came of it; 0 if at least one run finished, 130 if it was interrupted."""
    trials = outcome.findings.trials
    finished = sum(trial.finished for trial in trials)
    if outcome.interrupted:
        say(
            f"interrupted: {finished} of {len(trials)} runs have finished; the same command goes on, and "
            f"'repertory report {outcome.directory}' shows what there is"
        )
    _tell_failures(outcome.findings)
    if as_json:
        print(json.dumps(summary(outcome)), file=result_stream(), flush=True)
    elif outcome.report is not None:
        print("\n".join(_table(outcome.findings)))
        print(answer(outcome.findings))
        print(f"the report lies in {outcome.report}")
    return INTERRUPTED if outcome.interrupted else 0 if finished else 1


def summary(outcome: Outcome) -> dict[str, Any]:
    """As JSON values."""
    report = None if outcome.report is None else str(outcome.report)
    return {"directory": str(outcome.directory), "report": report, "trials": trial_rows(outcome.findings)}


def _tell_failures(findings: Findings) -> None:
    failed = [trial for trial in findings.trials if trial.status == "failed"]
    if failed:
        first = failed[0]
        say(
            f"{len(failed)} of {len(findings.trials)} runs failed, {first.contestant} with seed {first.seed} because: "
            f"{first.cause}{'' if findings.kind == 'report' else '; --retry-failed makes them again'}"
        )


def _table(findings: Findings) -> list[str]:
    """A line for each contestant: what its finished runs reached on average, and how fast."""
    width = max(len(contestant.name) for contestant in findings.contestants)
    lines = [f"{'':<{width}}  runs     score  env steps/s  updates/s"]
    for contestant in findings.contestants:
        trials = findings.of(contestant.name)
        scores = _mean([trial.finite_score for trial in trials], ".1f")
        steps = _mean([trial.env_steps_per_s for trial in trials], ",.0f")
        updates = _mean([trial.updates_per_s for trial in trials], ",.0f")
        lines.append(f"{contestant.name:<{width}}  {len(trials):>4}  {scores:>8}  {steps:>11}  {updates:>9}")
    return lines


def _mean(values: list[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):{form}}" if known else "–"
