"""The one URL over all replicas, for real: who answers what, and what happens when replicas go and come."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from charts.loopback_fleet import LoopbackFleet, Server, fleets
from charts.one_url import own_proxy
from stoker.cluster.processes import free_ports

Start = Callable[..., LoopbackFleet]

GROUPS = 40  # a replica that is the home of none is next to impossible


@pytest.fixture
def start(caddy: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts the one URL of a release with further values."""
    with fleets(caddy, tmp_path) as found:
        yield found


def complete(fleet: LoopbackFleet, model: str = "base", group: str = "") -> tuple[int, Any]:
    return fleet.ask(body={"model": model, "prompt": "a"}, headers={"X-Stoker-Group": group} if group else {})


def test_a_group_stays_with_one_replica_and_others_are_shared_out(start: Start) -> None:
    fleet = start()
    servers = fleet.start(3)
    for number in range(GROUPS):
        for _ in range(4):
            assert complete(fleet, group=f"g{number}")[0] == 200
    homes: dict[str, Counter[str]] = {}
    for server in servers:
        for group, count in server.groups.items():
            homes.setdefault(group, Counter())[server.ip] += count
    assert sum(max(one.values()) for one in homes.values()) == 4 * GROUPS, "every request of a group at one replica"
    assert len({next(iter(one)) for one in homes.values()}) == 3
    lost = servers[0]
    fleet.names.listed.remove(lost.ip)
    time.sleep(0.3)
    for number in range(GROUPS):
        answer = complete(fleet, group=f"g{number}")[1]["by"]
        home = next(iter(homes[f"g{number}"]))
        assert answer == home or home == lost.ip, "groups of other replicas do not move"


def test_a_replicas_own_proxy_is_behind_it(start: Start, caddy: Path) -> None:
    """As the chart has both: each asks only what stands behind it."""
    fleet = start()
    with ExitStack() as stack:
        servers = [Server("127.0.0.1", port) for port in free_ports(2)]
        ips = ["127.0.0.2", "127.0.0.3"]
        urls = []
        for ip, server in zip(ips, servers, strict=True):
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            stack.callback(server.kill)
            urls.append(own_proxy(caddy, fleet, ip, server.server_address[1], free_ports(1)[0], stack))
            fleet.names.listed.append(ip)
        for number in range(40):
            assert complete(fleet, group=f"g{number}") == (200, {"model": "base", "by": "127.0.0.1"})
        assert all(server.groups for server in servers), "each has some of the groups"
        assert sum(sum(server.groups.values()) for server in servers) == 40
        for url, server in zip(urls, servers, strict=True):
            before = server.groups[""]
            request = urllib.request.Request(f"{url}/v1/completions", b'{"model": "base"}')
            with urllib.request.urlopen(request, timeout=120) as answer:
                assert answer.status == 200
            assert server.groups[""] == before + 1


def test_requests_without_a_group_go_to_the_replica_with_the_fewest(start: Start) -> None:
    fleet = start()
    slow, fast = fleet.start(2)
    slow.seconds = 1.0
    with ThreadPoolExecutor(8) as threads:
        answers = [*threads.map(lambda _: complete(fleet)[1]["by"], range(40))]
    assert Counter(answers)[fast.ip] > Counter(answers)[slow.ip]


def test_nothing_fails_while_replicas_are_killed_and_added(start: Start) -> None:
    """Under load, and no answer is by another version."""
    fleet = start()
    fleet.start(3, seconds=0.05, models={"base", "run-v1"})
    stop, answers = threading.Event(), Counter[tuple[int, Any]]()

    def ask(number: int) -> None:
        group = f"g{number % 16}" if number % 2 else ""
        while not stop.is_set():
            status, answer = complete(fleet, "run-v1", group)
            answers[status, answer.get("model") if status == 200 else str(answer)] += 1

    with ThreadPoolExecutor(12) as threads:
        asking = [threads.submit(ask, number) for number in range(12)]
        time.sleep(1)
        for _ in range(3):
            killed = fleet.servers[fleet.names.listed[0]]
            killed.kill()
            time.sleep(0.7)  # requests still reach it: the listing is behind
            fleet.names.listed.remove(killed.ip)
            fleet.start(1, seconds=0.05, models={"base", "run-v1"})
            time.sleep(0.7)
        stop.set()
        for one in asking:
            one.result(120)
    assert set(answers) == {(200, "run-v1")}, answers
    assert answers[200, "run-v1"] > 60


def test_an_answer_that_took_long_is_asked_for_again(start: Start) -> None:
    fleet = start()
    first, second = fleet.start(2, seconds=6.0)
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(complete, fleet) for _ in range(2)]
        time.sleep(1.5)
        first.kill()
        fleet.names.listed.remove(first.ip)
        assert [one.result(120) for one in asked] == [(200, {"model": "base", "by": second.ip})] * 2


def test_a_replica_whose_server_is_away_is_left_alone(start: Start) -> None:
    fleet = start()
    _, good = fleet.start(2)
    away = fleet.servers["127.0.0.2"]
    away.RequestHandlerClass = _Away
    for number in range(12):
        assert complete(fleet, group=f"g{number}") == (200, {"model": "base", "by": good.ip})


class _Away(BaseHTTPRequestHandler):
    """A replica's proxy whose vLLM does not answer."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a kept connection waits 40 ms for each body otherwise

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(502)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.full  # it tries for ten seconds and more
def test_without_replicas_it_says_so(start: Start) -> None:
    status, _ = start().ask(body={"model": "base"})
    assert status in (502, 503)


def test_calls_go_to_the_fleet_and_nowhere_else(start: Start) -> None:
    fleet = start('api={"anonymous": false, "keySecret": "model-key"}')
    fleet.start(1)
    keys = Path(fleet.folder) / "keys"
    keys.mkdir()
    (keys / "api-key").write_text("the-key\n")
    asked: list[str] = []

    class Fleet(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    process = ThreadingHTTPServer(("127.0.0.1", fleet.ports[8084]), Fleet)
    threading.Thread(target=process.serve_forever, args=(0.01,), daemon=True).start()
    right = {"Authorization": "Bearer the-key"}
    try:
        calls = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/pause?mode=keep", "/resume", "/update_weights")
        for path in (*calls, "/reset_prefix_cache", "/collective_rpc"):
            assert fleet.ask(path, {})[0] == 401, path
            assert fleet.ask(path, {}, right)[0] == 200, path
        for path in ("/fleet", "/is_paused"):
            assert (fleet.ask(path)[0], fleet.ask(path, headers=right)[0]) == (401, 200), path
        assert fleet.ask("/health")[0] == 200
        assert asked == [*calls, "/reset_prefix_cache", "/collective_rpc", "/fleet", "/is_paused", "/health"]
        for path in ("/server_info", "/v1/models", "/get_world_size"):
            assert fleet.ask(path, headers=right) == (200, {"path": path, "by": "127.0.0.2"})
        assert fleet.ask("/v1/chat/completions", {}, right)[0] == 200
        for path in ("/sleep", "/shutdown", "/metrics", "/adapters", "/look", "/v1/../pause/x", "/healthz"):
            assert fleet.ask(path, {}, right)[0] == 404, path
    finally:
        process.shutdown()
        process.server_close()
