"""From options to a plan and an agent, with every refusal made before anything is allocated; then start or resume."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Any

import psutil

from repertory import topologies
from repertory.agents import registry
from repertory.agents.agent import Agent
from repertory.channels.lanes import Lanes
from repertory.channels.slots import UnrollSlots
from repertory.engines import make_driver
from repertory.engines.driver import Driver
from repertory.engines.placement import processes_of
from repertory.environments import factory
from repertory.environments.factory import hushed
from repertory.errors import UserError
from repertory.runs.config import RunOptions, check, environment_options, resolve, to_dict
from repertory.runs.directory import RunDirectory, check_name, fresh_name
from repertory.runs.history import History
from repertory.runs.opening import NOTHING, Supplied, load_state, read_options, remember
from repertory.runs.presets import defaults, find_preset
from repertory.runs.progress import Progress, make_progress
from repertory.runs.session import Session
from repertory.runtime import keep_freed_memory, start_jax, usable_cores
from repertory.specs import EnvironmentSpec, ObservationSpec, Part
from repertory.topologies.graph import Topology
from repertory.topologies.plan import Plan
from repertory.user_code import Given


def prepare(options: RunOptions) -> tuple[RunOptions, Plan, Agent]:
    """The options with everything filled in, the plan for this environment, and the agent."""
    options, plan = draft(options)
    start_jax(plan.compute_threads)
    if plan.large and options.engine == "inline":
        keep_freed_memory()
    return options, plan, plan.agent


def recall(options: RunOptions, spec: EnvironmentSpec) -> Agent:
    """The agent of a run, only to act: its environment is not needed."""
    plan = _plan(resolve(check(options)), spec, {})
    start_jax(plan.compute_threads)
    return plan.agent


def draft(options: RunOptions) -> tuple[RunOptions, Plan]:
    """The same without the agent, before JAX is started: enough to refuse what can't work."""
    options = resolve(check(options))
    for name in (options.environment, options.network.module):
        if isinstance(name, Given) and options.engine != "inline":
            name.pickled()  # an object that can't be sent is refused here
    chosen = environment_options(options)
    scored = factory.evaluation_options(options.environment, chosen)
    plan = _plan(options, factory.describe(options.environment, chosen), scored)
    if not plan.unrolled:
        _check_pacing(plan)
    return options, plan


def _plan(options: RunOptions, spec: EnvironmentSpec, scored: Mapping[str, Any]) -> Plan:
    return Plan(
        environment=options.environment,
        environment_options=environment_options(options),
        evaluation_options=scored,
        spec=spec,
        agent_kind=registry.find(options.agent_name),
        options=options.topology.scaled(options.agent, options.actors),
        topology_kind=topologies.find(options.topology_name),
        topology=options.topology,
        actors=options.actors,
        envs_per_actor=options.envs_per_actor,
        eval_episodes=options.eval_episodes,
        eval_max_steps=options.eval_max_steps,
        seed=options.seed,
        env_steps=options.env_steps,
        threads=options.threads,
        heartbeat_s=options.heartbeat_s,
        restarts=options.restarts,
        network=options.network,
        address=options.address,
        insecure=options.insecure,
    )


SKETCHED = EnvironmentSpec(ObservationSpec((4,), "float32", (Part("number", 4),)), 2)
"""The environment with which `repertory show` draws topologies."""


def sketch(topology: str) -> Topology:
    """The workers and channels of a topology with its default options."""
    return _plan(resolve(check(defaults("", None, topology))), SKETCHED, {}).compose()


def check_memory(plan: Plan) -> None:
    """Refuse a replay, or unrolls, that the machine can't hold."""
    available = psutil.virtual_memory().available
    for channel in _large_channels(plan.compose()):
        if channel.nbytes <= available:
            continue
        free = f"{gigabytes(channel.nbytes)}, but {gigabytes(available)} of memory is free"
        if isinstance(channel, Lanes):
            raise UserError(f"a replay of {channel.capacity:,} steps needs {free}; lower --agent.replay-capacity")
        lower = "lower --topology.queue, --agent.unroll or --envs-per-actor"
        raise UserError(f"{channel.slots:,} slots of unrolls need {free}; {lower}")


