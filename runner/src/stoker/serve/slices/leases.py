"""The client of the Lease API of Kubernetes, with the account of a pod."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stoker.contract.exits import ExitCode, RunError

# Where a pod has its account.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class LeaseConflictError(Exception):
    """Somebody else wrote the Lease first."""


class NoAnswerError(Exception):
    """The API did not answer, or not as it should: what it was asked may happen all the same."""


class Leases:
    """The Leases of one namespace.

    Args:
        address: of the API server.
        namespace: of the Leases.
        account: folder with `token` and `ca.crt`.
        timeout: seconds to wait for an answer.

    Raises:
        RunError: the address is wrong, or nobody else may see the token (78).
    """

    def __init__(self, address: str, namespace: str, account: Path, timeout: float) -> None:
        self._url = urlsplit(address)
        self._namespace, self._account, self._timeout = namespace, account, timeout
        self._tls: ssl.SSLContext | None = None
        if self._url.scheme == "https":
            try:
                self._tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
            except (OSError, ssl.SSLError) as error:
                raise RunError(
                    ExitCode.CONFIG, f"{account / 'ca.crt'} is not a certificate for the API server ({error}): {_MOUNT}"
                ) from error
        elif self._url.scheme != "http" or self._url.hostname not in _LOOPBACK:
            raise RunError(ExitCode.CONFIG, f"--api {address}: write https://HOST:PORT; the token is a secret")

    @classmethod
    def of_the_pod(
        cls, environ: Mapping[str, str], address: str | None, namespace: str | None, account: Path, timeout: float
    ) -> Leases:
        """Return the Leases of the pod's namespace.

        Args:
            environ: the environment.
            address: of the API server; by default that of the pod's cluster.
            namespace: of the Leases; by default the pod's.
            account: as for `Leases`.
            timeout: as for `Leases`.

        Raises:
            RunError: this is no pod, or it has no account (78).
        """
        if address is None:
            host = environ.get("KUBERNETES_SERVICE_HOST", "")
            if not host:
                raise RunError(
                    ExitCode.CONFIG,
                    "there is no cluster here: KUBERNETES_SERVICE_HOST is not set; run this in a pod, or name the API "
                    "server with --api, and a folder with its token and ca.crt with --account",
                )
            port = environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or environ.get("KUBERNETES_SERVICE_PORT") or "443"
            address = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        if namespace is None:
            try:
                namespace = (account / "namespace").read_text().strip()
            except OSError as error:
                raise RunError(
                    ExitCode.CONFIG, f"{account / 'namespace'} cannot be read ({error.strerror}): {_MOUNT}"
                ) from error
        return cls(address, namespace, account, timeout)

    def read(self, name: str) -> dict[str, Any]:
        """Return a Lease.

        Raises:
            RunError: there is none, or it may not be read (78).
            NoAnswerError: the API does not answer.
        """
        return self._call("GET", name)

    def write(self, name: str, lease: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the version of a Lease that was read, and return it as it is then.

        Raises:
            LeaseConflictError: it is another version by now.
            RunError: there is none any more, or it may not be written (78).
            NoAnswerError: the API does not answer.
        """
        return self._call("PUT", name, lease)

    def _call(self, method: str, name: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self._namespace}/leases/{name}"
        try:
            # Kubernetes replaces the token long before it expires.
            token = (self._account / "token").read_text().strip()
        except OSError as error:
            raise RunError(
                ExitCode.CONFIG, f"{self._account / 'token'} cannot be read ({error.strerror}): {_MOUNT}"
            ) from error
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        connection = self._connection()
        try:
            connection.request(method, self._url.path.rstrip("/") + path, data, headers)
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise NoAnswerError(f"the API server does not answer: {str(error) or type(error).__name__}") from error
        finally:
            connection.close()
        return self._understood(method, name, status, text)

    def _connection(self) -> http.client.HTTPConnection:
        host = self._url.hostname or ""
        if self._tls is None:
            return http.client.HTTPConnection(host, self._url.port, timeout=self._timeout)
        return http.client.HTTPSConnection(host, self._url.port, timeout=self._timeout, context=self._tls)

    def _understood(self, method: str, name: str, status: int, text: bytes) -> dict[str, Any]:
        where = f"Lease {name} in namespace {self._namespace}"
        if status == 409:
            raise LeaseConflictError
        if status == 401:
            raise RunError(ExitCode.CONFIG, f"{where}: the API server does not know the token: {_MOUNT}")
        if status == 403:
            verb = "get" if method == "GET" else "update"
            raise RunError(
                ExitCode.CONFIG,
                f"{where}: this account may not {verb} it: give it a Role with resources [leases] of apiGroup "
                f"coordination.k8s.io, resourceNames [{name}] and verbs [get, update]",
            )
        if status == 404:
            raise RunError(
                ExitCode.CONFIG,
                f"{where}: the Lease does not exist; create it: kubectl create --filename - <<< "
                f"'{{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {{name: {name}, "
                f"namespace: {self._namespace}}}}}'",
            )
        try:
            found = json.loads(text)
            if status != 200 or not isinstance(found["metadata"]["resourceVersion"], str):
                raise ValueError(f"{status} {text[:200].decode(errors='replace')}")
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise NoAnswerError(f"the API server does not answer as it should: {error}") from error
        return dict(found)


_MOUNT = "mount a projected volume with serviceAccountToken, the ConfigMap kube-root-ca.crt and the namespace there"
