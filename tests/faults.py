"""Runs workers in processes, does harm to them at seeded moments, and looks whether anything was lost.

Nothing in the product knows of this: the faults come from outside, between two looks of the supervisor. What each is:

- exception: the environment raises, in roles that have one (collector, worker, replica, actor, evaluator, ...);
  others raise wherever they stand, by a signal whose handler they were given before they began, and again where
  a library took the first for a failure of its own and went on (JAX does when it reads its cache);
- crash: SIGSEGV, what a fault in native code gives;
- kill: SIGKILL, as the kernel does when memory runs out;
- stop: SIGSTOP, until the supervisor has had enough of the silence;
- hang, nan observation, nan reward: the environment sleeps for ever, or returns what is no number.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fault_environments
from fault_environments import FAULTS, Control
from fault_orders import ORDER, run_on_order
from inline_runs import channel_of, lanes_of, unrolls_of
from repertory.agents import registry
from repertory.channels.snapshot import Shared
from repertory.engines import supervisor
from repertory.engines.driver import Driver
from repertory.engines.processes import ProcessesHost
from repertory.engines.wiring import PAUSE, Wiring
from repertory.experience.lanes import FINAL, TERMINATED, TRUNCATED
from repertory.runs.config import change, to_dict
from repertory.runs.directory import RunDirectory
from repertory.runs.history import History
from repertory.runs.launch import prepare
from repertory.runs.presets import defaults
from repertory.runs.progress import NotesOnly
from repertory.runs.session import Session
from repertory.topologies.graph import Worker
from repertory.topologies.parts import EVALUATION_RANK, batch_slots
from repertory.topologies.plan import Plan

ENVIRONMENT = f"{Path(__file__).parent / 'fault_environments.py'}:ordered"


@dataclass(frozen=True)
class Setting:
    """A topology whose workers harm is done to, and the names of those workers."""

    topology: str
    roles: tuple[str, ...]
    agent: str = "dqn"
    changes: Mapping[str, Any] = field(default_factory=dict)


HEARTBEAT_S, PATIENCE_S = 3.0, 60.0
"""Silence that is a fault while a worker is stopped or hangs on purpose, and at any other time: some only compile."""
MEMORY = ("collector", "memory", "learner", "evaluator")
CENTRAL = ("actor", "inference", "learner", "evaluator")
SETTINGS = {
    "single": Setting("single", ("agent", "evaluator"), changes={"actors": 1, "envs_per_actor": 2}),
    "collectors": Setting("collectors", MEMORY),
    "apex": Setting("apex", MEMORY),
    "parameter_server": Setting("parameter_server", ("worker", "server", "evaluator")),
    "gorila": Setting("gorila", ("worker", "server", "evaluator")),
    "hogwild": Setting("hogwild", ("worker", "evaluator")),
    "all_reduce": Setting("all_reduce", ("replica", "evaluator")),
    "a3c": Setting("a3c", ("worker", "evaluator"), "a3c"),
    "ga3c": Setting(
        "ga3c",
        ("agent", "predictor", "trainer", "adjuster", "evaluator"),
        "a3c",
        {"topology": {"adjust_from": (2, 2, 2), "adjust_s": 1.0}},
    ),
    "impala": Setting("impala", ("actor", "learner", "evaluator"), "impala"),
    "impala-2-learners": Setting(
        "impala",
        ("actor", "learner"),
        "impala",
        {"topology": {"learners": 2}, "heartbeat_s": 2 * HEARTBEAT_S},
    ),
    "seed_rl": Setting("seed_rl", CENTRAL, "impala", {"network": {"lstm_size": 8}}),
    "seed_rl-dqn": Setting("seed_rl", CENTRAL[:3]),
    "sample_factory": Setting(
        "sample_factory", ("rollout_worker", "policy_worker", "learner", "evaluator"), "appo", {"envs_per_actor": 2}
    ),
}
UNROLLED = tuple(name for name, setting in SETTINGS.items() if setting.agent != "dqn" or name == "seed_rl-dqn")
"""Those whose actors write unrolls or request actions."""
WRITING, READING = ("worker", "agent", "actor", "rollout_worker"), ("learner", "trainer")
PLAYING = ("collector", "replica", *WRITING, "evaluator")
SEVERAL = {*PLAYING, "predictor", "trainer"} - {"evaluator"}
SIGNALS = {"crash": signal.SIGSEGV, "kill": signal.SIGKILL, "stop": signal.SIGSTOP, "exception": ORDER}
HANGS_AT = 1 + next(
    number
    for number, line in enumerate(Path(fault_environments.__file__).read_text().splitlines())
    if "time.sleep(10_000)" in line
)
NAMED = {
    "exception": ("raised RuntimeError: out of coins", 'raise RuntimeError("out of coins")'),
    "crash": ("was killed by SIGSEGV", "Segmentation fault"),
    "kill": ("was killed by SIGKILL", ""),
    "stop": ("was stopped and silent for", ""),
    "hang": ("was silent for", f'fault_environments.py", line {HANGS_AT} in step'),
    "nan observation": ("returned an observation that is not finite: nan at [2]", ""),
    "nan reward": ("returned a reward that is not finite: nan", ""),
}
RAISED = ("RuntimeError: out of wits", 'raise RuntimeError("out of wits")')
"""What the event must say, and its trace."""
FAULT_S = 90.0
"""A fault that is not repaired after so long has ended the run."""
AGAIN_S = 1.0
HOLD_S = 0.1
"""Time for an unroll or two of every actor."""
STEPS_A_FAULT = 1000
SLOW_US, SLOWER_US = 1_500, 30_000
WORKERS = {
    "actors": 2,
    "envs_per_actor": 1,
    "eval_every": 700,
    "eval_episodes": 2,
    "eval_max_steps": 60,
    "checkpoint_every": 600,
    "log_every": 500,
    "quiet": True,
    "network": {"hidden": (16, 16)},
    "heartbeat_s": HEARTBEAT_S,
}
OF_MEMORY = {"batch_size": 16, "learning_starts": 200, "replay_ratio": 4.0, "replay_capacity": 4000}
OF_UNROLLS = {"unroll": 8, "batch_unrolls": 2}


@dataclass(frozen=True)
class Fault:
    """What happens to whom, and when: seconds after the last fault was repaired, or while "saving", "evaluating"."""

    role: str
    kind: str
    moment: float | str
    rank: int = 0

    @property
    def of_environment(self) -> bool:
        """Whether it is the worker's environment that fails."""
        return self.kind in FAULTS and self.role in PLAYING

    def __str__(self) -> str:
        return f"{self.kind} of {self.role} {self.rank}"


