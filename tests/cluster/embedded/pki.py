"""Keys, certificates and kubeconfigs of the cluster, made by openssl for each `up` and gone with `down`."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..errors import ClusterError
from .layout import API_SERVER, CLUSTER_DOMAIN, CONFIG, DEVICE_NODE, FIRST, KUBERNETES_SERVICE, NODES, PKI

_DAYS = "3650"
CA = PKI / "ca.crt"
SERVICE_ACCOUNT_KEY = PKI / "service-account.key"


@dataclass(frozen=True)
class Identity:
    """One certificate.

    Attributes:
        name: Of its files.
        user: Common name, which Kubernetes takes for the user.
        groups: Organizations, which Kubernetes takes for the groups.
        hosts: Names and addresses a server answers to, as openssl writes them (``DNS:…``, ``IP:…``).
    """

    name: str
    user: str
    groups: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    @property
    def certificate(self) -> Path:
        """Its certificate file."""
        return PKI / f"{self.name}.crt"

    @property
    def key(self) -> Path:
        """Its private key file."""
        return PKI / f"{self.name}.key"

    @property
    def kubeconfig(self) -> Path:
        """Its kubeconfig, where it is a client of the API server."""
        return CONFIG / f"{self.name}.kubeconfig"


_API_SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    f"kubernetes.default.svc.{CLUSTER_DOMAIN}",  # the issuer's name: clients of its OIDC document check it
)
API_SERVER_TLS = Identity(
    "kube-apiserver",
    "kube-apiserver",
    hosts=(
        *(f"DNS:{name}" for name in _API_SERVER_NAMES),
        *(f"IP:{address}" for address in (FIRST.address, KUBERNETES_SERVICE, "127.0.0.1")),
    ),
)
#: How the API server presents itself to kubelets.
KUBELET_CLIENT = Identity("kubelet-client", "kube-apiserver-kubelet-client", ("system:masters",))
#: How the API server presents itself to servers of further APIs, such as one for metrics.
FRONT_PROXY = Identity("front-proxy", "front-proxy-client")
ADMIN = Identity("admin", "admin", ("system:masters",))
CONTROLLER_MANAGER = Identity("controller-manager", "system:kube-controller-manager")
SCHEDULER = Identity("scheduler", "system:kube-scheduler")
PROXY = Identity("kube-proxy", "system:kube-proxy")
KUBELETS = {
    node: Identity(
        f"kubelet-{node.name}",
        f"system:node:{node.name}",
        ("system:nodes",),
        (f"DNS:{node.name}", f"IP:{node.address}"),
    )
    for node in (*NODES, DEVICE_NODE)
}
IDENTITIES = (
    *(API_SERVER_TLS, KUBELET_CLIENT, FRONT_PROXY),
    *(ADMIN, CONTROLLER_MANAGER, SCHEDULER, PROXY, *KUBELETS.values()),
)


def create() -> None:
    """Write the certificate authority, all certificates, the service-account key and the kubeconfigs.

    Raises:
        ClusterError: openssl failed.
    """
    PKI.mkdir(parents=True, mode=0o700)
    CONFIG.mkdir(parents=True, exist_ok=True)
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    _openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", CA.name, "-days", _DAYS, "-subj", "/CN=cluster-ca")
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", SERVICE_ACCOUNT_KEY.name)
    for identity in IDENTITIES:
        subject = "".join(f"/O={group}" for group in identity.groups) + f"/CN={identity.user}"
        extensions = PKI / f"{identity.name}.ext"
        extensions.write_text(certificate_extensions(identity))
        _openssl("req", *new_key, "-keyout", identity.key.name, "-out", "request.csr", "-subj", subject)
        _openssl(
            *("x509", "-req", "-in", "request.csr", "-CA", CA.name, "-CAkey", "ca.key", "-CAcreateserial"),
            *("-days", _DAYS, "-extfile", extensions.name, "-out", identity.certificate.name),
        )
        identity.kubeconfig.write_text(kubeconfig(identity))
        identity.kubeconfig.chmod(0o600)


def certificate_extensions(identity: Identity) -> str:
    """Return the openssl extension file of a certificate: what it may be used for, and the names it answers to."""
    lines = ["basicConstraints=CA:FALSE", "extendedKeyUsage=clientAuth,serverAuth"]
    if identity.hosts:
        lines.append("subjectAltName=" + ",".join(identity.hosts))
    return "\n".join(lines) + "\n"


def kubeconfig(identity: Identity) -> str:
    """Return a kubeconfig (as JSON, which is YAML) that logs in with the identity's certificate."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "embedded",
            "clusters": [{"name": "embedded", "cluster": {"server": API_SERVER, "certificate-authority": str(CA)}}],
            "users": [
                {
                    "name": identity.name,
                    "user": {"client-certificate": str(identity.certificate), "client-key": str(identity.key)},
                }
            ],
            "contexts": [{"name": "embedded", "context": {"cluster": "embedded", "user": identity.name}}],
        },
        indent=2,
    )


def _openssl(*arguments: str) -> None:
    done = subprocess.run(
        ["openssl", *arguments],
        cwd=PKI,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ClusterError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
