"""Cluster DNS, storage and the class of devices: manifests with names and the cluster's own images filled in."""

from __future__ import annotations

from pathlib import Path
from string import Template

from .commands import Run
from .images import COREDNS_IMAGE, LOCAL_PATH_PROVISIONER_IMAGE, VOLUME_HELPER_IMAGE

_MANIFESTS = Path(__file__).parent / "manifests"
#: The class of dra-example-driver's devices, which is the driver's name too.
DEVICE_CLASS = "gpu.example.com"


def dns_manifest(registry: str, node: str, address: str, domain: str) -> str:
    """Return the manifest of CoreDNS.

    Args:
        registry: host:port of the registry that has the image.
        node: The node to run on.
        address: The Service's address, which kubelets write into pods.
        domain: The cluster's domain.
    """
    return _render("coredns.yaml", image=f"{registry}/{COREDNS_IMAGE.name}", node=node, address=address, domain=domain)


def storage_manifest(registry: str, node: str, folder: str) -> str:
    """Return the manifest of the default StorageClass and its provisioner.

    Args:
        registry: host:port of the registry that has the images.
        node: The node to run on.
        folder: What all nodes see at the same path, and volumes are made in.
    """
    return _render(
        "storage.yaml",
        image=f"{registry}/{LOCAL_PATH_PROVISIONER_IMAGE.name}",
        helper_image=f"{registry}/{VOLUME_HELPER_IMAGE.name}",
        node=node,
        folder=folder,
    )


def device_class_manifest() -> str:
    """Return the manifest of the class by which pods claim dra-example-driver's devices."""
    return _render("devices.yaml", driver=DEVICE_CLASS)


def apply(run: Run, manifest: str) -> None:
    """Apply a manifest.

    Raises:
        ClusterError: kubectl failed.
    """
    run(["kubectl", "apply", "--server-side", "-f", "-"], manifest)


def _render(name: str, **values: str) -> str:
    return Template((_MANIFESTS / name).read_text()).substitute(values)
