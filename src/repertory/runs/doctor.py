"""What this machine has for training: cores, memory, shared memory, limits, extras, caches."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

import psutil

from repertory.runtime import cache_directory, usable_cores

EXTRAS = {"atari": "ale_py", "minatar": "minatar", "studies": "matplotlib", "video": "imageio"}
GIGABYTE = 1e9


def examine() -> list[dict[str, Any]]:
    """Findings, each with whether it is as it should be."""
    return [
        _python(),
        _cores(),
        _memory(),
        _shared_memory(),
        _open_files(),
        _cache(),
        *_extras(),
    ]


def _finding(what: str, ok: bool, found: str) -> dict[str, Any]:
    return {"what": what, "ok": ok, "found": found}


def _python() -> dict[str, Any]:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "flax", "gymnasium", "numpy"))
    return _finding("Python", sys.version_info >= (3, 11), f"{sys.version.split()[0]}; {versions}")


def _cores() -> dict[str, Any]:
    usable = usable_cores()
    flags = os.environ.get("XLA_FLAGS", "")
    return _finding("cores", usable >= 1, f"{usable} usable; XLA_FLAGS={flags!r}")


def _memory() -> dict[str, Any]:
    memory = psutil.virtual_memory()
    found = f"{memory.available / GIGABYTE:.1f} GB free of {memory.total / GIGABYTE:.1f} GB"
    return _finding("memory", memory.available > GIGABYTE, found)


def _shared_memory() -> dict[str, Any]:
    place = Path("/dev/shm")
    if not place.is_dir():
        return _finding("shared memory", True, "no /dev/shm on this system")
    free = shutil.disk_usage(place).free
    return _finding("shared memory", free > 0.5 * GIGABYTE, f"{free / GIGABYTE:.1f} GB free in {place}")


def _open_files() -> dict[str, Any]:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _finding("open files", limit >= 1024, f"limit {limit}")


def _cache() -> dict[str, Any]:
    place = cache_directory()
    try:
        place.mkdir(parents=True, exist_ok=True)
        writable = os.access(place, os.W_OK)
    except OSError:
        writable = False
    found = f"{place}" if writable else f"{place} can't be written: every run compiles anew"
    return _finding("compiled programs", writable, found)


def _extras() -> list[dict[str, Any]]:
    findings = []
    for extra, module in EXTRAS.items():
        present = importlib.util.find_spec(module) is not None
        found = "installed" if present else f"absent: pip install 'repertory[{extra}]'"
        findings.append(_finding(f"extra {extra}", True, found))
    return findings
