"""Which topologies solve CartPole-v1 on a Ray cluster: of this machine, and of three hosts with all actors far away.

    python benchmarks/cluster_learning.py --seeds 0 1 2

Writes `benchmarks/results/cluster_learning.json` after every run. Hosts are network namespaces, all on the same cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cluster import BIN, Hosts

RESULTS = Path(__file__).parent / "results" / "cluster_learning.json"
TOPOLOGIES = (
    "collectors",
    "apex",
    "parameter_server",
    "gorila",
    "all_reduce",
    "impala",
    "seed_rl",
    "sample_factory",
)
KEPT = ("status", "score", "env_steps", "updates", "seconds", "start_up_s", "restarts")


def train(topology: str, seed: int, seconds: int, hosts: Hosts | None) -> dict[str, Any]:
    words = [str(BIN / "repertory"), "train", "CartPole-v1", "--topology", topology, "--engine", "ray", "--json"]
    words += ["--target-score", "475", "--seconds", str(seconds), "--seed", str(seed)]
    if hosts is not None:
        words = hosts[0].command([*words, "--address", hosts.head, "--topology.nodes", "far", "--actors", "4"])
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            words,
            cwd=directory,
            env=None if hosts is None else hosts.environment,
            capture_output=True,
            text=True,
            timeout=seconds + 240,
        )
    row: dict[str, Any] = {"topology": topology, "hosts": 1 if hosts is None else len(hosts.hosts), "seed": seed}
    if done.returncode:
        return {**row, "status": f"exit code {done.returncode}", "error": done.stderr[-2000:]}
    result = json.loads(done.stdout.splitlines()[-1])
    return row | {name: result[name] for name in KEPT if name in result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seconds", type=int, default=240)
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES)
    parser.add_argument("--only", choices=("here", "hosts"), default=None)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def record(row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)
        RESULTS.write_text(json.dumps({"command": sys.argv[1:], "rows": rows}, indent=1) + "\n")

    if options.only != "hosts":
        for topology in options.topologies:
            record(train(topology, options.seeds[0], options.seconds, None))
    if options.only != "here":
        with Hosts(3) as hosts:
            for seed in options.seeds:
                for topology in options.topologies:
                    record(train(topology, seed, options.seconds, hosts))


if __name__ == "__main__":
    main()
