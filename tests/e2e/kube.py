"""kubectl as the tests use it: JSON in, JSON out, and bounded waits that say what they last saw."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from charts.helm import ROOT
from cluster import Cluster

T = TypeVar("T")

#: What kubectl and `stoker` say where the API server did not answer in time.
UNANSWERED = (
    "Error from server (Timeout)", "TLS handshake timeout", "etcdserver: request timed out", "does not answer",
)  # fmt: skip


#: What kubectl may do twice.
REPEATABLE = ("get", "logs", "delete", "apply", "patch")


class UnansweredError(AssertionError):
    """The API server did not answer in time: on a machine that is busy, it may the next time."""


def is_unanswered(done: subprocess.CompletedProcess[str]) -> bool:
    """Return whether a command failed because the API server did not answer in time."""
    return done.returncode != 0 and any(words in done.stderr for words in UNANSWERED)


def failure(what: str, done: subprocess.CompletedProcess[str]) -> AssertionError:
    """Return the error for a command that failed, with what it printed."""
    error = UnansweredError if is_unanswered(done) else AssertionError
    return error(f"{what} failed:\n{done.stdout}{done.stderr}")


class Kube:
    """One namespace of a cluster.

    Args:
        cluster: the cluster.
        namespace: the namespace all calls without another one are about.
    """

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def kubectl(self, *argv: str, check: bool = True, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl in the namespace; a failure carries what it printed.

        Raises:
            UnansweredError: it had no answer in time.
            AssertionError: it failed otherwise.
        """
        for again in (True, True, False):
            done = self.cluster.run(
                ["kubectl", "--namespace", self.namespace, *argv], check=False, capture_output=True, input=stdin
            )
            if not (again and argv[0] in REPEATABLE and is_unanswered(done)):
                break
            time.sleep(1)
        if check and done.returncode != 0:
            raise failure(f"kubectl {' '.join(argv)}", done)
        return done

    def stoker(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `stoker` in the namespace as the cluster's administrator; a failure carries what it printed.

        Raises:
            UnansweredError: the API server had no answer in time.
            AssertionError: it failed otherwise.
        """
        command = ["env", f"PYTHONPATH={ROOT / 'runner/src'}", sys.executable, "-m", "stoker", *words]
        done = self.cluster.run([*command, "--namespace", self.namespace], check=False, capture_output=True)
        if check and done.returncode != 0:
            raise failure(f"{words}\n{self.state()}", done)
        return done

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Apply objects."""
        self.kubectl("apply", "--server-side", "-f", "-", stdin=_documents(objects))

    def create(self, *objects: Mapping[str, Any]) -> None:
        """Create objects; fails if one exists."""
        self.kubectl("create", "-f", "-", stdin=_documents(objects))

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """Return an object, None if it does not exist."""
        done = self.kubectl("get", kind, name, "--ignore-not-found", "-o", "json")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def items(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """Return all objects of a kind that match a label selector."""
        done = self.kubectl("get", kind, "--selector", selector, "-o", "json")
        found: list[dict[str, Any]] = json.loads(done.stdout)["items"]
        return found

    def create_claim(self, name: str) -> None:
        """Create a claim that pods of all nodes can write to."""
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        self.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec})

    def delete(self, kind: str, name: str, wait: bool = True) -> None:
        """Delete an object if it exists."""
        self.kubectl("delete", kind, name, "--ignore-not-found", f"--wait={str(wait).lower()}")

    def logs(self, pod: str) -> str:
        """Return a pod's log so far; empty while it has none."""
        return self.kubectl("logs", pod, check=False).stdout

    def until(self, what: str, probe: Callable[[], T | None], seconds: float, every: float = 1.0) -> T:
        """Wait for a probe to return something true and return that; one without an answer is asked again.

        Raises:
            AssertionError: it did not in time; carries the state of the namespace.
        """
        deadline = time.monotonic() + seconds
        while True:
            with suppress(UnansweredError):
                if found := probe():
                    return found
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {seconds:.0f} s\n{self.state()}")
            time.sleep(every)

    def state(self) -> str:
        """Return what a person would look at when a run went wrong."""
        overview = self.kubectl("get", "trainjobs,jobsets,jobs,hpa,pods,pvc", "-o", "wide", check=False).stdout
        order = "--sort-by=.metadata.creationTimestamp"  # some have no time of their own
        events = self.kubectl("get", "events", order, check=False).stdout.splitlines()[-25:]
        logs = [
            f"--- {pod['metadata']['name']}\n" + "\n".join(self.logs(pod["metadata"]["name"]).splitlines()[-25:])
            for pod in self.items("pods")
            if pod["status"].get("phase") in ("Running", "Failed")
        ]
        return "\n".join([overview, *events, *logs])


@contextmanager
def restricted_namespace(cluster: Cluster, name: str) -> Iterator[Kube]:
    """Make a namespace with the restricted pod security standard; an older one goes first, this one at the end."""
    found = Kube(cluster, name)
    found.delete("namespace", name)
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    found.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    yield found
    found.delete("namespace", name)


def condition(thing: Mapping[str, Any], kind: str) -> dict[str, Any] | None:
    """Return a condition of an object that is true, None if it has none of that type."""
    for found in thing.get("status", {}).get("conditions", ()):
        if found["type"] == kind and found["status"] == "True":
            return dict(found)
    return None


def uid_of(thing: Mapping[str, Any]) -> str:
    """Return what tells an object from another one of its name."""
    return str(thing["metadata"]["uid"])


def _documents(objects: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
