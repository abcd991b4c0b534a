"""A study from the command to the report: its runs strictly one after another, as two at once would steal each other's
cores; each as `repertory train` would make it, in a process of its own."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repertory.errors import UserError, plain
from repertory.output import forgiving, result_stream
from repertory.runs.config import RunOptions, change
from repertory.runs.directory import RunDirectory, slug
from repertory.runs.launch import gigabytes
from repertory.runs.presets import train_words
from repertory.runtime import ending_signals
from repertory.studies import entrants, statistics
from repertory.studies.entrants import (
    FOR_EVER,
    AblateOptions,
    CompareOptions,
    Entrant,
    ReportOptions,
    ScaleOptions,
    StudyOptions,
    apply,
)
from repertory.studies.plan import PlannedRun, StudyDirectory, StudyPlan, clear, plan_of, record_failure, state_of
from repertory.studies.reading import read_runs, read_study, read_trial
from repertory.studies.results import Results, read_tables, trial_rows, write_tables
from repertory.studies.words import DASH, answer, duration, plural

INTERRUPTED = 130
START_S = 6.0
"""Start-up and end of a run, about."""
PRINTED_BYTES = 1_000_000
"""Of what a run printed, the last part that is kept."""
WARM_UP, WARM_UP_S = "warm-up", 2.0
"""Of the short run of each contestant before the first that counts: its directory, while there is one, and its length.
Programs are compiled when first used and kept, so without it the first seed would pay for what later ones find."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What came of a study; `report` is None if it was interrupted or nothing finished."""

    directory: Path
    results: Results
    report: Path | None
    interrupted: bool = False


def run_compare(asked: CompareOptions) -> int:
    return _command("compare", asked, entrants.compare(asked))


def run_ablate(asked: AblateOptions) -> int:
    return _command("ablate", asked, entrants.ablate(asked))


def run_scale(asked: ScaleOptions) -> int:
    return _command("scale", asked, entrants.scale(asked))


def _command(kind: str, asked: StudyOptions, found: list[Entrant]) -> int:
    return conclude(run_study(kind, asked, found, silently if asked.quiet or asked.json else say), asked.json)


def run_report(asked: ReportOptions) -> int:
    """The report of runs that there are, or of a study anew."""
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
    results, kept = read_study(study.read(), study.runs), read_tables(path)
    trials = [kept.get((one.contestant, one.seed), one) if one.status == "missing" else one for one in results.trials]
    if all(one.status == "missing" for one in trials):
        raise UserError(f"{path} has no runs to report, neither in runs/ nor in trials.csv and evaluations.csv")
    known = results.target if target is None else target
    return dataclasses.replace(results, trials=tuple(trials), target=known), path


def _of_runs(asked: ReportOptions) -> tuple[Results, Path]:
    paths = [RunDirectory.open(run, asked.runs_dir).path for run in asked.runs]
    results = read_runs(paths, asked.target_score, shlex.join(["repertory", "report", *asked.runs]))
    return results, Path("studies") / f"report-{slug(results.environment)}"


def run_study(kind: str, asked: StudyOptions, found: list[Entrant], say: Say) -> Outcome:
    """Make the runs that are not there yet, then the tables and the report."""
    statistics.require()  # before any run is made that could not be reported
    plan, study = plan_of(kind, asked, found), StudyDirectory.of(kind, asked)
    with study.hold():
        begun = study.take_up(plan)
        plan = begun.also(plan)
        moved = plan != begun
        if moved:
            say(f"note: this study was begun elsewhere or with other versions: {begun.machine}")
            study.write(plan)
        runs = plan.runs(study.runs)
        if not asked.drop_checkpoints:
            _check_disk(study, runs, {entrant.contestant.name: entrant.kept_bytes for entrant in found})
        say(_announcement(study, plan))
        runner = Runner(study, runs, drop_checkpoints=asked.drop_checkpoints, say=say)
        try:
            complete = runner.run(retry_failed=asked.retry_failed, warm_up=not asked.cold, moved=moved)
            results = read_study(plan, study.runs)
            report = publish(results, study.path) if complete else None
        except OSError as error:
            raise UserError(
                f"the study can't go on: {error}; runs that have finished are kept: once that is mended, the same "
                "command goes on"
            ) from None
        return Outcome(study.path, results, report, interrupted=not complete)


def say(text: str) -> None:
    print(text, file=forgiving(sys.stderr), flush=True)


