"""Chromium and all its libraries from Debian's packages, unpacked into the cache: nothing is installed.

apt resolves and checks the packages as if the machine had none, so that it does not matter what is installed. Only the
C library is the machine's own, as it belongs to the loader that starts every program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from images.builder import cache

PACKAGES = ("chromium", "fonts-dejavu-core")
# Beside the C library: drivers of graphics cards and what they need, and what scripts of packages run.
_LEFT_OUT = ("libc6_", "libc-bin_", "libgl1-mesa-dri_", "libllvm", "libz3", "perl", "libperl", "adwaita-icon-theme")
_UNREAD = ("doc", "icons", "info", "locale", "man")
_PROGRAM = Path("usr/lib/chromium/chromium")
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{folder}/usr/share/fonts</dir>
  <cachedir>{folder}/fonts-cache</cachedir>
  <alias><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""


class NoChromiumError(Exception):
    """This machine has no Chromium, and none can be fetched for it."""


@dataclass(frozen=True, slots=True)
class Program:
    """A Chromium that can be started.

    Attributes:
        path: its program.
        environ: variables that it needs beside those of this process.
    """

    path: Path
    environ: dict[str, str]


def chromium() -> Program:
    """Return Debian's Chromium, fetched first where that was not done yet.

    Raises:
        NoChromiumError: this is not Debian.
        SystemExit: a package cannot be had (69); apt has said which.
    """
    system = _os_release()
    if system.get("ID") != "debian" or not shutil.which("apt-get"):
        raise NoChromiumError("Chromium for tests comes from Debian's packages, and this machine is not Debian")
    key = cache.digest([system.get("VERSION_ID", ""), os.uname().machine, *PACKAGES, *_LEFT_OUT, *_UNREAD, _FONTS])
    folder = cache.entry(cache.root() / "browser" / f"chromium-{key}", "chromium", _build)
    found = [path for top in ("lib", "usr/lib") for path in folder.glob(f"{top}/*-linux-gnu*/**/*.so*")]
    libraries = sorted({str(path.parent) for path in found})
    environ = {"LD_LIBRARY_PATH": os.pathsep.join(libraries), "FONTCONFIG_FILE": str(folder / "fonts.conf")}
    return Program(folder / _PROGRAM, environ)


def _os_release() -> dict[str, str]:
    path = Path("/etc/os-release")
    lines = path.read_text().splitlines() if path.exists() else []
    return {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}


def _build(folder: Path) -> None:
    state = folder / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()  # as if nothing was installed
    settings = {
        "Dir::State": state,
        "Dir::State::lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state / "cache",
        "APT::Sandbox::User": "",
        "APT::Install-Recommends": "false",
        "Binary::apt-get::APT::Keep-Downloaded-Packages": "true",
    }
    apt = ["apt-get", "--quiet", "--assume-yes", *(f"--option={name}={value}" for name, value in settings.items())]
    print(f"fetching {' and '.join(PACKAGES)} with their libraries, once (some 150 MB)", file=sys.stderr, flush=True)
    _run([*apt, "update"])
    _run([*apt, "--download-only", "install", *PACKAGES])
    for package in sorted((state / "cache/archives").glob("*.deb")):
        if not package.name.startswith(_LEFT_OUT):
            _run(["dpkg-deb", "--extract", str(package), str(folder)])
    for name in _UNREAD:
        shutil.rmtree(folder / "usr/share" / name, ignore_errors=True)
    shutil.rmtree(state)
    (folder / "fonts.conf").write_text(_FONTS.format(folder=folder))


def _run(argv: list[str]) -> None:
    done = subprocess.run(
        argv, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        print(f"{' '.join(argv)} failed:\n{done.stdout[-2000:]}", file=sys.stderr, flush=True)
        raise SystemExit(69)
