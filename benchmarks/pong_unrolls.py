"""Agent steps per second of actor-critic systems on Pong, learning once from every step; prints one JSON line.

    python benchmarks/pong_unrolls.py --topology a3c
    python benchmarks/pong_unrolls.py --topology impala --threads 2
    python benchmarks/pong_unrolls.py --topology sample_factory

The Nature network on 84 × 84 × 4; rates are those after the first quarter of the time. `cpu` is the share of the
machine's cores that each role's processes used meanwhile, `rest` what other processes or none used.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import threading
import time
from collections import Counter
from typing import Any

import psutil

import repertory
from repertory import topologies
from repertory.runs import metrics
from repertory.runtime import usable_cores


def main() -> None:
    """Train for a while, and say how fast it was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="a3c")
    parser.add_argument("--environment", default="PongNoFrameskip-v4")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--envs-per-actor", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--unroll", type=int, default=20)
    parser.add_argument("--batch-unrolls", type=int, default=16)
    parser.add_argument("--queue", type=int, default=1)
    options = parser.parse_args()
    has_queue = hasattr(topologies.find(options.topology).options, "queue")
    watch = Cores()
    with tempfile.TemporaryDirectory() as directory:
        run = repertory.train(
            options.environment,
            topology=options.topology,
            actors=options.actors,
            envs_per_actor=options.envs_per_actor,
            threads=options.threads,
            env_steps=10**9,
            seconds=options.seconds * 4 / 3,
            eval_every=10**9,
            eval_episodes=1,
            eval_max_steps=1,
            checkpoint_every=10**9,
            log_every=200,
            runs_dir=directory,
            quiet=True,
            agent_options={"unroll": options.unroll, "batch_unrolls": options.batch_unrolls, "epochs": 1},
            topology_options={"queue": options.queue} if has_queue else {},
        )
        used = watch.stop()
        rows = metrics.read(run.directory / "metrics.jsonl")
    last = [row for row in rows if row["seconds"] <= options.seconds * 4 / 3][-1]
    first = next(row for row in rows if row["seconds"] > options.seconds / 3)
    seconds = last["seconds"] - first["seconds"]
    told = {key: value for key, value in last.items() if key.startswith(("busy/", "queue/", "policy_lag", "reply_ms"))}
    print(
        json.dumps(
            {
                "topology": options.topology,
                "actors": options.actors,
                "envs_per_actor": options.envs_per_actor,
                "threads": options.threads,
                "unroll": options.unroll,
                "batch_unrolls": options.batch_unrolls,
                "env_steps_per_s": round((last["env_steps"] - first["env_steps"]) / seconds, 1),
                "updates_per_s": round((last["updates"] - first["updates"]) / seconds, 2),
                "seconds": round(seconds, 1),
                "cpu": used,
                **told,
            }
        )
    )


class Cores:
    """Share of all cores that each role's processes use, from the time when their number stays."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._found: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        self._done.wait(20.0)
        began, before = time.monotonic(), _times()
        while not self._done.wait(1.0):
            now, passed = _times(), (time.monotonic() - began) * usable_cores()
            shares: Counter[str] = Counter()
            for pid, (role, seconds) in now.items():
                if pid in before:
                    shares[role] += (seconds - before[pid][1]) / passed
            self._found = {role: round(share, 3) for role, share in shares.items() if share > 0.002}
            self._found["rest"] = round(1.0 - sum(self._found.values()), 3)

    def stop(self) -> dict[str, Any]:
        """Shares by the names of the processes, which are those of their workers."""
        self._done.set()
        self._thread.join(5.0)
        return self._found


def _times() -> dict[int, tuple[str, float]]:
    """Names and CPU seconds of our processes."""
    found, me = {}, psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            found[process.pid] = ("driver" if process == me else process.name(), times.user + times.system)
    return found


if __name__ == "__main__":
    main()
