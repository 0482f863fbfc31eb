"""How much memory a device has, asked of the driver without loading torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Part of NVIDIA's driver; device plugins mount it into containers.
_NVML = "libnvidia-ml.so.1"
_AMD_SIZES = "class/drm/card*/device/mem_info_vram_total"


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def device_memory(
    accelerator: str, load: Callable[[str], Any] = ctypes.CDLL, sys_folder: Path = Path("/sys")
) -> int | None:
    """Return the bytes of memory of the largest device that the driver shows; None if it does not say.

    Args:
        accelerator: the accelerator profile.
        load: loads a shared library.
        sys_folder: where the kernel shows its devices.
    """
    sizes: list[int] = []
    if accelerator == "nvidia":
        sizes = _nvidia(load)
    elif accelerator == "amd":
        sizes = _amd(sys_folder)
    return max(sizes, default=None)


def _nvidia(load: Callable[[str], Any]) -> list[int]:
    try:
        nvml = load(_NVML)
        if nvml.nvmlInit_v2():
            return []
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        sizes = [_size(nvml, index) for index in range(count.value)]
        nvml.nvmlShutdown()
    except (OSError, AttributeError):  # no driver, or one without these functions
        return []
    return [size for size in sizes if size]


def _size(nvml: Any, index: int) -> int:
    device, memory = ctypes.c_void_p(), _Memory()
    if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
        return 0
    return 0 if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) else int(memory.total)


def _amd(sys_folder: Path) -> list[int]:
    sizes = []
    for path in sys_folder.glob(_AMD_SIZES):
        try:
            sizes.append(int(path.read_text()))
        except (OSError, ValueError):
            continue
    return sizes
