"""`make docs-check`: every command and code block of README and docs is run, with short budgets.

Each page has an empty directory, as its reader has. Training and studies are cut short by `--seconds`; the word RUN
stands for the newest run of the page.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from documented import PAGES, ROOT, commands, notebook, save_files, scripts

SECONDS = "3"
LIMIT_S = 300


def short(command: str, directory: Path) -> str:
    words = command.split()
    if "RUN" in words:
        newest = max((directory / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
        words = [newest.name if word == "RUN" and "--config" not in words else word for word in words]
        words = [f"runs/{newest.name}" if word == "RUN" else word for word in words]
    if words[:1] != ["repertory"] or {"--help", "--dry-run"} & {*words}:
        return " ".join(words)
    if words[1] in ("compare", "ablate", "scale"):
        words = [SECONDS if before == "--seconds" else word for before, word in zip(["", *words], words, strict=False)]
        return " ".join([*words, *([] if "--seeds" in words else ["--seeds", "1"])])
    return " ".join([*words, "--seconds", SECONDS] if words[1] == "train" else words)


def run(arguments: list[str] | str, directory: Path, typed: str | None = None) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = isinstance(arguments, str)
    done = subprocess.run(
        arguments,
        shell=shell,
        cwd=directory,
        env={**os.environ, "PATH": path},
        input=typed,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    save_files(page, tmp_path)
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    for command in commands(page):
        run(short(command, tmp_path), tmp_path)
    for number, script in enumerate(scripts(page)):
        file = tmp_path / f"block_{number}.py"
        file.write_text(script)
        run([sys.executable, file.name], tmp_path)


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.ipynb")), ids=lambda path: path.name)
def test_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    run([sys.executable, "-"], tmp_path, notebook(path))  # as in a notebook, the program is no file
