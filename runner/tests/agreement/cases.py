"""TrainJobs of which `stoker validate` and their pods must say the same: made up, after others' examples, and ours."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from runner.tests.agreement.sdk_jobs import made_by_the_sdk
from runner.tests.agreement.shapes import SHAPES, runtime_of
from runner.tests.agreement.upstream import FILES, TRAINJOBS, lines, trainers_of
from runner.tests.parity.configurations import TRL_METHODS, TUNE_METHODS, Configuration, Generator
from runner.tests.parity.trainjobs import of_tree

from builders import RUNTIME_FILE, kept, trainjob, variables, with_initializers
from stoker.commands.describe import flags
from stoker.entry.hook import is_trainer

Manifest = dict[str, Any]

_SEED = 13
# What the pods of any TrainJob get from their cluster, or what no folder of this machine can stand for.
_NOT_SAID = re.compile(r"^(PET_|JOB_COMPLETION|HOSTNAME|STOKER_(ACCELERATOR|RUN_ID|WORKSPACE|TERMINATION_LOG)$)")
_METHOD = re.compile(rf"\b({'|'.join(TRL_METHODS)})\b")
# A row that each method can read.
_TEXT = {"text": "1+1=2"}
_PAIR = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}
_PROMPT = {"prompt": [{"role": "user", "content": "1+1="}], "solution": "2"}
_ROWS = {
    **dict.fromkeys(("dpo", "orpo", "reward", "lora_dpo", "full_dpo"), _PAIR),
    "kto": {"prompt": "1+1=", "completion": "2", "label": True},
    **dict.fromkeys(("grpo", "rloo", "distillation"), _PROMPT),
}
MODEL = {
    "model/config.json": json.dumps({"model_type": "qwen2", "max_position_embeddings": 4096}),
    "model/weights.pt": "whole",
    "model/tokenizer_config.json": json.dumps({"chat_template": "{{ messages }}"}),
}


# What TorchTune's configs read too, and where the SDK has it look for data.
_FOR_TUNE = dict.fromkeys(
    ("model/original/tokenizer.model", "model/vocab.json", "model/merges.txt", "dataset/data/train.parquet"), "x"
)


@dataclass(frozen=True, slots=True)
class Case:
    """A TrainJob, its runtime, and what its workspace holds when its nodes start.

    Attributes:
        name: what it is called in a report.
        trainjob: the TrainJob.
        runtime: its runtime.
        content: path in the workspace → text; paths in a text are those in the pods.
        is_given: whether `stoker validate` is given the workspace.
        fetches: whether the initializers are played too: they must refuse without asking a network.
    """

    name: str
    trainjob: Manifest
    runtime: Manifest
    content: dict[str, str] = field(default_factory=dict)
    is_given: bool = False
    fetches: bool = False


def workspace_for(method: str) -> dict[str, str]:
    """Return a workspace with a model and a data set that a method can read."""
    rows = (json.dumps(_ROWS.get(method, _TEXT)) + "\n") * 4
    return {**MODEL, "dataset/train.jsonl": rows, "dataset/test.jsonl": rows}


def generated(count: int) -> Iterator[Case]:
    """Yield TrainJobs that follow from a seed; about half of them are valid."""
    listed = {method: flags(method, "").splitlines() for method in (*TRL_METHODS, *TUNE_METHODS)}
    for number, configuration in enumerate(Generator(_SEED, listed).configurations(count)):
        yield _of(configuration, number)


def shaped() -> Iterator[Case]:
    """Yield TrainJobs as the examples and the SDK of Kubeflow Trainer and the documents of TRL have them."""
    for name, method, framework, gpus, trainer in SHAPES:
        runtime = runtime_of(framework, gpus)
        job = trainjob("run", runtime=runtime["metadata"]["name"], **trainer)
        for is_given in (False, True):
            content = workspace_for(method)
            yield Case(f"{name}{', with its workspace' if is_given else ''}", job, runtime, content, is_given)


def upstream() -> Iterator[Case]:
    """Yield the TrainJobs and command lines of others' examples, on our runtimes, and what the SDK makes."""
    for number, (source, method, gpus, line) in enumerate(lines()):
        for name, trainer in trainers_of(line):
            runtime = runtime_of("trl", gpus, is_kept=number % 5 != 4)
            content = {**workspace_for(method), **FILES} if number % 5 != 4 else {}
            is_given = number % 2 == 1 or "--config " in line
            yield Case(f"{source}: {line}{name}", trainjob("run", **trainer), runtime, content, is_given)
    for source, framework, gpus, spec in TRAINJOBS:
        runtime = runtime_of(framework, gpus)
        job = trainjob("run", runtime=runtime["metadata"]["name"], with_trainer=False, spec=spec)
        yield Case(source, job, runtime, workspace_for("sft"))
    for source, wanted, gpus, spec in made_by_the_sdk():
        runtime = runtime_of("torchtune" if wanted else "trl", gpus)
        runtime["metadata"]["name"] = wanted or runtime["metadata"]["name"]
        job = trainjob("run", runtime=runtime["metadata"]["name"], with_trainer=False, spec=spec)
        yield Case(f"SDK: {source}", job, runtime, {**workspace_for("sft"), **_FOR_TUNE})


