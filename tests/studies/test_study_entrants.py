"""Who takes part in a study and with which options; what is refused; names and tables."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import repertory
from repertory import cli, topologies
from repertory.errors import UserError
from repertory.runs import launch
from repertory.runs.config import RunOptions, change, options_for
from repertory.runs.launch import draft
from repertory.runs.presets import choose_agent, defaults, train_words
from repertory.studies.entrants import AblateOptions, CompareOptions, ScaleOptions, ablate, compare, scale
from repertory.studies.plan import distinct, slugs
from repertory.studies.results import Contestant, Evaluation, Results, Trial, read_tables, write_tables
from repertory.studies.runner import warm_up_of
from repertory.studies.statistics import LAG
from studies_made_up import grand
from study_commands import refusal, table

# Contestants


def test_every_topology_is_a_contestant_with_the_same_budget() -> None:
    found = compare(CompareOptions("CartPole-v1", seconds=7.0, actors=3))
    assert [entrant.contestant.name for entrant in found] == list(topologies.known())
    assert {entrant.options.seconds for entrant in found} == {7.0}
    assert {entrant.options.eval_every_s for entrant in found} == {7.0 / 25}
    assert min(entrant.options.env_steps for entrant in found) > 10**9, "seconds alone end a run"
    assert {entrant.contestant.name: entrant.contestant.actors for entrant in found} == {
        name: 1 if name == "single" else 3 for name in topologies.known()
    }


def test_target_alone_gives_all_contestants_the_longest_preset() -> None:
    found = compare(CompareOptions("CartPole-v1", topologies="single,impala", target_score=475.0))
    assert {entrant.options.env_steps for entrant in found} == {600_000}
    assert {entrant.options.eval_every for entrant in found} == {50_000 // 25}
    assert {entrant.options.seconds for entrant in found} == {None}


def test_setting_reaches_those_who_have_it() -> None:
    asked = CompareOptions("CartPole-v1", topologies="single,impala", set=("agent.unroll=8", "agent.discount=0.9"))
    one, other = (entrant.options for entrant in compare(asked))
    assert (one.agent.discount, other.agent.discount) == (0.9, 0.9)
    assert dataclasses.asdict(other)["agent"]["unroll"] == 8


def test_four_dqns_and_every_part_off_alone() -> None:
    found = {entrant.contestant.name: entrant for entrant in ablate(AblateOptions("CartPole-v1"))}
    off = ["no replay", "no target", "no double", "no dueling", "no n-step", "no prioritized"]
    assert list(found) == ["all parts", *off, "neither", "target only", "replay only", "full DQN"]
    four = {name: found[name].options.agent for name in ("neither", "target only", "replay only", "full DQN")}
    assert [(a.replay, a.target) for a in four.values()] == [(False, False), (False, True), (True, False), (True, True)]
    assert {(a.double, a.dueling, a.prioritized, a.n_step) for a in four.values()} == {(False, False, False, 10)}
    assert found["no n-step"].options.agent.n_step == 1
    every = found["all parts"].options.agent
    assert (every.double, every.dueling, every.prioritized, every.n_step) == (True, True, True, 20)
    changed = {name: _changed(every, found[name].options.agent) for name in off}
    assert changed == {
        "no replay": {"replay", "prioritized"}, "no target": {"target"}, "no double": {"double"},
        "no dueling": {"dueling"}, "no n-step": {"n_step"}, "no prioritized": {"prioritized"},
    }  # fmt: skip
    agents = [entrant.options.agent for entrant in found.values()]
    assert {(a.replay_capacity, a.learning_rate_steps, a.target_tau) for a in agents} == {(100_000, 100_000, 0.005)}
    assert {entrant.options.env_steps for entrant in found.values()} == {100_000}


def _changed(one: Any, other: Any) -> set[str]:
    return {item.name for item in dataclasses.fields(one) if getattr(one, item.name) != getattr(other, item.name)}


def test_what_variants_switch_themselves_can_not_be_set() -> None:
    with pytest.raises(UserError, match=r"--set agent\.n_step would change nothing"):
        ablate(AblateOptions("CartPole-v1", set=("agent.n-step=5",)))
    for entrant in ablate(AblateOptions("CartPole-v1", set=("agent.replay-capacity=5000",), env_steps=70)):
        assert (entrant.options.agent.replay_capacity, entrant.options.env_steps) == (5000, 70)


def test_one_number_of_actors_takes_part_once() -> None:
    found = scale(ScaleOptions("CartPole-v1", actors="4,04,2"))
    assert [entrant.contestant.name for entrant in found] == ["2 actors", "4 actors"]


def test_with_env_steps_and_seconds_the_env_steps_are_divided() -> None:
    asked = CompareOptions("CartPole-v1", topologies="single", env_steps=1000, seconds=60.0)
    (entrant,) = compare(asked)
    assert (entrant.options.eval_every, entrant.options.eval_every_s) == (1000 // 25, None)


def test_contestants_that_are_the_same_take_part_once() -> None:
    found = [entrant.contestant.name for entrant in ablate(AblateOptions("CartPole-v1", components="replay,target"))]
    assert found == ["full DQN", "neither", "target only", "replay only"]


def test_neither_learns_from_each_step_once_as_it_comes(tmp_path: Path) -> None:
    found = {entrant.contestant.name: entrant.options for entrant in ablate(AblateOptions("CartPole-v1"))}
    ended = launch.start(_short(found["neither"], tmp_path, "neither"))
    config = json.loads((tmp_path / "neither/config.json").read_bytes())["config"]["agent"]
    assert (config["batch_size"], config["replay_ratio"], config["updates_per_call"]) == (1, 1.0, 1)
    unfinished = config["n_step"] + 1  # returns that are not whole yet when the run ends
    assert 300 - unfinished <= ended["updates"] <= 300 == ended["env_steps"]


def _short(options: RunOptions, place: Path, name: str) -> RunOptions:
    tiny = {"env_steps": 300, "eval_every": 300, "eval_episodes": 1, "eval_max_steps": 10, "log_every": 100}
    changed: RunOptions = change(
        options, {**tiny, "runs_dir": place, "name": name, "quiet": True, "network": {"hidden": (8,)}}
    )
    return changed


@pytest.mark.parametrize("environment", ["CartPole-v1", "repertory/SlowCartPole-v1"])
def test_warm_up_of_every_contestant_can_run_and_learns_at_once(environment: str, tmp_path: Path) -> None:
    for entrant in compare(CompareOptions(environment)):
        options, plan = draft(warm_up_of(entrant.options, tmp_path))
        assert (options.seconds, options.target_score, options.eval_every_s) == (2.0, None, None)
        assert (options.eval_episodes, options.network) == (entrant.options.eval_episodes, entrant.options.network)
        assert plan.unrolled or plan.q.learning_starts <= plan.environments * (plan.q.n_step + 1)


def test_each_number_of_actors_is_a_contestant() -> None:
    found = scale(ScaleOptions("repertory/SlowCartPole-v1", actors="4,1,64", topology="apex"))
    assert [(entrant.contestant.name, entrant.options.actors) for entrant in found] == [
        ("1 actor", 1), ("4 actors", 4), ("64 actors", 64),
    ]  # fmt: skip
    assert {entrant.options.seconds for entrant in found} == {20.0}
    assert {entrant.contestant.topology for entrant in found} == {"apex"}


OWN_OPTIONS: dict[str, dict[str, Any]] = {
    "apex": {"actor_priorities": False},
    "all_reduce": {"scale_learning_rate": True},
    "ga3c": {"adjust_from": (1, 2, 1), "adjust_s": 0.5},
}


@pytest.mark.parametrize("topology", sorted(topologies.known()))
def test_words_that_train_say_all_the_options(topology: str, tmp_path: Path) -> None:
    options = change(
        defaults("CartPole-v1", None, topology),
        {
            "seed": 3, "name": "a b", "runs_dir": tmp_path, "seconds": 1.5, "eval_every_s": 0.1, "target_score": -2.5,
            "env_option": ("sutton_barto_reward=True",), "network": {"hidden": (7, 9)}, "quiet": True,
            "heartbeat_s": 9.0,
            "topology": OWN_OPTIONS.get(topology, {}),
        },
    )  # fmt: skip
    kind = options_for(choose_agent(topology), topology)
    typed = train_words(options)
    assert cli.parse(kind, typed[1:], "train", defaults("CartPole-v1", None, topology)) == options


# Bad input


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("compare", "a study needs an environment, for example: repertory compare CartPole-v1"),
        ("compare CartPole-v1 --topologies singel", "unknown topology 'singel'; did you mean 'single'?"),
        ("compare CartPole-v1 --topologies single,single", "--topologies names 'single' twice"),
        ("compare CartPole-v1 --topologies ,", "--topologies needs at least one item"),
        ("compare CartPole-v1 --topologies impala,impala:impala", "'impala' and 'impala:impala' are the same"),
        ("compare CartPole-v1 --topologies single:dqm", "unknown agent of single 'dqm'; did you mean 'dqn'?"),
        ("compare CartPole-v1 --topologies single:impala", "topology 'single' does not train agent 'impala'"),
        ("compare Absent-v1", "Absent"),
        ("compare CartPole-v1 --seconds 0", "--seconds must be above 0, not 0.0"),
        ("compare CartPole-v1 --seconds nan", "--seconds must be a finite number, not nan"),
        ("compare CartPole-v1 --env-steps -5", "--env-steps must be above 0, not -5"),
        ("compare CartPole-v1 --seeds 0", "--seeds must be above 0, not 0"),
        ("compare CartPole-v1 --actors 0", "--actors must be above 0, not 0"),
        ("compare CartPole-v1 --evaluations 0", "--evaluations must be above 0, not 0"),
        ("compare CartPole-v1 --name a/b", "'a/b' cannot be the name"),
        ("compare CartPole-v1 --set agent.unrol=3", "no contestant has such an option; did you mean 'agent.unroll'?"),
        ("compare CartPole-v1 --set seed=3", "--set seed is not for studies"),
        ("compare CartPole-v1 --set agent.discount", "--set takes KEY=VALUE, not 'agent.discount'"),
        ("compare CartPole-v1 --set agent.discount=1.5", "--agent.discount must lie between 0 and 1, it is 1.5"),
        ("compare CartPole-v1 --set agent.discount=high", "option 'agent.discount' must be float, not 'high'"),
        ("compare CartPole-v1 --second 3", "unknown option --second; did you mean '--seconds'?"),
        ("ablate CartPole-v1 --components replay,duelling", "unknown component 'duelling'; did you mean 'dueling'?"),
        ("scale CartPole-v1 --actors 1,two", "--actors takes numbers above 0, not 'two'"),
        ("scale CartPole-v1 --actors 1,0", "--actors takes numbers above 0, not '0'"),
        ("scale CartPole-v1 --topology appo", "unknown topology 'appo'"),
        ("report", "report needs at least one run"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in refusal(capsys, *typed.split())
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_another_version_is_refused_with_both_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"environment": "CartPole-v1", "agent_name": "dqn", "topology_name": "single", "gone": 1}
    saved = {"config": config, "origin": {"versions": {"repertory": "0.0.1"}}}
    (tmp_path / "config.json").write_text(json.dumps(saved))
    said = refusal(capsys, "report", str(tmp_path))
    assert f"written by repertory 0.0.1, this is repertory {repertory.__version__}; unknown option 'gone'" in said


def test_all_that_cannot_run_are_named_with_their_reasons() -> None:
    asked = CompareOptions(
        "CartPole-v1", topologies="single,apex,impala,hogwild", set=("agent.replay=False", "agent.minibatches=999")
    )
    with pytest.raises(UserError) as refused:
        compare(asked)
    said = str(refused.value)
    assert said.startswith("2 of 4 contestants can't run: apex: ")
    assert "impala: --agent.minibatches 999 is more than --agent.batch-unrolls 16" in said


# Names and tables, whatever is in them

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
COUNT = st.integers(0, 2**53)


@given(st.lists(st.tuples(TEXT, st.dictionaries(st.sampled_from(["actors", "agent_name", "x"]), st.integers(0, 2)))))
def test_names_are_distinct_and_keep_their_beginning(given_names: list[tuple[str, dict[str, int]]]) -> None:
    names = [name for name, _ in given_names]
    found = distinct(names, [each for _, each in given_names])
    assert len(set(found)) == len(found)
    assert all(made.startswith(name) for made, name in zip(found, names, strict=True))
    assert all(made == name for made, name in zip(found, names, strict=True) if names.count(name) == 1)


def test_names_say_what_differs_and_no_more() -> None:
    same = {"agent_name": "dqn", "seconds": 3}
    found = distinct(["apex", "apex", "single"], [{**same, "actors": 2}, {**same, "actors": 1}, same])
    assert found == ["apex, 2 actors", "apex, 1 actor", "single"]


@given(st.lists(TEXT))
def test_run_directories_have_names_of_their_own(names: list[str]) -> None:
    found = slugs(names)
    assert len({name.lower() for name in found}) == len(names)
    assert all(name and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") for name in found)


@st.composite
def any_results(draw: st.DrawFn) -> Results:
    names = draw(st.lists(TEXT, min_size=1, max_size=3, unique=True))
    evaluations = st.lists(st.builds(Evaluation, COUNT, COUNT, NUMBER, NUMBER), max_size=3).map(tuple)
    trials = st.builds(
        Trial,
        contestant=st.sampled_from(names),
        seed=COUNT,
        status=st.sampled_from(["completed", "failed", "missing"]),
        cause=TEXT,
        evaluations=evaluations,
        env_steps_per_s=st.none() | NUMBER,
        lags=st.just(()),
        directory=TEXT,
    )
    contestants = tuple(Contestant(name, draw(TEXT), draw(TEXT), draw(COUNT)) for name in names)
    target, found = draw(st.none() | NUMBER), tuple(draw(st.lists(trials, max_size=5)))
    return Results("compare", "e", "c", "b", target, contestants, found)


@given(any_results())
@settings(max_examples=50, deadline=None)
def test_tables_hold_every_evaluation_and_every_trial(tmp_path_factory: Any, results: Results) -> None:
    place = tmp_path_factory.mktemp("tables")
    write_tables(results, place)
    rows = table(place / "evaluations.csv")
    told = [(trial, evaluation) for trial in results.trials for evaluation in trial.evaluations]
    assert [(row["contestant"], int(row["seed"]), _evaluation(row)) for row in rows] == [
        (trial.contestant, trial.seed, evaluation) for trial, evaluation in told
    ]
    rows = table(place / "trials.csv")
    assert [(row["contestant"], row["status"], row["cause"]) for row in rows] == [
        (trial.contestant, trial.status, trial.cause) for trial in results.trials
    ]
    for row, trial in zip(rows, results.trials, strict=True):
        reached = math.inf if results.target is None else results.target
        assert (row["target_seconds"] != "") == any(each.score >= reached for each in trial.evaluations)


def test_tables_tell_all_that_a_report_needs(tmp_path: Path) -> None:
    results = grand(5, 2, 4)
    write_tables(results, tmp_path)
    kept = read_tables(tmp_path)
    again = dataclasses.replace(results, trials=tuple(kept[one.contestant, one.seed] for one in results.trials))
    assert [dataclasses.replace(one, lags=()) for one in again.trials] == [
        dataclasses.replace(one, lags=()) for one in results.trials
    ]
    assert all(LAG.values(again, one.name) == LAG.values(results, one.name) for one in results.contestants)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write_tables(again, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_tables_of_an_older_version_and_torn_ones_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    write_tables(grand(2, 1, 3), tmp_path)
    rows = [line.split(",") for line in (tmp_path / "trials.csv").read_text().splitlines()]
    column = rows[0].index("busy")
    older = "\n".join(",".join(row[:column] + row[column + 1 :]) for row in rows)
    (tmp_path / "trials.csv").write_text(older)
    assert {one.busy == {} for one in read_tables(tmp_path).values()} == {True}
    (tmp_path / "evaluations.csv").write_text("contestant,seed\nsingle")
    assert read_tables(tmp_path) == {}


def _evaluation(row: dict[str, str]) -> Evaluation:
    return Evaluation(int(row["env_steps"]), int(row["updates"]), float(row["seconds"]), float(row["score"]))
