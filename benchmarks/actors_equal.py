"""More actors must not change what is learned from a step: the score per env step with 1, 4 and 16 collectors.

    python benchmarks/actors_equal.py      # 3 × 5 runs, about 5 minutes on 2 cores

CartPole-v1, 16 environments in all, the same replay ratio. The mean over all evaluations of a run (its learning curve's
height), and the last one, with 95 % intervals over the seeds. Writes `benchmarks/results/actors_equal.json`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import repertory

RESULTS = Path(__file__).parent / "results" / "actors_equal.json"
ENVIRONMENTS = 16
STUDENT = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 8: 2.365, 10: 2.262}
"""Two-sided 95 % points of Student's t, by the number of seeds."""


def main() -> None:
    """Every number of actors with every seed, in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--env-steps", type=int, default=40_000)
    options = parser.parse_args()
    runs: dict[int, list[dict[str, Any]]] = {actors: [] for actors in options.actors}
    for seed, actors in itertools.product(range(options.seeds), options.actors):
        runs[actors].append(train(actors, seed, options.env_steps))
        print(actors, runs[actors][-1], flush=True)
    summary = {
        key: {actors: interval([run[key] for run in rows]) for actors, rows in runs.items()}
        for key in ("mean_score", "last_score")
    }
    found = {"env_steps": options.env_steps, "summary": summary, "runs": runs}
    found["overlap"] = {key: overlap(list(rows.values())) for key, rows in summary.items()}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({"summary": summary, "overlap": found["overlap"]}))


def train(actors: int, seed: int, env_steps: int) -> dict[str, Any]:
    """One run, evaluated every 4,000 env steps."""
    with tempfile.TemporaryDirectory() as directory:
        run = repertory.train(
            "CartPole-v1",
            topology="collectors",
            actors=actors,
            envs_per_actor=ENVIRONMENTS // actors,
            env_steps=env_steps,
            eval_every=4_000,
            checkpoint_every=10**9,
            seed=seed,
            runs_dir=directory,
            quiet=True,
            agent_options={"learning_rate_steps": env_steps},
        )
    scores = [evaluation["mean"] for evaluation in run.result["evaluations"]]
    return {
        "seed": seed,
        "mean_score": round(statistics.mean(scores), 2),
        "last_score": scores[-1],
        "evaluations": [(e["env_steps"], e["mean"]) for e in run.result["evaluations"]],
        "updates": run.result["updates"],
        "seconds": run.result["seconds"],
    }


def interval(values: list[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval."""
    mean = statistics.mean(values)
    half = STUDENT[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return round(mean, 2), round(mean - half, 2), round(mean + half, 2)


def overlap(intervals: list[tuple[float, float, float]]) -> bool:
    """Whether every two intervals have a point in common."""
    return max(low for _, low, _ in intervals) <= min(high for _, _, high in intervals)


if __name__ == "__main__":
    main()
