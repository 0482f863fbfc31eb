"""Torch is asked whether a process can compute on what the accelerator profile promises; the answer is judged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.contract.exits import ExitCode, RunError
from stoker.rank import accelerator
from stoker.rank.accelerator import Found, Judgement, check_device, check_trainers_device, describe, judge, judged, look

GOOD = Found("2.13.0+cu130", "13.0", "580.65.06", 2)
# As torch says it, over several lines and with addresses.
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
NO_KERNEL = (
    "CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors might be asynchronously "
    "reported at some other API call"
)
UNEXPECTED = "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before?"

VERSIONS = "torch 2.13.0+cu130 (CUDA 13.0, driver 535.129.03)"


class StandIn:
    """Stands for torch on a machine with these devices.

    Args:
        cuda: the version of CUDA that it was built with; None without one.
        devices: number of devices.
        refusal: what its initialization raises; None if it succeeds.
        failure: what every computation raises; None if it succeeds.
    """

    __version__ = "2.13.0+cu130"

    def __init__(
        self,
        cuda: str | None = "13.0",
        devices: int = 2,
        refusal: Exception | None = None,
        failure: Exception | None = None,
    ) -> None:
        self.version = SimpleNamespace(cuda=cuda, hip=None, xpu=None)
        self.cuda = self.xpu = SimpleNamespace(init=raising(refusal), device_count=lambda: devices)
        self.failure = failure
        self.used: list[str] = []

    def ones(self, size: int, device: str) -> _One:
        """Return something that can be computed with."""
        raising(self.failure)()
        self.used.append(device)
        return _One()


class _One:
    def __add__(self, other: int) -> _One:
        return self

    def item(self) -> float:
        """Return the number."""
        return 2.0


def raising(error: Exception | None) -> Callable[[], None]:
    def call() -> None:
        if error is not None:
            raise error

    return call


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The node's file about its NVIDIA driver."""
    path = tmp_path / "version"
    kind = replace(accelerator._KINDS["nvidia"], driver=path)
    monkeypatch.setattr(accelerator, "_KINDS", {**accelerator._KINDS, "nvidia": kind})
    return path


