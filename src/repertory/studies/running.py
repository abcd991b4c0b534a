"""Makes the runs of a study: strictly one after another, as two at once would steal each other's cores."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from repertory.errors import UserError
from repertory.runs.config import RunOptions, change
from repertory.runtime import ending_signals
from repertory.studies.budget import FOR_EVER
from repertory.studies.entries import apply
from repertory.studies.process import RunProcess, cause_of
from repertory.studies.programme import Part
from repertory.studies.reading import read_trial
from repertory.studies.study import StudyDirectory, clear, record_failure, state_of

INTERRUPTED = 130
WARM_UP, WARM_UP_S = "warm-up", 2.0
"""Of the short run of each contestant before the first that counts: its directory, while there is one, and its length.
Programs are compiled when first used and kept, so without it the first seed would pay for what later ones find."""


class Rounds:
    """A study under way."""

    def __init__(
        self, study: StudyDirectory, parts: list[Part], *, drop_checkpoints: bool, say: Callable[[str], None]
    ) -> None:
        self.study, self.parts, self.drop_checkpoints, self.say = study, parts, drop_checkpoints, say
        self.asked = 0
        self._process: RunProcess | None = None
        self._spent: list[float] = []

    def play(self, *, retry_failed: bool, warm_up: bool, moved: bool = False) -> bool:
        """Make every run that is not there yet; whether all were made, and nobody interrupted.

        On a machine to which the study `moved`, nothing is compiled yet.
        """
        again = ("absent", "unfinished", "failed") if retry_failed else ("absent", "unfinished")
        due = [part for part in self.parts if state_of(part.path) in again]
        if len(due) < len(self.parts):
            self.say(f"{len(self.parts) - len(due)} of {len(self.parts)} runs are there already")
        with self._signals():
            if warm_up:
                self._warm_up(due, set() if moved else self._warm())
            for left, part in zip(reversed(range(len(due))), due, strict=True):
                if self.asked or not self._make(part):
                    return False
                self.say(self._line(part, left))
        return True

    def _warm(self) -> set[str]:
        """Those of whom a run has finished."""
        return {part.contestant.name for part in self.parts if state_of(part.path) == "finished"}

    def _warm_up(self, due: list[Part], warm: set[str]) -> None:
        """Of the others; what fails here will fail again, and be told then."""
        firsts: dict[str, Part] = {}
        for part in due:
            if part.contestant.name not in warm:
                firsts.setdefault(part.contestant.name, part)
        for count, (name, part) in enumerate(firsts.items(), start=1):
            if not self.asked:
                self.say(f"warm-up {count}/{len(firsts)}: {name}")
                clear(self.study.path / WARM_UP)
                self._perform(warm_up_of(part.options, self.study.path))
                clear(self.study.path / WARM_UP)

    def _make(self, part: Part) -> bool:
        """One run; whether it came to an end by itself."""
        clear(part.path)
        began = time.monotonic()
        exit_code, printed = self._perform(part.options)
        if state_of(part.path) != "finished":
            if self.asked or exit_code == INTERRUPTED:
                return False
            if exit_code == 0:
                raise UserError(
                    f"{part.path} ended well but its result could not be written; make room on the disk and give the "
                    "same command again"
                )
            record_failure(part, exit_code, cause_of(exit_code, printed), printed)
        elif self.drop_checkpoints:
            shutil.rmtree(part.path / "checkpoints", ignore_errors=True)
        self._spent.append(time.monotonic() - began)
        return True

    def _perform(self, options: RunOptions) -> tuple[int, str]:
        """The run's exit code and what it printed."""
        place = self.study.path / ".stderr.txt"
        self._process = RunProcess(options, place)
        if self.asked:  # a signal came while it was being started
            self._process.interrupt()
        exit_code, printed = self._process.wait(), self._process.printed()
        self._process = None
        place.unlink()
        return exit_code, printed

    def _line(self, part: Part, left: int) -> str:
        """How a run ended, and how long the others will take at this pace."""
        trial = read_trial(part.path, part.contestant.name, part.seed)
        score = "none" if trial.score is None else f"{trial.score:.1f}"
        ended = f"score {score} after {trial.env_steps:,} env steps in {trial.seconds:.1f} s"
        number = f"[{len(self.parts) - left}/{len(self.parts)}]"
        rest = f"; {duration(left * sum(self._spent) / len(self._spent))} left" if left else ""
        return f"{number} {part.contestant.name}, seed {part.seed}: {ended if trial.finished else trial.cause}{rest}"

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT, SIGTERM and SIGHUP are handed on to the run under way; the study ends with it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in ending_signals()}
        for number in before:
            signal.signal(number, self._ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, _frame: Any) -> None:
        """The first time the run under way saves and leaves, the second time it leaves, the third time it is killed."""
        if self.asked and number == signal.SIGHUP:
            return  # a lost terminal may say so more than once
        self.asked += 1
        if self._process is not None:
            self._process.interrupt(hard=self.asked > 2)


def duration(seconds: float) -> str:
    """For people: "40 s", "12 min", "3 h 20 min"."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def warm_up_of(options: RunOptions, place: Path) -> RunOptions:
    """Options of a run that acts, learns and is evaluated as soon as it can, with the same programs."""
    brief = {"seconds": WARM_UP_S, "env_steps": FOR_EVER, "target_score": None, "eval_max_steps": 20}
    rare = {"eval_every": FOR_EVER, "eval_every_s": None}
    changed = change(options, {**brief, **rare, "name": WARM_UP, "runs_dir": place})
    return apply(changed, {"agent.learning_starts": 0}, known_only=True)