@dataclass
class Harm:
    """A fault that was done, and what came of it."""

    fault: Fault
    env_steps: int
    began: float
    events: int
    named: str = ""
    restarts: int = 0
    seconds: float = math.nan
    problems: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """A run after its faults; `problems` are those of the whole run."""

    topology: str
    harms: list[Harm]
    result: dict[str, Any]
    directory: RunDirectory
    problems: list[str]
    unprovoked: list[str]

    def all_problems(self) -> list[str]:
        """Everything that was not as it should be."""
        return [f"{harm.fault}: {problem}" for harm in self.harms for problem in harm.problems] + self.problems


def plan_faults(name: str, kinds: Sequence[str], seed: int) -> list[Fault]:
    """Each of these kinds for each role of a setting that it can happen to, in a seeded order, at seeded moments."""
    chance = np.random.default_rng(seed)
    faults = []
    for role in SETTINGS[name].roles:
        for kind in kinds:
            if kind in FAULTS and kind != "exception" and role not in PLAYING:
                continue
            when: list[float | str] = [float(chance.uniform(0.0, 1.5)), "saving", "evaluating"]
            moment = when[int(chance.choice(3, p=[0.7, 0.15, 0.15]))]
            several = role in SEVERAL or (name, role) in (("gorila", "server"), ("impala-2-learners", "learner"))
            if role == "agent" and (kind in FAULTS or name == "single"):
                several = False  # only the first one surely plays: the adjuster may have put the others off
            rank = int(chance.integers(2)) if several else 0
            faults.append(Fault(role, kind, moment, rank))
    return [faults[index] for index in chance.permutation(len(faults))]


