"""Every distributed system learns CartPole-v1: seconds, env steps and updates until 20 greedy episodes average 475.

    python benchmarks/all_learn.py                    # everything, 3 seeds: about 20 minutes on 2 cores
    python benchmarks/all_learn.py apex gorila        # only systems whose name contains one of these

Writes `benchmarks/results/all_learn.json` after every run; each row has the command that made it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "all_learn.json"
SHARED_ADAM = "--agent.optimizer adam --agent.optimizer-epsilon 1e-8 --agent.loss huber --agent.max-gradient-norm 10"
REPLAY = (
    f"--topology.method replay {SHARED_ADAM} --agent.double --agent.learning-rate 0.001 "
    "--agent.learning-rate-steps 50000 --agent.epsilon-steps 4000 --topology.exploration same "
    "--topology.target-steps 200 --envs-per-actor 16"
)
FOUR = "--actors 4 --agent.learning-rate-steps 800000"
SYSTEMS = {
    "collectors": "--topology collectors",
    "apex": "--topology apex",
    "parameter_server, asynchronous": "--topology parameter_server --topology.mode asynchronous",
    "parameter_server, synchronous": "--topology parameter_server --topology.mode synchronous",
    "parameter_server, bounded staleness": "--topology parameter_server --topology.mode bounded",
    "gorila, bundled": "--topology gorila --topology.memory local",
    "gorila, global replay": "--topology gorila --topology.memory shared",
    "hogwild, one-step Q": f"--topology hogwild --topology.method one_step_q {FOUR}",
    "hogwild, n-step Q": "--topology hogwild",
    "hogwild, Sarsa": f"--topology hogwild --topology.method sarsa {FOUR}",
    "hogwild, local replay": f"--topology hogwild {REPLAY}",
    "all_reduce": "--topology all_reduce",
    "all_reduce, float16": "--topology all_reduce --topology.compression float16",
    "all_reduce, int8": "--topology all_reduce --topology.compression int8",
    "all_reduce, topk 1 %": "--topology all_reduce --topology.compression topk --agent.learning-rate-steps 100000",
    "a3c": "--topology a3c",
    "ga3c": "--topology ga3c",
    "impala": "--topology impala",
    "impala, 2 learners": "--topology impala --topology.learners 2 --agent.batch-unrolls 8",
    "seed_rl, impala": "--topology seed_rl",
    "seed_rl, dqn": "--topology seed_rl --agent dqn",
    "sample_factory": "--topology sample_factory",
}


def train(options: str, seed: int, directory: str) -> dict[str, Any]:
    """One run through the command line; its result and what it sent."""
    words = f"train CartPole-v1 {options} --target-score 475 --env-steps 800000 --seconds 180 --seed {seed}"
    name = f"{abs(hash((options, seed)))}"
    command = [sys.executable, "-m", "repertory.cli", *shlex.split(words), "--json", "--runs-dir", directory]
    done = subprocess.run([*command, "--name", name], capture_output=True, text=True, timeout=400, check=False)
    if not done.stdout.strip():
        return {"seed": seed, "status": "failed", "error": done.stderr[-500:], "command": f"repertory {words}"}
    result = json.loads(done.stdout.splitlines()[-1])
    lines = (Path(directory) / name / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    kept = ("status", "score", "env_steps", "updates", "seconds", "startup_s", "restarts")
    sent = {key: last[key] for key in ("gradients", "bytes_sent") if last.get(key) is not None}
    lag = {key: last[key] for key in ("policy_lag_mean", "gradient_age_mean") if last.get(key) is not None}
    return {"seed": seed, **{key: result[key] for key in kept}, **sent, **lag, "command": f"repertory {words}"}


def main() -> None:
    """All systems that were asked for, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    chosen = [name for name in SYSTEMS if not options.only or any(word in name for word in options.only)]
    for name in chosen:
        rows = []
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            with tempfile.TemporaryDirectory() as directory:
                rows.append(train(SYSTEMS[name], seed, directory))
            row = rows[-1]
            print(name, {key: row.get(key) for key in ("seed", "status", "score", "env_steps", "updates", "seconds")})
            found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            found[name] = rows
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
