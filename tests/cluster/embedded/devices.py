"""A third node that joins for the add-on `dra`: its pods can claim devices, which dra-example-driver makes up.

It has containerd 2, because the Debian package is older and knows nothing of claims. A taint keeps all other pods away.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

from .. import addons
from ..artifacts import CONTAINERD, CONTAINERD_SHIM, DRA_DRIVER, GoModule
from ..commands import Run
from ..controllers import is_ready
from ..errors import ClusterError
from ..progress import say, step
from . import cgroups, network, node, pki, processes
from .layout import DEVICE_NODE
from .processes import Daemon

MODULES = (CONTAINERD, CONTAINERD_SHIM, DRA_DRIVER)
#: How many devices there are: `gpu-0`, `gpu-1` and so on.
COUNT = 3
#: Pods that claim a device tolerate it, as they do on clusters whose nodes with GPUs are reserved.
TAINT = {"key": addons.DEVICE_CLASS, "effect": "NoSchedule"}
#: Where the driver tells containerd what a device does to a container.
CDI = DEVICE_NODE.run / "cdi"
_PODS_SECONDS = 90
# What images of a trainer and of vLLM take, packed and unpacked.
_DISK_BYTES = 8 << 30


def containerd_config(cni_plugins: Path, pause_image: str, keep_oom_scores: bool) -> str:
    """Return the configuration of containerd 2; the arguments are those of `node.containerd_config`."""
    runtime, images = "plugins.'io.containerd.cri.v1.runtime'", "plugins.'io.containerd.cri.v1.images'"
    return f"""\
version = 3
root = "{DEVICE_NODE.data / "containerd"}"
state = "{DEVICE_NODE.run / "containerd"}"

[grpc]
  address = "{DEVICE_NODE.containerd_socket}"

[plugins.'io.containerd.internal.v1.opt']
  path = "{DEVICE_NODE.data / "opt"}"

# Its socket would be in a folder of the machine.
[plugins.'io.containerd.nri.v1.nri']
  disable = true

[{images}]
  snapshotter = "overlayfs"
  # What is unpacked is not kept packed as well, for which containerd must unpack it itself.
  discard_unpacked_layers = true
  use_local_image_pull = true
  max_concurrent_downloads = 10

[{images}.pinned_images]
  sandbox = "{pause_image}"

[{images}.registry]
  config_path = "{node.REGISTRY_HOSTS}"

[{runtime}]
  restrict_oom_score_adj = {str(keep_oom_scores).lower()}
  netns_mounts_under_state_dir = true
  enable_cdi = true
  cdi_spec_dirs = ["{CDI}"]

[{runtime}.cni]
  bin_dirs = ["{cni_plugins}"]
  conf_dir = "{DEVICE_NODE.config / "cni"}"

[{runtime}.containerd]
  default_runtime_name = "runc"

