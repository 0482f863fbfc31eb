"""JSON schemas of custom resources, made from the CRDs in the Go modules of those who define them, for kubeconform."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from images.builder import cache


class _Loader(yaml.CSafeLoader):
    """Takes a plain `=` for text: a CRD has it among a field's values, and PyYAML has no meaning for it."""


_Loader.add_constructor("tag:yaml.org,2002:value", lambda loader, node: str(node.value))

LOCATION = "{{ .Group }}/{{ .ResourceKind }}_{{ .ResourceAPIVersion }}.json"
"""Where a schema lies below the folder of its release, as kubeconform's -schema-location takes it."""


@dataclass(frozen=True)
class Release:
    """A release of an API.

    Attributes:
        name: a short name of the API, unique among them.
        module: the Go module whose source has its CRDs.
        version: the module's version.
        files: the CRDs that are needed, as paths in the module.
    """

    name: str
    module: str
    version: str
    files: tuple[str, ...]


PROMETHEUS_OPERATOR = Release(
    "prometheus-operator",
    "github.com/prometheus-operator/prometheus-operator",
    "v0.85.0",
    tuple(
        f"example/prometheus-operator-crd/monitoring.coreos.com_{name}.yaml"
        for name in ("podmonitors", "prometheusrules")
    ),
)
GATEWAY = Release(
    "gateway-api",
    "sigs.k8s.io/gateway-api",
    "v1.6.3",
    ("config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",),
)
KEDA = Release("keda", "github.com/kedacore/keda/v2", "v2.21.0", ("config/crd/bases/keda.sh_scaledobjects.yaml",))
KUEUE = Release(
    "kueue",
    "sigs.k8s.io/kueue",
    "v0.16.1",
    tuple(
        f"config/components/crd/bases/kueue.x-k8s.io_{name}.yaml"
        for name in ("clusterqueues", "localqueues", "resourceflavors", "workloadpriorityclasses")
    ),
)


def schema_location(release: Release) -> str:
    """Return kubeconform's -schema-location for a release, making the schemas first where they are missing.

    Raises:
        RuntimeError: Go could not download the module; the message holds what it said.
    """
    key = cache.digest(files=[Path(__file__)])
    folder = cache.root() / "schemas" / f"{release.name}-{release.version}-{key}"
    cache.entry(folder, release.name, lambda empty: _write(release, empty))
    return f"{folder}/{LOCATION}"


def _write(release: Release, folder: Path) -> None:
    origin = source(release)
    for path in release.files:
        crd = yaml.load((origin / path).read_bytes(), _Loader)["spec"]
        for served in crd["versions"]:
            kind = crd["names"]["kind"].lower()
            target = folder / crd["group"] / f"{kind}_{served['name']}.json"
            target.parent.mkdir(exist_ok=True)
            target.write_text(json.dumps(strict(served["schema"]["openAPIV3Schema"])))


def source(release: Release) -> Path:
    """Return the source of a release, which Go downloads into its module cache and checks against its sum database.

    Raises:
        RuntimeError: Go could not download the module; the message holds what it said.
    """
    module = f"{release.module}@{release.version}"
    done = subprocess.run(["go", "mod", "download", "-json", module], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"go mod download {module}: {done.stdout}{done.stderr}")
    return Path(json.loads(done.stdout)["Dir"])


def strict(schema: Any) -> Any:
    """Return an OpenAPI schema of a CRD as a JSON schema that refuses unknown fields.

    The API server prunes such fields in silence unless a client asks it to refuse them.
    """
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: strict(value) for key, value in schema.items()}
    if "properties" in result and not result.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    return result
