"""Central against local inference: `seed_rl` beside `impala`; writes `benchmarks/results/central_local.json`.

    python benchmarks/central_local.py --seconds 20 --repeats 3

1, 2 and 4 actors with 8 environments each, on CartPole-v1 and Pong: env steps/s, milliseconds until an action's reply,
and policy lag in updates. Both topologies in turn, medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEPT = ("env_steps_per_s", "reply_ms", "policy_lag_mean", "policy_lag_p95", "updates_per_s")


def measure(topology: str, environment: str, actors: int, seconds: float) -> dict[str, Any]:
    """One run of the speed script."""
    command = [sys.executable, str(HERE / "pong_unrolls.py"), "--topology", topology, "--environment", environment]
    command += ["--actors", str(actors), "--seconds", str(seconds), "--batch-unrolls", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {key: found.get(key) for key in KEPT}


def main() -> None:
    """Measure in turn, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    table = []
    for environment in ("CartPole-v1", "PongNoFrameskip-v4"):
        for actors in (1, 2, 4):
            runs: dict[str, list[dict[str, Any]]] = {"seed_rl": [], "impala": []}
            for _ in range(options.repeats):
                for topology, found in runs.items():
                    found.append(measure(topology, environment, actors, options.seconds))
            for topology, found in runs.items():
                medians = {key: statistics.median(run[key] for run in found if run[key] is not None) for key in KEPT}
                table.append({"environment": environment, "topology": topology, "actors": actors, **medians})
                print(json.dumps(table[-1]), flush=True)
    (HERE / "results/central_local.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
