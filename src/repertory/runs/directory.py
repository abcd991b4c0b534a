"""The directory of one run, and the list of all runs.

    runs/cartpole-v1-s0-20261115-204500/
      config.json     the configuration, and its origin: versions, command line, git commit, start time
      spec.json       the environment's observations and actions: enough to act without it
      git.diff        changes not committed, if it was started in a git checkout; git1.diff those of a resume
      metrics.jsonl   tensorboard/   checkpoints/   result.json
      best/           a checkpoint that holds only the weights of the best evaluation
      events.jsonl    failures of workers with their tracebacks, restarts, warnings

JSON files are written beside their place and renamed, so they are whole or absent.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from repertory.errors import UserError, nearest
from repertory.output import aligned
from repertory.runtime import versions
from repertory.specs import EnvironmentSpec

DIFF_BYTES = 1_000_000
TAIL_BYTES = 1 << 16
DASH = "–"


def _git_state() -> tuple[dict[str, Any] | None, bytes]:
    """Of the current directory: the commit, whether tracked files differ from it, and the diff up to `DIFF_BYTES`."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None, b""
    diff = _git("diff", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD") or b""
    return {"commit": commit.decode().strip(), "dirty": bool(diff)}, diff[:DIFF_BYTES]


def _git(*arguments: str) -> bytes | None:
    """What git prints, or None if it fails (not installed, no checkout, no commit, too slow)."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        return subprocess.run(["git", *arguments], capture_output=True, timeout=10, check=True, env=environment).stdout
    except (OSError, subprocess.SubprocessError):
        return None


class RunDirectory:
    """The paths of a run's files, and how the small ones are read and written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path = path / "config.json"
        self.spec_path = path / "spec.json"
        self.metrics_path = path / "metrics.jsonl"
        self.result_path = path / "result.json"
        self.checkpoints = path / "checkpoints"
        self.best = path / "best"
        self.tensorboard = path / "tensorboard"

    @classmethod
    def create(cls, runs_dir: Path, name: str) -> RunDirectory:
        path = Path(runs_dir) / check_name(name)
        try:
            Path(runs_dir).mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except OSError as error:
            if path.exists():
                text = f"{path} exists; go on with 'repertory resume {name}', or choose another --name"
            else:
                text = f"{path} cannot be made: {error.strerror}; choose another --runs-dir"
            raise UserError(text) from None
        return cls(path)

    @classmethod
    def open(cls, path: str | Path, runs_dir: Path) -> RunDirectory:
        """An existing run, by its name in `runs_dir` or by its path."""
        places = [Path(runs_dir) / path, Path(path).expanduser()]
        for place in places:
            if (place / "config.json").is_file():
                return cls(place)
        if any(place.is_dir() for place in places):
            raise UserError(f"{path} is no run: it has no config.json")
        names = [found.name for found in _run_paths(Path(runs_dir))]
        known = nearest(Path(path).name, names) if names else f"; there are no runs in {runs_dir}"
        raise UserError(f"there is no run {str(path)!r}{known}")

    def add_event(self, text: str, env_steps: int) -> None:
        """Append to events.jsonl; a full disk does not stop the run."""
        line = json.dumps({"time": round(time.time(), 3), "env_steps": env_steps, "event": text})
        with suppress(OSError), (self.path / "events.jsonl").open("a") as file:
            file.write(line + "\n")

    def write_config(self, config: Mapping[str, Any], spec: EnvironmentSpec | None = None) -> None:
        """Save the configuration and the environment's spec; the first time with the run's origin, later with the
        origin of each resume."""
        first = not self.config_path.exists()
        try:
            self._write_config(config, first)
            if spec is not None:
                write_json(self.spec_path, spec.to_dict())
        except OSError as error:
            if first:
                shutil.rmtree(self.path, ignore_errors=True)  # its name is free again
            raise UserError(
                f"{self.path} cannot be written: {error.strerror or error}; make room, or choose another --runs-dir"
            ) from None

    def _write_config(self, config: Mapping[str, Any], first: bool) -> None:
        git, diff = _git_state()
        started = datetime.now(UTC).isoformat(timespec="seconds")
        origin = {"started": started, "command": sys.argv, "versions": versions(), "git": git}
        saved = {"origin": origin} if first else read_json(self.config_path)
        resumed = [] if first else [*saved.get("resumed", []), origin]
        if diff:
            (self.path / f"git{len(resumed) or ''}.diff").write_bytes(diff)
        write_json(self.config_path, {**saved, "config": dict(config), "resumed": resumed})

    def read_config(self) -> dict[str, Any]:
        """The configuration that was given to `write_config`."""
        return self._entry("config")

    def read_origin(self) -> dict[str, Any]:
        """The first start of the run: `started`, `command`, `versions`, `git`."""
        return self._entry("origin")

    def _entry(self, key: str) -> dict[str, Any]:
        value = read_json(self.config_path).get(key)
        if not isinstance(value, dict):
            raise UserError(f"{self.config_path} is not the configuration of a run: it has no {key!r}")
        return value

    def read_spec(self) -> EnvironmentSpec | None:
        """None if the run did not save it."""
        if not self.spec_path.exists():
            return None
        values = read_json(self.spec_path)
        try:
            return EnvironmentSpec.from_dict(values)
        except (KeyError, TypeError, AttributeError):
            raise UserError(f"{self.spec_path} does not describe an environment; restore it, or train again") from None

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Numbers that are not finite become null."""
        write_json(self.result_path, _finite(dict(result)))

    def read_result(self) -> dict[str, Any] | None:
        """None until the run has ended."""
        return read_json(self.result_path) if self.result_path.exists() else None

    def hold(self) -> AbstractContextManager[None]:
        """Lock the run against training by another process; the lock ends with this process."""
        return held(self.path, "is being trained by another process; stop that one first")


@contextmanager
def held(path: Path, otherwise: str, patience_s: float = 0.5) -> Iterator[None]:
    """Lock a directory; if another process holds the lock for longer, refuse with this text."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if not _lock(descriptor, patience_s):
            raise UserError(f"{path} {otherwise}")
        yield
    finally:
        os.close(descriptor)


def check_name(name: str) -> str:
    """Refuse a run's name that can't be a directory's name on any system."""
    if not name or name[0] in ".-" or len(name) > 200 or not re.fullmatch(r"[^/\\:*?\"<>|\x00-\x1f\x7f]+", name):
        raise UserError(f"{name!r} cannot be the name of a run; use letters, digits, '.', '_' and '-'")
    return name


def slug(environment: str) -> str:
    """An environment's name as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", environment.lower()).strip("-")[:80] or "run"


def fresh_name(environment: str, seed: int, now: datetime, runs_dir: Path | None = None) -> str:
    """`cartpole-v1-s0-20261115-204500`; with `runs_dir`, a name that is not taken there."""
    base = name = f"{slug(environment)}-s{seed}-{now:%Y%m%d-%H%M%S}"
    count = 1
    while runs_dir is not None and (runs_dir / name).exists():
        count += 1
        name = f"{base}-{count}"
    return name


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace the file whole, or leave it as it was."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; a `UserError` if there is none."""
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        raise UserError(f"{path} cannot be read as a JSON object") from None


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lock(descriptor: int, seconds: float) -> bool:
    """Whether the directory could be locked; tries for some seconds, as `repertory runs` locks it for an instant."""
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.02)
        except OSError:
            return True  # a file system without locks: better no guard than no training
        else:
            return True