class Saboteur:
    """Stands between the supervisor and its looks: does the next fault when it is due, and waits for its repair."""

    def __init__(self, driver: Driver, faults: Sequence[Fault], control: Control, env_steps: int) -> None:
        self.driver, self.waiting, self.control, self.env_steps = driver, list(faults), control, env_steps
        assert isinstance(driver.host, ProcessesHost)
        self.supervisor: Any = driver.host.supervisor
        self._plan = driver.plan
        self.harms: list[Harm] = []
        self.unprovoked: list[str] = []
        self.problems: list[str] = []
        self.walked = 0
        self.lost_updates = self._updates = 0
        self._ordered: tuple[Any, float] = (None, math.inf)
        self.cut = np.zeros(len(driver.wiring.workers), np.int64)
        self._free_since = math.inf
        self._progress = (-1, time.monotonic())
        self._look, self._begin = self.supervisor.check, self.supervisor._start
        self.supervisor.check, self.supervisor._start = self.check, self.start

    def check(self) -> None:
        """In place of the supervisor's."""
        if self._under_way is None and self.waiting and self._due(self.waiting[0]):
            self._do(self.waiting.pop(0))
        self.supervisor.plan = self._plan if self._awaits_silence else self._plan_for_compiling
        self._look()
        updates = self.driver.counters.updates
        self.lost_updates += max(0, self._updates - updates)
        self._updates = updates
        if self._under_way is not None:
            self._await_repair(self._under_way)
        elif self._free_since == math.inf and self.supervisor.ready:
            self._free_since = time.monotonic()
        self._walk()
        self._pace()
        self._expect_progress()

    def start(self, watched: Any) -> None:
        """In place of the supervisor's: counts the unrolls that the one before had begun and can't end any more."""
        wiring = self.driver.wiring
        for worker in watched.workers if self._unrolled else ():
            if worker.name in WRITING:
                progress = unrolls_of(wiring).arrays["progress"]
                self.cut[worker.index] += int((progress[writers(wiring, worker)] > 1).sum())
        supervisor.run_worker, own = run_on_order, supervisor.run_worker
        try:
            self._begin(watched)
        finally:
            supervisor.run_worker = own

    @property
    def _under_way(self) -> Harm | None:
        return self.harms[-1] if self.harms and math.isnan(self.harms[-1].seconds) else None

    @property
    def _awaits_silence(self) -> bool:
        return self._under_way is not None and self._under_way.fault.kind in ("stop", "hang")

    @property
    def _plan_for_compiling(self) -> Plan:
        return replace(self._plan, heartbeat_s=max(self._plan.heartbeat_s, PATIENCE_S))

    def _due(self, fault: Fault) -> bool:
        passed = time.monotonic() - self._free_since
        if isinstance(fault.moment, float):
            return passed >= fault.moment
        busy = self.driver.wiring.phase[0] == PAUSE if fault.moment == "saving" else self.driver.evaluating
        ending = self.driver.counters.env_steps >= self.env_steps  # then its repair would not be seen
        return passed >= 0 and bool(busy) and not ending

    def _do(self, fault: Fault) -> None:
        watched = self._watched(fault)
        self.harms.append(Harm(fault, self.driver.counters.env_steps, time.monotonic(), len(self.supervisor.events)))
        if fault.of_environment:
            self.control.order(watched.process.pid, fault.kind)
        else:
            os.kill(watched.process.pid, SIGNALS[fault.kind])
            self._ordered = (watched.process, time.monotonic())

    def _watched(self, fault: Fault) -> Any:
        processes = self.supervisor.watched
        wanted = (fault.role, fault.rank)
        return next(one for one in processes if wanted in [(worker.name, worker.rank) for worker in one.workers])

    def _await_repair(self, harm: Harm) -> None:
        """Repaired: there is an event, and all workers are there again and have worked since."""
        events = self.supervisor.events[harm.events :]
        named = [event for event in events if event.worker == str(self._watched(harm.fault))]
        if named and self.supervisor.ready:
            harm.seconds = round(time.monotonic() - harm.began, 2)
            harm.named, harm.restarts = named[0].sentence(), len({event.restarts for event in events})
            wiring, sharing = self.driver.wiring, self._watched(harm.fault).workers
            numbers = [number for worker in sharing for number in environment_numbers(wiring, worker)]
            harm.problems += _badly_named(harm.fault, named[0], numbers)
            with self._readers_held():
                harm.problems += experience_problems(wiring, live=True)  # before the place is overwritten
            self.unprovoked += [
                event.sentence() for event in events if event is not named[0] and event.restarts != named[0].restarts
            ]
            self._free_since = time.monotonic()
        elif harm.fault.kind == "exception" and not harm.fault.of_environment and not named:
            self._order_again()
        if math.isnan(harm.seconds) and time.monotonic() - harm.began > FAULT_S:
            said = [event.sentence() for event in events]
            raise TimeoutError(f"{harm.fault} at {harm.env_steps} env steps was not repaired; events: {said}")

    def _order_again(self) -> None:
        process, at = self._ordered
        if time.monotonic() - at > AGAIN_S and process.is_alive():
            os.kill(process.pid, ORDER)
            self._ordered = (process, time.monotonic())

    @contextmanager
    def _readers_held(self) -> Iterator[None]:
        """No learning for a moment, so that the unrolls that are played right after a repair are there to look at."""
        held = [one for one in self.supervisor.watched if self._unrolled and one.group.name in READING]
        for one in held:
            os.kill(one.process.pid, signal.SIGSTOP)
        time.sleep(HOLD_S if held else 0.0)
        try:
            yield
        finally:
            for one in held:
                os.kill(one.process.pid, signal.SIGCONT)

    @property
    def _unrolled(self) -> bool:
        return self._plan.unrolled

    def _walk(self) -> None:
        """Look at every unroll that is ready now."""
        wiring = self.driver.wiring
        for slot in unrolls_of(wiring).ready().tolist() if self._unrolled else ():
            self.walked += 1
            self.problems += [f"slot {slot}: {problem}" for problem in slot_problems(wiring, slot)]

    def _expect_progress(self) -> None:
        """Faults are over, yet no worker does anything: then something was lost that a worker waits for."""
        done = self.driver.wiring.counters.total("work")
        if done != self._progress[0]:
            self._progress = (done, time.monotonic())
        elif time.monotonic() - self._progress[1] > FAULT_S:
            raise TimeoutError(
                f"no worker has done anything for {FAULT_S} s at {self.driver.counters.env_steps} env steps"
            )

    def _pace(self) -> None:
        """The run must last as long as there are faults to come, and no longer."""
        to_come = self.waiting or self._under_way is not None
        left = 1 - self.driver.counters.env_steps / self.env_steps
        self.control.pause_us = 0 if not to_come else SLOW_US if left > 0.3 else SLOWER_US


