"""What the documents of the catalogue show is rendered here, and what they claim has a test."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts import crds, trainer
from charts.helm import ROOT, STOKER_BOARD, TRAINING_RUNTIMES, render, run
from charts.images import images
from charts.runtimes import containers, runtimes

PAGES = ("choose-a-runtime.md", "catalogue.md", "cluster.md")
GUIDES = ROOT / "docs" / "guides"
TEXT = "\n".join((GUIDES / page).read_text() for page in PAGES)
# Other pages with values, and the chart that takes them.
OTHERS = {
    "board.md": STOKER_BOARD,
    "large-models.md": TRAINING_RUNTIMES,
    "monitor-runs.md": TRAINING_RUNTIMES,
    "track-a-run.md": TRAINING_RUNTIMES,
}
(COMPARISON,) = re.findall(
    r"^## Catalogues of runtimes\n(.*?)^## ",
    (ROOT / "docs" / "reference" / "comparison.md").read_text(),
    re.MULTILINE | re.DOTALL,
)
BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = [yaml.safe_load(block) for block in BLOCK.findall(TEXT)]
# As a shell reads them.
INLINE = [word for text in re.findall(r"`--set ([^`]+)`", TEXT) for word in shlex.split(text)]
CLAIMS = re.findall(r"`([\w./-]+\.(?:py|yaml))::([^`]+)`", COMPARISON)


def values(example: dict[str, Any]) -> dict[str, Any] | None:
    """Return the chart's values in an example; None where it has none."""
    if example.get("kind") == "Application":
        found: dict[str, Any] = example["spec"]["source"]["helm"]["valuesObject"]
        return found
    if example.get("kind") == "HelmRelease":
        return dict(example["spec"]["values"])
    return None if example.get("kind") in ("OCIRepository", "TrainJob") or "spec" in example else example


@pytest.mark.parametrize("example", [item for item in EXAMPLES if values(item)], ids=",".join)
def test_values_in_the_document_render(example: dict[str, Any]) -> None:
    settings = [f"{key}={json.dumps(value)}" for key, value in (values(example) or {}).items()]
    rendered = runtimes(render(TRAINING_RUNTIMES, settings=settings))
    named = {name for name, given in example.get("runtimes", {}).items() if given.get("enabled", True)}
    assert rendered
    assert named <= {runtime["metadata"]["name"] for runtime in rendered}


@pytest.mark.parametrize("page", OTHERS)
def test_values_in_other_guides_change_what_their_chart_renders(page: str) -> None:
    shown = [example for example in map(yaml.safe_load, BLOCK.findall((GUIDES / page).read_text())) if values(example)]
    assert shown
    plain = render(OTHERS[page])
    for example in shown:
        assert render(OTHERS[page], settings=[f"{key}={json.dumps(value)}" for key, value in example.items()]) != plain


@pytest.mark.parametrize("setting", INLINE)
def test_what_is_set_in_the_running_text_changes_what_it_names(setting: str) -> None:
    assert setting.endswith(".enabled=false")
    name = setting.removeprefix("runtimes.").removesuffix(".enabled=false").replace("\\", "")
    everything = {runtime["metadata"]["name"] for runtime in runtimes(render(TRAINING_RUNTIMES))}
    left = {runtime["metadata"]["name"] for runtime in runtimes(render(TRAINING_RUNTIMES, settings=[setting]))}
    assert everything - left == {name}


