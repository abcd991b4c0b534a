"""A study from the command to the report. Each run is a `repertory train` in a process of its own; runs are made
strictly one after another, because two at once would compete for the cores."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repertory.errors import UserError, plain
from repertory.output import forgiving, result_stream
from repertory.runs.config import RunOptions, change
from repertory.runs.directory import RunDirectory, slug
from repertory.runs.launch import gigabytes
from repertory.runs.presets import train_words
from repertory.runtime import ending_signals
from repertory.studies import entrants, plan, statistics
from repertory.studies.entrants import FOR_EVER, Entrant, ReportOptions, StudyOptions, apply
from repertory.studies.plan import PlannedRun, StudyDirectory, clear, record_failure
from repertory.studies.results import Results, read_tables, read_trial, status_of, trial_rows, write_tables
from repertory.studies.words import DASH, answer, duration, plural

INTERRUPTED = 130
FINISHED = ("completed", "solved")
START_S = 6.0
"""Start-up and end of a run, about."""
PRINTED_BYTES = 1_000_000
"""How much of the end of a run's stderr is saved."""
WARM_UP, WARM_UP_S = "warm-up", 2.0
"""Directory and length of the short run of each contestant before its first one. Compiled programs are cached: without
a warm-up, the first seed would pay for the compilation and later ones would not."""
KINDS: Mapping[str, Callable[[Any], list[Entrant]]] = {
    "compare": entrants.compare,
    "ablate": entrants.ablate,
    "scale": entrants.scale,
}
Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """`report` is None if the study was interrupted or no run finished."""

    directory: Path
    results: Results
    report: Path | None
    interrupted: bool = False


def run(kind: str, asked: StudyOptions) -> int:
    """`repertory compare`, `ablate` or `scale`; the exit code."""
    return conclude(run_study(kind, asked, silently if asked.quiet or asked.json else say), asked.json)


def run_report(asked: ReportOptions) -> int:
    """`repertory report`: of existing runs, or of a study again; the exit code."""
    if not asked.runs:
        raise UserError("report needs at least one run, for example: repertory report runs/*")
    statistics.require()
    studies = [Path(run) for run in asked.runs if StudyDirectory(Path(run)).exists]
    if studies and len(asked.runs) > 1:
        raise UserError(f"{studies[0]} is a study; report it by itself, or name its runs: {studies[0]}/runs/*")
    results, place = _of_study(studies[0], asked.target_score) if studies else _of_runs(asked)
    place = asked.to or place
    if not studies and StudyDirectory(place).exists:
        raise UserError(f"{place} is a study, whose report this would replace; choose another --to")
    return conclude(Outcome(place, results, publish(results, place)), asked.json)


def _of_study(path: Path, target: float | None) -> tuple[Results, Path]:
    """Runs whose directories are gone are taken from the study's tables."""
    study = StudyDirectory(path)
    results, saved = plan.read_study(study.read(), study.runs), read_tables(path)
    trials = [saved.get((one.contestant, one.seed), one) if one.status == "missing" else one for one in results.trials]
    if all(one.status == "missing" for one in trials):
        raise UserError(f"{path} has no runs to report, neither in runs/ nor in trials.csv and evaluations.csv")
    known = results.target if target is None else target
    return dataclasses.replace(results, trials=tuple(trials), target=known), path


def _of_runs(asked: ReportOptions) -> tuple[Results, Path]:
    paths = [RunDirectory.open(run, asked.runs_dir).path for run in asked.runs]
    results = plan.read_runs(paths, asked.target_score, shlex.join(["repertory", "report", *asked.runs]))
    return results, Path("studies") / f"report-{slug(results.environment)}"


def run_study(kind: str, asked: StudyOptions, say: Say) -> Outcome:
    """Make the runs that do not exist yet, then the tables and the report."""
    found = KINDS[kind](asked)
    statistics.require()  # before any run is made that could not be reported
    now, study = plan.plan_of(kind, asked, found), StudyDirectory.of(kind, asked)
    with study.hold():
        begun = study.take_up(now)
        followed = begun.also(now)
        moved = followed != begun
        if moved:
            say(f"note: this study was begun elsewhere or with other versions: {begun.machine}")
            study.write(followed)
        runs = followed.runs(study.runs)
        if not asked.drop_checkpoints:
            _check_disk(study, runs, found)
        seconds = followed.options[0].seconds
        most = "" if seconds is None else f", about {duration(len(runs) * (seconds + START_S))} in all at most"
        each = f"{plural(len(found), 'contestant')} × {plural(asked.seeds, 'seed')}: {plural(len(runs), 'run')}"
        say(f"{each}, {followed.budget} each{most}; study saved to {study.path}")
        try:
            complete = Runner(study, runs, asked, say).run(moved)
            results = plan.read_study(followed, study.runs)
            report = publish(results, study.path) if complete else None
        except OSError as error:
            raise UserError(
                f"the study can't go on: {error}; finished runs are saved: once this is solved, the same command "
                "continues the study"
            ) from None
        return Outcome(study.path, results, report, interrupted=not complete)


