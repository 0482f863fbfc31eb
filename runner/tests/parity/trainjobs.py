"""The TrainJobs of a source tree's documents and examples, and its catalogue: validated, and planned as its pods."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from runner.tests.parity.configurations import Configuration

Manifest = dict[str, Any]

_BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
_GENERIC_TUNE = ["full_finetune_distributed", "--config", "llama3_2/1B_full"]
# Ways to start a run that the shims, the hook and `stoker validate` read.
_COMMANDS = """
torchrun -m trl.scripts.dpo --max_steps 3
torchrun --nproc-per-node=2 --nnodes 2 --node_rank 0 -m trl.scripts.sft
torchrun --nnodes=3 -m trl.scripts.sft
torchrun --standalone -m trl.scripts.sft
torchrun --rdzv-backend c10d --max-restarts 2 -m trl.scripts.sft
torchrun --no-python -m trl.scripts.sft
torchrun train.py
torchrun -m trl.scripts.sft --help
torchrun /opt/venv/lib/python3.12/site-packages/trl/scripts/sft.py --packing
torchrun -m stoker.scripts.orpo
trl sft --max_steps 3
trl reward --nonsense 3
trl dpo --accelerate_config zero3
trl vllm-serve --model a/b
trl --help
accelerate launch --num_processes 2 --num_machines 2 --machine_rank 0 -m trl.scripts.kto
accelerate launch --num_processes 3 -m trl.scripts.sft
accelerate launch --multi_gpu --mixed_precision bf16 --main_process_port 1 -m trl.scripts.sft
accelerate launch --config_file zero3.yaml -m trl.scripts.sft
accelerate env
tune run full_finetune_distributed --config llama3_2/1B
tune run --nproc_per_node 2 --rdzv_endpoint localhost:29500 lora_finetune_distributed --config llama3_2/1B epochs=1
tune run --rdzv_endpoint run-node-0-0.run:1234 lora_finetune_distributed --config llama3_2/1B
tune run --log-dir x full_finetune_distributed --config llama3_2/1B
tune run my_recipe.py --config mine.yaml
tune download a/b
python -m torch.distributed.run --nnodes=2 -m trl.scripts.sft --max_steps 3
python -um trl.scripts.sft --max_steps 3
python -W ignore -m accelerate.commands.launch -m trl.scripts.sft
python3 train.py
python -c pass
stoker run trl.scripts.sft --max_steps 3
stoker run --help
stoker plan --output json --max_steps 3
stoker doctor
stoker run -- --max_steps 3
/usr/local/bin/stoker run --max_stps 3
bash -c "stoker run"
"""
# What a user may get wrong in a TrainJob's spec, or may well say.
_SPECS: tuple[Manifest, ...] = (
    {"numNodes": 0},
    {"numNodes": "2"},
    {"numNodes": 40},
    {"numProcPerNode": 2},
    {"numProcPerNode": "auto"},
    {"args": ["--max_steps", 3]},
    {"args": "--max_steps 3"},
    {"arg": ["--max_steps", "3"]},
    {"args": ["--config", "/workspace/sft.yaml", "--use_peft"]},
    {"args": ["--output_dir", "/elsewhere"]},
    {"args": ["trl.scripts.grpo", "--reward_funcs", "accuracy_reward"]},
    {"env": [{"name": "STOKER_RESUME", "value": "x"}]},
    {"env": [{"name": "PET_NNODES", "value": "3"}]},
    {"env": [{"name": "STOKER_ARG_LEARNING_RATE", "value": 1e-4}]},
    {"env": [{"name": "STOKER_ARG_LEARNING_RATE", "value": "1e-4"}, {"name": "A", "value": "1"}]},
    {"env": [{"name": "STOKER_ARG_HUB_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}]},
    {"env": [{"name": "WANDB_MODE", "value": "offline"}, {"name": "WANDB_MODE", "value": "online"}]},
    {"env": [{"name": "STOKER_ARG_PACKING", "value": ""}, {"name": "STOKER_FOO", "value": "1"}]},
    {"resourcesPerNode": {"requests": {"cpu": "many"}}},
    {"resourcesPerNode": {"requests": {"cpu": "3500m"}, "limits": {"nvidia.com/gpu": 2}}},
    {"resourcesPerNode": {"cpu": 2}},
    {"image": "mine:1"},
)


def of_tree(root: Path) -> Iterator[Configuration]:
    """Yield what is to be played of a source tree's TrainJobs and runtimes."""
    catalogues = _catalogues(root)
    for where, trainjob in _trainjobs(root):
        for profile in ("cpu", "default"):
            runtime = catalogues[profile].get(_runtime_of(trainjob))
            if runtime is not None:
                yield from _of_pair(f"{where} on {profile}", trainjob, runtime)
    for profile, runtimes in sorted(catalogues.items()):
        for name, runtime in sorted(runtimes.items()):
            args = {"trainer": {"args": _GENERIC_TUNE}} if name == "torchtune-distributed" else {"trainer": {}}
            yield from _of_pair(f"{name} of {profile}", _trainjob(name, args, runtime["kind"]), runtime)
            if profile in ("cpu", "default"):
                two = {"trainer": {**args["trainer"], "numNodes": 2}}
                yield _pod(f"{name} of {profile}, second of two nodes", _trainjob(name, two), runtime, 1)
    generic = catalogues["generic-cpu"]["trl-distributed"]
    for line in _COMMANDS.strip().splitlines():
        trainer = {"numNodes": 2, "command": line.split()}
        yield _validated(f"validate {line}", _trainjob("trl-distributed", {"trainer": trainer}), generic)
    for trainer in _SPECS:
        yield _validated(f"validate {trainer}", _trainjob("trl-distributed", {"trainer": trainer}), generic)
    yield _validated("validate without trainer", _trainjob("trl-distributed", {}), generic)


