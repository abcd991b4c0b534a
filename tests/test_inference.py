"""Central inference: every asker gets its own answer and keeps its state; draws follow the policy; and the adjuster."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

import twins
from repertory.agents.actor_critic import ActorCriticOptions, Model, make_actor_critic, rollout_loss
from repertory.agents.agent import Agent
from repertory.agents.network_registry import build_policy_network
from repertory.agents.networks import NetworkOptions
from repertory.agents.strategy import NUMPY_ROWS
from repertory.engines.boards import Board, Requests
from repertory.environments.factory import make
from repertory.experience.unrolls import UnrollStorage, UnrollWriter
from repertory.roles.actor import Actor
from repertory.roles.adjuster import CLEARLY, LONGEST_REST, PATH, SHORTEST_REST, Adjuster, judgements
from repertory.roles.answers import Answer, Question, SampledActions, log_probabilities
from repertory.roles.inference_server import InferenceServer
from repertory.roles.learner import lesson
from repertory.roles.ledger import Page, new_ledger
from repertory.roles.local_policy import SamplingPolicy
from repertory.roles.remote_policy import RemotePolicy
from repertory.roles.stopwatch import Unwatched
from repertory.specs import EnvironmentSpec, ObservationSpec, Part

ACTIONS, ENVIRONMENTS = 4, 3
SPEC = EnvironmentSpec(ObservationSpec((3,), "float32", (Part("number", 3),)), ACTIONS, masked=True)
OPTIONS = ActorCriticOptions(discount=0.9, reduction="sum")
TINY = NetworkOptions(kind="mlp", hidden=(5,))
LSTM = replace(TINY, core=4)
MANY = NUMPY_ROWS + 1
"""More than NumPy answers by itself."""


@cache
def agent_of(network: NetworkOptions, spec: EnvironmentSpec = SPEC) -> Agent:
    """Programs are compiled once for all tests."""
    return make_actor_critic(OPTIONS, network, spec)


def weights_of(agent: Agent, seed: int = 3, scale: float = 1.0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(scale=scale, size=agent.layout.size).astype(np.float32)


def allocated(fields: dict[str, Any]) -> dict[str, NDArray[Any]]:
    return {name: np.zeros(field.shape, field.dtype) for name, field in fields.items()}


def board_of(weights: NDArray[np.float32], version: int = 7) -> Board:
    """A board with these weights on it."""
    board = Board(allocated(Board.fields(len(weights))))
    board.publish(version, weights)
    return board


def requests_of(arrays: dict[str, NDArray[Any]], rung: list[Any] | None = None) -> Requests:
    bells: list[Any] = [] if rung is None else rung
    return Requests(arrays, bells.append, lambda: bells.append("askers"))


def request_arrays(askers: int, core: int = 0, spec: EnvironmentSpec = SPEC) -> dict[str, NDArray[Any]]:
    return allocated(Requests.fields(spec, askers, ENVIRONMENTS, core))


def policy_of(desk: Requests, asker: int, server: Callable[[], int] = lambda: 0) -> RemotePolicy:
    return RemotePolicy(desk, asker, ENVIRONMENTS, Page(new_ledger()), server)


def everything_legal() -> NDArray[np.bool_]:
    return np.ones((ENVIRONMENTS, ACTIONS), bool)


class Echo:
    """Answers with what it was asked, so that an answer that went astray shows."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.loaded: list[Any] = []

    def load(self, weights: Any) -> None:
        self.loaded.append(weights)

    def answer(self, question: Question) -> Answer:
        self.sizes.append(len(question.observation))
        first = question.observation[:, 0]
        # What was seen adds up from the episode's first step on.
        core = np.where(question.first[:, None], 0.0, question.core) + first[:, None]
        return Answer(first.astype(int), question.observation[None, :, 1], core.astype(np.float32))


def server_of(
    desk: Requests, rank: int = 0, core: int = 0, answers: Any = None, board: Board | None = None, **options: Any
) -> InferenceServer:
    weights = board if board is not None else board_of(np.zeros(1, np.float32))
    page = Page(new_ledger())
    return InferenceServer(answers or Echo(), weights, desk, page, rank=rank, core=core, **options)


# Who asks gets the answer.


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), askers=st.integers(1, 9), servers=st.integers(1, 3))
def test_every_answer_goes_to_who_asked(seed: int, askers: int, servers: int) -> None:
    """Askers come and go, servers change, some are replaced by new ones: an answer is to the asker's last question."""
    rng, arrays = np.random.default_rng(seed), request_arrays(askers, core=2)
    desk, to = requests_of(arrays), [0] * askers
    policies = [policy_of(desk, asker, lambda asker=asker: to[asker]) for asker in range(askers)]
    crew = [server_of(desk, rank, 2) for rank in range(servers)]
    asked: list[NDArray[np.float32] | None] = [None] * askers
    sums = np.zeros((askers, ENVIRONMENTS), np.float32)
    answered = [True] * askers
    for _ in range(80):
        asker, server = int(rng.integers(askers)), int(rng.integers(servers))
        match rng.integers(8):
            case 0 | 1 | 2 if answered[asker]:
                to[asker] = server
                seen = rng.integers(0, 1000, (ENVIRONMENTS, 3)).astype(np.float32)
                new = rng.random(ENVIRONMENTS) < 0.2
                policies[asker].reset(new)
                sums[asker] = np.where(new, 0.0, sums[asker]) + seen[:, 0]
                if asked[asker] is None:
                    sums[asker] = seen[:, 0]
                policies[asker].submit(seen, everything_legal())
                asked[asker], answered[asker] = seen, False
            case 3 | 4:
                waiting = [a for a in range(askers) if not answered[a] and to[a] == server]
                assert crew[server].step() == bool(waiting)
                for a in waiting:
                    answered[a] = True
            case 5:
                desk = requests_of(arrays)
                crew[server] = server_of(desk, server, 2)
            case _:
                pass
        found, question = policies[asker].poll(), asked[asker]
        if question is None or not answered[asker]:
            assert question is None or found is None
            continue
        assert found is not None
        np.testing.assert_array_equal(found, question[:, 0])
        np.testing.assert_array_equal(policies[asker].extras(found), question[None, :, 1])
        np.testing.assert_array_equal(desk.states(asker)[:, 0], sums[asker])
        assert policies[asker].version == 7


