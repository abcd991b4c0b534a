"""Inference servers: every client gets the reply to its own request and keeps its states, in few sizes of batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inference_parts import (
    ENVIRONMENTS,
    TINY,
    Echo,
    Rank,
    agent_of,
    everything_legal,
    mailbox_of,
    policy_of,
    published,
    server_of,
    vector_of,
)
from repertory.roles.inference import InferenceServer, SampledActions


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(1, 9), servers=st.integers(1, 3))
def test_every_reply_goes_to_the_client_that_asked(seed: int, clients: int, servers: int) -> None:
    """Clients change their server, and servers are replaced by new ones: a reply is to the client's last request."""
    rng, mailbox = np.random.default_rng(seed), mailbox_of(clients, state_size=2)
    to = [0] * clients
    policies = [policy_of(mailbox, client, lambda client=client: to[client]) for client in range(clients)]
    running = [server_of(mailbox, rank) for rank in range(servers)]
    sent: list[NDArray[np.float32] | None] = [None] * clients
    sums = np.zeros((clients, ENVIRONMENTS), np.float32)
    replied = [True] * clients
    for _ in range(80):
        client, server = int(rng.integers(clients)), int(rng.integers(servers))
        match rng.integers(8):
            case 0 | 1 | 2 if replied[client]:
                to[client] = server
                seen = rng.integers(0, 1000, (ENVIRONMENTS, 3)).astype(np.float32)
                new = rng.random(ENVIRONMENTS) < 0.2
                policies[client].reset(new)
                sums[client] = np.where(new, 0.0, sums[client]) + seen[:, 0]
                if sent[client] is None:
                    sums[client] = seen[:, 0]
                policies[client].submit(seen, everything_legal())
                sent[client], replied[client] = seen, False
            case 3 | 4:
                waiting = [a for a in range(clients) if not replied[a] and to[a] == server]
                assert running[server].step() == bool(waiting)
                for a in waiting:
                    replied[a] = True
            case 5:
                running[server] = server_of(mailbox, server)
            case _:
                pass
        found, request = policies[client].poll(), sent[client]
        if request is None or not replied[client]:
            assert request is None or found is None
            continue
        assert found is not None
        np.testing.assert_array_equal(found, request[:, 0])
        np.testing.assert_array_equal(policies[client].extras(found), request[None, :, 1])
        np.testing.assert_array_equal(mailbox.asker().states(client)[:, 0], sums[client])
        assert policies[client].version == 7


def test_requests_are_replied_to_in_few_sizes_of_batches() -> None:
    mailbox, echo = mailbox_of(13), Echo()
    server = server_of(mailbox, inference=echo)
    for count in (13, 7, 1, 4):
        echo.sizes = []
        policies = [policy_of(mailbox, client) for client in range(count)]
        for client, policy in enumerate(policies):
            policy.submit(np.full((ENVIRONMENTS, 3), client, np.float32), everything_legal())
        assert server.step()
        assert server.stats.row["queue"] == count + 1
        assert not server.step()
        assert [policy.poll().tolist() for policy in policies] == [[a] * ENVIRONMENTS for a in range(count)]  # type: ignore[union-attr]
        assert sum(echo.sizes) == count * ENVIRONMENTS
        assert all((size // ENVIRONMENTS).bit_count() == 1 for size in echo.sizes)
        assert len(echo.sizes) == count.bit_count()


def test_a_server_waits_for_more_clients_but_not_for_ever() -> None:
    mailbox = mailbox_of(3)
    policies = [policy_of(mailbox, client) for client in range(3)]
    server = server_of(mailbox, least=2, patience_s=60.0)

    def ask(client: int) -> None:
        policies[client].submit(np.zeros((ENVIRONMENTS, 3), np.float32), everything_legal())

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


def test_weights_are_fetched_before_each_reply_and_loaded_only_if_they_are_new() -> None:
    mailbox, echo, weights = mailbox_of(1), Echo(), published(np.zeros(2, np.float32), 3)
    server, policy = server_of(mailbox, inference=echo, weights=weights), policy_of(mailbox, 0)
    publisher = weights.writer(Rank())
    versions = []
    for version in (3, 3, 5, 5):
        publisher.publish(version, np.full(2, version, np.float32))
        policy.submit(np.zeros((ENVIRONMENTS, 3), np.float32), everything_legal())
        server.step()
        policy.poll()
        versions.append(policy.version)
    assert versions == [3, 3, 5, 5]
    np.testing.assert_array_equal([loaded[0] for loaded in echo.loaded], [3, 5])


def test_a_servers_stream_of_samples_goes_on_where_it_was() -> None:
    agent = agent_of(TINY)
    observation = np.random.default_rng(0).normal(size=(ENVIRONMENTS, 3)).astype(np.float32)

    def server(seed: int) -> tuple[InferenceServer, Callable[[], Any]]:
        mailbox, weights = mailbox_of(1), published(vector_of(agent))
        made = server_of(mailbox, inference=SampledActions(agent, np.random.default_rng(seed)), weights=weights)
        policy = policy_of(mailbox, 0)

        def ask() -> Any:
            policy.submit(observation, everything_legal())
            made.step()
            return policy.poll().tolist()  # type: ignore[union-attr]

        return made, ask

    (one, ask_one), (other, ask_other) = server(0), server(1)
    [ask_one() for _ in range(5)]
    other.load_state(one.state())
    assert [ask_one() for _ in range(20)] == [ask_other() for _ in range(20)]
    assert server_of(mailbox_of(1)).state() == {}
