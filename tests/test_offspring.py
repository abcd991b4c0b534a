"""Workers and what their environments start: found and ended, however the processes around them have ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from commands import until
from repertory.engines.offspring import end_offspring

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
