"""Checkpoints survive kills, full disks, damage and malice; what is loaded is what was saved, bit for bit."""

from __future__ import annotations

import json
import math
import os
import pickle
import tracemalloc
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import safe_open

from repertory.errors import UserError
from repertory.runs import checkpoint, state_file
from repertory.runs.session import Session

DTYPES = ["?", "u1", "i1", "<u2", "<i4", ">i4", "<i8", "<u8", "<f2", "<f4", "<f8", ">f8"]
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)
layouts = st.sampled_from([lambda a: a, lambda a: a.T, lambda a: a[..., ::-2] if a.ndim else a, np.asfortranarray])
leaves = st.one_of(
    st.builds(lambda a, layout: layout(a), arrays, layouts),
    st.integers(-(2**128), 2**128),
    st.floats(),
    st.text(st.characters()),
    st.booleans(),
    st.none(),
)
keys = st.text(st.characters(), max_size=4) | st.sampled_from(["$array", "$$float"])
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
states = st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,9}", fullmatch=True), trees, max_size=3)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        little = left.astype(left.dtype.newbyteorder("<"))
        return (little.dtype, left.shape, little.tobytes()) == (right.dtype, right.shape, right.tobytes())
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and math.isnan(left):
        return isinstance(right, float) and math.isnan(right)
    return type(left) is type(right) and repr(left) == repr(right)


def small_state() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "learner": {"weights": rng.normal(size=100).astype(np.float32), "updates": 7},
        "replay": {"obs": rng.integers(0, 255, (10, 4), dtype=np.uint8), "rng": rng.bit_generator.state},
        "env_steps": 12_000,
    }


def save(directory: Path, step: int = 12_000, keep: int = 2, state: Any = None) -> Path:
    return checkpoint.save(directory, state or small_state(), step=step, keep=keep, exact=True)