def say(text: str) -> None:
    print(text, file=forgiving(sys.stderr), flush=True)


def silently(_text: str) -> None:
    pass


def publish(results: Results, directory: Path) -> Path | None:
    directory.mkdir(parents=True, exist_ok=True)
    write_tables(results, directory)
    if not any(trial.finished for trial in results.trials):
        return None
    from repertory.studies import page

    return page.write(results, directory)


def _check_disk(study: StudyDirectory, runs: list[PlannedRun], found: list[Entrant]) -> None:
    """Each run keeps its last checkpoint, which consists mostly of the replay."""
    kept_bytes = {entrant.contestant.name: entrant.kept_bytes for entrant in found}
    needed = sum(kept_bytes[run.contestant.name] for run in runs if status_of(run.path) not in FINISHED)
    free = shutil.disk_usage(study.path).free
    if needed > free:
        raise UserError(
            f"the runs would keep checkpoints of up to {gigabytes(needed)}, but {gigabytes(free)} of disk is free in "
            f"{study.path}; give --drop-checkpoints, or another --studies-dir"
        )


def conclude(outcome: Outcome, as_json: bool) -> int:
    """Print the outcome; 0 if at least one run finished, 130 if the study was interrupted."""
    results, trials = outcome.results, outcome.results.trials
    finished = sum(trial.finished for trial in trials)
    if outcome.interrupted:
        say(
            f"interrupted: {finished} of {len(trials)} runs have finished; the same command goes on, and "
            f"'repertory report {outcome.directory}' shows what there is"
        )
    failed = [trial for trial in trials if trial.status == "failed"]
    if failed:
        first, again = failed[0], "" if results.kind == "report" else "; --retry-failed makes them again"
        count = f"{len(failed)} of {len(trials)} runs failed"
        say(f"{count}, {first.contestant} with seed {first.seed} because: {first.cause}{again}")
    if as_json:
        report = None if outcome.report is None else str(outcome.report)
        summary = {"directory": str(outcome.directory), "report": report, "trials": trial_rows(results)}
        print(json.dumps(summary), file=result_stream(), flush=True)
    elif outcome.report is not None:
        print("\n".join([*_table(results), answer(results), f"report saved to {outcome.report}"]))
    return INTERRUPTED if outcome.interrupted else 0 if finished else 1


def _table(results: Results) -> list[str]:
    width = max(len(contestant.name) for contestant in results.contestants)
    lines = [f"{'':<{width}}  runs     score  env steps/s  updates/s"]
    for contestant in results.contestants:
        trials = results.of(contestant.name)
        scores = _mean([trial.finite_score for trial in trials], ".1f")
        steps = _mean([trial.env_steps_per_s for trial in trials], ",.0f")
        updates = _mean([trial.updates_per_s for trial in trials], ",.0f")
        lines.append(f"{contestant.name:<{width}}  {len(trials):>4}  {scores:>8}  {steps:>11}  {updates:>9}")
    return lines


def _mean(values: list[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):{form}}" if known else DASH


