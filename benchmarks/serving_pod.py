"""What benchmarks/serving.py runs inside a pod: `python -c THIS_TEXT ask`, or `serve`, with an order as JSON on stdin.

The pod has this text and nothing else of the benchmarks; `serve` needs the runner, which Stoker's images have.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PROMPT = "Write down everything you know about iron, and do not stop."


def ask(order: dict[str, Any]) -> dict[str, Any]:
    """Ask for streamed completions, some at a time.

    Args:
        order: urls, key, model, requests, concurrency, tokens. Of several who ask at a time each has a url of its own,
            as far as there are as many; one who is alone asks all of them in turn, as a balancer does.

    Returns:
        tokens_per_second of all requests together; first_token and request, seconds, one for each request.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    first: list[float] = []
    whole: list[float] = []
    left = iter(range(order["requests"]))
    lock = threading.Lock()

    def work(own: list[str]) -> None:
        for url in itertools.cycle(own):
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
            request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
            started = time.perf_counter()
            with opener(request, timeout=600) as answer:
                answer.readline()
                arrived = time.perf_counter()
                answer.read()
            with lock:
                first.append(arrived - started)
                whole.append(time.perf_counter() - started)

    urls, count = order["urls"], order["concurrency"]
    listed = [*itertools.islice(itertools.cycle(urls), max(len(urls), count))]
    threads = [threading.Thread(target=work, args=(listed[number::count],)) for number in range(count)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    if len(whole) != order["requests"]:
        raise SystemExit(f"{order['requests'] - len(whole)} of {order['requests']} requests failed")
    return {"tokens_per_second": len(whole) * order["tokens"] / seconds, "first_token": first, "request": whole}


def serve(order: dict[str, Any]) -> list[float]:
    """Publish a version and wait until each replica has answered with it.

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


if __name__ == "__main__":
    print(json.dumps({"ask": ask, "serve": serve}[sys.argv[1]](json.load(sys.stdin))))
