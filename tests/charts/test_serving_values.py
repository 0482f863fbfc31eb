"""Values of the serving chart that cannot work are refused with a message that says where and why."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.helm import ROOT, VLLM_SERVING, manifests, output, run, template, template_arguments, templates
from charts.refusals import ends_with_the_fix

# The least that installs; each case below breaks one thing of it.
GOOD = {
    "accelerator": "cpu",
    "model": {"claim": {"name": "models"}},
    "api": {"keySecret": "model-key"},
}
# Without `lora.maxRank` it takes whole weights.
FLEET = {
    "rl": {"enabled": True, "adaptersOnly": True, "peers": [{"podSelector": {}}]},
    "fleet.enabled": True,
    "published.claim": "weights",
}
KEDA = {"autoscaling.kind": "keda", "monitoring.podMonitor": True, "skipApiCheck": True}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"modell": {}}, "additional properties 'modell' not allowed"),
    ({"model.uri": "hf://Qwen/Qwen3-0.6B"}, "The model has 2 sources and needs exactly one."),
    ({"model.claim.name": ""}, "The model has 0 sources and needs exactly one."),
    ({"model.claim.path": "/model"}, "at '/model/claim/path': '/model' does not match pattern"),
    ({"model.claim.name": "", "model.uri": "ftp://x/y"}, "at '/model/uri': 'ftp://x/y' does not match pattern"),
    ({"model.name": "a b"}, "at '/model/name': 'a b' does not match pattern"),
    ({"api.keySecret": ""}, "Say who may use this model: set either api.keySecret or api.anonymous, not both."),
    ({"api.anonymous": True}, "Say who may use this model: set either api.keySecret or api.anonymous, not both."),
    ({"api.paths": ["/v1/models", "/pause"]}, "api.paths: /pause controls the server and is never open to clients"),
    ({"api.paths": ["/collective_rpc"]}, "/collective_rpc controls the server"),
    ({"api.paths": ["/invocations"]}, "/invocations controls the server"),
    ({"api.paths": ["/v1/load_lora_adapter"]}, "/v1/load_lora_adapter controls the server"),
    ({"api.paths": ["/get_world_size"]}, "/get_world_size controls the server"),
    ({"api.paths": ["/fault_tolerance/apply"]}, "/fault_tolerance/apply controls the server"),
    # The proxy takes these for the same: it compares in small letters, with single slashes, without one at the end.
    ({"api.paths": ["/PAUSE"]}, "at '/api/paths/0': '/PAUSE' does not match pattern"),
    ({"api.paths": ["/v1/Load_LoRA_Adapter"]}, "at '/api/paths/0': '/v1/Load_LoRA_Adapter' does not match pattern"),
    ({"api.paths": ["//pause"]}, "at '/api/paths/0': '//pause' does not match pattern"),
    ({"api.paths": ["/pause/"]}, "at '/api/paths/0': '/pause/' does not match pattern"),
    ({"api.paths": ["/v1/*"]}, "at '/api/paths/0': '/v1/*' does not match pattern"),
    ({"api.maxBodySize": "16 MB"}, "at '/api/maxBodySize': '16 MB' does not match pattern"),
    ({"adapters": [{"name": "a", "claim": "c"}]}, "at '/adapters/0': missing property 'path'"),
    (
        {"adapters": [{"name": "a", "claim": "c", "path": "p"}, {"name": "a", "claim": "c", "path": "q"}]},
        'adapters: "a" is the name of two things that requests can ask for. Rename one.',
    ),
    (
        {"model.name": "base", "adapters": [{"name": "base", "claim": "c", "path": "p"}]},
        'adapters: "base" is the name of two things',
    ),
    ({"published.claim": "adapters"}, "Set lora.maxRank to the largest rank they may have."),
    ({"published.keep": 0}, "at '/published/keep': minimum: got 0, want 1"),
    ({"lora.maxRank": 1024}, "at '/lora/maxRank': maximum: got 1,024, want 512"),
    ({"lora.maxLoras": 9}, "lora.maxCpuLoras (8) is less than lora.maxLoras (9), and vLLM refuses that. Raise"),
    ({"vllmVersion": "0.30.0"}, "vLLM 0.30.0: this chart knows the flags of vLLM >=0.31.0 <0.32.0"),
    ({"vllmVersion": "0.32.1"}, "Use an image with such a version, or the chart version made for yours."),
    (
        {"images.vllm.tag": "mine"},
        "images.vllm.tag names an image of your own. Set vllmVersion to the vLLM version in it",
    ),
    ({"images.vllm.digest": f"sha256:{'0' * 64}"}, "images.vllm.digest names an image of your own"),
    ({"vllmVersion": "0.31.0rc1"}, "at '/vllmVersion': '0.31.0rc1' does not match pattern"),
    (
        {"podLabels": {"app.kubernetes.io/instance": "a"}},
        "podLabels: the chart sets app.kubernetes.io/instance itself.",
    ),
    ({"podAnnotations": {"stoker.dev/Caddyfile": "a"}}, "podAnnotations: the chart sets stoker.dev/Caddyfile itself."),
    (
        {"monitoring.labels": {"helm.sh/chart": "a"}},
        "monitoring.labels: the chart sets helm.sh/chart itself. Remove it.",
    ),
    ({"accelerator": "gpu"}, 'accelerator: there is no accelerator profile "gpu". Use one of: amd, cpu, intel, nvidia'),
    ({"accelerator": "amd"}, 'accelerator "amd" needs the variant "rocm" of image "vllm"'),
    ({"args.max-model-length": "512"}, "args.max-model-length: vLLM 0.31.0 has no such flag. Remove it"),
    ({"args.max-model-len": True}, "args.max-model-len: this flag takes a value. Write it as text, in quotes."),
    ({"args.max-model-len": 512}, "at '/args/max-model-len': got number, want"),
    ({"args.enforce-eager": "yes"}, "args.enforce-eager: this flag is a switch. Write true or false, without quotes."),
    ({"args.dtype": "float23"}, 'args.dtype: this flag does not take "float23". Use one of: '),
    (
        {"fleet.enabled": True, "rl": {"enabled": True, "peers": [{"podSelector": {}}]}},
        "fleet.enabled: all replicas must stay alike, so no client may change one of them alone. Set rl.enabled=true",
    ),
    ({"fleet.enabled": True}, "Set rl.enabled=true and rl.adaptersOnly=true."),
    ({"fleet.replicas": 0}, "at '/fleet/replicas': minimum: got 0, want 1"),
    ({"fleet.timeoutSeconds": "1m"}, "at '/fleet/timeoutSeconds': got string, want integer"),
    ({"args.host": "0.0.0.0"}, "args.host: the chart sets this flag itself. Remove it."),
    ({"args.api-key": "secret"}, "args.api-key: the chart sets this flag itself. Use api.keySecret instead."),
    ({"args.lora-modules": "a=b"}, "args.lora-modules: the chart sets this flag itself. Use adapters instead."),
    (
        {"args.tensor-parallel-size": "2"},
        "args.tensor-parallel-size: the chart sets this flag itself. Use devices instead.",
    ),
    (
        {"args.data-parallel-size": "2"},
        "args.data-parallel-size: the chart sets this flag itself. Use replicas instead.",
    ),
    (
        {"args.pipeline-parallel-size": "2"},
        "args.pipeline-parallel-size: the chart sets this flag itself. Use devices instead.",
    ),
    ({"resources.devices": 2}, "resources.devices: this is not where devices are set. Use the value devices instead."),
    ({"accelerators": {"cpu": {"sharedMemry": "1Gi"}}}, "additional properties 'sharedMemry' not allowed"),
    (
        {"accelerator": "mine", "accelerators": {"mine": {"kind": "cpu", "imageVariant": "cpu"}}},
        "accelerators.mine.resources is missing. Set it: a profile of your own needs it.",
    ),
    (
        {
            "accelerator": "mine",
            "accelerators": {
                "mine": {"kind": "cpu", "imageVariant": "cpu", "sharedMemory": "1Gi", "resources": {"devices": 1}}
            },
        },
        "accelerators.mine.resources.requests is missing. Set it: a profile of your own needs it.",
    ),
    ({"networkPolicy.enabled": None}, "at '/networkPolicy': missing property 'enabled'"),
    ({"lora.requireManifest": None}, "at '/lora': missing property 'requireManifest'"),
    ({"replicas": None}, "missing property 'replicas'"),
    ({"drain.seconds": None}, "at '/drain': missing property 'seconds'"),
    ({"drain": None}, "missing property 'drain'"),
    ({"autoscaling.behavior.scaleDown": None}, "at '/autoscaling/behavior': missing property 'scaleDown'"),
    ({"api.paths": []}, "at '/api/paths': minItems: got 0, want 1"),
    ({"rollout.maxSurge": "1"}, "at '/rollout/maxSurge': '1' does not match pattern"),
    ({"autoscaling.prometheus": ""}, "at '/autoscaling/prometheus': minLength: got 0, want 1"),
    (
        {"rollout": {"maxSurge": "0%", "maxUnavailable": None}},
        "rollout: maxSurge and maxUnavailable are both 0, so no replica could ever be replaced. Raise one of them.",
    ),
    (
        {"rollout": {"maxSurge": "0%", "maxUnavailable": 0}},
        "rollout: maxSurge and maxUnavailable are both 0, so no replica could ever be replaced. Raise one of them.",
    ),
    ({"httpRoute.requestTimeout": "forever"}, "at '/httpRoute/requestTimeout': 'forever' does not match pattern"),
    ({"env.HF_HUB_OFFLINE": "0"}, "env.HF_HUB_OFFLINE: the chart sets this variable itself. Remove it."),
    ({"env.VLLM_SERVER_DEV_MODE": "1"}, "env.VLLM_SERVER_DEV_MODE: the chart sets this variable itself"),
    (
        {"accelerators.cpu.env.VLLM_API_KEY": "x"},
        "accelerators.cpu.env.VLLM_API_KEY: the chart sets this variable itself",
    ),
    (
        {"volumes": [{"name": "more", "persistentVolumeClaim": {"claimName": "models"}}]},
        'and more are both of claim "models", and Kubernetes never starts a pod that mounts a claim twice. Mount the',
    ),
    (
        {"env.VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"},
        "env.VLLM_ALLOW_RUNTIME_LORA_UPDATING: the chart sets this variable",
    ),
    ({"rl.enabled": True}, "Set rl.peers to those who may reach them."),
    (
        {"rl.enabled": True, "rl.peers": [{"podSelector": {}}], "networkPolicy.enabled": False},
        "rl.enabled opens paths that change the model, so it needs a network policy. Set networkPolicy.enabled=true.",
    ),
    (
        {"rl.adaptersOnly": True},
        "rl.adaptersOnly opens a part of what rl.enabled opens. Set rl.enabled=true too.",
    ),
    (
        {"rl.enabled": True, "rl.peers": [{"podSelector": {}}], "rl.adaptersOnly": True},
        "rl.adaptersOnly: trainers publish adapters to a claim. Set published.claim to the claim that they write to.",
    ),
    ({**FLEET, "adapters": [{"name": "a", "claim": "a", "path": "a"}]}, "Set lora.maxRank, or remove adapters and "),
    ({**FLEET, "args": {"worker-extension-cls": "a.B"}}, "args.worker-extension-cls: the chart sets this flag itself."),
    ({**FLEET, "env.PYTHONPATH": "/mine"}, "env.PYTHONPATH: the chart sets this variable itself. Remove it."),
    ({"ingress.enabled": True}, "ingress.enabled: an Ingress needs a host name. Set ingress.host."),
    ({"httpRoute.enabled": True}, "httpRoute.enabled: an HTTPRoute needs a gateway. Set httpRoute.parentRefs."),
    (
        {"autoscaling": {"kind": "hpa", "minReplicas": 0}},
        "an HPA cannot scale to 0. Set it to 1 or more, or set autoscaling.kind=keda.",
    ),
    (
        {"autoscaling": {"minReplicas": 5}},
        "autoscaling.maxReplicas is less than autoscaling.minReplicas. Raise maxReplicas",
    ),
    (
        {"autoscaling.triggers": [{"type": "cron"}]},
        "autoscaling.triggers: only KEDA has triggers. Set autoscaling.kind=",
    ),
    (
        {"autoscaling.prometheusMetadata": {"authModes": "bearer"}},
        "autoscaling.prometheusMetadata: only KEDA has triggers. Set autoscaling.kind=keda, or remove it.",
    ),
    (
        {**KEDA, "autoscaling.prometheusMetadata": {"query": "up"}},
        "autoscaling.prometheusMetadata: the chart sets query itself. Remove it.",
    ),
    ({**KEDA, "autoscaling.authenticationRef": {"kind": "TriggerAuthentication"}}, "if 'kind' exists"),
    (
        {"autoscaling.kind": "keda"},
        "autoscaling.kind=keda asks Prometheus for series of this release, and nothing lets it scrape them. Set ",
    ),
    (
        {"autoscaling.kind": "hpa"},
        "autoscaling.kind=hpa asks Prometheus for series of this release, and nothing lets it scrape them. Set monitor",
    ),
    ({"autoscaling.kind": "hpa"}, "sets the label release; or name other metrics in autoscaling.metrics."),
    (
        {"monitoring.rules": True},
        "monitoring.rules asks Prometheus for series of this release, and nothing lets it scr",
    ),
    ({"drain.seconds": 5}, "at '/drain/seconds': minimum: got 5, want 30"),
    ({"startup.timeoutSeconds": "30m"}, "at '/startup/timeoutSeconds': got string, want integer"),
    ({"podSecurityContext.runAsUser": 0}, "at '/podSecurityContext/runAsUser': minimum: got 0, want 1"),
    ({"volumes": [{"name": "shm", "emptyDir": {}}]}, 'volumes: the chart has a volume "shm" already. Choose another'),
    ({"volumeMounts": [{"name": "x", "mountPath": "/x"}]}, 'volumeMounts: there is no volume "x". Use one of: '),
    (
        {"volumes": [{"name": "x"}], "volumeMounts": [{"name": "x", "mountPath": "/settings/"}]},
        'volumeMounts: the chart mounts /settings/ itself. Mount "x" somewhere else.',
    ),
    (
        {"sidecars": [{"name": "proxy", "image": "a:1"}]},
        'sidecars: there is a container "proxy" already. Choose another name.',
    ),
    (
        {"initContainers": [{"name": "a", "image": "a:1", "volumeMounts": [{"name": "x"}]}]},
        'initContainers: there is no volume "x" to mount. Use one of: ',
    ),
    ({"initContainers": [{"name": "a"}]}, "at '/initContainers/0': missing property 'image'"),
    ({"extraObjects": [{"kind": "Secret"}]}, "at '/extraObjects/0': missing properties 'apiVersion', 'metadata'"),
    (
        {"serviceAccount.annotations": {"a": "b"}},
        "serviceAccount.annotations: this release makes no service account. Set serviceAccount.create=true",
    ),
    ({"outbound.httpsProxy": "proxy:3128"}, "at '/outbound/httpsProxy': 'proxy:3128' does not match pattern"),
    ({"outbound.httpsProxy": "http://me:pw@proxy:3128"}, "'http://me:pw@proxy:3128' does not match pattern"),
    (
        {"outbound.caBundle": {"configMap": "a", "secret": "b"}},
        "outbound.caBundle: there are two bundles, configMap and secret. Remove one of them.",
    ),
    ({"model.env": {"STORAGE_URI": "a"}}, "model.env.STORAGE_URI: the chart sets this variable itself. Remove it."),
    (
        {"accelerator": "nvidia", "resources": {"limits": {"memory": "16Gi"}}},
        "resources or accelerators.nvidia.resources: requests.memory is 64Gi and limits.memory is 16Gi.",
    ),
    (
        {"containerResources.proxy.limits.memory": "16Mi"},
        "containerResources.proxy: requests.memory is 64Mi and limits.memory is 16Mi.",
    ),
    ({"containerResources.vllm": {"limits": {"cpu": "1"}}}, "additional properties 'vllm' not allowed"),
    ({"resources.limits": {"rdma/ib": 0}}, "at '/resources/limits/rdma~1ib': minimum: got 0, want 1"),
    ({"resources.limits": {"gpus": "1"}}, "at '/resources/limits': additional properties 'gpus' not allowed"),
    (
        {"resources": {"limits": {"rdma/ib": 2}, "requests": {"rdma/ib": 1}}},
        "limits.rdma/ib is 2 and requests.rdma/ib is 1, and Kubernetes wants them equal. Remove the request.",
    ),
    (
        {"accelerator": "nvidia", "resources.limits": {"nvidia.com/gpu": 8}},
        "nvidia.com/gpu is counted by devices or rdma. Remove it here, and set those instead.",
    ),
    (
        {"accelerators": {"cpu": {"deviceSelectors": ["true"]}}},
        "accelerators.cpu.deviceSelectors: only claims have selectors. Set deviceClassName, or remove them.",
    ),
    (
        {"chatTemplate": "a", "args.chat-template": "/claims/a"},
        "args.chat-template: the chart sets this flag itself. Remove it.",
    ),
    ({"commonLabels": {"stoker.dev/test": "a"}}, "commonLabels: the chart sets stoker.dev/test itself. Remove it."),
    ({"scratch.tmpSize": "ten"}, "'ten' does not match pattern"),
]


def settings(values: dict[str, Any]) -> list[str]:
    """Return values as Helm takes them one by one."""
    return [f"{path}={json.dumps(value)}" for path, value in values.items()]


def test_what_the_cases_break_is_accepted() -> None:
    assert manifests(template(VLLM_SERVING, settings=settings(GOOD)))


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=json.dumps)
def test_bad_values_are_refused(values: dict[str, Any], message: str) -> None:
    done = run("helm", *template_arguments(VLLM_SERVING, settings=settings(GOOD) + settings(values)))
    assert done.returncode != 0
    assert message in done.stderr
    assert ends_with_the_fix(done.stderr), done.stderr


@pytest.mark.parametrize("path", ["/PAUSE", "//pause", "/Pause/", "/v1//Load_lora_adapter"])
def test_a_control_path_is_refused_without_the_schema_too(path: str) -> None:
    values = settings({**GOOD, "api.paths": [path]})
    done = run("helm", *template_arguments(VLLM_SERVING, settings=values), "--skip-schema-validation")
    assert f"api.paths: {path} controls the server" in done.stderr


def test_what_a_values_file_leaves_empty_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    """`nodeSelector:` with nothing below it is how people leave it empty."""
    left = [
        "accelerators", "adapters", "affinity", "args", "env", "global", "imagePullSecrets", "images", "nodeSelector",
        "podAnnotations", "podLabels", "resources", "tolerations", "topologySpreadConstraints",
    ]  # fmt: skip
    empty = tmp_path / "values.yaml"
    empty.write_text(yaml.safe_dump(dict.fromkeys(left)))
    assert template(VLLM_SERVING, [empty], settings(GOOD)) == template(VLLM_SERVING, settings=settings(GOOD))


def test_a_label_that_the_chart_brings_can_be_taken_away() -> None:
    values = settings({**GOOD, "monitoring.dashboard": True, "monitoring.dashboardLabels.grafana_dashboard": None})
    assert "grafana_dashboard" not in template(VLLM_SERVING, settings=values)


def test_each_container_beside_vllm_has_resources_of_its_own() -> None:
    names = {"model": "model", "prepare": "prepare", "proxy": "proxy", "adapters": "adapters"}
    fleet = {"proxy": "fleetProxy", "fleet": "fleet"}
    given = {name: f"{index}Gi" for index, name in enumerate([*names, *fleet.values()], start=10)}
    limits = {f"containerResources.{name}.limits.memory": memory for name, memory in given.items()}
    uri = {"model": {"uri": "hf://Qwen/Qwen3-0.6B"}}
    shown = manifests(template(VLLM_SERVING, settings=settings({**GOOD, **uri, **FLEET, **limits})))
    pods = {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in shown if one["kind"] == "Deployment"}
    assert len(pods) == 2
    for pod, of in zip((pods[name] for name in sorted(pods, key=len)), (names, fleet), strict=True):
        told = {
            container["name"]: container["resources"]["limits"]["memory"]
            for container in (*pod.get("initContainers", ()), *pod["containers"])
            if container["name"] != "vllm"
        }
        assert told == {container: given[name] for container, name in of.items()}


def test_names_that_look_like_numbers_stay_text() -> None:
    named = {
        **GOOD,
        "model": {"claim": {"name": "007"}},
        "api.keySecret": "42",
        "priorityClassName": "1e3",
        "ingress": {"enabled": True, "host": "a.example.com", "className": "9", "tlsSecret": "8"},
    }
    objects = {item["kind"]: item for item in manifests(template(VLLM_SERVING, settings=settings(named)))}
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["claim-007"]["persistentVolumeClaim"]["claimName"] == "007"
    assert volumes["keys"]["secret"]["secretName"] == "42"
    assert pod["priorityClassName"] == "1e3"
    assert objects["Ingress"]["spec"]["ingressClassName"] == "9"
    assert objects["Ingress"]["spec"]["tls"][0]["secretName"] == "8"


def test_a_parent_chart_may_have_it_twice(tmp_path: Path) -> None:
    """Under two aliases, with switches and registry of its own, beside an object of the release's name."""
    parent = tmp_path / "parent"
    (parent / "charts").mkdir(parents=True)
    output("helm", "package", VLLM_SERVING, "--destination", parent / "charts")
    (package,) = (parent / "charts").iterdir()
    version = package.stem.removeprefix("vllm-serving-")
    aliases = [
        {"name": "vllm-serving", "version": version, "alias": alias, "condition": f"{alias}.enabled"}
        for alias in ("small", "large", "none")
    ]
    chart = {"apiVersion": "v2", "name": "parent", "version": "0.1.0", "dependencies": aliases}
    (parent / "Chart.yaml").write_text(yaml.safe_dump(chart))
    values = {name: {**GOOD, "fullnameOverride": f"one-{name}"} for name in ("small", "large")}
    whole = {**values, "none": {"enabled": False}, "global": {"imageRegistry": "registry.example.com"}}
    (parent / "values.yaml").write_text(json.dumps(whole))
    objects = manifests(output("helm", "template", "one", parent))
    names = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(set(names)) == len(names)
    assert {name.rpartition("-test")[0] or name for _, name in names} == {"one-small", "one-large"}
    pods = [item["spec"] for item in objects if item["kind"] == "Deployment"]
    assert len({json.dumps(pod["selector"], sort_keys=True) for pod in pods}) == 2
    images = {container["image"] for pod in pods for container in pod["template"]["spec"]["containers"]}
    assert all(image.startswith("registry.example.com/") for image in images)


