"""The catalogue as a whole: a runtime is the generic one with what its entry says, and nothing else.

Golden files show a few runtimes; by these tests they stand for all.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from images.builder.catalogue import variants

from charts.entries import sizes_of
from charts.helm import OWN_IMAGES, ROOT, TRAINING_RUNTIMES, Manifest, accelerators, render
from charts.runtimes import containers, pods, runtimes

GENERIC = "trl-distributed"
PROFILES = yaml.safe_load((TRAINING_RUNTIMES / "values.yaml").read_text())["accelerators"]
ENTRIES = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "runtimes").glob("*.yaml")}
LOCKED = {(variant.image, variant.accelerator): variant for variant in variants()}
REGISTRY = variants()[0].registry
# Folders of trackers, in the environment of TRL's trainers.
TRACKERS = ("TENSORBOARD_LOGGING_DIR", "TRACKIO_DIR")


def catalogue(*settings: str) -> dict[str, Manifest]:
    """Return the whole catalogue by name."""
    return {item["metadata"]["name"]: item for item in runtimes(render(TRAINING_RUNTIMES, settings=settings))}


@pytest.fixture(scope="module", params=accelerators(TRAINING_RUNTIMES), ids=str)
def accelerator(request: pytest.FixtureRequest) -> tuple[str, dict[str, Manifest]]:
    """An accelerator profile and the catalogue on it."""
    name: str = request.param
    own = () if ("trl", PROFILES[name]["imageVariant"]) in LOCKED else OWN_IMAGES
    return name, catalogue(*own, f"accelerator={json.dumps(name)}")


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_a_runtime_is_the_generic_one_with_what_its_entry_says(
    name: str, accelerator: tuple[str, dict[str, Manifest]]
) -> None:
    profile, rendered = accelerator
    kind = PROFILES[profile]["kind"]
    assert rendered.keys() == {other for other, entry in ENTRIES.items() if kind in entry.get("accelerators", [kind])}
    if name in rendered:
        made = expected(rendered[GENERIC], ENTRIES[name], PROFILES[profile])
        if "deviceClassName" in PROFILES[profile]:
            # The template of a claim is named by what it claims; other tests look at that.
            pods([made])[-1]["resourceClaims"] = pods([rendered[name]])[-1]["resourceClaims"]
        found = without_samplers(rendered[name]) if "samplers" in ENTRIES[name] else rendered[name]
        found = without_role(found) if "externalSamplers" in ENTRIES[name] else found
        found = without_endpoint(found) if "endpoint" in ENTRIES[name] else found
        assert sorted_env(found) == sorted_env(made)


def test_a_runtime_for_gpus_is_installed_elsewhere_only_by_name() -> None:
    assert "trl-qwen3-32b" not in catalogue('accelerator="cpu"')
    assert "trl-qwen3-32b" in catalogue('accelerator="cpu"', 'runtimes={"trl-qwen3-32b": {"accelerator": "nvidia"}}')


def without_role(runtime: Manifest) -> Manifest:
    """Return a runtime without the label of those that have samplers, which must be there."""
    found: Manifest = json.loads(json.dumps(runtime))
    template = found["spec"]["template"]["spec"]["replicatedJobs"][-1]["template"]["spec"]["template"]
    assert template["metadata"]["labels"].pop("stoker.dev/role") == "node"
    return found


def without_endpoint(runtime: Manifest) -> Manifest:
    """Return a runtime without what serves clients, and with the method that the generic one has instead."""
    found: Manifest = json.loads(json.dumps(runtime))
    (node,) = found["spec"]["template"]["spec"]["replicatedJobs"][-1]["template"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert node["command"] == ["stoker", "tinker"]
    node["command"] = ["stoker", "run"]
    assert {"ports", "readinessProbe"} <= node.keys()
    del node["ports"], node["readinessProbe"]
    role = {"name": "STOKER_ROLE", "value": "tinker"}
    assert role in node["env"]
    node["env"].remove(role)
    return found


def without_samplers(runtime: Manifest) -> Manifest:
    """Return a runtime without what its samplers add to it, all of which must be there."""
    found: Manifest = json.loads(json.dumps(runtime))
    jobset = found["spec"]["template"]["spec"]
    names = [job["name"] for job in jobset["replicatedJobs"]]
    jobset["replicatedJobs"].pop(names.index("sampler"))
    assert jobset.pop("successPolicy") == {"operator": "All", "targetReplicatedJobs": ["node"]}
    # Their Job has one more rule.
    (final,) = (rule for rule in jobset["failurePolicy"]["rules"] if rule["name"] == "UserError")
    assert final["onJobFailureMessagePatterns"] == ["rule at index [23]$"]
    final["onJobFailureMessagePatterns"] = ["rule at index 2$"]
    template = jobset["replicatedJobs"][-1]["template"]["spec"]["template"]
    assert template["metadata"]["labels"].pop("stoker.dev/role") == "node"
    (node,) = template["spec"]["containers"]
    addresses = [item for item in node["env"] if item["name"] == "STOKER_SAMPLERS"]
    assert len(addresses) == 1
    node["env"].remove(addresses[0])
    return found


def expected(generic: Manifest, entry: dict[str, Any], profile: dict[str, Any]) -> Manifest:
    """Return what a chart makes of an entry, given what it makes of the generic one."""
    made: Manifest = json.loads(
        json.dumps(generic)
        .replace(json.dumps(GENERIC), json.dumps(entry["name"]))
        .replace('"trainer.kubeflow.org/framework": "trl"', f'"trainer.kubeflow.org/framework": "{entry["framework"]}"')
    )
    labels, notes = made["metadata"]["labels"], made["metadata"]["annotations"]
    notes["stoker.dev/description"] = entry["description"]
    if "deprecated" in entry:
        labels["trainer.kubeflow.org/support"] = "deprecated"
        notes["stoker.dev/replacement"] = entry["deprecated"]["replacement"]
    made["spec"]["mlPolicy"]["numNodes"] = entry["numNodes"]
    jobset = made["spec"]["template"]["spec"]
    claim = jobset["volumeClaimPolicies"][0]["templates"][0]["spec"]
    claim["resources"]["requests"]["storage"] = entry.get("workspaceSize", "50Gi")
    dataset, model, node = containers([made])
    set_env(dataset, {"STORAGE_URI": entry.get("dataset", "")})
    set_env(model, {"STORAGE_URI": entry.get("model", "")})
    node["image"] = image(entry["image"], profile["imageVariant"])
    node["command"] = ["stoker", "run", *entry.get("command", [])]
    sizes = dict(sizes_of(entry, profile["kind"]))
    devices = sizes.pop("devices", None)
    for kind, amounts in sizes.items():
        node["resources"][kind] |= amounts
    if devices and "resourceName" in profile:
        for kind in ("requests", "limits"):
            node["resources"][kind][profile["resourceName"]] = str(devices)
    elif devices:
        set_env(node, {"STOKER_NPROC_PER_NODE": str(devices)})
    defaults = {"STOKER_METHOD": entry["method"]} if "method" in entry else {}
    defaults |= {"STOKER_SHARDING": entry["sharding"]} if "sharding" in entry else {}
    defaults |= {
        f"STOKER_ARG_{flag.replace('.', '__').upper()}": value for flag, value in entry.get("args", {}).items()
    }
    of_entry = ("STOKER_METHOD", "STOKER_ARG_", "STOKER_SHARDING")
    of_trainers = () if entry["framework"] == "trl" and "endpoint" not in entry else TRACKERS
    node["env"] = [item for item in node["env"] if not item["name"].startswith((*of_entry, *of_trainers))]
    told = json.dumps(dict(sorted(defaults.items())), separators=(",", ":"))
    set_env(node, {**defaults, "PET_NNODES": str(entry["numNodes"]), "STOKER_RUNTIME_DEFAULTS": told})
    return made


def image(name: str, variant: str) -> str:
    """Return an image as the lock has it, or the one that these tests name where it has none."""
    found = LOCKED.get((name, variant))
    return f"{REGISTRY}/{name}:{found.tag if found else 'own'}"


def set_env(container: Manifest, values: dict[str, str]) -> None:
    """Give a container variables, in the place of those of their names."""
    container["env"] = [item for item in container["env"] if item["name"] not in values]
    container["env"] += [{"name": name, "value": value} for name, value in values.items()]


def sorted_env(runtime: Manifest) -> Manifest:
    """Return a runtime with the variables of its containers in order; that of the chart is in the golden files."""
    for container in containers([runtime]):
        container["env"].sort(key=lambda item: item["name"])
    return runtime


def test_a_versioned_runtime_is_the_plain_one_under_another_name() -> None:
    rendered = catalogue('names={"style": "both", "version": "next"}')
    plain = {name: item for name, item in rendered.items() if name in ENTRIES}
    versioned = {name: item for name, item in rendered.items() if name not in ENTRIES}
    assert plain.keys() == ENTRIES.keys()
    assert versioned.keys() == {f"{name}-next" for name, entry in ENTRIES.items() if entry["framework"] == "trl"}
    for name, item in versioned.items():
        assert (
            json.loads(json.dumps(item).replace(json.dumps(name), json.dumps(name.removesuffix("-next"))))
            == (plain[name.removesuffix("-next")])
        )


def test_rules_for_trainjobs_change_no_runtime() -> None:
    assert catalogue("policies.enabled=true") == catalogue()


def test_namespaced_runtimes_are_the_cluster_wide_ones_in_a_namespace() -> None:
    cluster_wide = catalogue()
    for name, item in catalogue('kind="TrainingRuntime"', 'namespaces=["team-a"]').items():
        assert item["metadata"].pop("namespace") == "team-a"
        assert {**item, "kind": "ClusterTrainingRuntime"} == cluster_wide[name]
