"""The options of a run that is opened again, with what its directory does not keep."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from repertory.agents.network_registry import name_module
from repertory.environments.factory import name_environment
from repertory.errors import UserError
from repertory.runs.checkpoint import our_version
from repertory.runs.config import RunOptions, environment_options, from_dict
from repertory.runs.directory import RunDirectory
from repertory.runs.trust import require_trust
from repertory.user_code import is_lost


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
