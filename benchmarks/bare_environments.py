"""What a machine allows: environments that sleep 5 ms a step, and nothing else; prints one JSON line.

    python benchmarks/bare_environments.py --actors 16

A thread for each environment, in one process for each core: no policy, no memory, no learner. A library that
collects from few such environments can hardly make more steps a second than this, at that moment, on that machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import threading
import time
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import gymnasium as gym

import repertory  # noqa: F401  # registers the environment
from repertory.runtime import pinnable_cores, wake_up_sharply

SETTLING = 1 / 3
"""Share of the time that is not counted."""


def step_all(core: int, environments: int, seconds: float, rate: Synchronized[Any]) -> None:
    """Step environments of one process, and add their steps a second to `rate`."""
    os.sched_setaffinity(0, {core})
    wake_up_sharply()
    counts, end = [0] * environments, time.monotonic() + seconds
    threads = [threading.Thread(target=_step, args=(index, counts, end)) for index in range(environments)]
    for thread in threads:
        thread.start()
    time.sleep(SETTLING * seconds)
    since, before = time.monotonic(), sum(counts)
    time.sleep(max(0.0, end - since))
    made, passed = sum(counts) - before, time.monotonic() - since
    for thread in threads:
        thread.join()
    with rate.get_lock():
        rate.value += made / passed


def _step(index: int, counts: list[int], end: float) -> None:
    env = gym.make("repertory/SlowCartPole-v1", latency_s=0.005, disable_env_checker=True)
    env.reset(seed=index)
    while time.monotonic() < end:
        _, _, terminated, truncated, _ = env.step(index % 2)
        if terminated or truncated:
            env.reset()
        counts[index] += 1


def main() -> None:
    """Measure one number of environments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    cores = pinnable_cores()[: options.actors]
    if not cores:
        raise SystemExit("this machine does not let a process keep to a core; measure on Linux")
    shares = [len(range(first, options.actors, len(cores))) for first in range(len(cores))]
    rate = multiprocessing.Value("d", 0.0)
    processes = [
        multiprocessing.Process(target=step_all, args=(core, share, options.seconds, rate))
        for core, share in zip(cores, shares, strict=True)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes) or not rate.value:
        raise SystemExit("an environment failed; see above")
    print(json.dumps({"actors": options.actors, "env_steps_per_s": round(rate.value, 1)}))


if __name__ == "__main__":
    main()
