"""Where the time of an A3C worker on Pong goes, and how fast all cores could be at best; prints one JSON line.

    python benchmarks/pong_breakdown.py

One worker with 16 environments on one core, in this process: milliseconds of each part for one agent step, after a
warm-up. `ceiling` is what all cores would make if each ran such a worker and none disturbed another.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax

from repertory.engines import make_driver
from repertory.environments.vectors import Vectorised
from repertory.roles.hogwild_worker import HogwildWorker
from repertory.roles.inference import Rows
from repertory.runs.config import change
from repertory.runs.launch import prepare
from repertory.runs.presets import defaults
from repertory.runtime import cap_threads, keep_freed_memory, pinnable_cores, usable_cores

PARTS = {
    "environment": (Vectorised, "step"),
    "answer": (Rows, "__call__"),
    "gradient": (HogwildWorker, "_gradient_of_cached"),
    "update": (HogwildWorker, "_update"),
}


def main() -> None:
    """Play and learn for a while, with a clock around each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--environments", type=int, default=16)
    parser.add_argument("--unroll", type=int, default=20)
    options = parser.parse_args()
    cores = usable_cores()
    os.sched_setaffinity(0, set(pinnable_cores()[:1]))
    cap_threads()
    keep_freed_memory()
    spent: Counter[str] = Counter()
    for name, (kind, method) in PARTS.items():
        setattr(kind, method, timed(getattr(kind, method), name, spent))
    wishes = {"engine": "inline", "actors": 1, "envs_per_actor": options.environments, "env_steps": 10**9}
    asked = change(defaults("PongNoFrameskip-v4", "a3c", "a3c"), {**wishes, "threads": 1})
    plan = prepare(change(asked, {"agent": {"unroll": options.unroll}}))[1]
    driver = make_driver("inline", plan)
    driver.start()
    rounds = driver.rounds()
    play(rounds, options.seconds / 2)
    spent.clear()
    steps, began = driver.counters.env_steps, time.perf_counter()
    play(rounds, options.seconds)
    steps, passed = driver.counters.env_steps - steps, time.perf_counter() - began
    found = {name: round(1000 * seconds / steps, 3) for name, seconds in spent.items()}
    found["other"] = round(1000 * passed / steps - sum(found.values()), 3)
    total = 1000 * passed / steps
    print(json.dumps({"ms_per_step": found, "total_ms": round(total, 3), "ceiling": round(cores * 1000 / total, 1)}))
    driver.close()


def play(rounds: Any, seconds: float) -> None:
    """Rounds, until so much time has passed."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        next(rounds)


def timed(function: Callable[..., Any], name: str, spent: Counter[str]) -> Callable[..., Any]:
    """The same function; what it computes is waited for, so that no part pays for another."""

    def clocked(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        result = jax.block_until_ready(function(*arguments, **named))
        spent[name] += time.perf_counter() - began
        return result

    return clocked


if __name__ == "__main__":
    main()