def groups_of(wiring: Wiring) -> int:
    """Groups of environments of each worker that writes unrolls."""
    return int(channel_of(wiring, "unrolls").writers) // wiring.plan.actors


def writers(wiring: Wiring, worker: Worker) -> range:
    """The groups of environments of one that plays."""
    groups = groups_of(wiring)
    return range(worker.rank * groups, (worker.rank + 1) * groups)


def environment_numbers(wiring: Wiring, worker: Worker) -> Sequence[int]:
    """By which numbers its environments are known."""
    if worker.name == "evaluator":
        return [EVALUATION_RANK]
    return writers(wiring, worker) if wiring.plan.unrolled and worker.name in WRITING else [worker.rank]


def _badly_named(fault: Fault, event: Any, numbers: Sequence[int]) -> list[str]:
    """`numbers` share the process; whose environment got the order is chance."""
    what, trace = NAMED[fault.kind] if fault.of_environment or fault.kind != "exception" else RAISED
    problems = [] if what in event.what else [f"named {event.what!r}, not {what!r}"]
    if fault.of_environment:
        worker = any(f"of worker {number} (seed " in event.what for number in numbers)
        if "environment " not in event.what or not worker or ", step " not in event.what:
            problems.append(f"worker, environment, seed or step are missing in {event.what!r}")
    return problems if trace in event.trace else [*problems, f"no {trace!r} in the trace {event.trace!r}"]


