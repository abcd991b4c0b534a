"""A run that is opened again: its options, and which of the user's code its directory may make us import.

A run directory names code, but does not hold it: a file or a module with the environment, another with the network. Its
author may be somebody else. So code is imported for a run only if this user has trained with the same code and the same
options on this machine before, or says that it may be. What was trained with stands in a file outside of all run
directories, one line each: the file or module with its full path, and the environment's options. So a run may be moved
or copied, and nothing that is written into a run directory makes it trusted.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repertory.agents.networks import name_module
from repertory.environments.factory import name_environment
from repertory.errors import UserError
from repertory.runs.checkpoint import our_version
from repertory.runs.config import RunOptions, environment_options, from_dict
from repertory.runs.directory import RunDirectory
from repertory.runtime import state_directory
from repertory.user_code import code_named, is_lost

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


@dataclass(frozen=True)
class Supplied:
    """What somebody adds who opens a run: Python objects that it was made with, or other names, and trust."""

    environment: Any = None
    network_module: Any = None
    trust: bool = False


NOTHING = Supplied()


def read_options(directory: RunDirectory, supplied: Supplied = NOTHING, *, to_play: bool = True) -> RunOptions:
    """A run's options; refused if it names code that is not trusted, or Python objects that are not there.

    Unless somebody wants `to_play`, the environment's code is not needed.
    """
    options = from_dict(_refuse_older(directory, directory.read_config()))
    if not supplied.trust:
        named = _without(options, supplied)
        require_trust(named if to_play else dataclasses.replace(named, environment=""), directory.path)
    if supplied.environment is not None and to_play:
        name = name_environment(supplied.environment, environment_options(options))
        options = dataclasses.replace(options, environment=name)
    if supplied.network_module is not None:
        module = name_module(supplied.network_module)
        options = dataclasses.replace(options, network=dataclasses.replace(options.network, module=module))
    if to_play:
        _refuse_lost(directory, "environment", "environment", options.environment)
    _refuse_lost(directory, "network", "network_module", options.network.module or "")
    return options


def _refuse_older(directory: RunDirectory, values: dict[str, Any]) -> dict[str, Any]:
    if "company" not in values:
        return values
    older = (directory.read_origin().get("versions") or {}).get("repertory")
    raise UserError(
        f"{directory.path} is a run of an earlier repertory ({older}): its config.json has `company` where repertory "
        f"{our_version()} has `topology`, and its checkpoints have another format; train again, or use that version"
    )


def _without(options: RunOptions, supplied: Supplied) -> RunOptions:
    """Without the names in whose place something was supplied: whoever does that trusts it."""
    if supplied.environment is not None:
        options = dataclasses.replace(options, environment="")
    if supplied.network_module is not None:
        options = dataclasses.replace(options, network=dataclasses.replace(options.network, module=None))
    return options


def _refuse_lost(directory: RunDirectory, what: str, argument: str, name: str) -> None:
    if is_lost(name):
        option = argument.replace("_", "-")
        raise UserError(
            f"the {what} of {directory.path} was given as a Python object, {name}, which no file keeps; give it again: "
            f"{argument}=... in Python, or write it into a file for --{option} file.py:function"
        )
