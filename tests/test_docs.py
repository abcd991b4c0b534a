"""README and docs: blocks have a language, commands are understood, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from documented import LANGUAGES, PAGES, ROOT, blocks, commands, save_files
from repertory import cli

LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_say_what_they_are_and_links_lead_somewhere(page: Path) -> None:
    unknown = [str(block) for block in blocks(page) if block.language not in LANGUAGES]
    assert unknown == []
    lost = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_training_commands_are_understood(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    for command in commands(page):
        words = shlex.split(command)
        if words[:2] != ["repertory", "train"] or "RUN" in command or "runs/" in command:
            continue
        arguments = words[1:] if {"--help", "--dry-run"} & {*words} else [*words[1:], "--dry-run"]
        try:
            code = cli.main(arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
        assert code == 0, f"{command}\n{capsys.readouterr().err}"
