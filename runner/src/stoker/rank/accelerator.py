"""Checks that torch computes on the devices that the accelerator profile promises, and that the trainer does.

Device nodes alone do not show that. If a node's driver is too old, torch finds no device, and trainers then choose the
CPU without an error. Where nothing names the profile, the device nodes themselves are the promise.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say

_ELSEWHERE = "choose other nodes (nodeSelector), or use an image for this node (spec.trainer.image)"
_OTHER_IMAGE = "use an image for this accelerator (spec.trainer.image), or a runtime for cpu"
_ON_THE_CPU = "set STOKER_ACCELERATOR=cpu to train on the CPU"
_NUMBERED = re.compile(r"Error \d+: .+")
_VERSION = re.compile(r"\b\d+\.\d+(?:\.\d+)*\b")
# What torch says of a driver, and of a GPU that it was not built for.
_TOO_OLD = "driver on your system is too old"
_NO_KERNEL = "no kernel image is available"
# What torch says of a GPU that may work at the next try: 802 is the fabric of an NVSwitch node that still starts.
_PASSING = ("Error 802", "system not yet initialized", "Error 999", "unknown error")
# Major version of CUDA → its oldest driver (CUDA Toolkit release notes, minor version compatibility).
_OLDEST_DRIVER = {"11": 450, "12": 525, "13": 580}


@dataclass(frozen=True, slots=True)
class _Kind:
    """How torch knows the devices of one accelerator profile.

    Attributes:
        types: what torch calls them.
        toolkit: what torch must be built with, by its name in `torch.version` and its own.
        package: a package that brings the devices instead of torch; None without one.
        driver: a file of the node that names the driver's version; None without one.
    """

    types: tuple[str, ...]
    toolkit: tuple[str, str] | None = None
    package: str | None = None
    driver: Path | None = None


_KINDS: Mapping[str, _Kind] = {
    "nvidia": _Kind(("cuda",), ("cuda", "CUDA"), driver=Path("/proc/driver/nvidia/version")),
    "amd": _Kind(("cuda",), ("hip", "ROCm"), driver=Path("/sys/module/amdgpu/version")),
    "intel": _Kind(("xpu", "hpu"), ("xpu", "XPU"), package="habana_frameworks"),
    "tpu": _Kind(("xla",), package="torch_xla"),
}


@dataclass(frozen=True, slots=True)
class Found:
    """What torch finds of an accelerator in this process.

    Attributes:
        torch: the version of torch.
        toolkit: the version of what it was built with, such as `13.0` of CUDA; empty if it was built without.
        driver: the version of the node's driver; empty if unknown.
        devices: number of devices that it can use.
        error: why it can use none, or none of those that it should use, in torch's words; empty if it can.
    """

    torch: str
    toolkit: str = ""
    driver: str = ""
    devices: int = 0
    error: str = ""


def look(accelerator: str, used: Collection[int]) -> Found:
    """Ask torch for its devices, and compute on those that are used.

    Args:
        accelerator: an accelerator whose devices torch brings.
        used: numbers of the devices to compute on; numbers of missing devices are skipped.

    Raises:
        RuntimeError: a device that should work fails, in torch's words.
    """
    import torch

    kind = _KINDS[accelerator]
    name, _ = kind.toolkit or ("", "")
    toolkit, driver = str(getattr(torch.version, name, None) or ""), _driver(kind)
    device = kind.types[0]
    devices = 0
    try:
        getattr(torch, device).init()
        devices = getattr(torch, device).device_count()
        for index in sorted({*used} & {*range(devices)}):
            (torch.ones(1, device=f"{device}:{index}") + 1).item()
    except Exception as error:
        said = str(error).strip() or type(error).__name__
        if (devices and _NO_KERNEL not in said) or any(words in said for words in _PASSING):
            raise
        return Found(torch.__version__, toolkit, driver, devices, _reason(said.splitlines()[0]))
    return Found(torch.__version__, toolkit, driver, devices)


def _reason(said: str) -> str:
    """Return what torch said without its advice."""
    numbered = _NUMBERED.search(said)
    return numbered[0] if numbered else said.partition(". ")[0]


def _driver(kind: _Kind) -> str:
    try:
        version = _VERSION.search(kind.driver.read_text() if kind.driver else "")
    except OSError:
        return ""
    return version[0] if version else ""


def describe(accelerator: str, found: Found) -> str:
    """Return the versions of torch, toolkit and driver in a few words."""
    kind = _KINDS[accelerator]
    parts = [f"{kind.toolkit[1]} {found.toolkit}"] if kind.toolkit and found.toolkit else []
    parts += [f"driver {found.driver or 'unknown'}"] if kind.driver else []
    return f"torch {found.torch}" + (f" ({', '.join(parts)})" if parts else "")


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether processes can compute on an accelerator's devices.

    Attributes:
        found: what brings the devices, with versions.
        problem: why the processes cannot use them; empty if they can.
        remedy: what to do about that.
    """

    found: str
    problem: str = ""
    remedy: str = ""


