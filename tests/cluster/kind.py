"""The kind provider: the same cluster in containers, where a Docker engine answers."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from . import addons, artifacts, controllers, images, package, tools
from .commands import capture
from .errors import CannotRunHereError, ClusterError
from .progress import say, step
from .provider import Health, Provider, client_environment, docker_answers

NAME = "cluster-test"
REGISTRY_CONTAINER = f"{NAME}-registry"
_REGISTRY_IMAGE = "docker.io/library/registry:3"
#: The registry on this machine's loopback; nodes reach the same name by way of `registry_hosts`.
REGISTRY = "localhost:5001"
#: All nodes see one folder of this machine here, which is what makes volumes read-write-many.
_VOLUMES = "/var/lib/cluster-volumes"
_IMAGES = (
    images.LOCAL_PATH_PROVISIONER_IMAGE,
    images.VOLUME_HELPER_IMAGE,
    images.JOBSET_IMAGE,
    images.TRAINER_IMAGE,
)
WORKERS = (f"{NAME}-worker", f"{NAME}-worker2")


class KindProvider(Provider):
    """A control plane and two workers made by kind, and a registry container beside them."""

    name = "kind"
    system_node = WORKERS[0]

    def up(self) -> None:
        """Make the cluster, or replace one that is outdated, unhealthy or not complete."""
        self._check()
        wanted = package.fingerprint()
        if _finished() == wanted and all(health.healthy for health in self.status()):
            say("the kind cluster is already up, healthy and current")
            return
        tools.find()
        programs = artifacts.build(image.module for image in _IMAGES)
        self.down()
        with step("creating the kind cluster"):
            volumes = _state() / "volumes"
            volumes.mkdir(parents=True, exist_ok=True)
            capture(registry_command())
            capture(create_command(), stdin=cluster_config(volumes))
            capture(["docker", "network", "connect", "kind", REGISTRY_CONTAINER])
            for node in capture(["kind", "get", "nodes", "--name", NAME]).split():
                capture(hosts_command(node), stdin=registry_hosts())
        with step(f"pushing {len(_IMAGES)} images to the registry at {REGISTRY}"):
            images.publish(_IMAGES, programs, REGISTRY, self._run)
        # kind's own provisioner serves one node a volume; ours takes its place.
        self._run(["kubectl", "delete", "storageclass", "standard"])
        self._run(["kubectl", "delete", "namespace", "local-path-storage"])
        addons.apply(self._run, addons.storage_manifest(REGISTRY, WORKERS[0], _VOLUMES))
        controllers.install(self._run, programs, REGISTRY, WORKERS[0])
        with step("waiting for controllers and webhooks"):
            controllers.wait(self._run, 300)
        _fingerprint().write_text(wanted)

    def down(self) -> None:
        """Delete the cluster, the registry container and their files."""
        self._check()
        capture(["kind", "delete", "cluster", "--name", NAME, "--kubeconfig", str(_kubeconfig())])
        if capture(["docker", "ps", "--all", "--quiet", "--filter", f"name=^{REGISTRY_CONTAINER}$"]).strip():
            capture(["docker", "rm", "--force", "--volumes", REGISTRY_CONTAINER])
        shutil.rmtree(_state(), ignore_errors=True)

    def status(self) -> list[Health]:
        """Return the state of the nodes and Deployments."""
        try:
            self.wrap([])
            nodes = json.loads(self._run(["kubectl", "get", "nodes", "-o", "json"]))["items"]
            found = [Health(f"node/{item['metadata']['name']}", controllers.is_ready(item), "") for item in nodes]
            for name, available in controllers.deployments(self._run).items():
                found.append(Health(f"deployment/{name}", available, "Available" if available else "not Available"))
        except ClusterError as error:
            return [Health("kind cluster", healthy=False, detail=str(error))]
        return found

    def environment(self) -> dict[str, str]:
        """Return the clients' variables; PATH holds helm and crane, and kubectl has to be there already."""
        folders = dict.fromkeys(str(path.parent) for path in tools.find().values())
        path = os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)])
        return client_environment(str(_kubeconfig()), REGISTRY, plain_http=True, path=path)

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """Return the command as it is: kind's cluster and registry answer on this machine's loopback."""
        if not _kubeconfig().exists():
            raise ClusterError("this machine has no kind cluster for tests: start one with `up`")
        return list(argv)

    def _run(self, argv: Sequence[str], stdin: str = "") -> str:
        return capture(self.wrap(argv), {**os.environ, **self.environment()}, stdin)

    def _check(self) -> None:
        missing = [program for program in ("docker", "kind", "kubectl") if not shutil.which(program)]
        if missing:
            raise CannotRunHereError(f"the kind provider needs {', '.join(missing)} on PATH (https://kind.sigs.k8s.io)")
        if not docker_answers():
            raise CannotRunHereError("the kind provider needs a Docker engine, but `docker info` fails")


def cluster_config(volumes: Path) -> str:
    """Return kind's configuration (JSON, which is YAML).

    Args:
        volumes: The folder of this machine that volumes are made in.
    """
    mounts = [{"hostPath": str(volumes), "containerPath": _VOLUMES}]
    return json.dumps(
        {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "containerdConfigPatches": [
                '[plugins."io.containerd.grpc.v1.cri".registry]\n  config_path = "/etc/containerd/certs.d"\n'
            ],
            "nodes": [{"role": "control-plane"}, *({"role": "worker", "extraMounts": mounts} for _ in WORKERS)],
        }
    )


def create_command() -> list[str]:
    """Return kind's command line; the configuration comes on its standard input."""
    kubeconfig = ["--kubeconfig", str(_kubeconfig())]
    return ["kind", "create", "cluster", "--name", NAME, "--config", "-", "--wait", "180s", *kubeconfig]


def registry_command() -> list[str]:
    """Return the command that starts the registry, on this machine's loopback only."""
    port = REGISTRY.rpartition(":")[2]
    return ["docker", "run", "--detach", "--name", REGISTRY_CONTAINER, "-p", f"127.0.0.1:{port}:5000", _REGISTRY_IMAGE]


def registry_hosts() -> str:
    """Return the hosts.toml that sends a node's pulls from the loopback name to the registry container."""
    return f'[host."http://{REGISTRY_CONTAINER}:5000"]\n'


def hosts_command(node: str) -> list[str]:
    """Return the command that writes its standard input to a node's hosts.toml."""
    folder = f"/etc/containerd/certs.d/{REGISTRY}"
    return ["docker", "exec", "-i", node, "sh", "-c", f"mkdir -p {folder} && cat > {folder}/hosts.toml"]


def _state() -> Path:
    return artifacts.cache_root() / "cluster" / "kind"


def _finished() -> str:
    """Return the fingerprint of the package whose `up` got to its end; empty if none did."""
    try:
        return _fingerprint().read_text()
    except OSError:
        return ""


def _fingerprint() -> Path:
    return _state() / "fingerprint"


def _kubeconfig() -> Path:
    return _state() / "kubeconfig"
