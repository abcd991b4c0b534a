"""From options to a plan and an agent, with every refusal made before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psutil

from repertory import topologies
from repertory.agents.agent import Agent
from repertory.agents.networks import convolves
from repertory.engines.plan import Company, Plan
from repertory.engines.stage import crews_of
from repertory.environments import factory
from repertory.errors import UserError
from repertory.runs.config import RunOptions, check, environment_options, resolve
from repertory.runtime import keep_freed_memory, start_jax, usable_cores
from repertory.specs import EnvironmentSpec
from repertory.user_code import Given


def stage(options: RunOptions) -> tuple[RunOptions, Plan, Agent]:
    """Options with everything filled in, what they mean for this environment, and the agent."""
    options, plan = draft(options)
    start_jax(plan.strategy().threads)
    if plan.strategy().slice_rows and options.engine == "inline":
        keep_freed_memory()
    return options, plan, plan.make_agent()


def recall(options: RunOptions, spec: EnvironmentSpec) -> Agent:
    """The agent of a run, only to act: its environment is neither looked for nor built."""
    plan = _plan(resolve(check(options)), spec, {})
    start_jax(plan.strategy().threads)
    return plan.make_agent()


def draft(options: RunOptions) -> tuple[RunOptions, Plan]:
    """The same without the agent, before JAX is started: enough to refuse what can't be."""
    options = resolve(check(options))
    for name in (options.environment, options.network.module):
        if isinstance(name, Given) and options.engine == "processes":
            name.pickled()  # refused here, before anything has begun
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
        options=options.topology.scaled(options.agent, options.actors),
        actors=options.actors,
        envs_per_actor=options.envs_per_actor,
        eval_episodes=options.eval_episodes,
        eval_max_steps=options.eval_max_steps,
        seed=options.seed,
        env_steps=options.env_steps,
        threads=options.threads,
        network=options.network,
        topology=topologies.find(options.topology_name),
        company=Company.of(options.topology, heartbeat_s=options.heartbeat_s, restarts=options.restarts),
    )


def check_memory(plan: Plan) -> None:
    """Refuse a replay, or unrolls, that the machine can't hold."""
    available = psutil.virtual_memory().available
    if plan.unrolled and plan.unroll_bytes > available:
        raise UserError(
            f"{plan.writers * plan.slots_per_writer:,} slots of unrolls need {gigabytes(plan.unroll_bytes)}, but "
            f"{gigabytes(available)} of memory is free; lower --topology.queue, --agent.unroll or --envs-per-actor"
        )
    if not plan.unrolled and plan.replay_bytes > available:
        raise UserError(
            f"a replay of {plan.q.replay_capacity:,} steps needs {gigabytes(plan.replay_bytes)}, but "
            f"{gigabytes(available)} of memory is free; lower --agent.replay-capacity"
        )


def _check_pacing(plan: Plan) -> None:
    """A replay that never holds what learning waits for would wait for ever."""
    need = plan.environments * (plan.q.n_step + plan.spec.observation.stack)
    if plan.q.replay and plan.q.replay_capacity < need:
        raise UserError(
            f"--agent.replay-capacity {plan.q.replay_capacity} is too small for {plan.environments} "
            f"environments: each needs {need // plan.environments} steps; make it at least {need}"
        )


def warnings_of(plan: Plan) -> list[str]:
    """What the user should know before the run begins."""
    seen, network = plan.spec.observation, plan.network
    if not seen.pictures or network.module is not None:
        return []
    return [
        f"no convolution reads {', '.join(seen.pictures)}: an observation of several parts becomes one row, "
        f"here of {seen.inputs:,} inputs with {seen.inputs * network.hidden[0]:,} weights in the first layer; return "
        "the picture alone, or cut the row apart in a --network.module of your own"
    ]


def gigabytes(size: float) -> str:
    """A size for people."""
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def forecast(options: RunOptions, plan: Plan, agent: Agent) -> dict[str, Any]:
    """What a run would do, in the units of everything else; printed by `--dry-run`."""
    return {
        "environment": options.environment,
        "observation": _seen(plan),
        "actions": plan.spec.actions,
        "action_masks": plan.spec.masked,
        "agent": options.agent_name,
        "parameters": agent.layout.size,
        "topology": options.topology_name,
        "engine": options.engine,
        "processes": 1 if options.engine == "inline" else 1 + len(crews_of(plan, usable_cores())),
        "environments": plan.environments,
        "env_steps": options.env_steps,
        **(_unrolls_ahead(options, plan) if plan.unrolled else _memory_ahead(options, plan)),
        "evaluations": options.env_steps // options.eval_every,
        "checkpoints": options.env_steps // options.checkpoint_every,
        **({"warning": "; ".join(told)} if (told := warnings_of(plan)) else {}),
    }


def _seen(plan: Plan) -> str:
    seen = plan.spec.observation
    if not any(part.wide for part in seen.parts):
        return f"{seen.seen_shape} {seen.dtype}"
    return f"{sum(part.size for part in seen.parts):,} numbers in {seen.nbytes:,} bytes"


def _unrolls_ahead(options: RunOptions, plan: Plan) -> dict[str, Any]:
    return {
        "env_steps_per_update": plan.steps_per_update,
        "updates": int(options.env_steps / plan.steps_per_update),
        "updates_per_call": plan.critic.updates_per_batch,
        "unroll": plan.critic.unroll,
        "slots": plan.writers * plan.slots_per_writer,
    }


def _memory_ahead(options: RunOptions, plan: Plan) -> dict[str, Any]:
    settings = plan.q
    learned_steps = max(0, options.env_steps - settings.learning_starts)
    samples = settings.batch_size * plan.batches_per_update
    half = (settings.epsilon_start + settings.epsilon_end) / 2
    return {
        "env_steps_per_update": samples / settings.replay_ratio,
        "replay_ratio": settings.replay_ratio,
        "updates": int(learned_steps * settings.replay_ratio / samples),
        "updates_per_call": settings.updates_per_call,
        "epsilon": {
            "start": settings.epsilon_start,
            "half_way": {"env_steps": settings.epsilon_steps // 2, "value": half},
            "end": {"env_steps": settings.epsilon_steps, "value": settings.epsilon_end},
        }
        if plan.company.exploration == "same"
        else {f"actor {rank}": round(plan.epsilon(options.env_steps, rank), 4) for rank in range(plan.actors)},
        "replay_steps": settings.replay_capacity,
        "replay_memory": gigabytes(plan.replay_bytes),
    }
