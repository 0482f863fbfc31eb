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
    """Return what the API server answers; None if there is no such object.

    Raises:
        SystemExit: it refused; the message says what and why.
        OSError: it cannot be reached.
    """
    request = urllib.request.Request(SERVER + path, json.dumps(body).encode() if body else None, method=method)
    request.add_header("Authorization", f"Bearer {(ACCOUNT / 'token').read_text()}")
    request.add_header("Content-Type", "application/json")
    try:
        trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
        with urllib.request.urlopen(request, context=trusted, timeout=30) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        if error.code == 404 and method != "POST":
            return None
        said = error.read().decode()
        raise SystemExit(f"the API server refused {method} {path}: {said}") from None


def patient(deadline: float, method: str, path: str, body: Object | None = None) -> str | None:
    """Call until the API server can be reached, which a pod just started sometimes has to wait for."""
    while True:
        try:
            return call(method, path, body)
        except OSError as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"the API server cannot be reached: {error}") from None
            time.sleep(2)


def remove(deadline: float, *paths: str) -> None:
    """Delete objects and wait until they are gone."""
    for path in paths:
        patient(deadline, "DELETE", path, {"propagationPolicy": "Foreground"})
        while patient(deadline, "GET", path) is not None:
            if time.monotonic() > deadline:
                raise SystemExit(f"{path} is not gone")
            time.sleep(1)


def ended(trainjob: Object) -> Object | None:
    """Return the condition with which a TrainJob ended, None while it has not."""
    for condition in trainjob.get("status", {}).get("conditions", []):
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            return dict(condition)
    return None


def describe(deadline: float, namespace: str, name: str) -> None:
    """Print what a person would look at: how the pods of a TrainJob are, and their last lines."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    found = patient(deadline, "GET", f"{pods}?labelSelector=jobset.sigs.k8s.io/jobset-name={name}") or "{}"
    items = json.loads(found).get("items", [])
    if not items:
        print("It has no pods: kubectl describe the TrainJob, its JobSet and its Jobs.")
    for pod in items:
        pod_name = pod["metadata"]["name"]
        print(f"--- {pod_name}: {json.dumps(pod.get('status', {}), indent=1)}")
        if pod.get("status", {}).get("phase") != "Pending":
            print(patient(deadline, "GET", f"{pods}/{pod_name}/log?tailLines=40"))


def main(trainjob: Object, claim: str, seconds: float) -> None:
    """Make the TrainJob and wait.

    Raises:
        SystemExit: it failed or did not end in time.
    """
    namespace, name = trainjob["metadata"]["namespace"], trainjob["metadata"]["name"]
    runtime = trainjob["spec"]["runtimeRef"]["name"]
    collection = f"/apis/{trainjob['apiVersion']}/namespaces/{namespace}/trainjobs"
    paths = [f"{collection}/{name}"]
    if claim:
        paths.append(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}")
    started = time.monotonic()
    deadline = started + seconds
    remove(deadline, *paths)
    patient(deadline, "POST", collection, trainjob)
    print(f"TrainJob {name} of runtime {runtime}: created, ten steps on a CPU", flush=True)
    try:
        while (end := ended(json.loads(patient(deadline, "GET", paths[0]) or "{}"))) is None:
            if time.monotonic() > deadline:
                describe(time.monotonic() + 30, namespace, name)
                raise SystemExit(f"TrainJob {name} is neither Complete nor Failed after {seconds:.0f} s")
            time.sleep(2)
        if end["type"] == "Failed":
            describe(time.monotonic() + 30, namespace, name)
            raise SystemExit(f"TrainJob {name} failed: {end.get('message', '')}")
        print(f"TrainJob {name}: Complete after {time.monotonic() - started:.0f} s")
    finally:
        remove(time.monotonic() + 60, *paths)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # the first process of a container has no default
    main(json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