def silently(_text: str) -> None:
    """For those who asked for no line."""


def publish(results: Results, directory: Path) -> Path | None:
    """The tables; and the report, if there is anything to tell."""
    directory.mkdir(parents=True, exist_ok=True)
    write_tables(results, directory)
    if not any(trial.finished for trial in results.trials):
        return None
    from repertory.studies import page

    return page.write(results, directory)


def _check_disk(study: StudyDirectory, runs: list[PlannedRun], kept_bytes: Mapping[str, int]) -> None:
    """Each run keeps its last checkpoint, in which the replay takes most of the room."""
    needed = sum(kept_bytes[run.contestant.name] for run in runs if state_of(run.path) != "finished")
    free = shutil.disk_usage(study.path).free
    if needed > free:
        raise UserError(
            f"the runs would keep checkpoints of up to {gigabytes(needed)}, but {gigabytes(free)} of disk is free in "
            f"{study.path}; give --drop-checkpoints, or another --studies-dir"
        )


def _announcement(study: StudyDirectory, plan: StudyPlan) -> str:
    contestants, seeds = len(plan.contestants), plan.seeds
    runs, seconds = contestants * seeds, plan.options[0].seconds
    most = "" if seconds is None else f", about {duration(runs * (seconds + START_S))} in all at most"
    each = f"{plural(contestants, 'contestant')} × {plural(seeds, 'seed')}: {plural(runs, 'run')}"
    return f"{each}, {plan.budget} each{most}; study saved to {study.path}"


def conclude(outcome: Outcome, as_json: bool) -> int:
    """Say what came of it; 0 if at least one run finished, 130 if it was interrupted."""
    trials = outcome.results.trials
    finished = sum(trial.finished for trial in trials)
    if outcome.interrupted:
        say(
            f"interrupted: {finished} of {len(trials)} runs have finished; the same command goes on, and "
            f"'repertory report {outcome.directory}' shows what there is"
        )
    _say_failures(outcome.results)
    if as_json:
        report = None if outcome.report is None else str(outcome.report)
        summary = {"directory": str(outcome.directory), "report": report, "trials": trial_rows(outcome.results)}
        print(json.dumps(summary), file=result_stream(), flush=True)
    elif outcome.report is not None:
        print("\n".join([*_table(outcome.results), answer(outcome.results), f"report saved to {outcome.report}"]))
    return INTERRUPTED if outcome.interrupted else 0 if finished else 1


def _say_failures(results: Results) -> None:
    failed = [trial for trial in results.trials if trial.status == "failed"]
    if failed:
        first, again = failed[0], "" if results.kind == "report" else "; --retry-failed makes them again"
        count = f"{len(failed)} of {len(results.trials)} runs failed"
        say(f"{count}, {first.contestant} with seed {first.seed} because: {first.cause}{again}")


def _table(results: Results) -> list[str]:
    """A line for each contestant: what its finished runs reached on average, and how fast."""
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


