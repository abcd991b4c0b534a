"""Twenty minutes of `collectors` with a full replay: does memory or a queue grow? Prints one JSON line.

    nice python benchmarks/soak.py --minutes 20

The slope is that of a straight line through the memory of all processes (RSS, shared pages counted in each) after the
first quarter of the time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

import repertory
from repertory.runs import metrics

RESULTS = Path(__file__).parent / "results" / "soak.json"


def main() -> None:
    """Run, fit, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        run = repertory.train(
            "CartPole-v1",
            topology="collectors",
            actors=2,
            env_steps=10**9,
            seconds=options.minutes * 60,
            log_every=20_000,
            eval_every=100_000,
            checkpoint_every=500_000,
            runs_dir=directory,
            quiet=True,
            agent_options={"replay_ratio": 16.0, "learning_rate_steps": 0, "prioritized": True},
        )
        rows = metrics.read(run.directory / "metrics.jsonl")
    minutes = np.array([row["seconds"] / 60 for row in rows])
    keys = [key for key in rows[-1] if key.startswith("rss_mb")]
    late = minutes > options.minutes / 4
    slopes = {}
    for key in keys:
        values = np.array([row.get(key) or np.nan for row in rows])
        kept = late & np.isfinite(values)
        slopes[key] = round(float(np.polyfit(minutes[kept], values[kept], 1)[0]), 4)
    queue = np.array([row["queue/memory"] for row in rows])
    result = {
        "minutes": round(float(minutes[-1]), 1),
        "env_steps": rows[-1]["env_steps"],
        "updates": rows[-1]["updates"],
        "replay_size": rows[-1]["replay_size"],
        "rss_mb_at_end": {key: rows[-1][key] for key in keys},
        "rss_mb_per_minute": slopes,
        "rss_mb_per_minute_all": round(sum(slopes.values()), 4),
        "queue_first_half": float(queue[: len(queue) // 2].mean()),
        "queue_second_half": float(queue[len(queue) // 2 :].mean()),
        "queue_max": int(queue.max()),
        "restarts": run.result["restarts"],
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
