"""A checkpoint survives kills and full disks: real processes, real signals, and a real full disk for root."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repertory.runs import checkpoint, state_file


def save(directory: Path, step: int, keep: int = 2, size: int = 10) -> Path:
    return checkpoint.save(directory, {"a": np.ones(size)}, step=step, keep=keep, exact=True)


SAVER = """
    import os, sys, numpy as np
    from pathlib import Path
    from repertory.runs import checkpoint

    def save_for_ever(directory, first):
        for step in range(first, 10**9):
            state = {"replay": {"obs": np.full((64, 4096), step % 251, np.uint8)}, "counters": {"step": step}}
            checkpoint.save(directory, state, step=step, keep=1, exact=True)
            print(os.getpid(), step, flush=True)

    for line in sys.stdin:  # one fork for each kill: the imports are paid once
        child = os.fork()
        if child == 0:
            save_for_ever(Path(sys.argv[1]), int(line))
        os.waitpid(child, 0)
        print("dead", flush=True)
"""


def save_until_killed(parent: subprocess.Popen[str], first: int, seconds: float) -> int:
    """Let a child save from step `first` on, kill it `seconds` after it has begun; the last step it told."""
    assert parent.stdin
    assert parent.stdout
    print(first, file=parent.stdin, flush=True)
    child, told = parent.stdout.readline().split()
    time.sleep(seconds)
    os.kill(int(child), signal.SIGKILL)
    for line in iter(parent.stdout.readline, "dead\n"):
        told = line.split()[1]
    return int(told)


def test_kill_at_any_instant_leaves_a_whole_latest_checkpoint(tmp_path: Path) -> None:
    chance, last = random.Random(0), -1
    command = [sys.executable, "-c", textwrap.dedent(SAVER), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        for _ in range(20):
            told = save_until_killed(parent, last + 1, chance.uniform(0, 0.03))
            newest = checkpoint.latest(tmp_path)
            assert newest is not None
            loaded = checkpoint.load(newest)
            last = loaded["counters"]["step"]
            assert last >= told
            assert (loaded["replay"]["obs"] == last % 251).all()
    save(tmp_path, step=10**9, keep=1)
    assert len(list(tmp_path.iterdir())) == 1, "the next save removes what the dead left"


def test_temporary_directory_of_a_living_writer_stays(tmp_path: Path, monkeypatch: Any) -> None:
    inner: list[Path] = []

    def write_and_save_again(path: Path, chunks: Any) -> dict[str, int]:
        if not inner:
            inner.append(path)
            save(tmp_path, step=1)
        return state_file.write_file(path, chunks)

    monkeypatch.setattr(checkpoint, "write_file", write_and_save_again)
    save(tmp_path, step=2)
    assert len(checkpoint.whole(tmp_path)) == 2


def test_refused_write_raises_once_and_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    first = save(tmp_path, step=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(checkpoint.CheckpointFailed, match=r"step 2 was not saved.*File too large"):
            save(tmp_path, step=2, size=10_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == checkpoint.whole(tmp_path) == [first]
    checkpoint.load(first)


def test_full_disk_raises_and_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    mounted = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mounted, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a small disk")
    try:
        first = save(tmp_path, step=1)
        with pytest.raises(checkpoint.CheckpointFailed) as error:
            save(tmp_path, step=2, size=1_000_000)
        assert error.value.errno == errno.ENOSPC
        assert list(tmp_path.iterdir()) == [first]
        assert (checkpoint.load(first)["a"] == 1).all()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
