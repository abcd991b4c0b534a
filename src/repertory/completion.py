"""Completion scripts for bash, zsh and fish: made once from the options, so that a press of TAB starts no Python.

shtab, which tyro uses, can't do this: `train` has one parser for each topology and agent, and the script must hold the
options of all of them, and complete the names of runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import gymnasium as gym
import tyro

from repertory import commands, topologies
from repertory.agents import registry
from repertory.engines import ENGINES
from repertory.environments.games import GAMES
from repertory.errors import UserError, nearest
from repertory.runs import presets
from repertory.runs.config import flag, options_for
from repertory.studies.entrants import AblateOptions, CompareOptions, ReportOptions, ScaleOptions

KINDS: Mapping[str, tuple[type, ...]] = {
    "train": tuple(options_for(agent, name) for name, kind in topologies.known().items() for agent in kind.agents),
    "resume": (commands.ResumeOptions,),
    "evaluate": (commands.EvaluateOptions,),
    "compare": (CompareOptions,),
    "ablate": (AblateOptions,),
    "scale": (ScaleOptions,),
    "report": (ReportOptions,),
    "show": (commands.ShowOptions,),
    "presets": (commands.PresetsOptions,),
    "runs": (commands.RunsOptions,),
    "doctor": (commands.DoctorOptions,),
    "completion": (commands.CompletionOptions,),
}
CHECKPOINTS = ("newest", "best", "exact")
VALUES: Mapping[str, tuple[str, ...]] = {
    "--topology": tuple(topologies.known()),
    "--topologies": ("all", *topologies.known()),
    "--agent": tuple(registry.known()),
    "--preset": tuple(presets.known()),
    "--engine": ENGINES,
    "--from": CHECKPOINTS,
    "--checkpoint": CHECKPOINTS,
}
"""Values of options whose type does not say them."""
Options = dict[str, tuple[str, ...] | None]
"""The values of each option: None for a switch, empty if they are not known."""
OF_RUNS = ("resume", "evaluate", "report")
"""Commands that take runs: the names in `runs/` are read when TAB is pressed."""


def script(shell: str) -> str:
    if shell not in SHELLS:
        raise UserError(f"there is no completion for {shell!r}{nearest(shell, SHELLS)}")
    return SHELLS[shell]()


def options_of(command: str) -> Options:
    """Every option of a command as it is typed."""
    found: Options = {"--help": None}
    for kind in KINDS[command]:
        found |= _options(kind, "")
    return found


def words_of(command: str) -> tuple[str, ...]:
    """The positional arguments of a command, where they are known."""
    studied = ("train", "compare", "ablate", "scale")
    known = {"show": tuple(topologies.known()), "completion": tuple(SHELLS), **dict.fromkeys(studied, _games())}
    return known.get(command, ())


def _games() -> tuple[str, ...]:
    """Environments with a preset."""
    prefixes = tuple(prefix for preset in presets.known().values() for prefix in preset.match)
    found = [name for name in gym.registry if name.startswith(prefixes) and "Continuous" not in name]
    games = [f"MinAtar/{game.title().replace('_', '')}-v1" for game in GAMES]
    return tuple(dict.fromkeys([*found, *games]))


def _options(kind: type, prefix: str) -> Options:
    found: Options = {}
    hints = get_type_hints(kind, include_extras=True)
    for item in dataclasses.fields(kind):
        name, hint = item.name, hints[item.name]
        if dataclasses.is_dataclass(hint):
            found |= _options(hint, f"{prefix}{name}.")  # type: ignore[arg-type]
            continue
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        if tyro.conf.Positional in marks:
            continue
        named = next((mark.name for mark in marks if getattr(mark, "name", None)), prefix + name)
        spelled = [flag(named), *(alias for mark in marks for alias in getattr(mark, "aliases", None) or ())]
        switch = bool in (hint, *get_args(hint)[:1])
        if switch and tyro.conf.FlagCreatePairsOff not in marks:
            spelled.append(flag(f"{prefix}no_{name}"))
        found |= dict.fromkeys(spelled, None if switch else VALUES.get(spelled[0], _literals(hint)))
    return found


def _literals(hint: Any) -> tuple[str, ...]:
    if get_origin(hint) is Literal:
        return tuple(map(str, get_args(hint)))
    return tuple(value for inner in get_args(hint) for value in _literals(inner))


def _values() -> dict[tuple[str, ...], list[str]]:
    """Each set of values, and the options that take it."""
    found: dict[tuple[str, ...], list[str]] = {}
    for option, values in {option: values for name in KINDS for option, values in options_of(name).items()}.items():
        if values:
            found.setdefault(values, []).append(option)
    return found


def _cases(template: str, words: Mapping[str, Iterable[str]]) -> str:
    """The branches of a shell's `case`, without those that have no words."""
    return "\n".join(f"    {name}) {template % ' '.join(found)} ;;" for name, found in words.items() if found)