def judged(accelerator: str, found: Found, needed: int, is_guess: bool = False) -> Judgement:
    """Judge what torch finds of an accelerator. Pure.

    Args:
        accelerator: an accelerator whose devices torch brings.
        found: what torch finds of it.
        needed: number of devices that the processes of this node need.
        is_guess: True if the accelerator is known from device nodes alone.
    """
    kind = _KINDS[accelerator]
    versions = describe(accelerator, found)
    if kind.toolkit and not found.toolkit:
        return Judgement(
            versions,
            f"{versions} is built without {kind.toolkit[1]}, but {_promise(accelerator, is_guess)}",
            _OTHER_IMAGE,
        )
    if found.error or not found.devices:
        reason = f" ({found.error})" if found.error else ""
        problem = f"{versions} cannot use the {accelerator} devices of this node{reason}"
        return Judgement(versions, problem, _remedy(accelerator, found))
    if found.devices < needed:
        return Judgement(
            versions,
            f"{versions} can use {found.devices} of the {needed} {accelerator} devices that the processes of this node "
            "need",
            "request whole devices, because a process can use only one partition of a device",
        )
    return Judgement(versions)


def _promise(accelerator: str, is_guess: bool) -> str:
    return f"this node has {accelerator} devices" if is_guess else f"the runtime is for {accelerator}"


def _remedy(accelerator: str, found: Found) -> str:
    if _NO_KERNEL in found.error:
        return _ELSEWHERE
    oldest = _OLDEST_DRIVER.get(found.toolkit.partition(".")[0]) if accelerator == "nvidia" else None
    major = found.driver.partition(".")[0]
    too_old = int(major) < (oldest or 0) if major else _TOO_OLD in found.error
    if oldest and too_old:
        return f"CUDA {found.toolkit} needs driver {oldest} or newer: update the driver of the node, {_ELSEWHERE}"
    return f"look at the driver of the node and at the device plugin, {_ELSEWHERE}"


def judge(accelerator: str, used: Collection[int], is_guess: bool = False) -> Judgement | None:
    """Judge the devices of an accelerator profile; None if it promises none.

    Args:
        accelerator: the accelerator profile.
        used: numbers of the devices that processes use.
        is_guess: True if the accelerator is known from device nodes alone.

    Raises:
        RuntimeError: a device that should work fails, in torch's words.
    """
    kind = _KINDS.get(accelerator)
    if kind is None:
        return None
    if kind.package and find_spec(kind.package):
        return Judgement(kind.package)
    if kind.toolkit is None:
        problem = f"the Python package {kind.package}, which brings {accelerator} devices to torch, is not installed"
        return Judgement("none", problem, _OTHER_IMAGE)
    judgement = judged(accelerator, look(accelerator, used), max(used, default=0) + 1, is_guess)
    if judgement.problem and is_guess:
        return replace(judgement, remedy=f"{judgement.remedy}, or {_ON_THE_CPU}")
    return judgement


def check_device(accelerator: str, local_rank: int, is_guess: bool = False) -> None:
    """Check that this process can compute on its device, before it loads anything.

    Args:
        accelerator: the accelerator profile.
        local_rank: the number of the device.
        is_guess: True if the profile is known from device nodes alone.

    Raises:
        RunError: it cannot, and a retry would not help (78).
        RuntimeError: the device exists but fails, in torch's words.
    """
    judgement = judge(accelerator, [local_rank], is_guess)
    if judgement is None:
        return
    if judgement.problem:
        raise RunError(ExitCode.CONFIG, f"{judgement.problem}: {judgement.remedy}")
    if local_rank == 0:
        say(f"computing on {accelerator} devices: {judgement.found}")


def check_trainers_device(accelerator: str, device: object, is_guess: bool = False) -> None:
    """Check that a trainer computes on the accelerator that the profile promises.

    Args:
        accelerator: the accelerator profile.
        device: the trainer's device, such as `cuda:0`.
        is_guess: True if the profile is known from device nodes alone.

    Raises:
        RunError: it computes elsewhere (78).
    """
    kind, used = _KINDS.get(accelerator), str(device).partition(":")[0]
    if kind is not None and used not in kind.types:
        raise RunError(
            ExitCode.CONFIG,
            f"the trainer computes on {used}, but {_promise(accelerator, is_guess)}: remove what chooses the device, "
            f"such as ACCELERATE_USE_CPU in the env, or {_ON_THE_CPU if is_guess else 'choose a runtime for cpu'}",
        )
