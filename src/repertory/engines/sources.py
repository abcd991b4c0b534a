"""The user's code for other machines: the Python files beside an environment or a network that is named by its file.

Ray's runtime environments would upload the whole working directory, checkpoints included; here only Python files
travel, and only those of the directory that is named. What is installed must be installed on all machines.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from repertory.errors import UserError
from repertory.topologies.plan import Plan
from repertory.user_code import Given, is_file, locate, split

MOST_BYTES, MOST_FILES = 20 << 20, 2000
SKIPPED = {".git", ".venv", "venv", "node_modules", "__pycache__", "runs", "studies"}


def gather(plan: Plan) -> tuple[Plan, dict[str, bytes]]:
    """The plan as other machines read it, and the files by their names there."""
    files: dict[str, bytes] = {}
    environment = _named(plan.environment, files)
    module = None if plan.network.module is None else _named(plan.network.module, files)
    network = dataclasses.replace(plan.network, module=module)
    return dataclasses.replace(plan, environment=environment, network=network), files


def _named(name: str, files: dict[str, bytes]) -> str:
    """Collect the files behind a name; returns the name by which another machine finds them."""
    place, last = split(name)
    if isinstance(name, Given) or not place:
        return name  # it carries its code along, or is a registered id
    if not is_file(place):
        origin = locate(place)
        top = Path.cwd().resolve()
        if origin and Path(origin).resolve().is_relative_to(top) and "site-packages" not in origin:
            _add(
                top, Path(origin).resolve().parent if origin.endswith("__init__.py") else Path(origin).resolve(), files
            )
        return name
    path, here = Path(place).expanduser().resolve(), Path.cwd().resolve()
    root = here if path.is_relative_to(here) else path.parent
    _add(root, path.parent, files)
    return f"{path.relative_to(root)}:{last}"


def _add(root: Path, place: Path, files: dict[str, bytes]) -> None:
    found = [place] if place.is_file() else sorted(place.rglob("*.py"))
    for path in found:
        if SKIPPED & {*path.relative_to(root).parts}:
            continue
        files[str(path.relative_to(root))] = path.read_bytes()
        if len(files) > MOST_FILES or sum(map(len, files.values())) > MOST_BYTES:
            raise UserError(
                f"{place} has more than {MOST_FILES} Python files or {MOST_BYTES >> 20} MB of them; put the "
                "environment into a directory of its own, or install it on all machines"
            )
