"""A session of trl-tinker on a cluster: the public client and stoker.lab train and sample through a port-forward."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from runner.tests.integration.environments import TINY_INPUTS, environment, made_once
from runner.tests.tinker.public_client import CLIENT, client_python

from charts.helm import ROOT
from cluster import Cluster
from e2e.kube import Kube
from e2e.registry import Image
from e2e.rollouts import EXAMPLE, VALUES, Installs
from e2e.sessions import Rl, left, pods_of
from e2e.trainjobs import Reader

__all__ = ["client_python"]  # a fixture

pytestmark = pytest.mark.full  # a sampler starts

NAME, RUNTIME, CLAIM, MODEL = "loops", "trl-tinker", "tinker-inputs", "tiny"
# As in test_endpoint.py, where the same client meets vLLM without a cluster.
ARGS = ("--model_name_or_path=/inputs/model", f"--base_model={MODEL}", "--dtype=float32", "--max_rank=8")
# With this, the pod that deletes a folder cannot be made.
NO_PODS: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "no-pods"},
    "spec": {"hard": {"pods": "0"}},
}
SCRIPT = ROOT / "examples/lab/basic_lora_finetune.py"
ANSWERS = 'import os, urllib.request as web; web.urlopen(os.environ["TINKER_BASE_URL"] + "/api/v1/healthz", timeout=5)'


@pytest.fixture(scope="module")
def runtime(install_catalogue: Installs, image: Image, serving_images: Mapping[str, Image]) -> None:
    """The catalogue's runtime, with a sampler that is small enough, and run folders on a claim that runs share."""
    images = {name: one.values for name, one in {**serving_images, "trl": image}.items()}
    samplers = {**VALUES["runtimes"]["trl-grpo-async"]["samplers"], "count": 1}  # type: ignore[index]
    own = {"enabled": True, "samplers": samplers, "workspace": {"existingClaim": CLAIM}}
    install_catalogue("tinker", {"runtimes": {"trl-distributed": {"enabled": False}, RUNTIME: own}, "images": images})


@pytest.fixture
def trainjob(kube: Kube, reader: Reader, tmp_path: Path) -> Path:
    """A TrainJob of an endpoint, whose model is on a claim."""
    kube.create_claim(CLAIM)
    reader.copy(made_once("trl", environment("trl"), TINY_INPUTS), CLAIM)
    # The example mounts a claim in every pod at /inputs. Here this is the claim that the runtime mounts at /workspace.
    made = yaml.safe_load((EXAMPLE / "trainjob.yaml").read_text().replace("name: inputs", "name: initializer"))
    for patch in made["spec"]["runtimePatches"]:
        for job in patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]:
            del job["template"]["spec"]["template"]["spec"]["volumes"]
    made["spec"]["runtimeRef"]["name"] = RUNTIME
    made["spec"]["trainer"] = {"numNodes": 1, "args": [*ARGS, "--versions=16"]}
    file = tmp_path / "trainjob.yaml"
    file.write_text(yaml.safe_dump(made))
    return file


@pytest.fixture
def rl(kube: Kube, runtime: None) -> Iterator[Rl]:
    """Calls `stoker rl`; the session ends with the test."""
    call = partial(kube.stoker, "rl")
    call("down", NAME, "--purge", check=False)
    yield call
    call("down", NAME, "--purge", check=False)
    kube.delete("pvc", CLAIM, wait=False)