def _of_pair(where: str, trainjob: Manifest, runtime: Manifest) -> Iterator[Configuration]:
    yield _validated(f"validate {where}", trainjob, runtime)
    yield _pod(f"pod of {where}", trainjob, runtime, 0)


def _trainjobs(root: Path) -> Iterator[tuple[str, Manifest]]:
    documents = sorted([*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("*/*/README.md")])
    texts = [(f"{path.relative_to(root)}", text) for path in documents for text in _BLOCK.findall(path.read_text())]
    texts += [(str(path.relative_to(root)), path.read_text()) for path in sorted(root.glob("examples/**/*.yaml"))]
    for where, text in texts:
        for document in yaml.safe_load_all(text):
            if isinstance(document, dict) and document.get("kind") == "TrainJob":
                yield f"{where} {document['metadata']['name']}", document


def _catalogues(root: Path) -> dict[str, dict[str, Manifest]]:
    """Return the rendered runtimes: profile → name → manifest."""
    files = {path.stem: path for path in root.glob("tests/charts/golden/training-runtimes/*.yaml")}
    # Trees later than 869a3b6 have this one only as an example.
    files.setdefault("generic-cpu", root / "examples/runtimes/trl-distributed-cpu.yaml")
    found = {}
    for profile, path in files.items():
        documents = yaml.load_all(path.read_text(), yaml.CSafeLoader)
        runtimes = [d for d in documents if d and d["kind"] in ("ClusterTrainingRuntime", "TrainingRuntime")]
        found[profile] = {runtime["metadata"]["name"]: runtime for runtime in runtimes}
    return found


def _trainjob(runtime: str, spec: Manifest, kind: str = "ClusterTrainingRuntime") -> Manifest:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "run"},
        "spec": {"runtimeRef": {"name": runtime, "kind": kind}, **spec},
    }


def _runtime_of(trainjob: Manifest) -> str:
    return str(trainjob["spec"]["runtimeRef"]["name"])


def _validated(name: str, trainjob: Manifest, runtime: Manifest) -> Configuration:
    # JSON, as PyYAML writes texts such as 2e-4 without the quotes that YAML 1.2 needs.
    files = {f"{kind}.json": json.dumps(document) for kind, document in (("trainjob", trainjob), ("runtime", runtime))}
    # A file is written once, so each content has a name of its own.
    named = {f"manifests/{zlib.crc32(text.encode()):08x}-{name}": text for name, text in files.items()}
    first, second = named
    return Configuration(name, ["validate", first, "--runtime", second], files=named)


def _pod(name: str, trainjob: Manifest, runtime: Manifest, rank: int) -> Configuration:
    """Return the plan of one pod: its container's env and arguments as Trainer and Kubernetes would make them."""
    trainer = trainjob["spec"].get("trainer") or {}
    node = next(
        job["template"]
        for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]
        if job["template"].get("metadata", {}).get("labels", {}).get(_ANCESTOR) == "trainer"
    )
    template = node["spec"]["template"]
    (container,) = (c for c in template["spec"]["containers"] if c["name"] == "node")
    # Behind `stoker run`, with which every runtime starts.
    words = [*container["command"][2:], *(trainer.get("args") or container.get("args", []))]
    env = _environment([*container["env"], *trainer.get("env", [])], template["metadata"]["labels"], rank)
    env |= {"PET_NNODES": str(trainer.get("numNodes", 1)), "PET_NODE_RANK": str(rank)}
    count = int(env.get("STOKER_NPROC_PER_NODE") or 1)
    devices = {
        "nvidia": [f"nvidia{n}" for n in range(count)],
        "amd": ["kfd", *(f"dri/renderD{128 + n}" for n in range(count))],
        "intel": [f"accel/accel{n}" for n in range(count)],
        "tpu": [f"accel{n}" for n in range(count)],
    }
    machine = {"cpus": 8, "shm_mib": 16384, "devices": devices.get(env["STOKER_ACCELERATOR"], [])}
    return Configuration(name, ["plan", "--output", "json", *words], env, machine=machine)


def _environment(entries: Sequence[Manifest], labels: Mapping[str, str], rank: int) -> dict[str, str]:
    values: dict[str, str] = {}
    for entry in entries:
        source = str(entry.get("valueFrom", ""))
        label = next((value for name, value in labels.items() if f"'{name}'" in source or f'"{name}"' in source), None)
        if not source:
            text = re.sub(r"\$\((\w+)\)", lambda match: values.get(match[1], match[0]), entry.get("value", ""))
        elif "job-completion-index" in source:
            text = str(rank)
        elif "restart-attempt" in source:
            text = "0"
        elif label is None:
            text = "4" if "resourceFieldRef" in source else "run"
        else:
            text = label
        values[entry["name"]] = text
    return values
