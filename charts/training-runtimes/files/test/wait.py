"""Creates the TrainJob of `helm test`, waits until it is Complete or Failed, and removes it with its claim.

Runs in the test's Pod as its service account; knows the API server by what Kubernetes gives every pod.

Usage: wait.py TRAINJOB CLAIM SECONDS
  TRAINJOB  the TrainJob as JSON
  CLAIM     name of the claim that it leaves behind; empty if it has none of its own
  SECONDS   how long it may take
"""

import json
import os
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SERVER = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
Object = dict[str, Any]


def call(method: str, path: str, body: Object | None = None) -> str | None:
    """Return what the API server answers; None if there is no such object, or if what is to be made is there.

    Raises:
        SystemExit: it refused; the message says what and why.
        OSError: it cannot be reached, or is too busy.
    """
    request = urllib.request.Request(SERVER + path, json.dumps(body).encode() if body else None, method=method)
    request.add_header("Authorization", f"Bearer {(ACCOUNT / 'token').read_text()}")
    request.add_header("Content-Type", "application/json")
    try:
        trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
        with urllib.request.urlopen(request, context=trusted, timeout=30) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        # It is there because an earlier call made it, and its answer was lost: an earlier test has left nothing.
        if error.code == (409 if method == "POST" else 404):
            return None
        if error.code == 429 or error.code >= 500:
            raise
        said = error.read().decode()
        raise SystemExit(f"stoker: error: the API server refused {method} {path}: {said}") from None


def patient(deadline: float, method: str, path: str, body: Object | None = None) -> str | None:
    """Call until the API server answers, which a pod just started sometimes has to wait for."""
    while True:
        try:
            return call(method, path, body)
        except OSError as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"stoker: error: the API server does not answer: {error}") from None
            time.sleep(2)


def remove(deadline: float, namespace: str, trainjob: str, claim: str) -> str:
    """Delete a TrainJob with its pods, and its claim if it has one; return what is not gone in time, if anything."""
    wanted = [(trainjob, pods_of(namespace, trainjob.rpartition("/")[2]))]
    if claim:
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}"
        wanted.append((path, path))
    for path, last in wanted:
        patient(deadline, "DELETE", path, {"propagationPolicy": "Background"})
        while (left := patient(deadline, "GET", last)) and json.loads(left).get("items", True):
            if time.monotonic() > deadline:
                return f"{last} is not gone after its deletion"
            time.sleep(1)
    return ""


def pods_of(namespace: str, name: str) -> str:
    """Return where the API server lists the pods of a TrainJob."""
    return f"/api/v1/namespaces/{namespace}/pods?labelSelector=jobset.sigs.k8s.io/jobset-name={name}"


def ended(trainjob: Object) -> Object | None:
    """Return the condition with which a TrainJob ended, None while it has not."""
    for condition in trainjob.get("status", {}).get("conditions", []):
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            return dict(condition)
    return None


def describe(deadline: float, namespace: str, name: str) -> None:
    """Print what a person would look at: how the pods of a TrainJob are, and their last lines."""
    items = json.loads(patient(deadline, "GET", pods_of(namespace, name)) or "{}").get("items", [])
    if not items:
        print("It has no pods: kubectl describe the TrainJob, its JobSet and its Jobs.")
    for pod in items:
        pod_name, status = pod["metadata"]["name"], pod.get("status", {})
        states = {found["name"]: found["state"] for found in status.get("containerStatuses", [])}
        print(f"--- {pod_name}: {status.get('phase')} {json.dumps(states or status.get('conditions', []))}")
        if status.get("phase") != "Pending":
            print(patient(deadline, "GET", f"/api/v1/namespaces/{namespace}/pods/{pod_name}/log?tailLines=40"))


def outcome(trainjob: Object, path: str, seconds: float) -> str:
    """Make the TrainJob and wait for its end; return why it is no success, if it is none."""
    namespace, name = trainjob["metadata"]["namespace"], trainjob["metadata"]["name"]
    started = time.monotonic()
    deadline = started + seconds
    patient(deadline, "POST", path.rpartition("/")[0], trainjob)
    print(
        f"TrainJob {name} of runtime {trainjob['spec']['runtimeRef']['name']}: created, ten steps on a CPU", flush=True
    )
    while (end := ended(json.loads(patient(deadline, "GET", path) or "{}"))) is None:
        if time.monotonic() > deadline:
            describe(time.monotonic() + 30, namespace, name)
            return f"TrainJob {name} is neither Complete nor Failed after {seconds:.0f} s"
        time.sleep(2)
    if end["type"] == "Failed":
        describe(time.monotonic() + 30, namespace, name)
        return f"TrainJob {name} failed: {end.get('message', '')}"
    print(f"TrainJob {name}: Complete after {time.monotonic() - started:.0f} s")
    return ""


def main(trainjob: Object, claim: str, seconds: float) -> None:
    """Make the TrainJob, wait, and remove it.

    Raises:
        SystemExit: it failed, did not end in time, or is not gone at the end.
    """
    namespace, name = trainjob["metadata"]["namespace"], trainjob["metadata"]["name"]
    path = f"/apis/{trainjob['apiVersion']}/namespaces/{namespace}/trainjobs/{name}"
    wrong = remove(time.monotonic() + 60, namespace, path, claim)
    if wrong:
        raise SystemExit(f"stoker: error: {wrong}: an earlier test has left it")
    try:
        wrong = outcome(trainjob, path, seconds)
    finally:
        left = remove(time.monotonic() + 60, namespace, path, claim)
    if wrong or left:
        raise SystemExit("\n".join(f"stoker: error: {problem}" for problem in (wrong, left) if problem))


if __name__ == "__main__":
    # The first process of a container has no default.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stoker: error: stopped"))
    main(json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
