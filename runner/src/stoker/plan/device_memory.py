"""What kind of device this is and how much memory it has, asked of the driver without loading torch."""

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


def cuda_generation(load: Callable[[str], Any] = ctypes.CDLL) -> int | None:
    """Return the major number of the compute capability of the oldest NVIDIA device, for example 8 for Ampere.

    Args:
        load: loads a shared library.
    """
    return min(_ask_nvidia(load, _generation), default=None)


def _nvidia(load: Callable[[str], Any]) -> list[int]:
    return _ask_nvidia(load, _size)


def _ask_nvidia(load: Callable[[str], Any], ask: Callable[[Any, ctypes.c_void_p], int]) -> list[int]:
    """Return a number of each device, without the devices that do not tell it."""
    found = []
    try:
        nvml = load(_NVML)
        if nvml.nvmlInit_v2():
            return []
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for index in range(count.value):
            device = ctypes.c_void_p()
            if not nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
                found.append(ask(nvml, device))
        nvml.nvmlShutdown()
    except (OSError, AttributeError):  # no driver, or one without these functions
        return []
    return [number for number in found if number]


def _size(nvml: Any, device: ctypes.c_void_p) -> int:
    memory = _Memory()
    return 0 if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) else int(memory.total)


def _generation(nvml: Any, device: ctypes.c_void_p) -> int:
    major, minor = ctypes.c_int(), ctypes.c_int()
    failed = nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))
    return 0 if failed else int(major.value)


def _amd(sys_folder: Path) -> list[int]:
    sizes = []
    for path in sys_folder.glob(_AMD_SIZES):
        try:
            sizes.append(int(path.read_text()))
        except (OSError, ValueError):
            continue
    return sizes
