"""The page on a cluster: what its chart may see, and what it shows of a real run from its claim."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import Cluster
from e2e.kube import Kube
from e2e.registry import Image, push_chart, push_image
from e2e.trainjobs import LORA_SFT, Run, trainjob

RELEASE = "board"
NAME = "on-the-board"
SERVED: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "tuned-vllm-serving", "labels": {"app.kubernetes.io/instance": "tuned"}},
    "spec": {
        "replicas": 0,
        "selector": {"matchLabels": {"app": "tuned"}},
        "template": {
            "metadata": {
                "labels": {"app": "tuned"},
                "annotations": {"stoker.dev/adapters.yaml": "model: {name: some-base, source: org/some-base}"},
            },
            "spec": {"containers": [{"name": "vllm", "image": "registry.example.com/none"}]},
        },
    },
}
Submit = Callable[[Mapping[str, Any]], Run]

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def board_image(cluster: Cluster) -> Image:
    """The image of the page."""
    return push_image(cluster, "board")


@pytest.fixture
def install(
    cluster: Cluster, kube: Kube, helm: Callable[..., str], board_image: Image, tmp_path: Path
) -> Iterator[Callable[[Mapping[str, Any]], str]]:
    """Installs the chart in the tests' namespace, which enforces the restricted standard; it goes at the end."""
    chart = push_chart(cluster, helm, "stoker-board", tmp_path)

    def one(values: Mapping[str, Any]) -> str:
        (tmp_path / "values.yaml").write_text(yaml.safe_dump({"images": {"board": board_image.values}, **values}))
        words = ("--namespace", kube.namespace, "--values", str(tmp_path / "values.yaml"), "--wait", "--timeout", "10m")
        return helm("upgrade", "--install", RELEASE, *chart, *words)

    yield one
    helm("uninstall", RELEASE, "--namespace", kube.namespace, "--wait")


def page(kube: Kube, path: str = "/") -> str:
    """Return a page, asked for from within its pod: that also works where no network leads to it."""
    fetch = "import sys, urllib.request as r; print(r.urlopen('http://127.0.0.1:8086' + sys.argv[1]).read().decode())"
    return kube.kubectl("exec", f"deployment/{RELEASE}", "--", "python", "-c", fetch, path).stdout


def words(text: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", text).split())


def test_a_run_is_seen_from_its_claim_with_no_other_right(
    kube: Kube, submit: Submit, helm: Callable[..., str], install: Callable[[Mapping[str, Any]], str]
) -> None:
    run = submit(trainjob(NAME, LORA_SFT, nodes=1))
    run.wait_complete()
    # A serving release is what its Deployment says; it need not run.
    kube.apply(SERVED)
    install({"claims": [{"name": f"initializer-{NAME}"}]})
    listed = page(kube)
    assert NAME in words(listed)
    assert "Complete" in words(listed)
    assert "Not all is shown" not in listed
    shown = page(kube, f"/runs/{kube.namespace}/{NAME}")
    assert shown.count('role="img"') >= 2, "loss and learning rate at least"
    assert "Training report" in page(kube, f"/report?claim=initializer-{NAME}&folder=output")
    served = words(page(kube, "/serving"))
    kube.delete("deployment", SERVED["metadata"]["name"])
    assert "tuned" in served
    assert "some-base" in served
    # The test of the chart, through the Service.
    printed = helm("test", RELEASE, "--namespace", kube.namespace, "--logs")
    assert "/serving has" in printed

    account = f"system:serviceaccount:{kube.namespace}:{RELEASE}"
    allowed = {"trainjobs.trainer.kubeflow.org", "pods", "deployments.apps"}
    refused = {"secrets", "configmaps", "jobsets.jobset.x-k8s.io", "events", "services"}
    for kind in (*allowed, *refused):
        for verb in ("get", "list", "watch", "create", "patch", "delete"):
            may = kube.kubectl("auth", "can-i", verb, kind, "--as", account, check=False).stdout.strip()
            assert (may == "yes") is (kind in allowed and verb in ("get", "list", "watch")), f"{verb} {kind}"
        elsewhere = kube.kubectl(
            "auth", "can-i", "list", kind, "--as", account, "--namespace", "kube-system", check=False
        )
        assert elsewhere.stdout.strip() == "no", kind
    logs = kube.kubectl("auth", "can-i", "get", "pods", "--subresource=log", "--as", account, check=False)
    assert logs.stdout.strip() == "no"

    # Nothing can be written: not to the claim, not to the root.
    for folder in (f"/claims/initializer-{NAME}", "/opt", "/"):
        tried = kube.kubectl("exec", f"deployment/{RELEASE}", "--", "touch", f"{folder}/x", check=False)
        assert "Read-only file system" in tried.stderr


def test_missing_rights_are_a_sentence(kube: Kube, install: Callable[[Mapping[str, Any]], str]) -> None:
    install({"rbac": {"create": False}})
    text = words(page(kube))
    for kind in ("trainjobs.trainer.kubeflow.org", "deployments.apps"):
        assert f"you may not list {kind}" in text
    assert "Traceback" not in text