@dataclass
class Runner:
    study: StudyDirectory
    runs: list[PlannedRun]
    asked: StudyOptions
    say: Say
    stops: int = 0
    """Number of stop signals so far."""
    process: subprocess.Popen[bytes] | None = None
    spent: list[float] = field(default_factory=list)

    def run(self, moved: bool) -> bool:
        """Make every run that does not exist yet; False if the study was interrupted.

        A study that was `moved` to another machine, or to other versions, is warmed up again.
        """
        done = FINISHED if self.asked.retry_failed else (*FINISHED, "failed")
        due = [run for run in self.runs if status_of(run.path) not in done]
        if len(due) < len(self.runs):
            self.say(f"{len(self.runs) - len(due)} of {len(self.runs)} runs are there already")
        with self._signals():
            if not self.asked.cold:
                self._warm_up(due, moved)
            for left, run in zip(reversed(range(len(due))), due, strict=True):
                if self.stops or not self._make(run):
                    return False
                self.say(self._line(run, left))
        return True

    def _warm_up(self, due: list[PlannedRun], moved: bool) -> None:
        """Contestants of which no run has finished here. Failures are ignored: the real run will fail and report it."""
        warm = {run.contestant.name for run in self.runs if not moved and status_of(run.path) in FINISHED}
        cold: dict[str, PlannedRun] = {}
        for run in due:
            if run.contestant.name not in warm:
                cold.setdefault(run.contestant.name, run)
        for count, (name, run) in enumerate(cold.items(), start=1):
            if not self.stops:
                self.say(f"warm-up {count}/{len(cold)}: {name}")
                clear(self.study.path / WARM_UP)
                self._execute(warm_up_of(run.options, self.study.path))
                clear(self.study.path / WARM_UP)

    def _make(self, run: PlannedRun) -> bool:
        """Make one run; False if it was interrupted."""
        clear(run.path)
        began = time.monotonic()
        exit_code, printed = self._execute(run.options)
        if status_of(run.path) not in FINISHED:
            if self.stops or exit_code == INTERRUPTED:
                return False
            if exit_code == 0:
                raise UserError(
                    f"{run.path} ended well but its result could not be written; make room on the disk and give the "
                    "same command again"
                )
            record_failure(run.path, exit_code, cause_of(exit_code, printed), printed)
        elif self.asked.drop_checkpoints:
            shutil.rmtree(run.path / "checkpoints", ignore_errors=True)
        self.spent.append(time.monotonic() - began)
        return True

    def _execute(self, options: RunOptions) -> tuple[int, str]:
        """The run's exit code and the end of its stderr. The run ends when this process does, even if that is killed.

        The run has a session of its own: Ctrl-C reaches the study only, which passes it on once.
        """
        words, printed = train_words(change(options, {"quiet": True, "json": True})), self.study.path / ".stderr.txt"
        command = [sys.executable, "-m", "repertory.run_subprocess", str(os.getpid()), *words]
        with printed.open("w+b") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file, start_new_session=True
            )
            if self.stops:  # a signal came while it was being started
                self.process.terminate()
            exit_code, self.process = self.process.wait(), None
            file.seek(max(0, printed.stat().st_size - PRINTED_BYTES))
            said = file.read().decode(errors="replace")
        printed.unlink()
        return exit_code, said

    def _line(self, run: PlannedRun, left: int) -> str:
        trial = read_trial(run.path, run.contestant.name, run.seed)
        score = "none" if trial.score is None else f"{trial.score:.1f}"
        ended = f"score {score} after {trial.env_steps:,} env steps in {trial.seconds:.1f} s"
        number = f"[{len(self.runs) - left}/{len(self.runs)}]"
        rest = f"; {duration(left * sum(self.spent) / len(self.spent))} left" if left else ""
        return f"{number} {run.contestant.name}, seed {run.seed}: {ended if trial.finished else trial.cause}{rest}"

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Pass SIGINT, SIGTERM and SIGHUP on to the current run; the study ends with it."""
        main = threading.current_thread() is threading.main_thread()
        before = {number: signal.getsignal(number) for number in ending_signals()} if main else {}
        for number in before:
            signal.signal(number, self._stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, _frame: Any) -> None:
        """At the first signal the run saves and ends, at the second it ends without saving, at the third it is killed.

        It gets SIGTERM, because background jobs may ignore SIGINT.
        """
        if self.stops and number == signal.SIGHUP:
            return  # a lost terminal may send several
        self.stops += 1
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL if self.stops > 2 else signal.SIGTERM)


def warm_up_of(options: RunOptions, place: Path) -> RunOptions:
    """Options of a short run that compiles the same programs: it acts, learns and evaluates as soon as it can."""
    brief = {"seconds": WARM_UP_S, "env_steps": FOR_EVER, "target_score": None, "eval_max_steps": 20}
    rare = {"eval_every": FOR_EVER, "eval_every_s": None}
    changed = change(options, {**brief, **rare, "name": WARM_UP, "runs_dir": place})
    return apply(changed, {"agent.learning_starts": 0}, known_only=True)


def cause_of(exit_code: int, printed: str) -> str:
    """Why a run failed: its own error message, else the last line that it printed, else how it ended."""
    lines = [line.strip() for line in plain(printed).splitlines() if line.strip()]
    sentences = [line.removeprefix("repertory: ") for line in lines if line.startswith("repertory: ")]
    if exit_code < 0:
        return f"the process was ended by {signal.Signals(-exit_code).name}"
    if sentences or lines:
        return (sentences or lines)[-1]
    return f"the process ended with exit code {exit_code} and said nothing"
