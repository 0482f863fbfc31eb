"""Turns a config into a TrainJob for `kubectl apply`: the same that the Kubeflow SDK would submit. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from stoker.cluster.admission import API_VERSION, admission_of
from stoker.submit.base import LLMBackend
from stoker.submit.initializer import Initializer, Source
from stoker.submit.variables import with_own

# Short names of resources, as the SDK takes them (kubeflow 0.5.0: get_resources_per_node).
_STANDARD = ("cpu", "memory", "gpu", "storage", "ephemeral-storage")
_ALIASES = {"gpu": "nvidia.com/gpu", "storage": "ephemeral-storage"}
_MIG = "mig-"
# The jobs of every fine-tuning runtime. Other rules for TrainJobs need no runtime.
_JOBS = [
    {
        "name": name,
        "template": {
            "spec": {"template": {"spec": {"containers": [{"name": name, "volumeMounts": [{"name": "initializer"}]}]}}}
        },
    }
    for name in ("dataset-initializer", "model-initializer", "node")
]
_USUAL_RUNTIME = {"spec": {"mlPolicy": {"torch": {}}, "template": {"spec": {"replicatedJobs": _JOBS}}}}
# Text that Kubernetes reads as a number or a boolean, but PyYAML prints without quotes.
_AMBIGUOUS = re.compile(r"[-+.]?\d.*|[yn]|[-+]?\.(inf|nan)", re.IGNORECASE)


def trainjob(
    config: LLMBackend,
    name: str,
    *,
    runtime: str | None = None,
    initializer: Initializer | None = None,
    env: Mapping[str, str] | None = None,
    namespace: str | None = None,
) -> dict[str, Any]:
    """Return a TrainJob for a config.

    Args:
        config: the run.
        name: the TrainJob's name.
        runtime: the ClusterTrainingRuntime's name; None takes the framework's default runtime.
        initializer: what to fetch before the start.
        env: variables of the trainer container.
        namespace: the TrainJob's namespace; None leaves that to kubectl.

    Raises:
        ValueError: one line for each problem of the config, and each reason for the cluster to refuse the TrainJob.
    """
    config.validate()
    chosen = runtime or config.generic_runtime
    if chosen is None:
        raise ValueError(f"{config.framework} has no default runtime: name a runtime")
    fetched = {
        part: _stored(source)
        for part, source in (
            ("dataset", initializer.dataset if initializer else None),
            ("model", initializer.model if initializer else None),
        )
        if source is not None
    }
    command = config.command_on(chosen)
    variables = with_own(config.own_variables(), env)
    trainer = {
        "numNodes": config.num_nodes,
        "resourcesPerNode": resources(config.resources_per_node) if config.resources_per_node else None,
        "command": list(command) if command else None,
        "args": config.args_for(initializer),
        "env": [{"name": key, "value": value} for key, value in variables.items()] or None,
    }
    spec: dict[str, Any] = {"runtimeRef": {"name": chosen}}
    if fetched:
        spec["initializer"] = fetched
    spec["trainer"] = {field: value for field, value in trainer.items() if value is not None}
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    made = {"apiVersion": API_VERSION, "kind": "TrainJob", "metadata": metadata, "spec": spec}
    problems = [*admission_of(made, _USUAL_RUNTIME).problems, *config.refused_variables(variables)]
    if problems:
        raise ValueError("\n".join(problems))
    return made


def resources(amounts: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return requests and limits for amounts by short or full names, as the SDK does.

    Args:
        amounts: e.g. `{"gpu": 1, "memory": "16Gi"}`.

    Raises:
        ValueError: the amounts mix two kinds of devices.
    """
    named: dict[str, str] = {}
    for name, amount in amounts.items():
        lower = name.lower()
        key = lower if lower in _STANDARD or lower.startswith(_MIG) else name
        key = f"nvidia.com/{key}" if key.startswith(_MIG) else _ALIASES.get(key, key)
        named[key] = str(amount)
    slices = [name for name in named if name.startswith(f"nvidia.com/{_MIG}")]
    if len(slices) > 1 or (slices and "nvidia.com/gpu" in named):
        kinds = ", ".join(sorted({*slices, *({"nvidia.com/gpu"} & set(named))}))
        raise ValueError(f"resources_per_node has {kinds}: a pod gets devices of one kind, so name one of them")
    return {"requests": named, "limits": dict(named)}


def to_yaml(made: Mapping[str, Any]) -> str:
    """Return a TrainJob as YAML. Text that looks like a number is quoted, so that Kubernetes reads text."""
    text: str = yaml.dump(made, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    quoted = _AMBIGUOUS.fullmatch(value) or not value.isprintable()
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if quoted else None)


_Dumper.add_representer(str, _text)


def _stored(source: Source) -> dict[str, Any]:
    secret = {"secretRef": {"name": source.secret}} if source.secret else {}
    return {"storageUri": source.storage_uri, **secret}