def replay_bytes(plan: Plan) -> int:
    """Memory of a full replay."""
    return sum(channel.nbytes for channel in _large_channels(plan.compose()) if isinstance(channel, Lanes))


def _large_channels(topology: Topology) -> list[Lanes | UnrollSlots]:
    return [channel for channel in topology.channels if isinstance(channel, Lanes | UnrollSlots)]


def _check_pacing(plan: Plan) -> None:
    """With a replay that can't hold what learning waits for, the run would wait for ever."""
    need = plan.environments * (plan.q.n_step + plan.spec.observation.stack)
    if plan.q.replay and plan.q.replay_capacity < need:
        raise UserError(
            f"--agent.replay-capacity {plan.q.replay_capacity} is too small for {plan.environments} "
            f"environments: each needs {need // plan.environments} steps; make it at least {need}"
        )


def warnings_of(plan: Plan) -> list[str]:
    """What works, but may not be what the user expects."""
    seen, network = plan.spec.observation, plan.network
    if not seen.pictures or network.module is not None:
        return []
    return [
        f"no convolution reads {', '.join(seen.pictures)}: an observation of several parts becomes one row, "
        f"here of {seen.inputs:,} inputs with {seen.inputs * network.hidden[0]:,} weights in the first layer; return "
        "the picture alone, or cut the row apart in a --network.module of your own"
    ]


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def forecast(options: RunOptions) -> dict[str, Any]:
    """What a run would do; printed by `--dry-run`."""
    options, plan, agent = prepare(options)
    check_memory(plan)
    topology, told = plan.compose(), warnings_of(plan)
    return {
        "environment": options.environment,
        "observation": _seen(plan),
        "actions": plan.spec.actions,
        "action_masks": plan.spec.masked,
        "agent": options.agent_name,
        "parameters": agent.layout.size,
        "topology": options.topology_name,
        "engine": options.engine,
        "processes": 1 if options.engine == "inline" else 1 + len(processes_of(topology, usable_cores())),
        **({"machines": _machines(plan)} if options.engine == "ray" else {}),
        "environments": plan.environments,
        "env_steps": options.env_steps,
        **_updates_ahead(plan, topology),
        "evaluations": options.env_steps // options.eval_every,
        "checkpoints": options.env_steps // options.checkpoint_every,
        **({"warning": "; ".join(told)} if told else {}),
        **({} if plan.unrolled else {"preset": find_preset(options.environment, options.preset).seen}),
    }


def _machines(plan: Plan) -> dict[str, str]:
    from repertory.engines.ray_host import where  # imports Ray

    return where(plan)


def _seen(plan: Plan) -> str:
    seen = plan.spec.observation
    if not any(part.wide for part in seen.parts):
        return f"{seen.seen_shape} {seen.dtype}"
    return f"{sum(part.size for part in seen.parts):,} numbers in {seen.nbytes:,} bytes"


def _updates_ahead(plan: Plan, topology: Topology) -> dict[str, Any]:
    if plan.unrolled:
        slots = sum(channel.slots for channel in topology.channels if isinstance(channel, UnrollSlots))
        learned_steps, calls = plan.env_steps, plan.critic.updates_per_batch
        own: dict[str, Any] = {"unroll": plan.critic.unroll, "slots": slots}
    else:
        learned_steps, calls = max(0, plan.env_steps - plan.q.learning_starts), plan.q.updates_per_call
        own = {
            "replay_ratio": plan.q.replay_ratio,
            "epsilon": _epsilon_ahead(plan, topology),
            "replay_steps": plan.q.replay_capacity,
            "replay_memory": gigabytes(replay_bytes(plan)),
        }
    return {
        "env_steps_per_update": topology.steps_per_update,
        "updates": int(learned_steps / topology.steps_per_update),
        "updates_per_call": calls,
        **own,
    }


