"""What a run was started with: versions, command line, git commit and changes. Imports nothing of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

DIFF_BYTES = 1_000_000
PACKAGES = ("repertory", "jax", "jaxlib", "flax", "optax", "numpy", "gymnasium")


def origin_of_this_process() -> tuple[dict[str, Any], bytes]:
    """`started`, `command`, `versions` and `git`; and the diff of the current directory's git checkout."""
    git, diff = _git_state(Path.cwd())
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {"started": started, "command": sys.argv, "versions": versions(), "git": git}, diff


def versions() -> dict[str, str | None]:
    """Of Python and of the packages that decide what a run does; None where one is not installed."""
    found: dict[str, str | None] = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def _git_state(where: Path) -> tuple[dict[str, Any] | None, bytes]:
    """The commit and whether files under version control differ from it; and how, up to `DIFF_BYTES`."""
    commit = _git(where, "rev-parse", "HEAD")
    if commit is None:
        return None, b""
    diff = _git(where, "diff", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD") or b""
    return {"commit": commit.decode().strip(), "dirty": bool(diff)}, diff[:DIFF_BYTES]


def _git(where: Path, *arguments: str) -> bytes | None:
    """What git prints, or None if it cannot (not installed, no checkout, no commit, too slow)."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-C", str(where), *arguments]
    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=True, env=environment).stdout
    except (OSError, subprocess.SubprocessError):
        return None