def with_torch(monkeypatch: pytest.MonkeyPatch, **options: Any) -> StandIn:
    torch = StandIn(**options)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def test_torch_computes_on_the_device_of_the_process(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 2025\n")
    torch = with_torch(monkeypatch)
    assert look("nvidia", [1]) == GOOD
    assert torch.used == ["cuda:1"]
    check_device("nvidia", 1)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n", "550.54.15"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\nGCC version: 12.3.0\n", "535.129.03"),
        ("", ""),
        (None, ""),
    ],
    ids=["the open driver", "the closed driver", "an empty file", "no file"],
)
def test_the_driver_is_read_from_the_node(
    driver: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, version: str
) -> None:
    if text is not None:
        driver.write_text(text)
    with_torch(monkeypatch)
    assert look("nvidia", []).driver == version


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"refusal": RuntimeError(TOO_OLD), "devices": 0},
            (
                f"{VERSIONS} cannot use the nvidia devices of this node (The NVIDIA driver on your system is too old "
                "(found version 12020)): CUDA 13.0 needs driver 580 or newer: update the driver of the node, choose "
                "other nodes (nodeSelector), or use an image for this node (spec.trainer.image)"
            ),
        ),
        (
            {"cuda": None, "refusal": AssertionError("Torch not compiled with CUDA enabled"), "devices": 0},
            (
                "torch 2.13.0+cu130 (driver 535.129.03) is built without CUDA, but the runtime is for nvidia: use an "
                "image for this accelerator (spec.trainer.image), or a runtime for cpu"
            ),
        ),
        (
            {"failure": RuntimeError(NO_KERNEL)},
            (
                f"{VERSIONS} cannot use the nvidia devices of this node (CUDA error: no kernel image is available for "
                "execution on the device): choose other nodes (nodeSelector), or use an image for this node"
            ),
        ),
        (
            {"devices": 1},
            f"{VERSIONS} can use 1 of the 2 nvidia devices that the processes of this node need: request whole devices",
        ),
    ],
    ids=["an old driver", "torch for CPUs", "a GPU that torch was not built for", "partitions of one GPU"],
)
def test_a_process_without_its_device_ends_for_good(
    driver: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\n")
    with_torch(monkeypatch, **options)
    with pytest.raises(RunError) as ended:
        check_device("nvidia", 1)
    assert ended.value.code is ExitCode.CONFIG
    assert message in ended.value.message
    assert "\n" not in ended.value.message


def test_a_device_that_nobody_named_may_be_left_out(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_torch(monkeypatch, cuda=None, refusal=AssertionError("Torch not compiled with CUDA enabled"), devices=0)
    with pytest.raises(RunError) as ended:
        check_device("nvidia", 0, is_guess=True)
    assert ended.value.code is ExitCode.CONFIG
    assert "is built without CUDA, but this node has nvidia devices: use an image for this accel" in ended.value.message
    assert ended.value.message.endswith(", or set STOKER_ACCELERATOR=cpu to train on the CPU")


def test_a_device_that_fails_is_tried_again(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be broken or in use by another pod, which a restart can change."""
    with_torch(monkeypatch, failure=RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"))
    with pytest.raises(RuntimeError, match="busy"):
        check_device("nvidia", 0)


def test_a_device_that_is_not_ready_yet_is_tried_again(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fresh node with NVSwitch, the fabric may still start."""
    refusal = RuntimeError(f"{UNEXPECTED} Error 802: system not yet initialized")
    with_torch(monkeypatch, refusal=refusal, devices=0)
    with pytest.raises(RuntimeError, match="Error 802"):
        check_device("nvidia", 0)


def test_the_number_of_an_error_is_kept(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = RuntimeError(f"{UNEXPECTED} Error 804: forward compatibility was attempted on non supported HW")
    with_torch(monkeypatch, refusal=refusal, devices=0)
    with pytest.raises(RunError, match=r"\(Error 804: forward compatibility"):
        check_device("nvidia", 0)


def test_what_no_runtime_promised_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = with_torch(monkeypatch)
    for name in ("cpu", "", "gpu"):
        check_device(name, 0)
        check_trainers_device(name, "cuda:0")
    assert torch.used == []


@pytest.mark.parametrize(
    ("name", "found", "text"),
    [
        ("nvidia", GOOD, "torch 2.13.0+cu130 (CUDA 13.0, driver 580.65.06)"),
        (
            "amd",
            Found("2.13.0+rocm7.1", "7.1.25424", "6.12.12"),
            "torch 2.13.0+rocm7.1 (ROCm 7.1.25424, driver 6.12.12)",
        ),
        ("amd", Found("2.13.0", ""), "torch 2.13.0 (driver unknown)"),
        ("intel", Found("2.13.0+xpu", "20250301"), "torch 2.13.0+xpu (XPU 20250301)"),
        ("intel", Found("2.13.0+cpu"), "torch 2.13.0+cpu"),
    ],
)
def test_versions_are_named(name: str, found: Found, text: str) -> None:
    assert describe(name, found) == text


@pytest.mark.parametrize(
    ("name", "found", "advice"),
    [
        ("nvidia", replace(GOOD, devices=0), "look at the driver of the node and at the device plugin"),
        ("nvidia", replace(GOOD, devices=0, driver="575.57.08"), "CUDA 13.0 needs driver 580 or newer"),
        ("nvidia", replace(GOOD, devices=0, toolkit="12.8"), "look at the driver of the node"),
        ("nvidia", replace(GOOD, devices=0, toolkit="12.8", driver="470.1"), "CUDA 12.8 needs driver 525 or newer"),
        ("nvidia", replace(GOOD, devices=0, driver=""), "look at the driver of the node"),
        ("nvidia", replace(GOOD, devices=0, driver="", error=TOO_OLD), "CUDA 13.0 needs driver 580 or newer"),
        ("amd", Found("2.13.0", "7.1", "6.3.6"), "look at the driver of the node"),
        (
            "intel",
            Found("2.13.0+xpu", "20250301", error="No XPU devices are available"),
            "No XPU devices are available",
        ),
        ("amd", Found("2.13.0+cu130", ""), "is built without ROCm, but the runtime is for amd"),
    ],
)
def test_the_remedy_fits_what_is_found(name: str, found: Found, advice: str) -> None:
    judgement = judged(name, found, 1)
    assert advice in f"{judgement.problem}: {judgement.remedy}"


def test_a_profile_whose_package_is_missing_is_named() -> None:
    with pytest.raises(
        RunError, match="the Python package torch_xla, which brings tpu devices to torch, is not"
    ) as ended:
        check_device("tpu", 0)
    assert ended.value.code is ExitCode.CONFIG


def test_a_package_that_brings_the_devices_is_left_to_check_them(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = with_torch(monkeypatch)
    monkeypatch.setattr(accelerator, "find_spec", lambda name: name)
    assert (judge("intel", [0]), judge("tpu", [0])) == (Judgement("habana_frameworks"), Judgement("torch_xla"))
    assert torch.used == []


@pytest.mark.parametrize(
    ("name", "device"), [("nvidia", "cuda:3"), ("amd", "cuda"), ("intel", "xpu:0"), ("intel", "hpu"), ("tpu", "xla:0")]
)
def test_a_trainer_on_the_promised_device_is_let_go_on(name: str, device: str) -> None:
    check_trainers_device(name, device)


@pytest.mark.parametrize(("name", "device"), [("nvidia", "cpu"), ("amd", "cpu:0"), ("nvidia", "xpu"), ("tpu", "cuda")])
def test_a_trainer_elsewhere_ends_for_good(name: str, device: str) -> None:
    said = f"the trainer computes on {device.partition(':')[0]}, but the runtime is for {name}"
    with pytest.raises(RunError, match=said) as ended:
        check_trainers_device(name, device)
    assert ended.value.code is ExitCode.CONFIG


def test_a_trainer_that_leaves_a_device_which_nobody_named_is_told_how_to_say_so() -> None:
    with pytest.raises(RunError, match=r"this node has nvidia devices: .* or set STOKER_ACCELERATOR=cpu"):
        check_trainers_device("nvidia", "cpu", is_guess=True)
