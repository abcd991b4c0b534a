"""A saved run is opened again: its options, the user's code that it may import, and which checkpoint is loaded.

A run directory names code, but does not hold it: a file or a module with the environment, another with the network. The
directory may come from another person. So code is imported for a run only if this user has trained with the same code
and the same options on this machine before, or allows it with --trust. A file outside of all run directories lists what
the user trained with, one line each: the file or module with its full path, and the environment's options. So a run may
be moved or copied, and nothing that is written into a run directory makes it trusted.

A damaged checkpoint does not hide a whole one before it: unless the user named the damaged one, the one before it is
loaded, with a warning. Nothing is deleted here.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from repertory.agents.networks import name_module
from repertory.environments.factory import name_environment
from repertory.errors import UserError
from repertory.runs import checkpoint
from repertory.runs.config import RunOptions, environment_options, from_dict
from repertory.runs.directory import RunDirectory
from repertory.runtime import state_directory
from repertory.user_code import code_named, is_lost

Say = Callable[[str], None]
TRUST = "add --trust (in Python trust=True) and it is imported"


def require_trust(options: RunOptions, run: Path, remedy: str = TRUST) -> None:
    """Refuse a run that would import code which this user has not trained with on this machine."""
    known = _remembered()
    foreign = [code for code, line in _trusted_lines(options) if line not in known]
    if foreign:
        raise UserError(
            f"{run} names code that you have not trained with on this machine: {' and '.join(foreign)}; if you trust "
            f"it, {remedy}"
        )


def remember(options: RunOptions) -> list[str]:
    """Add this run's code to the list of what the user trained with; returns a warning if that fails."""
    path = "~/.local/state"
    try:
        path = str(_trust_path())
        new = {line for _, line in _trusted_lines(options)} - _remembered()
        if new:
            _append("".join(f"{line}\n" for line in sorted(new)))
    except (OSError, RuntimeError) as error:  # the latter if there is no home
        reason = getattr(error, "strerror", None) or error
        return [
            f"warning: the code of this run can't be remembered in {path} ({reason}); to resume or evaluate it later, "
            "add --trust"
        ]
    return []


def _trusted_lines(options: RunOptions) -> list[tuple[str, str]]:
    """The code that these options name, and for each the line that is remembered; one file may be both."""
    named = [(options.environment, list(options.env_option)), (options.network.module or "", [])]
    codes = [(code_named(name), own) for name, own in named]
    return [(code, json.dumps({"code": code, "options": own})) for code, own in codes if code is not None]


def _trust_path() -> Path:
    return state_directory() / "trained_with.jsonl"


def _remembered() -> set[str]:
    try:
        return set(_trust_path().read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError, RuntimeError):
        return set()


