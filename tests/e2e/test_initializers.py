"""Initializers on a real cluster: a model from an S3 server, data from a claim, none at all; and results sent back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from runner.tests.integration.harness_cases import ROWS, TASK

from builders import job_of_pod
from charts.helm import ROOT
from cluster import Cluster, oci
from e2e.kube import Kube, condition
from e2e.pods import CONTAINER_SECURITY, POD_SECURITY
from e2e.registry import Image
from e2e.trainjobs import INPUTS_CLAIM, LORA_SFT, Reader, Restarts, Run, trainjob
from fetch import s3
from stoker.cluster.images import image_of
from stoker.commands.main import main

SubmitTogether = Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Run]]

RELEASE = "catalogue-initializers"
RUNTIME = "trl-fetched"
STORE, PORT, BUCKET = "store", 7070, "shelf"
MODEL = {
    "storageUri": f"s3://{BUCKET}/models/tiny",
    "env": [{"name": "ENDPOINT", "value": f"http://{STORE}:{PORT}"}],
    "secretRef": {"name": STORE},
}
INPUTS = ("--model_name_or_path=/inputs/model", "--dataset_name=/inputs/dataset")
# Writes a whole model that llama.cpp knows.
GGUF_MODEL = ROOT / "runner/tests/integration/gguf_cases.py"
# Crashes in the first attempt, after as many seconds as it is told.
CRASH_ONCE = """
import os, sys, time
attempt = os.environ["STOKER_RESTART_ATTEMPT"]
print("this is attempt", attempt, flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(70 if attempt == "0" else 0)
"""
# Prints an object of the store; its arguments: address, access key, secret key, and the object.
CAT = """
import sys, s3fs
address, key, secret, path = sys.argv[1:]
print(s3fs.S3FileSystem(key=key, secret=secret, endpoint_url=address).cat_file(path).decode())
"""


@pytest.fixture(scope="module")
def store(
    cluster: Cluster, kube: Kube, fetch_image: Image, inputs: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """An S3 server in the cluster with the example's base model in a bucket, and a secret with its keys."""
    layout = tmp_path_factory.mktemp("store") / "layout"
    oci.write_layout(layout, {"/versitygw": s3.program()}, ["/versitygw"])
    image = cluster.push(layout, "test/versitygw:tests")
    keys = {"ACCESS_KEY_ID": s3.ACCESS_KEY, "SECRET_ACCESS_KEY": s3.SECRET_KEY}
    objects = [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": STORE}, "stringData": keys},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": STORE},
            "spec": {"selector": {"app": STORE}, "ports": [{"port": PORT}]},
        },
        server_pod(image),
    ]
    for thing in objects:
        kube.delete(str(thing["kind"]), STORE)
    kube.create(*objects)
    kube.until("the S3 server to answer", lambda: condition(kube.get("pod", STORE) or {}, "Ready"), 180)
    arguments = [
        f"http://{STORE}:{PORT}",
        s3.ACCESS_KEY,
        s3.SECRET_KEY,
        f"{BUCKET}/models/tiny",
        f"/claims/{inputs}/model",
    ]
    Reader(kube, fetch_image.reference, "store-reader").run(["python", "-c", s3.PUT, *arguments], [inputs])
    yield
    for thing in objects:
        kube.delete(str(thing["kind"]), STORE, wait=False)


def server_pod(image: str) -> dict[str, Any]:
    """Return the S3 server's pod, as restricted as any."""
    keys = ["--access", s3.ACCESS_KEY, "--secret", s3.SECRET_KEY]
    container = {
        "name": "server",
        "image": image,
        "args": [*keys, "--port", f":{PORT}", "--quiet", "posix", "/data"],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": STORE, "labels": {"app": STORE}},
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": {**POD_SECURITY, "fsGroup": 0},
            "containers": [container],
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
    }


