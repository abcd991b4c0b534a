"""A machine that gives too little: one sentence that says what to do, before anything is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from commands import Command, words
from repertory.runs import checkpoint


def limited(place: Path, soft: int, hard: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with so many open files."""
    shell = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$0" "$@"'
    command = ["sh", "-c", shell, sys.executable, *arguments]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120, check=False)


def test_too_few_open_files_for_many_actors_is_refused_in_one_sentence(tmp_path: Path) -> None:
    wishes = words("train CartPole-v1 --topology collectors --actors 60 --envs-per-actor 1 --env-steps 1000")
    done = limited(tmp_path, 64, 64, "-m", "repertory", *wishes)
    assert done.returncode == 2, done.stderr
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("repertory: 63 workers need about ")
    assert sentence.endswith("but this user may open 64: raise the limit (ulimit -n), or lower --actors")
    assert not (tmp_path / "runs").exists()


def test_limit_of_open_files_is_raised_as_far_as_the_user_may(tmp_path: Path) -> None:
    script = (
        "from repertory.runtime import allow_open_files; import resource; "
        "print(allow_open_files(), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = limited(tmp_path, 64, 900, "-c", script)
    assert done.stdout.strip() == "900 (900, 900)", done.stderr


def test_disk_that_is_full_before_the_start_is_one_sentence_and_takes_no_name(tmp_path: Path) -> None:
    wishes = ["train", "CartPole-v1", *words("--env-steps 100 --name run --quiet")]
    run = Command(tmp_path, *wishes, file_bytes=300)
    assert run.wait() == 2, run.err
    assert run.err == (
        "repertory: runs/run cannot be written: File too large; make room, or choose another --runs-dir\n"
    )
    assert list((tmp_path / "runs").iterdir()) == []


def test_disk_that_is_full_at_a_resume_is_one_sentence(tmp_path: Path) -> None:
    wishes = words("train CartPole-v1 --env-steps 3000 --log-every 50 --checkpoint-every 1000 --name run --quiet")
    assert Command(tmp_path, *wishes).wait() == 0
    size = (tmp_path / "runs/run/metrics.jsonl").stat().st_size
    first = checkpoint.manifest(checkpoint.whole(tmp_path / "runs/run/checkpoints")[0])["step"]
    assert first < 2500
    resume = words(f"resume run --env-steps 4000 --from {first} --quiet")
    run = Command(tmp_path, *resume, file_bytes=size // 4)
    assert run.wait() == 2, run.err
    assert "metrics.jsonl cannot be written: File too large; make room, then try again" in run.err
    assert "Traceback" not in run.err


CLOSES = """
import gymnasium as gym
from pathlib import Path

class Closes(gym.Wrapper):
    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))
        self.tell("built ")

    def close(self):
        self.tell("closed ")

    def tell(self, what):
        with Path("told.txt").open("a") as file:
            file.write(what)
"""


def test_environments_of_a_run_that_is_refused_are_closed(tmp_path: Path) -> None:
    (tmp_path / "closes.py").write_text(CLOSES)
    (tmp_path / "runs/taken").mkdir(parents=True)
    run = Command(tmp_path, *words("train closes.py:Closes --envs-per-actor 3 --env-steps 100 --name taken --quiet"))
    assert run.wait() == 2
    assert "runs/taken exists" in run.err
    told = (tmp_path / "told.txt").read_text().split()
    assert told.count("closed") >= told.count("built") >= 1
