"""Repertory: distributed deep reinforcement learning. One agent, one environment, one configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repertory.errors import UserError
from repertory.experience.registration import register_with_gymnasium
from repertory.runtime import cap_threads

if TYPE_CHECKING:
    from repertory.api import Run, Study, compare, evaluate, resume, train

__all__ = ["Run", "Study", "UserError", "compare", "evaluate", "resume", "train"]
__version__ = "0.1.0"

cap_threads()
register_with_gymnasium()


def __getattr__(name: str) -> Any:
    """`train` and its kin on first use: they import JAX, which takes a second."""
    if name in __all__:
        from repertory import api

        return getattr(api, name)
    raise AttributeError(f"module 'repertory' has no attribute {name!r}")
