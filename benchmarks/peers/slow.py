"""What the workload `slow` shares between peers: a CartPole-v1 that takes its time, and a process tree's memory."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import psutil

LATENCY = 0.005  # seconds a step
STEPS_PER_UPDATE = 16  # env steps
BATCH = 128
LEARNING_STARTS = 200  # env steps


class Slow(gym.Wrapper):
    """Sleeps before each step; a reset costs nothing."""

    def step(self, action: Any) -> Any:
        """The wrapped step, `LATENCY` later."""
        time.sleep(LATENCY)
        return self.env.step(action)


def warm_up(workers: int) -> int:
    """Env steps after which the clock starts."""
    return max(400, 100 * workers)


def pss_mb() -> float:
    """Memory now of this process and all below it, in MB; pages they share count once."""
    me, total = psutil.Process(), 0
    for process in (me, *me.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total / 2**20
