"""CartPole that fails when it is told to, through a file that the test and every environment have mapped."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

RAISE, HANG, NAN_OBSERVATION, NAN_REWARD = 1, 2, 3, 4
FAULTS = {"exception": RAISE, "hang": HANG, "nan observation": NAN_OBSERVATION, "nan reward": NAN_REWARD}


class Control:
    """What environments are told: in process `pid` do `fault` at the next step; a step takes `pause_us` more."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(4 * 8))
        self.words: NDArray[np.int64] = np.memmap(path, np.int64, "r+", shape=(4,))

    def order(self, pid: int, fault: str) -> None:
        """One fault, once."""
        self.words[1] = FAULTS[fault]
        self.words[0] = pid

    def obey(self, pid: int) -> int:
        """The environment's: what is to be done now; 0 = nothing."""
        if self.words[0] != pid:
            return 0
        self.words[0] = 0
        return int(self.words[1])

    @property
    def pause_us(self) -> int:
        """How long a step takes besides what it takes."""
        return int(self.words[2])

    @pause_us.setter
    def pause_us(self, microseconds: int) -> None:
        self.words[2] = microseconds


class Ordered(CartPoleEnv):
    """CartPole's physics to the bit, but for the faults that were ordered."""

    def __init__(self, control: str) -> None:
        super().__init__()
        self.control, self.pid = Control(Path(control)), os.getpid()

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if self.control.words[2]:
            time.sleep(self.control.pause_us / 1e6)
        fault = self.control.obey(self.pid)
        if fault == RAISE:
            raise RuntimeError("out of coins")
        if fault == HANG:
            time.sleep(10_000)
        observation, reward, terminated, truncated, info = super().step(action)
        if fault == NAN_OBSERVATION:
            observation[2] = np.nan
        return observation, float("nan") if fault == NAN_REWARD else reward, terminated, truncated, info


def ordered(control: str) -> gym.Env[Any, Any]:
    """Fails on order."""
    return gym.wrappers.TimeLimit(Ordered(control), 500)


class Unlucky(CartPoleEnv):
    """Raises at a step with this chance, drawn from the stream of its seed: no two of a process fail in step."""

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.chance = chance

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if self.np_random.random() < self.chance:
            raise RuntimeError("out of luck")
        return super().step(action)


def unlucky(chance: float) -> gym.Env[Any, Any]:
    """Fails by chance."""
    return gym.wrappers.TimeLimit(Unlucky(chance), 500)


class Homesick(CartPoleEnv):
    """Works in the process `home` only."""

    def __init__(self, home: int) -> None:
        super().__init__()
        if os.getpid() != home:
            raise RuntimeError("far from home")


def homesick(home: int) -> gym.Env[Any, Any]:
    """Can't be built by any member."""
    return gym.wrappers.TimeLimit(Homesick(home), 500)
