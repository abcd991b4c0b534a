"""A headless Chromium for tests: the system's own, else one from the npm registry, checked and kept in the environment.

`@sparticuz/chromium` is a Chromium built to run where nothing is installed: it brings its libraries and a font along.
It is 70 MB, for Linux on x86-64; elsewhere, or without a network, there is only the system's.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import platform
import shutil
import sys
import tarfile
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import brotli

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
VERSION = "153.0.0"
ADDRESS = f"https://registry.npmjs.org/@sparticuz/chromium/-/chromium-{VERSION}.tgz"
SHA512 = "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
PLACE = Path(sys.prefix) / f"chromium-{VERSION}"
WAIT_S = 120.0
FONTS = "fonts.conf"
FONTS_TEXT = f"""<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{PLACE}/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{PLACE}/fonts-cache</cachedir></fontconfig>
"""


class NoChromium(Exception):
    """There is none, and none can be had; the text says what to do."""


@dataclass(frozen=True)
class Chromium:
    """What to start, and the environment variables that it needs."""

    path: Path
    variables: dict[str, str] = field(default_factory=dict)


def find() -> Chromium:
    """The system's, or ours; fetched if it is not there yet."""
    for name in NAMES:
        if found := shutil.which(name):
            return Chromium(Path(found))
    if not (PLACE / "chromium").exists():
        _fetch()
    return Chromium(PLACE / "chromium", {"LD_LIBRARY_PATH": f"{PLACE / 'lib'}", "FONTCONFIG_FILE": f"{PLACE / FONTS}"})


def _fetch() -> None:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise NoChromium("no Chromium on PATH: apt-get install chromium, or its like")
    try:
        with urllib.request.urlopen(ADDRESS, timeout=WAIT_S) as answer:
            packed = answer.read()
    except OSError as error:
        raise NoChromium(
            f"no Chromium on PATH, and {ADDRESS} can't be read ({error}): apt-get install chromium"
        ) from None
    if base64.b64encode(hashlib.sha512(packed).digest()).decode() != SHA512:
        raise NoChromium(f"{ADDRESS} is not what it was when its checksum was written down")
    _unpack(packed)


def _unpack(packed: bytes) -> None:
    """Beside its place, then moved there: two test processes may do this at once."""
    spare = PLACE.with_name(f"{PLACE.name}.{os.getpid()}")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        parts = {
            Path(member.name).name: archive.extractfile(member) for member in archive if member.name.endswith(".br")
        }
        for name, stream in parts.items():
            assert stream is not None
            _place(spare, name, brotli.decompress(stream.read()))
    (spare / FONTS).write_text(FONTS_TEXT)
    try:
        spare.rename(PLACE)
    except OSError:  # the other one was first
        shutil.rmtree(spare)


def _place(directory: Path, name: str, content: bytes) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if name.endswith(".tar.br"):
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(directory, filter="data")
    else:
        path = directory / name.removesuffix(".br")
        path.write_bytes(content)
        path.chmod(0o755)
