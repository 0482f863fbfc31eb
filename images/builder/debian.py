"""The base image of a build without Docker: Debian with Python, straight from Debian's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from images.builder import cache
from images.builder.install import EX_UNAVAILABLE, fail, step

SUITE = "bookworm"
PYTHON = (3, 11)
"""The Python of that suite: the same as in the Dockerfiles' default base."""

OWN_NAMESPACES = ("unshare", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child")
"""Starts a command whose mounts and processes are gone with it, even when it is killed."""

PACKAGES = ("python3", "python3-venv", "ca-certificates")
PUBLIC_MIRROR = "http://deb.debian.org/debian"

_COMPILE = (
    "python3", "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash", "/usr/lib/python3",
    f"/usr/lib/python{PYTHON[0]}.{PYTHON[1]}",
)  # fmt: skip

_LEAVINGS = (
    "etc/hostname", "etc/resolv.conf", "etc/machine-id",  # of the machine it was made on
    "var/cache/apt/*", "var/cache/debconf/*-old", "var/cache/ldconfig/*", "var/lib/apt/lists/*", "var/lib/dpkg/*-old",
    "var/log/*",
    "usr/share/man/*", "usr/share/info/*", "usr/share/locale/*", "usr/share/doc/*/[!c]*", "usr/share/doc/*/c[!o]*",
)  # fmt: skip
"""What is removed from the tree. Of the documentation the copyright files stay, as Debian's own slim images have it."""


def mirror() -> str:
    """Return the Debian mirror this machine's apt uses, else the public one."""
    apt = shutil.which("apt-get")
    if apt is None:
        return PUBLIC_MIRROR
    listed = subprocess.run(
        [apt, "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"],
        check=False, stdout=subprocess.PIPE, text=True,
    ).stdout  # fmt: skip
    for line in listed.splitlines():
        uri, release, component = line.split(" ")
        if (release, component) == (SUITE, "main"):
            return uri
    return PUBLIC_MIRROR


def build(folder: Path) -> None:
    """Fill a folder with the root file system.

    Raises:
        SystemExit: 69 when a package cannot be had; the log says which.
    """
    log = folder.with_name(f"{folder.name}.log")
    with step(f"base system: Debian {SUITE} with {', '.join(PACKAGES)}"), log.open("w", encoding="utf-8") as output:
        command = [*OWN_NAMESPACES, "debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
        command += [SUITE, str(folder), mirror()]
        # Users' entries have no date then.
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "0"}
        if subprocess.run(command, check=False, env=environment, stdout=output, stderr=output).returncode != 0:
            fail(EX_UNAVAILABLE, f"debootstrap could not make the base system; {log} says why")
        # Debian's own bytecode holds the time of its source, which is another one in the image.
        compiled = ["chroot", str(folder), *_COMPILE]
        subprocess.run(compiled, check=True, stdout=output, stderr=output)
    log.unlink()
    for pattern in _LEAVINGS:
        for path in folder.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    # Whoever builds on this image has no use for the mirror it was made from.
    sources = folder / "etc" / "apt" / "sources.list"
    sources.write_text(f"deb {PUBLIC_MIRROR} {SUITE} main\n", encoding="utf-8")


def key() -> str:
    """Return what names the base: the suite, the packages and what is done to them."""
    return cache.digest([SUITE, *PACKAGES, *_COMPILE, *_LEAVINGS, os.uname().machine])
