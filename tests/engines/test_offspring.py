"""Workers and what their environments start: found and ended, however the processes around them have ended."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import psutil
import pytest

from commands import until
from repertory.engines.endings import MARK, end_offspring, lead_group, mark_of
from repertory.engines.supervisor import Supervisor, Watched
from repertory.runtime import FAMILY, fork_server
from repertory.topologies.graph import Workers

ORPHAN = """
import os, sys, time
from repertory.runtime import die_with_fork_server

end, said = os.pipe()
server = os.fork()
if server == 0:
    server = os.getpid()
    if os.fork() == 0:
        while os.getppid() == server:
            time.sleep(0.001)
        die_with_fork_server(server)
        os.write(said, b"works on")
        os._exit(0)
    os._exit(0)
os.close(said)
print(os.read(end, 100).decode() or "left")
"""
SLEEPER = "import time; print('ready', flush=True); time.sleep(100)"


def test_worker_whose_fork_server_died_before_it_began_leaves() -> None:
    ended = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "left\n", ended.stderr


@contextmanager
def running(code: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process of this session that has said its first line."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_worker_that_has_not_come_to_lead_a_group_is_ended() -> None:
    with running(SLEEPER) as worker:
        end_offspring({worker.pid})
        until(lambda: worker.poll() is not None, timeout=5, what="its end")


def fork_apart(said: Connection) -> None:
    """A worker whose environment forks a process that starts no program and leaves the session."""
    lead_group()
    child = os.fork()
    if child == 0:
        os.setsid()
        time.sleep(100)
    said.send(child)
    time.sleep(100)


def test_child_that_was_forked_without_a_program_and_left_the_session_ends_with_its_worker() -> None:
    heard, said = multiprocessing.Pipe(duplex=False)
    worker = multiprocessing.get_context("spawn").Process(target=fork_apart, args=(said,))
    worker.start()
    child = heard.recv()
    until(lambda: os.getsid(child) == child, timeout=5, what="its leaving")
    watched = Watched((), Workers("actor", 0, list), process=worker)
    Supervisor._end_with_offspring(Supervisor.__new__(Supervisor), watched)
    assert watched.process is None
    until(lambda: not psutil.pid_exists(child), timeout=5, what="its end")


def test_mark_of_a_worker_is_not_that_of_the_same_number_in_another_container(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = 2**22 + 1  # no process has that number
    monkeypatch.setenv(FAMILY, "one")
    own = mark_of(gone)
    monkeypatch.setenv(FAMILY, "another")
    with running(SLEEPER, **{MARK: own}) as theirs, running(SLEEPER, **{MARK: mark_of(gone)}) as ours:
        for process in (theirs, ours):
            assert process.stdout is not None
            process.stdout.readline()
        end_offspring({gone})
        assert ours.wait(5) != 0
        assert theirs.poll() is None


def test_driver_and_its_workers_have_a_family_in_common_before_the_fork_server_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(FAMILY, raising=False)
    fork_server()
    named = os.environ[FAMILY]
    fork_server()
    assert os.environ[FAMILY] == named
