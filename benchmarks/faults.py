"""Harm to workers and to their drivers: every worker of every topology, at seeded moments; writes one row for each.

    python benchmarks/faults.py                  # all but the last, about 30 minutes
    python benchmarks/faults.py --signals 0      # only faults of workers
    python benchmarks/faults.py --rounds 0       # only signals to drivers
    python benchmarks/faults.py --unrolls --signals 0   # topologies that learn from unrolls, into a file of their own

The faults and what is checked after them: tests/faults.py, tests/drivers.py. The file is written after each run; what
was recorded of the part that is left out stays in it. A signal that came when the driver had ended is sent to another.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from drivers import STAGES, Driver, await_stage, expected_codes, go_on, resume_problems
from faults import SETTINGS, UNROLLED, Harm, Outcome, plan_faults, run_faults

RESULTS = Path(__file__).parent / "results"
KINDS, OF_UNROLLS = ("exception", "kill", "stop"), ("exception", "kill", "stop", "hang")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
ATTEMPTS = 5


def main() -> None:
    """Do the harm, and write down what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="each fault so often to each role of each topology")
    parser.add_argument("--signals", type=int, default=20, help="each signal so often to a driver")
    parser.add_argument("--unrolls", action="store_true", help="topologies that learn from unrolls, and those alone")
    parser.add_argument("--settings", nargs="*", help="settings by name, see tests/faults.py; by default all")
    options = parser.parse_args()
    names = options.settings or [name for name in SETTINGS if (name in UNROLLED) == options.unrolls]
    kinds, file = (OF_UNROLLS, "faults_unrolls.json") if options.unrolls else (KINDS, "faults.json")
    record = Record(RESULTS / file, keep_faults=options.rounds == 0, keep_signals=options.signals == 0)
    for number in range(options.rounds):
        for index, name in enumerate(names):
            with tempfile.TemporaryDirectory() as place:
                seed = 100 * number + index
                record.add_faults(run_faults(name, plan_faults(name, kinds, seed), Path(place), seed=seed), seed)
    topologies = list(dict.fromkeys(SETTINGS[name].topology for name in names))
    for index in range(options.signals * len(SIGNALS)):
        for attempt in range(ATTEMPTS):
            with tempfile.TemporaryDirectory() as place:
                row = signal_driver(Path(place), index, attempt, topologies)
            if row["delivered"]:
                break
        record.add_signal(row)
    print(json.dumps(record.summary(), indent=1))
    sys.exit(0 if record.summary()["failed"] == 0 else 1)


