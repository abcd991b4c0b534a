"""GA3C's adjustment from a bad start against a grid of fixed settings; writes `benchmarks/results/ga3c_adjust.json`.

    python benchmarks/ga3c_adjust.py --seconds 240

On `repertory/SlowCartPole-v1` with 5 ms of latency: started with 1 predictor, 1 trainer and 2 agents, up to 3, 3 and
24. The path goes into the record, and with matplotlib into `docs/figures/ga3c_adjust.svg`.
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
from repertory.runs import metrics

HERE = Path(__file__).parent
MOST = (3, 3, 24)
RECORD = HERE / "results/ga3c_adjust.json"


def train(seconds: float, numbers: tuple[int, int, int], adjust: tuple[int, int, int] | None, period: float) -> Any:
    """Rows of metrics of one run."""
    predictors, trainers, agents = numbers
    with tempfile.TemporaryDirectory() as directory:
        run = repertory.train(
            "repertory/SlowCartPole-v1",
            topology="ga3c",
            actors=agents,
            envs_per_actor=1,
            env_option=("latency_s=0.005",),
            env_steps=10**9,
            seconds=seconds,
            eval_every=10**9,
            eval_episodes=1,
            eval_max_steps=1,
            checkpoint_every=10**9,
            log_every=50,
            runs_dir=directory,
            quiet=True,
            agent_options={"unroll": 5, "batch_unrolls": 2},
            company_options={
                "predictors": predictors,
                "trainers": trainers,
                "adjust_from": adjust or (),
                "adjust_s": period,
                "queue": 2,
            },
        )
        return metrics.read(run.directory / "metrics.jsonl")


def rate(rows: list[dict[str, Any]], start: float, end: float) -> float:
    """Trainings a second between two times."""
    inside = [row for row in rows if start <= row["seconds"] <= end]
    return float((inside[-1]["updates"] - inside[0]["updates"]) / (inside[-1]["seconds"] - inside[0]["seconds"]))


def measure_grid(seconds: float) -> list[dict[str, Any]]:
    """Trainings a second of fixed settings."""
    grid = []
    for setting in itertools.product((1, 2, 3), (1, 2, 3), (8, 16, 24)):
        rows = train(seconds, setting, None, 1.0)
        grid.append({"setting": setting, "trainings_per_s": round(rate(rows, seconds / 3, seconds), 1)})
        print(json.dumps(grid[-1]), flush=True)
    return grid


def main() -> None:
    """Grid, then the adjustment, with the best of the grid again before and after it: machines change their speed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--fixed-seconds", type=float, default=12.0)
    parser.add_argument("--period", type=float, default=4.0)
    parser.add_argument("--keep-grid", action="store_true", help="take the grid of the record that there is")
    options = parser.parse_args()
    short = options.fixed_seconds
    grid = json.loads(RECORD.read_text())["grid"] if options.keep_grid else measure_grid(short)
    best = max(grid, key=lambda row: row["trainings_per_s"])

    def best_again() -> list[float]:
        return [rate(train(short, best["setting"], None, 1.0), short / 3, short) for _ in range(2)]

    again = best_again()
    rows = train(options.seconds, MOST, (1, 1, 2), options.period)
    again += best_again()
    bad = train(short, (1, 1, 2), None, 1.0)
    reached = rate(rows, options.seconds / 2, options.seconds)
    names = ("at_work/predictors", "at_work/trainers", "at_work/agents")
    path = [[row["seconds"], *[row[name] for name in names], row["updates_per_s"]] for row in rows]
    record = {
        "start": {"setting": (1, 1, 2), "trainings_per_s": round(rate(bad, short / 3, short), 1)},
        "best_fixed": {**best, "again": [round(x, 1) for x in again]},
        "adjusted": round(reached, 1),
        "share": round(reached / statistics.median(again), 3),
        "grid": grid,
        "path": path,
    }
    RECORD.write_text(json.dumps(record) + "\n")
    draw(record, HERE.parent / "docs/figures/ga3c_adjust.svg")
    print(json.dumps({key: record[key] for key in ("start", "best_fixed", "adjusted", "share")}))


def draw(record: dict[str, Any], target: Path) -> None:
    """The path: numbers at work above, trainings a second below."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    target.parent.mkdir(exist_ok=True)
    columns = list(zip(*record["path"], strict=True))
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(8, 5))
    for name, values, style in zip(("predictors", "trainers", "agents"), columns[1:4], ("-", "--", ":"), strict=True):
        above.step(columns[0], values, style, where="post", label=name)
    above.set_ylabel("at work")
    above.legend()
    below.plot(columns[0], columns[4], linewidth=0.7, color="tab:gray", label="adjusted")
    below.axhline(statistics.median(record["best_fixed"]["again"]), color="tab:orange", label="best fixed setting")
    below.set_ylabel("trainings/s")
    below.set_xlabel("seconds")
    below.legend()
    figure.tight_layout()
    figure.savefig(target)


if __name__ == "__main__":
    main()
