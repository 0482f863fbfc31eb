"""API groups of what charts render."""

from __future__ import annotations

from charts import crds
from charts.helm import Manifest

CUSTOM = {
    "gateway.networking.k8s.io": crds.GATEWAY,
    "keda.sh": crds.KEDA,
    "monitoring.coreos.com": crds.PROMETHEUS_OPERATOR,
}
"""Groups of custom resources that charts render for controllers other than Trainer."""


def group(manifest: Manifest) -> str:
    """Return the group of an object's API, empty for the core's."""
    return str(manifest["apiVersion"]).rpartition("/")[0]
