"""The Python API: `train`, `load`, `resume`, `evaluate`, `compare`, and the records they return."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from repertory.agents.networks import name_module
from repertory.environments.factory import name_environment
from repertory.errors import UserError
from repertory.runs import config_file, launch
from repertory.runs.config import change, read_pairs
from repertory.runs.directory import RunDirectory
from repertory.runs.opening import NOTHING, Supplied
from repertory.runs.player import TrainedAgent, load_agent, load_player
from repertory.topologies import DEFAULT as DEFAULT_TOPOLOGY

EnvironmentLike = str | Callable[..., Any]
"""A name, or a function or class that makes a `gymnasium.Env`."""
ModuleLike = str | Callable[..., Any]
"""A name, or a function that takes the number of outputs and returns a `flax.linen.Module`."""


@dataclass(frozen=True, repr=False)
class Run:
    """A run on disk: its directory, and the contents of its result.json."""

    directory: Path
    result: Mapping[str, Any]
    made_with: Supplied = field(default=NOTHING, repr=False, compare=False)
    """The Python objects that were given to `train`; the directory only has their names."""

    @property
    def score(self) -> float:
        """Mean of the last evaluation; NaN before the first."""
        score = self.result["score"]
        return float("nan") if score is None else float(score)

    def __repr__(self) -> str:
        score = "none" if self.result["score"] is None else f"{self.score:.1f}"
        steps = f"{self.result['env_steps']:,} env steps"
        return f"<run {self.directory.name}: {self.result['status']}, score {score}, {steps}, in {self.directory}>"

    def act(self, observation: Any, action_mask: Any = None) -> Any:
        """The greedy action for one observation, or for a batch of them; see `repertory.load`."""
        return self._agent.act(observation, action_mask)

    def reset(self, ended: Any = None) -> None:
        """Begin a new episode: clear the recurrent state; see `repertory.load`."""
        self._agent.reset(ended)

    @cached_property
    def _agent(self) -> TrainedAgent:
        return load_agent(self.directory, supplied=self.made_with)


def train(
    environment: EnvironmentLike | None = None,
    *,
    agent: str | None = None,
    agent_options: Mapping[str, Any] | None = None,
    network_options: Mapping[str, Any] | None = None,
    topology: str | None = None,
    topology_options: Mapping[str, Any] | None = None,
    config: str | Path | None = None,
    preset: str | Path | None = None,
    **options: Any,
) -> Run:
    """Train an agent on an environment, and return its `Run`.

        run = repertory.train("CartPole-v1", env_steps=50_000, agent_options={"dueling": True})
        print(run)                      # status, score, env steps, directory
        action = run.act(observation)

    Defaults are those of the environment's preset, then those that `repertory train ENV --help` shows. A script that
    trains on the engine `processes` needs `if __name__ == "__main__":` around the call. Options that can't work raise a
    `UserError` of one sentence.

    Agent and environment:
        environment: a Gymnasium id, `module:Id`, `path/file.py:factory`, or a function or class that makes one.
        agent: dqn, rainbow, sarsa, a3c, impala or appo; by default the one that suits the topology.
        agent_options: the agent's own options by name, such as `learning_rate`, `discount`, `batch_size`, `n_step`.
        network_options: `kind`, `hidden` (a list of widths), `module` (import path of a function that returns a Flax
            module, or the function itself), `lstm_size`, and others.
        env_option: texts "KEY=VALUE", arguments of the environment's constructor.
        seed: random seed of the whole run, 0 to 2**32 - 1.
        config: a .json or .toml file of these options, or a run's directory; arguments of this call override it.
        preset: a .toml file of default settings, or a name that `repertory presets` lists.
    Length of the run:
        env_steps: stop after this many env steps (agent decisions, all environments added up).
        seconds: stop after this many seconds of training.
        target_score: stop as soon as the mean return of an evaluation reaches it.
    Workers:
        topology: single, collectors, apex, impala, ...; `repertory show` lists them.
        topology_options: the topology's own options by name; `repertory train ENV --topology NAME --help` shows them.
        engine: "inline" (one process), "processes" (many on this machine) or "ray" (many machines).
        actors: number of actors; 1 in `single`.
        envs_per_actor: number of vectorized environments of each actor.
        threads: compute threads of each learner with a convolutional network; 0 = its share of the cores.
        heartbeat_s: heartbeat timeout: seconds without progress after which a worker is killed and restarted.
        restarts: maximum number of restarts of a worker in a row without progress; then the run ends.
        address: Ray cluster to join, with engine="ray": auto, or HOST:PORT; by default a local one is started.
        insecure: join a cluster without token authentication.
    Evaluations, logs and checkpoints:
        eval_every: env steps between evaluations.
        eval_every_s: seconds between evaluations, in addition to those.
        eval_episodes: greedy episodes of an evaluation.
        eval_max_steps: maximum episode length in evaluations, in steps; the return so far counts.
        log_every: env steps between lines of metrics.
        checkpoint_every: env steps between checkpoints.
        keep_checkpoints: number of newest checkpoints to keep.
        runs_dir: directory in which the run directory is created.
        name: name of the run directory; by default made of environment, seed and time.
        quiet: no live view; by default there is one on a terminal and in a notebook.
        json: the same as `quiet`; for the command line.
        dry_run: refused; it is for the command line.
    """
    called_at = time.time()
    if options.get("dry_run"):
        raise UserError("dry_run is for the command line: repertory train ENV --dry-run")
    file = config_file.read(config) if config is not None else config_file.ConfigFile()
    found = environment or file.text("environment")
    if not found:
        raise UserError('train needs an environment, for example: repertory.train("CartPole-v1")')
    network = dict(network_options or {})
    made_with = Supplied(found, network.get("module"), trust=True)
    name = name_environment(found, read_pairs(options.get("env_option", ()), "env_option"))
    topology = topology or file.text("topology_name") or DEFAULT_TOPOLOGY
    named = str(preset or file.text("preset")) or None
    usual = file.options(name, agent or file.agent(topology) or None, topology, named)
    if "module" in network:
        network["module"] = name_module(network["module"])
    chosen = change(usual, {"quiet": usual.quiet or not _has_viewer(), **options})
    chosen = change(chosen, {"agent": agent_options or {}, "network": network, "topology": topology_options or {}})
    file.require_trust(chosen, [name if environment else "", network.get("module")])
    result = launch.start(chosen, called_at=called_at)
    return Run(Path(result["directory"]), result, made_with)


def load(
    run: str | Path | Run,
    *,
    checkpoint: str | int = "newest",
    network_module: ModuleLike | None = None,
    trust: bool = False,
    runs_dir: str | Path = "runs",
) -> TrainedAgent:
    """The agent of a run, ready to act. Its environment need not be installed, and is not built.

    run: the run's name in `runs_dir`, its directory, or the `Run` that `train` returned.
    checkpoint: `newest`, `best` (by evaluation), `exact`, or the number of env steps of one.
    network_module: the network again, if it was given to `train` as a Python object.
    trust: import the code of a network that the run names, though you have not trained with it on this machine.

        agent = repertory.load("runs/cartpole-v1-s0-20261115-230633")
        action = agent.act(observation)                        # one observation: an int
        actions = agent.act(observations)                      # a batch, [N, ...]: an array of N
        action = agent.act(observation, info["action_mask"])   # where not all actions are legal
        agent.reset()                                          # a new episode, for agents with --network.lstm-size
    """
    return load_agent(_directory(run, runs_dir).path, str(checkpoint), _supplied(run, None, network_module, trust))


def resume(
    run: str | Path | Run,
    *,
    env_steps: int | None = None,
    start_from: str | int = "newest",
    environment: EnvironmentLike | None = None,
    network_module: ModuleLike | None = None,
    trust: bool = False,
    runs_dir: str | Path = "runs",
) -> Run:
    """Continue a run from a checkpoint: `newest`, `exact`, `best`, or the number of env steps of one.

    Give Python objects that were given to `train` again; `trust` a run whose code is not yours.
    """
    supplied = _supplied(run, environment, network_module, trust)
    result = launch.resume(
        _directory(run, runs_dir),
        env_steps=env_steps,
        start_from=str(start_from),
        supplied=supplied,
        quiet=not _has_viewer(),
    )
    return Run(Path(result["directory"]), result, supplied)


def evaluate(
    run: str | Path | Run,
    *,
    episodes: int = 20,
    seed: int = 0,
    checkpoint: str | int = "newest",
    environment: EnvironmentLike | None = None,
    network_module: ModuleLike | None = None,
    trust: bool = False,
    runs_dir: str | Path = "runs",
) -> dict[str, Any]:
    """Play greedy episodes with a run's checkpoint (`newest`, `best`, `exact`, or its env steps); returns the mean, the
    standard deviation, and each return and length.

    Give Python objects that were given to `train` again; `trust` a run whose code is not yours.
    """
    supplied = _supplied(run, environment, network_module, trust)
    played = load_player(_directory(run, runs_dir).path, supplied, str(checkpoint)).evaluate(episodes, seed)
    return played.summary()


def _supplied(run: str | Path | Run, environment: Any, network_module: Any, trust: bool) -> Supplied:
    """What is given now, or else what the `Run` was made with."""
    before = run.made_with if isinstance(run, Run) else NOTHING
    now_environment = before.environment if environment is None else environment
    now_module = before.network_module if network_module is None else network_module
    return Supplied(now_environment, now_module, trust or before.trust)


@dataclass(frozen=True)
class Study:
    """A study on disk: `pandas.DataFrame(study.trials)` has a row for each run, `study.evaluations` for each score."""

    directory: Path
    report: Path | None
    trials: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]


def compare(environment: str, *, topologies: str | Sequence[str] = "all", **options: Any) -> Study:
    """Train topologies one after another with one budget; `options` are those of the command line, with underscores.

    The same call again continues a study that was interrupted.
    """
    from repertory.studies.entrants import CompareOptions
    from repertory.studies.results import evaluation_rows, trial_rows
    from repertory.studies.runner import run_study, say, silently

    if not isinstance(environment, str):
        raise UserError(
            "compare makes each run in a process of its own and needs the environment by name; write the function into "
            "a file and give its name, file.py:function"
        )
    names = topologies if isinstance(topologies, str) else ",".join(topologies)
    quiet = options.pop("quiet", not _has_viewer())
    study = change(CompareOptions(environment), {"topologies": names, "quiet": quiet, **options})
    outcome = run_study("compare", study, silently if study.quiet else say)
    if outcome.interrupted:
        raise KeyboardInterrupt
    results = outcome.results
    return Study(outcome.directory, outcome.report, trial_rows(results), evaluation_rows(results))


def _directory(run: str | Path | Run, runs_dir: str | Path) -> RunDirectory:
    return RunDirectory.open(run.directory if isinstance(run, Run) else run, Path(runs_dir))


def _has_viewer() -> bool:
    """Whether there is a terminal or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules
