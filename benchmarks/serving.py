#!/usr/bin/env python3
"""What the serving chart costs, and how soon a published adapter is served: on an installed release, with kubectl.

Asks one replica from inside its own pod, alternately through Service and proxy and straight at vLLM's loopback port,
in pairs, so that a machine that grows slower or faster slows both. Prints throughput, time to the first token and time
of a request with the ratios within the pairs. Then, with --publisher, publishes versions of an adapter at several
numbers of replicas and prints the seconds until each replica has answered with them. Says on stderr how far it is.
Reports, and asserts nothing.

Where network policies are enforced, a replica reaches its own Service only if `networkPolicy.egress` lets it.

    benchmarks/serving.py --namespace models --release chat --key-secret model-key
    benchmarks/serving.py --namespace models --release chat --key-secret model-key --pairs 0 \
      --publisher client --run /claims/models/output --folder /claims/adapters/adapters --replicas 1 2 4
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.paired import highest, ratio_line, run_pairs, say, whole

SIDES = ("Service and proxy", "vLLM")
VLLM = "http://127.0.0.1:8000"
# What runs in a pod, as one text: the pods have no benchmarks.
PROGRAM = Path(__file__).with_name("serving_pod.py")
# How long a pod that goes may be seen after the rollout.
_SETTLED_SECONDS = 600
# Who in a replica's pod has Python besides vLLM, and is idle.
CONTAINER = "adapters"


class ServingError(Exception):
    """The release cannot be measured; the message says why."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a pod measured of one load.

    Attributes:
        tokens_per_second: of all requests together.
        first_token: seconds to the first token, one for each request.
        request: seconds that a request took, one for each.
    """

    tokens_per_second: float
    first_token: list[float]
    request: list[float]

    def __str__(self) -> str:
        """Say how fast it was."""
        return f"{self.tokens_per_second:.1f} tokens/s"


class Release:
    """An installed release of the chart.

    Args:
        namespace: its namespace.
        name: its name.
    """

    def __init__(self, namespace: str, name: str) -> None:
        self.namespace, self.name = namespace, name

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl in the namespace and return what it printed.

        Raises:
            ServingError: there is no kubectl, or it failed; then it has said why on stderr.
        """
        command = ["kubectl", "--namespace", self.namespace, *words]
        try:
            return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, input=stdin).stdout
        except FileNotFoundError as error:
            raise ServingError("kubectl is missing: install it, and point it at the release's cluster") from error
        except subprocess.CalledProcessError as error:
            raise ServingError(
                f"kubectl {words[0]} ended with {error.returncode}, its message is above: "
                f"check namespace {self.namespace!r} and release {self.name!r}"
            ) from error

    def ready(self) -> list[dict[str, Any]]:
        """Return the pods that requests reach."""
        selector = f"app.kubernetes.io/name=vllm-serving,app.kubernetes.io/instance={self.name}"
        pods = json.loads(self.kubectl("get", "pods", "--selector", selector, "--output", "json"))["items"]
        return [
            pod
            for pod in pods
            if not pod["metadata"].get("deletionTimestamp")
            and {"type": "Ready", "status": "True"}
            in [{key: item[key] for key in ("type", "status")} for item in pod["status"].get("conditions", ())]
        ]

    def scale(self, replicas: int) -> None:
        """Have that many replicas, no more and no less."""
        say(f"scales {self.name} to {replicas} replica(s)")
        self.kubectl("scale", f"deployment/{self.name}", f"--replicas={replicas}")
        self.kubectl("rollout", "status", f"deployment/{self.name}", "--timeout=30m")
        deadline = time.monotonic() + _SETTLED_SECONDS
        while len(ready := self.ready()) != replicas:
            if time.monotonic() > deadline:
                raise ServingError(
                    f"release {self.name!r} has {len(ready)} ready pod(s) instead of {replicas}: "
                    "an autoscaler may scale it too; switch that off while you measure"
                )
            time.sleep(1)

    def secret(self, name: str) -> str:
        """Return the API key of a secret."""
        encoded = self.kubectl("get", "secret", name, "--output", "jsonpath={.data.api-key}")
        return base64.b64decode(encoded).decode()

    def load(self, pod: str, order: dict[str, Any]) -> Load:
        """Let a pod ask, and return what it measured."""
        words = ("exec", "--stdin", pod, "--container", CONTAINER, "--", "python", "-c", PROGRAM.read_text(), "ask")
        return Load(**json.loads(self.kubectl(*words, stdin=json.dumps(order))))


