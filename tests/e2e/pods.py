"""Parts of the pods that the tests run beside ours: as restricted as ours, with claims where programs find them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# What the restricted pod security standard asks for, with the user of our images.
POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 1001,
    "runAsGroup": 0,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def claim_volumes(claims: Sequence[str]) -> list[dict[str, Any]]:
    """Return the volumes of claims."""
    return [{"name": f"claim-{n}", "persistentVolumeClaim": {"claimName": claim}} for n, claim in enumerate(claims)]


def claim_mounts(claims: Sequence[str]) -> list[dict[str, Any]]:
    """Return the mounts of claims, at /claims/<name>."""
    return [{"name": f"claim-{n}", "mountPath": f"/claims/{claim}"} for n, claim in enumerate(claims)]
