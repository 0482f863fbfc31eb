"""The devices a container sees are those of its accelerator profile, as far as a variable leaves them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.plan.devices import hidden_by, left_visible, visible_devices

AMD = ["kfd", "dri/card0", "dri/card1", "dri/renderD128", "dri/renderD129"]


@pytest.mark.parametrize(
    ("accelerator", "nodes", "environ", "expected"),
    [
        ("nvidia", ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], {}, ("nvidia0", "nvidia1")),
        ("nvidia", [f"nvidia{n}" for n in range(11)], {}, tuple(f"nvidia{n}" for n in range(11))),
        ("nvidia", ["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "1"}, ("nvidia1",)),
        ("nvidia", ["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": ""}, ()),
        ("nvidia", ["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ("nvidia", ["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "0,7,1"}, ("nvidia0",)),
        ("nvidia", ["nvidia0"], {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, ("MIG-a", "MIG-b")),
        ("nvidia", ["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "GPU-a,1"}, ("GPU-a",)),
        ("nvidia", ["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "all"}, ()),
        ("nvidia", ["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "none"}, ()),
        ("nvidia", ["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "0,GPU-a"}, ("nvidia0",)),
        ("nvidia", ["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": " 1 ,0x"}, ("nvidia1", "nvidia0")),
        ("nvidia", ["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "0,0"}, ()),
        ("nvidia", ["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "0,7,0"}, ()),
        ("nvidia", [], {"CUDA_VISIBLE_DEVICES": "0,1"}, ()),
        ("nvidia", AMD, {}, ()),
        ("amd", AMD, {}, ("renderD128", "renderD129")),
        ("amd", AMD[1:], {}, ()),
        ("amd", AMD, {"ROCR_VISIBLE_DEVICES": "1"}, ("renderD129",)),
        ("amd", AMD, {"HIP_VISIBLE_DEVICES": "0"}, ("renderD128",)),
        ("amd", AMD, {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, ("renderD129",)),
        ("amd", AMD, {"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": ""}, ("renderD128", "renderD129")),
        ("amd", AMD, {"HIP_VISIBLE_DEVICES": "GPU-a"}, ("GPU-a",)),
        ("amd", AMD, {"HIP_VISIBLE_DEVICES": "all"}, ()),
        ("intel", ["dri/card1", "dri/renderD128"], {}, ("renderD128",)),
        ("intel", ["dri/renderD128"], {"ZE_AFFINITY_MASK": "0.0,0.1"}, ("0.0", "0.1")),
        ("intel", ["accel/accel0", "accel/accel_controlD0", "accel/accel1"], {}, ("accel0", "accel1")),
        ("intel", ["hl0", "hl_controlD0"], {}, ("hl0",)),
        ("tpu", ["accel0", "accel1"], {}, ("accel0", "accel1")),
        ("tpu", ["vfio/0", "vfio/1", "vfio/vfio"], {"TPU_VISIBLE_CHIPS": "0"}, ("0",)),
        ("cpu", ["nvidia0"], {}, ()),
        ("unheard-of", ["nvidia0"], {}, ()),
    ],
)
def test_visible_devices(
    tmp_path: Path, accelerator: str, nodes: list[str], environ: Mapping[str, str], expected: tuple[str, ...]
) -> None:
    for name in nodes:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert visible_devices(accelerator, environ, tmp_path) == expected


@pytest.mark.parametrize(
    ("accelerator", "environ", "expected"),
    [
        ("nvidia", {}, ""),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "1,0"}, ""),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "1"}, "CUDA_VISIBLE_DEVICES='1'"),
        ("amd", {"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": ""}, "HIP_VISIBLE_DEVICES=''"),
    ],
)
def test_a_variable_that_hides_devices_is_named(accelerator: str, environ: Mapping[str, str], expected: str) -> None:
    assert hidden_by(accelerator, ("one", "two"), environ) == expected


@given(
    st.sampled_from([("nvidia", "CUDA_VISIBLE_DEVICES"), ("intel", "ZE_AFFINITY_MASK")]),
    st.lists(st.sampled_from(["nvidia0", "nvidia1"]), unique=True),
    st.text() | st.text(alphabet="01-+,GPUMI "),
)
def test_no_device_comes_from_a_variable_alone(kind: tuple[str, str], devices: list[str], told: str) -> None:
    left = left_visible(kind[0], devices, {kind[1]: told})
    assert len(set(left)) == len(left)
    assert devices or not left
