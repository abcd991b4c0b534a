"""Repertory: distributed deep reinforcement learning. One agent, one environment, one configuration."""

from repertory.runtime import cap_threads

cap_threads()

from repertory.api import Run, evaluate, resume, train  # noqa: E402
from repertory.errors import UserError  # noqa: E402

__all__ = ["Run", "UserError", "evaluate", "resume", "train"]
__version__ = "0.1.0"
