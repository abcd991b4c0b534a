"""The commands: parse, call, print. An error is one sentence and exit code 2; an interrupted run exits with 130."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from repertory import topologies
from repertory.commands import (
    CompletionOptions,
    DoctorOptions,
    EvaluateOptions,
    PresetsOptions,
    ResumeOptions,
    RunsOptions,
    ShowOptions,
    parse,
)
from repertory.environments.deadlines import end_what_hangs
from repertory.errors import EnvironmentFailure, UserError, nearest, plain
from repertory.output import aligned, forgive_output, result_stream, results_alone
from repertory.runs import config_file
from repertory.runtime import handle_ending_signals, start_fork_server

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    forgive_output()
    end_what_hangs()
    alone = "--json" in arguments and not {"-h", "--help"} & {*arguments}
    try:
        # Before and after a run there is nothing to save, so a signal ends the process; not by KeyboardInterrupt,
        # as JAX loses one that is raised inside its callbacks.
        with (
            results_alone() if alone else contextlib.nullcontext(),
            handle_ending_signals(lambda *_: os._exit(INTERRUPTED)),
        ):
            return _dispatch(arguments)
    except EnvironmentFailure as error:
        if error.__cause__ is not None and _has_foreign_frame(error.__cause__):
            print(plain("".join(traceback.format_exception(error.__cause__))), end="", file=sys.stderr)
        return _refuse(str(error))
    except UserError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED


def _has_foreign_frame(error: BaseException) -> bool:
    """Whether the error passed through code that is not ours: only then its traceback helps the user."""
    ours = str(Path(__file__).parent)
    return any(not frame.filename.startswith(ours) for frame in traceback.extract_tb(error.__traceback__))


def _refuse(sentence: str) -> int:
    print(f"repertory: {sentence}", file=sys.stderr)
    return 2


def _print_result(value: Any, as_json: bool, text: Callable[[], str]) -> int:
    print(json.dumps(value) if as_json else text(), file=result_stream(), flush=True)
    return 0


def _dispatch(arguments: list[str]) -> int:
    name, rest = arguments[0] if arguments else "--help", arguments[1:]
    if name in ("-h", "--help"):
        print("usage: repertory COMMAND ...   (repertory COMMAND --help tells its options)\n")
        print("\n".join(f"  {name:<10} {command.summary}" for name, command in COMMANDS.items()))
        return 0
    if name == "--version":
        from repertory import __version__

        print(__version__)
        return 0
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}{nearest(name, COMMANDS)}")
    command = COMMANDS[name]
    return command.run(rest if command.options is None else parse(command.options, rest, name))


def train(arguments: list[str]) -> int:
    given = _bare_words(arguments)
    file = config_file.read(given["--config"]) if "--config" in given else config_file.ConfigFile()
    topology = given.get("--topology") or file.text("topology_name") or topologies.DEFAULT
    engine = given.get("--engine") or file.text("engine")
    if engine == "processes" or (not engine and topology != topologies.DEFAULT):
        start_fork_server()  # it imports while this process does; a guess from the bare words is good enough
    from repertory.runs import launch
    from repertory.runs.config import options_for
    from repertory.runs.presets import choose_agent

    without_help = [argument for argument in arguments if argument not in ("-h", "--help")]
    agent = given.get("--agent") or file.agent(topology) or choose_agent(topology)
    kind = options_for(agent, topology)
    first = parse(kind, without_help, "train", kind(file.text("environment")))
    if not first.environment and without_help == arguments:
        raise UserError("train needs an environment, for example: repertory train CartPole-v1")
    chosen = file.options(first.environment, agent, topology, first.preset or file.text("preset") or None)
    options = parse(kind, arguments, "train", chosen)
    file.require_trust(options, [*given, *given.values()])
    if options.dry_run:
        values = launch.forecast(options)
        return _print_result(values, options.json, lambda: aligned([(key, str(values[key])) for key in values]))
    return _conclude(launch.start(options, called_at=psutil.Process().create_time()), options.json)


def _bare_words(arguments: list[str]) -> dict[str, str]:
    """Each word and the one behind it; `--option=value` is two."""
    halves = (argument.split("=", 1) if argument.startswith("--") else [argument] for argument in arguments)
    return dict(itertools.pairwise(itertools.chain.from_iterable(halves)))


def _conclude(result: dict[str, Any], as_json: bool) -> int:
    _print_result(result, as_json, lambda: _summary(result))
    return INTERRUPTED if result["status"] == "interrupted" else 0


def _summary(result: dict[str, Any]) -> str:
    """How a run ended, where it is saved, and which checkpoint is the best."""
    score, best = result["score"], result["best"]
    told = "none" if score is None else f"{score:.1f}"
    lines = [
        f"{result['status']}: score {told}{_cut_off(result)} after {result['env_steps']:,} env steps and "
        f"{result['updates']:,} updates in {result['seconds']:.1f} s (start-up {result['startup_s']:.1f} s)",
        *result["warnings"],
        f"run saved to {result['directory']}",
    ]
    if best is not None and best["mean"] > (-math.inf if score is None else score):
        play = f"repertory evaluate {shlex.quote(result['directory'])} --checkpoint best"
        lines.append(f"best: score {best['mean']:.1f} at {best['env_steps']:,} env steps; play it with: {play}")
    return "\n".join(lines)


def _cut_off(result: dict[str, Any]) -> str:
    """Which evaluation the score is of, if the last one was cut off."""
    if not result["unfinished_episodes"]:
        return ""
    last = result["evaluations"][-1]
    many = f"{result['unfinished_episodes']} of {last['episodes']} episodes of the last evaluation were cut off"
    if result["score_env_steps"] == last["env_steps"]:
        return f" ({many}: time was up)"
    return f" (of env step {result['score_env_steps']:,}; {many} at a mean of {last['mean']:.1f}: time was up)"


def resume(options: ResumeOptions) -> int:
    from repertory.runs import launch
    from repertory.runs.directory import RunDirectory
    from repertory.runs.opening import Supplied

    if options.env_steps is not None and options.env_steps < 1:
        raise UserError(f"--env-steps must be above 0, not {options.env_steps}")
    result = launch.resume(
        RunDirectory.open(options.run, options.runs_dir),
        env_steps=options.env_steps,
        start_from=options.start_from,
        called_at=psutil.Process().create_time(),
        supplied=Supplied(options.environment, options.network_module, options.trust),
        quiet=options.quiet,
        json=options.json,
    )
    return _conclude(result, options.json)


def evaluate(options: EvaluateOptions) -> int:
    from repertory.environments.factory import hushed
    from repertory.runs.directory import RunDirectory
    from repertory.runs.opening import Supplied
    from repertory.runs.player import load_player

    if options.episodes < 1:
        raise UserError(f"--episodes must be above 0, not {options.episodes}")
    supplied = Supplied(options.environment, options.network_module, options.trust)
    with hushed(options.quiet or options.json):
        path = RunDirectory.open(options.run, options.runs_dir).path
        player = load_player(path, supplied, options.checkpoint)
        film = None if options.record is None else player.record(options.record, options.seed)
        result = player.evaluate(options.episodes, options.seed).summary()
    text = f"score {result['mean']:.1f} ± {result['std']:.1f} over {result['episodes']} greedy episodes"
    if film is not None:
        result["recorded"] = {"file": str(options.record), "return": float(film.returns[0])}
        text += f"\nvideo of one episode (return {film.returns[0]:.1f}) saved to {options.record}"
    return _print_result(result, options.json, lambda: text)


def show(options: ShowOptions) -> int:
    from repertory.runs.launch import sketch
    from repertory.topologies.graph import draw

    if options.topology:
        kind = topologies.find(options.topology)
        print(draw(kind, sketch(kind.name)))
    else:
        print(aligned([(kind.name, kind.summary) for kind in topologies.known().values()]))
    return 0


def presets(options: PresetsOptions) -> int:
    from repertory.runs.presets import known

    found = known().values()
    return _print_result(
        [preset.summary() for preset in found], options.json, lambda: "\n".join(preset.text() for preset in found)
    )


def runs(options: RunsOptions) -> int:
    from repertory.runs.directory import list_runs, runs_table

    found = list_runs(options.runs_dir)
    return _print_result(found, options.json, lambda: runs_table(found) if found else f"no runs in {options.runs_dir}")


def doctor(options: DoctorOptions) -> int:
    from repertory.runs.doctor import examine, examine_cluster

    found = examine() if options.address is None else examine_cluster(options.address, options.insecure)
    rows = [("ok" if each["ok"] else "LOOK", each["what"], each["found"]) for each in found]
    return _print_result(found, options.json, lambda: aligned(rows))


def completion(options: CompletionOptions) -> int:
    from repertory.completion import script

    print(script(options.shell))
    return 0


def _study(command: str, arguments: list[str]) -> int:
    from repertory.studies import entrants, runner

    if command == "report":
        return runner.run_report(parse(entrants.ReportOptions, arguments, command))
    kinds = {"compare": entrants.CompareOptions, "ablate": entrants.AblateOptions, "scale": entrants.ScaleOptions}
    return runner.run(command, parse(kinds[command], arguments, command))


@dataclass(frozen=True)
class Command:
    """What help tells of a command, and its function. It gets the parsed options or, without a class, the arguments."""

    summary: str
    run: Callable[[Any], int]
    options: type | None = None


COMMANDS = {
    "train": Command("train an agent on an environment", train),
    "resume": Command("continue a run from one of its checkpoints", resume, ResumeOptions),
    "evaluate": Command("play greedy episodes with a run's agent, and record one", evaluate, EvaluateOptions),
    "compare": Command(
        "train several topologies with one budget, and report which suits an environment", partial(_study, "compare")
    ),
    "ablate": Command(
        "train a DQN without each of its parts, and report what each contributes", partial(_study, "ablate")
    ),
    "scale": Command(
        "train a topology with more and more actors, and report what they contribute", partial(_study, "scale")
    ),
    "report": Command("make such a report from runs that exist", partial(_study, "report")),
    "show": Command("draw a topology, or list all", show, ShowOptions),
    "presets": Command("list the settings that were seen to work, by environment", presets, PresetsOptions),
    "runs": Command("list the runs in a directory", runs, RunsOptions),
    "doctor": Command("check whether this machine has what training needs", doctor, DoctorOptions),
    "completion": Command(
        "print a script that completes commands and options in bash, zsh or fish", completion, CompletionOptions
    ),
}

if __name__ == "__main__":
    sys.exit(main())