def _epsilon_ahead(plan: Plan, topology: Topology) -> dict[str, Any]:
    """The schedule, or the last value of each actor if they differ."""
    assert topology.epsilon is not None
    ends = [topology.epsilon(rank)(plan.env_steps) for rank in range(plan.actors)]
    if len({*ends}) > 1:
        return {f"actor {rank}": round(end, 4) for rank, end in enumerate(ends)}
    first, last, steps = plan.q.epsilon_start, plan.q.epsilon_end, plan.q.epsilon_steps
    half_way = {"env_steps": steps // 2, "value": (first + last) / 2}
    return {"start": first, "half_way": half_way, "end": {"env_steps": steps, "value": last}}


def start(options: RunOptions, *, called_at: float | None = None) -> dict[str, Any]:
    """Train a new run; returns the result."""
    called_at = called_at or time.time()
    if options.name is not None:
        check_name(options.name)
    with _view(options) as view:
        with view.busy("starting"):
            options, plan, _ = prepare(options)
            check_memory(plan)
            engine = make_driver(options.engine, plan)
        with _closed_if_refused(engine):
            name = options.name or fresh_name(options.environment, options.seed, datetime.now(), options.runs_dir)
            directory = RunDirectory.create(options.runs_dir, name)
            _write_config(options, plan, directory, view)
            session = Session(options, engine, directory, History(), view, called_at)
        with directory.hold():
            return session.run()


def resume(
    directory: RunDirectory,
    *,
    env_steps: int | None = None,
    start_from: str = "newest",
    called_at: float | None = None,
    supplied: Supplied = NOTHING,
    **quiet: bool,
) -> dict[str, Any]:
    """Continue a run from one of its checkpoints: newest, exact, best, or one by its env step."""
    called_at = called_at or time.time()
    options = dataclasses.replace(read_options(directory, supplied), seconds=None, **quiet)  # type: ignore[arg-type]
    if env_steps is not None:
        options = dataclasses.replace(options, env_steps=env_steps)
    with directory.hold(), _view(options) as view:
        if start_from in ("newest", "best"):
            _refuse_finished(directory, options)
        with view.busy("loading"):
            options, plan, _ = prepare(options)
            check_memory(plan)
            state = load_state(directory, start_from, view.note)
            engine = make_driver(options.engine, plan)
        with _closed_if_refused(engine):
            if state is not None:
                with view.busy("loading"):
                    engine.load_state(state)
            history = History.load(state)
            history.resumes += 1
            _write_config(options, plan, directory, view)
            session = Session(options, engine, directory, history, view, called_at)
        return session.run()


@contextmanager
def _view(options: RunOptions) -> Iterator[Progress]:
    view = make_progress(
        quiet=options.quiet,
        json=options.json,
        title=f"{options.environment} · {options.agent_name} · {options.topology_name}",
        total_env_steps=options.env_steps,
        total_seconds=options.seconds,
    )
    with closing(view), hushed(options.quiet or options.json):
        yield view


def _write_config(options: RunOptions, plan: Plan, directory: RunDirectory, view: Progress) -> None:
    directory.write_config(to_dict(options), plan.spec)
    for text in [*remember(options), *(f"warning: {text}" for text in warnings_of(plan))]:
        view.note(text)
        directory.add_event(text, 0)


@contextmanager
def _closed_if_refused(engine: Driver) -> Iterator[None]:
    try:
        yield
    except BaseException:
        engine.close()
        raise


def _refuse_finished(directory: RunDirectory, options: RunOptions) -> None:
    result = directory.read_result() or {}
    steps = result.get("env_steps") or 0
    if result.get("status") in ("completed", "solved") and options.env_steps <= steps:
        raise UserError(
            f"{directory.path.name} has made its {steps} env steps already; give --env-steps above that to go on"
        )