def run_faults(name: str, faults: Sequence[Fault], place: Path, *, seed: int = 0, **changes: Any) -> Outcome:
    """Train, do the faults one after the other, and check everything afterwards."""
    env_steps = STEPS_A_FAULT * (1 + len(faults))
    setting, run = SETTINGS[name], f"{name}-{seed}"
    control = Control(place / f"{run}.control")
    control.pause_us = SLOW_US
    own = {"env_steps": env_steps, "seed": seed, "runs_dir": place / "runs", "name": run}
    own["env_option"] = (f"control={place / f'{run}.control'}",)
    own["agent"] = OF_UNROLLS if registry.find(setting.agent).learns_from == "unrolls" else OF_MEMORY
    given = change(defaults(ENVIRONMENT, setting.agent, setting.topology), {**WORKERS, **own})
    options, plan, _ = prepare(change(change(given, setting.changes), changes))
    driver = Driver(plan, ProcessesHost(plan))
    directory = RunDirectory.create(options.runs_dir, run)
    directory.write_config(to_dict(options))
    saboteur = Saboteur(driver, faults, control, env_steps)
    view = NotesOnly(sys.stderr)
    session = Session(options, driver, directory, History(), view, called_at=time.time())
    outcome = Outcome(name, saboteur.harms, {}, directory, [], saboteur.unprovoked)
    try:
        with directory.hold():
            outcome.result = session.run()
    except Exception as error:
        outcome.problems.append(f"the run ended with {type(error).__name__}: {error}")
        return outcome
    outcome.problems += [f"{fault} was never due" for fault in saboteur.waiting]
    outcome.problems += _run_problems(outcome, driver, saboteur)
    return outcome


def _run_problems(outcome: Outcome, driver: Driver, saboteur: Saboteur) -> list[str]:
    result, plan, problems, restarts = outcome.result, driver.plan, [], driver.restarts
    if result["status"] != "completed":
        problems.append(f"the run ended as {result['status']}")
    if not plan.env_steps <= result["env_steps"] <= plan.env_steps + plan.environments:
        problems.append(f"{result['env_steps']} env steps were played, {plan.env_steps} asked for")
    saved = json.loads(outcome.directory.result_path.read_bytes())
    done = [harm for harm in outcome.harms if harm.named]
    if restarts > sum(harm.restarts for harm in done):
        problems.append(f"{restarts} restarts, of which faults made {[h.restarts for h in done]}")
    if not saved["restarts"] == restarts >= len(done):
        problems.append(f"result.json counts {saved['restarts']} restarts after {len(done)} faults")
    told = (outcome.directory.path / "events.jsonl").read_text() if done else ""
    problems += [f"events.jsonl does not say {harm.named!r}" for harm in done if harm.named not in told]
    if plan.unrolled:
        problems += saboteur.problems[:10]
        problems += [] if saboteur.walked else ["no unroll was ever looked at"]
        problems += count_problems(driver, saboteur.lost_updates, restarts)
        problems += cut_problems(driver.wiring, saboteur.cut)
    else:
        problems += update_problems(driver, saboteur.lost_updates, restarts)
    return problems + experience_problems(driver.wiring)