def compare(release: Release, args: argparse.Namespace) -> None:
    """Print what Service and proxy cost: pairs of loads, who goes first alternates."""
    release.scale(1)
    (pod,) = (found["metadata"]["name"] for found in release.ready())
    port = json.loads(release.kubectl("get", "service", release.name, "--output", "json"))["spec"]["ports"][0]["port"]
    key = release.secret(args.key_secret) if args.key_secret else ""
    order = {
        "model": args.model or release.name,
        "key": key,
        "requests": args.requests,
        "concurrency": args.concurrency,
        "tokens": args.tokens,
    }
    urls = dict(zip(SIDES, (f"http://{release.name}:{port}", VLLM), strict=True))
    say("warms up")
    for url in urls.values():
        release.load(pod, {**order, "urls": [url], "requests": args.concurrency})
    pairs = list(run_pairs(args.pairs, SIDES, lambda side, _: release.load(pod, {**order, "urls": [urls[side]]})))
    print(f"{args.pairs} pairs of {args.requests} requests, {args.concurrency} at a time, {args.tokens} tokens each")
    for what, value, unit in (
        ("tokens per second", lambda load: load.tokens_per_second, ""),
        ("first token, median", lambda load: statistics.median(load.first_token), " s"),
        ("first token, 99 of 100", lambda load: highest(load.first_token), " s"),
        ("request, median", lambda load: statistics.median(load.request), " s"),
        ("request, 99 of 100", lambda load: highest(load.request), " s"),
    ):
        print(ratio_line(what, SIDES, [(value(ours), value(theirs)) for ours, theirs in pairs], unit), flush=True)


def publish(release: Release, args: argparse.Namespace) -> None:
    """Print how long versions of an adapter take to be served by every replica."""
    key = release.secret(args.key_secret) if args.key_secret else ""
    order = {"run": args.run, "folder": args.folder, "adapter": args.adapter, "key": key}
    words = ("exec", "--stdin", args.publisher, "--", "python", "-c", PROGRAM.read_text(), "serve")
    for replicas in args.replicas:
        release.scale(replicas)
        urls = [f"http://{pod['status']['podIP']}:8080" for pod in release.ready()]
        seconds: list[float] = []
        for number in range(args.versions):
            say(f"publishes version {number + 1} of {args.versions} for {replicas} replica(s)")
            seconds += json.loads(release.kubectl(*words, stdin=json.dumps({**order, "urls": urls})))
        print(
            f"published to served, {replicas} replica(s), {args.versions} versions: "
            f"median {statistics.median(seconds):.2f} s, maximum {max(seconds):.2f} s",
            flush=True,
        )


def main() -> None:
    """Read the command line and do what it asks for."""
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--namespace", required=True, help="the release's namespace")
    parser.add_argument("--release", required=True, help="the release; it is scaled")
    parser.add_argument("--key-secret", help="the secret with the API key (default: none is needed)")
    parser.add_argument("--model", help="the model's name (default: the release's)")
    parser.add_argument(
        "--pairs", type=whole(0), default=5, help="loads through each way (default %(default)s; 0: none)"
    )
    parser.add_argument("--requests", type=whole(1), default=64, help="requests of a load (default %(default)s)")
    parser.add_argument("--concurrency", type=whole(1), default=4, help="requests at a time (default %(default)s)")
    parser.add_argument("--tokens", type=whole(1), default=32, help="tokens of an answer (default %(default)s)")
    parser.add_argument("--publisher", help="a pod with Stoker's fetch image and the claims")
    parser.add_argument("--run", help="folder of a finished run, as the publisher sees it")
    parser.add_argument("--folder", help="folder of published versions, as the publisher sees it")
    parser.add_argument("--adapter", default="benchmark", help="name to publish under (default %(default)s)")
    parser.add_argument("--versions", type=whole(1), default=5, help="versions to publish (default %(default)s)")
    parser.add_argument("--replicas", type=whole(1), nargs="+", default=[1, 2, 4], help="(default 1 2 4)")
    args = parser.parse_args()
    if args.publisher and not (args.run and args.folder):
        parser.error("--publisher needs --run and --folder")
    release = Release(args.namespace, args.release)
    if args.pairs:
        compare(release, args)
    if args.publisher:
        publish(release, args)


if __name__ == "__main__":
    try:
        main()
    except ServingError as error:
        sys.exit(f"serving.py: error: {error}")
