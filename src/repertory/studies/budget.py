"""How long each run of a study may be, the same for all, and when it is evaluated.

`seconds` are those of the wall clock from the first step on, evaluations included, for every topology. In `single` an
evaluation stops the training; in a company it is played beside it, on cores that the others would have had. A budget
of seconds is divided by the clock, as nobody knows the speeds beforehand: so all are evaluated equally often. A budget
of env steps is divided by env steps, also where seconds limit it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repertory.runs.config import RunOptions
from repertory.studies.options import StudyOptions

FOR_EVER = 10**12
"""Env steps that no run comes to."""


@dataclass(frozen=True)
class Budget:
    """What ends a run, whichever comes first, and how often it is evaluated until then."""

    seconds: float | None
    env_steps: int | None
    target: float | None
    eval_every: int
    eval_every_s: float | None

    @property
    def changes(self) -> dict[str, Any]:
        """As options of `train`; a checkpoint is only saved at the end, as saving takes time."""
        return {
            "seconds": self.seconds,
            "env_steps": self.env_steps or FOR_EVER,
            "target_score": self.target,
            "eval_every": self.eval_every,
            "eval_every_s": self.eval_every_s,
            "checkpoint_every": FOR_EVER,
            "keep_checkpoints": 1,
        }


def budget_of(asked: StudyOptions, runs: Sequence[RunOptions], fallback_s: float | None) -> Budget:
    """The same for all; what nobody asked for follows from the presets.

    With a target alone, runs may take as many env steps as the longest preset; the shortest one is divided.
    """
    seconds, env_steps = asked.seconds, asked.env_steps
    if seconds is None and env_steps is None and asked.target_score is None:
        seconds = fallback_s
    divided = env_steps
    if seconds is None and env_steps is None:
        env_steps, divided = max(run.env_steps for run in runs), min(run.env_steps for run in runs)
    return Budget(
        seconds,
        env_steps,
        asked.target_score,
        FOR_EVER if divided is None else max(1, divided // asked.evaluations),
        None if seconds is None or divided is not None else seconds / asked.evaluations,
    )


def in_words(seconds: float | None, env_steps: int, target: float | None) -> str:
    """For people: "60 s", "50,000 env steps", "until 475, at most 60 s"."""
    ends = [] if seconds is None else [f"{seconds:g} s"]
    ends += [] if env_steps >= FOR_EVER else [f"{env_steps:,} env steps"]
    most = " or ".join(ends)
    return most if target is None else f"until {target:g}, at most {most}"