def update_problems(driver: Driver, lost: int, restarts: int) -> list[str]:
    """Updates against steps, by the replay ratio; what a killed server or replica had not saved is not made again."""
    plan, wiring, counters = driver.plan, driver.wiring, driver.counters
    names, table = {group.name for group in wiring.topology.workers}, wiring.counters.arrays
    ratio = plan.q.replay_ratio / plan.q.batch_size
    slack = plan.q.updates_per_call + plan.environments
    if wiring.topology.pacing is not None:  # one learner, or one worker that does everything
        owed = int((counters.env_steps - plan.q.learning_starts) * ratio)
        good = owed - slack <= counters.updates <= owed + slack
        return [] if good else [f"{counters.updates} updates for {counters.env_steps} env steps, {owed} were owed"]
    if isinstance(wiring.topology.weights, Shared):
        most = counters.env_steps
        return [] if most / 10 <= counters.updates <= most else [f"{counters.updates} updates in {most} env steps"]
    problems = []
    playing = wiring.indices(lambda group: group.name in ("worker", "replica"))
    for worker in playing:
        steps, made = int(table["env_steps"][worker]), int(table["gradients"][worker])
        owed = int((steps - plan.q.learning_starts // plan.actors) * ratio)
        if not owed - 2 <= made <= owed:
            problems.append(f"worker {worker} made {made} gradients for {steps} env steps, {owed} were owed")
    gradients = int(table["gradients"][playing].sum()) // (plan.actors if "replica" in names else 1)
    dropped = sum(int(table[name].sum()) for name in ("dropped_stale", "dropped_outlier", "skipped"))
    fewest = gradients - dropped - lost - 20 * restarts
    if not fewest - slack <= counters.updates <= gradients + slack:
        problems.append(f"{counters.updates} updates of {gradients} gradients, {lost} seen lost, {dropped} dropped")
    return problems


def count_problems(driver: Driver, lost: int, restarts: int) -> list[str]:
    """Steps and updates against unrolls; one that a killed learner had not freed yet is learned from again."""
    plan, wiring, counters = driver.plan, driver.wiring, driver.counters
    unrolls, table, own = unrolls_of(wiring), wiring.counters.arrays, plan.topology
    problems = []
    slots = 1 if plan.topology_kind.name == "a3c" else batch_slots(plan, groups_of(wiring))
    learned = (int(unrolls.freed.sum()) - int(table["dropped_stale"].sum())) // slots
    learned //= getattr(own, "learners", 1)
    most = (learned + restarts) * plan.critic.updates_per_batch
    most *= slots if getattr(own, "adjust_from", ()) else 1  # a trainer that is no longer at work takes less at once
    fewest = learned * plan.critic.updates_per_batch - lost - 20 * restarts
    if not fewest - 1 <= counters.updates <= most + 1:
        problems.append(f"{counters.updates} updates of {learned} batches, {lost} seen lost")
    half, each = int(table["dropped_unrolls"].sum()), plan.critic.unroll * unrolls.environments
    rows = int(unrolls.filled.sum()) * each
    rows += int((unrolls.arrays["progress"] - 1).clip(min=0).sum()) * unrolls.environments
    ends = int(table["episodes"].sum()) + restarts * plan.environments
    if not rows - ends <= counters.env_steps <= rows + half * each:
        problems.append(
            f"{counters.env_steps} env steps in {rows} rows, {half} unrolls were dropped, {ends} episodes ended"
        )
    return problems


def cut_problems(wiring: Wiring, cut: NDArray[np.int64]) -> list[str]:
    """Half unrolls of writers that were ended from outside are counted, each once; others dropped what they wrote."""
    problems = []
    dropped, recovered = wiring.counters.arrays["dropped_unrolls"], wiring.counters.arrays["failures"]
    for worker in wiring.workers:
        at = worker.index
        if not cut[at] <= dropped[at] <= cut[at] + recovered[at]:
            problems.append(
                f"{worker} dropped {dropped[at]} unrolls, {cut[at]} were cut, {recovered[at]} failures recovered from"
            )
    return problems


def experience_problems(wiring: Wiring, *, live: bool = False) -> list[str]:
    """Walks every lane, or every slot that is ready: whole episodes that follow CartPole's physics."""
    if wiring.plan.unrolled:
        found = ((f"slot {slot}", slot_problems(wiring, slot)) for slot in range(unrolls_of(wiring).count))
        others = [] if live else census_problems(wiring)
    else:
        lanes = lanes_of(wiring)
        found = ((f"lane {lane}", lane_problems(wiring, lane, live=live)) for lane in range(lanes.count))
        few = not live and lanes.head.sum() < 200
        others = [f"only {lanes.head} slots"] if few else []
    return [f"{where}: {problem}" for where, problems in found for problem in problems] + others


def census_problems(wiring: Wiring) -> list[str]:
    """After all workers have left: a slot is ready, or half written by a writer that was cut, or free."""
    unrolls, channel = unrolls_of(wiring), channel_of(wiring, "unrolls")
    filled, freed = (array.reshape(channel.writers, -1) for array in (unrolls.filled, unrolls.freed))
    ready, writing = filled - freed, unrolls.arrays["progress"] > 0
    census, problems = unrolls.census(), []
    if not np.isin(ready, (0, 1)).all():
        problems.append(f"slots were filled {filled.tolist()} and freed {freed.tolist()} times")
    if (ready.sum(axis=1) + writing > channel.depth).any():
        problems.append(f"{ready.sum(axis=1)} slots of each writer are ready, and {writing} being written")
    if unrolls.count != channel.writers * channel.depth or min(census) < 0:
        problems.append(f"{census} of {channel.writers} x {channel.depth} slots")
    if (unrolls.arrays["progress"] > 1 + unrolls.rows).any():
        problems.append(f"rows beyond the last: {unrolls.arrays['progress']}")
    readers = sum(group.count for group in wiring.topology.holders(channel, "in"))
    if not np.isin(unrolls.arrays["reader"][unrolls.ready()], range(readers)).all():
        problems.append(f"slots for readers {unrolls.arrays['reader']}, of which there are {readers}")
    if filled.max() < 3 or ((filled == 0) & (filled.sum(axis=1) > 10)[:, None]).any():
        problems.append(f"slots that are hardly ever filled: {filled.tolist()}")
    return problems


def slot_problems(wiring: Wiring, slot: int) -> list[str]:
    """What is wrong with a slot that is ready; nothing of one that is not, or that is freed while it is looked at."""
    unrolls = unrolls_of(wiring)
    filled = int(unrolls.filled[slot])
    held = {name: array[slot].copy() for name, array in unrolls.arrays.items() if array.shape[0] == unrolls.count}
    return unroll_problems(held) if int(unrolls.freed[slot]) < filled else []


def unroll_problems(held: Mapping[str, NDArray[Any]]) -> list[str]:
    """What is wrong with one unroll, `[rows + 1, environments]`."""
    flags, age, ahead = held["flags"][:-1], held["age"][:-1], held["age"][1:]
    seen, led_to, action = held["observation"][:-1], held["observation"][1:], held["action"][:-1]
    final, over = (flags & FINAL) != 0, (flags & (TERMINATED | TRUNCATED)) != 0
    expected, falls = (
        found.reshape(*flags.shape, *found.shape[1:]) for found in physics(seen.reshape(-1, 4), action.ravel())
    )
    fell = (flags & TERMINATED) != 0
    after = np.concatenate([final[1:], over[-1:]])  # what comes behind the last row is another slot's
    wrong: dict[str, NDArray[np.bool_]] = {
        "final row with other flags": final & (flags != FINAL),
        "end without a final row": over & ~after,
        "final row without an end": ~over & after,
        "episode that does not begin at age 0": final & (ahead != 0),
        "ages that do not count on": ~final & (ahead != age + 1),
        "observation that is not finite": ~np.isfinite(held["observation"]).all(axis=-1),
        "episode that begins where none does": (held["age"] == 0) & (np.abs(held["observation"]) > 0.05).any(axis=-1),
        "reward that is not 1": held["reward"][:-1] != ~final,
        "action that is none": ~np.isin(action, (0, 1)) | (final & (action != 0)),
        "probability that is none": ~(np.isfinite(held["log_prob"][:-1]) & (held["log_prob"][:-1] <= 0)),
        "step that breaks the physics": ~final & (np.abs(expected - led_to).max(axis=-1) > 1e-4),
        "fall that is not marked": ~final & falls & ~fell,
        "end without a fall": ~final & ~falls & fell,
        "end before its time": ((flags & TRUNCATED) != 0) & (ahead != 500),
        "version that is none": np.broadcast_to(held["version"][:-1, None] < 0, flags.shape),
    }
    return [
        f"{int(bad.sum())} x {what}, first at row {np.argwhere(bad)[0]}" for what, bad in wrong.items() if bad.any()
    ]


def lane_problems(wiring: Wiring, lane: int, *, live: bool = False) -> list[str]:
    """What is wrong with one lane; of a live one, without what its writer may be changing meanwhile."""
    lanes = lanes_of(wiring)
    head, start = int(lanes.head[lane]), int(lanes.start[lane])
    slots = np.arange(max(0, head - lanes.length + (10 if live else 2)), head)
    at, after = slots % lanes.length, (slots + 1) % lanes.length
    flags, age, ahead = lanes.flags[lane, at], lanes.age[lane, at], lanes.age[lane, after]
    final, over = (flags & FINAL) != 0, (flags & (TERMINATED | TRUNCATED)) != 0
    next_final = np.where(slots + 1 < head, (lanes.flags[lane, after] & FINAL) != 0, False)
    inner = slots + 1 < head
    observation, led_to = lanes.observation[lane, at], lanes.observation[lane, after]
    expected, falls = physics(observation, lanes.action[lane, at])
    wrong: dict[str, NDArray[np.bool_]] = {
        "final slot with other flags": final & (flags != FINAL),
        "end without a final slot": over & inner & ~next_final,
        "final slot without an end": ~over & ~final & next_final,
        "episode that does not begin at age 0": final & inner & (ahead != 0),
        "ages that do not count on": ~final & (ahead != age + 1),
        "observation that is not finite": ~np.isfinite(observation).all(axis=1),
        "reward that is not 1": ~final & (lanes.reward[lane, at] != 1.0),
        "action that is none": ~final & ~np.isin(lanes.action[lane, at], (0, 1)),
        "step that breaks the physics": ~final & (np.abs(expected - led_to).max(axis=1) > 1e-4),
        "fall that is not marked": ~final & falls & ((flags & TERMINATED) == 0),
        "end without a fall": ~final & ~falls & ((flags & TERMINATED) != 0),
    }
    found = [f"{int(bad.sum())} x {what}, first at slot {slots[bad][0]}" for what, bad in wrong.items() if bad.any()]
    if live:
        return found
    held = head - lanes.length < start < head  # a long episode's beginning may be overwritten
    if start > head or (held and int(lanes.age[lane, start % lanes.length]) != 0):
        found.append(f"start {start} and head {head} do not fit")
    channel = channel_of(wiring, "experience")
    if channel.prioritized and channel.readers == 1:
        kept = channel.arrays["priorities"][0][lane * lanes.length + at]
        old = slots < head - 200  # the newest are not yet in the tree
        old &= slots > head - lanes.length + 50
        if not (np.isfinite(kept).all() and (kept >= 0).all()):
            found.append("priorities that are no numbers, or negative")
        if (kept[final & old] != 0).any() or (kept[~final & old] <= 0).any():
            found.append("priorities above 0 for final slots, or none for steps")
    return found


def physics(observation: NDArray[np.float32], action: NDArray[np.integer[Any]]) -> tuple[Any, NDArray[np.bool_]]:
    """CartPole-v1's next states, and whether they are falls (None of the stored states lies on the very edge)."""
    x, x_dot, theta, theta_dot = observation.astype(np.float64).T
    force = np.where(action == 1, 10.0, -10.0)
    temp = (force + 0.05 * theta_dot**2 * np.sin(theta)) / 1.1
    pull = (9.8 * np.sin(theta) - np.cos(theta) * temp) / (0.5 * (4.0 / 3.0 - 0.1 * np.cos(theta) ** 2 / 1.1))
    push = temp - 0.05 * pull * np.cos(theta) / 1.1
    after = np.stack([x + 0.02 * x_dot, x_dot + 0.02 * push, theta + 0.02 * theta_dot, theta_dot + 0.02 * pull], 1)
    return after, (np.abs(after[:, 0]) > 2.4) | (np.abs(after[:, 2]) > 12 * 2 * math.pi / 360)
