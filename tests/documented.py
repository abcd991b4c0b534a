"""The commands and code blocks of README and docs, as a reader would copy them.

A fenced block says its language. `bash` is typed line by line, `python` is run as a script, a block with
`title="NAME"` is saved as that file first; `text` is output, or what needs another machine.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
LANGUAGES = {"bash", "python", "toml", "text", "yaml"}
FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = ("make ", "pip ", ". ", "pre-commit ")
"""Commands that set a machine up; CI runs `make test`."""


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.strip().splitlines()[0]}"


def blocks(page: Path) -> Iterator[Block]:
    for language, title, text in FENCE.findall(page.read_text()):
        yield Block(page, language, title, text)


def notebook(path: Path) -> str:
    """All code of a notebook, as one script."""
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def commands(page: Path) -> list[str]:
    """What is typed, without comments; those that set a machine up are left out."""
    lines = [line for block in blocks(page) if block.language == "bash" for line in _joined(block.text)]
    typed = [shlex.join(shlex.split(line, comments=True)) for line in lines]
    return [line for line in typed if line and not line.startswith(ELSEWHERE)]


def _joined(text: str) -> list[str]:
    return text.replace("\\\n", " ").splitlines()


def save_files(page: Path, directory: Path) -> None:
    """What the page tells to put into files."""
    for block in blocks(page):
        if block.title:
            (directory / block.title).write_text(block.text)


def scripts(page: Path) -> list[str]:
    return [block.text for block in blocks(page) if block.language == "python" and not block.title]
