"""The metrics of a run, read from its counters and channels; what each means is told in `docs/metrics.md`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.channels.counters import RECENT, Table
from repertory.engines.wiring import Wiring


class Figures:
    """The metrics of a run, read from its counters and channels."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._before, self._at = self._now(), time.monotonic()

    def _now(self) -> dict[str, NDArray[Any]]:
        return {name: array.copy() for name, array in self._wiring.counters.arrays.items() if name != "note"}

    @property
    def losses_under_way(self) -> bool:
        """Whether updates were counted since the last call, and none of their losses is there yet."""
        now, before = self._wiring.counters.arrays, self._before
        return bool((now["updates"] > before["updates"]).any() and (now["losses"] == before["losses"]).all())

    def read(self) -> dict[str, float | int | None]:
        """What happened since the last call."""
        now, before, topology = self._now(), self._before, self._wiring.topology
        seconds = max(time.monotonic() - self._at, 1e-9)
        self._before, self._at = now, time.monotonic()
        found: dict[str, float | int | None] = self._learning(now, before)
        for channel in topology.channels:
            found |= channel.metrics()
        for name in topology.counts:
            found |= _age(now, before) if name == "gradient_age" else {name: int(now[name].sum())}
        answers = int((now["replies"] - before["replies"]).sum())
        if answers:
            found["reply_ms"] = float((now["reply_s"] - before["reply_s"]).sum()) / answers * 1e3
        for group in topology.workers:
            found |= self._worker(group.name, now, before, seconds)
        return found

    def _learning(self, now: Table, before: Table) -> dict[str, float | int | None]:
        """What every topology tells: how it explores and learns, episodes, lag."""
        plan, env_steps = self._wiring.plan, int(now["env_steps"].sum())

        def mean(total: str, count: str) -> float | None:
            gained = int((now[count] - before[count]).sum())
            return float((now[total] - before[total]).sum()) / gained if gained else None

        returns, lengths = _recent(now, before, "episodes", "episode_return", "episode_length")
        (lag,) = _recent(now, before, "lags", "lag")
        return {
            **self._exploring(now, env_steps),
            "learning_rate": plan.learning_rate(env_steps),
            "loss": mean("loss_sum", "losses"),
            "gradient_norm": mean("norm_sum", "norms"),
            "clipped_share": mean("clipped", "norms"),
            "value_mean": mean("value_sum", "losses"),
            **({"entropy": mean("entropy_sum", "losses")} if plan.unrolled else {}),
            "episodes": int(now["episodes"].sum()),
            "episode_return": float(returns.mean()) if returns.size else None,
            "episode_length": float(lengths.mean()) if lengths.size else None,
            **_spread("policy_lag", lag),
            "skipped_updates": int(now["skipped"].sum()),
        }

    def _exploring(self, now: Table, env_steps: int) -> dict[str, float | int | None]:
        plan, epsilon = self._wiring.plan, self._wiring.topology.epsilon
        if epsilon is None:
            return {"entropy_weight": round(plan.entropy(env_steps), 6)}
        rates = [epsilon(rank)(env_steps) for rank in range(plan.actors)]
        ratio = float(now["samples"].sum()) / max(env_steps, 1)
        return {"epsilon": round(float(np.mean(rates)), 6), "replay_ratio": round(ratio, 4)}

    def _worker(self, name: str, now: Table, before: Table, seconds: float) -> dict[str, float | int | None]:
        """How busy the workers of this name were, what they did, and what waits for them."""
        rows = [worker.index for worker in self._wiring.workers if worker.name == name]
        idle = float((now["idle_s"][rows] - before["idle_s"][rows]).mean()) / seconds
        work = float((now["work"][rows] - before["work"][rows]).sum()) / seconds
        queue = int(now["queue"][rows].max()) - 1
        return {
            f"busy/{name}": round(min(1.0, max(0.0, 1.0 - idle)), 4),
            f"steps_per_s/{name}": round(work, 1),
            **({f"queue/{name}": queue} if queue >= 0 else {}),
        }


def _age(now: Table, before: Table) -> Mapping[str, float | int | None]:
    (ages,) = _recent(now, before, "ages", "age")
    return _spread("gradient_age", ages)


def _recent(now: Table, before: Table, count: str, *names: str) -> list[NDArray[Any]]:
    """The newest entries of the workers' rings that were written since `before`."""
    found: list[list[Any]] = [[] for _ in names]
    for worker, (total, then) in enumerate(zip(now[count], before[count], strict=True)):
        at = (int(total) - 1 - np.arange(min(int(total - then), RECENT))) % RECENT
        for values, name in zip(found, names, strict=True):
            values.extend(now[name][worker][at])
    return [np.array(values, np.float64) for values in found]


def _spread(name: str, values: NDArray[np.float64]) -> Mapping[str, float | int | None]:
    if not values.size:
        return {f"{name}_mean": None, f"{name}_p95": None, f"{name}_max": None}
    return {
        f"{name}_mean": float(values.mean()),
        f"{name}_p95": float(np.percentile(values, 95)),
        f"{name}_max": int(values.max()),
    }
