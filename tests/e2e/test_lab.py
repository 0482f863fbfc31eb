"""The image `lab` on a real cluster: scripts and notebooks as any user, and a policy that is served elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from runner.tests.integration.environments import TINY_INPUTS
from runner.tests.integration.harness_cases import TASK

from builders import variables
from e2e.kube import Kube, condition
from e2e.pods import CONTAINER_SECURITY, POD_SECURITY, claim_mounts, claim_volumes
from e2e.registry import Image
from e2e.serving.fixtures import ADAPTERS, MODELS, Install
from e2e.serving.server import Server

pytestmark = pytest.mark.full  # trainer and server in one image: gigabytes to build and to load

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples/lab/unified_training.py"
# A user that no image knows.
USER = 1234567
OF_MODELS = f"/claims/{MODELS}"
OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
# What a policy says, as JSON in a line of its own. Its arguments: model or address, and more of Policy's arguments.
ASK = """
import json, sys
from stoker.lab import Policy

where, more = sys.argv[1], json.loads(sys.argv[2])
questions = [f"What is the symbol of {element}?" for element in ("iron", "gold", "tin")]
with Policy(where, **more) as policy:
    answers = policy.generate(questions, max_tokens=8, temperature=0.0)
print(json.dumps({"said": [answer.token_ids for answer in answers]}))
"""
# Trains an adapter, publishes it, writes its name, and says what it answers. Its arguments: model, folder of versions.
TRAIN = """
import json, sys
from stoker.lab import LoRATrainConfig, Policy

questions = [f"What is the symbol of {element}?" for element in ("iron", "gold", "tin")]
config = LoRATrainConfig(rank=8, learning_rate=1e-2, num_epochs=20, gradient_accumulation_steps=1)
with Policy(sys.argv[1], config) as policy:
    policy.train([{"prompt": question, "completion": " none"} for question in questions])
    name = policy.publish(sys.argv[2], "lab")
    answers = policy.generate(questions, max_tokens=8, temperature=0.0)
print(json.dumps({"said": [answer.token_ids for answer in answers]}))
json.dump({"name": name}, open("name.json", "w"))
"""
# A task of lm-evaluation-harness, and rows that are held out.
ELEMENTS = {"iron": "Fe", "gold": "Au", "tin": "Sn", "lead": "Pb"}
QUESTION = "What is the symbol of {}?"
SYMBOLS = [
    {"question": QUESTION.format(name), "choices": [right, "Xe"], "right": 0} for name, right in ELEMENTS.items()
]
HELD_OUT = [{"prompt": QUESTION.format(name), "completion": f" {right}"} for name, right in ELEMENTS.items()]
# What JupyterLab answers without its token: its version, and nothing else.
LOOK = """
import json, urllib.error, urllib.request
print(json.load(urllib.request.urlopen("http://127.0.0.1:8888/api"))["version"])
try:
    urllib.request.urlopen("http://127.0.0.1:8888/api/kernels")
except urllib.error.HTTPError as error:
    print(error.code)
