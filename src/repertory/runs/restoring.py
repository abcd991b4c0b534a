"""Which checkpoint of a run is loaded: the newest, the last exact one, the best, or one by its env step.

A damaged checkpoint does not hide a whole one behind it: unless the user named it, the one before it is taken, and
that is said. Nothing is deleted here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from repertory.errors import UserError
from repertory.runs import checkpoint
from repertory.runs.directory import RunDirectory

Say = Callable[[str], None]


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
    """Everything to go on from, or None to start from nothing, which a run without checkpoints does."""
    best = _load_best(directory, say) if which == "best" else None
    state = _load(_choose(directory, "newest" if which == "best" else which, say), say)
    if state is None:
        say("there is no checkpoint to go on from: starting at env step 0")
        return None
    say(f"going on from env step {state['env_steps']:,}" + _remark(directory, which, state["env_steps"]))
    if best is not None:
        _replace_weights(state, np.asarray(best["learner"]["learned"]["00"]))
    return state


def _remark(directory: RunDirectory, which: str, env_steps: int) -> str:
    """What the user may want to know of the choice."""
    if which == "best":
        return " with the weights of the best evaluation"
    steps, exact = _steps(directory), _steps(directory, exact=True)
    if which == "newest" and env_steps not in exact and exact:
        return f"; --from exact goes back to {max(exact):,}, from where a run on `inline` repeats bit for bit"
    if max(steps, default=0) > env_steps:
        return f"; the checkpoint of env step {max(steps):,} stays until newer ones take its place"
    return ""


def _choose(directory: RunDirectory, which: str, say: Say) -> list[Path]:
    """The checkpoints that will do, the first choice first."""
    found = checkpoint.whole(directory.checkpoints)
    if which == "newest":
        _name_damaged(directory, found, say)
        return found[::-1]
    if which == "exact":
        return _exact(directory, found)
    if not which.isdecimal():
        raise UserError(f"a checkpoint is newest, exact, best or a number of env steps, not {which!r}")
    steps = _steps(directory)
    if int(which) not in steps:
        known = ", ".join(map(str, sorted(steps))) or "none"
        raise UserError(f"{directory.path} has no checkpoint of env step {which}; there are: {known}")
    return [steps[int(which)]]


def _exact(directory: RunDirectory, found: list[Path]) -> list[Path]:
    """The newest first; a run that has others must not lose them to a start from nothing."""
    exact = list(_steps(directory, exact=True).values())[::-1]
    if found and not exact:
        known = ", ".join(map(str, sorted(_steps(directory)))) or "none"
        raise UserError(f"{directory.path} has no exact checkpoint; there are checkpoints of env steps: {known}")
    return exact


def _steps(directory: RunDirectory, *, exact: bool = False) -> dict[int, Path]:
    """Checkpoints by their env step, in the order written; of two with the same step the later one."""
    found: dict[int, Path] = {}
    for path in checkpoint.whole(directory.checkpoints):
        with suppress(UserError):  # of a newer version
            about = checkpoint.manifest(path)
            if about["exact"] or not exact:
                found[int(about["step"])] = path
    return found


def _name_damaged(directory: RunDirectory, whole: list[Path], say: Say) -> None:
    """Those beyond the newest whole one that are passed over."""
    newest = max((path.name for path in whole), default="")
    for path in sorted(directory.checkpoints.glob("step-*")):
        if path not in whole and path.name > newest:
            say(f"warning: {path} is damaged or incomplete, and is passed over")


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
    """The evaluation behind the best checkpoint, if there is one that can be read."""
    for path in checkpoint.whole(directory.best)[::-1]:
        try:
            return dict(checkpoint.load(path, parts=["evaluation"])["evaluation"])
        except UserError:
            continue
    return None


def _replace_weights(state: dict[str, Any], weights: np.ndarray[Any, Any]) -> None:
    """The online network's weights and, where there is one, the target's; the rest of the state stays."""
    learned = state["learner"]["learned"]
    for name in ("00", "01"):
        if np.shape(learned[name]) == weights.shape:
            learned[name] = weights.copy()
