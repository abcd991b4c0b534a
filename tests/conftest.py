"""Settings for all tests, made before JAX starts: one thread for compiled programs, as a run has.

Every machine checks properties by the same examples, and no clock judges them. What a run remembers outside of its
directory goes into a directory of the tests. Compiled programs are kept for the next time.

Files that take long come first, so that no core is left with one of them at the end while the others are idle.
"""

import atexit
import os
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("PJRT_NPROC", "1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.expanduser("~/.cache/repertory/tests"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="repertory-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

settings.register_profile("repertory", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repertory")

LONG = (
    "test_faults",
    "test_driver_signals",
    "test_studies",
    "test_page",
    "test_learning",
    "test_exact_resume",
    "test_exact_topologies",
    "test_beginnings",
    "test_training",
)

SLOW = {"engines", "runs", "studies", "topologies", "test_target_prefetch", "test_actor_critic", "test_networks"}
"""Folders and files that `make quick` leaves out."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps the order within a file."""
    for item in items:
        if SLOW & {item.path.parent.name, item.path.stem}:
            item.add_marker("slow")
    place = {name: index for index, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONG)))