def of_repository(root: Path) -> Iterator[Case]:
    """Yield the TrainJobs of the documents and examples on the runtimes that the catalogue renders, and more there."""
    for configuration in of_tree(root):
        if configuration.arguments[0] == "validate":
            job, runtime = (json.loads(text) for text in configuration.files.values())
            command = (job["spec"].get("trainer") or {}).get("command") or []
            if is_trainer(command):  # the guard in the trainer's own process is the first to judge it
                continue
            said = f"{json.dumps(job['spec'].get('trainer'))} {configuration.name}"
            method = found[1] if (found := _METHOD.search(said)) else "sft"
            is_kept = "volumeClaimPolicies" not in runtime["spec"]["template"]["spec"]
            is_filled = is_kept or _is_fetched(job, runtime)
            yield Case(configuration.name, job, runtime, workspace_for(method) if is_filled else {})
            if not is_filled:
                yield Case(f"{configuration.name}, kept", job, kept(runtime), workspace_for(method))


def fetching() -> Iterator[Case]:
    """Yield TrainJobs with initializers, some of which refuse what they are told."""
    runtime = with_initializers(["stoker", "fetch", "model"])
    told: dict[str, Manifest] = {
        "ftp": {"storageUri": "ftp://host/model"},
        "no name": {"storageUri": "hf://"},
        "a bucket alone": {"storageUri": "s3://"},
        "a claim alone": {"storageUri": "pvc://"},
        "a variable that nobody reads": {
            "storageUri": "hf://a/b",
            "env": variables({"STOKER_FETCH_REPLAC": "true"}),
        },
        "a switch that is neither": {"storageUri": "hf://a/b", "env": variables({"STOKER_FETCH_REPLACE": "perhaps"})},
    }
    for name, asked in told.items():
        for trainer in ({}, {"args": ["--max_stps", "3"]}, {"env": variables({"STOKER_RESUME": "perhaps"})}):
            job = trainjob("run", spec={"initializer": {"model": asked}}, **trainer)
            yield Case(f"fetching {name} {trainer}", job, runtime, fetches=True)
    yield Case("nothing to fetch", trainjob("run"), runtime, fetches=True)


def _of(configuration: Configuration, number: int) -> Case:
    """Return a TrainJob that says what a command line and its environment say."""
    said = configuration.env
    framework = "torchtune" if said.get("STOKER_FRAMEWORK") == "torchtune" else "trl"
    devices = [node for node in configuration.machine.get("devices", ()) if node.startswith("nvidia")]
    runtime = runtime_of(framework, len(devices), is_kept=number % 3 != 2)
    env = {name: value for name, value in said.items() if not _NOT_SAID.match(name)}
    trainer: Manifest = {
        "args": [re.sub(r"^configs/", "/workspace/configs/", word) for word in configuration.arguments[3:]],
        "env": variables(env),
    }
    if (count := said.get("PET_NNODES", "")) in ("2", "3"):
        trainer["numNodes"] = int(count)
    if (processes := said.get("PET_NPROC_PER_NODE", "")).isdecimal() and processes != "0":
        trainer["numProcPerNode"] = int(processes)
    if number % 2:
        trainer["image"] = "registry.example.com/mine:1"
    method = next((one for one in configuration.name.split() if one in (*TRL_METHODS, *TUNE_METHODS)), "sft")
    content = {**workspace_for(method), **configuration.files} if number % 3 != 2 else {}
    # What is in a file, only a reader of the workspace can know.
    is_given = number % 3 == 0 or (number % 3 == 1 and bool(configuration.files))
    job = trainjob("run", runtime=runtime["metadata"]["name"], **trainer)
    return Case(f"generated {configuration.name}", job, runtime, content, is_given)


def _is_fetched(job: Manifest, runtime: Manifest) -> bool:
    """Return whether the initializers bring both a model and a data set."""
    asked = job["spec"].get("initializer") or {}
    has: Callable[[str], bool] = lambda kind: (  # noqa: E731
        bool((asked.get(kind) or {}).get("storageUri")) or _names_uri(runtime, f"{kind}-initializer")
    )
    return has("model") and has("dataset")


def _names_uri(runtime: Manifest, name: str) -> bool:
    return any(
        entry["name"] == "STORAGE_URI" and entry.get("value")
        for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]
        if job["name"] == name
        for container in job["template"]["spec"]["template"]["spec"]["containers"]
        for entry in container.get("env", ())
    )


def sampled() -> Iterator[Case]:
    """Yield a TrainJob whose samplers read its workspace: a new one, and one that exists."""
    runtime = yaml.safe_load(RUNTIME_FILE.with_name("trl-grpo-async-cpu.yaml").read_text())
    args = ["--reward_funcs", "get_soft_overlong_punishment"]
    job = trainjob("run", runtime=runtime["metadata"]["name"], args=args)
    yield Case("samplers, and nothing in the workspace", job, runtime)
    yield Case("samplers", job, kept(runtime), workspace_for("grpo"))


def worlds() -> Iterator[Case]:
    """Yield TrainJobs with numbers of nodes, processes and devices that may not go together."""
    for gpus in (0, 1, 2, 4):
        for trainer in (
            {"numNodes": 2},
            {"numProcPerNode": 1},
            {"numProcPerNode": 2},
            {"numProcPerNode": 3},
            {"resourcesPerNode": {"limits": {"memory": "32Gi"}}},
            {"resourcesPerNode": {"requests": {"cpu": "1"}}},
            {"resourcesPerNode": {"requests": {"cpu": "2"}, "limits": {"cpu": "8"}}},
            {"env": variables({"STOKER_NPROC_PER_NODE": "2"})},
            {"env": variables({"STOKER_NPROC_PER_NODE": "auto"})},
            {"env": variables({"CUDA_VISIBLE_DEVICES": "0"})},
            {"env": variables({"CUDA_VISIBLE_DEVICES": ""})},
            {"env": variables({"NVIDIA_VISIBLE_DEVICES": "none"})},
        ):
            runtime = deepcopy(runtime_of("trl", gpus))
            yield Case(f"{gpus} GPUs, {trainer}", trainjob("run", **trainer), runtime, workspace_for("sft"))
