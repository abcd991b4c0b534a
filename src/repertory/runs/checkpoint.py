"""Checkpoints: whole or not at all, checksummed, and never a pickle.

    checkpoints/step-000000012000/
      learner.safetensors, channels.safetensors   the arrays: one file for each top-level key that has any
      state.json                                everything else, and where each array belongs
      manifest.json                             versions, step, size and CRC-32 of each file; written last

A checkpoint is written into a locked `.tmp-*` sibling, through to the disk, and then renamed: a kill at any instant
leaves the earlier ones whole. The disk needs room for `keep` + 1 of them. `state_file.py` tells what a state may hold,
and how arrays are written and read without doubling the memory.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import zlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from repertory.errors import UserError, nearest
from repertory.runs.state_file import Array, State, decode_arrays, encode_arrays, join, measure_file, split, write_file

FORMAT = "repertory-checkpoint"
FORMAT_VERSION = 3
"""Format 1 held the whole capacity of a replay, and a learning rate that fell by updates; format 2 had a part for each
kind of worker, where now each channel has one, and of topologies on `inline` only `single` went on exactly."""


class CheckpointFailed(OSError):
    """The disk refused (full, gone, read-only); earlier checkpoints are untouched and training can go on."""

    def __str__(self) -> str:
        return str(self.strerror)


def save(directory: Path, state: State, *, step: int, keep: int, exact: bool) -> Path:
    """Write `state` as the newest checkpoint of `directory`; then remove all but the newest `keep`.

    The newest exact one stays besides: a run can be repeated from it, also after it was resumed from others.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    tree, parts = split(state)
    about = {"format": FORMAT, "format_version": FORMAT_VERSION, "repertory": our_version()}
    about |= {"step": step, "exact": exact}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _remove_stale(directory)
        path = _write(directory, tree, parts, about)
    except OSError as error:
        text = f"the checkpoint at step {step} was not saved in {directory}: {error.strerror or error}"
        raise CheckpointFailed(error.errno, text) from error
    found = whole(directory)
    newest_exact = [each for each in found if _read_manifest(each).get("exact")][-1:]
    for old in found[:-keep]:
        if old not in newest_exact:
            _remove(old)
    return path


def whole(directory: Path) -> list[Path]:
    """All checkpoints whose manifest is sound and whose files have the right size, in the order written."""
    found = [(sequence, path) for path in directory.glob("step-*") if (sequence := _sequence(path))]
    return [path for _, path in sorted(found)]


def latest(directory: Path) -> Path | None:
    """The whole checkpoint that was written last."""
    return next(reversed(whole(directory)), None)


def manifest(path: str | Path) -> dict[str, Any]:
    """The manifest of `path`; a `UserError` if it is unfinished, damaged, not ours, or of another format."""
    found = _read_manifest(Path(path))
    if found["format_version"] != FORMAT_VERSION:
        remedy = "upgrade repertory" if found["format_version"] > FORMAT_VERSION else "train again, or use that version"
        raise UserError(
            f"{path} has checkpoint format {found['format_version']} (of repertory {found.get('repertory')}) "
            f"but repertory {our_version()} reads format {FORMAT_VERSION}; {remedy}"
        )
    if found.get("crc32") != _self_checksum(found):
        raise UserError(f"{path}/manifest.json is damaged: its checksum is wrong; use another checkpoint")
    return found


def load(path: str | Path, *, parts: Collection[str] | None = None) -> dict[str, Any]:
    """The state that was saved, or only the top-level keys in `parts`: other files are not read."""
    path = Path(path)
    files = manifest(path)["files"]
    try:
        _check(path, "state.json", files)
        tree = dict(json.loads((path / "state.json").read_bytes()))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"{path}/state.json does not read as JSON of ours; use another checkpoint") from None
    for unknown in sorted(set(parts or ()) - set(tree)):
        raise UserError(f"{path} holds no {unknown!r}{nearest(unknown, tree)}")
    return {part: _load_part(path, part, tree[part], files) for part in tree if parts is None or part in parts}


def _write(directory: Path, tree: Any, parts: Mapping[str, dict[str, Array]], about: dict[str, Any]) -> Path:
    temporary = directory / f".tmp-{os.getpid()}-{secrets.token_hex(4)}"
    temporary.mkdir()
    lock = os.open(temporary, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        chunks = {f"{part}.safetensors": encode_arrays(arrays) for part, arrays in parts.items()}
        chunks["state.json"] = iter([_json(tree)])
        about["files"] = {name: write_file(temporary / name, data) for name, data in chunks.items()}
        about["sequence"] = 1 + max((_sequence(path) for path in whole(directory)), default=0)
        about["crc32"] = _self_checksum(about)
        write_file(temporary / "manifest.json", [_json(about)])
        os.fsync(lock)
        path = temporary.rename(_free_name(directory, about["step"]))
        parent = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        os.close(lock)
    return path


def _free_name(directory: Path, step: int) -> Path:
    """A run that was resumed may save a step again; the earlier one stays until the new one is whole."""
    path, count = directory / f"step-{step:012d}", 1
    while path.exists():
        count += 1
        path = directory / f"step-{step:012d}-{count}"
    return path


def _remove(path: Path) -> None:
    """Renamed first, so that it is never seen half removed; the next save removes what is left."""
    with suppress(OSError):
        shutil.rmtree(path.rename(path.with_name(f".tmp-{path.name}")), ignore_errors=True)


def _remove_stale(directory: Path) -> None:
    """Remove what dead writers left: their locks ended with them."""
    for path in directory.glob(".tmp-*"):
        with suppress(OSError):
            lock = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode()


def _self_checksum(about: Mapping[str, Any]) -> int:
    rest = {key: value for key, value in about.items() if key != "crc32"}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode())


def our_version() -> str:
    try:
        return version("repertory")
    except PackageNotFoundError:
        return "(not installed)"


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        text = (path / "manifest.json").read_bytes()
    except OSError:
        raise UserError(f"{path} is not a whole checkpoint: manifest.json cannot be read") from None
    try:
        found = json.loads(text)
        plain = all(Path(name).name == name for name in found["files"])  # no path out of the checkpoint
        if found["format"] == FORMAT and found["format_version"] >= 1 and plain:
            return dict(found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise UserError(f"{path} is not a checkpoint of repertory: its manifest.json does not read as ours")


def _sequence(path: Path) -> int:
    """A whole checkpoint's place in the order of writing, from 1; 0 if it is not whole."""
    try:
        found = _read_manifest(path)
        if found["format_version"] == FORMAT_VERSION:
            manifest(path)
        right = all((path / name).stat().st_size == file["bytes"] for name, file in found["files"].items())
        return int(found["sequence"]) if right else 0
    except (UserError, OSError, KeyError, TypeError, ValueError):
        return 0


def _check(path: Path, name: str, files: Mapping[str, Any]) -> None:
    try:
        found = measure_file(path / name)
    except OSError as error:
        raise UserError(f"{path}/{name} cannot be read ({error.strerror}); use another checkpoint") from None
    for key, what in (("bytes", "size"), ("crc32", "checksum")):
        if found[key] != files[name][key]:
            raise UserError(
                f"{path}/{name} is damaged: its {what} is {found[key]} where the manifest says "
                f"{files[name][key]}; use another checkpoint"
            )


def _load_part(path: Path, part: str, tree: Any, files: Mapping[str, Any]) -> Any:
    name = f"{part}.safetensors"
    try:
        if name not in files:
            return join(tree, {})
        _check(path, name, files)
        return join(tree, decode_arrays(path / name))
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError(f"{path}/{name} is not the safetensors file that state.json needs") from None
