"""What an upgrade brings does not reach pods of the version before, nor does it take away what they name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.helm import CHARTS, TRAINING_RUNTIMES, VLLM_SERVING, Manifest, output, render, values_files
from charts.runtimes import KINDS, jobs
from charts.serving_settings import settings_files

SERVING = VLLM_SERVING / "ci" / "full-values.yaml"
PLATFORM = VLLM_SERVING / "ci" / "platform-values.yaml"
DRA = TRAINING_RUNTIMES / "ci" / "nvidia-dra-values.yaml"
UPGRADES = [
    (VLLM_SERVING, SERVING, "devices=4"),
    (VLLM_SERVING, SERVING, 'accelerators.nvidia-dra.deviceClassName="mig.nvidia.com"'),
    (VLLM_SERVING, SERVING, 'adapters=[{"name": "wrong", "claim": "adapters", "path": "wrong"}]'),
    (VLLM_SERVING, SERVING, 'api.paths=["/v1/models"]'),
    (VLLM_SERVING, SERVING, "lora.maxRank=8"),
    (VLLM_SERVING, SERVING, "monitoring.dashboard=false"),
    (VLLM_SERVING, PLATFORM, 'serviceAccount.name="other"'),
    (VLLM_SERVING, PLATFORM, 'commonLabels={"example.com/team": "b"}'),
    (TRAINING_RUNTIMES, DRA, "accelerators.nvidia-dra.resources.devices=4"),
    (TRAINING_RUNTIMES, DRA, 'accelerators.nvidia-dra.deviceClassName="mig.nvidia.com"'),
    (TRAINING_RUNTIMES, DRA, 'runtimes.trl-qwen3-8b={"enabled": true, "resources": {"devices": 2}}'),
]
REFERENCES = {
    "resourceClaimTemplateName": "ResourceClaimTemplate",
    "serviceAccountName": "ServiceAccount",
    "secretName": "Secret",
    "claimName": "PersistentVolumeClaim",
}
"""Fields of a pod by which it names an object of its namespace, and the kind of that object."""
SOURCES = {"configMap": "ConfigMap", "configMapRef": "ConfigMap", "configMapKeyRef": "ConfigMap"}
SOURCES |= {"secretRef": "Secret", "secretKeyRef": "Secret"}
"""Fields that hold such a name in `name`."""


def references(pod: Any) -> Iterator[tuple[str, str]]:
    """Yield kind and name of every object that the spec of a pod names."""
    if isinstance(pod, list):
        for item in pod:
            yield from references(item)
    elif isinstance(pod, dict):
        for key, value in pod.items():
            if key in REFERENCES:
                yield REFERENCES[key], value
            elif key in SOURCES:
                yield SOURCES[key], value["name"]
            else:
                yield from references(value)


def pods(objects: list[Manifest]) -> list[dict[str, Any]]:
    """Return the specs of the pods that the controllers among objects make, again whenever one is gone."""
    runtimes = [job for item in objects if item["kind"] in KINDS for job in jobs(item)]
    deployments = [item for item in objects if item["kind"] == "Deployment"]
    return [item["spec"]["template"]["spec"] for item in (*runtimes, *deployments)]


def named(objects: list[Manifest]) -> dict[tuple[str, str], Manifest]:
    """Return those of a release's objects that its pods name, by kind and name."""
    wanted = set(references(pods(objects)))
    found = {(item["kind"], item["metadata"]["name"]): item for item in objects}
    return {key: item for key, item in found.items() if key in wanted}


def content(item: Manifest) -> str:
    """Return what a pod sees of an object."""
    return json.dumps({key: value for key, value in item.items() if key != "metadata"}, sort_keys=True)


