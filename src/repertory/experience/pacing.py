"""How much may be learned from how much was seen; plain arithmetic.

The replay ratio (samples learned per env step) is kept whatever the speeds of those who play and those who learn, so
the number of actors changes how fast, never how much is learned from a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Pacing:
    """Counts samples learned against env steps seen, from `learning_starts` on."""

    replay_ratio: float
    batch_size: int
    learning_starts: int
    updates: int = 0

    def owed(self, env_steps: int) -> int:
        """Updates that may be made now; a late start is not caught up in a burst."""
        seen = env_steps - self.learning_starts
        return max(0, int(seen * self.replay_ratio / self.batch_size) - self.updates)

    def due_at(self, updates: int) -> int:
        """The first count of env steps at which so many more updates will be owed."""
        at = self.learning_starts + math.floor((self.updates + updates) * self.batch_size / self.replay_ratio) - 1
        while self.owed(at) < updates:  # a step or two: division rounds
            at += 1
        return at

    def made(self, updates: int) -> None:
        """That many updates were made."""
        self.updates += updates
