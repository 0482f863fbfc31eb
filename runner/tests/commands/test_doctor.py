"""`stoker doctor` judges a pod and an image, and tells a laptop what works there and how to get the rest."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib import metadata

import pytest
from click.testing import CliRunner, Result
from runner.tests.samples import POD

from stoker.commands import doctor
from stoker.commands.main import main
from stoker.contract.exits import ExitCode
from stoker.contract.variables import KNOWN
from stoker.frameworks import TRL, TorchTune
from stoker.plan.facts import Facts
from stoker.rank import accelerator
from stoker.rank.accelerator import Found


def examine(*options: str, **env: str) -> Result:
    told: dict[str, str | None] = dict.fromkeys([*KNOWN, *POD, "KUBERNETES_SERVICE_HOST"])
    return CliRunner().invoke(main, ["doctor", *options], env={**told, **env})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The packages of this Python: those that a test adds here."""
    packages: set[str] = set()

    def version(name: str) -> str:
        if name not in packages:
            raise metadata.PackageNotFoundError(name)
        return "1.2"

    monkeypatch.setattr(metadata, "version", version)
    return packages


def test_a_program_is_told_the_same_as_a_list(installed: set[str]) -> None:
    ended = examine("--output", "json")
    assert ended.exit_code == 0
    found = {line["name"]: line for line in json.loads(ended.stdout)}
    assert found["cluster"]["mark"] == "missing"
    assert "pip install './runner[cluster]'" in found["cluster"]["fix"]
    assert found["python"]["fix"] == ""


def test_a_laptop_is_told_what_works_and_how_to_get_the_rest(
    installed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    ended = examine()
    assert ended.exit_code == 0
    assert "FAIL" not in ended.output
    assert re.search(r"^ok    commands +plan, validate, trainjob", ended.output, re.MULTILINE)
    for name, needs, fix in (
        ("trl", ", ".join(TRL.packages), "pip install './runner[local]'"),
        ("torchtune", ", ".join(TorchTune.packages), "images/torchtune/venv --with-runner"),
        ("fetch", ", ".join(doctor.FETCHING), "pip install './runner[fetch]'"),
        ("sdk", "kubeflow", "pip install './runner[sdk]'"),
        ("cluster", "kubernetes, rich", "pip install './runner[cluster]'"),
        ("board", "jinja2, starlette, uvicorn", "pip install './runner[board]'"),
        ("plot", "matplotlib", "pip install './runner[plot]'"),
        ("evaluate", "lm_eval", "pip install './runner[evaluate]'"),
        ("gguf", "sentencepiece", "pip install './runner[gguf]'"),
        ("lab", "trl, peft, vllm", "docs/guides/notebook.md"),
        ("kubectl", "it to read runtimes", "--runtime FILE"),
    ):
        assert re.search(
            rf"^missing  {name} +.* needs? {needs}.*\n +fix: .*{re.escape(fix)}", ended.output, re.MULTILINE
        )


def test_a_laptop_is_told_the_versions_of_what_is_there(installed: set[str]) -> None:
    installed |= {*TRL.packages, *doctor.FETCHING[1:]}
    output = examine().output
    assert re.search(r"^ok    trl +stoker local has torch 1\.2, .*datasets 1\.2$", output, re.MULTILINE)
    assert re.search(r"^missing  fetch +stoker fetch needs huggingface_hub$", output, re.MULTILINE)


def test_what_is_broken_fails_on_a_laptop_too() -> None:
    ended = examine(STOKER_FRAMEWORK="nope")
    assert (ended.exit_code, "FAIL  framework         nope is unknown" in ended.output) == (ExitCode.CONFIG, True)


@pytest.mark.parametrize("variable", ["KUBERNETES_SERVICE_HOST", "PET_NNODES", "STOKER_RUN_ID", "STOKER_IMAGE_VERSION"])
def test_a_pod_that_cannot_run_fails(variable: str, installed: set[str]) -> None:
    ended = examine(**{variable: "1"})
    assert ended.exit_code == ExitCode.CONFIG
    assert re.search(r"^FAIL  trl +", ended.output, re.MULTILINE)
    assert "missing  " not in ended.output
    assert re.search(r"^\w+ +world size +", ended.output, re.MULTILINE)


def test_an_image_is_judged_by_what_is_installed(installed: set[str]) -> None:
    ended = examine("--image")
    assert ended.exit_code == ExitCode.CONFIG
    assert re.search(r"^FAIL  torch +", ended.output, re.MULTILINE)
    assert "world size" not in ended.output


@pytest.mark.parametrize(
    ("found", "line", "fix"),
    [
        (
            Found("2.13.0+cu130", "13.0", "580.65.06", devices=2),
            "ok    devices           torch 2.13.0+cu130 (CUDA 13.0, driver 580.65.06) computes on 2",
            "",
        ),
        (
            Found("2.13.0+cu130", "13.0", "535.129.03", error="The NVIDIA driver on your system is too old"),
            (
                "FAIL  devices           torch 2.13.0+cu130 (CUDA 13.0, driver 535.129.03) cannot use the nvidia "
                "devices of this node (The NVIDIA driver on your system is too old)"
            ),
            "CUDA 13.0 needs driver 580 or newer",
        ),
        (
            Found("2.13.0+cu130", "13.0", "580.65.06", devices=1),
            (
                "FAIL  devices           torch 2.13.0+cu130 (CUDA 13.0, driver 580.65.06) can use 1 of the 2 nvidia "
                "devices that the processes of this node need"
            ),
            "request whole devices",
        ),
        (RuntimeError("CUDA error: busy"), "FAIL  devices           RuntimeError: CUDA error: busy", "see what else"),
    ],
    ids=["two good devices", "an old driver", "one device of two", "a broken device"],
)
def test_a_pods_devices_are_judged_by_torch(
    monkeypatch: pytest.MonkeyPatch, found: Found | Exception, line: str, fix: str
) -> None:
    def look(name: str, used: Sequence[int]) -> Found:
        assert (name, [*used]) == ("nvidia", [0, 1])
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(accelerator, "look", look)
    monkeypatch.setattr(doctor, "find_spec", lambda name: name)
    told = {"STOKER_ACCELERATOR": "nvidia", "PET_NPROC_PER_NODE": "1"}
    monkeypatch.setattr(doctor, "read_facts", lambda: Facts(env=told, devices=("nvidia0", "nvidia1")))
    ended = examine(STOKER_RUN_ID="1")
    assert f"{line}\n" in ended.output
    assert (f"fix: {fix}" if fix else "") in ended.output
    assert ended.exit_code == ExitCode.CONFIG  # this Python has no trainer


def test_without_a_runtime_devices_promise_a_gpu_and_the_fix_says_how_to_do_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accelerator, "look", lambda name, used: Found("2.13.0+cpu", "", ""))
    monkeypatch.setattr(doctor, "find_spec", lambda name: name)
    monkeypatch.setattr(doctor, "read_facts", lambda: Facts(devices=("nvidia0",)))
    ended = examine(STOKER_RUN_ID="1")
    assert "is built without CUDA, but this node has nvidia devices" in ended.output
    assert "or set STOKER_ACCELERATOR=cpu to train on the CPU" in ended.output
