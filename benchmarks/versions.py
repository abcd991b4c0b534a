"""Is this version as fast as an earlier one? The standing benchmarks of two checkouts in turn, and their ratios.

    git worktree add /tmp/earlier COMMIT
    python benchmarks/versions.py /tmp/earlier --repeats 3        # everything: about 40 minutes on 2 cores
    python benchmarks/versions.py /tmp/earlier learner collect    # only rows whose name contains one of these

Each row is run by each checkout's own script or command on its own sources, with this Python. Checkouts from before
`channels/` spell a topology's options `--company.X`. Writes `benchmarks/results/versions.json` after every row.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "versions.json"
PONG = "pong_speed.py --seconds 25 --replay-ratio 32 --threads 1"
ROWS = {
    "learner, 16 environments": ("learner_speed.py --environments 16", "updates_per_s"),
    "learner, 1 environment": ("learner_speed.py --environments 1", "updates_per_s"),
    "collectors-learner": ("collectors_speed.py learner --actors 1", "updates_per_s"),
    "collectors-collect": ("collectors_speed.py collect --actors 1", "env_steps_per_s"),
    "collectors-slow, 1": ("collectors_speed.py slow --actors 1", "env_steps_per_s"),
    "collectors-slow, 16": ("collectors_speed.py slow --actors 16", "env_steps_per_s"),
    "collectors-slow, 64": ("collectors_speed.py slow --actors 64", "env_steps_per_s"),
    "pong, single": (PONG, "updates_per_s"),
    "pong-asynchronous": (f"{PONG} --topology hogwild --actors 2", "updates_per_s"),
    "pong-unrolls, a3c": ("pong_unrolls.py --topology a3c --envs-per-actor 16 --seconds 30", "env_steps_per_s"),
    "pong-unrolls, impala": ("pong_unrolls.py --topology impala --threads 2 --seconds 30", "env_steps_per_s"),
    **{
        f"CartPole, {topology}": (f"train CartPole-v1 --topology {topology} --seconds 12 --eval-every 1000000", figure)
        for topology, figure in {
            "parameter_server": "updates_per_s",
            "gorila": "updates_per_s",
            "all_reduce": "updates_per_s",
            "hogwild --topology.method n_step_q": "env_steps_per_s",
            "impala": "env_steps_per_s",
            "seed_rl": "env_steps_per_s",
        }.items()
    },
}
BESIDE = ("startup_s", "pss_mb")
"""Figures that are compared as well where a script prints them; less is better."""


def run(checkout: Path, words: str) -> dict[str, Any]:
    """The JSON line that a checkout's benchmark prints last."""
    if not (checkout / "src" / "repertory" / "channels").is_dir():
        words = words.replace("--topology.", "--company.").replace("collectors_speed", "company_speed")
    script, *rest = words.split()
    command = [sys.executable, str(checkout / "benchmarks" / script), *rest]
    if script == "train":
        place = ["--runs-dir", tempfile.mkdtemp(prefix="repertory-versions-"), "--env-steps", "100000000"]
        command = [sys.executable, "-m", "repertory", script, *rest, "--json", *place]
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "XDG_STATE_HOME": "/tmp/repertory-benchmarks"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{' '.join(command)} printed no result:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def compared(pairs: list[tuple[dict[str, Any], dict[str, Any]]], figure: str) -> dict[str, Any]:
    """Medians of both, and the median of the ratios new/old, of the figure and of what is printed beside it."""
    row: dict[str, Any] = {}
    for key in (figure, *BESIDE):
        values = [(old[key], new[key]) for old, new in pairs if isinstance(old.get(key), int | float) and key in new]
        if values:
            old, new = (statistics.median(side) for side in zip(*values, strict=True))
            ratios = [round(after / before, 3) for before, after in values]
            row[key] = {"old": old, "new": new, "ratio": statistics.median(ratios), "ratios": ratios}
    return row


def main() -> None:
    """Parse, run in turn, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("earlier", type=Path, help="a checkout of the earlier version")
    parser.add_argument("only", nargs="*")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    table: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, (words, figure) in ROWS.items():
        if options.only and not any(word in name for word in options.only):
            continue
        pairs = [(run(options.earlier, words), run(HERE.parent, words)) for _ in range(options.repeats)]
        table[name] = {"command": words, **compared(pairs, figure)}
        print(name, json.dumps(table[name]), flush=True)
        RESULTS.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
