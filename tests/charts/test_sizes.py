"""What an entry of the catalogue requests is what its model needs, on devices and in host memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.entries import ENTRIES, facts_of, model_of, published, sizes_of
from charts.helm import ROOT
from stoker.cluster.pods import quantity
from stoker.frameworks import TRL
from stoker.plan.estimate import Memory
from stoker.plan.model_shape import shape_of
from stoker.plan.resolve import read_request, resolve_plan

GIB = 2**30
# The smallest device that the catalogue is made for, and what of it activations, kernels and fragmentation may take.
DEVICE, ROOM = 80 * GIB, 0.3
# Beside the weights, what a training process has in host memory: Python, torch, CUDA and the data.
PROCESS = 6 * GIB


def memory_of(entry: dict[str, Any], kind: str) -> Memory:
    """Return what the entry's run needs on each device of a kind."""
    memory = resolve_plan(read_request(facts_of(entry, kind), TRL(), ()), model=model_of(entry)).memory
    assert memory is not None
    return memory


@pytest.mark.parametrize("name", ENTRIES)
def test_a_model_fits_on_its_devices_with_room_to_train(name: str) -> None:
    assert memory_of(ENTRIES[name], "nvidia").total <= (1 - ROOM) * DEVICE


@pytest.mark.parametrize("kind", ["nvidia", "amd", "intel"])
@pytest.mark.parametrize("name", ENTRIES)
def test_host_memory_holds_what_every_process_loads_and_little_more(name: str, kind: str) -> None:
    sizes = sizes_of(ENTRIES[name], kind)
    memory, processes = memory_of(ENTRIES[name], "nvidia"), sizes.get("devices", 1)
    # Each process loads all weights before it shares them.
    needed = processes * (memory.weights * memory.sharers + PROCESS)
    for amounts in (sizes["requests"], sizes["limits"]):
        assert needed <= quantity(amounts["memory"]) <= 1.5 * needed + 6 * GIB


@pytest.mark.parametrize("path", sorted((ROOT / "runtimes").glob("torchtune-*-*.yaml")), ids=lambda path: path.stem)
def test_torchtune_has_host_memory_for_a_checkpoint_with_its_optimizer(path: Path) -> None:
    entry = yaml.safe_load(path.read_text())
    shape = shape_of(published(entry["model"]))
    assert shape is not None
    weights = 2 * shape.weights
    # Rank 0 gathers weights and both moments of AdamW in bfloat16, and writes the weights from a copy.
    needed = 4 * weights + PROCESS
    assert needed <= quantity(sizes_of(entry, "nvidia")["requests"]["memory"]) <= 1.5 * needed + 6 * GIB


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if "accelerators" not in entry])
def test_on_cpus_memory_holds_the_model_in_float32(name: str) -> None:
    entry = ENTRIES[name]
    needed = 4 * memory_of(entry, "nvidia").model_weights + PROCESS / 2
    assert needed <= quantity(entry["sizes"]["cpu"]["requests"]["memory"])


@pytest.mark.parametrize("name", ENTRIES)
def test_the_workspace_holds_the_model_and_its_checkpoints(name: str) -> None:
    entry = ENTRIES[name]
    memory = memory_of(entry, "nvidia")
    full = "use_peft" not in entry["args"]
    # The model as it is published; of a run that trains all weights three checkpoints and the result, in float32.
    needed = memory.model_weights * (2 + (4 * 12 + 4 if full else 0))
    assert needed <= quantity(entry["workspaceSize"])
