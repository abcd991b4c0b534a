"""Microseconds for one draw of a batch and the update of its priorities, with a million leaves; prints JSON.

python benchmarks/priority_tree.py
"""

import json
import time

import numpy as np

from repertory.experience.priorities import PriorityTree

CAPACITY = 1_000_000
ROUNDS = 40  # the best is reported: what other processes take is no part of the figure


def seconds_per_call(tree: PriorityTree, batch: int, calls: int, rng: np.random.Generator) -> float:
    """Draws and updates in a row; new uniforms each time, for repeated ones stay in the caches."""
    uniforms, values = rng.random((calls, batch)), rng.random(batch) + 0.01
    start = time.perf_counter()
    for row in uniforms:
        tree.set(tree.sample(row), values)
    return (time.perf_counter() - start) / calls


def main() -> None:
    rng = np.random.default_rng(0)
    tree = PriorityTree(CAPACITY)
    tree.set(np.arange(CAPACITY), rng.random(CAPACITY) + 0.01)
    report: dict[str, float] = {"capacity": CAPACITY}
    for batch, calls in ((32, 400), (512, 60)):
        best = min(seconds_per_call(tree, batch, calls, rng) for _ in range(ROUNDS))
        report[f"sample_set_us_b{batch}"] = round(best * 1e6, 1)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
