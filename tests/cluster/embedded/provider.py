"""The embedded provider: a whole Kubernetes cluster out of package registries, on one Linux machine, as root."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .. import addons, artifacts, controllers, images, package, tools
from ..artifacts import KUBERNETES, REGISTRY, GoModule
from ..commands import capture
from ..errors import ClusterError
from ..progress import say, step, wait_for
from ..provider import Health, Provider, client_environment
from . import cgroups, control_plane, devices, host, layout, network, node, pki, processes, state, teardown
from .layout import BIN, DEVICE_NODE, FIRST, LOGS, NODES
from .processes import PROBE_SECONDS, Daemon

_IMAGES = (
    images.PAUSE_IMAGE,
    images.COREDNS_IMAGE,
    images.LOCAL_PATH_PROVISIONER_IMAGE,
    images.VOLUME_HELPER_IMAGE,
    images.JOBSET_IMAGE,
    images.TRAINER_IMAGE,
)


class EmbeddedProvider(Provider):
    """Two nodes in two network namespaces, nothing of it reachable from the machine's own network, nor the reverse."""

    name = "embedded"
    system_node = FIRST.name

    def up(self) -> None:
        """Start the cluster, or replace one that is outdated or unhealthy."""
        host.check()
        with state.lock():
            wanted = package.fingerprint()
            found = state.read()
            if found and found.fingerprint == wanted and self._is_or_gets_healthy():
                # The tools may have been built anew since, or come from another checkout.
                _link(tools.find())
                say("the cluster is already up, healthy and current")
                return
            host.install_missing()
            host.load_modules()
            clients = tools.find()
            modules = [KUBERNETES, REGISTRY, *(image.module for image in _IMAGES)]
            programs = artifacts.build(modules)
            if leftovers := teardown.leftovers():
                why = "outdated" if found and found.fingerprint != wanted else "unhealthy"
                with step(f"removing the {why} cluster ({', '.join(leftovers)})"):
                    teardown.remove_everything()
            self._start(programs, clients)
            state.write(state.State(wanted))

    def down(self) -> None:
        """Remove the cluster, whoever started it."""
        host.check()
        with state.lock():
            leftovers = teardown.leftovers()
            if not leftovers:
                say("this machine has no cluster")
                return
            with step(f"removing {', '.join(leftovers)}"):
                teardown.remove_everything()

    def status(self) -> list[Health]:
        """Return the state of every daemon, node and Deployment."""
        daemons = self._daemons(Path(), Path())
        found = []
        for daemon in daemons:
            pid = processes.pid_of(daemon)
            found.append(Health(daemon.name, pid is not None, f"process {pid}" if pid else "not running"))
        if not all(health.healthy for health in found):
            return found
        try:
            ready = self._ready_nodes()
            for expected in self._nodes():
                healthy = ready.get(expected.name, False)
                found.append(Health(f"node/{expected.name}", healthy, "Ready" if healthy else "not Ready"))
            for name, available in controllers.deployments(self._run).items():
                found.append(Health(f"deployment/{name}", available, "Available" if available else "not Available"))
        except ClusterError as error:
            found.append(Health("API server", False, str(error)))
        return found

    def add_devices(self) -> None:
        """Join a node with devices that pods can claim; at once if it is there and healthy."""
        host.check()
        with state.lock():
            found = state.read()
            if found is None or found.fingerprint != package.fingerprint():
                raise ClusterError("there is no cluster, or another version of this package made it: run `up` first")
            if devices.is_there() and self._is_or_gets_healthy():
                return
            programs = artifacts.build([KUBERNETES, *devices.MODULES])
            if devices.is_there():
                devices.leave(self._run)
            toml = devices.containerd_config(host.cni_folder(), self._pause_image(), not host.may_raise_limits())
            devices.join(self._run, programs[KUBERNETES], programs, toml)

    def remove_devices(self) -> None:
        """Remove that node with its pods, or the half of it."""
        host.check()
        with state.lock(), step(f"removing {DEVICE_NODE.name}"):
            devices.leave(self._run)

    def environment(self) -> dict[str, str]:
        """Return the clients' variables; PATH holds kubectl, helm and crane."""
        path = os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)])
        return client_environment(str(pki.ADMIN.kubeconfig), layout.REGISTRY, plain_http=True, path=path)

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs in the first node's network namespace."""
        host.check()
        namespace = network.path(FIRST)
        if not namespace.exists():
            raise ClusterError("this machine has no embedded cluster: start one with `up`")
        return ["nsenter", f"--net={namespace}", "--", *argv]

    def _run(self, argv: Sequence[str], stdin: str = "") -> str:
        return capture(self.wrap(argv), {**os.environ, **self.environment()}, stdin)

    def _daemons(self, kubernetes: Path, registry: Path) -> list[Daemon]:
        """Return every daemon in the order they are started."""
        daemons = [
            control_plane.registry(registry),
            control_plane.etcd(kubernetes),
            control_plane.api_server(kubernetes),
            control_plane.controller_manager(kubernetes),
            control_plane.scheduler(kubernetes),
        ]
        for each in NODES:
            daemons += [
                node.mounts(each),
                node.containerd(each),
                node.kubelet(each, kubernetes),
                node.kube_proxy(each, kubernetes),
            ]
        return [*daemons, *devices.daemons()]

    def _nodes(self) -> list[layout.Node]:
        """Return the nodes that the cluster has now."""
        return [*NODES, *([DEVICE_NODE] if devices.is_there() else [])]

    def _start(self, programs: dict[GoModule, Path], clients: dict[str, Path]) -> None:
        kubernetes = programs[KUBERNETES]
        registry = control_plane.registry(programs[REGISTRY] / REGISTRY.name)

        say("creating namespaces, keys and configuration")
        teardown.make_private_folders()
        cgroups.create(NODES)
        network.create()
        pki.create()
        self._write_files(kubernetes, clients)

        say("starting registry, etcd and API server")
        etcd, api_server = control_plane.etcd(kubernetes), control_plane.api_server(kubernetes)
        for daemon in (registry, etcd, api_server):
            processes.start(daemon)
        self._wait(registry, ["crane", "catalog", "--insecure", layout.REGISTRY])
        with step(f"pushing {len(_IMAGES)} images to the registry at {layout.REGISTRY}"):
            images.publish(_IMAGES, programs, layout.REGISTRY, self._run)
        self._wait(api_server, ["kubectl", "get", "--raw", "/readyz"])

        say("starting controller manager, scheduler and the nodes")
        processes.start(control_plane.controller_manager(kubernetes))
        processes.start(control_plane.scheduler(kubernetes))
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda each: node.bring_up(each, node.containerd(each), kubernetes), NODES))

        addons.apply(
            self._run,
            addons.dns_manifest(layout.REGISTRY, FIRST.name, layout.DNS_SERVICE, layout.CLUSTER_DOMAIN),
        )
        addons.apply(self._run, addons.storage_manifest(layout.REGISTRY, FIRST.name, str(layout.VOLUMES)))
        controllers.install(self._run, programs, layout.REGISTRY, FIRST.name)
        with step("waiting for nodes, controllers and webhooks"):
            self._wait_for_nodes()
            controllers.wait(self._run, 180)
        say(f"{KUBERNETES.version} cluster is up: {', '.join(each.name for each in NODES)}")

    def _is_or_gets_healthy(self) -> bool:
        """Tell whether all is well, or becomes so soon where only Kubernetes itself is still at work."""
        components = self.status()
        if all(health.healthy for health in components):
            return True
        if not all(health.healthy for health in components[: len(self._daemons(Path(), Path()))]):
            return False  # a daemon that ended does not come back
        say(f"waiting for {', '.join(health.component for health in components if not health.healthy)}")
        try:
            self._wait_for_nodes()
            controllers.wait(self._run, PROBE_SECONDS)
        except ClusterError as error:
            say(str(error))
            return False
        return True

    def _write_files(self, kubernetes: Path, clients: dict[str, Path]) -> None:
        BIN.mkdir(parents=True)
        _link({**clients, "kubectl": kubernetes / "kubectl"})
        layout.VOLUMES.mkdir(parents=True)
        layout.VOLUMES.chmod(0o755)
        control_plane.REGISTRY_CONFIG.write_text(control_plane.registry_config())
        keep_oom_scores = not host.may_raise_limits()
        for each in NODES:
            toml = node.containerd_config(each, host.cni_folder(), self._pause_image(), keep_oom_scores)
            node.write_config(each, toml)

    def _pause_image(self) -> str:
        return f"{layout.REGISTRY}/{images.PAUSE_IMAGE.name}"

    def _ready_nodes(self) -> dict[str, bool]:
        """Return every registered node with whether it is Ready."""
        listed = json.loads(self._run(["kubectl", "get", "nodes", "-o", "json"]))["items"]
        return {item["metadata"]["name"]: controllers.is_ready(item) for item in listed}

    def _wait_for_nodes(self) -> None:
        def all_ready() -> bool:
            try:
                ready = self._ready_nodes()
            except ClusterError:
                return False
            return all(ready.get(each.name) for each in self._nodes())

        wait_for("the nodes", all_ready, PROBE_SECONDS, f"see the kubelets' logs in {LOGS}", interval=0.5)

    def _wait(self, daemon: Daemon, probe: Sequence[str]) -> None:
        """Wait until ``probe`` succeeds."""

        def answers() -> bool:
            try:
                self._run(probe)
            except ClusterError:
                return False
            return True

        processes.wait_until(daemon, answers)


def _link(programs: dict[str, Path]) -> None:
    """Have programs in the clients' PATH; a link is replaced in one step, since clients may run."""
    for name, program in programs.items():
        new = BIN / f".{name}"
        new.unlink(missing_ok=True)
        new.symlink_to(program)
        new.rename(BIN / name)
