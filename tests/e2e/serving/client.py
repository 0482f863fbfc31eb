"""Asks a model server from a pod beside it, with nothing but Python's own library: requests in and answers out as JSON.

python client.py ask < requests.json
    Each {url, body, key, stream}; answers in the same order.
python client.py load PAUSE ASKERS URL MODEL...
    Asks until the file /tmp/stop appears, then says what came of it; each asker waits PAUSE seconds between two.
python client.py publish RUN FOLDER NAME URL...
    Publishes a version; seconds until each replica answers with it.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

STOP = Path("/tmp/stop")
OPEN = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """Return what a server answers: status, body (as JSON where it is) and seconds; status 0 if there is no answer."""
    body = request.get("body")
    headers = {"Content-Type": "application/json"}
    key = request.get("key", os.environ.get("API_KEY"))
    if key:
        headers["Authorization"] = f"Bearer {key}"
    method = request.get("method") or ("GET" if body is None else "POST")
    data = None if body is None else json.dumps(body).encode()
    started = time.monotonic()
    try:
        asked = urllib.request.Request(request["url"], data, headers, method=method)
        with OPEN(asked, timeout=request.get("timeout", 120)) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode(errors="replace")
    except (OSError, HTTPException) as error:  # the latter for an answer that ends too early
        status, text = 0, f"{type(error).__name__}: {error}"
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    return {"status": status, "body": found, "seconds": time.monotonic() - started}


def completion(url: str, model: str, *, stream: bool = False, tokens: int = 8) -> dict[str, Any]:
    """Return a request for a few tokens."""
    body = {"model": model, "prompt": "What is the symbol of iron?", "max_tokens": tokens, "temperature": 0}
    return {"url": f"{url}/v1/completions", "body": {**body, "stream": stream, "ignore_eos": True}}


def wrong(answer: dict[str, Any], *, stream: bool) -> str:
    """Return what is wrong with an answer to `completion`; nothing if it is whole."""
    if answer["status"] != 200:
        return f"{answer['status']}: {str(answer['body'])[:200]}"
    if stream:
        ended = str(answer["body"]).rstrip().endswith("data: [DONE]")
        return "" if ended and '"finish_reason":"length"' in str(answer["body"]).replace(" ", "") else "cut short"
    return "" if answer["body"]["choices"][0]["finish_reason"] == "length" else str(answer["body"])


def load(pause: float, askers: int, url: str, models: list[str]) -> dict[str, Any]:
    """Ask from a few threads, every second request streamed, until told to stop; return what came of it."""
    failures: list[str] = []
    said: dict[str, set[str]] = {model: set() for model in models}
    seconds: list[float] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        count = number
        while not STOP.exists():
            count += 1
            stream, model = bool(count % 2), random.choice(models)
            answer = ask(completion(url, model, stream=stream, tokens=24))
            problem = wrong(answer, stream=stream)
            with lock:
                seconds.append(answer["seconds"])
                if not problem and not stream:
                    said[model].add(answer["body"]["choices"][0]["text"])
                if problem:
                    failures.append(f"{time.strftime('%H:%M:%S')} {'stream' if stream else 'whole'} {problem}")
            time.sleep(pause)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(askers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = {model: sorted(found) for model, found in said.items()}
    return {"requests": len(seconds), "failures": failures, "said": texts, "slowest": max(seconds, default=0)}


def publish(run: Path, folder: Path, name: str, urls: list[str]) -> dict[str, Any]:
    """Publish a version of a run's adapter; return its name and the seconds until each replica has answered with it."""
    from stoker.serve.adapters import versions

    version = versions.publish(run, folder, name).name
    started = time.monotonic()

    def served(url: str) -> float:
        while ask(completion(url, version, tokens=1))["status"] != 200:
            if time.monotonic() - started > 120:
                return float("inf")
            time.sleep(0.05)
        return time.monotonic() - started

    with ThreadPoolExecutor() as pool:
        return {"name": version, "seconds": list(pool.map(served, urls))}


def main(command: str, *words: str) -> None:
    """Do what is asked and print what came of it."""
    if command == "ask":
        with ThreadPoolExecutor(max_workers=8) as pool:
            result: Any = list(pool.map(ask, json.load(sys.stdin)))
    elif command == "load":
        result = load(float(words[0]), int(words[1]), words[2], list(words[3:]))
    else:
        result = publish(Path(words[0]), Path(words[1]), words[2], list(words[3:]))
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
