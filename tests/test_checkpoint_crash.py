"""A checkpoint survives kills and full disks: real processes, real signals, a real full disk where one can be made."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repertory.runs import array_file, checkpoint


def save(directory: Path, step: int, keep: int = 2, size: int = 10) -> Path:
    return checkpoint.save(directory, {"a": np.ones(size)}, step=step, keep=keep, exact=True)


SAVER = """
    import sys, numpy as np
    from pathlib import Path
    from repertory.runs import checkpoint
    for step in range(int(sys.argv[2]), 10**9):
        state = {"replay": {"obs": np.full((64, 4096), step % 251, np.uint8)}, "counters": {"step": step}}
        checkpoint.save(Path(sys.argv[1]), state, step=step, keep=1, exact=True)
        print(step, flush=True)
"""


def test_kill_at_any_instant_leaves_a_whole_latest_checkpoint(tmp_path: Path) -> None:
    chance, last = random.Random(0), -1
    for _ in range(20):
        command = [sys.executable, "-c", textwrap.dedent(SAVER), str(tmp_path), str(last + 1)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout
        child.stdout.readline()
        time.sleep(chance.uniform(0, 0.03))
        child.kill()
        told = [last + 1, *(int(line) for line in child.stdout.read().split())][-1]
        child.wait()
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
        return array_file.write_file(path, chunks)

    monkeypatch.setattr(checkpoint, "write_file", write_and_save_again)
    save(tmp_path, step=2)
    assert len(checkpoint.whole(tmp_path)) == 2


FULL_DISK = """
    import resource, signal, sys, numpy as np
    from pathlib import Path
    from repertory.runs import checkpoint
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    directory = Path(sys.argv[1])
    first = checkpoint.save(directory, {"a": np.ones(10)}, step=1, keep=1, exact=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        checkpoint.save(directory, {"a": np.ones(10_000_000)}, step=2, keep=1, exact=True)
    except checkpoint.CheckpointFailed as error:
        print(error)
    assert [first] == list(directory.iterdir()) == [checkpoint.latest(directory)]
    checkpoint.load(first)
"""


def test_refused_write_raises_once_and_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path)]
    text = subprocess.check_output(command, text=True)
    assert "the checkpoint at step 2 was not saved" in text
    assert "File too large" in text


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
