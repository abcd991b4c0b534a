"""Environments and networks that are given as Python objects train on every engine, and no file ever holds them."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import flax.linen as nn
import gymnasium as gym
import numpy as np
import pytest

import repertory
from repertory import cli
from repertory.environments.factory import describe, make, name_environment
from repertory.errors import UserError
from repertory.runs.presets import defaults
from repertory.user_code import Given, name_of

SHORT: dict[str, Any] = {
    "env_steps": 300,
    "eval_every": 200,
    "eval_episodes": 2,
    "eval_max_steps": 30,
    "envs_per_actor": 2,
    "agent_options": {"learning_starts": 50, "batch_size": 8, "updates_per_call": 1, "replay_capacity": 400},
    "name": "run",
    "quiet": True,
}


class Walk(gym.Env[Any, Any]):
    """Ten steps of noise."""

    def __init__(self, size: int = 3) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (size,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def step(self, action: int) -> Any:
        self.steps += 1
        return self.look(), float(action), self.steps == 10, False, {}

    def look(self) -> Any:
        return self.np_random.uniform(-1, 1, self.observation_space.shape).astype(np.float32)


class Torso(nn.Module):
    """As a user writes it."""

    outputs: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(self.outputs)(nn.tanh(nn.Dense(7)(x)))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs go into a fresh directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(run: str = "run") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(f"runs/{run}/config.json").read_bytes())["config"]
    return found


def weights_of(run: repertory.Run) -> int:
    return int(repertory.load(run).agent.layout.size)


# Names.


class Maker:
    """A callable object."""

    def __call__(self) -> Any:
        return Walk()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (Walk, "test_given:Walk"),
        (gym.make, "gymnasium.envs.registration:make"),
        (functools.partial(Walk, size=5), "<Walk>"),
        (Maker(), "<Maker>"),
        (eval("lambda: Walk()", globals()), "<lambda at string:1>"),
        (eval(compile("lambda: Walk()", "/tmp/ipykernel_31/77.py", "eval")), "<lambda in a notebook cell>"),
    ],
)
def test_a_callable_has_a_name_that_people_can_read(given: Any, name: str) -> None:
    assert name_of(given) == name


def test_what_another_process_could_not_import_is_in_angle_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    def local() -> Any:
        return Walk()

    line = local.__code__.co_firstlineno
    assert name_of(local) == "<local>"
    assert name_of(lambda: Walk()) == f"<lambda at test_given.py:{line + 5}>"
    monkeypatch.setattr(Walk, "__module__", "__main__")
    assert name_of(Walk) == "<Walk>"


def test_a_given_environment_gets_the_preset_of_the_id_it_is_registered_under() -> None:
    by_name, given = defaults("CartPole-v1"), defaults(name_environment(lambda: gym.make("CartPole-v1"), {}))
    assert given.agent == by_name.agent
    assert given.envs_per_actor == by_name.envs_per_actor
    assert defaults(name_environment(Walk, {})).agent == defaults("Nothing-v0").agent


# What can't be an environment or a network.


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (gym.make("CartPole-v1"), r"the CartPoleEnv object is an environment, .*: gym.make\('CartPole-v1'\)"),
        (Walk(), r"the Walk object is an environment, .*: train\(lambda: Walk\(\)\)"),
        (gym.make_vec("CartPole-v1", 2), r"is an environment, .*train\(lambda: gym.make\('CartPole-v1'\)"),
        (5, "an environment is a name or a function that makes one, not 5"),
        (lambda: 5, r"<lambda at test_given.py:\d+> returned a int, not a gymnasium.Env"),
        (lambda size: Walk(size), r"could not be built: <lambda .*missing 1 required positional argument: 'size'"),
    ],
)
def test_what_makes_no_environment_is_one_sentence(given: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        repertory.train(given, **SHORT)
    assert "\n" not in str(caught.value)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Torso(2), r"not the Torso object itself; give for example lambda outputs: Torso\(outputs\)"),
        (5, "network.module takes a name or a function of the number of outputs, not 5"),
        (lambda: Torso(2), "must take one argument, the number of outputs"),
    ],
)
def test_what_makes_no_network_is_one_sentence(given: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        repertory.train("CartPole-v1", network_options={"module": given}, **SHORT)
    assert "\n" not in str(caught.value)


def test_a_function_that_returns_one_and_the_same_environment_is_refused() -> None:
    env = Walk()
    with pytest.raises(UserError, match="returned the same environment twice; let it make a new one at each call"):
        repertory.train(lambda: env, **SHORT)


def test_what_cannot_be_sent_to_other_processes_is_refused_before_anything_begins() -> None:
    lock = threading.Lock()

    def guarded() -> Any:
        with lock:
            return Walk()

    with pytest.raises(UserError, match=r"<guarded> can't be sent to other processes: .*lock.*inside the function"):
        repertory.train(guarded, topology="collectors", engine="processes", **SHORT)
    assert not Path("runs").exists()


def test_a_study_asks_for_a_name() -> None:
    with pytest.raises(UserError, match=r"compare .* needs the environment by name; .*file\.py:function"):
        repertory.compare(Walk)  # type: ignore[arg-type]


# Training, and going on.


def test_a_lambda_trains_plays_resumes_and_leaves_no_code_behind() -> None:
    run = repertory.train(lambda: Walk(4), network_options={"module": lambda outputs: Torso(outputs)}, **SHORT)
    assert weights_of(run) == 4 * 7 + 7 + 7 * 2 + 2
    assert run.act(np.zeros(4, np.float32)) in (0, 1)
    assert repertory.evaluate(run, episodes=2)["episodes"] == 2
    assert config()["environment"].startswith("<lambda at test_given.py:")
    assert config()["network"]["module"].startswith("<lambda at test_given.py:")
    assert repertory.resume(run, env_steps=400).result["env_steps"] == 400
    kept = [path for path in Path("runs/run").rglob("*") if path.is_file()]
    assert not [path for path in kept if b"cloudpickle" in path.read_bytes() or path.suffix == ".pkl"]


def test_a_run_of_python_objects_needs_them_again(capsys: pytest.CaptureFixture[str]) -> None:
    walk = functools.partial(Walk, 4)
    trained = repertory.train(walk, network_options={"module": lambda outputs: Torso(outputs)}, **SHORT)
    both = {"environment": walk, "network_module": lambda outputs: Torso(outputs)}
    for function in (repertory.resume, repertory.evaluate):
        with pytest.raises(UserError, match=r"environment of runs/run was given as a Python object, <Walk>, .*again"):
            function("run")
        with pytest.raises(UserError, match=r"network of runs/run was given as a Python object, <lambda at .*again"):
            function("run", environment=walk)
    again = repertory.evaluate("run", episodes=3, **both)
    assert again == repertory.evaluate(trained, episodes=3)
    for command in ("resume", "evaluate"):
        assert cli.main([command, "run"]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "write it into a file for --environment file.py:function" in said
    assert repertory.resume("run", env_steps=400, **both).result["env_steps"] == 400


def test_a_run_of_a_python_object_goes_on_with_a_named_one(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repertory.train(lambda: gym.make("CartPole-v1"), **SHORT)
    (place / "written.py").write_text("import gymnasium\ndef make(): return gymnasium.make('CartPole-v1')\n")
    assert cli.main(["evaluate", "run", "--episodes", "2", "--environment", "written.py:make"]) == 0
    assert cli.main(["resume", "run", "--env-steps", "400", "--environment", "written.py:make", "--quiet"]) == 0
    assert config()["environment"] == "written.py:make"
    assert cli.main(["evaluate", "run", "--episodes", "2"]) == 0
    assert "score" in capsys.readouterr().out


def test_what_can_be_imported_is_written_down_as_a_name_and_found_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(place)
    (place / "given_walks.py").write_text("from test_given import Torso, Walk\ndef make(size=6): return Walk(size)\n")
    import given_walks  # type: ignore[import-not-found]

    repertory.train(given_walks.make, network_options={"module": Torso}, **SHORT)
    assert config()["environment"] == "given_walks:make"
    assert config()["network"]["module"] == "test_given:Torso"
    assert repertory.evaluate("run", episodes=2)["episodes"] == 2
    assert cli.main(["evaluate", "run", "--episodes", "2"]) == 0
    assert describe("given_walks:make", {"size": 2}).observation.shape == (2,)


def test_options_reach_a_given_environment() -> None:
    run = repertory.train(Walk, env_option=["size=9", "reward_clipping=true"], **SHORT)
    assert repertory.load(run).spec.observation.shape == (9,)


# Other processes.

SCRIPT = """
import json, sys
import flax.linen as nn
import gymnasium as gym
import numpy as np
import repertory


