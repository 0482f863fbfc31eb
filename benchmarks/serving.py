#!/usr/bin/env python3
"""What the serving chart costs, and how soon a published adapter is served: on an installed release, with kubectl.

Asks one replica from inside its own pod, alternately through Service and proxy and straight at vLLM's loopback port,
in pairs, so that a machine that grows slower or faster slows both. Prints throughput, time to the first token and time
of a request with the ratios within the pairs. Then, with --publisher, publishes versions of an adapter at several
numbers of replicas and prints the seconds until each replica has answered with them. Reports, and asserts nothing.

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
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

VLLM = "http://127.0.0.1:8000"
# Who in a replica's pod has Python besides vLLM, and is idle.
CONTAINER = "adapters"
PROMPT = "Write down everything you know about iron, and do not stop."


class Release:
    """An installed release of the chart.

    Args:
        namespace: its namespace.
        name: its name.
    """

    def __init__(self, namespace: str, name: str) -> None:
        self.namespace, self.name = namespace, name

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl in the namespace and return what it printed."""
        command = ["kubectl", "--namespace", self.namespace, *words]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, input=stdin).stdout

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
        self.kubectl("scale", f"deployment/{self.name}", f"--replicas={replicas}")
        self.kubectl("rollout", "status", f"deployment/{self.name}", "--timeout=30m")
        while len(self.ready()) != replicas:
            time.sleep(1)

    def secret(self, name: str) -> str:
        """Return the API key of a secret."""
        encoded = self.kubectl("get", "secret", name, "--output", "jsonpath={.data.api-key}")
        return base64.b64decode(encoded).decode()

    def load(self, pod: str, order: dict[str, Any]) -> dict[str, Any]:
        """Let a pod ask as `ask` does, and return what it measured."""
        program = Path(__file__).read_text()
        words = ("exec", "--stdin", pod, "--container", CONTAINER, "--", "python", "-c", program, "ask")
        measured: dict[str, Any] = json.loads(self.kubectl(*words, stdin=json.dumps(order)))
        return measured


def ask(order: dict[str, Any]) -> dict[str, Any]:
    """Ask for streamed completions, some at a time; this part runs in the pod.

    Args:
        order: url, key, model, requests, concurrency, tokens.

    Returns:
        tokens_per_second of all requests together; first_token and request, seconds, one for each request.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    first: list[float] = []
    whole: list[float] = []
    left = iter(range(order["requests"]))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number = next(left, None)
            if number is None:
                return
            body = {
                "model": order["model"],
                "prompt": f"{number}. {PROMPT}",
                "max_tokens": order["tokens"],
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
            }
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {order['key']}"}
            request = urllib.request.Request(f"{order['url']}/v1/completions", json.dumps(body).encode(), headers)
            started = time.perf_counter()
            with opener(request, timeout=600) as answer:
                answer.readline()
                arrived = time.perf_counter()
                answer.read()
            with lock:
                first.append(arrived - started)
                whole.append(time.perf_counter() - started)

    threads = [threading.Thread(target=work) for _ in range(order["concurrency"])]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    if len(whole) != order["requests"]:
        raise SystemExit(f"{order['requests'] - len(whole)} of {order['requests']} requests failed")
    return {"tokens_per_second": len(whole) * order["tokens"] / seconds, "first_token": first, "request": whole}


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
    urls = {"service": f"http://{release.name}:{port}", "vllm": VLLM}
    for url in urls.values():
        release.load(pod, {**order, "url": url, "requests": args.concurrency})  # warms up
    pairs: list[dict[str, dict[str, Any]]] = []
    for number in range(args.pairs):
        names = sorted(urls, reverse=bool(number % 2))
        pairs.append({name: release.load(pod, {**order, "url": urls[name]}) for name in names})
    print(f"{args.pairs} pairs of {args.requests} requests, {args.concurrency} at a time, {args.tokens} tokens each")
    report("tokens per second", pairs, lambda measured: float(measured["tokens_per_second"]), "")
    for what in ("first_token", "request"):
        report(f"{what.replace('_', ' ')}, median", pairs, lambda one, key=what: statistics.median(one[key]), " s")
        report(f"{what.replace('_', ' ')}, 99 of 100", pairs, lambda one, key=what: highest(one[key]), " s")


def highest(values: list[float]) -> float:
    """Return what 99 of 100 values do not exceed; the largest of fewer."""
    return sorted(values)[max(0, -(-len(values) * 99 // 100) - 1)]


def report(what: str, pairs: list[dict[str, dict[str, Any]]], value: Any, unit: str) -> None:
    """Print the medians of both ways and the median ratio within the pairs, with its range."""
    service, straight = ([value(pair[name]) for pair in pairs] for name in ("service", "vllm"))
    ratios = [a / b for a, b in zip(service, straight, strict=True)]
    print(
        f"{what:24} Service and proxy {statistics.median(service):8.3f}{unit}  "
        f"vLLM {statistics.median(straight):8.3f}{unit}  "
        f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    )


def serve(order: dict[str, Any]) -> list[float]:
    """Publish a version and wait until each replica has answered with it; this part runs in the publisher's pod.

    Args:
        order: run, folder and adapter as `stoker adapters publish` takes them; key; urls of the replicas.

    Returns:
        seconds, one for each replica.
    """
    from stoker.serve.adapters import versions

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    version = versions.publish(Path(order["run"]), Path(order["folder"]), order["adapter"]).name
    started = time.perf_counter()

    def served(url: str) -> float:
        body = json.dumps({"model": version, "prompt": PROMPT, "max_tokens": 1}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {order['key']}"}
        while True:
            try:
                with opener(urllib.request.Request(f"{url}/v1/completions", body, headers), timeout=60):
                    return time.perf_counter() - started
            except OSError:  # not yet: 404
                if time.perf_counter() - started > 300:
                    raise
            time.sleep(0.05)

    with ThreadPoolExecutor() as pool:
        return list(pool.map(served, order["urls"]))


def publish(release: Release, args: argparse.Namespace) -> None:
    """Print how long versions of an adapter take to be served by every replica."""
    program = Path(__file__).read_text()
    key = release.secret(args.key_secret) if args.key_secret else ""
    order = {"run": args.run, "folder": args.folder, "adapter": args.adapter, "key": key}
    words = ("exec", "--stdin", args.publisher, "--", "python", "-c", program, "serve")
    for replicas in args.replicas:
        release.scale(replicas)
        urls = [f"http://{pod['status']['podIP']}:8080" for pod in release.ready()]
        seconds: list[float] = []
        for _ in range(args.versions):
            seconds += json.loads(release.kubectl(*words, stdin=json.dumps({**order, "urls": urls})))
        print(
            f"published to served, {replicas} replica(s), {args.versions} versions: "
            f"median {statistics.median(seconds):.2f} s, maximum {max(seconds):.2f} s"
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
    parser.add_argument("--pairs", type=int, default=5, help="loads through each way (default %(default)s; 0: none)")
    parser.add_argument("--requests", type=int, default=64, help="requests of a load (default %(default)s)")
    parser.add_argument("--concurrency", type=int, default=4, help="requests at a time (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of an answer (default %(default)s)")
    parser.add_argument("--publisher", help="a pod with Stoker's fetch image and the claims")
    parser.add_argument("--run", help="folder of a finished run, as the publisher sees it")
    parser.add_argument("--folder", help="folder of published versions, as the publisher sees it")
    parser.add_argument("--adapter", default="benchmark", help="name to publish under (default %(default)s)")
    parser.add_argument("--versions", type=int, default=5, help="versions to publish (default %(default)s)")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4], help="(default 1 2 4)")
    args = parser.parse_args()
    if args.publisher and not (args.run and args.folder):
        parser.error("--publisher needs --run and --folder")
    release = Release(args.namespace, args.release)
    if args.pairs:
        compare(release, args)
    if args.publisher:
        publish(release, args)


if __name__ == "__main__":
    if sys.argv[1:] == ["ask"]:
        print(json.dumps(ask(json.load(sys.stdin))))
    elif sys.argv[1:] == ["serve"]:
        print(json.dumps(serve(json.load(sys.stdin))))
    else:
        main()
