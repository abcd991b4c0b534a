"""The options of the commands that handle one run, and how every command parses its options."""

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
Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff]


@dataclass(frozen=True, kw_only=True)
class _Printed:
    json: Switch = False
    """Print the result as one JSON line and nothing else."""


@dataclass(frozen=True, kw_only=True)
class _SavedRun:
    run: tyro.conf.Positional[str]
    """The run's name, or its directory."""
    environment: str | None = None
    """New name of the environment, if its file or module has moved."""
    network_module: str | None = None
    """New import path of the network, if its file or module has moved."""
    trust: Switch = False
    """Import the code that the run names, though you have not trained with it on this machine."""
    runs_dir: Path = Path("runs")
    """Directory that holds the run directories."""
    quiet: Annotated[Switch, tyro.conf.arg(aliases=("-q",))] = False
    """No live view, and no warnings of Gymnasium; the result is still printed."""


@dataclass(frozen=True, kw_only=True)
class ResumeOptions(_Printed, _SavedRun):
    """Continue a run from one of its checkpoints."""

    env_steps: int | None = None
    """New total number of env steps."""
    start_from: Annotated[str, tyro.conf.arg(name="from")] = "newest"
    """Checkpoint to continue from: newest, exact (the last from which a run on `inline` repeats bit for bit), best (the
    newest with the weights of the best evaluation), or a number of env steps."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(_Printed, _SavedRun):
    """Play greedy episodes with one of a run's checkpoints."""

    episodes: int = 20
    """Number of greedy episodes."""
    checkpoint: str = "newest"
    """Checkpoint to play: newest, best (by evaluation), exact, or a number of env steps."""
    seed: int = 0
    """Random seed of the environments."""
    record: Path | None = None
    """Record a video of one episode: .mp4 or .gif."""


@dataclass(frozen=True)
class ShowOptions:
    """Draw a topology: its workers, its channels, its options. Without a name, list all topologies."""

    topology: tyro.conf.Positional[str] = ""
    """Name of the topology."""


@dataclass(frozen=True)
class PresetsOptions(_Printed):
    """List the presets: their environments, the scores they reached, on which seeds."""


@dataclass(frozen=True)
class RunsOptions(_Printed):
    """List the runs in a directory."""

    runs_dir: Path = Path("runs")
    """Directory that holds the run directories."""


@dataclass(frozen=True)
class DoctorOptions(_Printed):
    """Check whether this machine, or every machine of a Ray cluster, has what training needs."""

    address: str | None = None
    """Ray cluster to check: auto, or HOST:PORT."""
    insecure: Switch = False
    """Join a cluster that asks for no token."""


@dataclass(frozen=True)
class CompletionOptions:
    """Print a script that completes commands and options at a press of TAB. For bash:

    repertory completion bash > ~/.local/share/bash-completion/completions/repertory
    """

    shell: tyro.conf.Positional[str]
    """bash, zsh or fish."""


def parse(kind: Any, arguments: Sequence[str], command: str, default: Any = None) -> Any:
    """Options from the command line. tyro's message about bad ones becomes one sentence."""
    from repertory.runs.config import RunOptions

    _refuse_unknown(kind, arguments)
    if {"-h", "--help"} & {*arguments}:
        arguments = ["--help"]  # with other arguments, tyro's usage line would leave those out
    if not issubclass(kind, RunOptions):
        return _ask_tyro(kind, arguments, command, default)
    return _flat(kind, _ask_tyro(_grouped(kind), arguments, command, _in_groups(default)))


def _refuse_unknown(kind: Any, arguments: Sequence[str]) -> None:
    from repertory.runs.config import flag, names_of, unknown_option

    known = {flag(name) for name in names_of(kind)} | {"--help", "-h", "--agent", "--topology", "--from"}
    known |= {re.sub(r"\.([^.]*)$", r".no-\1", name) for name in known}
    given = [argument.split("=")[0] for argument in arguments if argument.startswith("--")]
    for spelled in given:
        name = spelled.replace("_", "-")
        if name not in known:
            room, negated = name.rpartition(".")[0], ".no-" in name
            near = {other for other in known if not room or other.startswith(f"{room}.")}
            near = {other for other in near if (".no-" in other) == negated}
            raise unknown_option(kind, name[2:].replace("-", "_"), spelled, near)
    if [name.replace("_", "-") for name in given].count("--env-option") > 1:
        raise UserError("--env-option was given twice; give all pairs after one: --env-option KEY=VALUE KEY=VALUE")


@cache
def _grouped(kind: Any) -> Any:
    """The options of a run under the headings of its help, without prefixes for those that every run has."""
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
    groups = {f"{name}_group": group(**_values(group, options)) for name, group in GROUPS.items()}
    own = {item.name: getattr(options, item.name) for item in dataclasses.fields(grouped) if item.name not in groups}
    return grouped(**own, **groups)


def _flat(kind: Any, found: Any) -> Any:
    from repertory.runs.config import GROUPS

    values = _values(found, found)
    for name, group in GROUPS.items():
        values |= _values(group, values.pop(f"{name}_group"))
    return kind(**values)


def _values(kind: Any, options: Any) -> dict[str, Any]:
    return {item.name: getattr(options, item.name) for item in dataclasses.fields(kind)}


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
    """The text between the first two rules of tyro's message; without a terminal it has no frame."""
    lines = [line.strip("│ ") for line in box.splitlines()]
    rules = [index for index, line in enumerate(lines) if line and (line[0] in "╭├" or not line.strip("─-"))]
    if len(rules) < 2:
        return "the options can't be read; see --help"
    return " ".join(line for line in lines[rules[0] + 1 : rules[1]] if line)
