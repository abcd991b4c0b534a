"""Learning curves of several systems on one environment, one after the other; to `benchmarks/results/curves/`.

    python benchmarks/curves.py MinAtar/Breakout-v1 --env-steps 2000000
    python benchmarks/curves.py repertory/TMaze-v1 --systems impala impala,core --target-score 0.95

Each system runs by its preset with `--actors 2` on the `processes` engine; `,core` adds an LSTM of 32.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import repertory

HERE = Path(__file__).parent
SYSTEMS = ("a3c", "ga3c", "impala", "seed_rl", "sample_factory")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def train(environment: str, system: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run's evaluations."""
    topology, _, core = system.partition(",")
    changes: dict[str, Any] = {"network_options": {"core": 32}} if core else {}
    if options.env_steps:
        changes["env_steps"] = options.env_steps
    if options.target_score is not None:
        changes["target_score"] = options.target_score
    run = repertory.train(
        environment, topology=topology, actors=2, seed=seed, runs_dir=options.runs_dir, quiet=True, **changes
    )
    kept = ("status", "score", "env_steps", "updates", "seconds", "env_steps_per_s", "restarts", "evaluations")
    return {"system": system, "seed": seed, **{key: run.result[key] for key in kept}}


def plot(runs: list[dict[str, Any]], environment: str, path: Path) -> None:
    """Scores over env steps, and over seconds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
    systems = list(dict.fromkeys(run["system"] for run in runs))
    for run in runs:
        colour = COLOURS[systems.index(run["system"]) % len(COLOURS)]
        for axis, key in zip(axes, ("env_steps", "seconds"), strict=True):
            x = [evaluation[key] for evaluation in run["evaluations"]]
            y = [evaluation["mean"] for evaluation in run["evaluations"]]
            axis.plot(x, y, color=colour, linewidth=1.2, label=run["system"] if run["seed"] == 0 else None)
    axes[0].set(xlabel="env steps", ylabel="score of 20 greedy episodes", title=environment)
    axes[1].set(xlabel="seconds")
    axes[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    """Parse, train, save after every run, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment")
    parser.add_argument("--systems", nargs="*", default=SYSTEMS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--env-steps", type=int, default=0)
    parser.add_argument("--target-score", type=float, default=None)
    parser.add_argument("--runs-dir", type=Path, default=Path("/tmp/repertory-curves"))
    options = parser.parse_args()
    name = options.environment.replace("/", "-").lower()
    place = HERE / "results/curves" / f"{name}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    runs: list[dict[str, Any]] = json.loads(place.read_text()) if place.exists() else []
    for system in options.systems:
        for seed in range(options.seeds):
            runs = [run for run in runs if (run["system"], run["seed"]) != (system, seed)]
            runs.append(train(options.environment, system, seed, options))
            best = max(evaluation["mean"] for evaluation in runs[-1]["evaluations"])
            shown = {key: runs[-1][key] for key in ("status", "score", "env_steps", "seconds")}
            print(system, seed, {**shown, "best": best}, flush=True)
            place.write_text(json.dumps(runs, indent=1) + "\n")
    plot(runs, options.environment, HERE.parent / f"docs/figures/curves-{name}.svg")


if __name__ == "__main__":
    main()
