"""Devices that pods claim: the cluster's add-on, and the objects by which pods have them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from cluster import Cluster, optional
from e2e.kube import Kube

VERSION = "resource.k8s.io/v1"
#: Class of the add-on's devices, its driver's name, and the key of its node's taint.
CLASS = "gpu.example.com"
#: The add-on's node, whose containerd is newer than the others', and how many devices it has.
NODE, COUNT = "node-3", 3


@pytest.fixture(scope="module")
def devices(cluster: Cluster) -> Iterator[None]:
    """A node whose devices pods can claim; one that was there before stays."""
    if cluster.provider.name != "embedded":
        pytest.skip(f"the provider {cluster.provider.name} has no node with devices that do not exist")
    was_there = optional.has(cluster, "dra")
    try:
        if not was_there:
            optional.add(cluster, "dra")
        yield
    finally:
        if not was_there:
            optional.remove(cluster, "dra")


def claims_exist(kube: Kube) -> bool:
    """Return whether the API server knows claims of devices."""
    return kube.kubectl("get", "--raw", f"/apis/{VERSION}", check=False).returncode == 0


def device_class(name: str) -> dict[str, Any]:
    """Return a class of the devices of the driver with that name."""
    selectors = [{"cel": {"expression": f"device.driver == '{name}'"}}]
    return {"apiVersion": VERSION, "kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": selectors}}


def claim(name: str, of: str) -> dict[str, Any]:
    """Return a claim of one device of a class."""
    return {"apiVersion": VERSION, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": _one(of)}


def template(name: str, of: str) -> dict[str, Any]:
    """Return what gives each pod that names it a claim of its own, of one device of a class."""
    spec = {"spec": _one(of)}
    return {"apiVersion": VERSION, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": spec}


def offer(node: str, driver: str, count: int) -> dict[str, Any]:
    """Return what a driver says of the devices of a node."""
    spec = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{number}"} for number in range(count)],
    }
    return {"apiVersion": VERSION, "kind": "ResourceSlice", "metadata": {"name": node}, "spec": spec}


def users_of(claim: Mapping[str, Any]) -> set[str]:
    """Return the uids of the pods that have a claim's devices."""
    return {str(one["uid"]) for one in claim.get("status", {}).get("reservedFor", ())}


def devices_of(claim: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the devices that a claim has got, each with its pool, which is its node's name."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    return {(str(one["pool"]), str(one["device"])) for one in results}


def own_claim(kube: Kube, pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the claim that a pod has got from its template; empty while there is none."""
    made = pod["status"].get("resourceClaimStatuses", ())
    return (kube.get("resourceclaim", made[0]["resourceClaimName"]) if made else None) or {}


def seen_by(kube: Kube, pod: Mapping[str, Any], container: str) -> set[str]:
    """Return the devices that a container has, by the variables that the driver gives it."""
    said = kube.kubectl("exec", pod["metadata"]["name"], "--container", container, "--", "env").stdout
    return set(re.findall(r"^GPU_DEVICE_\d+=(.*)$", said, re.MULTILINE))


def _one(of: str) -> dict[str, Any]:
    return {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": of}}]}}
