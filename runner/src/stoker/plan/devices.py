"""The accelerators a container sees, by the device nodes that their device plugins put into it.

What the plugins mount: NVIDIA (k8s-device-plugin) /dev/nvidia<N>; AMD (ROCm/k8s-device-plugin) /dev/kfd and a
/dev/dri/renderD<N> for each GPU; Intel (intel-device-plugins-for-kubernetes) a /dev/dri/renderD<N> for each GPU, or
/dev/accel/accel<N> for Gaudi (older drivers /dev/hl<N>); Google TPU /dev/accel<N> (v4, v5e) or /dev/vfio/<N> (v5p and
later). A display card has a renderD too, so which nodes count follows from the runtime's accelerator profile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_INDEX = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class _Kind:
    """How the devices of one accelerator profile are found.

    Attributes:
        nodes: patterns of device nodes below /dev; the first that matches anything says how many devices there are.
        narrowed_by: variables with which a user or a plugin narrows them, in the order in which the libraries apply
            them; of a group in one tuple the first that is set counts.
        needs: a node without which none of them is usable.
    """

    nodes: tuple[str, ...]
    narrowed_by: tuple[tuple[str, ...], ...]
    needs: str | None = None


_KINDS: Mapping[str, _Kind] = {
    "nvidia": _Kind((r"nvidia\d+",), (("CUDA_VISIBLE_DEVICES",),)),
    # HIP counts within what ROCR leaves, and takes CUDA's variable for its own.
    "amd": _Kind(
        (r"dri/renderD\d+",), (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")), "kfd"
    ),
    "intel": _Kind((r"accel/accel\d+", r"hl\d+", r"dri/renderD\d+"), (("HABANA_VISIBLE_MODULES", "ZE_AFFINITY_MASK"),)),
    "tpu": _Kind((r"accel\d+", r"vfio/\d+"), (("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES"),)),
}


def visible_devices(accelerator: str, environ: Mapping[str, str], dev: Path) -> tuple[str, ...]:
    """Return a name for each device that a process in this container can use.

    Args:
        accelerator: the accelerator profile; none for `cpu` and for a profile that is not known.
        environ: the environment that may narrow them.
        dev: the folder with the device nodes.
    """
    kind = _KINDS.get(accelerator)
    if kind is None or (kind.needs is not None and not (dev / kind.needs).exists()):
        return ()
    devices = next((found for pattern in kind.nodes if (found := _matching(dev, pattern))), ())
    for variables in kind.narrowed_by:
        told = next((environ[name] for name in variables if name in environ), None)
        if told is not None:
            devices = _narrowed(devices, told)
    return tuple(devices)


def _matching(dev: Path, pattern: str) -> tuple[str, ...]:
    folder = dev / Path(pattern).parent
    name = re.compile(Path(pattern).name)
    try:
        found = [entry.name for entry in folder.iterdir() if name.fullmatch(entry.name)]
    except OSError:
        return ()
    return tuple(sorted(found, key=lambda entry: (len(entry), entry)))


def _narrowed(devices: Sequence[str], told: str) -> tuple[str, ...]:
    """Return what a variable leaves of the devices: CUDA's rule, which the others follow.

    Entries are numbers or names; the list ends at the first number that is none of a device. With MIG, or tiles, one
    device node holds several instances, each named in the variable.
    """
    left: list[str] = []
    for entry in (word.strip() for word in told.split(",")):
        index = int(entry) if _INDEX.fullmatch(entry) else None
        if not devices or not entry or entry.startswith("-") or (index is not None and index >= len(devices)):
            break
        left.append(entry if index is None else devices[index])
    return tuple(dict.fromkeys(left))