def test_the_public_client_and_a_notebook_train_and_sample_through_a_port_forward(
    rl: Rl, trainjob: Path, kube: Kube, cluster: Cluster, reader: Reader, client_python: Path, tmp_path: Path
) -> None:
    told = rl("up", NAME, str(trainjob), "--time-limit", "1h", "--wait", "900").stdout
    assert f"http://{NAME}-tinker.{kube.namespace}:8000" in told
    assert {role: len(pods_of(kube, NAME, role)) for role in ("node", "sampler")} == {"node": 1, "sampler": 1}

    done = forwarded(cluster, told, client_python, str(CLIENT), "loops", "$TINKER_BASE_URL", "$TINKER_API_KEY", MODEL)
    # The port-forward says what it does on the same output.
    found = json.loads(next(line for line in done.splitlines() if line.startswith("{")))
    supervised, reinforced = found["supervised"], found["reinforced"]
    assert supervised["losses"][-1] < 0.9 * supervised["losses"][0]
    assert supervised["saved"] == supervised["loaded"]
    # What the samplers say of their tokens is what the trainer computes for them, after every step.
    assert max(reinforced["gaps"]) < 0.05, reinforced
    assert (len(reinforced["tokens"]), reinforced["stop_reason"]) == (2, "length")

    # The script of a notebook, with the address instead of a model, whose tokenizer is in a folder of that name.
    trainer = environment("trl")
    (tmp_path / MODEL).symlink_to(made_once("trl", trainer, TINY_INPUTS) / "model")
    done = forwarded(cluster, told, trainer, str(SCRIPT), "$TINKER_BASE_URL", cwd=tmp_path)
    (first,) = re.finditer(r"18 steps; perplexity of new sums (\S+) → (\S+)", done)
    before, after = map(float, first.groups())
    assert after < before
    assert len(re.findall(r"^\d\+\d= ", done, re.MULTILINE)) == 15, done

    # Its folder of the shared claim goes, with checkpoints and adapters, and what others have there stays.
    assert {"adapters", "output"} <= {*listed(reader, f"{CLAIM}/{NAME}")}
    kube.create(NO_PODS)
    try:
        refused = rl("down", NAME, "--purge", check=False)
    finally:
        kube.delete("resourcequota", NO_PODS["metadata"]["name"])
    assert (refused.returncode, "has ended, but its folder" in refused.stderr) == (64, True), refused.stderr
    assert left(kube, NAME) == []
    assert {"adapters", "output"} <= {*listed(reader, f"{CLAIM}/{NAME}")}
    # The TrainJob is gone, and the claim tells where the folder is.
    told = rl("down", NAME, "--purge").stderr
    assert f"changing claim {CLAIM} through pod" in told
    assert left(kube, NAME) == []
    assert listed(reader, f"{CLAIM}/{NAME}") == []
    assert "model" in listed(reader, CLAIM)


def forwarded(cluster: Cluster, told: str, python: Path, *words: str, cwd: Path = ROOT) -> str:
    """Run a script beside the port-forward that `stoker rl up` prints, and return what both print.

    Args:
        cluster: with the session.
        told: what the command printed.
        python: runs the script.
        words: the script and its arguments, with variables of the shell.
        cwd: where it runs.
    """
    # Without what sets up the client, and the one line that shows that it works.
    printed = [line.strip() for line in told[told.index("use it") :].removeprefix("use it").splitlines()]
    commands = [line for line in printed if not line.startswith(("pip install", "python -c"))]
    assert commands[0].startswith("kubectl port-forward service/"), told
    script = "\n".join(
        [
            f"cd {shlex.quote(str(cwd))}",
            "export NO_PROXY=127.0.0.1 TINKER_TELEMETRY=0 HF_HUB_OFFLINE=1",
            "trap 'kill %1' EXIT",
            *commands,
            f"for _ in $(seq 60); do {python} -c {shlex.quote(ANSWERS)} && break; sleep 1; done",
            " ".join(f'"{word}"' for word in (str(python), *words)),
        ]
    )
    done = cluster.run(["bash", "-euc", script], check=False, capture_output=True)
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr[-5000:]}"
    return done.stdout


def listed(reader: Reader, folder: str) -> list[str]:
    """Return what is in a folder of the claim; nothing if it is not there."""
    return reader.run(["sh", "-c", f"ls -A /claims/{folder} 2>/dev/null || true"], [CLAIM]).split()
