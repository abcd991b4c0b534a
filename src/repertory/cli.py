"""The commands; thin: parse, call, print. An error is one sentence and exit code 2; interrupted is 130."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import psutil
import tyro

from repertory.errors import EnvironmentFailure, UserError, nearest
from repertory.runtime import start_fork_server

INTERRUPTED = 130


@dataclass(frozen=True)
class ResumeOptions:
    """Go on with a run from its newest checkpoint."""

    run: tyro.conf.Positional[str]
    """The run's name, or its directory."""
    env_steps: int | None = None
    """A new total of env steps."""
    runs_dir: Path = Path("runs")
    """Where run directories lie."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """No live view."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as one JSON line and nothing else."""


@dataclass(frozen=True)
class EvaluateOptions:
    """Play greedy episodes with a run's newest checkpoint."""

    run: tyro.conf.Positional[str]
    """The run's name, or its directory."""
    episodes: int = 20
    """How many episodes."""
    seed: int = 0
    """The environments' seeds follow from it."""
    record: Path | None = None
    """Write a film of one episode: .mp4 or .gif."""
    runs_dir: Path = Path("runs")
    """Where run directories lie."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as one JSON line and nothing else."""


@dataclass(frozen=True)
class ShowOptions:
    """Draw a topology: its roles, and what flows between them."""

    topology: tyro.conf.Positional[str]
    """Its name."""


@dataclass(frozen=True)
class RunsOptions:
    """List the runs in a directory."""

    runs_dir: Path = Path("runs")
    """Where run directories lie."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print them as one JSON line."""


@dataclass(frozen=True)
class DoctorOptions:
    """Look whether this machine has what training needs."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the findings as one JSON line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _leave_at_once():
            return _dispatch(arguments)
    except EnvironmentFailure as error:
        if error.__cause__ is not None and _has_foreign_frame(error.__cause__):
            traceback.print_exception(error.__cause__)
        return _refuse(str(error))
    except UserError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 1


@contextlib.contextmanager
def _leave_at_once() -> Iterator[None]:
    """Before a run has begun there is nothing to save, and after it nothing is left to: a signal just ends us.

    Not by KeyboardInterrupt: raised inside one of the array library's callbacks, that is lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
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


def parse(kind: Any, arguments: Sequence[str], command: str, default: Any = None) -> Any:
    """Options from the command line; tyro's complaint as one sentence."""
    from repertory.runs.config import flag, names_of

    known = {flag(name) for name in names_of(kind)} | {"--help", "-h", "--agent"}
    known |= {re.sub(r"\.([^.]*)$", r".no-\1", name) for name in known}
    for argument in arguments:
        name = argument.split("=")[0].replace("_", "-")
        if argument.startswith("--") and name not in known:
            raise UserError(f"unknown option {argument.split('=')[0]}{nearest(name, known)}")
    if sum(argument.split("=")[0].replace("_", "-") == "--env-option" for argument in arguments) > 1:
        raise UserError("--env-option was given twice; give all pairs after one: --env-option KEY=VALUE KEY=VALUE")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                kind,
                args=list(arguments),
                prog=f"repertory {command}",
                default=default,
                use_underscores=False,
            )
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        raise UserError(_sentence(said.getvalue())) from None


def _sentence(box: str) -> str:
    """What stands between the first two rules of tyro's message; without a terminal it has no frame."""
    lines = [line.strip("│ ") for line in box.splitlines()]
    rules = [index for index, line in enumerate(lines) if line and (line[0] in "╭├" or not line.strip("─-"))]
    if len(rules) < 2:
        return "the options can't be read; see --help"
    return " ".join(line for line in lines[rules[0] + 1 : rules[1]] if line)


def train(arguments: list[str]) -> int:
    """train an agent on an environment"""
    called_at = psutil.Process().create_time()
    _start_early(arguments)
    from repertory.runs import launch
    from repertory.runs.config import options_for
    from repertory.runs.presets import choose_agent, defaults

    asked = [argument for argument in arguments if argument not in ("-h", "--help")]
    given = _bare_words(arguments)
    topology = given.get("--topology", "single")
    agent = given.get("--agent") or choose_agent(topology)
    kind = options_for(agent)
    first = parse(kind, asked, "train", kind("", topology=topology, agent_name=agent))
    if not first.environment and asked == arguments:
        raise UserError("train needs an environment, for example: repertory train CartPole-v1")
    chosen = defaults(first.environment, first.agent_name, first.topology)
    options = parse(kind, arguments, "train", chosen)
    options = dataclasses.replace(options, topology=chosen.topology)  # hogwild with a3c is a topology of its own
    if options.dry_run:
        return _dry_run(options)
    return _conclude(launch.start(options, called_at=called_at), options.json)


def _start_early(arguments: list[str]) -> None:
    """Let the process that forks members import while this one does; a guess from the bare words is good enough."""
    given = _bare_words(arguments)
    if given.get("--engine", "processes" if given.get("--topology", "single") != "single" else "") == "processes":
        start_fork_server()


def _bare_words(arguments: list[str]) -> dict[str, str]:
    """Each word and the one behind it."""
    return dict(itertools.pairwise(" ".join(arguments).replace("=", " ").split()))


