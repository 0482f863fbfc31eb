"""Programs and Helm charts out of Go modules, built once per change of their pins and kept in the cache.

Every folder in ``go/`` is a Go module of its own (their Kubernetes libraries differ). A built module is a folder
``go-<name>-<hash>`` in the cache with the program, links to it, and the Helm chart that upstream ships in the same
module, where there is one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from . import gobuild
from .errors import ClusterError
from .progress import say, step

GO = Path(__file__).parent / "go"


@dataclass(frozen=True)
class GoModule:
    """How to build a program of one folder of ``go/``.

    Attributes:
        name: The program's.
        upstream: The module whose version in go.mod names the release; None for a program of our own.
        package: What to build, as ``go build`` takes it.
        links: Further names of the program, for one that looks at what it is called by.
        version_packages: Go packages of Kubernetes' kind that keep the release in variables set at link time.
        chart: Where upstream's module holds its Helm chart.
        folder: The folder in ``go/``, where several programs share one; else it has the program's name.
    """

    name: str
    upstream: str | None = None
    package: str = "."
    links: tuple[str, ...] = ()
    version_packages: tuple[str, ...] = ()
    chart: str | None = None
    folder: str | None = field(default=None, repr=False)  # its files are part of the key, not its name

    @property
    def source(self) -> Path:
        """The folder with go.mod."""
        return GO / (self.folder or self.name)

    @property
    def version(self) -> str:
        """The upstream release pinned in go.mod, as ``v1.2.3``; ``v0`` for a program of our own."""
        return pinned_version(self.source / "go.mod", self.upstream) if self.upstream else "v0"

    @property
    def linker_flags(self) -> str:
        """What ``-ldflags`` is given: no debug tables, and the release where the program has a place for it."""
        major, minor, *_ = [*self.version.removeprefix("v").split("."), ""]
        values = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor}
        set_version = [f"-X {p}.{name}={value}" for p in self.version_packages for name, value in values.items()]
        return " ".join(["-s", "-w", *set_version])

    @property
    def key(self) -> str:
        """Twelve hexadecimal digits over everything the result depends on."""
        digest = hashlib.sha256(repr((self, self.linker_flags, platform.machine())).encode())
        for file in sorted(self.source.iterdir()):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
        digest.update(Path(gobuild.__file__).read_bytes())
        return digest.hexdigest()[:12]


KUBERNETES = GoModule(
    "kubernetes",
    "k8s.io/kubernetes",
    links=("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"),
    # Without these the server calls itself v0.0.0-master, and every chart's kubeVersion check fails.
    version_packages=("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"),
)
JOBSET = GoModule("jobset", "sigs.k8s.io/jobset", "sigs.k8s.io/jobset", chart="charts/jobset")
TRAINER = GoModule(
    "trainer",
    "github.com/kubeflow/trainer/v2",
    "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
    chart="charts/kubeflow-trainer",
)
KUEUE = GoModule("kueue", "sigs.k8s.io/kueue", "sigs.k8s.io/kueue/cmd/kueue", chart="charts/kueue")
COREDNS = GoModule("coredns", "github.com/coredns/coredns")
REGISTRY = GoModule("registry", "github.com/distribution/distribution/v3")
LOCAL_PATH_PROVISIONER = GoModule(
    "local-path-provisioner",
    "github.com/rancher/local-path-provisioner",
    "github.com/rancher/local-path-provisioner",
)
#: Runs beside the cluster, where a test wants metrics of pods in the API.
PROMETHEUS_ADAPTER = GoModule(
    "prometheus-adapter", "sigs.k8s.io/prometheus-adapter", "sigs.k8s.io/prometheus-adapter/cmd/adapter"
)
#: Runs beside the cluster, where a test wants what pods use in the API.
METRICS_SERVER = GoModule(
    "metrics-server", "sigs.k8s.io/metrics-server", "sigs.k8s.io/metrics-server/cmd/metrics-server"
)
#: Gives containers the devices that their pods claim, which Debian's containerd cannot.
CONTAINERD = GoModule(
    "containerd", "github.com/containerd/containerd/v2", "github.com/containerd/containerd/v2/cmd/containerd"
)
CONTAINERD_SHIM = GoModule(
    "containerd-shim-runc-v2",
    "github.com/containerd/containerd/v2",
    "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    folder="containerd",
)
#: Offers devices that do not exist, which pods can claim as if they did.
DRA_DRIVER = GoModule(
    "dra-driver",
    "sigs.k8s.io/dra-example-driver",
    "sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin",
)
PAUSE = GoModule("pause")
VOLUME_HELPER = GoModule("volume-helper")


def pinned_version(go_mod: Path, module: str) -> str:
    """Return the version that ``go_mod`` requires of ``module``.

    Raises:
        ClusterError: The file does not require it.
    """
    found = re.search(rf"^(?:require)?\s+{re.escape(module)} (v\S+)", go_mod.read_text(), re.MULTILINE)
    if not found:
        raise ClusterError(f"{go_mod} does not require {module}")
    return found.group(1)


def cache_root() -> Path:
    """Return the folder for everything that is built: ``CLUSTER_CACHE``, else the user's cache folder."""
    if named := os.environ.get("CLUSTER_CACHE"):
        return Path(named).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "embedded-cluster"


def build(modules: Iterable[GoModule]) -> dict[GoModule, Path]:
    """Build what is not in the cache yet, and return each module's folder.

    Raises:
        ClusterError: Go is missing or too old, or a download or a compilation failed.
    """
    root = cache_root() / "cluster"
    folders = {module: root / f"go-{module.name}-{module.key}" for module in modules}
    if all(folder.is_dir() for folder in folders.values()):
        return folders
    if not shutil.which("go"):
        raise ClusterError("Go is needed to build the cluster: install Go 1.26 or newer (https://go.dev/dl)")
    root.mkdir(parents=True, exist_ok=True)
    with (root / "go.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for abandoned in root.glob(".go-*"):
            shutil.rmtree(abandoned)
        missing = {module: folder for module, folder in folders.items() if not folder.is_dir()}
        say(f"building {len(missing)} programs from source, once: {', '.join(m.name for m in missing)}")
        with (
            # Compiled packages take ten times the room of the programs, and nothing needs them again.
            tempfile.TemporaryDirectory(prefix=".go-", dir=root) as compiled,
            # Two at a time: one links, on one core, while the other compiles.
            ThreadPoolExecutor(max_workers=2) as pool,
        ):
            list(pool.map(partial(_build, Path(compiled)), missing, missing.values()))
    return folders


def _build(compiled: Path, module: GoModule, folder: Path) -> None:
    work = gobuild.Work()
    with (
        step(f"building {module.name} {module.version}", lambda: str(work)),
        tempfile.TemporaryDirectory(prefix=".go-", dir=folder.parent) as temporary,
    ):
        new = Path(temporary) / "new"
        new.mkdir()
        gobuild.make(new, module.source, module.name, module.package, module.linker_flags, module.links, work, compiled)
        if module.chart and module.upstream:
            gobuild.copy_chart(module.source, module.upstream, module.chart, new / "chart")
        new.rename(folder)