def test_every_value_is_asked_for_and_no_other() -> None:
    schema = json.loads((VLLM_SERVING / "values.schema.json").read_text())
    text = "".join(path.read_text() for path in templates(VLLM_SERVING))
    asked = set(re.findall(r"\.Values\.([A-Za-z]+(?:\.[A-Za-z]+)*)", text)) | {"global.imageRegistry"}
    assert len(asked) > 60
    known = leaves(schema)
    unused = [path for path in known if not any(f"{path}.".startswith(f"{name}.") for name in asked)]
    assert unused == []
    assert [name for name in asked if not any(f"{path}.".startswith(f"{name}.") for path in known)] == []


def leaves(schema: dict[str, Any], prefix: str = "") -> set[str]:
    """Return the paths of single values; a map that users fill is one."""
    if not schema.get("properties") or "$ref" in schema:
        return {prefix}
    return {
        path for name, child in schema["properties"].items() for path in leaves(child, f"{prefix}.{name}".lstrip("."))
    }


def test_an_image_volume_needs_a_kubernetes_that_has_them() -> None:
    values = settings({**GOOD, "model": {"image": {"reference": "registry.example.com/model:1"}}})
    arguments = template_arguments(VLLM_SERVING, settings=values)
    refused = run("helm", *arguments, "--kube-version", "1.32.0")
    told = "model.image needs Kubernetes 1.33 or newer with the feature gate ImageVolume; this cluster has v1.32.0"
    assert told in refused.stderr
    assert run("helm", *arguments, "--kube-version", "1.33.0").returncode == 0