[{runtime}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[{runtime}.containerd.runtimes.runc.options]
  SystemdCgroup = false
"""


def containerd(programs: dict[GoModule, Path]) -> Daemon:
    """Return the node's containerd, which finds the shim of its own version first."""
    folders = [programs[module] for module in (CONTAINERD_SHIM, CONTAINERD)]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PATH", os.defpath)])
    return Daemon(
        f"{DEVICE_NODE.name}-containerd",
        [str(programs[CONTAINERD] / CONTAINERD.name), "--config", str(DEVICE_NODE.config / "containerd.toml")],
        DEVICE_NODE,
        mounts_of=node.mounts(DEVICE_NODE),
        environment=(("PATH", path),),
    )


def driver(program: Path) -> Daemon:
    """Return dra-example-driver, which offers the node's devices and prepares those that a pod has claimed."""
    kubelet = DEVICE_NODE.data / "kubelet"
    argv = [
        str(program),
        f"--node-name={DEVICE_NODE.name}",
        f"--kubeconfig={pki.ADMIN.kubeconfig}",
        f"--cdi-root={CDI}",
        f"--num-devices={COUNT}",
        f"--kubelet-plugins-directory-path={kubelet / 'plugins'}",
        f"--kubelet-registrar-directory-path={kubelet / 'plugins_registry'}",
    ]
    return Daemon(f"{DEVICE_NODE.name}-devices", argv, DEVICE_NODE, mounts_of=node.mounts(DEVICE_NODE))


def daemons() -> list[Daemon]:
    """Return what runs on the node in the order it is started, to look at; none if the node is not there."""
    if not is_there():
        return []
    nowhere = Path()
    return [
        node.mounts(DEVICE_NODE),
        containerd(dict.fromkeys(MODULES, nowhere)),
        node.kubelet(DEVICE_NODE, nowhere),
        node.kube_proxy(DEVICE_NODE, nowhere),
        driver(nowhere),
    ]


def is_there() -> bool:
    """Tell whether the node, or half of it, is part of the cluster."""
    return network.path(DEVICE_NODE).exists()


def join(run: Run, kubernetes: Path, programs: dict[GoModule, Path], containerd_toml: str) -> None:
    """Make the node and its devices, and wait until pods can claim them.

    Args:
        run: Runs a command where the cluster can be reached.
        kubernetes: The folder with the kubelet and kube-proxy.
        programs: Where each of `MODULES` is.
        containerd_toml: What `containerd_config` returns.

    Raises:
        ClusterError: It could not be done; `leave` removes what there is.
    """
    needed = _DISK_BYTES * 100 // DEVICE_NODE.disk_percent
    if (free := shutil.disk_usage(DEVICE_NODE.data.parent).free) < needed:
        raise ClusterError(
            f"{DEVICE_NODE.name} needs {needed / 2**30:.1f} GiB of free disk for the images of its pods, and "
            f"{DEVICE_NODE.data.parent} has {free >> 30} GiB: make room there"
        )
    say(f"joining {DEVICE_NODE.name} with {CONTAINERD.name} {CONTAINERD.version}")
    addons.apply(run, addons.device_class_manifest())  # first and last: it says that there is something to remove
    cgroups.create([DEVICE_NODE])
    network.join(DEVICE_NODE)
    for daemon in daemons():
        daemon.log.unlink(missing_ok=True)  # what is read in it must be of this time
    node.write_config(DEVICE_NODE, containerd_toml, [TAINT])
    CDI.mkdir(exist_ok=True)  # containerd watches it
    node.bring_up(DEVICE_NODE, containerd(programs), kubernetes)
    with step(f"waiting for {DEVICE_NODE.name} and its devices"):
        kubelet = node.kubelet(DEVICE_NODE, kubernetes)
        processes.wait_until(kubelet, lambda: _is_ready(run))
        offers = driver(programs[DRA_DRIVER] / DRA_DRIVER.name)
        processes.start(offers)
        processes.wait_until(offers, lambda: len(_devices(run)) == COUNT)
    say(f"{DEVICE_NODE.name} has the devices {', '.join(_devices(run))}")


def leave(run: Run) -> None:
    """Remove the node with its pods and devices, or the half of it.

    Raises:
        ClusterError: Something is left.
    """
    with contextlib.suppress(ClusterError):  # of a node that is there by half, or not at all
        run(["kubectl", "cordon", DEVICE_NODE.name])
    with contextlib.suppress(ClusterError):  # pods that do not end in time end with their node
        # While the kubelet is there, it gives back what they claimed.
        on_it = ["--all-namespaces", f"--field-selector=spec.nodeName={DEVICE_NODE.name}"]
        run(["kubectl", "delete", "pods", *on_it, f"--timeout={_PODS_SECONDS}s"])
    if survivors := cgroups.kill_all(DEVICE_NODE):
        raise ClusterError(
            f"cannot kill the processes {survivors} of {DEVICE_NODE.name}: look at /proc/PID/stack, then try again"
        )
    run(["kubectl", "delete", "node", DEVICE_NODE.name, "--ignore-not-found"])
    run(["kubectl", "delete", "resourceslices", f"--field-selector=spec.nodeName={DEVICE_NODE.name}"])
    cgroups.remove(DEVICE_NODE)
    for file in (*(daemon.pidfile for daemon in daemons()), DEVICE_NODE.data.with_suffix(".disk")):
        file.unlink(missing_ok=True)
    for folder in (DEVICE_NODE.run, DEVICE_NODE.config, DEVICE_NODE.data):
        shutil.rmtree(folder, ignore_errors=True)
    network.leave(DEVICE_NODE)
    run(["kubectl", "delete", "deviceclass", addons.DEVICE_CLASS, "--ignore-not-found"])


def _is_ready(run: Run) -> bool:
    try:
        return is_ready(json.loads(run(["kubectl", "get", "node", DEVICE_NODE.name, "-o", "json"])))
    except ClusterError:  # it has not registered yet
        return False


def _devices(run: Run) -> list[str]:
    """Return the devices that the node offers."""
    selector = f"--field-selector=spec.nodeName={DEVICE_NODE.name}"
    try:
        listed = json.loads(run(["kubectl", "get", "resourceslices", selector, "-o", "json"]))
    except ClusterError:  # the API server is busy
        return []
    return sorted(device["name"] for one in listed["items"] for device in one["spec"].get("devices", ()))