"""


def pod(image: Image, claims: Sequence[str] = (), env: Sequence[Mapping[str, Any]] = (), **container: Any) -> Any:
    """Return the spec of a pod of the image: any user, a root file system that is read-only, and no network needed.

    Args:
        image: the image.
        claims: at /claims/<name>.
        env: more variables.
        container: more of its container.
    """
    writable = {"cache": "/cache", "tmp": "/tmp", "workspace": "/workspace", "shm": "/dev/shm"}
    own = {
        "name": "lab",
        "image": image.reference,
        "env": [*variables(OFFLINE), *env],
        "resources": {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "6Gi"}},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            *claim_mounts(claims),
            *({"name": name, "mountPath": path} for name, path in writable.items()),
            {"name": "scripts", "mountPath": "/scripts"},
        ],
    }
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {**POD_SECURITY, "runAsUser": USER},
        "containers": [{**own, **container}],
        "volumes": [
            *claim_volumes(claims),
            *({"name": name, "emptyDir": {"medium": "Memory"} if name == "shm" else {}} for name in writable),
            {"name": "scripts", "configMap": {"name": "lab-scripts"}},
        ],
    }


Runs = Callable[..., str]
"""Runs a command in a Job of the image, in a namespace, with more of `pod`; returns what it printed."""


@pytest.fixture
def run(lab_image: Image) -> Iterator[Runs]:
    """Runs Jobs, which are deleted when the test ends."""
    made: list[tuple[Kube, str, str]] = []

    def job(kube: Kube, name: str, command: str, **more: Any) -> str:
        made.extend([(kube, "job", name), (kube, "configmap", "lab-scripts")])
        kube.delete("job", name)
        kube.apply(scripts())
        spec = pod(lab_image, command=["sh", "-euc", command], workingDir="/workspace", **more)
        kube.create(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name},
                "spec": {"backoffLimit": 0, "template": {"spec": spec}},
            }
        )

        def ended() -> dict[str, Any] | None:
            found = kube.get("job", name) or {}
            return found if condition(found, "Complete") or condition(found, "Failed") else None

        found = kube.until(f"the Job {name} to end", ended, 1800, every=2)
        printed = kube.kubectl("logs", f"job/{name}").stdout
        assert condition(found, "Complete"), printed[-5000:]
        return printed

    yield job
    for kube, kind, name in made:
        kube.delete(kind, name)


def lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a file of them."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def scripts() -> dict[str, Any]:
    """Return what pods find at /scripts."""
    texts = {path.name: path.read_text() for path in (SCRIPT, TINY_INPUTS)}
    # JSON is YAML too.
    task = json.dumps({**TASK, "task": "symbols", "dataset_kwargs": {"data_files": {"test": "/scripts/symbols.jsonl"}}})
    own = {"ask.py": ASK, "train.py": TRAIN, "symbols.yaml": task, "symbols.jsonl": lines(SYMBOLS)}
    data = {**texts, **own, "held-out.jsonl": lines(HELD_OUT)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "lab-scripts"}, "data": data}


def test_a_script_trains_and_asks_in_a_job(run: Runs, kube: Kube) -> None:
    printed = run(
        kube, "lab-script", f"python /scripts/{TINY_INPUTS.name} inputs; python /scripts/{SCRIPT.name} inputs/model"
    )
    said = [line.partition(":")[0] for line in printed.splitlines() if line.startswith("after ")]
    assert said == ["after nothing", "after training", "after preferences", "after rewards"], printed[-5000:]
    assert "reward: 5 steps; " in printed
    assert "published as sums:1" in printed


def test_jupyterlab_starts_as_any_user(lab_image: Image, kube: Kube) -> None:
    kube.delete("pod", "lab-notebook")
    kube.apply(scripts())
    probe = {"httpGet": {"path": "/api", "port": 8888}, "periodSeconds": 1}
    spec = pod(lab_image, readinessProbe=probe)
    kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "lab-notebook"}, "spec": spec})
    try:
        kube.until("JupyterLab to answer", lambda: condition(kube.get("pod", "lab-notebook") or {}, "Ready"), 300)
        version, refused = kube.kubectl("exec", "lab-notebook", "--", "python", "-c", LOOK).stdout.split()
        assert version
        assert refused == "403"
        assert kube.kubectl("exec", "lab-notebook", "--", "id", "-u").stdout.strip() == str(USER)
    finally:
        kube.delete("pod", "lab-notebook")
        kube.delete("configmap", "lab-scripts")


@pytest.fixture(scope="module")
def release(install: Install, models: str, helm: Callable[..., str]) -> Iterator[Server]:
    """A release that serves a run's adapter as `first`, and what is published."""
    server = install(
        "by-url", "--set", "replicas=1", "--set", f"model.claim.name={models}", "--set", "model.name=base",
        "--set-json", "adapters=" + json.dumps([{"name": "first", "claim": models, "path": "output"}]),
        "--set", f"published.claim={ADAPTERS}", "--set", "lora.maxRank=8",
    )  # fmt: skip
    yield server
    helm("uninstall", "by-url", "--namespace", server.kube.namespace, "--wait")  # it would stay as long as the models


def said_by(run: Runs, server: Server, name: str, *commands: str) -> list[Any]:
    """Return what commands of a Job said in turn, which has the key of a release, the models and what is published."""
    key = {"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "model-key", "key": "api-key"}}}
    printed = run(server.kube, name, "\n".join(commands), claims=[MODELS, ADAPTERS], env=[key])
    return [json.loads(line)["said"] for line in printed.splitlines() if line.startswith('{"said"')]


def test_the_same_script_asks_a_release_by_its_url(run: Runs, release: Server) -> None:
    asked = [
        (release.url, {"name": "first"}),
        (release.url, {}),
        (f"{OF_MODELS}/model", {"adapter": f"{OF_MODELS}/output"}),
    ]
    commands = [f"python /scripts/ask.py {where} '{json.dumps(more)}'" for where, more in asked]
    served, base, here = said_by(run, release, "lab-by-url", *commands)
    # The adapter says the same wherever it is asked, and not what the base model says.
    assert served == here
    assert served != base
    assert all(served)


def test_what_it_trains_a_release_serves(run: Runs, release: Server) -> None:
    published = f"/claims/{ADAPTERS}/adapters"
    trained, served, base = said_by(
        run, release, "lab-published",
        f"python /scripts/train.py {OF_MODELS}/model {published}",
        f'python /scripts/ask.py {release.url} "$(cat name.json)"',
        f"python /scripts/ask.py {release.url} '{{}}'",
        f"rm -r {published}/lab",
    )  # fmt: skip
    assert served == trained
    assert served != base


def test_a_result_is_measured_at_a_release_as_it_is_here(run: Runs, release: Server) -> None:
    measured = "--tasks symbols --include-path tasks --data /scripts/held-out.jsonl"
    here, served = said_by(
        run, release, "lab-evaluate",
        f"mkdir tasks; cp /scripts/symbols.* tasks; cp -r {OF_MODELS}/output result",
        f"stoker evaluate result {measured} --base {OF_MODELS}/model",
        f"stoker evaluate result {measured} --base {OF_MODELS}/model --server {release.url} --model first",
        """python -c 'import json; [print(json.dumps({"said": one})) for one in """
        """json.load(open("result/evaluation.json"))["evaluations"]]'""",
    )  # fmt: skip
    assert served["of"] == "first"
    assert served["tasks"] == here["tasks"]
    assert served["held_out"]["tokens"] == here["held_out"]["tokens"] > 0
    assert served["held_out"]["loss"] == pytest.approx(here["held_out"]["loss"], rel=1e-3)