def sentence(path: Path, **options: Any) -> str:
    with pytest.raises(UserError) as error:
        checkpoint.load(path, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(state=states)
def test_any_state_comes_back_bit_for_bit(state: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("checkpoints")
    path = checkpoint.save(directory, state, step=1, keep=1, exact=False)
    assert same(state, checkpoint.load(path))


def test_random_generator_goes_on_where_it_was(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    path = save(tmp_path, state={"rng": rng.bit_generator.state})
    other = np.random.default_rng()
    other.bit_generator.state = checkpoint.load(path)["rng"]
    assert (rng.random(5) == other.random(5)).all()


def test_safetensors_package_reads_our_files(tmp_path: Path) -> None:
    state = {
        "part": {
            "strided": np.arange(24).reshape(4, 6).T[::2],
            "none": np.zeros((0, 3)),
            "flag": np.array(True),
        }
    }
    path = save(tmp_path, state=state)
    with safe_open(path / "part.safetensors", framework="numpy") as file:
        for name, array in state["part"].items():
            assert same(array, file.get_tensor(f"part/{name}"))


def test_loaded_arrays_are_writable_and_leave_the_file_alone(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(state_file, "MAP_FROM_BYTES", 1)  # map them all
    path = save(tmp_path)
    checkpoint.load(path)["replay"]["obs"][:] = 0
    assert same(small_state(), checkpoint.load(path))


def test_large_arrays_are_saved_without_a_second_copy(tmp_path: Path) -> None:
    big = np.ones((100, 1_000_000), np.uint8)
    tracemalloc.start()
    save(tmp_path, state={"replay": {"contiguous": big, "strided": big[:, ::2]}})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * state_file.CHUNK_BYTES


def test_only_the_parts_asked_for_are_read(tmp_path: Path) -> None:
    path = save(tmp_path)
    (path / "replay.safetensors").unlink()
    assert same({"learner": small_state()["learner"]}, checkpoint.load(path, parts=["learner"]))
    assert "did you mean 'learner'" in sentence(path, parts=["learners"])


@pytest.mark.parametrize("wrong", [(1, 2), {1: 2}, object(), np.array(["text"]), np.array([1j]), b"bytes"])
def test_what_cannot_come_back_as_it_was_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(TypeError, match="part/x"):
        save(tmp_path, state={"part": {"x": {"y": wrong} if isinstance(wrong, dict) else wrong}})
    assert not list(tmp_path.iterdir())


def test_newest_are_kept_and_the_same_step_can_be_saved_again(tmp_path: Path) -> None:
    paths = [save(tmp_path, step=step) for step in (10, 30, 20, 20)]
    assert [path.name[-4:] for path in paths] == ["0010", "0030", "0020", "20-2"]
    assert checkpoint.whole(tmp_path) == paths[2:]
    assert checkpoint.latest(tmp_path) == paths[3]
    assert sorted(tmp_path.iterdir()) == paths[2:]


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "absent") is None
    assert "manifest.json" in sentence(tmp_path)


FILES = ["learner.safetensors", "replay.safetensors", "state.json", "manifest.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["empty", "half", "one byte less", "missing"])
def test_truncated_or_missing_file_is_refused_and_the_one_before_is_latest(
    tmp_path: Path, name: str, damage: str
) -> None:
    before, path = save(tmp_path, step=1), save(tmp_path, step=2)
    size = (path / name).stat().st_size
    if damage == "missing":
        (path / name).unlink()
    else:
        os.truncate(path / name, {"empty": 0, "half": size // 2, "one byte less": size - 1}[damage])
    assert str(path) in sentence(path)
    assert checkpoint.latest(tmp_path) == before


@pytest.mark.parametrize("name", FILES)
def test_flipped_byte_is_refused(tmp_path: Path, name: str) -> None:
    path = save(tmp_path)
    whole = bytearray((path / name).read_bytes())
    for place in range(0, len(whole), 7):
        if whole[place : place + 1].isspace():
            continue
        whole[place] ^= 1
        (path / name).write_bytes(whole)
        assert str(path) in sentence(path)
        whole[place] ^= 1


def forge(path: Path, **changes: Any) -> None:
    """Give a checkpoint a manifest with sound checksums, as an attacker would."""
    about = json.loads((path / "manifest.json").read_text()) | changes
    about["files"] = {name: state_file.measure_file(path / name) for name in about["files"]}
    del about["crc32"]
    about["crc32"] = zlib.crc32(json.dumps(about, sort_keys=True).encode())
    (path / "manifest.json").write_text(json.dumps(about))


class Payload:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (Path.touch, (self.target,))


@pytest.mark.parametrize("name", FILES)
def test_renamed_pickle_is_refused_and_nothing_is_executed(tmp_path: Path, name: str) -> None:
    path, target = save(tmp_path / "checkpoints"), tmp_path / "executed"
    (path / name).write_bytes(pickle.dumps(Payload(target)))
    if name != "manifest.json":
        forge(path)
    sentence(path)
    assert not target.exists()
    pickle.loads(pickle.dumps(Payload(target)))
    assert target.exists(), "the payload would have worked"


def test_tree_that_names_an_absent_array_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path)
    (path / "state.json").write_text('{"learner": {"weights": {"$array": "other"}}}')
    forge(path)
    assert "learner.safetensors" in sentence(path)


def test_manifest_that_points_elsewhere_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path)
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace("learner.safetensors", "../learner.safetensors"))
    assert "not a checkpoint of repertory" in sentence(path)


def test_newest_exact_checkpoint_stays_however_many_follow(tmp_path: Path) -> None:
    for step, exact in ((1, True), (2, True), (3, False), (4, False), (5, False)):
        checkpoint.save(tmp_path, {"x": step}, step=step, keep=2, exact=exact)
    assert [checkpoint.manifest(path)["step"] for path in checkpoint.whole(tmp_path)] == [2, 4, 5]
    checkpoint.save(tmp_path, {"x": 6}, step=6, keep=2, exact=True)
    assert [checkpoint.manifest(path)["step"] for path in checkpoint.whole(tmp_path)] == [5, 6]


@pytest.mark.parametrize("older", [1, 2])
def test_older_format_names_both_versions(tmp_path: Path, older: int) -> None:
    path = save(tmp_path)
    forge(path, format_version=older, repertory="0.0.9")
    assert f"has checkpoint format {older} (of repertory 0.0.9) but repertory " in sentence(path)
    assert " reads format 3; train again, or use that version" in sentence(path)


def test_newer_format_names_both_versions_and_still_counts_as_latest(tmp_path: Path) -> None:
    save(tmp_path, step=1)
    path = save(tmp_path, step=2)
    forge(path, format_version=checkpoint.FORMAT_VERSION + 1, repertory="99.1")
    text = sentence(path)
    assert f"format {checkpoint.FORMAT_VERSION + 1}" in text
    assert f"reads format {checkpoint.FORMAT_VERSION}; upgrade repertory" in text
    assert "99.1" in text
    assert checkpoint.latest(tmp_path) == path


def test_checkpoint_of_the_last_step_is_old_once_the_learner_has_made_another_update(tmp_path: Path) -> None:
    def saved(updates: int) -> bool:
        session: Any = SimpleNamespace(
            directory=SimpleNamespace(checkpoints=tmp_path),
            engine=SimpleNamespace(counters=SimpleNamespace(env_steps=100, updates=updates)),
        )
        return Session._saved(session)

    assert not saved(5)
    checkpoint.save(tmp_path, {"env_steps": 100, "updates": 5}, step=100, keep=2, exact=True)
    assert saved(5)
    assert not saved(6)
