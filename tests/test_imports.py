"""Imports point down only; read from the syntax trees, so that lazy imports count as well."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import repertory

ROOT = Path(repertory.__file__).parent
FLOORS = (
    {"__init__"},
    {"run_subprocess", "__main__"},
    {"cli"},
    {"completion"},
    {"commands"},
    {"api"},
    {"studies"},
    {"runs"},
    {"engines"},
    {"topologies"},
    {"roles"},
    {"channels"},
    {"channels"},
    {"experience", "environments", "agents"},
    {"user_code"},
    {"limits"},
    {"specs", "errors", "runtime", "output"},
)
FILES = sorted(ROOT.rglob("*.py"))
FORBIDDEN = {"experience": {"jax", "flax", "repertory.agents"}, "agents": {"gymnasium", "repertory.experience"}}


def module_of(path: Path) -> str:
    parts = ("repertory", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in FILES}


def imported(path: Path) -> Iterator[str]:
    """Full names of all modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import in line {node.lineno}"
            yield from (_full_name(node.module or "", alias.name) for alias in node.names)


def _full_name(module: str, name: str) -> str:
    return f"{module}.{name}" if f"{module}.{name}" in MODULES else module


def floor(module: str) -> int:
    room = f"{module}.__init__".split(".")[1]
    found = [index for index, rooms in enumerate(FLOORS) if room in rooms]
    assert found, f"{module} lies in no room that this test knows"
    return found[0]


def room(module: str) -> str:
    return ".".join(module.split(".")[:2])


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_point_down(path: Path) -> None:
    here = module_of(path)
    for name in imported(path):
        if name in MODULES and room(name) != room(here) and name != "repertory":
            assert floor(name) > floor(here), f"{here} imports {name}, which lies above or beside it"


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_rooms_keep_out_what_they_must_not_know(path: Path) -> None:
    here = module_of(path)
    for outside in FORBIDDEN.get(f"{here}.".split(".")[1], set()):
        guilty = [name for name in imported(path) if name == outside or name.startswith(f"{outside}.")]
        assert not guilty, f"{here} imports {guilty}"


def test_there_is_no_cycle() -> None:
    below = {module_of(path): {name for name in imported(path) if name in MODULES} for path in FILES}
    below = {here: names - {here, "repertory"} for here, names in below.items()}
    while leaves := {here for here, names in below.items() if not names}:
        below = {here: names - leaves for here, names in below.items() if here not in leaves}
    assert not below, f"these import each other: {sorted(below)}"


def test_nothing_is_left_to_do() -> None:
    word = "TO" + "DO"
    assert [path.name for path in FILES if word in path.read_text()] == []


def test_the_command_line_loads_no_array_library_before_it_knows_the_command() -> None:
    """Which takes a second; and while it loads, the process that forks workers should load it, too."""
    code = "import repertory.cli, sys; print(*{'jax', 'flax', 'gymnasium'} & {*sys.modules})"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.split() == []
