"""What others start: the TrainJobs of Kubeflow Trainer's examples (kubeflow/trainer 8c0f5059b) and TRL's command lines.

Each names the file it comes from. Programs inside a command are shortened: nobody here reads them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from builders import container_patch, job_of_pod, patches, variables

Manifest = dict[str, Any]

_PYTHON = ["python3", "-c", "print('Training complete')"]
_TORCHRUN = ["torchrun", "--no-python", *_PYTHON]
_SMALL = {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"cpu": "4", "memory": "8Gi"}}
_TOLERATION = {"key": "training-workload", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
_LORA_OF_1B = ["model.lora_attn_modules=[q_proj,k_proj,v_proj]", "model.apply_lora_to_mlp=True", "model.lora_rank=64"]

# File of kubeflow/trainer, framework, GPUs of a pod, and the TrainJob's spec without runtimeRef.
TRAINJOBS: tuple[tuple[str, str, int, Manifest], ...] = (
    ("examples/yaml/01-multi-node.yaml", "trl", 0, {"trainer": {"numNodes": 3, "command": _TORCHRUN}}),
    (
        "examples/yaml/02-runtime-patches.yaml",
        "trl",
        0,
        {
            "trainer": {
                "numNodes": 2,
                "command": _TORCHRUN,
                "env": variables({"CUSTOM_VAR": "custom-value", "PYTHONUNBUFFERED": "1"}),
                "resourcesPerNode": _SMALL,
            },
            **patches(
                job_of_pod(
                    "node",
                    serviceAccountName="training-sa",
                    nodeSelector={"node-type": "training"},
                    tolerations=[_TOLERATION],
                )
            ),
        },
    ),
    (
        "examples/yaml/03-kueue-integration.yaml",
        "trl",
        0,
        {
            "suspend": True,
            "trainer": {
                "numNodes": 3,
                "image": "python:3.11-slim",
                "command": _PYTHON,
                "resourcesPerNode": _SMALL,
            },
        },
    ),
    (
        "examples/yaml/04-volcano-integration.yaml",
        "trl",
        0,
        {
            "trainer": {
                "numNodes": 4,
                "command": _PYTHON,
                "resourcesPerNode": {
                    "requests": {"cpu": "1", "memory": "2Gi"},
                    "limits": {"cpu": "2", "memory": "4Gi"},
                },
            },
        },
    ),
    (
        "examples/flux/flux-interactive.yaml",
        "trl",
        0,
        {"trainer": {"numNodes": 4, "image": "ghcr.io/x/lammps:latest", "command": ["sleep", "infinity"]}},
    ),
    (
        "examples/flux/lammps-train-job.yaml",
        "trl",
        0,
        {
            "trainer": {
                "numNodes": 2,
                "numProcPerNode": 4,
                "image": "ghcr.io/x/lammps:latest",
                "command": ["lmp", "-v", "x", "4", "-in", "in.reaxc.hns", "-nocite"],
                "env": variables({"FLUX_VIEW_IMAGE": "ghcr.io/x/flux-view-ubuntu:tag-jammy"}),
            }
        },
    ),
    (
        "examples/flux/lammps-train-gpus.yaml",
        "trl",
        1,
        {
            "trainer": {
                "numNodes": 2,
                "numProcPerNode": 1,
                "image": "ghcr.io/x/lammps:gpu",
                "command": ["lmp_gpu", "-k", "on", "g", "8", "-sf", "kk", "-in", "in.reaxff.hns"],
                "resourcesPerNode": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}},
                "env": variables({"OMPI_MCA_btl": "tcp,self"}),
            }
        },
    ),
    (
        "docs/operator-guides/job-scheduling/kai.md",
        "trl",
        1,
        {"trainer": {"numNodes": 4, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}}}},
    ),
    (
        "docs/operator-guides/migration.md",
        "trl",
        0,
        {
            "trainer": {
                "numNodes": 2,
                "image": "docker.io/x/pytorch-mnist:v1",
                "command": ["python3", "/opt/pytorch-mnist/mnist.py", "--epochs=1"],
            }
        },
    ),
    (
        "docs/operator-guides/runtime-patches.md",
        "trl",
        1,
        {
            "trainer": {"image": "docker.io/custom-training"},
            **patches(job_of_pod("node", nodeSelector={"accelerator": "nvidia-tesla-v100"})),
        },
    ),
    ("docs/operator-guides/runtime.md", "trl", 0, {}),
    (
        "docs/user-guides/megatron.md",
        "trl",
        2,
        patches(
            job_of_pod(
                "node",
                volumes=[{"name": "dshm", "emptyDir": {"medium": "Memory"}}],
                containers=[{"name": "node", "volumeMounts": [{"name": "dshm", "mountPath": "/dev/shm"}]}],
            )
        ),
    ),
    (
        "docs/user-guides/trainjob-lifecycle.md: a deadline",
        "trl",
        0,
        {
            "activeDeadlineSeconds": 3600,
            "trainer": {"image": "docker.io/my-training-image:latest", "command": ["torchrun", "train.py"]},
        },
    ),
    ("docs/user-guides/trainjob-lifecycle.md: suspended", "trl", 0, {"suspend": True}),
    (
        "proposals/2170-kubeflow-trainer-v2: a command of one word",
        "trl",
        2,
        {
            "trainer": {
                "image": "docker.io/custom-training",
                "command": ["torchrun train.py"],
                "numNodes": 5,
                "resourcesPerNode": {"requests": {"nvidia.com/gpu": 2}},
            }
        },
    ),
    (
        "proposals/2170-kubeflow-trainer-v2: arguments of no program",
        "trl",
        1,
        {"trainer": {"resourcesPerNode": {"requests": {"nvidia.com/gpu": 1}}, "args": ["num-epochs=5"]}},
    ),
    (
        "proposals/2170-kubeflow-trainer-v2: a claim of the user's",
        "trl",
        1,
        {
            "trainer": {"image": "docker.io/custom-training"},
            **patches(
                job_of_pod(
                    "node",
                    volumes=[{"name": "user-123", "persistentVolumeClaim": {"claimName": "user-123"}}],
                    containers=[{"name": "trainer", "volumeMounts": [{"name": "user-123", "mountPath": "/workspace"}]}],
                )
            ),
        },
    ),
    (
        "proposals/2170-kubeflow-trainer-v2: a claim that the container of the runtime mounts",
        "trl",
        1,
        {
            "trainer": {"image": "docker.io/custom-training"},
            **container_patch(name="node", volumeMounts=[{"name": "initializer", "mountPath": "/workspace"}]),
        },
    ),
    (
        "proposals/2401-llm-trainer-v2: a command of one word",
        "torchtune",
        2,
        {
            "trainer": {
                "command": ["tune run"],
                "args": [
                    *("--nnodes=1", "--nproc_per_node=2", "lora_finetune_distributed", "--config"),
                    *("llama3_2/1B_full", *_LORA_OF_1B),
                ],
                "resourcesPerNode": {"requests": {"nvidia.com/gpu": 2}},
                "numProcPerNode": 2,
            }
        },
    ),
    (
        "proposals/2401-llm-trainer-v2: torchrun's options before the recipe",
        "torchtune",
        2,
        {
            "trainer": {
                "command": [
                    *("tune", "run", "--nnodes=1", "--nproc-per-node=2", "lora_finetune_distributed", "--config"),
                    *("llama3_2/1B_lora", *_LORA_OF_1B),
                ]
            }
        },
    ),
    (
        "proposals/2598-XGboost-runtime-trainer-v2",
        "trl",
        4,
        {
            "trainer": {
                "image": "ghcr.io/x/xgboost-gpu:latest",
                "command": ["python", "train.py"],
                "numNodes": 2,
                "resourcesPerNode": {"limits": {"nvidia.com/gpu": 4}},
            }
        },
    ),
    (
        "proposals/2899-resource-timeouts",
        "trl",
        1,
        {"activeDeadlineSeconds": 28800, "trainer": {"image": "my-training:latest", "numNodes": 2}},
    ),
)

# What the lines read with `--config` (docs/source/clis.md, examples/cli_configs/example_config.yaml).
FILES = {
    **{
        f"{method}_config.yaml": f"model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: {dataset}\n{more}"
        for method, dataset, more in (
            ("sft", "stanfordnlp/imdb", ""),
            ("dpo", "anthropic/hh-rlhf", "num_processes: 4\n"),
            ("reward", "trl-lib/ultrafeedback_binarized", ""),
            ("grpo", "HuggingFaceH4/Polaris-Dataset-53K", "reward_funcs:\n  - accuracy_reward\n"),
            ("rloo", "HuggingFaceH4/Polaris-Dataset-53K", "reward_funcs:\n  - think_format_reward\n"),
            ("kto", "trl-lib/kto-mix-14k", "accelerate_config: zero2\n"),
        )
    },
    "config.yaml": (
        "model_name_or_path:\n  Qwen/Qwen2.5-0.5B\ndataset_name:\n  stanfordnlp/imdb\nreport_to:\n  none\n"
        "learning_rate:\n  0.0001\nlr_scheduler_type:\n  cosine\n"
    ),
}
# Flags that a TrainJob leaves to its runtime and its initializers.
_PLACES = ("--model_name_or_path", "--dataset_name", "--output_dir")


def lines() -> Iterator[tuple[str, str, int, str]]:
    """Yield the file, the method, the GPUs of a pod and the command line of each of TRL's starts."""
    source = ""
    for text in Path(__file__).with_name("trl_lines.txt").read_text().splitlines():
        if text.startswith("#"):
            source = text.removeprefix("# ")
        elif text:
            method, gpus, line = text.split(maxsplit=2)
            yield source, method, int(gpus), line


def trainers_of(line: str) -> Iterator[tuple[str, Manifest]]:
    """Yield spec.trainer for a line: as it is written, and without the places that a runtime knows better."""
    words = shlex.split(line)
    told = dict(word.split("=", 1) for word in takewhile(_is_variable, words))
    words = words[len(told) :]
    placed = [*_without_places(words)]
    for name, kept in (("", words), (", in the workspace", placed))[: 1 if placed == words else 2]:
        flags = next((at for at, word in enumerate(kept) if word.startswith("--")), len(kept))
        trainer: Manifest = {"command": kept[:flags], "args": kept[flags:]}
        yield name, {**trainer, "env": variables(told)} if told else trainer


def _is_variable(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isupper()


def _without_places(words: list[str]) -> Iterator[str]:
    skip = False
    for word in words:
        name, equals, _ = word.partition("=")
        if name in _PLACES:
            skip = not equals
        elif skip:
            skip = False
        else:
            yield word
