"""The registry, etcd and the control plane: their commands and configuration files, all in the first node's network."""

from __future__ import annotations

from pathlib import Path

from . import pki
from .layout import CLUSTER_DOMAIN, CONFIG, DATA, FIRST, POD_NETWORK, REGISTRY, SERVICE_NETWORK
from .processes import Daemon

REGISTRY_CONFIG = CONFIG / "registry.yaml"
_ETCD = "http://127.0.0.1:2379"  # inside the namespace, where only the cluster's own daemons are


def registry_config() -> str:
    """Return the configuration of the OCI registry."""
    return f"""\
version: 0.1
log: {{level: warn, accesslog: {{disabled: true}}}}
storage:
  filesystem: {{rootdirectory: {DATA / "registry"}}}
  delete: {{enabled: true}}
http: {{addr: "{REGISTRY}"}}
"""


def registry(program: Path) -> Daemon:
    """Return the OCI registry that every image and chart goes through."""
    # Traces would be sent to a collector that does not exist.
    quiet = (("OTEL_TRACES_EXPORTER", "none"),)
    return Daemon("registry", [str(program), "serve", str(REGISTRY_CONFIG)], FIRST, environment=quiet)


def etcd(programs: Path) -> Daemon:
    """Return etcd, alone and with its data in memory: the cluster is made anew after a crash anyway.

    It does not wait behind gigabytes of images for the machine's disk, nor the API server for it.
    """
    data = DATA / "etcd"
    argv = [
        *("unshare", "--mount", "sh", "-c", f'mkdir -p {data} && mount -t tmpfs tmpfs {data} && exec "$0" "$@"'),
        str(programs / "etcd"),
        "--name=etcd",
        f"--data-dir={data}",
        f"--listen-client-urls={_ETCD}",
        f"--advertise-client-urls={_ETCD}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--initial-advertise-peer-urls=http://127.0.0.1:2380",
        "--initial-cluster=etcd=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]
    return Daemon("etcd", argv, FIRST)


def api_server(programs: Path) -> Daemon:
    """Return the API server."""
    issuer = f"https://kubernetes.default.svc.{CLUSTER_DOMAIN}"
    argv = [
        str(programs / "kube-apiserver"),
        f"--etcd-servers={_ETCD}",
        f"--advertise-address={FIRST.address}",
        "--secure-port=6443",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--feature-gates=ImageVolume=true",  # on by default from Kubernetes 1.35 on
        f"--client-ca-file={pki.CA}",
        f"--tls-cert-file={pki.API_SERVER_TLS.certificate}",
        f"--tls-private-key-file={pki.API_SERVER_TLS.key}",
        f"--kubelet-client-certificate={pki.KUBELET_CLIENT.certificate}",
        f"--kubelet-client-key={pki.KUBELET_CLIENT.key}",
        f"--kubelet-certificate-authority={pki.CA}",
        f"--proxy-client-cert-file={pki.FRONT_PROXY.certificate}",
        f"--proxy-client-key-file={pki.FRONT_PROXY.key}",
        f"--requestheader-client-ca-file={pki.CA}",
        f"--requestheader-allowed-names={pki.FRONT_PROXY.user}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--kubelet-preferred-address-types=InternalIP",  # there is no DNS for the nodes' names
        f"--service-account-issuer={issuer}",
        f"--service-account-key-file={pki.SERVICE_ACCOUNT_KEY}",
        f"--service-account-signing-key-file={pki.SERVICE_ACCOUNT_KEY}",
        "--profiling=false",
    ]
    return Daemon("kube-apiserver", argv, FIRST)


def controller_manager(programs: Path) -> Daemon:
    """Return the controller manager; it notices a dead node within seconds, not minutes."""
    kubeconfig = pki.CONTROLLER_MANAGER.kubeconfig
    argv = [
        str(programs / "kube-controller-manager"),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki.SERVICE_ACCOUNT_KEY}",
        f"--root-ca-file={pki.CA}",
        f"--cluster-cidr={POD_NETWORK}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        "--allocate-node-cidrs=false",
        "--leader-elect=false",
        "--node-monitor-grace-period=20s",
        "--profiling=false",
    ]
    return Daemon("kube-controller-manager", argv, FIRST)


def scheduler(programs: Path) -> Daemon:
    """Return the scheduler."""
    kubeconfig = pki.SCHEDULER.kubeconfig
    argv = [
        str(programs / "kube-scheduler"),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--profiling=false",
    ]
    return Daemon("kube-scheduler", argv, FIRST)