# The list of runs


def _run_paths(runs_dir: Path) -> list[Path]:
    return sorted(path.parent for path in runs_dir.glob("*/config.json"))


def list_runs(runs_dir: Path) -> list[dict[str, Any]]:
    """A summary of every run, by the time of its last change, oldest first; damaged files do not hide a run."""
    return sorted((_summary(RunDirectory(path)) for path in _run_paths(runs_dir)), key=lambda run: str(run["updated"]))


def runs_table(runs: Sequence[Mapping[str, Any]]) -> str:
    head = ("name", "started", "topology", "agent", "status", "env steps", "score", "best")
    rows = [
        (
            run["name"],
            _local(run["started"]),
            run["topology"] or DASH,
            run["agent"] or DASH,
            run["status"],
            DASH if run["env_steps"] is None else f"{run['env_steps']:,}",
            *(DASH if score is None else f"{score:,.1f}" for score in (run["score"], run["best"])),
        )
        for run in runs
    ]
    return aligned([head, *rows], numbers=3)


def _local(started: str | None) -> str:
    """The local time, to the minute."""
    try:
        return f"{datetime.fromisoformat(started or '').astimezone():%Y-%m-%d %H:%M}"
    except ValueError:
        return DASH


def _summary(run: RunDirectory) -> dict[str, Any]:
    result: dict[str, Any] = {}
    written: dict[str, Any] = {}
    with suppress(UserError):
        result = read_json(run.result_path)
    with suppress(UserError):
        written = read_json(run.config_path)
    entries = (written.get("config"), written.get("origin"), result.get("best"))
    config, origin, best = ((entry if isinstance(entry, dict) else {}) for entry in entries)
    seen = _last_values(run.metrics_path, ("env_steps", "score", "score_best"))
    files = [run.config_path, run.metrics_path, run.result_path]
    changed = max((file.stat().st_mtime for file in files if file.exists()), default=0.0)
    return {
        "name": run.path.name,
        "environment": config.get("environment"),
        "topology": config.get("topology_name"),
        "agent": config.get("agent_name"),
        "started": origin.get("started"),
        "status": _status(run.path, result),
        **{name: (seen | result).get(name) for name in ("env_steps", "score")},
        "best": best.get("mean", seen.get("score_best")),
        "updated": datetime.fromtimestamp(changed, UTC).isoformat(timespec="seconds"),
    }


def _status(path: Path, result: Mapping[str, Any]) -> str:
    """`running` while a process holds the run; else the result's status; without a result `interrupted`."""
    try:
        with held(path, "is running", patience_s=0):
            return str(result.get("status", "finished")) if result else "interrupted"
    except UserError:
        return "running"


def _last_values(jsonl: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    """The last value of each key near the end of the metrics; the whole file may be long."""
    if not jsonl.exists():
        return {}
    with jsonl.open("rb") as file:
        file.seek(max(0, jsonl.stat().st_size - TAIL_BYTES))
        lines = file.read().split(b"\n")
    found: dict[str, Any] = {}
    for line in lines:
        with suppress(ValueError):  # the first and the last line may be incomplete
            values = json.loads(line)
            found |= {key: values[key] for key in keys if values.get(key) is not None}
    return found
