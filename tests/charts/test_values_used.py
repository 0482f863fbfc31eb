"""Every value of the catalogue reaches what is rendered, and templates ask for no value that does not exist."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest

from charts.helm import TRAINING_RUNTIMES, run, template_arguments, templates

SCHEMA = json.loads((TRAINING_RUNTIMES / "values.schema.json").read_text())
# Values under which all others matter: a runtime of each framework, one of them with claimed devices, one with
# samplers, and rules.
BASE = {
    "profile": "none",
    "accelerator": "nvidia-dra",
    "runtimes": {
        "trl-distributed": {"enabled": True, "accelerator": "cpu", "podGroupPolicy": {}},
        # A gang and jobs that fetch exclude each other.
        "torchtune-distributed": {"enabled": True, "initializers": False},
        "trl-grpo-async": {
            "enabled": True,
            "accelerator": "cpu",
            "samplers": {"slice": {"lease": "gpu-0"}},
            "podGroupPolicy": {},
        },
    },
    "policies": {"enabled": True, "otherRuntimes": ["other"]},
}
POLICY = "kind: ValidatingAdmissionPolicy\nmetadata:\n  name: training-runtimes-"
# Path of a value → what it is set to, and what of that is rendered. Those of one map are set together.
REACH: list[dict[str, tuple[Any, str]]] = [
    {
        "commonAnnotations": ({"example.com/a": "common"}, "example.com/a: common"),
        "commonLabels": ({"example.com/l": "common"}, "example.com/l: common"),
        "extraObjects": ([{"apiVersion": "v1", "kind": "Own", "metadata": {"name": "own"}}], "kind: Own"),
        "global.imageRegistry": ("mirror.example.com", 'image: "mirror.example.com/stoker-dev/trl:'),
        "imagePullPolicy": ("Always", "imagePullPolicy: Always"),
        "imagePullSecrets": ([{"name": "puller"}], "- name: puller"),
        "initializers.annotations": ({"example.com/fetch": "mine"}, "example.com/fetch: mine"),
        "initializers.backoffLimit": (17, "backoffLimit: 17"),
        "initializers.env": ({"HF_ENDPOINT": "https://hub.example.com"}, 'value: "https://hub.example.com"'),
        "initializers.initContainers": ([{"name": "first", "image": "first:1"}], "image: first:1"),
        "initializers.resources.limits": ({"cpu": "17", "memory": "17Gi"}, "memory: 17Gi"),
        "initializers.resources.requests": ({"cpu": "16", "memory": "16Gi"}, "memory: 16Gi"),
        "initializers.schedulerName": ("fetching", "schedulerName: fetching"),
        "initializers.sidecars": ([{"name": "beside", "image": "beside:1"}], "image: beside:1"),
        "initializers.volumeMounts": ([{"name": "own", "mountPath": "/own"}], "mountPath: /own"),
        "initializers.volumes": ([{"name": "own", "configMap": {"name": "own-files"}}], "name: own-files"),
        "keep": (True, "helm.sh/resource-policy: keep\n    argocd.argoproj.io/"),  # of a runtime
        "monitoring.dashboard": (True, "grafana_dashboard"),
        "monitoring.dashboardLabels": ({"example.com/board": "yes"}, 'example.com/board: "yes"'),
        "monitoring.intervalSeconds": (177, "interval: 177s"),
        "monitoring.labels": ({"example.com/watched": "by-us"}, "example.com/watched: by-us"),
        "monitoring.perNamespace": (True, "matchNames:\n      - team-a\n"),
        "monitoring.podMonitor": (True, "kind: PodMonitor"),
        "monitoring.port": (17_788, "containerPort: 17788"),
        "monitoring.rules": (True, "kind: PrometheusRule"),
        "monitoring.stillSeconds": (1789, "> 1789"),
        "names.style": ("both", "name: trl-distributed-line"),
        "names.version": ("line", "name: trl-distributed-line"),
        "namespaces": (["team-a"], "namespace: team-a"),
        "networkPolicy.apiServer.cidrs": (["10.0.0.10/32"], 'cidr: "10.0.0.10/32"'),
        "networkPolicy.apiServer.ports": ([16443], "port: 16443"),
        "networkPolicy.prometheusFrom": ([{"podSelector": {"matchLabels": {"app": "watcher"}}}], "app: watcher"),
        "nodeSelector": ({"example.com/pool": "gpus"}, "example.com/pool: gpus"),
        "outbound.caBundle.configMap": ("authorities", 'name: "authorities"'),
        "outbound.caBundle.key": ("own.pem", 'key: "own.pem"'),
        "outbound.httpProxy": ("http://one.example.com:1", 'value: "http://one.example.com:1"'),
        "outbound.httpsProxy": ("http://two.example.com:2", 'value: "http://two.example.com:2"'),
        "outbound.noProxy": (["direct.example.com"], 'google.internal,direct.example.com"'),
        "podGroupPolicy": ({"coscheduling": {"scheduleTimeoutSeconds": 97}}, "scheduleTimeoutSeconds: 97"),
        "podSecurityContext.fsGroup": (1017, "fsGroup: 1017"),
        "podSecurityContext.runAsGroup": (1018, "runAsGroup: 1018"),
        "podSecurityContext.runAsUser": (1019, "runAsUser: 1019"),
        "podSecurityContext.supplementalGroups": ([1020], "- 1020"),
        "policies.imageRegistries": ({"enabled": True, "mode": ""}, f"{POLICY}image-registries.default\n"),
        "policies.maxNodes": ({"enabled": True, "mode": ""}, f"{POLICY}max-nodes.default\n"),
        "policies.queue": ({"enabled": True, "mode": ""}, f"{POLICY}queue.default\n"),
        "policies.mode": ("deny", "validationActions: [Deny, Audit]"),
        "policies.namespaceSelector": ({"example.com/rules": "on"}, 'example.com/rules: "on"'),
        "policies.nodes": (19, 'expression: "19"'),
        "policies.otherRuntimes": (["theirs"], 'expression: "[\\"theirs\\"]"'),
        "policies.queueLabel": ("example.com/queue", 'expression: "\\"example.com/queue\\""'),
        "policies.registries": (["team.example.com"], 'expression: "[\\"team.example.com\\"]"'),
        "priorityClassName": ("urgent", "priorityClassName: urgent"),
        "rendezvousTimeoutSeconds": (1701, '"1701"'),
        "retries.maxRestarts": (18, "maxRestarts: 18"),
        "schedulerName": ("training", "schedulerName: training"),
        "separateRoles": (True, "stoker.dev/role: trainer"),
        "serviceAccount.annotations": ({"example.com/role": "reader"}, "example.com/role: reader"),
        "serviceAccount.create": (True, "training-runtimes/templates/serviceaccount.yaml"),
        "serviceAccount.name": ("models", "serviceAccountName: models"),
        "serviceAccount.tokenAudience": ("sts.example.com", 'audience: "sts.example.com"'),
        "scratch.cacheSize": ("171Gi", 'sizeLimit: "171Gi"'),
        "scratch.tmpSize": ("172Gi", 'sizeLimit: "172Gi"'),
        "terminationGracePeriodSeconds": (173, "terminationGracePeriodSeconds: 173"),
        "test.labels": ({"example.com/test": "label"}, "example.com/test: label"),
        "test.timeoutSeconds": (174, '- "174"'),
        "tolerations": ([{"key": "example.com/taint", "operator": "Exists"}], "key: example.com/taint"),
        "tracking.endpoint": ("https://wandb.example.com", 'value: "https://wandb.example.com"'),
        "tracking.kind": ("wandb", "name: STOKER_ARG_REPORT_TO"),
        "tracking.project": ("tracked", 'value: "tracked"'),
        "tracking.secret.key": ("key-of-wandb", "key: key-of-wandb"),
        "tracking.secret.name": ("secret-of-wandb", "name: secret-of-wandb"),
        "workspace.accessModes": (["ReadWriteOnce"], "- ReadWriteOnce\n"),
        "workspace.retention": ("Delete", "whenDeleted: Delete"),
        "workspace.size": ("175Gi", 'storage: "175Gi"'),
        "workspace.storageClassName": ("fast", 'storageClassName: "fast"'),
    },
    {
        f"images.{name}.{field}": (value, text)
        for name in ("fetch", "proxy", "torchtune", "trl", "vllm")
        for field, value, text in (
            ("repository", f"own.example.com/{name}", f'image: "own.example.com/{name}:'),
            ("tag", f"tag-of-{name}", f":tag-of-{name}@"),
            ("digest", f"sha256:{'c0ffee00' * 8}", f"tag-of-{name}@sha256:{'c0ffee00' * 8}"),
        )
    },
    {
        "scratch.cacheClaim": ("caches", "claimName: caches"),
        "workspace.existingClaim": ("runs", "claimName: runs"),
        "kind": ("TrainingRuntime", "kind: TrainingRuntime\n"),
    },
    {"monitoring.scrapedElsewhere": (True, "name: STOKER_METRICS_PORT")},
    {"outbound.caBundle.secret": ("authorities", 'secretName: "authorities"')},
    {"accelerator": ("nvidia", "nvidia.com/gpu: ")},
    {"accelerators": ({"nvidia-dra": {"deviceClassName": "own.example.com"}}, "deviceClassName: own.example.com")},
    {"profile": ("all", "name: trl-qwen3-8b\n")},
    {"runtimes": ({"mine": {"base": "trl-qwen3-8b"}}, "name: mine\n")},
]
# Path of a value → what it is set to, and what is gone from what was rendered.
REMOVAL: dict[str, tuple[Any, str]] = {
    "enabled": (False, "kind: ClusterTrainingRuntime\n"),
    "initializers.enabled": (False, "name: dataset-initializer\n"),
    "networkPolicy.enabled": (False, "training-runtimes/templates/networkpolicy-samplers.yaml"),
    "policies.catalogueRuntimes": ({"enabled": False, "mode": ""}, f"{POLICY}catalogue-runtimes.default\n"),
    "policies.enabled": (False, POLICY),
    "policies.nameLength": ({"enabled": False, "mode": ""}, f"{POLICY}name-length.default\n"),
    "policies.noDeprecatedRuntimes": ({"enabled": False, "mode": ""}, f"{POLICY}no-deprecated-runtimes.default\n"),
    "test.enabled": (False, "helm.sh/hook: test"),
}
# What decides about a refusal, and has tests of its own.
REFUSALS = {"skipApiCheck", "skipUpgradeCheck"}


def paths(schema: dict[str, Any], prefix: str = "") -> set[str]:
    """Return the paths of single values; a map that users fill is one."""
    if not schema.get("properties") or "$ref" in schema:
        return {prefix}
    return {
        path for name, child in schema["properties"].items() for path in paths(child, f"{prefix}.{name}".lstrip("."))
    }


def rendered(changes: dict[str, Any]) -> str:
    """Return what the base renders with changes."""
    settings = [f"{path}={json.dumps(value)}" for path, value in (BASE | changes).items()]
    done = run("helm", *template_arguments(TRAINING_RUNTIMES, settings=settings))
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def base() -> str:
    """Return what the base renders."""
    return rendered({})


def test_every_value_has_a_row() -> None:
    rows = {path for group in REACH for path in group} | REMOVAL.keys() | REFUSALS
    assert rows == paths(SCHEMA)


@pytest.mark.parametrize("group", REACH, ids=lambda group: f"{next(iter(group))}-{len(group)}")
def test_every_value_reaches_what_is_rendered(group: dict[str, tuple[Any, str]]) -> None:
    changed = rendered({path: value for path, (value, _) in group.items()})
    assert [path for path, (_, text) in group.items() if text in base() or text not in changed] == []


@pytest.mark.parametrize("path", REMOVAL)
def test_every_switch_takes_away_what_it_is_for(path: str) -> None:
    value, text = REMOVAL[path]
    assert text in base()
    assert text not in rendered({path: value})


def test_templates_ask_for_no_value_that_does_not_exist() -> None:
    known = paths(SCHEMA)
    asked = {
        path
        for template in templates(TRAINING_RUNTIMES)
        for path in re.findall(r"(?:\.Values|\$values)\.([A-Za-z.]*[A-Za-z])", template.read_text())
    }
    assert len(asked) > 30
    # A part of a value, a value, or a group of them.
    assert [
        path
        for path in sorted(asked)
        if not any(f"{path}.".startswith(f"{name}.") or name.startswith(f"{path}.") for name in known)
    ] == []