@pytest.mark.parametrize("version", trainer.VERSIONS)
def test_trainjobs_in_the_document_are_valid(version: str, tmp_path: Path) -> None:
    trainjobs = [item for item in EXAMPLES if item.get("kind") == "TrainJob"]
    assert len(trainjobs) == 2
    entries = {path.stem for path in (ROOT / "runtimes").iterdir()}
    assert {item["spec"]["runtimeRef"]["name"] for item in trainjobs} <= entries
    file = tmp_path / "trainjobs.yaml"
    file.write_text("\n---\n".join(map(json.dumps, trainjobs)))
    done = run("kubeconform", "-schema-location", trainer.schema_location(version), file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_argo_cd_example_names_the_charts_version() -> None:
    (application,) = (item for item in EXAMPLES if item.get("kind") == "Application")
    version = yaml.safe_load((TRAINING_RUNTIMES / "Chart.yaml").read_text())["version"]
    assert application["spec"]["source"]["targetRevision"] == version


@pytest.mark.parametrize(("file", "name"), CLAIMS, ids=lambda value: str(value)[:60])
def test_what_shows_a_claim_exists(file: str, name: str) -> None:
    text = (ROOT / file).read_text()
    assert (f"def {name}(" if file.endswith(".py") else f"- it: {name}\n") in text


def test_every_feature_that_is_ours_is_shown() -> None:
    table = COMPARISON.split("| feature |")[1]
    rows = [line for line in table.splitlines()[2:] if line.startswith("|")]
    assert len(rows) == len(CLAIMS) > 10


@pytest.mark.parametrize("accelerator", ["nvidia", "cpu"])
def test_the_readme_says_to_push_every_image_that_its_first_run_pulls(accelerator: str) -> None:
    section = (ROOT / "README.md").read_text().split("\n## Before the first release\n")[1].split("\n## ")[0]
    given = {"accelerator": accelerator, "profile": "none", "runtimes": {"trl-distributed": {"enabled": True}},
             "global": {"imageRegistry": "registry.example.com"}}  # fmt: skip
    settings = [f"{key}={json.dumps(value)}" for key, value in given.items()]
    pulled = images(render(TRAINING_RUNTIMES, settings=settings))
    if accelerator == "cpu":  # pushed by name, the others by their targets
        assert {image for image in pulled if image not in section} == set()
    else:
        (targets,) = re.findall(r" --push (.+)", section)
        assert {re.sub(r".*/(\w+):[\d.]+", r"\1", image) for image in pulled} == set(targets.split())


def test_every_rule_is_in_the_document() -> None:
    policies = yaml.safe_load((TRAINING_RUNTIMES / "values.yaml").read_text())["policies"]
    rules = [name for name, value in policies.items() if isinstance(value, dict) and "mode" in value]
    assert rules
    assert [name for name in rules if f"\n| `{name}` | " not in TEXT] == []


QUEUES = [[*yaml.safe_load_all(block)] for block in BLOCK.findall((GUIDES / "kueue.md").read_text())]


def test_queues_in_the_document_are_kueues(tmp_path: Path) -> None:
    objects = [item for block in QUEUES for item in block if str(item.get("apiVersion")).startswith("kueue.")]
    assert {item["kind"] for item in objects} == {
        "ResourceFlavor", "ClusterQueue", "LocalQueue", "WorkloadPriorityClass",
    }  # fmt: skip
    file = tmp_path / "queues.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    done = run("kubeconform", "-strict", "-schema-location", crds.schema_location(crds.KUEUE), file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_queue_covers_what_the_pods_of_the_run_ask_for() -> None:
    """Kueue never admits a run that asks for a resource which no group of its queue covers."""
    (job,) = (item for block in QUEUES for item in block if item.get("kind") == "TrainJob")
    (values,) = (item for block in QUEUES for item in block if "policies" in item)
    rendered = render(TRAINING_RUNTIMES, settings=[f"{key}={json.dumps(value)}" for key, value in values.items()])
    assert any("queue" in item["metadata"]["name"] for item in rendered if item["kind"] == "ValidatingAdmissionPolicy")
    (runtime,) = (r for r in runtimes(rendered) if r["metadata"]["name"] == job["spec"]["runtimeRef"]["name"])
    asked = {name for found in containers([runtime]) for name in found.get("resources", {}).get("requests", {})}
    (queue,) = (item for block in QUEUES for item in block if item.get("kind") == "ClusterQueue")
    covered = {name for group in queue["spec"]["resourceGroups"] for name in group["coveredResources"]}
    assert asked
    assert asked <= covered
