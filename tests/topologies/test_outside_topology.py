"""A topology from outside the package: one short file that re-uses roles; trained, drawn, checked and resumed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import outside
import repertory
from inline_runs import inline_run, play
from repertory import topologies
from repertory.engines.driver import Driver
from repertory.errors import UserError
from repertory.runs.launch import sketch
from repertory.topologies.graph import draw


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    topologies.register(outside.KIND)
    yield
    topologies.unregister("outside")


def test_it_is_short_and_nothing_in_the_package_knows_its_name() -> None:
    assert len(Path(outside.__file__).read_text().splitlines()) <= 60
    sources = list(Path(repertory.__file__).parent.rglob("*.py"))
    known = [path.name for path in sources if '"outside"' in path.read_text() or '"student"' in path.read_text()]
    assert known == []


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_it_learns_cartpole_and_goes_on_after_a_resume(engine: str, tmp_path: Path) -> None:
    run = repertory.train(
        "CartPole-v1",
        topology="outside",
        engine=engine,
        topology_options={"copy_every": 2},
        env_steps=30_000,
        target_score=400,
        runs_dir=tmp_path,
        quiet=True,
    )
    assert run.result["status"] == "solved"
    done = run.result["env_steps"]
    more = repertory.resume(run.directory, env_steps=done + 500)
    assert more.result["resumes"] == 1
    assert done + 500 <= more.result["env_steps"] <= done + 600
    assert more.result["updates"] > run.result["updates"]


def test_inline_it_resumes_bit_for_bit() -> None:
    whole = inline_run("outside", env_steps=10_000)
    play(whole, 600)
    saved = whole.settle()
    frozen = {name: np.copy(array) for name, array in saved["learner"]["learned"].items()}
    resumed = inline_run("outside", env_steps=10_000, begin=False)
    resumed.load_state(saved)
    for driver in (whole, resumed):
        driver.start()
        play(driver, 1_200)
    one, other = _weights(whole), _weights(resumed)
    np.testing.assert_array_equal(one, other)
    assert not np.array_equal(one, frozen["00"])


def _weights(driver: Driver) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.copy(driver.settle()["learner"]["learned"]["00"])


def test_it_is_drawn_with_its_own_options() -> None:
    drawn = draw(outside.KIND, sketch("outside"))
    assert "[player]    ── steps ──▶ [student]" in drawn
    assert "[student]   ── weights ──▶ [player]   copied every 1 steps" in drawn
    assert "--topology.copy-every 1" in drawn


def test_its_options_are_checked_as_those_of_the_package(tmp_path: Path) -> None:
    for wrong, said in (({"copy_every": 0}, "--topology.copy-every must be above 0"), ({"shards": 2}, "has no option")):
        with pytest.raises(UserError, match=said):
            repertory.train("CartPole-v1", topology="outside", topology_options=wrong, runs_dir=tmp_path)


def test_a_package_brings_it_by_an_entry_point(tmp_path: Path) -> None:
    metadata = tmp_path / "brought-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[repertory.topologies]\noutside = outside:KIND\n")
    (tmp_path / "outside.py").write_text(Path(outside.__file__).read_text())
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from repertory.cli import main; sys.exit(main())"
    words = ["train", "CartPole-v1", "--topology", "outside", "--env-steps", "1500", "--quiet", "--runs-dir", "runs"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("completed")