def _filled(script: str, offer: str, offer_values: str) -> str:
    """The script, with its branches for values behind an option, options behind a dash, and words elsewhere."""
    return script % {
        "commands": " ".join([*KINDS, "--help", "--version"]),
        "values": _cases(offer_values, {"|".join(names): values for values, names in _values().items()}),
        "options": _cases(offer, {name: options_of(name) for name in KINDS}),
        "words": _cases(offer, {name: words_of(name) for name in KINDS}),
        "of_runs": "|".join(OF_RUNS),
    }


# Names of run directories never go through -W, which would expand them. Until a dot is typed, `--topo` means
# `--topology`, not one of the many `--topology.…`.
BASH = """# bash completion of repertory
_repertory() {
  local cur="${COMP_WORDS[COMP_CWORD]}" at=$COMP_CWORD words=""
  if [[ $cur == "=" ]]; then cur=""; else [[ ${COMP_WORDS[at-1]} == "=" ]] && ((at--)); fi
  local previous="${COMP_WORDS[at-1]}"
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W "%(commands)s" -- "$cur"))
    return
  fi
  case $previous in
%(values)s
  esac
  if [[ -z $words && $cur == -* ]]; then case "${COMP_WORDS[1]}" in
%(options)s
  esac; elif [[ -z $words && $previous != -* ]]; then case "${COMP_WORDS[1]}" in
%(words)s
    %(of_runs)s)
      mapfile -t COMPREPLY < <(cd runs 2>/dev/null && compgen -d -- "$cur")
      return ;;
  esac; fi
  local word near=""
  for word in $words; do [[ $word == --*.* && $cur != *.* && $word != "$cur".* ]] || near+=" $word"; done
  COMPREPLY=($(compgen -W "$near" -- "$cur"))
}
complete -o default -F _repertory repertory"""

ZSH = """#compdef repertory
# zsh completion of repertory
_repertory() {
  if (( CURRENT == 2 )); then
    compadd -- %(commands)s
    return
  fi
  case ${words[CURRENT-1]} in
%(values)s
  esac
  if [[ ${words[CURRENT]} == -* ]]; then case ${words[2]} in
%(options)s
  esac; else [[ ${words[CURRENT-1]} == -* ]] || case ${words[2]} in
%(words)s
    %(of_runs)s) compadd -- runs/*(N/:t) ;;
  esac; _files; fi
}
compdef _repertory repertory"""


def _fish() -> str:
    lines = ["# fish completion of repertory"]
    lines.append(f"complete -c repertory -n __fish_use_subcommand -f -a '{' '.join(KINDS)}'")
    for name in KINDS:
        after = f"complete -c repertory -n '__fish_seen_subcommand_from {name}'"
        if words_of(name):
            lines.append(f"{after} -a '{' '.join(words_of(name))}'")
        if name in OF_RUNS:
            lines.append(f"{after} -a '(command ls runs 2>/dev/null)'")
        for option, values in options_of(name).items():
            spelled = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            value = "" if values is None else f" -x -a '{' '.join(values)}'" if values else " -r"
            lines.append(f"{after} {spelled}{value}")
    return "\n".join(lines)


SHELLS: Mapping[str, Callable[[], str]] = {
    "bash": lambda: _filled(BASH, 'words="%s"', 'words="%s"'),
    "zsh": lambda: _filled(ZSH, "compadd -- %s", "compadd -- %s; return"),
    "fish": _fish,
}
