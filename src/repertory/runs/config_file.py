"""`--config FILE`: options from a JSON or TOML file, or those of a run. Reading a file imports no JAX.

The command line overrides the file; the file overrides the environment's preset.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repertory.errors import UserError

if TYPE_CHECKING:
    from repertory.runs.config import RunOptions

OF_THE_CALL = ("name", "runs_dir", "dry_run", "quiet", "json", "config", "preset")
"""Options that a new run does not take over from a run's own file."""
FIRST = ("environment", "agent_name", "topology_name")


@dataclass(frozen=True)
class ConfigFile:
    """What a file says; `of_run`: it is a run's own file, which has every option, chosen or not."""

    values: Mapping[str, Any] = field(default_factory=dict)
    of_run: bool = False
    path: Path = Path()

    def text(self, name: str) -> str:
        """An option that is a word; empty if the file does not have it."""
        value = self.values.get(name, "")
        if not isinstance(value, str):
            raise UserError(f"option {name!r} must be str, not {value!r}")
        return value

    def agent(self, topology: str) -> str:
        """The agent in the file, unless it is only the default one of a run's own, different topology."""
        from repertory.runs.presets import choose_agent

        named, own = self.text("agent_name"), self.text("topology_name")
        return "" if self.of_run and topology != own and named == choose_agent(own) else named

    def options(self, environment: str, agent: str | None, topology: str, preset: str | None = None) -> RunOptions:
        """The preset's options with those of the file.

        For another environment, agent or topology, a run's own file gives only what differed from its preset, without
        options that the other topology does not have.
        """
        from repertory.runs.config import change
        from repertory.runs.presets import choose_agent, defaults

        usual = defaults(environment, agent, topology, preset)
        wanted = (environment, agent or choose_agent(topology), topology)
        same = wanted == tuple(self.text(name) for name in FIRST)
        values = self.values if same or not self.of_run else _chosen(self.values, usual)
        options: RunOptions = change(usual, {name: value for name, value in values.items() if name not in FIRST})
        return options

    def require_trust(self, options: RunOptions, typed: Collection[Any]) -> None:
        """Refuse options with code from a run's own file, unless this user trained with it or typed its name."""
        from repertory.runs.opening import require_trust, with_module

        if not self.of_run:
            return  # the user wrote it, as on the command line
        module = (self.values.get("network") or {}).get("module")
        if options.environment != self.values.get("environment") or options.environment in typed:
            options = dataclasses.replace(options, environment="")
        if options.network.module != module or module in typed:
            options = with_module(options, None)
        require_trust(options, self.path, "name it yourself, beside --config")


def read(path: str | Path) -> ConfigFile:
    """The options in a file; of a run's directory, those of its config.json."""
    given = Path(path).expanduser()
    path = given / "config.json" if given.is_dir() else given
    values = _parsed(path)
    of_run = isinstance(values.get("config"), dict)
    if given.is_dir() and not of_run:
        raise UserError(f"{given} is no run: its config.json has no options of one")
    values = values["config"] if of_run else values
    for room in ("agent", "topology"):
        if isinstance(values.get(room), str):
            values[f"{room}_name"] = values.pop(room)
    nested = _nested(values)
    if of_run:
        nested = {name: value for name, value in nested.items() if name not in OF_THE_CALL}
    elif "config" in nested:
        raise UserError(f"{path} names another config: a file can't")
    return ConfigFile(nested, of_run, path)


def _parsed(path: Path) -> dict[str, Any]:
    if path.suffix not in (".json", ".toml"):
        raise UserError(f"--config takes a .json or .toml file, or a run's directory, not {str(path)!r}")
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise UserError(f"--config can't read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"--config can't read {path} as {path.suffix[1:].upper()}: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} holds no options: it must be an object of names and values")
    return values


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Names as in Python: `env-steps` is `env_steps`, and `agent.n-step` is `n_step` of `agent`."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        first, _, rest = key.replace("-", "_").partition(".")
        value = _nested({rest: value}) if rest else _nested(value) if isinstance(value, dict) else value
        if isinstance(found.get(first), dict) and isinstance(value, dict):
            value = {**found[first], **value}
        found[first] = value
    return found


def _chosen(values: Mapping[str, Any], other: RunOptions) -> dict[str, Any]:
    """The options of a run that differ from its preset, as far as the other run has them."""
    from repertory.runs.config import from_dict, resolve, to_dict
    from repertory.runs.presets import defaults

    options = from_dict(values)
    usual = resolve(defaults(options.environment, options.agent_name, options.topology_name))
    found = _differing(to_dict(options), to_dict(usual))
    own = {name: value for name, value in found.pop("topology", {}).items() if hasattr(other.topology, name)}
    return {**found, "topology": own}


def _differing(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    inner = {name: _differing(value, usual[name]) for name, value in values.items() if isinstance(value, dict)}
    own = {name: value for name, value in values.items() if name not in inner and value != usual[name]}
    return own | {name: value for name, value in inner.items() if value}
