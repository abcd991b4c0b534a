"""What every engine asks of a company, whoever hosts its members: evaluations, figures, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from repertory.engines.stage import Stage
from repertory.roles.evaluator import Episodes
from repertory.roles.learner import check_finite
from repertory.roles.ledger import RECENT, Ledger

QUEUEING = ("memory", "server", "learner", "trainer", "predictor", "inference", "policy_worker")
"""Roles that others' work waits for."""


class Answer(NamedTuple):
    """An evaluation, and the counters behind the weights that it was played with."""

    env_steps: int
    updates: int
    episodes: Episodes


class Evaluations:
    """Asks the evaluator, one evaluation at a time, always with a snapshot.

    While one is under way, the newest question waits for it and takes the place of an older one that waits: a slow
    evaluator is asked less often, never ever later.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage, self._arrays = stage, stage.named("evaluation")
        self._asked: list[tuple[int, int, int, NDArray[np.float32]]] = []
        self._under_way: tuple[int, int, int, NDArray[np.float32]] | None = None

    def ask(self, index: int) -> None:
        """Evaluate the weights of now; `index` chooses the seeds."""
        env_steps = int(self._stage.ledger["env_steps"].sum())
        updates, weights = self._stage.weights()
        self._asked = [(index, env_steps, updates, weights.copy())]
        self._send()

    def _send(self) -> None:
        if self._under_way is not None or not self._asked:
            return
        self._under_way = self._asked.pop(0)
        self._arrays["weights"][:] = self._under_way[3]
        self._arrays["asked"][1] = self._under_way[0]
        self._arrays["asked"][0] = int(self._arrays["answered"][0]) + 1
        self._stage.bell("evaluator")()

    def answer(self) -> Answer | None:
        """The next evaluation that is done."""
        if self._under_way is None or int(self._arrays["answered"][0]) != int(self._arrays["asked"][0]):
            return None
        _, env_steps, updates, _ = self._under_way
        episodes = Episodes(self._arrays["returns"].copy(), self._arrays["lengths"].copy())
        self._under_way = None
        self._send()
        return Answer(env_steps, updates, episodes)

    @property
    def waiting(self) -> bool:
        """Whether an evaluation is under way or asked for."""
        return self._under_way is not None or bool(self._asked)

    def withdraw(self) -> None:
        """Nobody wants them any more."""
        self._asked = []
        self._under_way = None
        self._arrays["answered"][0] = self._arrays["asked"][0]


class Figures:
    """The metrics of a company, read from its ledger."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._before = {name: array.copy() for name, array in stage.ledger.items()}
        self._at = time.monotonic()

    def read(self) -> dict[str, float | int | None]:
        """What happened since the last call."""
        ledger, before = {name: array.copy() for name, array in self._stage.ledger.items()}, self._before
        plan = self._stage.plan
        seconds = max(time.monotonic() - self._at, 1e-9)
        self._before, self._at = ledger, time.monotonic()
        env_steps = int(ledger["env_steps"].sum())
        losses = int((ledger["losses"] - before["losses"]).sum())
        returns, lengths = _recent(ledger, before, "episodes", "episode_return", "episode_length")
        (lag,), (age,) = _recent(ledger, before, "lags", "lag"), _recent(ledger, before, "ages", "age")
        leaders = [member for member in self._stage.members if member.rank == 0]
        found: dict[str, float | int | None] = {
            **(self._of_unrolls(ledger, before, env_steps) if plan.unrolled else self._of_memory(ledger, env_steps)),
            "loss": float((ledger["loss_sum"] - before["loss_sum"]).sum()) / losses if losses else None,
            "episodes": int(ledger["episodes"].sum()),
            "episode_return": float(returns.mean()) if returns.size else None,
            "episode_length": float(lengths.mean()) if lengths.size else None,
            **_spread("policy_lag", lag),
            "skipped_updates": int(ledger["skipped"].sum()),
        }
        if plan.topology.has("server") or plan.lock_free:
            found |= _spread("gradient_age", age)
        if not plan.topology.has("memory"):
            found |= {name: int(ledger[name].sum()) for name in ("gradients", "bytes_sent")}
            found |= {name: int(ledger[name].sum()) for name in ("dropped_stale", "dropped_outlier")}
        answers = int((ledger["answers"] - before["answers"]).sum())
        if answers:
            found["answer_ms"] = float((ledger["answer_s"] - before["answer_s"]).sum()) / answers * 1e3
        for member in leaders:
            rows = [other.index for other in self._stage.members if other.role == member.role]
            idle = float((ledger["idle_s"][rows] - before["idle_s"][rows]).mean()) / seconds
            found[f"busy/{member.role}"] = round(min(1.0, max(0.0, 1.0 - idle)), 4)
            work = (ledger["work"][rows] - before["work"][rows]).sum()
            found[f"steps_per_s/{member.role}"] = round(float(work) / seconds, 1)
            if member.role in QUEUEING and (member.role != "learner" or plan.unrolled):
                found[f"queue/{member.role}"] = int(ledger["queue"][rows].max())
        return found

    def _of_memory(self, ledger: Ledger, env_steps: int) -> dict[str, float | int | None]:
        plan = self._stage.plan
        epsilons = [plan.epsilon(env_steps, rank) for rank in range(plan.actors)]
        held = self._stage.lanes.head.clip(max=plan.lane_length).sum()
        return {
            "epsilon": round(float(np.mean(epsilons)), 6),
            "replay_ratio": round(self._samples(ledger) / max(env_steps, 1), 4),
            "replay_size": int(min(held, plan.q.replay_capacity)),
        }

    def _of_unrolls(self, ledger: Ledger, before: Ledger, env_steps: int) -> dict[str, float | int | None]:
        census = self._stage.unrolls.census()
        gained = {name: (ledger[name] - before[name]).sum() for name in ("entropy_sum", "losses")}
        found: dict[str, float | int | None] = {
            "entropy_weight": round(self._stage.plan.entropy(env_steps), 6),
            "entropy": float(gained["entropy_sum"]) / int(gained["losses"]) if gained["losses"] else None,
            "unrolls_free": census.free,
            "unrolls_ready": census.ready,
            "unrolls_in_use": census.in_use,
            "dropped_unrolls": int(ledger["dropped_unrolls"].sum()),
        }
        if "adjust/active" in self._stage.arrays:
            names = ("at_work/predictors", "at_work/trainers", "at_work/agents")
            found |= dict(zip(names, self._stage.at_work.tolist(), strict=True))
        return found

    def _samples(self, ledger: Ledger) -> int:
        plan = self._stage.plan
        counted = ledger["updates"] if plan.topology.has("learner") else ledger["gradients"]
        if plan.topology.has("thread") and plan.company.method != "replay":
            return int(ledger["env_steps"].sum())
        return int(counted.sum()) * plan.q.batch_size


def checkpoint_state(stage: Stage) -> dict[str, Any]:
    """Everything a checkpoint needs, once all members have settled; refuses weights that are not numbers."""
    state = stage.state()
    check_finite(np.asarray(state["learner"]["learned"]["00"]), state["updates"])
    return {**state, "episodes": int(stage.ledger["episodes"].sum())}


def _recent(ledger: Ledger, before: Ledger, count: str, *names: str) -> list[NDArray[Any]]:
    """The newest entries of the members' rings that were written since `before`."""
    found: list[list[Any]] = [[] for _ in names]
    for member, (now, then) in enumerate(zip(ledger[count], before[count], strict=True)):
        at = (int(now) - 1 - np.arange(min(int(now - then), RECENT))) % RECENT
        for values, name in zip(found, names, strict=True):
            values.extend(ledger[name][member][at])
    return [np.array(values, np.float64) for values in found]


def _spread(name: str, values: NDArray[np.float64]) -> Mapping[str, float | int | None]:
    if not values.size:
        return {f"{name}_mean": None, f"{name}_p95": None, f"{name}_max": None}
    return {
        f"{name}_mean": float(values.mean()),
        f"{name}_p95": float(np.percentile(values, 95)),
        f"{name}_max": int(values.max()),
    }
