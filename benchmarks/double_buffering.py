"""What a second group of environments gives where a step takes 2 ms; prints one JSON line.

    python benchmarks/double_buffering.py --groups 2
    python benchmarks/double_buffering.py --groups 1

`sample_factory` with one rollout worker whose environments wait 2 ms a step, one after the other, and a network
that takes as long to reply, which is measured beforehand: then each side waits for the other, unless there are two
groups. Most of it is an encoder that is not trained (`frozen_encoder.py`): learning from a step costs three times its
reply otherwise, and on two cores the learner, not the waiting, would set the pace.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import repertory
from repertory.runs import metrics

LATENCY_S = 0.002


def main() -> None:
    """Train for a while, and say how fast it was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--environments", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    os.chdir(Path(__file__).parent)  # where a run looks for the module
    half = options.environments // 2
    measure = [sys.executable, "frozen_encoder.py", "--rows", str(half), "--ms", str(half * LATENCY_S * 1e3)]
    depth = subprocess.check_output(measure, text=True)
    os.environ["FROZEN_DEPTH"] = depth.strip()
    with tempfile.TemporaryDirectory() as directory:
        run = repertory.train(
            "repertory/SlowCartPole-v1",
            topology="sample_factory",
            actors=1,
            envs_per_actor=options.environments,
            env_option=(f"latency_s={LATENCY_S}",),
            env_steps=10**9,
            seconds=options.seconds * 4 / 3,
            eval_every=10**9,
            eval_episodes=1,
            eval_max_steps=1,
            checkpoint_every=10**9,
            log_every=200,
            runs_dir=directory,
            quiet=True,
            network_options={"module": "frozen_encoder:build"},
            agent_options={"unroll": 32, "batch_unrolls": options.environments, "epochs": 1, "minibatches": 1},
            topology_options={"groups": options.groups, "queue": 2},
        )
        rows = metrics.read(run.directory / "metrics.jsonl")
    last = rows[-1]
    first = next(row for row in rows if row["seconds"] > options.seconds / 3)
    seconds = last["seconds"] - first["seconds"]
    told = {key: value for key, value in last.items() if key.startswith(("busy/", "reply_ms"))}
    rate = round((last["env_steps"] - first["env_steps"]) / seconds, 1)
    told |= {"depth": int(depth), "seconds": round(seconds, 1)}
    print(json.dumps({"groups": options.groups, "env_steps_per_s": rate, **told}))


if __name__ == "__main__":
    main()
