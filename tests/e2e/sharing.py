"""How runs of asynchronous GRPO share a device for their samplers: by a claim, and in turns by a Lease."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from e2e.devices import CLASS
from e2e.kube import Kube
from e2e.rollouts import VALUES

#: The samplers' claim, and the template by which each trainer has one of its own.
SHARED, OWN = "samplers-gpu", "trainers-gpu"
#: Of a runtime whose trainers claim devices.
CLAIMS: Mapping[str, Any] = {
    "deviceClaims": [{"name": "gpu", "resourceClaimTemplateName": OWN}],
    "tolerations": [{"key": CLASS, "operator": "Exists"}],
}
#: Of a runtime whose samplers share a claim.
SAMPLERS: Mapping[str, Any] = {
    **VALUES["runtimes"]["trl-grpo-async"]["samplers"],  # type: ignore[index]
    "count": 1,
    "maxCount": 1,
    "deviceClaims": [{"name": "gpu", "resourceClaimName": SHARED}],
}
#: The Lease by which samplers take turns.
LEASE = "turns-gpu-0"


def holder(kube: Kube) -> str:
    """Return the host name of the pod that may use the device; empty if none."""
    lease = kube.get("lease", LEASE) or {}
    return str((lease.get("spec") or {}).get("holderIdentity") or "").rpartition("_")[0]


def take_turns(kube: Kube, samplers: Collection[str]) -> None:
    """Wait until each of the samplers, by host name, has had the device three times, and nobody else has.

    Raises:
        AssertionError: they did not in time, or another pod had it.
    """
    seen: list[str] = []
    deadline = time.monotonic() + 300
    while min(map(seen.count, samplers)) < 3:
        assert time.monotonic() < deadline, f"no turns: {seen}"
        now = holder(kube)
        if now and (not seen or seen[-1] != now):
            seen.append(now)
        time.sleep(0.3)
    assert {*seen} == {*samplers}
