"""Asks the API server with the user's kubeconfig. Objects are dictionaries, as `kubectl -o json` prints them."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stoker.runs.errors import (
    ApiRequest,
    ClusterError,
    CommandError,
    KubeconfigError,
    NotFoundError,
    NotInstalledError,
    UnreachableError,
    refusal,
)
from stoker.runs.kinds import PODS, Kind

Object = dict[str, Any]

# Connecting, and each read.
_SECONDS = (5.0, 30.0)
# A log that is followed may say nothing for long; the connection is then opened anew.
_FOLLOW_SECONDS = (5.0, 300.0)
_PAGE = 500
# Each log that is followed keeps one.
_CONNECTIONS = 64
# Commands in pods: how long to wait for words at a time and in all, and how much of their complaints to keep.
_EXEC_WAIT, _EXEC_SILENT, _EXEC_WORDS = 5.0, 300.0, 4000
_STDOUT, _STDERR = 1, 2
_MERGE_PATCH = "application/merge-patch+json"
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Client:
    """One namespace of one cluster.

    Args:
        api: the `ApiClient` of the Python package kubernetes.
        namespace: the namespace of all calls that name no other.
        options: what other commands of `stoker` need to find it too, such as ` --namespace ml`.
        cluster: what they and kubectl need to find the cluster, such as ` --context prod`; empty for the current one.
    """

    def __init__(self, api: Any, namespace: str, options: str = "", cluster: str = "") -> None:
        self._api = api
        self.namespace = namespace
        self.options = options
        self.cluster = cluster

    @property
    def server(self) -> str:
        """The API server's address."""
        return str(self._api.configuration.host)

    @property
    def there(self) -> str:
        """What kubectl and stoker need to find it from anywhere, such as ` --context prod --namespace ml`."""
        return namespace_options(self.cluster, self.namespace)

    def list(
        self,
        kind: Kind,
        selector: str = "",
        *,
        fields: str = "",
        namespace: str | None = None,
        everywhere: bool = False,
    ) -> list[Object]:
        """Return the objects of a kind.

        Args:
            kind: the kind.
            selector: labels that they have, such as `app=a,tier!=b`.
            fields: a field selector, such as `involvedObject.name=a`.
            namespace: where; None is the client's own.
            everywhere: True for all namespaces.

        Raises:
            ClusterError: see :mod:`stoker.runs.errors`.
        """
        where = None if everywhere else namespace or self.namespace
        query: dict[str, str] = {"limit": str(_PAGE)}
        if selector:
            query["labelSelector"] = selector
        if fields:
            query["fieldSelector"] = fields
        found: list[Object] = []
        while True:
            page = self._json("GET", ApiRequest("list", kind, where, "", self.server), query)
            # Items of a list do not repeat what the list says.
            found += [{"apiVersion": kind.version, "kind": kind.kind, **item} for item in page.get("items") or ()]
            more = (page.get("metadata") or {}).get("continue")
            if not more:
                return found
            query["continue"] = more

    def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object:
        """Return an object.

        Raises:
            NotFoundError: there is none of that name.
            ClusterError: see :mod:`stoker.runs.errors`.
        """
        return self._json("GET", self._request("get", kind, name, namespace))

    def find(self, kind: Kind, name: str, *, namespace: str | None = None) -> Object | None:
        """Return an object, None if there is none of that name.

        Raises:
            ClusterError: see :mod:`stoker.runs.errors`.
        """
        try:
            return self.get(kind, name, namespace=namespace)
        except NotFoundError:
            return None

    def create(self, kind: Kind, body: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """Create an object in the namespace that it names, else in the client's, and return it as the cluster has it.

        Args:
            kind: the kind.
            body: the object.
            dry_run: True to have the cluster only check it.

        Raises:
            ExistsError: there is one of that name.
            ObjectRefusedError: the API server, a webhook or a quota refuses it.
            ClusterError: see :mod:`stoker.runs.errors`.
        """
        metadata = body.get("metadata") or {}
        name = str(metadata.get("name") or metadata.get("generateName") or "")
        query = {"dryRun": "All"} if dry_run else {}
        return self._json("POST", self._request("create", kind, name, metadata.get("namespace")), query, body)

    def patch(self, kind: Kind, name: str, body: Mapping[str, Any], *, namespace: str | None = None) -> Object:
        """Merge fields into an object, and return it; None removes a field.

        Raises:
            NotFoundError: there is none of that name.
            ClusterError: see :mod:`stoker.runs.errors`.
        """
        return self._json("PATCH", self._request("patch", kind, name, namespace), {}, body)

    def delete(self, kind: Kind, name: str, *, namespace: str | None = None, grace_seconds: int | None = None) -> bool:
        """Delete an object, and in the background what it owns.

        Args:
            kind: the kind.
            name: its name.
            namespace: where; None is the client's own.
            grace_seconds: how long a pod may take to stop; None for its own.

        Returns:
            False if there was none of that name.

        Raises:
            ClusterError: see :mod:`stoker.runs.errors`.
        """
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            self._json("DELETE", self._request("delete", kind, name, namespace), {}, options)
        except NotFoundError:
            return False
        return True

    def log(
        self,
        pod: str,
        container: str,
        *,
        namespace: str | None = None,
        follow: bool = False,
        previous: bool = False,
        since: str = "",
        tail: int | None = None,
        timestamps: bool = False,
    ) -> Iterator[bytes]:
        """Yield the lines of a container's log, without their ends, as they come.

        Args:
            pod: the pod.
            container: its container.
            namespace: where; None is the client's own.
            follow: True to go on until the container ends.
            previous: True for the container before its last restart.
            since: time (RFC 3339) of the first line.
            tail: so many last lines; None for all.
            timestamps: True to have the time in front of each line.

        Raises:
            ObjectRefusedError: the container has not started, or its log is gone.
            ClusterError: see :mod:`stoker.runs.errors`.
        """
        asked = ApiRequest("get", PODS, namespace or self.namespace, pod, self.server, "log")
        query = {"container": container}
        query |= {
            name: "true" for name, on in (("follow", follow), ("previous", previous), ("timestamps", timestamps)) if on
        }
        query |= {"sinceTime": since} if since else {}
        query |= {} if tail is None else {"tailLines": str(tail)}
        with self._told(asked):
            answer = self._call("GET", asked, query, None, _FOLLOW_SECONDS if follow else _SECONDS)
            try:
                rest = b""
                for chunk in answer.stream(decode_content=True):
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from lines
                if rest:
                    yield rest
            finally:
                answer.close()
                answer.release_conn()

    def exec(
        self, pod: str, container: str, command: Sequence[str], *, namespace: str | None = None
    ) -> Iterator[bytes]:
        """Yield what a command in a container writes to its standard output, as it comes.

        Raises:
            CommandError: the command failed.
            UnreachableError: the connection broke off, or the command wrote nothing for long.
            ClusterError: see :mod:`stoker.runs.errors`.
        """
        # A websocket begins as a GET.
        asked = ApiRequest("get", PODS, namespace or self.namespace, pod, self.server, "exec")
        stream, core = _package("kubernetes.stream").stream, _package("kubernetes.client").CoreV1Api(self._api)
        with self._told(asked):
            process = stream(
                core.connect_get_namespaced_pod_exec,
                pod,
                asked.namespace,
                container=container,
                command=[*command],
                stdin=False,
                stdout=True,
                stderr=True,
                tty=False,
                binary=True,
                _preload_content=False,
            )
        try:
            yield from self._output(process, asked)
        finally:
            process.close()

    def _output(self, process: Any, asked: ApiRequest) -> Iterator[bytes]:
        said, silent = b"", 0.0
        dropped = _package("websocket").WebSocketException
        while process.is_open():
            try:
                process.update(timeout=_EXEC_WAIT)
                # Reading one looks for more, and may find that the connection is gone.
                written, complained = process.read_channel(_STDOUT) or b"", process.read_channel(_STDERR) or b""
            except (dropped, OSError) as error:
                raise UnreachableError(self.server, _reason(error)) from error
            if written:
                yield written
            said = (said + complained)[-_EXEC_WORDS:]
            silent = 0.0 if written or complained else silent + _EXEC_WAIT
            if silent > _EXEC_SILENT:
                raise UnreachableError(self.server, f"a command in pod {asked.name} says nothing")
        try:
            code = process.returncode
        except (TypeError, KeyError, ValueError, AttributeError) as error:  # no status: it broke off before the end
            raise UnreachableError(self.server, f"the connection to pod {asked.name} broke off") from error
        if code:
            raise CommandError(asked.name, int(code), said.decode("utf-8", "replace"))

    def close(self) -> None:
        """Close its connections."""
        self._api.rest_client.pool_manager.clear()

    def _request(self, verb: str, kind: Kind, name: str, namespace: str | None) -> ApiRequest:
        return ApiRequest(verb, kind, namespace or self.namespace, name, self.server)

    def _json(
        self,
        method: str,
        asked: ApiRequest,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Object:
        with self._told(asked):
            answer = self._call(method, asked, query or {}, body, _SECONDS)
            found = json.loads(answer.read())
        if not isinstance(found, dict):
            raise UnreachableError(self.server, "its answer is not an object of Kubernetes")
        return found

    def _call(
        self,
        method: str,
        asked: ApiRequest,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        seconds: tuple[float, float],
    ) -> Any:
        name = "" if asked.verb == "create" and not asked.part else quote(asked.name, safe="")
        path = asked.kind.path(quote(asked.namespace, safe="") if asked.namespace else None, name)
        answer, *_ = self._api.call_api(
            f"{path}/{asked.part}" if asked.part else path,
            method,
            query_params=list(query.items()),
            header_params={
                "Accept": "*/*" if asked.part else "application/json",
                "Content-Type": _MERGE_PATCH if method == "PATCH" else "application/json",
            },
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=seconds,
        )
        return answer

    @contextmanager
    def _told(self, asked: ApiRequest) -> Iterator[None]:
        """Turn what the Python packages raise into our errors."""
        failed, broken = _package("kubernetes.client").ApiException, _package("urllib3.exceptions").HTTPError
        try:
            yield
        except failed as error:
            # The package catches what ends the command too, while it opens a websocket.
            if isinstance(error.__context__, KeyboardInterrupt | SystemExit):
                raise error.__context__ from None
            if match := re.search(r"Handshake status (\d{3})", str(error.reason)):
                raise refusal(int(match[1]), {}, asked) from error
            if not error.status:  # refused before an answer, for example a certificate
                raise UnreachableError(self.server, _reason(error.reason)) from error
            raise refusal(error.status, _status(error.body), asked) from error
        except (broken, OSError) as error:
            raise UnreachableError(self.server, _reason(error)) from error
        except ValueError as error:  # no JSON
            raise UnreachableError(self.server, "its answer is not JSON") from error


def connect(context: str | None = None, namespace: str | None = None) -> Client:
    """Return a client of the cluster that kubectl would use.

    Args:
        context: of the kubeconfig; None for its current one.
        namespace: None for the context's, else `default`. In a pod without a kubeconfig: the pod's cluster and
            namespace.

    Raises:
        NotInstalledError: the extra `stoker[cluster]` is missing.
        KubeconfigError: there is no kubeconfig, or it cannot be used.
    """
    _package("kubernetes.client")
    config = _package("kubernetes.config")
    files = os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
    there = [path for path in files.split(os.pathsep) if path and Path(path).expanduser().is_file()]
    configuration = _package("kubernetes.client").Configuration()
    configuration.retries = False
    configuration.connection_pool_maxsize = _CONNECTIONS
    try:
        if there:
            expanded = os.pathsep.join(str(Path(path).expanduser()) for path in there)
            merged = config.kube_config.KubeConfigMerger(expanded).config.value
            contexts = [found.value for found in merged["contexts"]]
            chosen = _chosen(context, contexts, merged.get("current-context"), files)
            config.load_kube_config(expanded, chosen["name"], configuration, persist_config=False)
            found = (chosen.get("context") or {}).get("namespace")
        elif context is None and "KUBERNETES_SERVICE_HOST" in os.environ and _POD_NAMESPACE.is_file():
            config.load_incluster_config(configuration)
            found = _POD_NAMESPACE.read_text().strip()
        else:
            raise KubeconfigError(f"there is no kubeconfig at {files}")
    except ClusterError:
        raise
    # What is in the file decides what the package raises: no YAML, a missing key, bad base64.
    except Exception as error:
        raise KubeconfigError(f"the kubeconfig {files} cannot be used ({_reason(error)})") from error
    usual = found or "default"
    cluster = context_option(context)
    options = namespace_options(cluster, namespace) if namespace and namespace != usual else cluster
    return Client(_package("kubernetes.client").ApiClient(configuration), namespace or usual, options, cluster)


def context_option(context: str | None) -> str:
    """Return what another command needs to find the same cluster, such as ` --context prod`; empty for the current."""
    return f" --context {shlex.quote(context)}" if context else ""


def namespace_options(cluster: str, namespace: str) -> str:
    """Return what a command needs to find a namespace from anywhere, such as ` --context prod --namespace ml`.

    Args:
        cluster: what it needs to find the cluster, such as ` --context prod`; empty for the current one.
        namespace: the namespace.
    """
    return f"{cluster} --namespace {namespace}"


def _chosen(context: str | None, contexts: list[Object], current: str | None, files: str) -> Object:
    wanted = context or current
    for found in contexts:
        if found["name"] == wanted:
            return found
    names = ", ".join(sorted(str(found["name"]) for found in contexts)) or "none"
    if context:
        raise KubeconfigError(f"--context {context}: the kubeconfig has no such context, only {names}")
    what = f"its current context {wanted} is missing" if wanted else "it has no current context"
    raise KubeconfigError(f"the kubeconfig {files} cannot be used as it is: {what}; it has the contexts {names}")


def _package(name: str) -> Any:
    """Return a module of the extra `stoker[cluster]`.

    Raises:
        NotInstalledError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotInstalledError(name.partition(".")[0]) from error


def _status(body: Any) -> Mapping[str, Any]:
    """Return the `Status` of a refusal; text of a proxy becomes its message."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body or "")
    try:
        found = json.loads(text)
    except ValueError:
        return {"message": text[:200]}
    return found if isinstance(found, dict) else {}


def _reason(error: object) -> str:
    """Return the last words of an error, in one line: those before it are the names of classes and objects."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if lines else type(error).__name__
    return text.rpartition(">: ")[2] or text
