"""Checks whether this machine has what training needs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import resource
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from repertory.runtime import cache_directory, make_writable, usable_cores, versions

EXTRAS = {"atari": "ale_py", "minatar": "minatar", "studies": "matplotlib", "video": "imageio", "ray": "ray"}
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


CALLS, MEGABYTES, CALL_S = 20, 16, 60.0
MOST_DRIFT_S, SLOWEST_CALL_S = 5.0, 0.05


def examine_cluster(address: str, insecure: bool) -> list[dict[str, Any]]:
    """Every machine of a cluster: versions, cores, memory, clock, and the link to it."""
    from repertory.engines.cluster import Cluster

    cluster = Cluster(address, insecure=insecure)
    try:
        found: list[tuple[str, bool, str]] = []
        for node in cluster.nodes():
            machine = cluster.place(node)
            began = time.time()
            hello = cluster.call(machine.hello, seconds=CALL_S)
            drift = hello.clock - (began + time.time()) / 2
            differ = [
                f"{name} {hello.versions.get(name)}"
                for name, own in versions().items()
                if hello.versions.get(name) != own
            ]
            name = f"{node.address}{' (this machine)' if node.driver else ''}"
            told = "; ".join(differ) or "as on this machine"
            memory = f"{hello.memory / GIGABYTE:.1f} GB free, {hello.shared_memory / GIGABYTE:.1f} GB in /dev/shm"
            low = f"{hello.niceness}; start Ray with RAY_worker_niceness=0" if hello.niceness else "normal"
            latency, bandwidth = _measure(cluster, machine)
            found += [
                (f"{name}: versions", not differ, told),
                (f"{name}: cores", hello.cores >= 1, f"{hello.cores} usable, {node.gpus} GPUs"),
                (f"{name}: memory", hello.memory > GIGABYTE and hello.shared_memory > 0.5 * GIGABYTE, memory),
                (f"{name}: priority", hello.niceness == 0, low),
                (f"{name}: clock", abs(drift) < MOST_DRIFT_S, f"{drift:+.2f} s beside this machine's"),
                (f"{name}: link", latency < SLOWEST_CALL_S, f"{1e3 * latency:.1f} ms a call, {bandwidth:.0f} MB/s"),
            ]
            cluster.end(machine)
    finally:
        cluster.close()
    return [{"what": what, "ok": ok, "found": text} for what, ok, text in found]


def _measure(cluster: Any, machine: Any) -> tuple[float, float]:
    """Median seconds of a call, and megabytes per second there and back."""
    times = []
    for _ in range(CALLS):
        began = time.monotonic()
        cluster.call(machine.echo, b"", seconds=CALL_S)
        times.append(time.monotonic() - began)
    began = time.monotonic()
    cluster.call(machine.echo, np.zeros(MEGABYTES << 20, np.uint8), seconds=CALL_S)
    return statistics.median(times), 2 * MEGABYTES / (time.monotonic() - began)
