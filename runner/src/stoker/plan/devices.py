"""The accelerators that a container sees, found by the device nodes that device plugins mount.

NVIDIA (k8s-device-plugin) mounts /dev/nvidia<N>. AMD (ROCm/k8s-device-plugin) mounts /dev/kfd and one
/dev/dri/renderD<N> per GPU. Intel (intel-device-plugins-for-kubernetes) mounts one /dev/dri/renderD<N> per GPU, or
/dev/accel/accel<N> for Gaudi (older drivers /dev/hl<N>). Google mounts /dev/accel<N> for TPU v4 and v5e, /dev/vfio/<N>
for v5p and later. Display cards have a renderD node too, so the accelerator profile decides which nodes count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_INDEX = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class _DeviceKind:
    """How to find the devices of one accelerator profile.

    Attributes:
        nodes: patterns of device nodes below /dev; only the first pattern that matches counts.
        narrowed_by: groups of variables that hide some devices, in the order in which the libraries apply them; in
            each group only the first variable that is set counts.
        needs: a node that the devices cannot work without; None without one.
    """

    nodes: tuple[str, ...]
    narrowed_by: tuple[tuple[str, ...], ...]
    needs: str | None = None


_KINDS: Mapping[str, _DeviceKind] = {
    "nvidia": _DeviceKind((r"nvidia\d+",), (("CUDA_VISIBLE_DEVICES",),)),
    # HIP counts the devices that ROCR leaves, and reads CUDA's variable too.
    "amd": _DeviceKind(
        (r"dri/renderD\d+",), (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")), "kfd"
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
    kind = _KINDS.get(accelerator)
    if kind is None or (kind.needs is not None and not (dev / kind.needs).exists()):
        return ()
    devices = next((found for pattern in kind.nodes if (found := _matching(dev, pattern))), ())
    return left_visible(accelerator, devices, environ)


def left_visible(accelerator: str, devices: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the devices of a container that the variables in its environment do not hide.

    Args:
        accelerator: the accelerator profile.
        devices: a name for each device.
        environ: the environment.
    """
    kind = _KINDS.get(accelerator)
    for variables in kind.narrowed_by if kind else ():
        visible = next((environ[name] for name in variables if name in environ), None)
        if visible is not None:
            devices = _narrowed(devices, visible)
    return tuple(devices)


def _matching(dev: Path, pattern: str) -> tuple[str, ...]:
    folder = dev / Path(pattern).parent
    name = re.compile(Path(pattern).name)
    try:
        found = [entry.name for entry in folder.iterdir() if name.fullmatch(entry.name)]
    except OSError:
        return ()
    return tuple(sorted(found, key=lambda entry: (len(entry), entry)))


def _narrowed(devices: Sequence[str], visible: str) -> tuple[str, ...]:
    """Return the devices that a variable leaves, by CUDA's rule, which the other libraries follow.

    Entries are numbers or names. The first number without a device ends the list. With MIG or tiles, one device node
    holds several instances, and the variable names each.
    """
    left: list[str] = []
    for entry in (word.strip() for word in visible.split(",")):
        index = int(entry) if _INDEX.fullmatch(entry) else None
        if not devices or not entry or entry.startswith("-") or (index is not None and index >= len(devices)):
            break
        left.append(entry if index is None else devices[index])
    return tuple(dict.fromkeys(left))
