"""Settings of JAX, of the process and of the forkserver; imports nothing of ours.

One XLA thread a process: for the small networks of this field a second thread gives nothing, and processes that each
take all cores slow each other down. Environment variables that the user has set stay.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_TIMERSLACK = 1, 15, 29
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8
MALLOC = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 2**26, M_ARENA_MAX: 1}
UNGUARDED = 3
"""Exit code of a worker that called train() while it imported the user's script."""
FAMILY = "REPERTORY_FAMILY"
"""Environment variable: a random name that the driver, its workers and their child processes have in common."""
PACKAGES = ("repertory", "jax", "jaxlib", "flax", "optax", "numpy", "gymnasium")
MOST_FILES = 4096
"""Limit of open files; the largest topologies need fewer."""
ONE_THREAD = ("xla_cpu_multi_thread_eigen", "xla_cpu_enable_concurrency_optimized_scheduler")
"""XLA's flags that are off: matrix products on several threads, and a schedule that is made for several threads.

With that schedule, a learner that is pinned to one core handed a part of each update to a second thread on that core.
"""


def cap_threads() -> None:
    """Before JAX is imported: one compute thread."""
    given = os.environ.get("XLA_FLAGS", "")
    off = [f"--{name}=false" for name in ONE_THREAD if name not in given]
    os.environ["XLA_FLAGS"] = " ".join([given, *off]).strip()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def use_dummy_display() -> None:
    """Before pygame is imported: without a display, SDL would complain on stderr."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")


def start_jax(threads: int) -> None:
    """Before the first computation: how many threads run compiled programs, and where the compilation cache is.

    With one thread a MinAtar update took 2 ms, with the default of one a core 55 ms; and programs compiled under the
    default stayed that slow when loaded from the cache with one thread. Why was not found out (the guess: XLA cuts
    programs into pieces for the threads it finds), so each number of threads has a cache of its own.
    """
    os.environ.setdefault("PJRT_NPROC", str(threads))
    import jax

    directory = cache_directory() / f"threads-{os.environ['PJRT_NPROC']}"
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        if not make_writable(directory):
            return  # every run compiles: JAX would warn of each program that it can't save
        jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_raise_persistent_cache_errors", False)


def compute_at_once() -> None:
    """Compute in the calling thread: for workers that have nothing else to do meanwhile."""
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)


def wake_up_sharply() -> None:
    """On Linux, let this thread's sleeps end on time, not up to 50 µs late."""
    _call_libc("prctl", PR_SET_TIMERSLACK, 1, 0, 0, 0)


def schedule_as_batch() -> None:
    """On Linux, let a thread of this process that wakes up not interrupt another one.

    For threads that share an interpreter: one that wakes up while another holds the interpreter's lock can only wait.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def keep_freed_memory() -> None:
    """Ask glibc to keep freed memory: else the large arrays of every update cause page faults again.

    They took half of the time of an update with 128 pictures.
    """
    for setting, value in MALLOC.items():
        _call_libc("mallopt", setting, value)


def name_process(name: str) -> None:
    """The name that `top` and `ps -o comm` show; Linux keeps 15 letters."""
    _call_libc("prctl", PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def _call_libc(function: str, *arguments: Any) -> None:
    """Systems that do not have the function go without."""
    with contextlib.suppress(OSError, AttributeError):
        getattr(ctypes.CDLL(None), function)(*arguments)


def die_with_fork_server(server: int) -> None:
    """In a worker: be killed when the forkserver is gone, even while stopped or stuck in native code.

    If the forkserver is gone already, exit at once: another worker may have been started in this one's place. The
    forkserver exits when its pipe is closed everywhere, so a worker must close its copy.
    """
    end_with(server)
    with contextlib.suppress(OSError, AttributeError, TypeError):
        held: Any = forkserver._forkserver
        os.close(held._forkserver_alive_fd)
        held._forkserver_alive_fd = None


def end_with(parent: int) -> None:
    """On Linux, be killed when the parent process is gone, however it ended."""
    _call_libc("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before prctl was called
        os._exit(1)


def fork_server() -> Any:
    """The context of the process that forks workers: everything imported, nothing started."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(UNGUARDED)  # the user's script called train() while a worker imported it: no chain of processes
    os.environ.setdefault(FAMILY, os.urandom(8).hex())  # before the forkserver starts, so that it inherits it
    main = sys.modules["__main__"]
    if getattr(main, "__file__", None) == "<stdin>":
        del main.__file__  # a program that is read from stdin: every worker would fail to import it
    allow_open_files()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["repertory.engines.preload"])
    return context


def ending_signals() -> list[int]:
    """The signals that ask a run to end; without that of a lost connection if it is ignored, as by `nohup`."""
    signals: list[int] = [signal.SIGINT, signal.SIGTERM]
    return signals if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [*signals, signal.SIGHUP]


@contextlib.contextmanager
def handle_ending_signals(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Call `handler` for those signals meanwhile; outside of the main thread Python can't, and nothing changes."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in ending_signals()} if main else {}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def allow_open_files() -> int:
    """Raise the limit of open files for this process and those it starts; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST_FILES if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def fork_server_pid() -> int:
    """0 if it is not running."""
    server: Any = forkserver._forkserver
    return int(server._forkserver_pid or 0)


def end_of_child(pid: int, seconds: float = 1.0) -> str:
    """How a child process ended, without reaping it; empty if it still runs after these seconds."""
    until = time.monotonic() + seconds
    while True:
        try:
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return "is gone"
        if found is not None:
            killed = found.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
            name = signal.Signals(found.si_status).name if killed else ""
            return f"was killed by {name}" if killed else f"ended with exit code {found.si_status}"
        if time.monotonic() > until:
            return ""
        time.sleep(0.01)


def start_fork_server() -> None:
    """Start it early, so that it imports while this process does."""
    fork_server()
    forkserver.ensure_running()


def versions() -> dict[str, str | None]:
    """Of Python and of the packages that decide what a run does; None where one is not installed."""
    found: dict[str, str | None] = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pinnable_cores() -> list[int]:
    """Their numbers; none where the system can't pin a process to a core."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def cache_directory() -> Path:
    """Of compiled programs."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "repertory" / "jax"


def state_directory() -> Path:
    """Of files that belong to this user and machine, not to a run."""
    root = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(root) / "repertory"


def make_writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK)
