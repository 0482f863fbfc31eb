"""Facts, plans and files as the tests need them: a two-node TrainJob's pod, with anything else said on top."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema

from stoker.frameworks import get_framework
from stoker.plan.facts import Facts
from stoker.plan.plan import Plan
from stoker.plan.resolve import read_request, resolve_plan
from stoker.rank.checkpoints import seal

# What Trainer and our runtime tell the first of two pods.
POD = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "1",
    "PET_NODE_RANK": "0",
    "PET_MASTER_ADDR": "sft-node-0-0.sft",
    "PET_MASTER_PORT": "29500",
    "STOKER_FRAMEWORK": "trl",
    "STOKER_METHOD": "sft",
    "STOKER_RUN_ID": "0f2e",
    "STOKER_ARG_MODEL_NAME_OR_PATH": "/workspace/model",
    "STOKER_ARG_DATASET_NAME": "/workspace/dataset",
}
# What a checkpoint says of the run that it belongs to.
MINE = {"method": "sft", "model": {"model_name_or_path": "/m"}, "world_size": 2}


def pod(env: Mapping[str, str] | None = None, devices: Sequence[str] = (), **more: Any) -> Facts:
    """Return the facts of the first of two pods, with `env` on top."""
    return Facts(env={**POD, **(env or {})}, devices=tuple(devices), cpus=4, shm_bytes=2**30, **more)


def alone(env: Mapping[str, str] | None = None, devices: Sequence[str] = ()) -> Facts:
    """Return the facts of a container that was told nothing of other nodes."""
    told = {name: value for name, value in POD.items() if not name.startswith("PET_")}
    return Facts(env={**told, **(env or {})}, devices=tuple(devices), cpus=4, shm_bytes=2**30)


def write_tensors(path: Path, *names: str) -> int:
    """Write a safetensors file of small tensors, by default one, and return its size."""
    tensors = {
        name: {"dtype": "F32", "shape": [4], "data_offsets": [16 * index, 16 * (index + 1)]}
        for index, name in enumerate(names or ["w"])
    }
    header = json.dumps({"__metadata__": {}, **tensors}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(16 * len(tensors)))
    return path.stat().st_size


def saved(output: Path, step: int, sealed: bool = True, record: Mapping[str, Any] | None = None) -> Path:
    """Return a checkpoint as a trainer leaves it."""
    folder = output / f"checkpoint-{step}"
    (folder / "nested").mkdir(parents=True)
    write_tensors(folder / "model.safetensors")
    (folder / "nested" / "optimizer.pt").write_bytes(b"y" * 20)
    if sealed:
        seal(folder, step, **(record or {"fingerprint": MINE}))
    return folder


def check(document: Any, schema: str) -> None:
    """Fail unless a file the runner has written is what its JSON schema says, e.g. `manifest-v1`."""
    text = resources.files("stoker.contract").joinpath(f"schemas/{schema}.json").read_text(encoding="utf-8")
    jsonschema.validate(document, json.loads(text), jsonschema.Draft202012Validator)


def resolve(
    facts: Facts,
    args: Sequence[str] = (),
    world: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the plan of a container with these facts and trainer arguments."""
    return resolve_plan(read_request(facts, get_framework(facts.get("STOKER_FRAMEWORK")), args, world), config)


def plan_of(
    *args: str, env: Mapping[str, str] | None = None, config: Mapping[str, Any] | None = None, single: bool = False
) -> Plan:
    """Return the plan of a pod with these trainer arguments."""
    facts = alone(env) if single else pod(env)
    return resolve(facts, args, config=config)


def value_of(plan: Plan, flag: str) -> tuple[str | tuple[str, ...], str]:
    """Return a flag's value in a plan and the layer it came from."""
    (found,) = [(setting.value, setting.source) for setting in plan.settings if setting.name == flag]
    return found
