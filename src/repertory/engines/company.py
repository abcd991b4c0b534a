"""What every engine asks of a company, whoever hosts its members: evaluations, figures, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from repertory.engines.plan import Plan
from repertory.engines.reports import trace_of
from repertory.engines.stage import Stage
from repertory.errors import UserError
from repertory.roles.evaluator import Episodes
from repertory.roles.learner import check_finite
from repertory.roles.ledger import RECENT, Ledger

QUEUEING = ("memory", "server", "learner", "trainer", "predictor", "inference", "policy_worker")
"""Roles that others' work waits for."""


class Answer(NamedTuple):
    """An evaluation, the counters behind the weights that it was played with, and those weights."""

    env_steps: int
    updates: int
    episodes: Episodes
    weights: NDArray[np.float32]


class Question(NamedTuple):
    """An evaluation that is asked for: `number` chooses its seeds, `seconds` is how long it may take."""

    number: int
    env_steps: int
    updates: int
    weights: NDArray[np.float32]
    seconds: float


class Evaluations:
    """Asks the evaluator, one evaluation at a time, always with a snapshot.

    While one is under way, the newest question waits for it and takes the place of an older one that waits: a slow
    evaluator is asked less often, never ever later. An urgent one takes the place of the one under way.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage, self._arrays = stage, stage.named("evaluation")
        self._asked: Question | None = None
        self._under_way: Question | None = None

    def ask(self, index: int, seconds: float = math.inf, *, urgent: bool = False) -> None:
        """Evaluate the weights of now; `index` chooses the seeds."""
        env_steps = int(self._stage.ledger["env_steps"].sum())
        updates, weights = self._stage.weights()
        self._asked = Question(index, env_steps, updates, weights.copy(), seconds)
        if urgent:
            self._under_way = None
        self._send()

    def _send(self) -> None:
        if self._under_way is not None or self._asked is None:
            return
        self._under_way, self._asked = self._asked, None
        asked = self._arrays["asked"]
        asked[0] |= 1  # first: whoever still reads or plays the one before sees that it is out of date
        self._arrays["weights"][:] = self._under_way.weights
        self._arrays["seconds"][0] = self._under_way.seconds
        asked[1] = self._under_way.number
        asked[0] += 1
        self._stage.bell("evaluator")()

    def answer(self) -> Answer | None:
        """The next evaluation that is done."""
        done = self._under_way
        if done is None or int(self._arrays["answered"][0]) != int(self._arrays["asked"][0]):
            return None
        arrays = self._arrays
        episodes = Episodes(arrays["returns"].copy(), arrays["lengths"].copy(), int(arrays["unfinished"][0]))
        self._under_way = None
        self._send()
        return Answer(done.env_steps, done.updates, episodes, done.weights)

    @property
    def finished(self) -> int:
        """Episodes of the evaluation under way that have ended."""
        return int(self._arrays["finished"][0])

    @property
    def waiting(self) -> bool:
        """Whether an evaluation is under way or asked for."""
        return self._under_way is not None or self._asked is not None

    def withdraw(self) -> str:
        """Nobody is there to play it: says which one that was, if there was any."""
        done = int(self._arrays["answered"][0]) == int(self._arrays["asked"][0])
        lost, self._asked = self._asked if done else self._under_way, None
        if not done:
            self._under_way = None
            self._arrays["asked"][0] |= 1
        return "" if lost is None else f"evaluation at {lost.env_steps:,} env steps"


def failure_note(what: str, error: UserError) -> str:
    """What went wrong in an environment, and the environment's own traceback."""
    trace = "" if error.__cause__ is None else f"\n{trace_of(error.__cause__).rstrip()}"
    return f"{what}: {error}{trace}"


def copied(ledger: Ledger) -> dict[str, NDArray[Any]]:
    """The ledger as it is now."""
    return {name: array.copy() for name, array in ledger.items()}


def common_figures(plan: Plan, ledger: Ledger, before: Ledger) -> dict[str, float | int | None]:
    """What every topology and engine tells of the time since `before`: how it learns, episodes, lag."""

    def mean(total: str, count: str) -> float | None:
        gained = int((ledger[count] - before[count]).sum())
        return float((ledger[total] - before[total]).sum()) / gained if gained else None

    returns, lengths = _recent(ledger, before, "episodes", "episode_return", "episode_length")
    (lag,) = _recent(ledger, before, "lags", "lag")
    return {
        "learning_rate": plan.learning_rate(int(ledger["env_steps"].sum())),
        "loss": mean("loss_sum", "losses"),
        "gradient_norm": mean("norm_sum", "norms"),
        "clipped_share": mean("clipped", "norms"),
        "value_mean": mean("value_sum", "losses"),
        **({"entropy": mean("entropy_sum", "losses")} if plan.unrolled else {}),
        "episodes": int(ledger["episodes"].sum()),
        "episode_return": float(returns.mean()) if returns.size else None,
        "episode_length": float(lengths.mean()) if lengths.size else None,
        **_spread("policy_lag", lag),
        "skipped_updates": int(ledger["skipped"].sum()),
    }


class Figures:
    """The metrics of a company, read from its ledger."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._before = copied(stage.ledger)
        self._at = time.monotonic()

    @property
    def losses_under_way(self) -> bool:
        """Whether updates were counted since the last call, and none of their losses is there yet."""
        ledger, before = self._stage.ledger, self._before
        return bool((ledger["updates"] > before["updates"]).any() and (ledger["losses"] == before["losses"]).all())

    def read(self) -> dict[str, float | int | None]:
        """What happened since the last call."""
        ledger, before = copied(self._stage.ledger), self._before
        plan = self._stage.plan
        seconds = max(time.monotonic() - self._at, 1e-9)
        self._before, self._at = ledger, time.monotonic()
        env_steps = int(ledger["env_steps"].sum())
        (age,) = _recent(ledger, before, "ages", "age")
        leaders = [member for member in self._stage.members if member.rank == 0]
        found: dict[str, float | int | None] = {
            **(self._of_unrolls(ledger, env_steps) if plan.unrolled else self._of_memory(ledger, env_steps)),
            **common_figures(plan, ledger, before),
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

    def _of_unrolls(self, ledger: Ledger, env_steps: int) -> dict[str, float | int | None]:
        census = self._stage.unrolls.census()
        found: dict[str, float | int | None] = {
            "entropy_weight": round(self._stage.plan.entropy(env_steps), 6),
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