class Walk(gym.Env):
    def __init__(self, size=3):
        self.observation_space = gym.spaces.Box(-1, 1, (size,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def step(self, action):
        self.steps += 1
        return self.look(), 1.0, self.steps == 10, False, {}

    def look(self):
        return self.np_random.uniform(-1, 1, self.observation_space.shape).astype(np.float32)


class Torso(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.outputs)(nn.tanh(nn.Dense(7)(x)))


if __name__ == "__main__":
    gym.register("Walk-v0", entry_point="__main__:Walk")  # the other processes never see this
    given = {"lambda": lambda: gym.make("Walk-v0", size=4), "id": "Walk-v0"}[sys.argv[1]]
    run = repertory.train(
        given,
        topology="collectors",
        engine="processes",
        actors=2,
        network_options={"module": lambda outputs: Torso(outputs)},
        **json.loads(sys.argv[2]),
    )
    print(json.dumps({**run.result, "weights": repertory.load(run).agent.layout.size}))
"""


@pytest.mark.parametrize(("where", "given", "size"), [("script", "lambda", 4), ("notebook", "id", 3)])
def test_what_stands_in_a_script_or_a_notebook_trains_in_other_processes(
    place: Path, where: str, given: str, size: int
) -> None:
    (place / "script.py").write_text(SCRIPT)
    # Read from stdin, a program has no file that other processes could import: as in a notebook.
    command = [sys.executable, "script.py" if where == "script" else "-", given, json.dumps(SHORT)]
    read = None if where == "script" else SCRIPT
    done = subprocess.run(command, cwd=place, input=read, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["status"], told["score"], told["restarts"]) == ("completed", 10.0, 0)
    assert told["weights"] == size * 7 + 7 + 7 * 2 + 2
    assert told["environment"] == ("Walk-v0" if given == "id" else f"<lambda at {where_of(where)}>")


def where_of(where: str) -> str:
    line = 1 + SCRIPT[: SCRIPT.index("lambda: gym.make")].count("\n")
    return f"{'script.py' if where == 'script' else 'stdin'}:{line}"


def test_what_another_process_cannot_load_is_one_sentence() -> None:
    broken = Given("<broken>", None, b"\x80\x04cno_such_module\nmake\n.")
    with pytest.raises(UserError, match=r"<broken> can't be loaded in another process: ModuleNotFoundError"):
        make(broken, 1)
