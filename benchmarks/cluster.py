"""Several hosts on one machine: network namespaces on a bridge, with Ray and a token on each. Needs root and iproute2.

    python benchmarks/cluster.py --hosts 3 -- repertory train CartPole-v1 --topology impala --engine ray --address HEAD

makes the hosts, starts Ray, runs the command on the first host, and ends everything. The word HEAD stands for the
address of the head. Tests and the other benchmarks of clusters use `Hosts`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

BIN = Path(sys.executable).parent
PORT = 6379
QUICK = {  # Ray notices a dead node within about 5 seconds, not 15 to 65
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_AUTH_MODE": "token", **QUICK}
_NUMBERS = itertools.count(os.getpid() % 200)


def available() -> str:
    """Why hosts can't be made here; empty if they can."""
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("ip") is None:
        return "needs iproute2"
    name = f"rept{os.getpid() % 10000}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return done.stderr.strip() if done.returncode else ""


class Host:
    """A network namespace with an address of its own."""

    def __init__(self, hosts: Hosts, index: int) -> None:
        self.hosts, self.index = hosts, index
        self.name, self.address = f"{hosts.bridge}h{index}", f"10.77.{hosts.number}.{index + 1}"
        self._link = f"{hosts.bridge}v{index}"
        self.directory = Path(hosts.directory) / f"h{index}"
        self.ray: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        inside = ["ip", "-n", self.name]
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _run("ip", "link", "set", self._link, "master", self.hosts.bridge, "up")
        _run(*inside, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _run(*inside, "link", "set", "eth0", "up")
        _run(*inside, "link", "set", "lo", "up")
        _run(*inside, "route", "add", "default", "via", self.hosts.router)  # Ray finds its own address by it

    def command(self, words: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.name, *words]

    def start_ray(self, cores: int = 2) -> None:
        self.directory.mkdir(exist_ok=True)
        head = self.index == 0
        words = [str(BIN / "ray"), "start", "--block", "--disable-usage-stats", f"--num-cpus={cores}"]
        words += [f"--node-ip-address={self.address}", "--object-store-memory=200000000"]
        words += ["--head", f"--port={PORT}", "--include-dashboard=false"] if head else [f"--address={self.hosts.head}"]
        words += [f"--temp-dir={self.directory}"] if head else []
        with (self.directory / "log").open("ab") as log:
            self.ray = subprocess.Popen(
                self.command(words), env=self.hosts.environment, stdout=log, stderr=log, start_new_session=True
            )

    def popen(self, words: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(self.command(words), env=self.hosts.environment, **options)

    def pids(self) -> list[int]:
        done = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True)
        return [int(pid) for pid in done.stdout.split()]

    def processes(self, part: str = "") -> list[psutil.Process]:
        """Processes of this host whose command line contains a word."""
        found = []
        for pid in self.pids():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if (
                    process.status() != psutil.STATUS_ZOMBIE
                    and part in f"{process.name()} {' '.join(process.cmdline())}"
                ):
                    found.append(process)
        return found

    def listening(self) -> list[str]:
        """Addresses on which this host listens for TCP."""
        done = subprocess.run(self.command(["ss", "-ltnH"]), capture_output=True, text=True, check=True)
        return [line.split()[3] for line in done.stdout.splitlines()]

    def cut(self) -> None:
        _run("ip", "link", "set", self._link, "down")

    def mend(self) -> None:
        _run("ip", "link", "set", self._link, "up")

    def signal(self, number: int, part: str = "") -> int:
        """Send a signal to all processes of this host, or to those with a word in their command line."""
        found = self.processes(part)
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        return len(found)

    def end(self) -> None:
        for _ in range(20):
            if not self.signal(signal.SIGKILL):
                break
            time.sleep(0.1)
        if self.ray is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.ray.wait(5)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)
        subprocess.run(["ip", "link", "del", self._link], capture_output=True)


class Hosts:
    """Makes `count` hosts with Ray on each; the first is the head. Ends all of it."""

    def __init__(self, count: int, *, token: str | None = None, environment: dict[str, str] | None = None) -> None:
        self.number = next(_NUMBERS) % 250
        self.bridge = f"rep{self.number}"
        self.router = f"10.77.{self.number}.254"
        self.directory = tempfile.mkdtemp(prefix="rep-")
        self.token = token or secrets.token_hex(32)
        self.environment = {**os.environ, **ENVIRONMENT, "RAY_AUTH_TOKEN": self.token, **(environment or {})}
        self.environment["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        self.hosts = [Host(self, index) for index in range(count)]
        self.head = f"{self.hosts[0].address}:{PORT}"

    def __getitem__(self, index: int) -> Host:
        return self.hosts[index]

    def __enter__(self) -> Hosts:
        try:
            _run("ip", "link", "add", self.bridge, "type", "bridge")
            _run("ip", "addr", "add", f"{self.router}/24", "dev", self.bridge)
            _run("ip", "link", "set", self.bridge, "up")
            for host in self.hosts:
                host.make()
            self.hosts[0].start_ray()
            self.await_nodes(1)
            for number, host in enumerate(self.hosts[1:], 2):  # one by one: they share a file system, where Ray's
                host.start_ray()  # raylets of several hosts take the same socket if they start at once
                self.await_nodes(number)
        except BaseException:
            self.end()
            raise
        return self

    def add(self) -> Host:
        """One more host, while the cluster runs."""
        host = Host(self, len(self.hosts))
        self.hosts.append(host)
        host.make()
        host.start_ray()
        return host

    def await_nodes(self, count: int, seconds: float = 60.0) -> None:
        program = (
            "import sys, time, logging, ray\n"
            "ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)\n"
            f"end = time.monotonic() + {seconds}\n"
            f"while sum(node['Alive'] for node in ray.nodes()) < {count}:\n"
            "    assert time.monotonic() < end, ray.nodes()\n"
            "    time.sleep(0.2)\n"
        )
        end, done = time.monotonic() + seconds, None
        while time.monotonic() < end:
            words = self.hosts[0].command([sys.executable, "-c", program, self.head])
            done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=seconds + 30)
            if done.returncode == 0:
                return
            time.sleep(0.5)
        logs = "\n".join(host.directory.joinpath("log").read_text() for host in self.hosts if host.directory.exists())
        raise RuntimeError(f"the cluster did not start: {done.stderr if done else ''}\n{logs}")

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        for host in self.hosts:
            host.end()
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    with Hosts(options.hosts) as hosts:
        words = [hosts.head if word == "HEAD" else word for word in words]
        sys.exit(hosts[0].popen(words).wait())


if __name__ == "__main__":
    main()
