"""Options: each is read somewhere, each topology shows its own alone, and no room above knows a topology's name."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import repertory
from repertory import cli, topologies
from repertory.agents import registry
from repertory.agents.networks import NetworkOptions
from repertory.runs.config import GROUPS, ChoiceOptions, RunOptions, options_for
from repertory.runs.launch import sketch
from repertory.topologies.options import TopologyOptions

ROOT = Path(repertory.__file__).parent
CLASSES = {kind.options for kind in (*registry.known().values(), *topologies.known().values())}


def attributes_read() -> set[str]:
    """Names behind a dot, in all of our code."""
    trees = [ast.parse(path.read_text()) for path in ROOT.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


@pytest.mark.parametrize("kind", sorted({*CLASSES, NetworkOptions, RunOptions}, key=lambda kind: kind.__name__))
def test_every_option_is_read_somewhere(kind: type) -> None:
    unread = {item.name for item in dataclasses.fields(kind)} - attributes_read()
    assert not unread


@pytest.mark.parametrize("kind", sorted({*CLASSES, *GROUPS.values()}, key=lambda kind: kind.__name__))
def test_every_option_has_one_sentence_in_the_words_of_the_field(kind: type) -> None:
    documented: dict[str, str] = {}
    for parent in inspect.getmro(kind):
        if dataclasses.is_dataclass(parent):
            documented = _sentences(parent) | documented
    for item in dataclasses.fields(kind):
        text = documented.get(item.name, "")
        assert text.endswith("."), item.name
        assert not re.search(r"\b(company|members?|crew|ledger|kit|nobody|whoever)\b", text, re.IGNORECASE), text


def _sentences(kind: type) -> dict[str, str]:
    """The text below each field."""
    body: Any = ast.parse(inspect.getsource(kind)).body[0]
    pairs = zip(body.body, body.body[1:], strict=False)
    return {
        field.target.id: text.value.value
        for field, text in pairs
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def test_each_topology_has_options_of_its_own_class() -> None:
    assert len({topology.options for topology in topologies.known().values()}) == len(topologies.known())
    for topology in topologies.known().values():
        assert issubclass(topology.options, TopologyOptions)
        for agent in topology.agents:
            options = options_for(agent, topology.name)("CartPole-v1")
            assert (options.agent_name, options.topology_name) == (agent, topology.name)
            assert type(options.topology) is topology.options
            assert type(options.agent) is registry.find(agent).options


ABOVE = [
    *(path for room in ("runs",) for path in sorted((ROOT / room).rglob("*.py"))),
    *(ROOT / f"{name}.py" for name in ("cli", "api", "commands", "completion")),
]


@pytest.mark.parametrize("path", ABOVE, ids=lambda path: path.name)
def test_rooms_above_compare_no_name_of_a_topology_a_worker_or_an_agent(path: Path) -> None:
    workers = {group.name for topology in topologies.known() for group in sketch(topology).workers}
    names = {*topologies.known(), *registry.known(), *workers} - {"replay", "agent"}  # words for options, too
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            values = {part.value for side in sides for part in ast.walk(side) if isinstance(part, ast.Constant)}
            assert not values & names, f"line {node.lineno} compares with {values & names}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert node.func.attr != "has", f"line {node.lineno} asks for a worker"


def help_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        cli.main(["train", "CartPole-v1", *arguments, "--help"])
    assert left.value.code in (0, None)
    return capsys.readouterr().out


def test_help_shows_what_the_topology_and_its_agent_read_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, "--topology", "impala")
    assert text.startswith("usage: repertory train [-h] [OPTIONS] ENV\n")
    assert "#" not in text
    assert "noqa" not in text
    assert "type: ignore" not in text
    shown = set(re.findall(r"--topology\.([a-z-]+)", text)) - {"topology"}
    assert shown == {"queue", "max-policy-lag", "compression", "nodes", "topk-share", "learners"}
    assert "--agent.unroll" in text
    assert "--agent.batch-size" not in text
    headings = re.findall(r"^[╭─ -]*([a-z]+) options\b", text, re.MULTILINE)
    assert headings == [
        "run",
        "evaluation",
        "environment",
        "worker",
        "cluster",
        "output",
        "agent",
        "network",
        "topology",
    ]


def test_help_shows_the_defaults_of_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    flat = " ".join(re.sub("[│\n]", " ", help_of(capsys, "--topology", "apex")).split())
    assert re.search(r"--topology\.pull-period INT [^(]*\(default: 20\)", flat), "CartPole's, not the paper's 400"
    assert re.search(r"--env-steps INT [^(]*\([^)]*\)\. \(default: 50000\)", flat)


def test_help_of_a_topology_without_options_has_no_such_heading(capsys: pytest.CaptureFixture[str]) -> None:
    assert "topology options" not in help_of(capsys)


@pytest.mark.parametrize("topology", topologies.known())
def test_show_tells_a_topologys_options(topology: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", topology]) == 0
    text = capsys.readouterr().out
    for item in dataclasses.fields(topologies.find(topology).options):
        assert f"--topology.{item.name.replace('_', '-')} " in f"{text} ", item.name
    assert "company" not in text


def test_headings_hold_every_option_that_all_runs_have() -> None:
    grouped = {item.name for group in (*GROUPS.values(), ChoiceOptions) for item in dataclasses.fields(group)}
    assert grouped | {"agent", "network", "topology"} == {item.name for item in dataclasses.fields(RunOptions)}
