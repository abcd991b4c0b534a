"""One run from start to end: drives an engine, logs, evaluates, saves, and always writes a result."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from repertory.engines.driver import Driver, Evaluated
from repertory.runs import checkpoint
from repertory.runs.config import RunOptions
from repertory.runs.directory import RunDirectory
from repertory.runs.history import Cadence, Divergence, Evaluation, History, Pause
from repertory.runs.metrics import MetricsWriter
from repertory.runs.opening import best_evaluation
from repertory.runs.progress import Progress
from repertory.runtime import handle_ending_signals

CATCH_UP_S = 3.0
"""After the last step the learner may make the updates that are still owed, for at most so long."""
EVALUATION_S = 600.0
"""No evaluation takes longer."""
EVALUATION_SHARE, LEAST_EVALUATION_S = 0.2, 1.0
"""In a run with --seconds, an evaluation takes at most this share of them, but may always take so long."""


@dataclass(eq=False)
class Session:
    """A run in progress."""

    options: RunOptions
    engine: Driver
    directory: RunDirectory
    history: History
    view: Progress
    called_at: float

    def __post_init__(self) -> None:
        now, options = self.engine.counters.env_steps, self.options
        self.best = best_evaluation(self.directory)
        self.divergence = Divergence()
        self.log_due = Cadence(options.log_every, now)
        self.eval_due = Cadence(options.eval_every, now)
        self.eval_due_s = Cadence(options.eval_every_s or math.inf, self.history.seconds)
        self.save_due = Cadence(options.checkpoint_every, now)
        self.startup_s = 0.0
        self.stopping = False
        self.engine.dismissed = lambda: self.stopping
        self._scored_before = self._requested = len(self.history.evaluations)
        self._requested_at = -1
        share = None if options.seconds is None else EVALUATION_SHARE * options.seconds
        self._evaluation_s = EVALUATION_S if share is None else max(LEAST_EVALUATION_S, share)
        self._process = psutil.Process()
        self._rate = (0.0, now, self.engine.counters.updates)
        self._pause = Pause()
        resume_at = now if self.history.resumes else None
        self.metrics = MetricsWriter(self.directory.metrics_path, self.directory.tensorboard, resume_at=resume_at)

    def run(self) -> dict[str, Any]:
        """Train until the run ends; returns the result that was written."""
        try:
            with handle_ending_signals(self._stop):
                return self._train()
        except SystemExit:
            self._tell_events(show=False)
            self._finish("interrupted")
            raise
        except BaseException as error:
            self._tell_events(show=False)
            self._save_what_can_be_saved()
            self._finish("failed", error=f"{type(error).__name__}: {error}")
            raise
        finally:
            self.view.close()
            self.metrics.close()
            self.engine.close()

    def _save_what_can_be_saved(self) -> None:
        """The run failed: save what it has reached."""
        if not self.startup_s or self._saved():
            return
        try:
            self._save(exact=False)
        except Exception as error:  # the error that ended the run is the one to show
            self._say(f"warning: the state of the run could not be saved ({error}); earlier checkpoints are whole")

    def _train(self) -> dict[str, Any]:
        with self.view.busy("compiling"):
            self.engine.start()
        self.startup_s = time.time() - self.called_at
        self.began = time.perf_counter() - self.history.seconds
        self._rate = (self.seconds, *self._rate[1:])
        status, rounds = "", self.engine.rounds()
        while not status:
            next(rounds)
            status = self._attend(self.engine.counters.env_steps)
        if status == "completed" and self.engine.counters.env_steps < self.options.env_steps:
            self.engine.stop_playing()
        self._catch_up(rounds)
        now = self.engine.counters.env_steps
        if status == "completed":
            status = self._evaluate_last(now, rounds)
        if self._rate[1] != now:  # else this step has its line
            self._log(now)
        self.engine.settle()  # first: workers that were saved just now may have played on since
        if not self._saved():
            self._save(exact=False)
        self._tell_events()  # of workers that failed while they settled
        return self._finish(status)

    def _catch_up(self, rounds: Iterator[None]) -> None:
        """Make the updates that are owed for the last steps, if there is time."""
        end = time.monotonic() + CATCH_UP_S
        while not self.stopping and self.engine.behind() and time.monotonic() < end:
            next(rounds)

    def _evaluate_last(self, now: int, rounds: Iterator[None]) -> str:
        """Evaluate the final weights; returns the status of the run."""
        if self._requested_at != now:
            self._request_evaluation(now, urgent=True)
        end = time.monotonic() + self._evaluation_s + LEAST_EVALUATION_S
        with self._pause, self.view.busy(self._evaluating):
            while self.engine.evaluating and not self._solved() and not self.stopping and time.monotonic() < end:
                next(rounds)
                self._collect()
        self._collect()
        if self.stopping:
            return "interrupted"
        return "solved" if self._solved() else "completed"

    @property
    def seconds(self) -> float:
        """Seconds of training, including those before a resume."""
        return time.perf_counter() - self.began

    def _attend(self, now: int) -> str:
        """Do what is due after a round; returns a status if the run ends here."""
        by_steps, by_clock = self.eval_due.due(now), self.eval_due_s.due(self.seconds)
        if by_steps or by_clock:
            self._request_evaluation(now)
        scored = self._collect()
        saving, logging = self.save_due.due(now), self.log_due.due(now)
        if logging or scored or saving:
            self._log(now)
        if saving:
            with self._pause:
                self._save(exact=True)
                self.engine.start()
        return self._ended(now, scored)

    def _ended(self, now: int, scored: bool) -> str:
        options = self.options
        if self.stopping:
            return "interrupted"
        if scored and self._solved():
            return "solved"
        out_of_time = options.seconds is not None and self.seconds >= options.seconds
        return "completed" if now >= options.env_steps or out_of_time else ""

    def _solved(self) -> bool:
        """Whether the last evaluation of this session reached the target, with no episode cut off."""
        target, done = self.options.target_score, self.history.evaluations
        if target is None or len(done) <= self._scored_before or done[-1].get("unfinished"):
            return False
        return float(done[-1]["mean"]) >= target

    def _saved(self) -> bool:
        """Whether the newest checkpoint has these env steps and updates: a learner may update after the last step."""
        newest, counters = checkpoint.latest(self.directory.checkpoints), self.engine.counters
        if newest is None:
            return False
        saved = checkpoint.load(newest, parts=("env_steps", "updates"))
        return (saved["env_steps"], saved["updates"]) == (counters.env_steps, counters.updates)

    def _evaluating(self) -> str:
        return f"evaluating {self.engine.finished_episodes}/{self.options.eval_episodes}"

    def _request_evaluation(self, now: int, *, urgent: bool = False) -> None:
        """Of the present weights."""
        self._requested_at = now
        with self._pause, self.view.busy(self._evaluating):  # an inline engine plays the evaluation here
            self.engine.ask(self._requested, self._evaluation_s, urgent=urgent)
        self._requested += 1

    def _tell_events(self, show: bool = True) -> None:
        for note in self.engine.notes():
            self._say(note, show)

    def _say(self, text: str, show: bool = True) -> None:
        """In events.jsonl, and in the view."""
        if show:
            self.view.note(text)
        self.directory.add_event(text, self.engine.counters.env_steps)

    def _collect(self) -> bool:
        """Take in events and finished evaluations; whether there was a score."""
        self._tell_events()
        scored = False
        while not self._solved() and (evaluated := self.engine.next_evaluation()) is not None:
            scored = True
            self._take_score(evaluated)
        return scored

    def _take_score(self, evaluated: Evaluated) -> None:
        returns, unfinished = evaluated.episodes.returns, evaluated.episodes.unfinished
        evaluation: Evaluation = {
            "env_steps": evaluated.env_steps,
            "updates": evaluated.updates,
            "seconds": round(self.seconds, 3),
            "mean": float(returns.mean()),
            "std": float(returns.std()),
            "episodes": len(returns),
        }
        if unfinished:
            evaluation["unfinished"] = unfinished
        self.history.evaluations.append(evaluation)
        if not unfinished and (self.best is None or evaluation["mean"] > self.best["mean"]):
            self._save_best(evaluation, evaluated.weights)

    def _save_best(self, evaluation: Evaluation, weights: NDArray[np.float32]) -> None:
        """A checkpoint of the weights alone, in place of the earlier best one."""
        learner = {"learned": {"00": weights}, "layout": self.engine.agent.layout.fingerprint}
        state: dict[str, Any] = {"learner": learner, "evaluation": evaluation}
        try:
            checkpoint.save(self.directory.best, state, step=int(evaluation["env_steps"]), keep=1, exact=False)
            self.best = evaluation
        except checkpoint.CheckpointFailed as error:
            self.view.note(f"warning: {error}; training goes on")

    def _log(self, now: int) -> None:
        updates = self.engine.counters.updates
        seconds, before, steps_then, updates_then = self.seconds, *self._rate
        trained = seconds - self._pause.seconds
        passed = max(trained - before, 1e-9)
        score = self.history.score
        values: dict[str, float | int | str | None] = {
            "env_steps": now,
            "updates": updates,
            "seconds": round(seconds, 3),
            "env_steps_per_s": round((now - steps_then) / passed, 1),
            "updates_per_s": round((updates - updates_then) / passed, 1),
            "score": None if score is None else score["mean"],
            "score_best": max((e["mean"] for e in self.history.finished), default=None),
            **self.engine.metrics(),
            "rss_mb": round(self._process.memory_info().rss / 2**20, 1),
        }
        self._rate = (trained, now, updates)
        self.metrics.write(values)
        self.view.update(values)
        if warning := self.divergence.look(values):
            self._say(warning)

    def _save(self, *, exact: bool) -> None:
        self.history.seconds = self.seconds
        try:
            with self.view.busy("saving"):
                self.metrics.flush()
                state: dict[str, Any] = {**self.engine.settle(), "history": self.history.state()}
                checkpoint.save(
                    self.directory.checkpoints,
                    state,
                    step=self.engine.counters.env_steps,
                    keep=self.options.keep_checkpoints + (not exact),  # a resume may need the last exact one
                    exact=exact,
                )
        except checkpoint.CheckpointFailed as error:
            self.view.note(f"warning: {error}; training goes on")

    def _finish(self, status: str, error: str | None = None) -> dict[str, Any]:
        counters = self.engine.counters
        seconds = self.seconds if self.startup_s else 0.0
        score, evaluations = self.history.score, self.history.evaluations
        result: dict[str, Any] = {
            "status": status,
            "score": None if score is None else score["mean"],
            "score_env_steps": None if score is None else score["env_steps"],
            "unfinished_episodes": evaluations[-1].get("unfinished", 0) if evaluations else 0,
            "best": self.best,
            "env_steps": counters.env_steps,
            "updates": counters.updates,
            "seconds": round(seconds, 3),
            "startup_s": round(self.startup_s, 3),
            "env_steps_per_s": round(counters.env_steps / max(seconds, 1e-9), 1),
            "updates_per_s": round(counters.updates / max(seconds, 1e-9), 1),
            "restarts": self.engine.restarts,
            "resumes": self.history.resumes,
            "deterministic": self.options.engine == "inline",
            "environment": self.options.environment,
            "directory": str(self.directory.path),
            "warnings": self.divergence.warnings,
            "evaluations": evaluations,
            **({} if error is None else {"error": error}),
        }
        if self.metrics.lost:
            self.view.note(f"warning: {self.metrics.lost} lines of metrics could not be written")
        try:
            self.directory.write_result(result)
        except OSError as refused:
            self.view.note(f"warning: {self.directory.result_path} was not written: {refused.strerror}")
        return result

    def _stop(self, number: int, _frame: Any) -> None:
        """The first SIGINT, SIGTERM or SIGHUP ends the run in order, the second at once."""
        if self.stopping:
            if number == signal.SIGHUP:
                return  # a lost terminal may send it more than once
            sys.exit(130)
        self.stopping = True
        self.view.note("stopping: saving a checkpoint (once more to stop at once)")