class Runner:
    def __init__(self, study: StudyDirectory, runs: list[PlannedRun], *, drop_checkpoints: bool, say: Say) -> None:
        self.study, self.runs, self.drop_checkpoints, self.say = study, runs, drop_checkpoints, say
        self.asked = 0
        """How often it was asked to stop."""
        self._process: subprocess.Popen[bytes] | None = None
        self._spent: list[float] = []

    def run(self, *, retry_failed: bool, warm_up: bool, moved: bool = False) -> bool:
        """Make every run that is not there yet; whether all were made, and nobody interrupted.

        On a machine to which the study `moved`, nothing is compiled yet.
        """
        again = ("absent", "unfinished", "failed") if retry_failed else ("absent", "unfinished")
        due = [run for run in self.runs if state_of(run.path) in again]
        if len(due) < len(self.runs):
            self.say(f"{len(self.runs) - len(due)} of {len(self.runs)} runs are there already")
        with self._signals():
            if warm_up:
                self._warm_up(due, moved)
            for left, run in zip(reversed(range(len(due))), due, strict=True):
                if self.asked or not self._make(run):
                    return False
                self.say(self._line(run, left))
        return True

    def _warm_up(self, due: list[PlannedRun], moved: bool) -> None:
        """Of those of whom no run has finished here; what fails now will fail again, and be told then."""
        warm = {run.contestant.name for run in self.runs if not moved and state_of(run.path) == "finished"}
        firsts: dict[str, PlannedRun] = {}
        for run in due:
            if run.contestant.name not in warm:
                firsts.setdefault(run.contestant.name, run)
        for count, (name, run) in enumerate(firsts.items(), start=1):
            if not self.asked:
                self.say(f"warm-up {count}/{len(firsts)}: {name}")
                clear(self.study.path / WARM_UP)
                self._execute(warm_up_of(run.options, self.study.path))
                clear(self.study.path / WARM_UP)

    def _make(self, run: PlannedRun) -> bool:
        """One run; whether it came to an end by itself."""
        clear(run.path)
        began = time.monotonic()
        exit_code, printed = self._execute(run.options)
        if state_of(run.path) != "finished":
            if self.asked or exit_code == INTERRUPTED:
                return False
            if exit_code == 0:
                raise UserError(
                    f"{run.path} ended well but its result could not be written; make room on the disk and give the "
                    "same command again"
                )
            record_failure(run.path, exit_code, cause_of(exit_code, printed), printed)
        elif self.drop_checkpoints:
            shutil.rmtree(run.path / "checkpoints", ignore_errors=True)
        self._spent.append(time.monotonic() - began)
        return True

    def _execute(self, options: RunOptions) -> tuple[int, str]:
        """The run's exit code and the end of what it printed on stderr; it ends with this process, however that ends.

        It has a session of its own, so that Ctrl-C comes to the study alone, which hands it on once.
        """
        words, printed = train_words(change(options, {"quiet": True, "json": True})), self.study.path / ".stderr.txt"
        command = [sys.executable, "-m", "repertory.run_subprocess", str(os.getpid()), *words]
        with printed.open("w+b") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file, start_new_session=True
            )
            if self.asked:  # a signal came while it was being started
                self._process.terminate()
            exit_code, self._process = self._process.wait(), None
            file.seek(max(0, printed.stat().st_size - PRINTED_BYTES))
            said = file.read().decode(errors="replace")
        printed.unlink()
        return exit_code, said

    def _line(self, run: PlannedRun, left: int) -> str:
        """How a run ended, and how long the others will take at this pace."""
        trial = read_trial(run.path, run.contestant.name, run.seed)
        score = "none" if trial.score is None else f"{trial.score:.1f}"
        ended = f"score {score} after {trial.env_steps:,} env steps in {trial.seconds:.1f} s"
        number = f"[{len(self.runs) - left}/{len(self.runs)}]"
        rest = f"; {duration(left * sum(self._spent) / len(self._spent))} left" if left else ""
        return f"{number} {run.contestant.name}, seed {run.seed}: {ended if trial.finished else trial.cause}{rest}"

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT, SIGTERM and SIGHUP are handed on to the run under way; the study ends with it."""
        main = threading.current_thread() is threading.main_thread()
        before = {number: signal.getsignal(number) for number in ending_signals()} if main else {}
        for number in before:
            signal.signal(number, self._ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, _frame: Any) -> None:
        """The first time the run under way saves and leaves, the second time it leaves, the third time it is killed.

        SIGINT may be ignored in background jobs, SIGTERM is not.
        """
        if self.asked and number == signal.SIGHUP:
            return  # a lost terminal may say so more than once
        self.asked += 1
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL if self.asked > 2 else signal.SIGTERM)


def warm_up_of(options: RunOptions, place: Path) -> RunOptions:
    """Options of a run that acts, learns and is evaluated as soon as it can, with the same programs."""
    brief = {"seconds": WARM_UP_S, "env_steps": FOR_EVER, "target_score": None, "eval_max_steps": 20}
    rare = {"eval_every": FOR_EVER, "eval_every_s": None}
    changed = change(options, {**brief, **rare, "name": WARM_UP, "runs_dir": place})
    return apply(changed, {"agent.learning_starts": 0}, known_only=True)


def cause_of(exit_code: int, printed: str) -> str:
    """Why it failed, in its own words: its sentence, else the last thing it said, else how it ended."""
    lines = [line.strip() for line in plain(printed).splitlines() if line.strip()]
    sentences = [line.removeprefix("repertory: ") for line in lines if line.startswith("repertory: ")]
    if exit_code < 0:
        return f"the process was ended by {signal.Signals(-exit_code).name}"
    if sentences or lines:
        return (sentences or lines)[-1]
    return f"the process ended with exit code {exit_code} and said nothing"
