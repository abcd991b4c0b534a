"""The user's code: found by name, or given as a Python object.

A name is `path/file.py:function` or `package.module:function`. A `Given` is a name with the callable that was given in
its place, so it fits wherever a name does.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from repertory.errors import UserError

PRIVATE = "_repertory_file_"
"""Prefix of the names of modules that were imported from a file; other processes do not know them."""
PROGRAM = ("__main__", "__mp_main__")
NOTEBOOK = re.compile(r"ipykernel_\d+|<ipython-input")


class Given(str):
    """The name of a callable, with the callable or its bytes from cloudpickle, which carry it into other processes.

    Files only get the name: `module:function` if the callable can be imported again, else its own name in angle
    brackets.
    """

    _call: Any
    _pickled: bytes | None

    def __new__(cls, name: str, call: Any = None, pickled: bytes | None = None) -> Given:
        made = super().__new__(cls, name)
        made._call, made._pickled = call, pickled
        return made

    @property
    def call(self) -> Any:
        if self._call is None and self._pickled is not None:
            try:
                self._call = pickle.loads(self._pickled)
            except Exception as error:
                raise UserError(
                    f"{self} can't be loaded in another process: {type(error).__name__}: {error}; write it into a "
                    "file and give its name, file.py:function"
                ) from error
        return self._call

    def pickled(self) -> bytes:
        """Its bytes for other processes, made once."""
        if self._pickled is None:
            import cloudpickle

            try:
                self._pickled = cloudpickle.dumps(self._call)
            except Exception as error:
                raise UserError(
                    f"{self} can't be sent to other processes: {type(error).__name__}: {error}; make what it needs "
                    "inside the function, or write it into a file and give its name, file.py:function"
                ) from error
        return self._pickled

    def __reduce__(self) -> tuple[Any, ...]:
        return Given, (str(self), None, self.pickled())  # other processes unpickle the callable on first use

    def __deepcopy__(self, _memo: Any) -> Given:
        return self


def name_of(value: Callable[..., Any]) -> str:
    """`module:function` if the callable can be imported by it, else its own name in angle brackets."""
    module, name = getattr(value, "__module__", None) or "", getattr(value, "__qualname__", None) or "<"
    private = not module or module in PROGRAM or module.startswith(PRIVATE) or "<" in name
    if not private and locate(module) and attribute(sys.modules.get(module), name) == value:
        return f"{module}:{name}"
    return f"<{_title(value)}>"


def is_lost(name: str) -> bool:
    """Whether a name from a file is that of a Python object that was not given again."""
    return name.startswith("<") and not isinstance(name, Given)


def _title(value: Any) -> str:
    while isinstance(value, functools.partial):
        value = value.func
    name: str = getattr(value, "__name__", type(value).__name__)
    if name != "<lambda>":
        return name
    code = value.__code__
    if NOTEBOOK.search(code.co_filename):
        return "lambda in a notebook cell"
    return f"lambda at {Path(code.co_filename).name.strip('<>')}:{code.co_firstlineno}"


def attribute(module: Any, name: str) -> Any:
    """The attribute of a module under a name, which may have dots; None if there is none."""
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def split(name: str) -> tuple[str, str]:
    """File or module, and the name in it; the first is empty if there is no colon."""
    place, _, last = name.rpartition(":")
    return place, last


def is_file(place: str) -> bool:
    """Whether it is a file, not a module."""
    return place.endswith(".py")


def locate(module: str) -> str | None:
    """The path of a module's package, which is not imported; None if there is none, "" if its path is not known."""
    before = list(sys.path)
    _look_here()
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return ""
    finally:
        sys.path[:] = before  # else files in this directory could replace modules that are imported later
    if spec is None:
        return None
    return spec.origin or ":".join(spec.submodule_search_locations or [])


def code_named(name: str) -> str | None:
    """The code that a name would run, with its path on this machine; None if there is none."""
    place, last = split(name)
    if is_file(place):
        return f"{Path(place).resolve()}:{last}" if Path(place).is_file() else None
    origin = locate(place) if place else None
    return None if origin is None else f"{name} ({origin or 'of unknown origin'})"


def import_module(name: str) -> ModuleType:
    """A module, also one in the current directory; never the running program."""
    if name.partition(".")[0] in PROGRAM:
        raise ModuleNotFoundError(f"{name} is the program itself", name=name)
    _look_here()
    return importlib.import_module(name)


def _look_here() -> None:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def load_file(path: Path) -> ModuleType:
    """The file as a module with a private name; imported again only after it has changed."""
    path = path.resolve()
    key = hashlib.sha256(f"{path}:{path.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    name = f"{PRIVATE}{key}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
