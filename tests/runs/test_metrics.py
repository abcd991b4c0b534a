"""Metrics: one set of keys in `metrics.jsonl` and TensorBoard, across kills, resumes and full disks."""

from __future__ import annotations

import os
import resource
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repertory.errors import UserError
from repertory.runs import metrics
from repertory.runs.metrics import MetricsWriter, read


def events(directory: Path) -> list[Any]:
    """All events of all files, in the order in which TensorBoard reads them."""
    from tensorboardX.proto import event_pb2

    found = []
    for path in sorted(directory.iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = event_pb2.Event()
            event.ParseFromString(data[12 : 12 + length])
            found.append(event)
            data = data[16 + length :]
    return found


def points(directory: Path) -> list[tuple[int, str, float]]:
    return [(e.step, value.tag, value.simple_value) for e in events(directory) for value in e.summary.value]


def fill(jsonl: Path, steps: range, tensorboard: Path | None = None, **options: Any) -> None:
    writer = MetricsWriter(jsonl, tensorboard, **options)
    for step in steps:
        writer.write({"env_steps": step, "loss": step / 2})
    writer.close()


def test_same_keys_go_to_both_places(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "run" / "m.jsonl", tmp_path / "run" / "tb")
    writer.write({"env_steps": 5, "loss": np.float32(0.5), "time/act": 0.25, "score": None, "phase": "warm"})
    writer.write({"env_steps": np.int64(6), "loss": float("nan"), "score": float("inf"), "updates": 2})
    writer.close()
    writer.close()
    assert read(tmp_path / "run" / "m.jsonl") == [
        {"env_steps": 5, "loss": 0.5, "time/act": 0.25, "score": None, "phase": "warm"},
        {"env_steps": 6, "loss": None, "score": None, "updates": 2},
    ]
    assert points(tmp_path / "run" / "tb") == [(5, "loss", 0.5), (5, "time/act", 0.25), (6, "updates", 2.0)]


def test_env_steps_are_required(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="env_steps"):
        MetricsWriter(tmp_path / "m.jsonl", None).write({"loss": 1.0})


def test_each_line_can_be_read_before_the_next(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "m.jsonl", None)
    for step in range(3):
        writer.write({"env_steps": step})
        assert read(tmp_path / "m.jsonl")[-1] == {"env_steps": step}


def test_torn_last_line_is_left_out_and_not_continued(tmp_path: Path) -> None:
    jsonl = tmp_path / "m.jsonl"
    jsonl.write_text('{"env_steps": 1}\n{"env_st')
    assert read(jsonl) == [{"env_steps": 1}]
    fill(jsonl, range(2, 3))
    assert [line["env_steps"] for line in read(jsonl)] == [1, 2]


def test_damage_in_the_middle_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"env_steps": 1}\n{"env_st\n{"env_steps": 2}\n')
    with pytest.raises(UserError, match="line 2"):
        read(tmp_path / "m.jsonl")


def test_absent_file_has_no_lines(tmp_path: Path) -> None:
    assert read(tmp_path / "m.jsonl") == []


def test_resumed_curve_goes_on_without_a_fold(tmp_path: Path) -> None:
    jsonl, tensorboard = tmp_path / "m.jsonl", tmp_path / "tb"
    fill(jsonl, range(0, 50, 10), tensorboard)
    fill(jsonl, range(30, 60, 10), tensorboard, resume_at=20)
    assert [line["env_steps"] for line in read(jsonl)] == [0, 10, 20, 30, 40, 50]
    assert len(list(tensorboard.iterdir())) == 2, "the second file must not replace the first"
    starts = [event.step for event in events(tensorboard) if event.HasField("session_log")]
    assert starts == [21], "TensorBoard forgets this step and those beyond it"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_writing_is_cheap(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "m.jsonl", tmp_path / "tb")
    values = {f"key{index}": index / 3 for index in range(25)}
    writer.write({"env_steps": 0, **values})
    took = []
    for step in range(100):
        start = time.perf_counter()
        writer.write({"env_steps": step, **values})
        took.append(time.perf_counter() - start)
    assert np.median(took) < 0.005


def test_tensorboard_waits_for_the_first_write(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "m.jsonl", tmp_path / "tb")
    assert "tensorboardX" not in vars(metrics), "it takes long to import"
    assert not (tmp_path / "tb").exists()
    writer.write({"env_steps": 1, "loss": 1.0})
    writer.close()
    assert points(tmp_path / "tb") == [(1, "loss", 1.0)]


def test_refused_writes_neither_stop_nor_garble_the_run(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "m.jsonl", tmp_path / "tb")
    writer.write({"env_steps": 0, "loss": 0.5})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        for step in range(1, 100):
            writer.write({"env_steps": step, "loss": 0.5})
        writer.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.write({"env_steps": 100, "loss": 0.5})
    writer.close()
    steps = [line["env_steps"] for line in read(tmp_path / "m.jsonl")]
    assert steps == [0, 1, 2, 100]
    assert writer.lost >= 97


def test_full_disk_while_cutting_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: Any) -> None:
    fill(tmp_path / "m.jsonl", range(5))
    before = (tmp_path / "m.jsonl").read_bytes()

    def refuse(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(UserError, match="No space"):
        MetricsWriter(tmp_path / "m.jsonl", None, resume_at=2)
    assert (tmp_path / "m.jsonl").read_bytes() == before