@pytest.mark.parametrize(
    ("values", "api"),
    [
        ({"monitoring.podMonitor": True}, "monitoring.coreos.com/v1"),
        ({"monitoring": {"rules": True, "scrapedElsewhere": True}}, "monitoring.coreos.com/v1"),
        ({"httpRoute": {"enabled": True, "parentRefs": [{"name": "a"}]}}, "gateway.networking.k8s.io/v1"),
        ({"autoscaling.kind": "keda", "monitoring.scrapedElsewhere": True}, "keda.sh/v1alpha1"),
    ],
)
def test_an_api_that_the_cluster_lacks_is_named(values: dict[str, Any], api: str) -> None:
    arguments: list[str | Path] = ["template", "one", VLLM_SERVING]
    for setting in settings({**GOOD, **values}):
        arguments += ["--set-json", setting]
    refused = run("helm", *arguments)
    assert f"The cluster does not serve {api}. Install " in refused.stderr
    assert run("helm", *arguments, "--api-versions", api).returncode == 0


def test_accelerator_profiles_are_the_catalogues() -> None:
    """Changed in values as there: one name, one shape."""
    changed = {**GOOD, "accelerator": "nvidia", "accelerators": {"nvidia": {"nodeSelector": {"gpu": "h100"}}}}
    objects = manifests(template(VLLM_SERVING, settings=settings(changed)))
    (deployment,) = (item for item in objects if item["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["nodeSelector"]["gpu"] == "h100"
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


def examples_in_the_document() -> list[dict[str, Any]]:
    document = (ROOT / "docs" / "guides" / "serving.md").read_text()
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", document, re.DOTALL)]


def test_every_example_in_the_document_renders() -> None:
    # A claim and the rules of a metrics adapter are not for the chart.
    examples = [example for example in examples_in_the_document() if not {"rules", "kind"} & example.keys()]
    assert len(examples) == 6
    for example in examples:
        assert manifests(template(VLLM_SERVING, settings=settings(example)))


def test_rules_for_identities_in_the_document_are_in_the_policy() -> None:
    document = (ROOT / "docs" / "guides" / "serving.md").read_text()
    rules = [yaml.safe_load(text) for text in re.findall(r"`(\{to: .*?\})`", document)]
    assert {rule["to"][0]["ipBlock"]["cidr"]: [port["port"] for port in rule["ports"]] for rule in rules} == {
        "169.254.169.254/32": [80, 8080],
        "169.254.169.252/32": [987, 988],
        "169.254.170.23/32": [80],
    }
    objects = manifests(template(VLLM_SERVING, settings=settings({**GOOD, "networkPolicy.egress": rules})))
    (policy,) = (item for item in objects if item["kind"] == "NetworkPolicy")
    assert [rule for rule in policy["spec"]["egress"] if "to" in rule and "ipBlock" in rule["to"][0]] == rules


def test_the_adapter_of_the_document_has_the_metrics_that_the_autoscaler_asks_for() -> None:
    (adapter,) = (example for example in examples_in_the_document() if "rules" in example)
    (rule,) = adapter["rules"]
    (states,) = re.findall(r'=~"vllm:num_requests_\((.*?)\)"', rule["seriesQuery"])
    offered = {
        re.sub(rule["name"]["matches"], rule["name"]["as"].replace("${1}", r"\1"), f"vllm:num_requests_{state}")
        for state in states.split("|")
    }
    values = {**GOOD, "autoscaling": {"kind": "hpa"}, "monitoring.scrapedElsewhere": True}
    objects = manifests(template(VLLM_SERVING, settings=settings(values)))
    (autoscaler,) = (item for item in objects if item["kind"] == "HorizontalPodAutoscaler")
    assert {metric["pods"]["metric"]["name"] for metric in autoscaler["spec"]["metrics"]} == offered


def test_the_readme_lists_every_value() -> None:
    _, _, values = (VLLM_SERVING / "README.md").read_text().partition("\n## Values\n")
    listed = set(re.findall(r"^\| ([A-Za-z.]+) \|", values, re.MULTILINE)) - {"Key"}
    schema = json.loads((VLLM_SERVING / "values.schema.json").read_text())
    assert {name.split(".")[0] for name in listed} == schema["properties"].keys()
    assert {"published.keep", "drain.seconds", "monitoring.dashboardLabels"} <= listed


def test_the_document_installs_this_version() -> None:
    document = (ROOT / "docs" / "guides" / "serving.md").read_text()
    version = yaml.safe_load((VLLM_SERVING / "Chart.yaml").read_text())["version"]
    assert set(re.findall(r"charts/vllm-serving --version (\S+)", document)) == {version}


def test_every_way_to_install_names_its_release_alone() -> None:
    """Two releases in one namespace share no object's name."""
    names = []
    for release in ("one", "two"):
        done = run("helm", "template", release, VLLM_SERVING, *(x for s in settings(GOOD) for x in ("--set-json", s)))
        names.append({(item["kind"], item["metadata"]["name"]) for item in yaml.safe_load_all(done.stdout) if item})
    assert names[0]
    assert not names[0] & names[1]
