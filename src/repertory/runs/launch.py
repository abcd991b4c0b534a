"""Starting a run, and going on with one."""

from __future__ import annotations

import dataclasses
import shutil
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from repertory.engines import make_engine
from repertory.errors import UserError
from repertory.runs import checkpoint
from repertory.runs.config import RunOptions, from_dict, to_dict
from repertory.runs.directory import RunDirectory, fresh_name
from repertory.runs.session import History, Session, load_history
from repertory.runs.staging import check_memory, stage


def start(options: RunOptions, *, called_at: float | None = None) -> dict[str, Any]:
    """Train from nothing; returns the result."""
    called_at = called_at or time.time()
    options, plan, agent = stage(options)
    check_memory(plan)
    engine = make_engine(options.engine, plan, agent)
    name = options.name or fresh_name(options.environment, options.seed, datetime.now(), options.runs_dir)
    directory = RunDirectory.create(options.runs_dir, name)
    directory.write_config(to_dict(options))
    session = Session(options, engine, directory, History(), called_at=called_at, resumed=False)
    with directory.hold():
        return session.run()


def resume(
    directory: RunDirectory,
    *,
    env_steps: int | None = None,
    called_at: float | None = None,
    **view: bool,
) -> dict[str, Any]:
    """Go on with a run from its newest usable checkpoint; without one, from the start."""
    called_at = called_at or time.time()
    options = dataclasses.replace(from_dict(directory.read_config()), seconds=None, **view)  # type: ignore[arg-type]
    if env_steps is not None:
        options = dataclasses.replace(options, env_steps=env_steps)
    with directory.hold():
        path = choose_checkpoint(directory)
        _refuse_finished(directory, options)
        options, plan, agent = stage(options)
        check_memory(plan)
        engine = make_engine(options.engine, plan, agent)
        history = History()
        if path is not None:
            state = checkpoint.load(path)
            engine.load_state(state)
            history = load_history(state)
        history.resumes += 1
        _forget_later(directory, path)
        directory.write_config(to_dict(options))
        return Session(options, engine, directory, history, called_at=called_at, resumed=True).run()


def choose_checkpoint(directory: RunDirectory) -> Path | None:
    """The newest checkpoint that keeps the run exact.

    A run that ended by itself saved its last state at a moment when an uninterrupted run would not have cut its
    episodes; going on from the last regular checkpoint repeats those few steps and stays the same run, bit for bit.
    A run that was interrupted goes on from where it stopped.
    """
    found = checkpoint.whole(directory.checkpoints)
    result = directory.read_result() or {}
    if not found or result.get("status") not in ("completed", "solved"):
        return found[-1] if found else None
    exact = [path for path in found if checkpoint.manifest(path)["exact"]]
    if not exact and result["env_steps"] < directory.read_config()["checkpoint_every"]:
        return None  # it ended before its first regular checkpoint: what it made so far is quickly made again
    return (exact or found)[-1]


def _refuse_finished(directory: RunDirectory, options: RunOptions) -> None:
    result = directory.read_result() or {}
    steps = result.get("env_steps") or 0
    if result.get("status") in ("completed", "solved") and options.env_steps <= steps:
        raise UserError(
            f"{directory.path.name} has made its {steps} env steps already; give --env-steps above that to go on"
        )


def _forget_later(directory: RunDirectory, path: Path | None) -> None:
    """Checkpoints beyond the one that is gone on from belong to a future that is made anew."""
    found = checkpoint.whole(directory.checkpoints)
    for later in found[found.index(path) + 1 if path is not None else 0 :]:
        shutil.rmtree(later, ignore_errors=True)
