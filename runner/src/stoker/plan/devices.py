"""The accelerators that a container sees, found by the device nodes that device plugins mount.

NVIDIA (k8s-device-plugin) mounts /dev/nvidia<N>. AMD (ROCm/k8s-device-plugin) mounts /dev/kfd and one
/dev/dri/renderD<N> per GPU. Intel (intel-device-plugins-for-kubernetes) mounts one /dev/dri/renderD<N> per GPU, or
/dev/accel/accel<N> for Gaudi (older drivers /dev/hl<N>). Google mounts /dev/accel<N> for TPU v4 and v5e, /dev/vfio/<N>
for v5p and later. Display cards have a renderD node too, so the accelerator profile decides which nodes count.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_INDEX = re.compile(r"[0-9]{1,6}")
# What CUDA and torch read of a word that begins with a number: `1gpu` is 1.
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _DeviceKind:
    """How to find the devices of one accelerator profile.

    Attributes:
        nodes: patterns of device nodes below /dev; only the first pattern that matches counts.
        narrowed_by: groups of variables that hide some devices, in the order in which the libraries apply them; in
            each group only the first variable that is set counts.
        needs: a node that the devices cannot work without; None without one.
        names: how names in those variables begin, where torch reads them; empty where any word is a name.
    """

    nodes: tuple[str, ...]
    narrowed_by: tuple[tuple[str, ...], ...]
    needs: str | None = None
    names: tuple[str, ...] = ()


_KINDS: Mapping[str, _DeviceKind] = {
    "nvidia": _DeviceKind((r"nvidia\d+",), (("CUDA_VISIBLE_DEVICES",),), names=("GPU-", "MIG-")),
    # HIP counts the devices that ROCR leaves, and reads CUDA's variable too.
    "amd": _DeviceKind(
        (r"dri/renderD\d+",),
        (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
        "kfd",
        ("GPU-",),
    ),
    "intel": _DeviceKind(
        (r"accel/accel\d+", r"hl\d+", r"dri/renderD\d+"), (("HABANA_VISIBLE_MODULES", "ZE_AFFINITY_MASK"),)
    ),
    "tpu": _DeviceKind((r"accel\d+", r"vfio/\d+"), (("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES"),)),
}


def visible_devices(accelerator: str, environ: Mapping[str, str], dev: Path) -> tuple[str, ...]:
    """Return a name for each device that a process in this container can use.

    Args:
        accelerator: the accelerator profile; `cpu` and unknown profiles have no devices.
        environ: the environment, whose variables may hide devices.
        dev: the folder with the device nodes.
    """
    return left_visible(accelerator, mounted_devices(accelerator, dev), environ)


def mounted_devices(accelerator: str, dev: Path) -> tuple[str, ...]:
    """Return a name for each device of an accelerator profile whose node is below a folder."""
    kind = _KINDS.get(accelerator)
    if kind is None or (kind.needs is not None and not (dev / kind.needs).exists()):
        return ()
    return next((found for pattern in kind.nodes if (found := _matching(dev, pattern))), ())


def left_visible(accelerator: str, devices: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the devices of a container that the variables in its environment do not hide.

    Args:
        accelerator: the accelerator profile.
        devices: a name for each device.
        environ: the environment.
    """
    steps = [left for _, left in _steps(accelerator, devices, environ)]
    return steps[-1] if steps else tuple(devices)


def hidden_by(accelerator: str, devices: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the first variable that hides some of a container's devices, as `NAME='value'`; empty without one."""
    for name, left in _steps(accelerator, devices, environ):
        if len(left) < len(devices):
            return f"{name}={environ[name]!r}"
    return ""


def _steps(
    accelerator: str, devices: Sequence[str], environ: Mapping[str, str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each variable that counts, with the devices that it and those before it leave."""
    kind = _KINDS.get(accelerator)
    for variables in kind.narrowed_by if kind else ():
        name = next((name for name in variables if name in environ), None)
        if kind is not None and name is not None:
            devices = (
                _read_by_torch(devices, environ[name], kind.names) if kind.names else _narrowed(devices, environ[name])
            )
            yield name, tuple(devices)


def _matching(dev: Path, pattern: str) -> tuple[str, ...]:
    folder = dev / Path(pattern).parent
    name = re.compile(Path(pattern).name)
    try:
        found = [entry.name for entry in folder.iterdir() if name.fullmatch(entry.name)]
    except OSError:
        return ()
    return tuple(sorted(found, key=lambda entry: (len(entry), entry)))


def _read_by_torch(devices: Sequence[str], visible: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the devices that a variable leaves, as torch reads it (torch.cuda._parse_visible_devices).

    Entries are numbers, or all of them names of one kind. Anything else ends the list, and so does a number without a
    device. An entry that is there twice leaves none. With MIG, one device node holds several instances.
    """
    kind = next((name for name in names if visible.startswith(name)), None)
    left: list[str] = []
    for entry in visible.split(","):
        number = _NUMBER.match(entry.strip())
        index = int(number[0]) if number and kind is None else -1
        if not devices or (index < 0 if kind is None else not entry.startswith(kind)):
            break
        name = str(index) if kind is None else entry
        if name in left:
            return ()
        left.append(name)
    if kind is not None:
        return tuple(left)
    there = itertools.takewhile(lambda index: index < len(devices), map(int, left))
    return tuple(devices[index] for index in there)


def _narrowed(devices: Sequence[str], visible: str) -> tuple[str, ...]:
    """Return the devices that a variable leaves, as the libraries of other accelerators read it.

    Entries are numbers or names. The first number without a device ends the list. With tiles, one device node holds
    several instances, and the variable names each.
    """
    left: list[str] = []
    for entry in (word.strip() for word in visible.split(",")):
        index = int(entry) if _INDEX.fullmatch(entry) else None
        if not devices or not entry or entry.startswith("-") or (index is not None and index >= len(devices)):
            break
        left.append(entry if index is None else devices[index])
    return tuple(dict.fromkeys(left))
