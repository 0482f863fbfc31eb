"""What the embedded cluster needs of the machine: Linux, root, and a few packages."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import CannotRunHereError, ClusterError
from ..progress import say

#: Program → the Debian package that has it.
PROGRAMS = {
    "containerd": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "openssl": "openssl",
    "nsenter": "util-linux",
    "mount": "mount",
}
CNI_PACKAGE = "containernetworking-plugins"
_CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_CNI_PLUGINS = ("bridge", "host-local", "loopback", "portmap")
_MODULE = "br_netfilter"
#: Is there while that module is loaded.
_BRIDGE_SETTINGS = Path("/proc/sys/net/bridge")
_POLICY = Path("/usr/sbin/policy-rc.d")


def check() -> None:
    """Refuse a machine that cannot run the embedded cluster.

    Raises:
        CannotRunHereError: It is not Linux, or the user is not root, or there are no cgroups to write to.
    """
    if platform.system() != "Linux":
        raise CannotRunHereError(
            f"the embedded cluster needs Linux, but this is {platform.system()}; "
            "use --provider kind (with Docker) or --provider existing (with a KUBECONFIG)"
        )
    if os.geteuid() != 0:
        raise CannotRunHereError(
            "the embedded cluster needs root (namespaces, mounts, containers); "
            "run it as root, or use --provider kind (with Docker) or --provider existing (with a KUBECONFIG)"
        )
    if not Path("/sys/fs/cgroup").is_dir() or not os.access("/sys/fs/cgroup", os.W_OK):
        raise CannotRunHereError("the embedded cluster needs writable cgroups: mount them read-write at /sys/fs/cgroup")


def cni_folder() -> Path:
    """Return the folder with the CNI plugins.

    Raises:
        ClusterError: They are nowhere to be found.
    """
    for folder in _CNI_FOLDERS:
        if all((folder / plugin).exists() for plugin in _CNI_PLUGINS):
            return folder
    folders = " or ".join(map(str, _CNI_FOLDERS))
    raise ClusterError(f"the CNI plugins are missing: install {', '.join(_CNI_PLUGINS)} in {folders}")


def missing_packages() -> list[str]:
    """Return the Debian packages whose programs are not on this machine, each once."""
    missing = [package for program, package in PROGRAMS.items() if not shutil.which(program)]
    if not any((folder / plugin).exists() for folder in _CNI_FOLDERS for plugin in _CNI_PLUGINS):
        missing.append(CNI_PACKAGE)
    return list(dict.fromkeys(missing))


def install_missing() -> None:
    """Install what is missing with apt-get, without starting any service.

    Raises:
        CannotRunHereError: Something is missing and there is no apt-get.
        ClusterError: apt-get failed.
    """
    missing = missing_packages()
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise CannotRunHereError(
            f"the embedded cluster needs these Debian packages: {', '.join(missing)}; "
            "this machine has no apt-get, so install their equivalents yourself"
        )
    say(f"installing Debian packages: {' '.join(missing)}")
    with _no_services():
        for arguments in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", *missing]):
            done = subprocess.run(
                ["apt-get", *arguments],
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise ClusterError(f"apt-get {' '.join(arguments)} failed:\n{(done.stdout + done.stderr)[-2000:]}")


def load_modules() -> None:
    """Load the kernel module by which iptables sees what goes over a bridge; Debian does not load it by itself.

    Raises:
        CannotRunHereError: It cannot be loaded.
    """
    if _BRIDGE_SETTINGS.is_dir():
        return
    said = "this machine has no modprobe"
    if shutil.which("modprobe"):
        command = ["modprobe", _MODULE]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        said = done.stderr.strip() or f"`modprobe {_MODULE}` ended with exit code {done.returncode}"
    if not _BRIDGE_SETTINGS.is_dir():
        raise CannotRunHereError(
            f"the embedded cluster needs the kernel module {_MODULE}, which is not loaded ({said}); load it on the "
            "machine, or use --provider kind (with Docker) or --provider existing (with a KUBECONFIG)"
        )


@contextmanager
def _no_services() -> Iterator[None]:
    """Keep Debian's packages from starting their services, as containerd's would."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)


def may_raise_limits() -> bool:
    """Tell whether this process may lower OOM scores (CAP_SYS_RESOURCE), as containerd does for sandboxes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) & 1 << 24)
    return False
