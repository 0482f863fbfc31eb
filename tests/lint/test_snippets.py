"""What there is to copy works: YAML and shell in documents parse, their TrainJobs and the examples' plan to a run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob
from runner.tests.samples import resolve

from builders import trainjob
from lint.files import ROOT
from lint.snippets import Snippet, examples, snippets
from stoker.cluster.pods import job_of
from stoker.plan.facts import read_facts

RUNTIMES = (
    ROOT / "tests" / "charts" / "golden" / "training-runtimes" / "cpu.yaml",
    ROOT / "examples" / "runtimes" / "trl-grpo-async-cpu.yaml",
    ROOT / "examples" / "runtimes" / "trl-grpo-async-external-cpu.yaml",
)


@cache
def runtimes() -> dict[str, Any]:
    """Return the catalogue's runtimes for CPUs by name, as the chart renders them."""
    rendered = (runtime for path in RUNTIMES for runtime in yaml.load_all(path.read_text(), yaml.CSafeLoader))
    return {runtime["metadata"]["name"]: with_secrets(runtime) for runtime in rendered if runtime}


def with_secrets(found: dict[str, Any]) -> dict[str, Any]:
    """Return an object of the chart with a value for each variable that a Secret of the cluster would give a node."""
    spec = found["spec"].get("template", {}).get("spec", {}) if "spec" in found else {}
    for job in spec.get("replicatedJobs", ()):
        fill_secrets(job["template"]["spec"]["template"]["spec"]["containers"][0].get("env", ()))
    return found


def fill_secrets(variables: Iterable[dict[str, Any]]) -> None:
    """Give a value to each variable that a Secret of the cluster would give one."""
    for entry in variables:
        if "secretKeyRef" in entry.get("valueFrom", {}):
            del entry["valueFrom"]
            entry["value"] = "https://of-a.secret"  # an address will do as a token too


def with_head(document: Any) -> Any:
    """Return what a page shows of a TrainJob's spec as a TrainJob; anything else as it is."""
    if isinstance(document, dict) and document.keys() == {"spec"}:
        return trainjob(with_trainer=False, spec=document["spec"])
    return document


@pytest.mark.parametrize("snippet", [*snippets("yaml"), *examples()], ids=lambda snippet: snippet.where)
def test_yaml(snippet: Snippet, tmp_path: Path) -> None:
    for document in map(with_head, yaml.safe_load_all(snippet.text)):
        if not isinstance(document, dict) or document.get("kind") != "TrainJob":
            continue
        known = TrainerV1alpha1TrainJob.from_dict(document)
        assert known is not None
        assert known.to_dict() == document, "Trainer's API does not know a field"
        fill_secrets(document["spec"].get("trainer", {}).get("env", ()))
        job = job_of(document, runtimes()[document["spec"]["runtimeRef"]["name"]])
        environment = job.environment(0, attempt=0, job_id="test", run_id="test", address="localhost", port=29500)
        assert job.argv[:2] == ("stoker", "run")
        plan = resolve(read_facts(environment, dev=tmp_path), job.argv[2:])
        assert plan.world.nnodes == job.nodes


@pytest.mark.parametrize("snippet", snippets("sh", "bash", "console"), ids=lambda snippet: snippet.where)
def test_shell(snippet: Snippet) -> None:
    text = snippet.text
    if snippet.language == "console":  # commands after a prompt, the rest is output
        text = "\n".join(line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ "))
        assert text, "a console block shows commands after '$ '"
    parsed = subprocess.run(
        ["bash", "-n"], input=text, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert parsed.returncode == 0, parsed.stdout
