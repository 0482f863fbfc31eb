"""What a model needs on each device: its weights by its configuration, and bytes by how they are trained."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runner.tests.plan.models import PUBLISHED, QWEN_8B

from stoker.plan.device_memory import cuda_generation, device_memory
from stoker.plan.estimate import Training, estimate, misfit, parked
from stoker.plan.model_shape import ModelShape, shape_of

GIB = 2**30


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_configuration_tells_how_many_weights_the_model_has(name: str) -> None:
    config, weights = PUBLISHED[name]
    shape = shape_of(config)
    assert shape is not None
    assert shape.weights == weights


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "mamba2", "hidden_size": 8},
        {"model_type": "llama", "hidden_size": 4096},
        {**QWEN_8B, "hidden_size": "wide"},
        {**QWEN_8B, "num_attention_heads": 0},
        # Stored as fewer bytes than its type says.
        {**QWEN_8B, "quantization_config": {"quant_method": "fp8"}},
    ],
)
def test_what_a_configuration_does_not_tell_is_not_guessed(config: dict[str, Any]) -> None:
    assert shape_of(config) is None


def shape() -> ModelShape:
    """Return the weights of Qwen3 8B."""
    found = shape_of(QWEN_8B)
    assert found is not None
    return found


def test_every_trained_weight_has_a_gradient_and_two_numbers_of_the_optimizer() -> None:
    memory = estimate(shape(), Training("full", 4, 4, 8))
    assert memory.trained_weights == memory.model_weights == 8_190_735_360
    assert (memory.weights, memory.gradients, memory.optimizer) == (32_762_941_440, 32_762_941_440, 65_525_882_880)
    assert memory.total == 16 * 8_190_735_360


def test_processes_share_what_is_sharded() -> None:
    whole, shared = (estimate(shape(), Training("full", 4, 4, 8, sharers=sharers)) for sharers in (1, 8))
    assert shared.total == whole.total // 8


def test_an_adapter_is_two_matrices_on_each_linear_layer() -> None:
    memory = estimate(shape(), Training("lora", 2, 2, 8, rank=16))
    # Of each block: queries, keys, values, output; gate, up, down.
    widths = 8192 + 5120 + 5120 + 8192 + 3 * 16384
    assert memory.trained_weights == 16 * 36 * widths
    assert memory.weights == 2 * 8_190_735_360 + 4 * memory.trained_weights
    assert (memory.gradients, memory.optimizer) == (4 * memory.trained_weights, 8 * memory.trained_weights)
    some = estimate(shape(), Training("lora", 2, 2, 8, rank=16, targets=("q_proj", "v_proj")))
    assert some.trained_weights == 16 * 36 * (8192 + 5120)


def test_only_linear_layers_are_quantized() -> None:
    memory = estimate(shape(), Training("qlora", 2, 0.5, 4, rank=16, adapter_bytes=2))
    outside = 2 * 151936 * 4096 + 4096 + 36 * (2 * 4096 + 2 * 128)
    linear = 8_190_735_360 - outside
    assert memory.weights == linear // 2 + 2 * outside + 2 * memory.trained_weights


def test_a_reference_model_is_there_once_more() -> None:
    one, two = (estimate(shape(), Training("full", 4, 4, 8, reference_bytes=width)) for width in (0, 2))
    assert two.total - one.total == 2 * 8_190_735_360


def test_an_unknown_optimizer_is_not_counted() -> None:
    memory = estimate(shape(), Training("full", 4, 4, None))
    assert memory.optimizer is None
    assert memory.total == 8 * 8_190_735_360
    assert "optimizer unknown" in str(memory)


def test_what_does_not_fit_is_said_with_what_would() -> None:
    full = estimate(shape(), Training("full", 4, 4, 8))
    shared = estimate(shape(), Training("full", 4, 4, 8, sharers=8))
    ways = [("", full), ("STOKER_SHARDING=full", shared)]
    told = misfit(ways, 80 * GIB)
    assert "it needs 122.1 GiB per device (full, not sharded)" in told
    assert "a device has 80.0 GiB: write STOKER_SHARDING=full (15.3 GiB)" in told
    assert misfit(ways, 8 * GIB).endswith("use more devices and STOKER_SHARDING=full, or larger ones")
    assert misfit(ways, 123 * GIB) == misfit(ways, None) == misfit([], GIB) == ""


def nvml(*sizes: int, broken: bool = False) -> SimpleNamespace:
    """Return NVIDIA's library for devices of these sizes; `broken` is a driver that does not answer."""

    def count(number: Any) -> int:
        number._obj.value = len(sizes)
        return 0

    def handle(index: int, device: Any) -> int:
        device._obj.value = index + 1
        return 0

    def size(device: ctypes.c_void_p, memory: Any) -> int:
        memory._obj.total = sizes[(device.value or 0) - 1]
        return 0

    def capability(device: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 9, 0
        return 0

    functions = {"Init_v2": lambda: int(broken), "Shutdown": lambda: 0, "DeviceGetCount_v2": count}
    functions |= {"DeviceGetHandleByIndex_v2": handle, "DeviceGetMemoryInfo": size}
    functions |= {"DeviceGetCudaComputeCapability": capability}
    return SimpleNamespace(**{f"nvml{name}": function for name, function in functions.items()})


def missing(name: str) -> Any:
    """Fail as the loader does where a library is missing."""
    raise OSError(name)


def test_the_driver_says_how_much_memory_a_device_has(tmp_path: Path) -> None:
    assert device_memory("nvidia", lambda name: nvml(80 * GIB, 40 * GIB)) == 80 * GIB
    assert device_memory("nvidia", lambda name: nvml(GIB, broken=True)) is None
    assert device_memory("nvidia", lambda name: SimpleNamespace()) is None
    assert device_memory("nvidia", missing) is None
    for number, size in enumerate(["206158430208\n", "x"]):
        folder = tmp_path / f"class/drm/card{number}/device"
        folder.mkdir(parents=True)
        (folder / "mem_info_vram_total").write_text(size)
    assert device_memory("amd", sys_folder=tmp_path) == 192 * GIB
    assert device_memory("cpu", missing) is None


def test_the_driver_says_how_old_a_device_is() -> None:
    assert cuda_generation(lambda name: nvml(80 * GIB)) == 9
    assert cuda_generation(lambda name: nvml(GIB, broken=True)) is None
    assert cuda_generation(missing) is None


def test_a_sampler_that_sleeps_needs_its_weights_and_two_gib() -> None:
    adapter = parked(8 * 2**30, "bfloat16", whole=False)
    assert adapter.endswith("× 2 bytes): samplers.resources.requests.memory of 18.0 GiB or more")
    assert "keeps 32.0 GiB of host memory" in parked(8 * 2**30, "float32", whole=False)


def test_one_whose_weights_change_in_place_needs_two_copies_more_for_each_device() -> None:
    whole = parked(8 * 2**30, "bfloat16", whole=True)
    assert "keeps 48.0 GiB of host memory" in whole
    assert whole.endswith(
        "× 2 bytes, once, and 2 copies for its device): samplers.resources.requests.memory of 50.0 GiB or more; "
        "32.0 GiB more for each further device of the sampler"
    )
