"""One run from start to end: drives an engine, logs, evaluates, saves, and always leaves a result behind."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from repertory.engines.driver import Driver, Evaluated
from repertory.runs import checkpoint
from repertory.runs.config import RunOptions
from repertory.runs.directory import RunDirectory
from repertory.runs.history import Cadence, Divergence, Pause
from repertory.runs.metrics import MetricsWriter
from repertory.runs.progress import Progress
from repertory.runs.restoring import best_evaluation
from repertory.runtime import ending_signals


@dataclass
class History:
    """What the run has been through; travels with its checkpoints."""

    evaluations: list[dict[str, float | int]] = field(default_factory=list)
    seconds: float = 0.0
    resumes: int = 0


CATCH_UP_S = 3.0
"""After the last step a learner may make the updates that are still owed, but no longer than this."""
EVALUATION_S = 600.0
"""No evaluation takes longer."""
EVALUATION_SHARE, LEAST_EVALUATION_S = 0.2, 1.0
"""Of a run with --seconds, no evaluation takes more than this share of them, but this long it may always take."""


class Session:
    """A run that is under way."""

    def __init__(
        self,
        options: RunOptions,
        engine: Driver,
        directory: RunDirectory,
        history: History,
        view: Progress,
        *,
        called_at: float,
        resumed: bool,
    ) -> None:
        self.options, self.engine, self.directory, self.history = options, engine, directory, history
        self.view = view
        self.best = best_evaluation(directory)
        self.divergence = Divergence()
        now = engine.counters.env_steps
        self.log_due = Cadence(options.log_every, now)
        self.eval_due = Cadence(options.eval_every, now)
        self.eval_due_s = Cadence(options.eval_every_s or math.inf, history.seconds)
        self.save_due = Cadence(options.checkpoint_every, now)
        self.called_at = called_at
        self.startup_s = 0.0
        self.stop_asked = False
        engine.dismissed = lambda: self.stop_asked
        self._asked = len(history.evaluations)
        self._asked_at = -1
        self._scored_before = len(history.evaluations)
        self._process = psutil.Process()
        self._rate = (0.0, now, engine.counters.updates)
        self._pause = Pause()
        self.metrics = MetricsWriter(directory.metrics_path, directory.tensorboard, resume_at=now if resumed else None)

    def run(self) -> dict[str, Any]:
        """Train to the end, whichever comes first; returns the result that was written."""
        try:
            with self._signals():
                return self._train()
        except SystemExit:
            self._keep_events()
            self._finish("interrupted")
            raise
        except BaseException as error:
            self._save_what_can_be_saved()
            self._finish("failed", error=f"{type(error).__name__}: {error}")
            raise
        finally:
            self.view.close()
            self.metrics.close()
            self.engine.close()

    def _save_what_can_be_saved(self) -> None:
        """The run fails: what it has reached so far is kept, and what was said last; the error is shown later."""
        self._keep_events()
        if not self.startup_s or self._saved(self.engine.counters.env_steps):
            return
        try:
            self._save(exact=False)
        except Exception as error:  # whatever it is, the error that ended the run is the one to show
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
        self._save_last()
        self._note_events()  # of those who failed while everybody came to rest
        return self._finish(status)

    def _save_last(self) -> None:
        """Bring everybody to rest first: workers that were just saved may have played on since."""
        self.engine.settle()
        if not self._saved(self.engine.counters.env_steps):
            self._save(exact=False)

    def _catch_up(self, rounds: Iterator[None]) -> None:
        """Updates that are owed for the last steps are made, if that is soon done."""
        end = time.monotonic() + CATCH_UP_S
        while not self.stop_asked and self.engine.behind() and time.monotonic() < end:
            next(rounds)

    def _evaluate_last(self, now: int, rounds: Iterator[None]) -> str:
        """The final weights are evaluated, too; says how the run ended."""
        if self._asked_at != now:
            self._ask(now, urgent=True)
        end = time.monotonic() + self._evaluation_s + LEAST_EVALUATION_S
        with self._pause, self.view.busy(self._evaluating):
            while self.engine.evaluating and not self._solved() and not self.stop_asked and time.monotonic() < end:
                next(rounds)
                self._collect()
        self._collect()
        if self.stop_asked:
            return "interrupted"
        return "solved" if self._solved() else "completed"

    @property
    def seconds(self) -> float:
        """Seconds of training, those before a resume included."""
        return time.perf_counter() - self.began

    def _attend(self, now: int) -> str:
        """What is due after a round; a status if the run ends here."""
        by_steps, by_clock = self.eval_due.due(now), self.eval_due_s.due(self.seconds)
        if by_steps or by_clock:
            self._ask(now)
        scored = self._collect()
        saving = self.save_due.due(now)
        logging = self.log_due.due(now)
        if logging or scored or saving:
            self._log(now)
        if saving:
            with self._pause:
                self._save(exact=True)
                self.engine.start()
        return self._ended(now, scored)

    def _ended(self, now: int, scored: bool) -> str:
        options = self.options
        if self.stop_asked:
            return "interrupted"
        if scored and self._solved():
            return "solved"
        if now >= options.env_steps:
            return "completed"
        if options.seconds is not None and self.seconds >= options.seconds:
            return "completed"
        return ""

    @property
    def score(self) -> dict[str, float | int] | None:
        """The last evaluation whose episodes all came to their end; the last one if there is none such."""
        found = self._finished() or self.history.evaluations
        return found[-1] if found else None

    def _finished(self) -> list[dict[str, float | int]]:
        """The evaluations whose episodes all came to their end."""
        return [evaluation for evaluation in self.history.evaluations if not evaluation.get("unfinished")]

    def _solved(self) -> bool:
        """Whether the last evaluation of this session reached the target; one that was cut off may not have."""
        target, done = self.options.target_score, self.history.evaluations
        if target is None or len(done) <= self._scored_before or done[-1].get("unfinished"):
            return False
        return float(done[-1]["mean"]) >= target

    def _saved(self, now: int) -> bool:
        newest = checkpoint.latest(self.directory.checkpoints)
        return newest is not None and checkpoint.manifest(newest)["step"] == now

    @property
    def _evaluation_s(self) -> float:
        """How long an evaluation may take."""
        budget = self.options.seconds
        return EVALUATION_S if budget is None else max(LEAST_EVALUATION_S, EVALUATION_SHARE * budget)

    def _evaluating(self) -> str:
        """For the view: where the evaluation under way is."""
        return f"evaluating {self.engine.finished_episodes}/{self.options.eval_episodes}"

    def _ask(self, now: int, *, urgent: bool = False) -> None:
        """Ask for an evaluation of the weights of now."""
        self._asked_at = now
        with self._pause, self.view.busy(self._evaluating):  # an inline engine plays the evaluation here and now
            self.engine.ask(self._asked, self._evaluation_s, urgent=urgent)
        self._asked += 1

    def _keep_events(self) -> None:
        """What was said last, into the run's events alone."""
        for note in self.engine.notes():
            self.directory.add_event(note, self.engine.counters.env_steps)

    def _note_events(self) -> None:
        for note in self.engine.notes():
            self._say(note)

    def _say(self, text: str) -> None:
        """To whoever watches, and into the run's events."""
        self.view.note(text)
        self.directory.add_event(text, self.engine.counters.env_steps)

    def _collect(self) -> bool:
        """Take in the evaluations that are done, and what else there is to tell; whether there was a score."""
        self._note_events()
        scored = False
        while not self._solved() and (evaluated := self.engine.next_evaluation()) is not None:
            scored = True
            self._take_score(evaluated)
        return scored

    def _take_score(self, evaluated: Evaluated) -> None:
        returns, unfinished = evaluated.episodes.returns, evaluated.episodes.unfinished
        evaluation: dict[str, float | int] = {
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
            self._keep_best(evaluation, evaluated.weights)

    def _keep_best(self, evaluation: dict[str, float | int], weights: NDArray[np.float32]) -> None:
        """A checkpoint of the weights alone, in place of the best one before."""
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
        score = self.score
        values: dict[str, float | int | str | None] = {
            "env_steps": now,
            "updates": updates,
            "seconds": round(seconds, 3),
            "env_steps_per_s": round((now - steps_then) / passed, 1),
            "updates_per_s": round((updates - updates_then) / passed, 1),
            "score": None if score is None else score["mean"],
            "score_best": max((e["mean"] for e in self._finished()), default=None),
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
        history: dict[str, Any] = {
            "evaluations": self.history.evaluations,
            "seconds": self.seconds,
            "resumes": self.history.resumes,
        }
        try:
            with self.view.busy("saving"):
                self.metrics.flush()
                state: dict[str, Any] = {**self.engine.settle(), "history": history}
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
        score = self.score
        result: dict[str, Any] = {
            "status": status,
            "score": None if score is None else score["mean"],
            "score_env_steps": None if score is None else score["env_steps"],
            "unfinished_episodes": self.history.evaluations[-1].get("unfinished", 0) if self.history.evaluations else 0,
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
            "evaluations": self.history.evaluations,
        }
        if error is not None:
            result["error"] = error
        self._write_result(result)
        return result

    def _write_result(self, result: dict[str, Any]) -> None:
        if self.metrics.lost:
            self.view.note(f"warning: {self.metrics.lost} lines of metrics could not be written")
        try:
            self.directory.write_result(result)
        except OSError as error:
            self.view.note(f"warning: {self.directory.result_path} was not written: {error.strerror}")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first SIGINT, SIGTERM or SIGHUP ends the run in order, the second at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in ending_signals()}

        def ask(number: int, _frame: Any) -> None:
            if self.stop_asked:
                if number == signal.SIGHUP:
                    return  # a lost terminal may say so more than once
                sys.exit(130)
            self.stop_asked = True
            self.view.note("stopping: saving a checkpoint (once more to stop at once)")

        for number in before:
            signal.signal(number, ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def load_history(state: Mapping[str, Any] | None) -> History:
    """The history in a checkpoint; of a run that starts from nothing, an empty one."""
    if state is None:
        return History()
    saved = state["history"]
    return History(list(saved["evaluations"]), float(saved["seconds"]), int(saved["resumes"]))
