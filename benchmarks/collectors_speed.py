"""Speed of collectors in processes of their own, while learning; prints one JSON line.

    python benchmarks/collectors_speed.py slow --actors 16      # 5 ms of latency a step, 1 update of 128 per 16 steps
    python benchmarks/collectors_speed.py busy --actors 2       # 5 ms of computing a step
    python benchmarks/collectors_speed.py learner --actors 1    # CartPole, replay ratio 128: as fast as the learner can
    python benchmarks/collectors_speed.py collect --actors 1    # CartPole, replay ratio 1: as fast as collectors can

Rates are those between the first third of the time and its end, so that start-up and compiling do not count.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from typing import Any

import psutil

import repertory
from repertory.runs import metrics

SLOW = {"environment": "repertory/SlowCartPole-v1", "envs_per_actor": 1, "replay_ratio": 8.0, "updates_per_call": 16}
WORKLOADS: dict[str, dict[str, Any]] = {
    "slow": {**SLOW, "env_option": ("latency_s=0.005",)},
    "busy": {**SLOW, "env_option": ("latency_s=0.0", "busy_s=0.005")},
    "learner": {"environment": "CartPole-v1", "envs_per_actor": 16, "replay_ratio": 128.0, "updates_per_call": 32},
    "collect": {"environment": "CartPole-v1", "envs_per_actor": 512, "replay_ratio": 1.0, "updates_per_call": 32},
}


def main() -> None:
    """Run one workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--envs-per-actor", type=int)
    options = parser.parse_args()
    work = dict(WORKLOADS[options.workload])
    ratio, updates = work.pop("replay_ratio"), work.pop("updates_per_call")
    work["envs_per_actor"] = options.envs_per_actor or work["envs_per_actor"]
    began, memory = psutil.Process().create_time(), PeakMemory()
    called_at = time.time()
    with tempfile.TemporaryDirectory() as directory:
        run = repertory.train(
            **work,
            topology="collectors",
            topology_options={"pull_period": 20},
            actors=options.actors,
            env_steps=10**9,
            seconds=options.seconds,
            eval_every=10**9,
            eval_episodes=1,
            eval_max_steps=1,
            checkpoint_every=10**9,
            log_every=max(20, options.actors * work["envs_per_actor"] * 100),
            runs_dir=directory,
            quiet=True,
            agent_options={
                "batch_size": 128,
                "replay_ratio": ratio,
                "updates_per_call": updates,
                "learning_rate": 2.5e-4,
                "learning_rate_steps": 0,
                "n_step": 1,
                "double": False,
                "target_tau": 0.0,
                "target_period": 500,
                "replay_capacity": max(10_000, 200 * options.actors * work["envs_per_actor"]),
                "learning_starts": max(200, 2 * options.actors * work["envs_per_actor"]),
                "epsilon_start": 0.05,
                "epsilon_end": 0.05,
            },
        )
        rows = metrics.read(run.directory / "metrics.jsonl")
    last = rows[-1]
    first = next(row for row in rows if row["seconds"] > options.seconds / 3)
    seconds = last["seconds"] - first["seconds"]
    busy = {key: value for key, value in last.items() if key.startswith(("busy/", "queue/", "policy_lag"))}
    print(
        json.dumps(
            {
                "workload": options.workload,
                "actors": options.actors,
                "env_steps_per_s": round((last["env_steps"] - first["env_steps"]) / seconds, 1),
                "updates_per_s": round((last["updates"] - first["updates"]) / seconds, 1),
                "replay_ratio": last["replay_ratio"],
                "seconds": round(seconds, 1),
                "startup_s": round(run.result["startup_s"] + called_at - began, 2),
                "pss_mb": round(memory.stop(), 1),
                **busy,
            }
        )
    )


class PeakMemory:
    """Largest memory of this process and all below it, in MB, looked at every second; shared pages count once."""

    def __init__(self) -> None:
        self.peak, self._done = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(2.0):
            total = 0
            for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.peak = max(self.peak, total / 2**20)

    def stop(self) -> float:
        """The peak, and no more looking."""
        self._done.set()
        self._thread.join(5.0)
        return self.peak


if __name__ == "__main__":
    main()
