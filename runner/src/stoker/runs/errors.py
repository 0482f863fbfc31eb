"""What the API server, or the way to it, can refuse: each with its exit code and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.packages import from_checkout, not_installed
from stoker.runs.kinds import Kind

# What the extra `stoker[cluster]` brings.
PACKAGES = ("kubernetes", "rich")


class ClusterError(RunError):
    """The cluster cannot be asked, or refuses."""


class NotInstalledError(ClusterError):
    """A package of the extra `stoker[cluster]` is missing."""

    def __init__(self, package: str) -> None:
        super().__init__(ExitCode.CONFIG, not_installed("this command", from_checkout("cluster"), package))


class KubeconfigError(ClusterError):
    """There is no usable kubeconfig."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            ExitCode.CONFIG, f"{problem}: name your cluster's kubeconfig in KUBECONFIG, or a context with --context"
        )


class UnreachableError(ClusterError):
    """The API server does not answer."""

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(
            ExitCode.UNAVAILABLE,
            f"the cluster at {server} does not answer ({reason}): check the network, or choose another --context",
        )


class RightsError(ClusterError):
    """The API server does not know the user, or does not let the user do this."""


class NotFoundError(ClusterError):
    """An object, or its kind, does not exist."""


class ExistsError(ClusterError):
    """An object of that name exists."""


class ConflictError(ClusterError):
    """An object has changed since it was read."""


class ObjectRefusedError(ClusterError):
    """The API server, or a webhook, refuses an object."""


class CommandError(ClusterError):
    """A command in a pod failed."""

    def __init__(self, pod: str, code: int, said: str) -> None:
        last = (said.strip().splitlines() or ["it said nothing"])[-1]
        super().__init__(ExitCode.UNAVAILABLE, f"a command in pod {pod} ended with exit code {code}: {last}")


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """What was asked of the API server.

    Attributes:
        verb: as roles name it, such as `list`.
        kind: of which objects.
        namespace: where; None for the whole cluster.
        name: of which object; empty for all.
        server: the API server's address.
        part: a subresource, such as `log`; empty for none.
    """

    verb: str
    kind: Kind
    namespace: str | None
    name: str
    server: str
    part: str = ""

    @property
    def where(self) -> str:
        """The place, in words."""
        return f"namespace {self.namespace}" if self.namespace and self.kind.namespaced else "the whole cluster"


def refusal(status: int, body: Mapping[str, Any], asked: ApiRequest) -> ClusterError:
    """Return the error for an answer of the API server.

    Args:
        status: the answer's HTTP status.
        body: the answer, a `Status` object of Kubernetes if all is well.
        asked: the request.
    """
    kind, details = asked.kind, body.get("details")
    said = " ".join(str(body.get("message") or f"HTTP {status}").split())
    resource = f"{kind.resource}/{asked.part}" if asked.part else kind.resource
    if status == 401:
        return RightsError(ExitCode.CONFIG, f"the cluster at {asked.server} does not know you ({said}): log in again")
    if (status == 403 and "is forbidden: User " in said) or (status == 403 and not body.get("message")):
        return RightsError(
            ExitCode.CONFIG,
            f"you may not {asked.verb} {resource} in {asked.where}: ask the cluster's administrator for that right, "
            f"or choose another --namespace ({said})",
        )
    if status == 404:
        # The API server names the object that is missing, and nothing if it does not know the kind.
        named = isinstance(details, Mapping) and details.get("name")
        if kind.brings and not named:
            return NotFoundError(
                ExitCode.CONFIG,
                f"the cluster at {asked.server} has no {kind.resource}: install {kind.brings} in it, or choose another "
                "--context",
            )
        if asked.verb == "create":
            return NotFoundError(
                ExitCode.NO_INPUT, f"{asked.where} does not exist: create it, or choose another --namespace"
            )
        return NotFoundError(
            ExitCode.NO_INPUT, f"there is no {kind.kind} {asked.name} in {asked.where}: correct the name"
        )
    if status == 409 and body.get("reason") == "AlreadyExists":
        return ExistsError(
            ExitCode.USAGE,
            f"{kind.kind} {asked.name} exists already in {asked.where}: choose another name, or delete it",
        )
    if status == 409:
        return ConflictError(ExitCode.UNAVAILABLE, f"{kind.kind} {asked.name} changed meanwhile: try again ({said})")
    if status in (400, 403, 413, 422):
        # A webhook and a quota refuse with 403 too: they say why.
        return ObjectRefusedError(
            ExitCode.USAGE,
            f"the cluster refuses to {asked.verb} {kind.kind} {asked.name}, so change what it names: {said}",
        )
    return UnreachableError(asked.server, f"HTTP {status}, {said}")