def _dry_run(options: Any) -> int:
    from repertory.runs.presets import find_preset
    from repertory.runs.staging import check_memory, forecast, stage

    options, plan, agent = stage(options)
    check_memory(plan)
    values = forecast(options, plan, agent)
    if options.json:
        print(json.dumps(values))
        return 0
    width = max(map(len, values))
    for key, value in values.items():
        print(f"{key:<{width}}  {value}")
    if not plan.unrolled:
        print(f"{'preset':<{width}}  {find_preset(options.environment).seen}")
    return 0


def _conclude(result: dict[str, Any], as_json: bool) -> int:
    """Say how a run ended."""
    if as_json:
        print(json.dumps(result))
    else:
        score = "none" if result["score"] is None else f"{result['score']:.1f}"
        print(
            f"{result['status']}: score {score} after {result['env_steps']:,} env steps and "
            f"{result['updates']:,} updates in {result['seconds']:.1f} s (start-up {result['startup_s']:.1f} s)"
        )
        print(f"the run lies in {result['directory']}")
    return INTERRUPTED if result["status"] == "interrupted" else 0


def resume(arguments: list[str]) -> int:
    """go on with a run from its newest checkpoint"""
    called_at = psutil.Process().create_time()
    from repertory.runs import launch
    from repertory.runs.directory import RunDirectory

    options = parse(ResumeOptions, arguments, "resume")
    if options.env_steps is not None and options.env_steps < 1:
        raise UserError(f"--env-steps must be above 0, not {options.env_steps}")
    directory = RunDirectory.open(options.run, options.runs_dir)
    result = launch.resume(
        directory, env_steps=options.env_steps, called_at=called_at, quiet=options.quiet, json=options.json
    )
    return _conclude(result, options.json)


def evaluate(arguments: list[str]) -> int:
    """play greedy episodes with a run's agent, and film one"""
    from repertory.runs.directory import RunDirectory
    from repertory.runs.player import load_player

    options = parse(EvaluateOptions, arguments, "evaluate")
    if options.episodes < 1:
        raise UserError(f"--episodes must be above 0, not {options.episodes}")
    player = load_player(RunDirectory.open(options.run, options.runs_dir).path)
    film = None if options.record is None else player.record(options.record, options.seed)
    result = player.evaluate(options.episodes, options.seed).summary()
    if film is not None:
        result["recorded"] = {"file": str(options.record), "return": float(film.returns[0])}
    if options.json:
        print(json.dumps(result))
    else:
        print(f"score {result['mean']:.1f} ± {result['std']:.1f} over {result['episodes']} greedy episodes")
        if options.record is not None:
            print(f"a film of one (return {result['recorded']['return']:.1f}) lies in {options.record}")
    return 0


def show(arguments: list[str]) -> int:
    """draw a topology"""
    from repertory import topologies
    from repertory.topologies.graph import draw

    print(draw(topologies.find(parse(ShowOptions, arguments, "show").topology)))
    return 0


def runs(arguments: list[str]) -> int:
    """list the runs in a directory"""
    from repertory.runs.directory import list_runs

    options = parse(RunsOptions, arguments, "runs")
    found = list_runs(options.runs_dir)
    if options.json:
        print(json.dumps(found))
        return 0
    if not found:
        print(f"no runs in {options.runs_dir}")
    for run in found:
        score = "–" if run["score"] is None else f"{run['score']:.1f}"
        steps = "–" if run["env_steps"] is None else f"{run['env_steps']:,}"
        print(f"{run['name']:<44} {run['status']:<12} {steps:>12} env steps   score {score}")
    return 0


def doctor(arguments: list[str]) -> int:
    """look whether this machine has what training needs"""
    from repertory.runs.doctor import examine

    options = parse(DoctorOptions, arguments, "doctor")
    findings = examine()
    if options.json:
        print(json.dumps(findings))
    else:
        for finding in findings:
            print(f"{'ok  ' if finding['ok'] else 'LOOK'} {finding['what']:<22} {finding['found']}")
    return 0


def compare(arguments: list[str]) -> int:
    """train several topologies with one budget, and report which suits an environment"""
    from repertory.studies.commands import run_compare
    from repertory.studies.options import CompareOptions

    return run_compare(parse(CompareOptions, arguments, "compare"))


def ablate(arguments: list[str]) -> int:
    """train a DQN without each of its parts, and report what they are worth"""
    from repertory.studies.commands import run_ablate
    from repertory.studies.options import AblateOptions

    return run_ablate(parse(AblateOptions, arguments, "ablate"))


def scale(arguments: list[str]) -> int:
    """train a topology with more and more actors, and report what they give"""
    from repertory.studies.commands import run_scale
    from repertory.studies.options import ScaleOptions

    return run_scale(parse(ScaleOptions, arguments, "scale"))


def report(arguments: list[str]) -> int:
    """make such a report from runs that there are"""
    from repertory.studies.commands import run_report
    from repertory.studies.options import ReportOptions

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
    "runs": runs,
    "doctor": doctor,
}

if __name__ == "__main__":
    sys.exit(main())
