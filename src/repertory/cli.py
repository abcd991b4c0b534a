"""The commands; thin: parse, call, print. An error is one sentence and exit code 2; interrupted is 130."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
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
from repertory.output import forgive_output, result_stream, results_alone
from repertory.runs import config_file
from repertory.runtime import ending_signals, start_fork_server

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    forgive_output()
    end_what_hangs()
    alone = "--json" in arguments and not {"-h", "--help"} & {*arguments}
    try:
        with results_alone() if alone else contextlib.nullcontext(), _leave_at_once():
            return _dispatch(arguments)
    except EnvironmentFailure as error:
        if error.__cause__ is not None and _has_foreign_frame(error.__cause__):
            print(plain("".join(traceback.format_exception(error.__cause__))), end="", file=sys.stderr)
        return _refuse(str(error))
    except UserError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED


@contextlib.contextmanager
def _leave_at_once() -> Iterator[None]:
    """Before a run has begun there is nothing to save, and after it nothing is left to: a signal just ends us.

    Not by KeyboardInterrupt: raised inside one of the array library's callbacks, that is lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ending_signals()}
    for number in before:
        signal.signal(number, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _has_foreign_frame(error: BaseException) -> bool:
    """Whether it went through code that is not ours: then its traceback helps the user, else the sentence is all."""
    ours = str(Path(__file__).parent)
    return any(not frame.filename.startswith(ours) for frame in traceback.extract_tb(error.__traceback__))


def _refuse(sentence: str) -> int:
    print(f"repertory: {sentence}", file=sys.stderr)
    return 2


def _print_json(value: Any) -> None:
    print(json.dumps(value), file=result_stream(), flush=True)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        from repertory import __version__

        print(__version__)
        return 0
    command, rest = arguments[0], arguments[1:]
    if command not in COMMANDS:
        raise UserError(f"unknown command {command!r}{nearest(command, COMMANDS)}")
    return COMMANDS[command](rest)


def _overview() -> str:
    lines = ["usage: repertory COMMAND ...   (repertory COMMAND --help tells its options)", ""]
    lines += [f"  {name:<10} {(function.__doc__ or '').strip()}" for name, function in COMMANDS.items()]
    return "\n".join(lines)


def train(arguments: list[str]) -> int:
    """train an agent on an environment"""
    called_at = psutil.Process().create_time()
    given = _bare_words(arguments)
    file = config_file.read(given["--config"]) if "--config" in given else config_file.ConfigFile()
    topology = given.get("--topology") or file.text("topology_name") or topologies.DEFAULT
    _start_early(given.get("--engine") or file.text("engine"), topology)
    from repertory.runs import launch
    from repertory.runs.config import options_for
    from repertory.runs.presets import choose_agent

    asked = [argument for argument in arguments if argument not in ("-h", "--help")]
    agent = given.get("--agent") or file.agent(topology) or choose_agent(topology)
    kind = options_for(agent, topology)
    first = parse(kind, asked, "train", kind(file.text("environment")))
    if not first.environment and asked == arguments:
        raise UserError("train needs an environment, for example: repertory train CartPole-v1")
    chosen = file.options(first.environment, agent, topology, first.preset or file.text("preset") or None)
    options = parse(kind, arguments, "train", chosen)
    file.require_trust(options, [*given, *given.values()])
    if options.dry_run:
        return _dry_run(options)
    return _conclude(launch.start(options, called_at=called_at), options.json)


def _start_early(engine: str, topology: str) -> None:
    """Let the process that forks workers import while this one does; a guess from the bare words is good enough."""
    if engine == "processes" or (not engine and topology != topologies.DEFAULT):
        start_fork_server()


def _bare_words(arguments: list[str]) -> dict[str, str]:
    """Each word and the one behind it; `--option=value` is two."""
    halves = (argument.split("=", 1) if argument.startswith("--") else [argument] for argument in arguments)
    return dict(itertools.pairwise(itertools.chain.from_iterable(halves)))


def _dry_run(options: Any) -> int:
    from repertory.runs.launch import check_memory, forecast, prepare
    from repertory.runs.presets import find_preset

    options, plan, agent = prepare(options)
    check_memory(plan)
    values = forecast(options, plan, agent)
    if options.json:
        _print_json(values)
        return 0
    width = max(map(len, values))
    for key, value in values.items():
        print(f"{key:<{width}}  {value}")
    if not plan.unrolled:
        print(f"{'preset':<{width}}  {find_preset(options.environment, options.preset).seen}")
    return 0


def _conclude(result: dict[str, Any], as_json: bool) -> int:
    """Say how a run ended."""
    if as_json:
        _print_json(result)
    else:
        score = "none" if result["score"] is None else f"{result['score']:.1f}"
        if result["unfinished_episodes"]:
            score += _cut_off(result)
        print(
            f"{result['status']}: score {score} after {result['env_steps']:,} env steps and "
            f"{result['updates']:,} updates in {result['seconds']:.1f} s (start-up {result['startup_s']:.1f} s)"
        )
        for warning in result["warnings"]:
            print(warning)
        print(f"the run lies in {result['directory']}")
        best = result["best"]
        if best is not None and best["mean"] > (-math.inf if result["score"] is None else result["score"]):
            print(f"best: score {best['mean']:.1f} at {best['env_steps']:,} env steps", end="; ")
            print(f"play it with: repertory evaluate {shlex.quote(result['directory'])} --checkpoint best")
    return INTERRUPTED if result["status"] == "interrupted" else 0


def _cut_off(result: dict[str, Any]) -> str:
    """Which evaluation the score is of, where the last one was cut off."""
    last = result["evaluations"][-1]
    many = f"{result['unfinished_episodes']} of {last['episodes']} episodes of the last evaluation were cut off"
    if result["score_env_steps"] == last["env_steps"]:
        return f" ({many}: time was up)"
    return f" (of env step {result['score_env_steps']:,}; {many} at a mean of {last['mean']:.1f}: time was up)"


def resume(arguments: list[str]) -> int:
    """go on with a run from its newest checkpoint"""
    called_at = psutil.Process().create_time()
    from repertory.runs import launch
    from repertory.runs.directory import RunDirectory
    from repertory.runs.opening import Supplied

    options = parse(ResumeOptions, arguments, "resume")
    if options.env_steps is not None and options.env_steps < 1:
        raise UserError(f"--env-steps must be above 0, not {options.env_steps}")
    directory = RunDirectory.open(options.run, options.runs_dir)
    result = launch.resume(
        directory,
        env_steps=options.env_steps,
        start_from=options.start_from,
        called_at=called_at,
        supplied=Supplied(options.environment, options.network_module, options.trust),
        quiet=options.quiet,
        json=options.json,
    )
    return _conclude(result, options.json)


def evaluate(arguments: list[str]) -> int:
    """play greedy episodes with a run's agent, and film one"""
    from repertory.environments.factory import hushed
    from repertory.runs.directory import RunDirectory
    from repertory.runs.opening import Supplied
    from repertory.runs.player import load_player

    options = parse(EvaluateOptions, arguments, "evaluate")
    if options.episodes < 1:
        raise UserError(f"--episodes must be above 0, not {options.episodes}")
    supplied = Supplied(options.environment, options.network_module, options.trust)
    with hushed(options.quiet or options.json):
        path = RunDirectory.open(options.run, options.runs_dir).path
        player = load_player(path, supplied, options.checkpoint)
        film = None if options.record is None else player.record(options.record, options.seed)
        result = player.evaluate(options.episodes, options.seed).summary()
    if film is not None:
        result["recorded"] = {"file": str(options.record), "return": float(film.returns[0])}
    if options.json:
        _print_json(result)
    else:
        print(f"score {result['mean']:.1f} ± {result['std']:.1f} over {result['episodes']} greedy episodes")
        if options.record is not None:
            print(f"a film of one (return {result['recorded']['return']:.1f}) lies in {options.record}")
    return 0


def show(arguments: list[str]) -> int:
    """draw a topology, or list them all"""
    from repertory.runs.launch import sketch
    from repertory.runs.listing import topologies_table
    from repertory.topologies.graph import draw

    name = parse(ShowOptions, arguments, "show").topology
    if name:
        kind = topologies.find(name)
        print(draw(kind, sketch(kind.name)))
    else:
        print(topologies_table(topologies.known().values()))
    return 0


def presets(arguments: list[str]) -> int:
    """list the settings that were seen to work, by environment"""
    from repertory.runs.listing import presets_table
    from repertory.runs.presets import known

    options = parse(PresetsOptions, arguments, "presets")
    if options.json:
        _print_json([preset.summary() for preset in known().values()])
    else:
        print(presets_table([preset.summary() for preset in known().values()]))
    return 0


def runs(arguments: list[str]) -> int:
    """list the runs in a directory"""
    from repertory.runs.directory import list_runs
    from repertory.runs.listing import runs_table

    options = parse(RunsOptions, arguments, "runs")
    found = list_runs(options.runs_dir)
    if options.json:
        _print_json(found)
        return 0
    print(runs_table(found) if found else f"no runs in {options.runs_dir}")
    return 0


def doctor(arguments: list[str]) -> int:
    """look whether this machine has what training needs"""
    from repertory.runs.doctor import examine

    options = parse(DoctorOptions, arguments, "doctor")
    findings = examine()
    if options.json:
        _print_json(findings)
    else:
        for finding in findings:
            print(f"{'ok  ' if finding['ok'] else 'LOOK'} {finding['what']:<22} {finding['found']}")
    return 0


def completion(arguments: list[str]) -> int:
    """print a script that completes commands and options in bash, zsh or fish"""
    from repertory.completion import script

    print(script(parse(CompletionOptions, arguments, "completion").shell))
    return 0


def compare(arguments: list[str]) -> int:
    """train several topologies with one budget, and report which suits an environment"""
    from repertory.studies.entrants import CompareOptions
    from repertory.studies.runner import run_compare

    return run_compare(parse(CompareOptions, arguments, "compare"))


def ablate(arguments: list[str]) -> int:
    """train a DQN without each of its parts, and report what they are worth"""
    from repertory.studies.entrants import AblateOptions
    from repertory.studies.runner import run_ablate

    return run_ablate(parse(AblateOptions, arguments, "ablate"))


def scale(arguments: list[str]) -> int:
    """train a topology with more and more actors, and report what they give"""
    from repertory.studies.entrants import ScaleOptions
    from repertory.studies.runner import run_scale

    return run_scale(parse(ScaleOptions, arguments, "scale"))


def report(arguments: list[str]) -> int:
    """make such a report from runs that there are"""
    from repertory.studies.entrants import ReportOptions
    from repertory.studies.runner import run_report

    return run_report(parse(ReportOptions, arguments, "report"))


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "resume": resume,
    "evaluate": evaluate,
    "compare": compare,
    "ablate": ablate,
    "scale": scale,
    "report": report,
    "show": show,
    "presets": presets,
    "runs": runs,
    "doctor": doctor,
    "completion": completion,
}

if __name__ == "__main__":
    sys.exit(main())
