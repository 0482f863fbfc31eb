"""The endpoint's HTTP where no model is needed: what it refuses, in JSON that the client shows."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import cast

import pytest

from stoker.tinker.server import Endpoint
from stoker.tinker.service import Service

KEY = "tml-" + "k" * 32


@pytest.fixture
def url() -> Iterator[str]:
    """The address of an endpoint that refuses everything before its service is asked."""
    with Endpoint(("127.0.0.1", 0), cast("Service", None), KEY) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_all_addresses_are_those_of_both_families() -> None:
    """A kubelet asks a pod at the first of its addresses, which may be IPv6."""
    with Endpoint(("", 0), cast("Service", None), KEY) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        for host in ("127.0.0.1", "[::1]"):
            request = urllib.request.Request(f"http://{host}:{server.server_address[1]}/api/v1/x", method="DELETE")
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(request, timeout=120)
        server.shutdown()


@pytest.mark.parametrize("method", ["DELETE", "PUT", "PATCH"])
def test_what_would_change_a_checkpoint_is_refused_with_the_fix(url: str, method: str) -> None:
    def refused(key: str) -> tuple[int, str | None, str]:
        path, body = f"{url}/api/v1/training_runs/a/checkpoints/b", None if method == "DELETE" else b"{}"
        request = urllib.request.Request(path, body, {"X-API-Key": key}, method=method)
        with pytest.raises(urllib.error.HTTPError) as found:
            urllib.request.urlopen(request, timeout=120)
        return found.value.code, found.value.headers["Allow"], json.load(found.value)["error"]

    assert refused("wrong")[0] == 401
    code, allowed, why = refused(KEY)
    assert (code, allowed) == (405, "GET, POST")
    assert why == (
        f"{method} is not supported: to delete a checkpoint, delete its folder in output/checkpoints of the run folder"
    )
