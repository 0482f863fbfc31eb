"""What every proxy of the charts has to keep to: no key in its log, and a path for probes that takes nothing."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

KEY = "the-key"
_HEADERS = ("Authorization", "x-api-key", "api-key", "X-Goog-Api-Key", "Ocp-Apim-Subscription-Key", "Cookie")


def leave_keys_everywhere(ask: Callable[..., object], log: Path) -> list[dict[str, Any]]:
    """Send the key in every way that clients have, and return the log's lines about requests.

    Args:
        ask: takes a path, a `key` and `headers`.
        log: what the proxy has written.
    """
    with ThreadPoolExecutor() as together:
        asked = [together.submit(ask, "/v1/models", key="", headers={header: KEY}) for header in _HEADERS]
        for query in ("api_key", "api-key", "key", "anything"):
            for path in ("/v1/models?a=b&", "/nowhere?"):
                asked.append(together.submit(ask, f"{path}{query}={KEY}", key=KEY))
    for one in asked:
        one.result()
    text = log.read_text()
    assert KEY not in text
    return [line for line in map(json.loads, text.splitlines()) if "request" in line]


def status_with_a_body(port: int, path: str, key: str = "", sent: int = 0) -> int:
    """Return the status of an answer to a request that announces a body of a gigabyte, and sends so much of it."""
    head = f"GET {path} HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {key}\r\nContent-Length: 1000000000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(head.encode() + b"x" * sent)
        return int(connection.recv(20).split()[1])
