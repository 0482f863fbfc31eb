"""The environment and machine of this container, read once and frozen.

This module decides nothing: it keeps values as they are, and :mod:`stoker.plan.resolve` judges them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from stoker.contract.variables import kept_variables, termination_log_of, workspace_of
from stoker.plan.device_memory import cuda_generation, device_memory
from stoker.plan.devices import hidden_by, left_visible, mounted_devices

# Python refuses to read thousands of digits; no number here needs more than these.
MAX_DIGITS = 18
# Distributions with faster kernels, which a recipe may use where an image has them.
KERNEL_PACKAGES = ("flash-attn", "liger-kernel")


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything a plan depends on besides the command line.

    Attributes:
        env: the variables that Stoker reads (see :func:`stoker.contract.variables.kept_variables`), unchanged.
        devices: accelerators the container sees, such as `nvidia0` (see :mod:`stoker.plan.devices`); empty on CPUs.
        hidden_by: the variable that hides devices from it, such as `CUDA_VISIBLE_DEVICES='0'`; empty without one.
        cpus: CPU cores this process may use.
        shm_bytes: size of /dev/shm in bytes; None without one.
        device_bytes: memory of a device in bytes; None if unknown.
        cuda_generation: the major number of an NVIDIA device's compute capability; None if unknown.
        kernel_packages: those of `KERNEL_PACKAGES` that are installed.
        torch: the first two numbers of the installed torch's version; empty without one.
        uid: effective user id.
        gid: effective group id.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    hidden_by: str = ""
    cpus: int = 1
    shm_bytes: int | None = None
    device_bytes: int | None = None
    cuda_generation: int | None = None
    kernel_packages: tuple[str, ...] = ()
    torch: tuple[int, ...] = ()
    uid: int = 0
    gid: int = 0

    def get(self, name: str) -> str | None:
        """Return the variable's value; None if it is unset or empty (empty means unset)."""
        return self.env.get(name) or None

    @property
    def workspace(self) -> Path:
        """The shared folder of the run (`STOKER_WORKSPACE`, default /workspace)."""
        return workspace_of(self.env)

    @property
    def accelerator(self) -> str:
        """The runtime's accelerator profile (`STOKER_ACCELERATOR`); if unset, `nvidia` with devices, else `cpu`."""
        return self.get("STOKER_ACCELERATOR") or ("nvidia" if self.devices else "cpu")

    @property
    def is_accelerator_guessed(self) -> bool:
        """Whether the accelerator profile is known from device nodes alone."""
        return self.get("STOKER_ACCELERATOR") is None

    @property
    def image_version(self) -> str:
        """The image's tag (`STOKER_IMAGE_VERSION`); `unversioned` outside Stoker's images."""
        return self.get("STOKER_IMAGE_VERSION") or "unversioned"

    @property
    def termination_log(self) -> Path:
        """The file for the one-line reason of the ending (`STOKER_TERMINATION_LOG`)."""
        return termination_log_of(self.env)

    @property
    def job_id(self) -> str:
        """The id of the job over all its attempts (`STOKER_JOB_ID`); empty if unset."""
        return self.get("STOKER_JOB_ID") or ""

    @property
    def attempt(self) -> int:
        """How often the JobSet restarted before this attempt; 0 in the first attempt."""
        return whole_number(self.get("STOKER_RESTART_ATTEMPT") or "0") or 0


def whole_number(text: str) -> int | None:
    """Return the number in a text of ASCII digits; None for any other text, a sign, or more than 18 digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else None


def read_facts(environ: Mapping[str, str] | None = None, dev: Path = Path("/dev")) -> Facts:
    """Read the facts of this container.

    Args:
        environ: the environment to read; by default that of this process.
        dev: the folder with the device nodes.
    """
    environ = os.environ if environ is None else environ
    accelerator = environ.get("STOKER_ACCELERATOR") or "nvidia"
    mounted = mounted_devices(accelerator, dev)
    devices = left_visible(accelerator, mounted, environ)
    return Facts(
        env=kept_variables(environ),
        devices=devices,
        hidden_by=hidden_by(accelerator, mounted, environ),
        cpus=len(os.sched_getaffinity(0)),
        shm_bytes=_size_of(dev / "shm"),
        device_bytes=device_memory(accelerator) if devices else None,
        cuda_generation=cuda_generation() if devices and accelerator == "nvidia" else None,
        kernel_packages=tuple(name for name in KERNEL_PACKAGES if _version_of(name)),
        torch=tuple(int(number) for number in _version_of("torch").split(".")[:2] if number.isdecimal()),
        uid=os.geteuid(),
        gid=os.getegid(),
    )


def _version_of(distribution: str) -> str:
    """Return the version of an installed distribution; empty if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _size_of(folder: Path) -> int | None:
    try:
        stat = os.statvfs(folder)
    except OSError:
        return None
    return stat.f_frsize * stat.f_blocks
