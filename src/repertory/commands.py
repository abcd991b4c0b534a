"""The options of the commands that are not about many runs, and how all commands read theirs."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro

from repertory.errors import UserError

ROOMS = ("agent", "network", "topology")
"""Options with a prefix."""


@dataclass(frozen=True)
class ResumeOptions:
    """Go on with a run from one of its checkpoints."""

    run: tyro.conf.Positional[str]
    """The run's name, or its directory."""
    env_steps: int | None = None
    """A new total of env steps."""
    start_from: Annotated[str, tyro.conf.arg(name="from")] = "newest"
    """Which checkpoint: newest; exact, the last from which a run on `inline` repeats bit for bit; best, the newest with
    the weights of the best evaluation; or the number of env steps of one."""
    environment: str | None = None
    """Where its environment is found now; by default where it was."""
    network_module: str | None = None
    """Where its own network is found now; by default where it was."""
    trust: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Import the code that the run names, though you have not trained with it on this machine."""
    runs_dir: Path = Path("runs")
    """Where run directories lie."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(aliases=("-q",))] = False
    """No live view, and no warnings of Gymnasium; the result is still printed."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as one JSON line and nothing else."""


@dataclass(frozen=True)
class EvaluateOptions:
    """Play greedy episodes with one of a run's checkpoints."""

    run: tyro.conf.Positional[str]
    """The run's name, or its directory."""
    episodes: int = 20
    """How many episodes."""
    checkpoint: str = "newest"
    """Which checkpoint: newest, best (by evaluation), exact, or the number of env steps of one."""
    seed: int = 0
    """The environments' seeds follow from it."""
    record: Path | None = None
    """Write a film of one episode: .mp4 or .gif."""
    environment: str | None = None
    """Where its environment is found now; by default where it was."""
    network_module: str | None = None
    """Where its own network is found now; by default where it was."""
    trust: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Import the code that the run names, though you have not trained with it on this machine."""
    runs_dir: Path = Path("runs")
    """Where run directories lie."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(aliases=("-q",))] = False
    """No warnings of Gymnasium; the result is still printed."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as one JSON line and nothing else."""


@dataclass(frozen=True)
class ShowOptions:
    """Draw a topology: its workers, what flows between them, its options. Without a name, list all topologies."""

    topology: tyro.conf.Positional[str] = ""
    """Its name."""


@dataclass(frozen=True)
class PresetsOptions:
    """List the settings that were seen to work: for which environments, which score they reached, on which seeds."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print them as one JSON line."""


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


@dataclass(frozen=True)
class CompletionOptions:
    """Print a script that completes commands and options at a press of TAB. For bash:

    repertory completion bash > ~/.local/share/bash-completion/completions/repertory
    """

    shell: tyro.conf.Positional[str]
    """bash, zsh or fish."""


def parse(kind: Any, arguments: Sequence[str], command: str, default: Any = None) -> Any:
    """Options from the command line; tyro's complaint as one sentence."""
    from repertory.runs.config import RunOptions

    _refuse_unknown(kind, arguments)
    if {"-h", "--help"} & {*arguments}:
        arguments = ["--help"]  # else usage would leave out what was given
    if not issubclass(kind, RunOptions):
        return _ask_tyro(kind, arguments, command, default)
    found = _ask_tyro(_grouped(kind), arguments, command, _in_groups(default))
    return _flat(kind, found)


def _refuse_unknown(kind: Any, arguments: Sequence[str]) -> None:
    from repertory.runs.config import flag, names_of, unknown_option

    known = {flag(name) for name in names_of(kind)} | {"--help", "-h", "--agent", "--topology", "--from"}
    known |= {re.sub(r"\.([^.]*)$", r".no-\1", name) for name in known}
    given = [argument.split("=")[0] for argument in arguments if argument.startswith("--")]
    for spelled in given:
        name = spelled.replace("_", "-")
        if name not in known:
            room, negated = name.rpartition(".")[0], ".no-" in name
            near = {other for other in known if other.startswith(f"{room}.")} if room else known
            near = {other for other in near if (".no-" in other) == negated}
            raise unknown_option(kind, name[2:].replace("-", "_"), spelled, near)
    if [name.replace("_", "-") for name in given].count("--env-option") > 1:
        raise UserError("--env-option was given twice; give all pairs after one: --env-option KEY=VALUE KEY=VALUE")


@cache
def _grouped(kind: Any) -> Any:
    """The options of a run as help shows them: under headings, without prefixes for those that every run has."""
    from repertory.runs.config import GROUPS, ChoiceOptions

    headings = [
        (f"{name}_group", Annotated[group, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name=name)])
        for name, group in GROUPS.items()
    ]
    hints = get_type_hints(kind)
    rooms = [(name, hints[name]) for name in ROOMS if dataclasses.fields(hints[name])]
    described = {"__doc__": kind.__doc__}
    return dataclasses.make_dataclass(
        "Grouped", [*headings, *rooms], bases=(ChoiceOptions,), frozen=True, kw_only=True, namespace=described
    )


def _in_groups(options: Any) -> Any:
    from repertory.runs.config import GROUPS

    kind: Any = type(options)
    grouped = _grouped(kind)
    values = {f"{name}_group": _part(group, options) for name, group in GROUPS.items()}
    own = {item.name: getattr(options, item.name) for item in dataclasses.fields(grouped) if item.name not in values}
    return grouped(**own, **values)


def _part(group: Any, options: Any) -> Any:
    return group(**{item.name: getattr(options, item.name) for item in dataclasses.fields(group)})


def _flat(kind: Any, found: Any) -> Any:
    from repertory.runs.config import GROUPS

    values = {item.name: getattr(found, item.name) for item in dataclasses.fields(found)}
    for name in GROUPS:
        group = values.pop(f"{name}_group")
        values |= {item.name: getattr(group, item.name) for item in dataclasses.fields(group)}
    return kind(**values)


def _ask_tyro(kind: Any, arguments: Sequence[str], command: str, default: Any) -> Any:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                kind,
                args=list(arguments),
                prog=f"repertory {command}",
                default=default,
                use_underscores=False,
                config=(tyro.conf.HelptextFromCommentsOff,),
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