def _append(text: str) -> None:
    """In one write to the end of the file, so that runs that start together do not mix their lines."""
    _trust_path().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(_trust_path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Supplied:
    """What the caller adds to a saved run: the Python objects that it was made with, or other names, and trust."""

    environment: Any = None
    network_module: Any = None
    trust: bool = False


NOTHING = Supplied()


def read_options(directory: RunDirectory, supplied: Supplied = NOTHING, *, to_play: bool = True) -> RunOptions:
    """A run's options; refused if it names code that is not trusted, or Python objects that were not given again.

    Unless it is opened `to_play`, the environment's code is not needed.
    """
    options = from_dict(_refuse_older(directory, directory.read_config()))
    if not supplied.trust:
        named = options  # without the names that the caller replaces, and so trusts
        if supplied.environment is not None or not to_play:
            named = dataclasses.replace(named, environment="")
        if supplied.network_module is not None:
            named = with_module(named, None)
        require_trust(named, directory.path)
    if supplied.environment is not None and to_play:
        name = name_environment(supplied.environment, environment_options(options))
        options = dataclasses.replace(options, environment=name)
    if supplied.network_module is not None:
        options = with_module(options, name_module(supplied.network_module))
    if to_play:
        _refuse_lost(directory, "environment", "environment", options.environment)
    _refuse_lost(directory, "network", "network_module", options.network.module or "")
    return options


def with_module(options: RunOptions, module: str | None) -> RunOptions:
    return dataclasses.replace(options, network=dataclasses.replace(options.network, module=module))


def _refuse_older(directory: RunDirectory, values: dict[str, Any]) -> dict[str, Any]:
    if "company" not in values:
        return values
    older = (directory.read_origin().get("versions") or {}).get("repertory")
    raise UserError(
        f"{directory.path} is a run of an earlier repertory ({older}): its config.json has `company` where repertory "
        f"{checkpoint.our_version()} has `topology`, and its checkpoints have another format; train again, or use that "
        "version"
    )


def _refuse_lost(directory: RunDirectory, what: str, argument: str, name: str) -> None:
    if is_lost(name):
        option = argument.replace("_", "-")
        raise UserError(
            f"the {what} of {directory.path} was given as a Python object, {name}, which no file keeps; give it again: "
            f"{argument}=... in Python, or write it into a file for --{option} file.py:function"
        )


# Which checkpoint is loaded: the newest, the last exact one, the best, or one by its env step


def load_weights(directory: RunDirectory, which: str, say: Say) -> dict[str, Any]:
    """The learner's part of a checkpoint: of `best` its weights only."""
    if which == "best":
        found: dict[str, Any] | None = _load_best(directory, say)
    else:
        found = _load(_choose(directory, which, say), say, parts=["learner"])
    if found is None:
        raise UserError(f"{directory.path} has no whole checkpoint yet; train or resume it first")
    learner: dict[str, Any] = found["learner"]
    return learner


def load_state(directory: RunDirectory, which: str, say: Say) -> dict[str, Any] | None:
    """Everything to continue from; None if the run has no checkpoint."""
    best = _load_best(directory, say) if which == "best" else None
    state = _load(_choose(directory, "newest" if which == "best" else which, say), say)
    if state is None:
        say("no checkpoint found: starting at env step 0")
        return None
    say(f"going on from env step {state['env_steps']:,}" + _remark(directory, which, state["env_steps"]))
    if best is not None:
        weights = np.asarray(best["learner"]["learned"]["00"])
        learned = state["learner"]["learned"]
        for name in ("00", "01"):  # the online network and, if there is one, the target network
            if np.shape(learned[name]) == weights.shape:
                learned[name] = weights.copy()
    return state


def _remark(directory: RunDirectory, which: str, env_steps: int) -> str:
    """A hint about other checkpoints, or empty."""
    if which == "best":
        return " with the weights of the best evaluation"
    steps, exact = _steps(directory), _steps(directory, exact=True)
    if which == "newest" and env_steps not in exact and exact:
        return f"; --from exact goes back to {max(exact):,}, from where a run on `inline` repeats bit for bit"
    if max(steps, default=0) > env_steps:
        return f"; the checkpoint of env step {max(steps):,} stays until newer ones take its place"
    return ""


def _choose(directory: RunDirectory, which: str, say: Say) -> list[Path]:
    """The possible checkpoints, the first choice first."""
    found, steps = checkpoint.whole(directory.checkpoints), _steps(directory)
    known = ", ".join(map(str, sorted(steps))) or "none"
    if which == "newest":
        newest = max((path.name for path in found), default="")
        for path in sorted(directory.checkpoints.glob("step-*")):
            if path not in found and path.name > newest:
                say(f"warning: {path} is damaged or incomplete, and is passed over")
        return found[::-1]
    if which == "exact":
        exact = list(_steps(directory, exact=True).values())[::-1]
        if found and not exact:  # a run that has others must not lose them to a start from nothing
            raise UserError(f"{directory.path} has no exact checkpoint; there are checkpoints of env steps: {known}")
        return exact
    if not which.isdecimal():
        raise UserError(f"a checkpoint is newest, exact, best or a number of env steps, not {which!r}")
    if int(which) not in steps:
        raise UserError(f"{directory.path} has no checkpoint of env step {which}; there are: {known}")
    return [steps[int(which)]]


def _steps(directory: RunDirectory, *, exact: bool = False) -> dict[int, Path]:
    """Checkpoints by their env step, in the order written; of two with the same step the later one."""
    found: dict[int, Path] = {}
    for path in checkpoint.whole(directory.checkpoints):
        with suppress(UserError):  # of a newer version
            about = checkpoint.manifest(path)
            if about["exact"] or not exact:
                found[int(about["step"])] = path
    return found


def _load(choices: list[Path], say: Say, parts: Collection[str] | None = None) -> dict[str, Any] | None:
    """The first that can be read; the first one's error if none can."""
    refused: list[UserError] = []
    for path in choices:
        try:
            state = checkpoint.load(path, parts=parts)
        except UserError as error:
            refused.append(error)
            continue
        for reason in refused:
            say(f"warning: {reason}; taking {path.name} instead")
        return state
    if refused:
        raise refused[0]
    return None


def _load_best(directory: RunDirectory, say: Say) -> dict[str, Any]:
    found = _load(checkpoint.whole(directory.best)[::-1], say)
    if found is None:
        raise UserError(f"{directory.path} has no best checkpoint: no evaluation of it was finished")
    return found


def best_evaluation(directory: RunDirectory) -> dict[str, Any] | None:
    """The evaluation of the best checkpoint, if there is one that can be read."""
    with suppress(UserError):
        found = _load(checkpoint.whole(directory.best)[::-1], lambda _: None, parts=["evaluation"])
        return None if found is None else dict(found["evaluation"])
    return None
