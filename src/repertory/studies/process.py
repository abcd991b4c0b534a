"""One run in a process of its own, as `repertory train` would make it, and what became of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from repertory.errors import plain
from repertory.runs.config import RunOptions, change
from repertory.runs.spelling import train_words

PRINTED_BYTES = 1_000_000
"""Of what a run printed, the last part that is kept."""


class RunProcess:
    """A run that is under way; it ends with this process, however this one ends."""

    def __init__(self, options: RunOptions, printed: Path) -> None:
        words = train_words(change(options, {"quiet": True, "json": True}))
        command = [sys.executable, "-m", "repertory.understudy", str(os.getpid()), *words]
        self._printed = printed
        with printed.open("wb") as file:
            # In a session of its own, so that Ctrl-C comes to the study alone, which hands it on once.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file, start_new_session=True
            )

    def wait(self) -> int:
        """Its exit code."""
        return self._process.wait()

    def interrupt(self, *, hard: bool = False) -> None:
        """Ask it to stop, or make it; SIGINT may be ignored in background jobs, SIGTERM is not."""
        self._process.send_signal(signal.SIGKILL if hard else signal.SIGTERM)

    def printed(self) -> str:
        """What it printed on stderr."""
        with self._printed.open("rb") as file:
            file.seek(max(0, self._printed.stat().st_size - PRINTED_BYTES))
            return file.read().decode(errors="replace")


def cause_of(exit_code: int, printed: str) -> str:
    """Why it failed, in its own words: its sentence, else the last thing it said, else how it ended."""
    lines = [line.strip() for line in plain(printed).splitlines() if line.strip()]
    sentences = [line.removeprefix("repertory: ") for line in lines if line.startswith("repertory: ")]
    if exit_code < 0:
        return f"the process was ended by {signal.Signals(-exit_code).name}"
    if sentences or lines:
        return (sentences or lines)[-1]
    return f"the process ended with exit code {exit_code} and said nothing"
