"""Asks vLLMs on loopback for texts without end: `vllm_asks.py CLIENTS PORT…`, so many clients for each port."""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.request

_BODY = json.dumps({"model": "base", "prompt": "1 + 1 =", "max_tokens": 8, "ignore_eos": True}).encode()


def ask(port: str) -> None:
    """Ask for ever."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", _BODY, {"Content-Type": "application/json"}
    )
    while True:
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                answer.read()
        except OSError:
            time.sleep(1.0)  # it starts


if __name__ == "__main__":
    clients, *ports = sys.argv[1:]
    asking = [threading.Thread(target=ask, args=(port,)) for port in ports * int(clients)]
    for one in asking:
        one.start()
