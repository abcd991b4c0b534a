"""GA3C's adjustment from a bad start against the best of a grid of fixed settings, measured in turn.

    python benchmarks/ga3c_adjust.py --rounds 5

On `repertory/SlowCartPole-v1` with 5 ms of latency: started with 1 predictor, 1 trainer and 2 agents, up to 3, 3 and
24. A machine's own speed changes within minutes, so once the adjusted run has had time to climb, it is interrupted
(Ctrl-C) and resumed in turn with runs of the grid's best settings; each round gives one figure of each. Writes
`benchmarks/results/ga3c_adjust.json`; the path goes into it, and into `docs/figures/ga3c_adjust.svg`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import figures
from repertory.runs import metrics

HERE = Path(__file__).parent
START, MOST = (1, 1, 2), (3, 3, 24)
RECORD = HERE / "results/ga3c_adjust.json"
SETTLING = 1 / 3
"""Share of each run's time that is not counted."""
STARTS_WITHIN_S = ENDS_WITHIN_S = 60.0
INTERRUPTED = 130
FEWEST_ROWS = 3
Setting = tuple[int, int, int]
OPTIONS = shlex.split(
    "--env-option latency_s=0.005 --envs-per-actor 1 --env-steps 1000000000 --eval-every 1000000000 --eval-episodes 1 "
    "--eval-max-steps 1 --checkpoint-every 1000000000 --log-every 500 --quiet --agent.unroll 5 --agent.batch-unrolls 2 "
    "--topology.queue 2"
)


class Training:
    """A run that is played in pieces."""

    def __init__(self, place: Path, most: Setting, adjust_from: Setting | None, period: float) -> None:
        self.path = place / "-".join(map(str, (*most, "adjusted" if adjust_from else "fixed")))
        predictors, trainers, agents = map(str, most)
        numbers = ["--actors", agents, "--topology.predictors", predictors, "--topology.trainers", trainers]
        adjusting = ["--topology.adjust-s", str(period), "--topology.adjust-from", *map(str, adjust_from or ())]
        self._words = ["train", "repertory/SlowCartPole-v1", "--topology", "ga3c", *OPTIONS, *numbers]
        self._words += [*(adjusting if adjust_from else ()), "--runs-dir", str(place), "--name", self.path.name]

    def play(self, seconds: float) -> float:
        """So many seconds more, from the first line of its log on; trainings a second."""
        before = len(self.rows())
        process = subprocess.Popen([sys.executable, "-m", "repertory", *self._words], stdout=subprocess.DEVNULL)
        self._words = ["resume", str(self.path), "--quiet"]
        try:
            self._wait_for(before + 1, process)
            time.sleep(seconds)
            process.send_signal(signal.SIGINT)
            if process.wait(ENDS_WITHIN_S) != INTERRUPTED:
                raise SystemExit(f"{self.path.name} ended by itself")
        finally:
            process.kill()
        return rate(self.rows()[before:], seconds)

    def _wait_for(self, rows: int, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + STARTS_WITHIN_S
        while len(self.rows()) < rows:
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{self.path.name} did not start")
            time.sleep(0.1)

    def rows(self) -> list[dict[str, Any]]:
        """Its log so far."""
        log = self.path / "metrics.jsonl"
        return metrics.read(log) if log.is_file() else []


def rate(rows: list[dict[str, Any]], seconds: float) -> float:
    """Trainings a second, once it has settled."""
    begun = rows[0]["seconds"]
    counted = [row for row in rows if SETTLING * seconds <= row["seconds"] - begun <= seconds]
    if len(counted) < FEWEST_ROWS:
        raise SystemExit(f"{len(counted)} lines were logged in {seconds:g} s; take longer runs")
    return float((counted[-1]["updates"] - counted[0]["updates"]) / (counted[-1]["seconds"] - counted[0]["seconds"]))


def fixed(setting: Setting, seconds: float) -> float:
    """Trainings a second of one fixed setting, run anew."""
    with tempfile.TemporaryDirectory() as place:
        return round(Training(Path(place), setting, None, 0.0).play(seconds), 1)


def measure_grid(seconds: float) -> list[dict[str, Any]]:
    """Trainings a second of fixed settings."""
    grid = []
    for setting in itertools.product((1, 2, 3), (1, 2, 3), (8, 16, 24)):
        grid.append({"setting": setting, "trainings_per_s": fixed(setting, seconds)})
        print(json.dumps(grid[-1]), flush=True)
    return grid


def main() -> None:
    """Grid; climbing; then rounds of the adjusted run and the grid's best in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--climb-seconds", type=float, default=150.0)
    parser.add_argument("--seconds", type=float, default=24.0, help="of the adjusted run in each round")
    parser.add_argument("--fixed-seconds", type=float, default=12.0, help="of each fixed setting in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--best", type=int, default=3, help="how many of the grid's best take part in the rounds")
    parser.add_argument("--period", type=float, default=4.0)
    parser.add_argument("--keep-grid", action="store_true", help="take the grid of the record that there is")
    options = parser.parse_args()
    grid = json.loads(RECORD.read_text())["grid"] if options.keep_grid else measure_grid(options.fixed_seconds)
    ranked = sorted(grid, key=lambda row: row["trainings_per_s"], reverse=True)
    best: list[Setting] = [tuple(row["setting"]) for row in ranked[: options.best]]
    rounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as place:
        training = Training(Path(place), MOST, START, options.period)
        training.play(options.climb_seconds)
        plays: dict[str, Callable[[], float]] = {
            "adjusted": lambda: round(training.play(options.seconds), 1),
            **{str(setting): partial(fixed, setting, options.fixed_seconds) for setting in best},
        }
        for turn in range(options.rounds):
            order = list(plays)[:: 1 if turn % 2 else -1]
            rounds.append({name: plays[name]() for name in order})
            print(json.dumps(rounds[-1]), flush=True)
        names = ("at_work/predictors", "at_work/trainers", "at_work/agents")
        path = [[row["seconds"], *[row[name] for name in names], row["updates_per_s"]] for row in training.rows()]
    record = {"start": {"setting": START, "trainings_per_s": fixed(START, options.fixed_seconds)}}
    record |= {"grid": grid, "rounds": rounds, **summary(rounds), "path": path}
    RECORD.write_text(json.dumps(record) + "\n")
    figures.save("ga3c_adjust", lambda: figures.adjusting(record))
    print(json.dumps({key: value for key, value in record.items() if key not in ("grid", "path", "rounds")}))


def summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """The fixed setting with the best median, and the adjusted run's share of it in each round."""
    medians = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    best = max((name for name in medians if name != "adjusted"), key=medians.__getitem__)
    shares = [round(each["adjusted"] / each[best], 3) for each in rounds]
    return {"best_fixed": best, "medians": medians, "shares": shares, "share": statistics.median(shares)}


if __name__ == "__main__":
    main()
