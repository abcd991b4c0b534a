"""CartPole that fails when it is told to, through a file that the test and every environment have mapped."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
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
    """Can't be built in any worker process."""
    return gym.wrappers.TimeLimit(Homesick(home), 500)


class Quitting(CartPoleEnv):
    """Ends its process at its tenth step, if it is the first to come so far."""

    def __init__(self, code: int, mark: str) -> None:
        super().__init__()
        self.code, self.mark, self.steps = code, Path(mark), 0

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 10 and not self.mark.exists():
            self.mark.touch()
            os._exit(self.code)
        return super().step(action)


def quitting(code: int, mark: str) -> gym.Env[Any, Any]:
    """Ends the process of the first worker that plays ten steps."""
    return gym.wrappers.TimeLimit(Quitting(code, mark), 500)


class Talking(CartPoleEnv):
    """Prints at every reset, by Python, and past it if `raw`."""

    def __init__(self, raw: bool = True) -> None:
        super().__init__()
        self.raw = raw

    def reset(self, **wishes: Any) -> Any:
        print("an episode begins")
        if self.raw:
            os.write(1, b"an episode begins, says C\n")
        return super().reset(**wishes)


def talking(raw: bool = True) -> gym.Env[Any, Any]:
    """Prints to stdout."""
    return gym.wrappers.TimeLimit(Talking(raw), 500)


class Spoiled(CartPoleEnv):
    """While the file `mark` is there, its steps fail in processes whose name begins with `where`."""

    def __init__(self, mark: str, where: str = "", fault: str = "raise") -> None:
        super().__init__()
        self.mark, self.fault = Path(mark), fault
        self.here = multiprocessing.current_process().name.startswith(where)

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if self.here and self.mark.exists():
            if self.fault == "exit":
                os._exit(7)
            raise RuntimeError("out of milk")
        return super().step(action)


def spoiled(mark: str, where: str = "", fault: str = "raise") -> gym.Env[Any, Any]:
    """Fails while a file is there."""
    return gym.wrappers.TimeLimit(Spoiled(mark, where, fault), 500)


class Parenting(CartPoleEnv):
    """Starts two processes in a worker and never ends them; one has left for a session of its own."""

    def __init__(self, place: str) -> None:
        super().__init__()
        if multiprocessing.current_process().name == "MainProcess":
            return
        for apart in (False, True):
            child = subprocess.Popen(["sleep", "1000"], start_new_session=apart)
            Path(place, f"{os.getpid()}-{child.pid}").touch()


def parenting(place: str) -> gym.Env[Any, Any]:
    """Leaves processes behind."""
    return gym.wrappers.TimeLimit(Parenting(place), 500)


class Colourful(CartPoleEnv):
    """Raises a text that a terminal would obey."""

    def step(self, action: Any) -> Any:  # noqa: ARG002
        raise RuntimeError("\x1b[31mout of \x1b]0;title\x07paint\x1b[0m\r\x9b2J")


def colourful() -> gym.Env[Any, Any]:
    """Fails with escapes in its message."""
    return gym.wrappers.TimeLimit(Colourful(), 500)


def hang(native: bool) -> None:
    """For ever: asleep, or in native code that no signal gets out of."""
    while not native:
        time.sleep(1)
    mutex = ctypes.create_string_buffer(64)
    while True:
        ctypes.CDLL(None).pthread_mutex_lock(mutex)


class Hanging(CartPoleEnv):
    """Never returns from one of its methods; with a `mark`, from `step` and `reset` only while that file is there."""

    def __init__(self, where: str, native: bool = False, mark: str = "") -> None:
        super().__init__()
        self.where, self.native, self.mark = where, native, Path(mark)
        self._hang_in("building")

    def _hang_in(self, where: str) -> None:
        if self.where == where:
            hang(self.native)

    def _hang_while_marked(self, where: str) -> None:
        while self.where == where and self.mark.exists():
            time.sleep(0.01)

    def reset(self, **wishes: Any) -> Any:
        if self.mark.name:
            self._hang_while_marked("reset")
        else:
            self._hang_in("reset")
        return super().reset(**wishes)

    def step(self, action: Any) -> Any:
        self._hang_while_marked("step")
        return super().step(action)

    def close(self) -> None:
        self._hang_in("close")
        super().close()


def hanging(where: str, native: bool = False, mark: str = "") -> gym.Env[Any, Any]:
    """Hangs."""
    return gym.wrappers.TimeLimit(Hanging(where, native, mark), 500)
