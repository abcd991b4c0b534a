"""Studies as their users make them, with a page that is quickly written; and the processes of them that still live."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest

from commands import until
from repertory import cli

MARK = "REPERTORY_TEST_STUDY"
PROGRAM = """
import sys, types
page = types.ModuleType("repertory.studies.page")
page.write = lambda results, directory: directory / "report.html"
sys.modules["repertory.studies.page"] = page
from repertory.studies import statistics
statistics.require = lambda: None
from repertory import cli
sys.exit(cli.main(sys.argv[1:]))
"""
Stamp = dict[str, tuple[int, int]]


class StudyProcess:
    """`repertory ...` in a process of its own; all that it starts, and what they start, can be found."""

    def __init__(self, place: Path, *arguments: str) -> None:
        self.printed, self.mark = place / f"printed-{uuid.uuid4().hex[:8]}.txt", uuid.uuid4().hex
        with self.printed.open("wb") as printed:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *arguments],
                cwd=place,
                stdout=printed,
                stderr=printed,
                env={**os.environ, MARK: self.mark},
                start_new_session=True,
            )

    def wait(self, timeout: float = 80) -> int:
        """Its exit code."""
        return self.process.wait(timeout)

    def said(self) -> str:
        """What it printed."""
        return self.printed.read_text()

    def alive(self) -> list[psutil.Process]:
        """Its living processes."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):
            return False

    def await_end(self) -> None:
        """All its processes end soon after it."""
        until(lambda: not self.alive(), timeout=60, what="the end of all its processes")

    def end(self) -> None:
        """Whatever is left, ended: for tests that fail."""
        for process in self.alive():
            process.kill()
        self.process.wait(10)


def stamps(run: Path) -> Stamp:
    """Which files a run has, and when each was written."""
    files = [path for path in sorted(run.rglob("*")) if path.is_file()]
    return {str(path.relative_to(run)): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def finished(study: Path) -> list[Path]:
    """Runs that have ended by themselves."""
    results = study.glob("runs/*/result.json")
    return [path.parent for path in results if json.loads(path.read_bytes())["status"] in ("completed", "solved")]


def last_line(printed: str) -> Any:
    """The JSON that a command printed last."""
    return json.loads(printed.strip().splitlines()[-1])


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence with which a command is refused."""
    capsys.readouterr()
    assert cli.main(list(arguments)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("repertory: "), said.err
    assert said.err.count("\n") == 1, said.err
    return said.err.removeprefix("repertory: ").strip()
