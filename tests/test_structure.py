"""Rules of the house that no type checker knows; read from the syntax trees, beside the rule of imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

import repertory
from repertory import topologies
from repertory.runs.launch import sketch

ROOT = Path(repertory.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
LONGEST = 400
ORDINARY = {"agent", "learner", "actor", "worker", "memory"}
"""Words that name something else as well: an option, a key of a checkpoint, a unit, a heading."""
ENGINES = ("inline", "processes", "ray")
SHARED_WITH_AGENTS = {"a3c", "impala"}
"""Names of topologies that are names of agents as well."""


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def constants(path: Path) -> Iterator[tuple[str, int]]:
    """Text constants that are no docstring, and their lines."""
    tree = ast.parse(path.read_text())
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.value, node.lineno


@cache
def worker_names() -> frozenset[str]:
    return frozenset(group.name for name in topologies.known() for group in sketch(name).workers)


OUTSIDE = [path for path in FILES if room(path) != "topologies"]


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_topology_and_no_worker_is_known_by_its_name(path: Path) -> None:
    own = set(topologies.known()) - (SHARED_WITH_AGENTS if room(path) == "agents" else set())
    names = own | worker_names() - ORDINARY
    guilty = [f"line {line}: {text!r}" for text, line in constants(path) if text in names]
    assert guilty == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_topology_is_asked_what_it_is(path: Path) -> None:
    asked = r"topology\.has\(|topology(?:_kind)?\.name ==|topology_name ==|\.topology == \""
    assert re.findall(asked, path.read_text()) == []


@pytest.mark.parametrize("path", [path for path in FILES if room(path) in ("roles", "channels")], ids=str)
def test_roles_and_channels_know_no_engine(path: Path) -> None:
    assert [text for text, _ in constants(path) if text in ENGINES] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST


@pytest.mark.parametrize("name", sorted(topologies.known()))
def test_every_option_of_a_topology_is_read_by_topologies(name: str) -> None:
    code = "\n".join(path.read_text() for path in FILES if room(path) == "topologies")
    unread = [
        item.name
        for item in fields(topologies.find(name).options)
        if not re.search(rf"(?:options|self)\.{item.name}\b", code)
    ]
    assert unread == []


def ways() -> dict[str, list[tuple[str, str]]]:
    """The ways of one env step in the page on the architecture: file and function of each hop."""
    page = (ROOT.parents[1] / "docs/architecture.md").read_text()
    told = page.partition("## The way of one env step\n")[2].partition("\n## ")[0]
    sections = [part.split("\n", 1) for part in told.split("### ")[1:]]
    return {name.strip(): re.findall(r"^\d\. `([^`]+)` `([^`]+)`", hops, re.MULTILINE) for name, hops in sections}


@pytest.mark.parametrize("name", ["single", "collectors", "impala", "parameter_server"])
def test_way_of_an_env_step_is_short_and_goes_back_to_no_file(name: str) -> None:
    hops = ways()[name]
    files = [file for file, _ in hops]
    assert 5 <= len(hops) <= 9
    assert len(set(files)) == len(files)
    for file, function in hops:
        tree = ast.walk(ast.parse((ROOT / file).read_text()))
        assert function in {node.name for node in tree if isinstance(node, ast.FunctionDef)}, f"{file} {function}"
