"""Checks whether this machine has what training needs."""

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

from repertory.runtime import cache_directory, make_writable, usable_cores

EXTRAS = {"atari": "ale_py", "minatar": "minatar", "studies": "matplotlib", "video": "imageio"}
GIGABYTE = 1e9
SHARED_MEMORY = Path("/dev/shm")


def examine() -> list[dict[str, Any]]:
    """What was found, and whether it is enough."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "flax", "gymnasium", "numpy"))
    memory, cores, cache = psutil.virtual_memory(), usable_cores(), cache_directory()
    shared = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    free = f"{memory.available / GIGABYTE:.1f} GB free of {memory.total / GIGABYTE:.1f} GB"
    free_shared = "no /dev/shm on this system" if shared is None else f"{shared / GIGABYTE:.1f} GB free in /dev/shm"
    cached = make_writable(cache)
    lost = "" if cached else " can't be written: every run compiles again"
    found = [
        ("Python", sys.version_info >= (3, 11), f"{sys.version.split()[0]}; {versions}"),
        ("cores", cores >= 1, f"{cores} usable; XLA_FLAGS={os.environ.get('XLA_FLAGS', '')!r}"),
        ("memory", memory.available > GIGABYTE, free),
        ("shared memory", shared is None or shared > 0.5 * GIGABYTE, free_shared),
        ("open files", files >= 1024, f"limit {files}"),
        ("compiled programs", cached, f"{cache}{lost}"),
    ]
    for extra, module in EXTRAS.items():
        present = importlib.util.find_spec(module) is not None
        found.append((f"extra {extra}", True, "installed" if present else f"absent: pip install 'repertory[{extra}]'"))
    return [{"what": what, "ok": ok, "found": text} for what, ok, text in found]
