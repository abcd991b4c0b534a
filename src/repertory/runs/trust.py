"""Which of the user's code a run directory may make us import.

A run directory names code, but does not hold it: a file or a module with the environment, another with the network. Its
author may be somebody else. So code is imported for a run only if this user has trained with the same code and the same
options on this machine before, or says that it may be. What was trained with stands in a file outside of all run
directories, one line each: the file or module with its full path, and the environment's options. So a run may be moved
or copied, and nothing that is written into a run directory makes it trusted.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from repertory.errors import UserError
from repertory.runs.config import RunOptions
from repertory.runtime import state_directory
from repertory.user_code import code_named

TRUST = "add --trust (in Python trust=True) and it is imported"


def require_trust(options: RunOptions, run: Path, remedy: str = TRUST) -> None:
    """Refuse a run that would import code which this user has not trained with on this machine."""
    known = _remembered()
    foreign = [code for code, line in _lines(options) if line not in known]
    if foreign:
        raise UserError(
            f"{run} names code that you have not trained with on this machine: {' and '.join(foreign)}; if you trust "
            f"it, {remedy}"
        )


def remember(options: RunOptions) -> list[str]:
    """Keep what is trained with; a warning if that can't be done, which is no reason to stop."""
    try:
        new = {line for _, line in _lines(options)} - _remembered()
        if new:
            _add("".join(f"{line}\n" for line in sorted(new)))
    except (OSError, RuntimeError) as error:  # the latter if there is no home
        reason = getattr(error, "strerror", None) or error
        return [
            f"warning: the code of this run can't be remembered in {_path_or_name()} ({reason}); to resume or evaluate "
            "it later, add --trust"
        ]
    return []


def _lines(options: RunOptions) -> list[tuple[str, str]]:
    """The code that these options name, and for each what is remembered of it; one file may be both."""
    named = [(options.environment, list(options.env_option)), (options.network.module or "", [])]
    codes = [(code_named(name), own) for name, own in named]
    return [(code, json.dumps({"code": code, "options": own})) for code, own in codes if code is not None]


def _remembered() -> set[str]:
    try:
        return set(_path().read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError, RuntimeError):
        return set()


def _add(text: str) -> None:
    """In one write to the end of the file, so that runs that start at once do not mix their lines."""
    _path().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(_path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _path() -> Path:
    return state_directory() / "trained_with.jsonl"


def _path_or_name() -> str:
    try:
        return str(_path())
    except RuntimeError:
        return "~/.local/state"