class Record:
    """All rows so far, in a file."""

    def __init__(self, path: Path, *, keep_faults: bool, keep_signals: bool) -> None:
        self.path = path
        before = json.loads(path.read_text()) if path.exists() else {}
        self.rows: list[dict[str, Any]] = before.get("faults", []) if keep_faults else []
        self.runs: list[dict[str, Any]] = before.get("runs", []) if keep_faults else []
        self.signals: list[dict[str, Any]] = before.get("signals", []) if keep_signals else []

    def add_faults(self, outcome: Outcome, seed: int) -> None:
        """A run's rows; a problem of the whole run is none of a single fault, but counts as failed by itself."""
        self.rows += [_row(outcome, harm, seed) for harm in outcome.harms]
        kept = ("status", "env_steps", "updates", "restarts", "seconds")
        self.runs.append(
            {
                "topology": outcome.topology,
                "seed": seed,
                "faults": len(outcome.harms),
                **{name: outcome.result.get(name) for name in kept},
                "unprovoked": outcome.unprovoked,
                "problems": outcome.problems,
                "ok": not outcome.problems,
            }
        )
        self._write(self.runs[-1])

    def add_signal(self, row: dict[str, Any]) -> None:
        """A driver's row."""
        self.signals.append(row)
        self._write(row)

    def _write(self, newest: dict[str, Any]) -> None:
        print(json.dumps(newest), flush=True)
        everything = {"summary": self.summary(), "runs": self.runs, "faults": self.rows, "signals": self.signals}
        self.path.write_text(json.dumps(everything, indent=1) + "\n")

    def summary(self) -> dict[str, Any]:
        """How many of what, and how many failed."""
        everything = [*self.rows, *self.runs, *self.signals]
        repaired: dict[str, list[float]] = {}
        for row in self.rows:
            if row["seconds"] is not None:  # else the run ended before it was repaired, which is told elsewhere
                repaired.setdefault(row["fault"], []).append(row["seconds"])
        return {
            "machine": f"{platform.machine()}, {platform.python_version()}",
            "faults": len(self.rows),
            "faults_ok": sum(row["ok"] for row in self.rows),
            "by_fault": dict(Counter(row["fault"] for row in self.rows)),
            "by_role": dict(Counter(row["role"] for row in self.rows)),
            "seconds_to_repair_median": {kind: float(np.median(times)) for kind, times in repaired.items()},
            "runs": len(self.runs),
            "runs_ok": sum(run["ok"] for run in self.runs),
            "unprovoked_restarts": sum(len(run["unprovoked"]) for run in self.runs),
            "signals": len(self.signals),
            "signals_ok": sum(row["ok"] for row in self.signals),
            "by_signal_and_stage": dict(Counter(f"{row['signal']} {row['stage']}" for row in self.signals)),
            "seconds_to_leave_most": max((row["seconds"] for row in self.signals), default=None),
            "resumed": sum(row["resumed"] for row in self.signals),
            "failed": sum(not row["ok"] for row in everything),
        }


def _row(outcome: Outcome, harm: Harm, seed: int) -> dict[str, Any]:
    repaired = bool(harm.named)
    return {
        "topology": outcome.topology,
        "role": harm.fault.role,
        "rank": harm.fault.rank,
        "fault": harm.fault.kind,
        "moment": harm.fault.moment if isinstance(harm.fault.moment, str) else round(harm.fault.moment, 3),
        "env_steps": harm.env_steps,
        "seed": seed,
        "named": harm.named,
        "restarts": harm.restarts,
        "seconds": harm.seconds if repaired else None,
        "problems": harm.problems if repaired else [*harm.problems, "not repaired"],
        "ok": repaired and not harm.problems,
    }


def signal_driver(place: Path, index: int, attempt: int, topologies: list[str]) -> dict[str, Any]:
    """Start a run, wait until it is at a stage, send a signal, and look what is left."""
    number, turn = SIGNALS[index % len(SIGNALS)], index // len(SIGNALS)
    at, topology = STAGES[turn % len(STAGES)], topologies[(turn + 2 * (index % len(SIGNALS))) % len(topologies)]
    group, chance = turn % 2 == 1 and number != signal.SIGKILL, np.random.default_rng([index, attempt])
    driver, problems, code, resumed, delivered = Driver.train(place, topology, at), [], None, False, False
    began = time.monotonic()
    try:
        await_stage(driver, at, chance)
        began = time.monotonic()
        delivered = driver.signal(number, group=group)
        code = driver.wait(60)
        problems += [f"left behind: {one}" for one in driver.leftovers()]
        seconds = time.monotonic() - began
        if code not in expected_codes(at, number):
            problems.append(f"exit code {code}: {driver.said()[-300:]}")
        if number == signal.SIGINT and driver.run.exists():
            problems += resume_problems(place) + go_on(place)
            resumed = True
    except Exception as error:
        seconds = time.monotonic() - began
        problems.append(f"{type(error).__name__}: {error}; said {driver.said()[-300:]}")
    finally:
        driver.end()
    problems += [] if delivered or problems else ["the driver had ended before the signal"]
    return {
        "topology": topology,
        "signal": signal.Signals(number).name,
        "to": "group" if group else "driver",
        "stage": at,
        "delivered": delivered,
        "code": code,
        "seconds": round(seconds, 2),
        "resumed": resumed,
        "problems": problems,
        "ok": not problems,
    }


if __name__ == "__main__":
    main()