def test_questions_are_answered_in_few_sizes_of_batches() -> None:
    desk, echo = requests_of(request_arrays(13)), Echo()
    server = server_of(desk, answers=echo)
    for count in (13, 7, 1, 4):
        echo.sizes = []
        policies = [policy_of(desk, asker) for asker in range(count)]
        for asker, policy in enumerate(policies):
            policy.submit(np.full((ENVIRONMENTS, 3), asker, np.float32), everything_legal())
        assert server.step()
        assert server.page.row["queue"] == count
        assert not server.step()
        assert [policy.poll().tolist() for policy in policies] == [[a] * ENVIRONMENTS for a in range(count)]  # type: ignore[union-attr]
        assert sum(echo.sizes) == count * ENVIRONMENTS
        assert all((size // ENVIRONMENTS).bit_count() == 1 for size in echo.sizes)
        assert len(echo.sizes) == count.bit_count()


def test_bells_are_rung_for_the_server_that_is_asked_and_for_the_askers() -> None:
    rung: list[Any] = []
    desk = requests_of(request_arrays(2), rung)
    policy_of(desk, 1, lambda: 2).submit(np.zeros((ENVIRONMENTS, 3), np.float32), everything_legal())
    assert rung == [2]
    assert not server_of(desk, 0).step()
    assert server_of(desk, 2).step()
    assert rung == [2, "askers"]


def test_a_server_waits_for_company_but_not_for_ever() -> None:
    desk = requests_of(request_arrays(3))
    policies = [policy_of(desk, asker) for asker in range(3)]
    server = server_of(desk, least=2, patience_s=60.0)

    def ask(asker: int) -> None:
        policies[asker].submit(np.zeros((ENVIRONMENTS, 3), np.float32), everything_legal())

    assert not server.step()
    ask(0)
    assert server.step()
    assert policies[0].poll() is None
    ask(1)
    assert server.step()
    assert [policy.poll() is not None for policy in policies[:2]] == [True, True]
    server.patience = 3
    ask(2)
    for glance in range(4):
        assert policies[2].poll() is None, glance
        assert server.step()
    assert policies[2].poll() is not None


def test_weights_are_fetched_before_each_answer_and_loaded_only_if_they_are_new() -> None:
    desk, echo, board = requests_of(request_arrays(1)), Echo(), board_of(np.zeros(2, np.float32), 3)
    server, policy = server_of(desk, answers=echo, board=board), policy_of(desk, 0)
    versions = []
    for version in (3, 3, 5, 5):
        board.publish(version, np.full(2, version, np.float32))
        policy.submit(np.zeros((ENVIRONMENTS, 3), np.float32), everything_legal())
        server.step()
        policy.poll()
        versions.append(policy.version)
    assert versions == [3, 3, 5, 5]
    np.testing.assert_array_equal([weights[0] for weights in echo.loaded], [3, 5])


# Whoever is killed, and whenever.


def test_a_restarted_asker_gets_only_the_answer_to_its_own_question() -> None:
    desk = requests_of(request_arrays(2, core=2))
    server, old = server_of(desk, core=2), policy_of(desk, 1)
    old.submit(np.full((ENVIRONMENTS, 3), 5, np.float32), everything_legal())
    question, numbers = desk.read([1], 2)  # the server has read it when the asker dies
    again = policy_of(desk, 1)
    again.submit(np.full((ENVIRONMENTS, 3), 8, np.float32), everything_legal())
    assert again.poll() is None
    desk.reply([1], numbers, server.answers.answer(question), 0)
    assert again.poll() is None
    assert server.step()
    found = again.poll()
    assert found is not None
    assert found.tolist() == [8] * ENVIRONMENTS
    np.testing.assert_array_equal(desk.states(1)[:, 0], [8.0] * ENVIRONMENTS)
    assert not server.step()


def test_an_asker_that_asks_anew_in_the_middle_of_an_answer_waits_for_its_own() -> None:
    arrays = request_arrays(1, core=2)
    desk = requests_of(arrays)
    again = policy_of(desk, 0)

    class Meanwhile(np.ndarray[Any, Any]):
        """The last that is written of an answer before it counts."""

        def __setitem__(self, key: Any, value: Any) -> None:
            again.submit(np.full((ENVIRONMENTS, 3), 8, np.float32), everything_legal())
            super().__setitem__(key, value)

    policy_of(desk, 0).submit(np.full((ENVIRONMENTS, 3), 5, np.float32), everything_legal())
    disturbed = requests_of({**arrays, "version": arrays["version"].view(Meanwhile)})
    assert server_of(disturbed, core=2).step()
    assert again.poll() is None
    assert server_of(desk, core=2).step()
    found = again.poll()
    assert found is not None
    assert found.tolist() == [8] * ENVIRONMENTS
    np.testing.assert_array_equal(desk.states(0)[:, 0], [8.0] * ENVIRONMENTS)


def test_an_answer_that_comes_too_late_displaces_no_newer_one() -> None:
    """The asker died, and asked another server since; the first one only now comes to its end."""
    desk = requests_of(request_arrays(1, core=2))
    slow, quick = server_of(desk, 0, 2), server_of(desk, 1, 2)
    policy_of(desk, 0).submit(np.full((ENVIRONMENTS, 3), 5, np.float32), everything_legal())
    question, numbers = desk.read([0], 2)
    again = policy_of(desk, 0, lambda: 1)
    again.submit(np.full((ENVIRONMENTS, 3), 8, np.float32), everything_legal())
    assert quick.step()
    desk.reply([0], numbers, slow.answers.answer(question), 0)
    found = again.poll()
    assert found is not None
    assert found.tolist() == [8] * ENVIRONMENTS
    assert again.version == 7
    again.submit(np.full((ENVIRONMENTS, 3), 2, np.float32), everything_legal())
    assert quick.step()
    np.testing.assert_array_equal(desk.states(0)[:, 0], [10.0] * ENVIRONMENTS)


class Dies(np.ndarray[Any, Any]):
    """An array whose writer is killed at its next write."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise InterruptedError


def test_a_server_killed_in_the_middle_of_an_answer_changes_no_state() -> None:
    arrays = request_arrays(2, core=2)
    desk = requests_of(arrays)
    policies = [policy_of(desk, asker) for asker in range(2)]

    def ask(number: float) -> None:
        for asker, policy in enumerate(policies):
            policy.submit(np.full((ENVIRONMENTS, 3), number + asker, np.float32), everything_legal())

    ask(1)
    assert server_of(desk, core=2).step()
    ask(10)
    doomed = requests_of(arrays)
    doomed.answered = doomed.answered.view(Dies)
    with pytest.raises(InterruptedError):
        server_of(doomed, core=2).step()
    assert [policy.poll() for policy in policies] == [None, None]
    np.testing.assert_array_equal(desk.states(0)[:, 0], [1] * ENVIRONMENTS)
    assert server_of(requests_of(arrays), core=2).step()
    assert [policy.poll().tolist() for policy in policies] == [[10] * ENVIRONMENTS, [11] * ENVIRONMENTS]  # type: ignore[union-attr]
    for asker, total in enumerate((11, 13)):
        np.testing.assert_array_equal(desk.states(asker)[:, 0], [total] * ENVIRONMENTS)


def test_a_servers_stream_of_draws_goes_on_where_it_was() -> None:
    agent = agent_of(TINY)
    observation = np.random.default_rng(0).normal(size=(ENVIRONMENTS, 3)).astype(np.float32)

    def server(seed: int) -> tuple[InferenceServer, Callable[[], Any]]:
        desk = requests_of(request_arrays(1))
        made = server_of(
            desk, answers=SampledActions(agent, np.random.default_rng(seed)), board=board_of(weights_of(agent))
        )
        policy = policy_of(desk, 0)

        def answer() -> Any:
            policy.submit(observation, everything_legal())
            made.step()
            return policy.poll().tolist()  # type: ignore[union-attr]

        return made, answer

    (one, ask_one), (other, ask_other) = server(0), server(1)
    [ask_one() for _ in range(5)]
    other.load_state(one.state())
    assert [ask_one() for _ in range(20)] == [ask_other() for _ in range(20)]
    assert server_of(requests_of(request_arrays(1))).state() == {}


# Recurrent states.


class Reference:
    """One asker's environments by the agent itself, step after step."""

    def __init__(self, agent: Agent, weights: NDArray[np.float32]) -> None:
        self.agent, self.weights = agent, jnp.asarray(weights)
        self.core: Any = np.zeros((ENVIRONMENTS, agent.state_size), np.float32)
        self.first = np.ones(ENVIRONMENTS, bool)

    def rows(self, observation: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
        assert self.agent.respond is not None
        rows, self.core = self.agent.respond(self.weights, observation, mask, self.core, self.first)
        self.first = np.zeros(ENVIRONMENTS, bool)
        return np.asarray(rows)


def legal_masks(rng: np.random.Generator, count: int = ENVIRONMENTS) -> NDArray[np.bool_]:
    mask = rng.random((count, ACTIONS)) < 0.6
    mask[np.arange(count), rng.integers(0, ACTIONS, count)] = True
    return mask


def chosen_chances(rows: NDArray[Any], action: NDArray[Any]) -> NDArray[Any]:
    """Logarithms of the probabilities of these actions, by the twins."""
    return np.array([np.log(twins.softmax(row[:-1])[a]) for row, a in zip(rows, action, strict=True)])


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_states_are_carried_from_step_to_step_and_survive_a_new_server(local: bool) -> None:
    """To 1e-5: batches of other sizes are added up in another order."""
    agent, rng, askers = agent_of(LSTM), np.random.default_rng(0), 3
    weights = weights_of(agent)
    arrays, board = request_arrays(askers, agent.state_size), board_of(weights)
    policies: list[Any] = []
    for asker in range(askers):
        local_one = SamplingPolicy(agent, board, ENVIRONMENTS, Page(new_ledger()), seed=0, rank=asker, start=0)
        policies.append(local_one if local else policy_of(requests_of(arrays), asker))
        policies[-1].pull()
    references = [Reference(agent, weights) for _ in range(askers)]
    drawn = SampledActions(agent, np.random.default_rng(1))
    server = server_of(requests_of(arrays), core=agent.state_size, answers=drawn, board=board)
    for tick in range(12):
        if tick in (4, 9):
            server = server_of(requests_of(arrays), core=agent.state_size, answers=SampledActions(agent, rng), board=board)
        who = [0, 1] if tick % 3 else [0, 1, 2]
        wanted = []
        for asker in who:
            begins = rng.random(ENVIRONMENTS) < 0.25
            policies[asker].reset(begins)
            references[asker].first |= begins
            observation, mask = rng.normal(size=(ENVIRONMENTS, 3)).astype(np.float32), legal_masks(rng)
            policies[asker].submit(observation, mask)
            wanted.append((references[asker].rows(observation, mask), mask))
        server.step()
        for asker, (rows, mask) in zip(who, wanted, strict=True):
            action = policies[asker].poll()
            assert mask[np.arange(ENVIRONMENTS), action].all()
            kept = policies[asker].extras(action)
            np.testing.assert_allclose(kept[0], chosen_chances(rows, action), rtol=1e-5, atol=1e-5)
            states = policies[asker].core if local else requests_of(arrays).states(asker)
            np.testing.assert_allclose(states, references[asker].core, rtol=1e-5, atol=1e-5)
            assert policies[asker].version == 7


# Draws.


def question_of(agent: Agent, count: int, seed: int = 0) -> Question:
    rng = np.random.default_rng(seed)
    observation = rng.normal(size=(count, 3)).astype(np.float32)
    return Question(
        observation, legal_masks(rng, count), np.zeros((count, agent.state_size), np.float32), np.ones(count, bool)
    )


def rows_of(agent: Agent, weights: NDArray[np.float32], asked: Question) -> NDArray[Any]:
    """The network's outputs by JAX."""
    assert agent.respond is not None
    return np.asarray(agent.respond(weights, *asked)[0])


@pytest.mark.parametrize("count", [1, NUMPY_ROWS, MANY], ids=["one", "numpy", "jax"])
def test_actions_are_drawn_from_the_softmax(count: int) -> None:
    """The same observation again and again; a fixed seed, so the test's outcome never changes."""
    agent = agent_of(TINY)
    weights = weights_of(agent, scale=0.5)
    asked = question_of(agent, 1)._replace(mask=np.array([[True, True, False, True]]))
    π = twins.softmax(rows_of(agent, weights, asked)[0, :-1])
    assert π[2] == 0
    assert np.sort(π)[1] > 0.03
    drawn = SampledActions(agent, np.random.default_rng(5))
    drawn.load(weights)
    many = Question(*(np.repeat(x, count, axis=0) for x in asked))  # type: ignore[arg-type,type-var]
    draws = np.concatenate([drawn.answer(many).action for _ in range(8000 // count)])
    counts = np.bincount(draws, minlength=ACTIONS)
    assert counts[2] == 0
    legal = π > 0
    assert chisquare(counts[legal], π[legal] * len(draws)).pvalue > 0.01


@pytest.mark.parametrize("count", [1, 5, MANY])
def test_log_probabilities_are_the_agents_own(count: int) -> None:
    agent, weights = agent_of(TINY), weights_of(agent_of(TINY))
    everything = question_of(agent, MANY)
    some = Question(*(x[:count] for x in everything))  # type: ignore[index]
    drawn = SampledActions(agent, np.random.default_rng(0))
    drawn.load(weights)
    answer = drawn.answer(some)
    assert answer.extras is not None
    assert answer.extras.shape == (1, count)
    want = chosen_chances(rows_of(agent, weights, everything)[:count], answer.action)
    np.testing.assert_allclose(answer.extras[0], want, rtol=1e-5, atol=1e-5)


def test_log_probabilities_of_huge_preferences_are_finite() -> None:
    preferences = np.array([[1e4, -1e4, -1e9, 0.0]] * 2, np.float32)
    np.testing.assert_allclose(log_probabilities(preferences, np.array([0, 1])), [0.0, -2e4])


@pytest.mark.parametrize("count", [1, 5])
def test_what_numpy_answers_is_what_jax_answers(count: int) -> None:
    agent = agent_of(TINY)
    assert agent.numpy_forward is not None
    asked, weights = question_of(agent, count)._replace(mask=None), weights_of(agent, scale=0.5)
    answers = []
    for one in (agent, replace(agent, numpy_forward=None)):
        drawn = SampledActions(one, np.random.default_rng(2))
        drawn.load(weights)
        answers.append([drawn.answer(asked) for _ in range(20)])
    for numpy, jitted in zip(*answers, strict=True):
        np.testing.assert_array_equal(numpy.action, jitted.action)
        np.testing.assert_allclose(numpy.extras, jitted.extras, rtol=1e-5, atol=1e-5)
        assert numpy.core.shape == jitted.core.shape == (count, 0)
    assert len({tuple(answer.action.tolist()) for answer in answers[0]}) > 1


def test_new_weights_are_taken_at_once() -> None:
    agent = agent_of(TINY)
    asked, drawn = question_of(agent, 1), SampledActions(agent, np.random.default_rng(0))
    found = []
    for seed in (1, 2, 1):
        drawn.load(weights_of(agent, seed))
        drawn.rng = np.random.default_rng(0)
        found.append(float(drawn.answer(asked).extras[0, 0]))  # type: ignore[index]
    assert found[0] == found[2] != found[1]


# From playing to learning.


CARTPOLE = EnvironmentSpec(ObservationSpec((4,), "float32", (Part("number", 4),)), 2)


@cache
def losses() -> dict[str, Any]:
    """Of an unroll, with a correction that clips nothing, and without."""
    agent = agent_of(LSTM, CARTPOLE)
    model = Model(
        build_policy_network(LSTM, CARTPOLE.observation, CARTPOLE.actions), CARTPOLE.actions, agent.state_size
    )

    def loss(options: ActorCriticOptions, weights: Any, batch: Any) -> Any:
        tree = agent.layout.unravel(weights)
        return rollout_loss(options, model, tree, model.features(tree, batch.observation), batch)[0]

    chosen: Any = {name: replace(OPTIONS, correction=name, rho_clip=9.0) for name in ("none", "vtrace")}
    return {name: jax.jit(partial(loss, options)) for name, options in chosen.items()}


@pytest.mark.parametrize("local", [True, False], ids=["local", "remote"])
def test_what_is_learned_from_has_the_probabilities_it_was_played_with(local: bool) -> None:
    """With the weights that played, all ratios are 1, through every end and beginning of an episode.

    To 1e-4: with ratios as far as 1e-5 from 1, a correction that clips nothing is none.
    """
    rows, agent = 6, agent_of(LSTM, CARTPOLE)
    weights = weights_of(agent)
    board, page, index = board_of(weights), Page(new_ledger()), 1
    unrolls = UnrollStorage(CARTPOLE, 2, allocated(UnrollStorage.fields(CARTPOLE, 2, 2, rows, ENVIRONMENTS, agent.state_size)))
    arrays = request_arrays(2, agent.state_size, CARTPOLE)
    desk = requests_of(arrays)
    policy: Any = (
        SamplingPolicy(agent, board, ENVIRONMENTS, page, seed=0, rank=0, start=0)
        if local
        else RemotePolicy(desk, index, ENVIRONMENTS, page, lambda: 0)
    )
    writer = UnrollWriter(
        unrolls,
        index,
        begin_unroll=policy.pull,
        core=lambda: policy.core if local else desk.states(index),
        reader=lambda: 0,
        ring=lambda: None,
        dropped=lambda: None,
    )
    envs = make("CartPole-v1", ENVIRONMENTS, options={"max_episode_steps": 11}, next_step_autoreset=True)
    actor = Actor(
        envs,
        policy,
        writer,
        page,
        lambda _: 0.0,
        first_lane=0,
        seed=0,
        rank=0,
        watch=Unwatched(),
    )
    actor.restart([1, 2, 3])
    server = server_of(desk, core=agent.state_size, answers=SampledActions(agent, np.random.default_rng(1)), board=board)
    seen: Counter[str] = Counter()
    for _ in range(300):
        actor.step()
        server.step()
        for slot in unrolls.ready():
            batch = unrolls.gather(np.array([slot]), 0.9, 0.01, agent.state_size, 1)
            unrolls.free(np.array([slot]))
            played, corrected = (float(losses()[name](weights, lesson(batch))) for name in ("none", "vtrace"))
            np.testing.assert_allclose(corrected, played, rtol=1e-4)
            off = batch._replace(log_prob=batch.log_prob + 0.01 * batch.weight)
            assert abs(float(losses()["vtrace"](weights, lesson(off))) - played) > 1e-3 * abs(played)
            ended = (batch.weight[1:-1] == 0) & (batch.weight[:-2] == 1)
            seen.update(
                unrolls=1,
                terminated=int((ended & (batch.discount[:-2] == 0)).sum()),
                truncated=int((ended & (batch.discount[:-2] > 0)).sum()),
                begun=int(batch.first[1:].sum()),
                carried=int((np.abs(batch.core).sum(axis=1) > 0).sum()),
            )
    assert seen["unrolls"] > 20
    assert min(seen.values()) > 3, seen


# The adjuster.


class Company:
    """Trains at a rate that depends on the numbers at work, by a clock of its own."""

    def __init__(
        self,
        rate: Callable[[Sequence[int]], float],
        start: tuple[int, int, int],
        most: tuple[int, int, int],
        seed: int = 0,
        warm_up: float = 0.0,
    ) -> None:
        self.rate, self.warm_up, self.time, self.made, self.since = rate, warm_up, 100.0, 0.0, 100.0
        self.arrays = allocated(Adjuster.fields())
        self.arrays["active"][:] = self.arrays["kept"][:] = start
        self.most, self.seed, self.starts = most, seed, 0
        self.start()
        self.history = [start]

    def start(self) -> None:
        """Also again."""
        self.adjuster = Adjuster(
            self.arrays,
            self.most,
            lambda: int(self.made),
            period_s=10.0,
            seed=self.seed,
            start=self.starts,
            now=lambda: self.time,
        )
        self.starts += 1

    @property
    def active(self) -> tuple[int, ...]:
        return tuple(self.arrays["active"].tolist())

    def run(self, seconds: float, tick: float = 0.5) -> None:
        """Go on; right after a change nothing is trained for a while."""
        for _ in range(int(seconds / tick)):
            self.time += tick
            if self.time - self.since > self.warm_up:
                self.made += tick * self.rate(self.active)
            before = self.active
            self.adjuster.step()
            if self.active != before:
                self.since = self.time
                self.history.append(self.active)

    def path(self) -> list[tuple[tuple[int, ...], float, bool]]:
        rows = self.arrays["path"][: int(self.arrays["count"][0])]
        return [(tuple(int(x) for x in row[1:4]), float(row[4]), bool(row[5])) for row in rows]


def test_every_judgement_is_told_once_and_those_that_were_overwritten_are_not() -> None:
    arrays = allocated(Adjuster.fields())
    arrays["path"][0], arrays["count"][0] = (100.0, 1, 1, 2, 38.26, 1), 1
    assert judgements(arrays, 0) == ["adjuster: predictors 1, trainers 1, agents 2: 38.3 trainings a second, kept"]
    arrays["path"][1], arrays["count"][0] = (110.0, 1, 2, 2, 30.0, 0), 2
    assert judgements(arrays, 1) == [
        "adjuster: predictors 1, trainers 2, agents 2: 30.0 trainings a second, taken back"
    ]
    assert judgements(arrays, 2) == []
    arrays["path"][:], arrays["count"][0] = (0.0, 1, 1, 1, 5.0, 1), 2 * PATH + 3
    assert len(judgements(arrays, 5)) == PATH


def peak(best: Sequence[int]) -> Callable[[Sequence[int]], float]:
    """Fewer trainings the further from the best numbers."""
    return lambda active: 1000.0 - 100.0 * sum(abs(a - b) for a, b in zip(active, best, strict=True))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("start", "best"), [((1, 1, 1), (3, 2, 4)), ((4, 4, 4), (1, 3, 2)), ((2, 2, 2), (4, 4, 4))])
def test_the_adjuster_finds_the_best_numbers_and_stays(
    seed: int, start: tuple[int, int, int], best: tuple[int, int, int]
) -> None:
    company = Company(peak(best), start, (4, 4, 4), seed)
    company.run(1500)
    kept = [numbers for numbers, _, kept in company.path() if kept]
    assert kept[-1] == best
    reached = kept.index(best)
    assert set(kept[reached:]) == {best}


@pytest.mark.parametrize("seed", range(4))
def test_the_adjuster_changes_one_number_at_a_time_within_its_limits_and_keeps_no_fall(seed: int) -> None:
    rng, most = np.random.default_rng(seed), (3, 1, 5)
    rates = {numbers: float(rng.integers(50, 1000)) for numbers in itertools.product(*(range(1, n + 1) for n in most))}
    company = Company(lambda active: rates[tuple(active)], (2, 1, 2), most, seed)  # type: ignore[index]
    company.run(800)
    for before, after in itertools.pairwise(company.history):
        assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
        assert all(1 <= number <= limit for number, limit in zip(after, most, strict=True))
    path = company.path()
    assert len(path) > 60
    kept, rate, fell, gained_before = (2, 1, 2), rates[2, 1, 2], 0, None
    for numbers, measured, stays in path:
        np.testing.assert_allclose(measured, rates[numbers], rtol=0.02)  # type: ignore[index]
        gain = rates[numbers] / rate  # type: ignore[index]
        assert stays == (numbers == kept or gain >= CLEARLY or (gain >= 1 and numbers == gained_before))
        if numbers != kept:
            gained_before = numbers if gain >= 1 else None
        if stays:
            kept, rate = numbers, rates[numbers]  # type: ignore[index,assignment]
        fell += not stays
    assert fell > 5
    assert company.active == kept or company.rate(company.active) != company.rate(kept)


def test_a_change_that_is_kept_is_made_again_twice_as_large() -> None:
    company = Company(lambda active: 10.0 * active[2], (1, 1, 2), (1, 1, 60))
    company.run(90)
    agents = [numbers[2] for numbers in company.history]
    up = agents.index(3)
    assert agents[up : up + 5] == [3, 5, 9, 17, 25]  # by 8 at most


@pytest.mark.parametrize("seed", range(3))
def test_numbers_that_make_little_difference_drift_less_than_luck_would_have_them(seed: int) -> None:
    """From the most agents on, each fewer costs 3 %; a measurement is off by 8 %."""
    luck = np.random.default_rng(seed)
    off = {"until": 0.0, "by": 1.0}

    def rate(active: Sequence[int]) -> float:
        if company.time >= off["until"]:
            off.update(until=company.time + 5.0, by=float(luck.normal(1.0, 0.08)))
        return 100.0 * (1 - 0.03 * (24 - active[2])) * off["by"]

    company = Company(lambda _: 0.0, (1, 1, 24), (1, 1, 24), seed)
    company.rate = rate
    company.run(4_000)
    assert np.mean([numbers[2] for numbers, _, _ in company.path()]) > 21.5


def test_an_adjuster_that_is_started_again_goes_on_from_what_was_kept_and_draws_anew() -> None:
    company = Company(peak((2, 2, 2)), (2, 2, 2), (3, 3, 3))
    first = set()
    for _ in range(12):
        company.run(15)  # one period to measure, half of one on trial
        assert company.active != (2, 2, 2)
        first.add(company.active)
        company.start()
        assert company.active == (2, 2, 2)
    assert len(first) > 2


def test_a_pause_is_no_time_in_which_nobody_trained() -> None:
    company = Company(peak((2, 2, 2)), (2, 2, 2), (3, 3, 3))
    for _ in range(5):
        company.run(33)
        company.adjuster.settle()
        company.time += 500
    assert len(company.path()) >= 10
    assert min(rate for _, rate, _ in company.path()) > 650


def test_what_was_taken_back_is_not_tried_again_before_everything_else() -> None:
    company = Company(peak((2, 2, 2)), (2, 2, 2), (3, 3, 3))
    company.run(280)
    tried = [numbers for numbers in company.history if numbers != (2, 2, 2)]
    assert len(set(tried[:6])) == len(set(tried[6:12])) == 6


def test_after_a_fall_the_old_numbers_are_measured_anew_before_the_next_change() -> None:
    company = Company(peak((2, 2, 2)), (2, 2, 2), (3, 3, 3))
    company.run(400)
    path = company.path()
    for (numbers, _, kept), (after, _, stays) in itertools.pairwise(path):
        assert kept == (numbers == (2, 2, 2))
        assert kept or (after, stays) == ((2, 2, 2), True)


def test_when_no_change_was_any_good_it_rests_twice_as_long_each_time() -> None:
    company = Company(peak((2, 2, 2)), (2, 2, 2), (3, 3, 3))
    company.run(1_500)
    rests = [len(list(of)) - 1 for still, of in itertools.groupby(company.path(), key=lambda row: row[2]) if still]
    assert [rest for rest in rests if rest][:5] == [2, 4, 8, 16, 16]
    assert rests[:7] == [0, 0, 0, 0, 0, 0, 2], "a period to measure between two trials"


def test_a_better_place_is_found_after_a_rest_and_ends_it() -> None:
    company = Company(peak((2, 2, 2)), (2, 2, 2), (3, 3, 3))
    company.run(1_500)
    assert company.adjuster.state()["rest"] == LONGEST_REST
    company.rate = peak((3, 2, 2))
    company.run(400)
    assert (3, 2, 2) in [numbers for numbers, _, kept in company.path() if kept]
    company.rate = peak((1, 1, 3))
    company.run(1_500)
    assert [numbers for numbers, _, kept in company.path() if kept][-1] == (1, 1, 3)


def test_a_resumed_adjuster_rests_on_and_does_not_try_again_what_was_in_vain() -> None:
    company = Company(peak((2, 2, 2)), (2, 2, 2), (3, 3, 3))
    for seconds in (60, 60, 60):  # each ends in the midst of a trial, or of the rest
        company.run(seconds)
        state = json.loads(json.dumps(company.adjuster.state()))
        company.start()
        company.adjuster.load_state(state)
    tried = [numbers for numbers, _, kept in company.path() if not kept]
    assert len(set(tried)) == len(tried) == 6
    assert company.adjuster.state()["rest"] == 2 * SHORTEST_REST
    company.start()
    company.adjuster.load_state({})


def test_the_time_right_after_a_change_does_not_count() -> None:
    company = Company(lambda _: 100.0, (2, 2, 2), (3, 3, 3), warm_up=2.0)
    company.run(200)
    assert len(company.path()) >= 19
    np.testing.assert_allclose([rate for _, rate, _ in company.path()], 100.0, rtol=0.02)


def test_a_measurement_that_begins_late_takes_its_time() -> None:
    """The adjuster was not asked for a while: it must not judge by no time at all."""
    company = Company(peak((2, 2, 2)), (2, 2, 2), (3, 3, 3))
    company.run(600, tick=12.0)
    path = company.path()
    assert len(path) > 20
    for numbers, rate, kept in path:
        np.testing.assert_allclose(rate, company.rate(numbers), rtol=0.02)
        assert kept == (numbers == (2, 2, 2))


def test_with_no_choice_the_adjuster_changes_nothing() -> None:
    company = Company(lambda _: 100.0, (1, 1, 1), (1, 1, 1))
    company.run(100)
    assert company.history == [(1, 1, 1)]
    assert len(company.path()) >= 9


def test_the_path_keeps_the_latest() -> None:
    company = Company(lambda _: 100.0, (1, 1, 1), (2, 2, 2))
    company.arrays["count"][0] = PATH - 1
    company.run(21)  # the first period begins with the first look
    assert company.arrays["count"][0] == PATH + 1
    assert company.arrays["path"][PATH - 1, 0] == 110.5
    assert company.arrays["path"][0, 0] == 120.5