@pytest.mark.parametrize(("chart", "values", "change"), UPGRADES, ids=lambda value: str(getattr(value, "stem", value)))
def test_what_pods_name_stays_as_it_was(chart: Path, values: Path, change: str) -> None:
    before = named(render(chart, [values]))
    after = named(render(chart, [values], [change]))
    assert before
    for key, item in before.items():
        assert item["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep", key
        assert content(after.get(key, item)) == content(item), f"{key} changes under the pods that name it"


@pytest.mark.parametrize(("chart", "values", "change"), [case for case in UPGRADES if "deviceClass" in case[2]])
def test_other_devices_have_another_name(chart: Path, values: Path, change: str) -> None:
    names = [
        {name for kind, name in named(render(chart, [values], settings)) if kind == "ResourceClaimTemplate"}
        for settings in ([], [change])
    ]
    assert len(names[0]) == len(names[1]) == 1
    assert not names[0] & names[1]


def test_a_replica_carries_all_that_it_is_told() -> None:
    """In the template of its pod: a ReplicaSet of the version before makes pods as it made them before."""
    objects = render(VLLM_SERVING, [SERVING])
    files = settings_files(objects)
    assert files.keys() == {"Caddyfile", "adapters.yaml", "logging.json"}
    assert yaml.safe_load(files["adapters.yaml"])["published"]["folder"] == "/claims/adapters/adapters"
    assert json.loads(files["logging.json"])["version"] == 1
    assert files["Caddyfile"].startswith("{\n\tadmin off\n")
    # The dashboard is for Grafana; published.configMap is the user's, and meant to change.
    assert [item["metadata"]["name"] for item in objects if item["kind"] == "ConfigMap"] == ["vllm-serving-dashboard"]
    assert sum(map(len, files.values())) < 2**18 / 4, "all annotations of a pod may have 256 KiB"


@pytest.mark.parametrize(
    "text", ['  {%- for m in messages %}\n  \n<|{{ m.role }}|> & "é" \\n \n\n', " ", "\tx: |\n  y"]
)
def test_a_chat_template_arrives_to_the_last_space(text: str) -> None:
    objects = render(VLLM_SERVING, [SERVING], [f"chatTemplate={json.dumps(text)}"])
    assert settings_files(objects)["chat-template.jinja"] == text


@pytest.mark.parametrize(
    ("chart", "values"),
    [
        pytest.param(chart, values, marks=() if values == chart / "ci" / "platform-values.yaml" else pytest.mark.full)
        for chart in CHARTS
        for values in values_files(chart)
    ],
    ids=lambda value: str(value.stem),
)
def test_a_version_of_the_chart_alone_changes_no_pod(chart: Path, values: Path, tmp_path: Path) -> None:
    """Or it would replace every replica on a GPU, and what TrainJobs that wait are made of, for nothing."""
    newer = tmp_path / chart.name
    shutil.copytree(chart, newer)  # links in it become the files they lead to
    description = yaml.safe_load((chart / "Chart.yaml").read_text())
    *minor, patch = description["appVersion"].split(".")
    description |= {"version": "99.0.0", "appVersion": ".".join([*minor, str(int(patch) + 1)])}
    (newer / "Chart.yaml").write_text(yaml.safe_dump(description))
    before, after = (render(folder, [values]) for folder in (chart, newer))
    assert labels(before) != labels(after), "guards the test: objects do say their version"
    assert made_of(before) == made_of(after)


def test_labels_of_all_objects_change_no_replica() -> None:
    """Only what changes a pod replaces it; its own labels are another value."""
    before, after = (
        render(VLLM_SERVING, [PLATFORM], settings)
        for settings in ([], ['commonLabels={"example.com/team": "b"}', 'commonAnnotations={"example.com/by": "b"}'])
    )
    assert labels(before) != labels(after), "guards the test"
    assert made_of(before) == made_of(after)


def labels(objects: list[Manifest]) -> list[dict[str, str]]:
    """Return the labels of each object."""
    return [item["metadata"]["labels"] for item in objects]


def made_of(objects: list[Manifest]) -> list[Any]:
    """Return all that pods are made of, and what they name, with its name."""
    whole = [item["spec"] for item in objects if item["kind"] in (*KINDS, "Deployment")]
    return [*whole, {key: content(item) for key, item in named(objects).items()}]


def test_releases_of_one_name_in_two_namespaces_do_not_meet() -> None:
    """Both may put what their pods name into a third."""
    one = "profile=none,runtimes.trl-distributed.enabled=true"
    words = ["--set", f"skipApiCheck=true,accelerator=nvidia-dra,namespaces={{shared}},{one}", "--show-only"]
    rendered = [
        yaml.safe_load(
            output(
                "helm", "template", "one", TRAINING_RUNTIMES, "--namespace", namespace, *words,
                "templates/resourceclaimtemplate.yaml",
            )
        )["metadata"]
        for namespace in ("team-a", "team-b")
    ]  # fmt: skip
    assert rendered[0]["namespace"] == rendered[1]["namespace"] == "shared"
    assert rendered[0]["name"] != rendered[1]["name"]
