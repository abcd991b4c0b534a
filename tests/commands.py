"""The command line as its users call it: in this process, or in one of its own that can be killed.

Own processes are forked by a server that has imported everything but started nothing, which saves their imports.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from repertory.runs import checkpoint

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["repertory.cli", "repertory.api", "repertory.runs.player", "imageio.v2"])
TIME_LIKE = ("seconds", "env_steps_per_s", "updates_per_s", "rss_mb", "time/", "busy/", "steps_per_s/", "reply_ms")


class Command:
    """`repertory ...` in a process of its own; what it prints goes into files of `place`."""

    count = 0

    def __init__(self, place: Path, *arguments: Any, absent: str = "", file_bytes: int = 0) -> None:
        Command.count += 1
        self.printed = [place / f"{stream}-{Command.count}.txt" for stream in ("out", "err")]
        given = ([str(argument) for argument in arguments], place, self.printed, absent, file_bytes)
        self.process = SERVER.Process(target=_perform, args=given, daemon=True)  # ended with a test that fails
        self.process.start()

    def wait(self, timeout: float = 60) -> int:
        """Its exit code; a process that outlives the deadline is killed and fails the test."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"still running after {timeout} s; stderr: {self.err}")
        return self.process.exitcode

    def signal(self, number: int) -> None:
        """Send a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    @property
    def out(self) -> str:
        """What it printed."""
        return self.printed[0].read_text() if self.printed[0].exists() else ""

    @property
    def err(self) -> str:
        """What it printed on stderr."""
        return self.printed[1].read_text() if self.printed[1].exists() else ""


def _perform(arguments: list[str], place: Path, printed: list[Path], absent: str, file_bytes: int) -> None:
    os.chdir(place)
    for descriptor, path in zip((1, 2), printed, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    if absent:
        sys.modules[absent] = None  # type: ignore[assignment]  # as if it were not installed
    if file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    from repertory import cli

    sys.exit(cli.main(arguments))


def words(text: str) -> list[str]:
    """Arguments as they are typed."""
    return text.split()


def until(true: Callable[[], Any], timeout: float = 60, what: str = "it") -> None:
    """Wait for something, not for ever."""
    end = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < end, f"{what} did not happen within {timeout} s"
        time.sleep(0.005)


def rows(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run, a torn last line left out."""
    path = run / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def env_steps(run: Path) -> int:
    """How far the metrics of a run have come."""
    found = rows(run)
    return int(found[-1]["env_steps"]) if found else 0


def result(run: Path) -> dict[str, Any]:
    """A run's result.json."""
    found: dict[str, Any] = json.loads((run / "result.json").read_bytes())
    return found


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    """A row of metrics or an evaluation, without what the clock decides."""
    return {key: value for key, value in values.items() if not key.startswith(TIME_LIKE)}


def assert_same_run(one: Path, other: Path) -> None:
    """Bit for bit: every row, every evaluation, and everything in the last checkpoint."""
    assert [timeless(row) for row in rows(one)] == [timeless(row) for row in rows(other)]
    evaluations = [[timeless(e) for e in result(run)["evaluations"]] for run in (one, other)]
    assert evaluations[0] == evaluations[1]
    states = [checkpoint.load(checkpoint.latest(run / "checkpoints") or run) for run in (one, other)]
    for state in states:
        del state["history"]
    assert_same_state(*states)


def assert_same_state(one: Any, other: Any, where: str = "") -> None:
    """Equal trees, down to the bits of their arrays."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same_state(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, where
        assert one.tobytes() == other.tobytes(), where
    else:
        assert one == other, where
