"""What holds for every pod of every runtime, however the catalogue is installed."""

from __future__ import annotations

from charts.helm import Manifest
from charts.runtimes import containers, pods

# Pod Security Standard "restricted", as kubernetes.io/docs/concepts/security/pod-security-standards lists it.
ALLOWED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
HOST_FIELDS = {"hostNetwork", "hostPID", "hostIPC", "hostUsers"}


def test_pods_are_restricted(catalogue: list[Manifest]) -> None:
    for pod in pods(catalogue):
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context.get("runAsUser", 1) > 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not HOST_FIELDS & pod.keys()
        assert {kind for volume in pod["volumes"] for kind in volume.keys() - {"name"}} <= ALLOWED_VOLUMES


def test_containers_are_restricted(catalogue: list[Manifest]) -> None:
    for container in containers(catalogue):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["runAsNonRoot"] is True
        assert not {"privileged", "procMount", "runAsUser", "seccompProfile"} & context.keys()
        assert not any("hostPort" in port for port in container.get("ports", []))


def test_roots_are_read_only(catalogue: list[Manifest]) -> None:
    assert all(container["securityContext"]["readOnlyRootFilesystem"] is True for container in containers(catalogue))


def test_pods_get_no_token_of_a_service_account(catalogue: list[Manifest]) -> None:
    assert all(pod["automountServiceAccountToken"] is False for pod in pods(catalogue))


def test_containers_have_requests_and_limits(catalogue: list[Manifest]) -> None:
    """Namespaces with a ResourceQuota refuse others, and the SDK cannot read limits that name memory alone."""
    for container in containers(catalogue):
        for kind in ("requests", "limits"):
            assert {"cpu", "memory"} <= container["resources"][kind].keys()


def test_devices_are_requested_as_often_as_they_are_allowed(catalogue: list[Manifest]) -> None:
    """Kubernetes refuses anything else for extended resources."""
    for container in containers(catalogue):
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert {name: count for name, count in requests.items() if "/" in name} == {
            name: count for name, count in limits.items() if "/" in name
        }


def test_scratch_space_is_limited(catalogue: list[Manifest]) -> None:
    for pod in pods(catalogue):
        assert all("sizeLimit" in volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume)


def test_writable_mounts_stay_clear_of_the_images_own_files(catalogue: list[Manifest]) -> None:
    mounts = [mount for container in containers(catalogue) for mount in container["volumeMounts"]]
    writable = {mount["mountPath"] for mount in mounts if not mount.get("readOnly")}
    # Samplers have folders for what is decided before they start and for their turns, and nodes one that they share
    # with a release's.
    assert writable - {"/config", "/slice", "/adapters"} == {"/workspace", "/dev/shm", "/cache", "/tmp"}
