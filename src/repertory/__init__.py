"""Repertory: distributed deep reinforcement learning. One agent, one environment, one configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repertory.environments import register_with_gymnasium
from repertory.errors import UserError
from repertory.runtime import cap_threads, use_dummy_display

if TYPE_CHECKING:
    from repertory.api import Run, Study, compare, evaluate, load, resume, train
    from repertory.runs.player import TrainedAgent

__all__ = ["Run", "Study", "TrainedAgent", "UserError", "compare", "evaluate", "load", "resume", "train"]
__version__ = "0.1.0"

cap_threads()
use_dummy_display()
register_with_gymnasium()


def __dir__() -> list[str]:
    """Also the names that are not imported yet."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import the API on first use, as JAX takes a second."""
    if name in __all__:
        from repertory import api

        return getattr(api, name)
    raise AttributeError(f"module 'repertory' has no attribute {name!r}")
