"""Agents: pure JAX, arrays in, arrays out; no input or output, no clock, no hidden state.

Here is only the table that agents, networks and topologies are found in by name; it imports nothing large.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, Protocol, TypeVar

from repertory.errors import UserError, nearest


class Named(Protocol):
    @property
    def name(self) -> str: ...


Kind = TypeVar("Kind", bound=Named)


class Kinds(Generic[Kind]):
    """A table by name. Entry points of `group` are loaded when a name is missing or all names are needed."""

    def __init__(self, what: str, group: str, built_in: Iterable[Kind] = (), modules: Sequence[str] = ()) -> None:
        """`what` names the option in messages; the last part of each of `modules` names its `KIND`."""
        self._what, self._group, self._loaded = what, group, False
        self._kinds = {kind.name: kind for kind in built_in}
        self._modules = {module.rpartition(".")[2]: module for module in modules}

    def register(self, kind: Kind) -> None:
        """Make a kind known under its name, in this process.

        Worker processes import the main script again, so call this at its top level, or bring an entry point.
        """
        self._kinds[kind.name] = kind

    def unregister(self, name: str) -> None:
        del self._kinds[name]

    def known(self) -> Mapping[str, Kind]:
        """All kinds by name."""
        if not self._loaded:
            self._loaded = True
            own = {name: import_module(module).KIND for name, module in self._modules.items()}
            self._kinds = {**own, **self._kinds}
            for entry in entry_points(group=self._group):
                try:
                    self.register(entry.load())
                except Exception as error:
                    raise UserError(
                        f"the entry point {entry.name!r} of {self._group} can't be loaded: {error}"
                    ) from None
        return self._kinds

    def find(self, name: str) -> Kind:
        if name not in self._kinds and name in self._modules:
            self._kinds[name] = import_module(self._modules[name]).KIND
        if name not in self._kinds and name not in self.known():
            raise UserError(f"unknown {self._what} {name!r}{nearest(name, self._kinds)}")
        return self._kinds[name]
