"""Starting a run, and going on with one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Any

from repertory.engines import make_driver
from repertory.engines.driver import Driver
from repertory.environments.hush import hushed
from repertory.errors import UserError
from repertory.runs.config import RunOptions, to_dict
from repertory.runs.directory import RunDirectory, check_name, fresh_name
from repertory.runs.opening import NOTHING, Supplied, read_options
from repertory.runs.progress import Progress, make_progress
from repertory.runs.restoring import load_state
from repertory.runs.session import History, Session, load_history
from repertory.runs.staging import check_memory, stage, warnings_of
from repertory.runs.trust import remember
from repertory.topologies.plan import Plan


def start(options: RunOptions, *, called_at: float | None = None) -> dict[str, Any]:
    """Train from nothing; returns the result."""
    called_at = called_at or time.time()
    if options.name is not None:
        check_name(options.name)
    with _view(options) as view:
        with view.busy("starting"):
            options, plan, _ = stage(options)
            check_memory(plan)
            engine = make_driver(options.engine, plan)
        with _closed_if_refused(engine):
            name = options.name or fresh_name(options.environment, options.seed, datetime.now(), options.runs_dir)
            directory = RunDirectory.create(options.runs_dir, name)
            directory.write_config(to_dict(options), plan.spec)
            _warn(options, plan, directory, view)
            session = Session(options, engine, directory, History(), view, called_at=called_at, resumed=False)
        with directory.hold():
            return session.run()


def resume(
    directory: RunDirectory,
    *,
    env_steps: int | None = None,
    start_from: str = "newest",
    called_at: float | None = None,
    supplied: Supplied = NOTHING,
    **quiet: bool,
) -> dict[str, Any]:
    """Go on with a run from one of its checkpoints: newest, exact, best, or one by its env step."""
    called_at = called_at or time.time()
    options = dataclasses.replace(read_options(directory, supplied), seconds=None, **quiet)  # type: ignore[arg-type]
    if env_steps is not None:
        options = dataclasses.replace(options, env_steps=env_steps)
    with directory.hold(), _view(options) as view:
        if start_from in ("newest", "best"):
            _refuse_finished(directory, options)
        with view.busy("loading"):
            options, plan, _ = stage(options)
            check_memory(plan)
            state = load_state(directory, start_from, view.note)
            engine = make_driver(options.engine, plan)
        with _closed_if_refused(engine):
            if state is not None:
                with view.busy("loading"):
                    engine.load_state(state)
            history = load_history(state)
            history.resumes += 1
            directory.write_config(to_dict(options), plan.spec)
            _warn(options, plan, directory, view)
            session = Session(options, engine, directory, history, view, called_at=called_at, resumed=True)
        return session.run()


@contextmanager
def _view(options: RunOptions) -> Iterator[Progress]:
    view = make_progress(
        quiet=options.quiet,
        json=options.json,
        title=f"{options.environment} · {options.agent_name} · {options.topology_name}",
        total_env_steps=options.env_steps,
        total_seconds=options.seconds,
    )
    with closing(view), hushed(options.quiet or options.json):
        yield view


def _warn(options: RunOptions, plan: Plan, directory: RunDirectory, view: Progress) -> None:
    """What works, but not as the user may think."""
    for text in [*remember(options), *(f"warning: {text}" for text in warnings_of(plan))]:
        view.note(text)
        directory.add_event(text, 0)


@contextmanager
def _closed_if_refused(engine: Driver) -> Iterator[None]:
    try:
        yield
    except BaseException:
        engine.close()
        raise


def _refuse_finished(directory: RunDirectory, options: RunOptions) -> None:
    result = directory.read_result() or {}
    steps = result.get("env_steps") or 0
    if result.get("status") in ("completed", "solved") and options.env_steps <= steps:
        raise UserError(
            f"{directory.path.name} has made its {steps} env steps already; give --env-steps above that to go on"
        )