@pytest.fixture(scope="module")
def runtime(
    helm: Callable[..., str],
    chart: list[str],
    catalogue_values: list[str],
    fetch_image: Image,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """A runtime with initializers, in a release of its own."""
    small = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    values = {
        "images": {"fetch": fetch_image.values},
        "initializers": {"enabled": True, "resources": small},
        "runtimes": {"trl-distributed": {"enabled": False}, RUNTIME: {"base": "trl-distributed"}},
    }
    path = tmp_path_factory.mktemp("initializers") / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    words = [*chart, *catalogue_values, "--values", str(path), "--namespace", "stoker-system", "--create-namespace"]
    helm("upgrade", "--install", RELEASE, *words, "--wait")
    yield RUNTIME
    helm("uninstall", RELEASE, "--namespace", "stoker-system", "--ignore-not-found")


@pytest.fixture(scope="module")
def fetched(store: None, runtime: str, submit_together: SubmitTogether) -> Run:
    """A job whose model and data are fetched for it."""
    name = "fetched"
    job = with_initializers(
        trainjob(name, [word for word in LORA_SFT if word not in INPUTS], runtime=runtime),
        model=MODEL,
        dataset={"storageUri": f"pvc://{INPUTS_CLAIM}/dataset"},
    )
    mount_claim(job, "dataset-initializer")
    return submit_together([job])[name]


@pytest.fixture(scope="module")
def runs(store: None, runtime: str, submit_together: SubmitTogether) -> Mapping[str, Run]:
    """Jobs that do not need what is fetched, under way at once."""
    crash = trainjob("fetched-once", [], nodes=1, runtime=runtime, command=["python", "-c", CRASH_ONCE, "0"])
    plan = trainjob("nothing-to-fetch", [], nodes=1, runtime=runtime, command=["stoker", "plan"])
    nowhere = {**MODEL, "storageUri": f"s3://{BUCKET}/models/none"}
    return submit_together(
        [
            with_initializers(crash, model=MODEL),
            plan,
            with_initializers(trainjob("not-found", nodes=1, runtime=runtime), model=nowhere),
        ]
    )


def with_initializers(job: dict[str, Any], **initializers: Mapping[str, Any]) -> dict[str, Any]:
    """Return a TrainJob with initializers."""
    return {**job, "spec": {**job["spec"], "initializer": initializers}}


def mount_claim(job: dict[str, Any], name: str) -> None:
    """Mount the claim with the inputs into an initializer, where `pvc://` looks for it."""
    claim = {"name": "inputs", "persistentVolumeClaim": {"claimName": INPUTS_CLAIM, "readOnly": True}}
    mount = {"name": "inputs", "mountPath": f"/mnt/pvc/{INPUTS_CLAIM}", "readOnly": True}
    pod = {"volumes": [claim], "containers": [{"name": name, "volumeMounts": [mount]}]}
    (patch,) = job["spec"]["runtimePatches"]
    jobs = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    jobs.append(job_of_pod(name, **pod))


def initializer(run: Run, kind: str) -> dict[str, Any]:
    """Return the newest pod of one of a job's initializers."""
    selector = f"jobset.sigs.k8s.io/jobset-name={run.name},jobset.sigs.k8s.io/replicatedjob-name={kind}-initializer"
    return max(run.kube.items("pods", selector), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def said(run: Run, kind: str) -> str:
    """Return the log of an initializer."""
    return run.kube.logs(initializer(run, kind)["metadata"]["name"])


def test_a_job_trains_on_the_model_and_the_data_that_were_fetched_for_it(fetched: Run, reader: Reader) -> None:
    fetched.wait_complete()
    assert f"/workspace/model is there: {MODEL['storageUri']}" in said(fetched, "model")
    assert f"/workspace/dataset is there: pvc://{INPUTS_CLAIM}/dataset" in said(fetched, "dataset")
    manifest = fetched.manifest(reader)
    assert (manifest["status"], manifest["world_size"], manifest["steps"]) == ("finished", 2, 6)
    assert manifest["base_model"]["name_or_path"] == "/workspace/model"
    record = json.loads(fetched.read("model/.stoker-fetch.json", reader))
    assert "model.safetensors" in [file["path"] for file in record["files"]]
    assert not [file for file in record["files"] if not file["digest"].startswith("md5:")]


@pytest.mark.full
def test_a_restart_fetches_nothing_anew(runs: Mapping[str, Run]) -> None:
    run = runs["fetched-once"]
    run.wait_complete()
    assert run.restarts() == Restarts(1, 1)
    assert f"/workspace/model is there: {MODEL['storageUri']}, fetched for this job" in said(run, "model")


@pytest.mark.full
def test_one_log_has_the_lines_of_initializers_and_nodes_across_a_restart(
    store: None, runtime: str, kube: Kube, submit: Callable[[Mapping[str, Any]], Run]
) -> None:
    # A restart takes the pod away with its log, and logs are looked for every two seconds.
    job = trainjob("followed", [], nodes=1, runtime=runtime, command=["python", "-c", CRASH_ONCE, "10"])
    run = submit(with_initializers(job, model=MODEL))
    followed = kube.stoker("logs", run.name, "--follow")
    lines = [line.split(maxsplit=2) for line in followed.stdout.splitlines()]
    assert {attempt for label, _, attempt in lines if label == "node-0"} == {"this is attempt 0", "this is attempt 1"}
    said = f"/workspace/model is there: {MODEL['storageUri']}"
    assert any(label == "model-initializer" and said in text for label, _, text in lines), followed.stdout
    assert f"{run.name} is complete" in followed.stderr


@pytest.mark.full
def test_without_a_uri_nothing_is_fetched_and_the_job_goes_on(runs: Mapping[str, Run]) -> None:
    run = runs["nothing-to-fetch"]
    run.wait_complete()
    for kind in ("model", "dataset"):
        assert f"STORAGE_URI is empty: no {kind} to fetch" in said(run, kind)


@pytest.mark.full
def test_a_model_that_is_not_there_fails_the_job_before_it_trains(runs: Mapping[str, Run], kube: Kube) -> None:
    run = runs["not-found"]
    run.wait_failed()
    assert run.restarts() == Restarts(0, 0)
    (status,) = initializer(run, "model")["status"]["containerStatuses"]
    ended = status["state"]["terminated"]
    assert ended["exitCode"] == 66
    assert f"s3://{BUCKET}/models/none was not found: correct the bucket or the path in storageUri" in ended["message"]
    selector = f"jobset.sigs.k8s.io/jobset-name={run.name},jobset.sigs.k8s.io/replicatedjob-name=node"
    assert kube.items("pods", selector) == []


@pytest.fixture
def writer(kube: Kube) -> Iterator[str]:
    """A secret that lets a Job write to the S3 server."""
    name = "s3-writer"
    keys = {
        "AWS_ACCESS_KEY_ID": s3.ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": s3.SECRET_KEY,
        "AWS_ENDPOINT_URL": f"http://{STORE}:{PORT}",
    }
    kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": keys})
    yield name
    kube.delete("secret", name)


@pytest.fixture
def finish(kube: Kube, cluster: Cluster, image: Image, fetch_image: Image) -> Iterator[Callable[..., None]]:
    """Applies the Job that a command prints, and waits for its end."""
    made: list[str] = []

    def wait(*words: str, lab: Image | None = None) -> None:
        printed = CliRunner().invoke(main, [*words, "--registry", cluster.registry, "--memory", "2Gi"])
        assert printed.exit_code == 0, printed.output
        job = printed.stdout
        # A release's tags name its version; those of the tests name what was built.
        for released, built in (("trl", "cpu"), image), (("fetch", ""), fetch_image), (("lab", "cpu"), lab):
            if built is not None:
                job = job.replace(image_of(*released, cluster.registry), built.reference)
        made.append(yaml.safe_load(job)["metadata"]["name"])
        applied = kube.kubectl("apply", "-f", "-", stdin=job)
        assert "Warning" not in applied.stderr

        def ended() -> dict[str, Any] | None:
            found = kube.get("job", made[-1]) or {}
            return found if condition(found, "Complete") or condition(found, "Failed") else None

        found = kube.until(f"the Job {made[-1]} to end", ended, 900)
        assert condition(found, "Complete"), kube.kubectl("logs", f"job/{made[-1]}", "--all-containers").stdout

    yield wait
    for name in made:
        kube.delete("job", name)


@pytest.mark.full
def test_jobs_measure_a_result_merge_it_and_send_it_to_a_bucket(
    fetched: Run, finish: Callable[..., None], writer: str, reader: Reader, kube: Kube, fetch_image: Image
) -> None:
    fetched.wait_complete()
    finish("evaluate", "--job", fetched.name, "--data", "/workspace/dataset", "--split", "train", "--limit", "8")
    measured = json.loads(fetched.read("output/evaluation.json", reader))["evaluations"][-1]["held_out"]
    assert (measured["data"], measured["perplexity"] > 1) == ("/workspace/dataset", True)

    finish("export", "--job", fetched.name, "--push", f"s3://{BUCKET}/results/fetched", "--secret", writer)
    merged = json.loads(fetched.read("exported/stoker.json", reader))
    asked = [f"http://{STORE}:{PORT}", s3.ACCESS_KEY, s3.SECRET_KEY, f"{BUCKET}/results/fetched/stoker.json"]
    sent = Reader(kube, fetch_image.reference, "store-reader").run(["python", "-c", CAT, *asked], [])
    assert json.loads(sent) == merged
    assert merged["merged_adapter"]


@pytest.mark.full
def test_a_job_measures_a_task_of_ones_own(
    fetched: Run, finish: Callable[..., None], lab_image: Image, reader: Reader
) -> None:
    fetched.wait_complete()
    claim, folder = f"initializer-{fetched.name}", "/workspace/tasks"
    data = {"data_files": {"test": f"{folder}/sums.jsonl"}}
    reader.write(claim, "tasks/sums.jsonl", "".join(json.dumps(row) + "\n" for row in ROWS))
    reader.write(claim, "tasks/sums.yaml", json.dumps({**TASK, "dataset_kwargs": data}))
    asked = ("--tasks", TASK["task"], "--include-path", folder, "--limit", "4")
    finish("evaluate", "--job", fetched.name, *asked, lab=lab_image)
    measured = json.loads(fetched.read("output/evaluation.json", reader))["evaluations"][-1]
    assert 0 <= measured["tasks"][TASK["task"]]["acc"] <= 1
    assert measured["limit"] == 4


@pytest.mark.full
def test_a_job_converts_a_model_for_llama_cpp(
    fetched: Run, finish: Callable[..., None], lab_image: Image, kube: Kube
) -> None:
    claim = f"initializer-{fetched.name}"
    pods = Reader(kube, lab_image.reference, "whole-model")
    pods.run(["python", "-c", GGUF_MODEL.read_text(), "write", f"/claims/{claim}/whole"], [claim])
    asked = ("/workspace/whole", "--as-it-is", "--gguf", "gguf/model.gguf")
    finish("export", "--job", fetched.name, *asked, lab=lab_image)
    assert pods.run(["head", "--bytes=4", f"/claims/{claim}/gguf/model.gguf"], [claim]) == "GGUF"
