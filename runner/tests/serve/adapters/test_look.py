"""Whoever publishes asks a replica to look at once, and learns what it serves then."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from runner.tests.serve.adapters.samples import BASE
from runner.tests.serve.adapters.stand_in import Vllm

from stoker.serve.adapters import endpoints
from stoker.serve.adapters.endpoints import Endpoints
from stoker.serve.adapters.versions import publish
from stoker.serve.adapters.watch import Watch


@pytest.fixture
def address(watch: Watch) -> Iterator[str]:
    """The address of a replica's endpoints; nobody looks by himself."""
    web = Endpoints(("127.0.0.1", 0), lambda: watch.state, watch.look_at_once, watch.sees)
    threading.Thread(target=web.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{web.server_port}"
    web.shutdown()
    web.server_close()


def post(address: str, body: bytes = b"", path: str = "/look", headers: dict[str, str] | None = None) -> Any:
    """Return the answer to a POST: JSON, or the status of a refusal."""
    request = urllib.request.Request(f"{address}{path}", body, headers or {}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_look_on_demand_answers_with_what_is_loaded_then(address: str, output: Path, folder: Path) -> None:
    assert post(address)["loaded"] == []
    publish(output, folder, "a")
    answer = post(address, b'{"published": ["a:1"]}')
    assert (answer["ready"], answer["loaded"], answer["problems"]) == (True, ["a:1"], {})
    with urllib.request.urlopen(f"{address}/adapters") as shown:
        assert json.load(shown) == answer
    server = answer["server"]
    assert len(server.pop("fingerprint")) == 50
    assert server == {"model": "tiny", "source": BASE, "revision": "", "max_loras": 4, "max_rank": 8}


def test_a_generation_of_a_fleet_is_a_number(address: str) -> None:
    assert post(address, b'{"generation": 3}')["ready"], "a replica of no fleet takes no notice"
    for wrong in (b'{"generation": "3"}', b'{"generation": true}', b'{"generation": null}'):
        assert post(address, wrong) == 400


def test_a_look_says_whether_the_folder_of_a_run_is_there(address: str, output: Path, folder: Path) -> None:
    publish(output, folder, "a")
    (folder.parent / "beside").mkdir(exist_ok=True)
    asked = {name: post(address, json.dumps({"folder": name}).encode())["sees"] for name in ("a", "b", "../beside", "")}
    assert asked == {"a": True, "b": False, "../beside": False, "": False}
    assert "sees" not in post(address)


def test_a_look_on_demand_leaves_unloading_to_the_next_one(
    address: str, watch: Watch, vllm: Vllm, output: Path, folder: Path
) -> None:
    versions = [publish(output, folder, "a") for _ in range(4)]
    assert post(address)["loaded"] == ["a:3", "a:4"]
    left = [watch.unfinished]
    versions[3].path.rename(versions[3].path.with_name(".gone"))
    assert post(address)["loaded"] == ["a:2", "a:3", "a:4"]
    left.append(watch.unfinished)
    assert vllm.counted["/v1/unload_lora_adapter"] == 0
    assert sorted(watch.look().loaded) == ["a:2", "a:3"]
    assert [*left, watch.unfinished] == [False, True, False]


def test_a_load_is_shown_before_its_effect_is_measured(
    address: str, watch: Watch, vllm: Vllm, output: Path, folder: Path
) -> None:
    publish(output, folder, "a")
    vllm.gate.clear()  # the server is busy: completions wait
    with ThreadPoolExecutor(1) as pool:
        poll = pool.submit(watch.look)
        while "a:1" not in watch.state.loaded:
            time.sleep(0.01)
        assert not poll.done()
        publish(output, folder, "a")
        assert post(address)["loaded"] == ["a:1", "a:2"], "a look does not wait for the measurement either"
        vllm.gate.set()
        assert poll.result(120).effects == {"a:1": 0.5}
    assert watch.look().effects == {"a:1": 0.5, "a:2": 0.5}


def test_an_effect_that_is_measured_too_late_is_not_kept(watch: Watch, vllm: Vllm, output: Path, folder: Path) -> None:
    version = publish(output, folder, "a")
    vllm.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        poll = pool.submit(watch.look)
        while "a:1" not in watch.state.loaded:
            time.sleep(0.01)
        version.path.rename(version.path.with_name(".gone"))
        assert not watch.look().loaded
        vllm.gate.set()
        assert (poll.result(120).effects, watch.state.problems) == ({}, {})


def test_those_who_ask_meanwhile_share_the_next_look(
    address: str, watch: Watch, vllm: Vllm, output: Path, folder: Path
) -> None:
    post(address)
    vllm.gate_models.clear()
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(post, address)
        while vllm.counted["/v1/models"] < 2:
            time.sleep(0.01)
        publish(output, folder, "a")
        others = [pool.submit(post, address) for _ in range(8)]
        while watch._asked < 10:
            time.sleep(0.01)
        vllm.gate_models.set()
        assert all(other.result(120)["loaded"] == ["a:1"] for other in others)
        assert first.result(120)["ready"]
    assert vllm.counted["/v1/models"] == 3
    assert vllm.counted["/v1/load_lora_adapter"] == 1


def test_looks_on_demand_and_the_poll_load_each_version_once(
    address: str, watch: Watch, vllm: Vllm, output: Path, folder: Path
) -> None:
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            watch.look()

    with ThreadPoolExecutor(5) as pool:
        polling = pool.submit(poll)
        for number in range(1, 9):
            publish(output, folder, "a")
            answers = list(pool.map(lambda _: post(address), range(4)))
            assert all(f"a:{number}" in answer["loaded"] for answer in answers)
        stop.set()
        polling.result(120)
    assert vllm.counted["/v1/load_lora_adapter"] == 8
    assert watch.look().problems == {}


@pytest.mark.parametrize(
    ("body", "path", "headers", "status"),
    [
        (b"", "/adapters", {}, 404),
        (b"[" * 5000, "/look", {}, 400),
        (b'["a:1"]', "/look", {}, 400),
        (b'{"published": "a:1"}', "/look", {}, 400),
        (b'{"published": [1]}', "/look", {}, 400),
        (b'{"folder": ["a"]}', "/look", {}, 400),
        (b'{"published": [' + b",".join([b'"a:1"'] * 65) + b"]}", "/look", {}, 400),
        (b"{" + b" " * 20_000 + b"}", "/look", {}, 413),
        (b"", "/look", {"Content-Length": "-1"}, 413),
        (b"", "/look", {"Content-Length": "many"}, 413),
    ],
)
def test_a_request_of_another_form_is_refused(
    address: str, vllm: Vllm, body: bytes, path: str, headers: dict[str, str], status: int
) -> None:
    assert post(address, body, path, headers) == status
    assert vllm.counted["/v1/models"] == 0


def test_only_so_many_wait_for_a_look(watch: Watch, vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "_WAITING", 1)
    web = Endpoints(("127.0.0.1", 0), lambda: watch.state, watch.look_at_once, watch.sees)
    threading.Thread(target=web.serve_forever, args=(0.01,), daemon=True).start()
    address = f"http://127.0.0.1:{web.server_port}"
    vllm.gate_models.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, address)
        while not vllm.counted["/v1/models"]:
            time.sleep(0.01)
        assert post(address) == 503
        vllm.gate_models.set()
        assert first.result(120)["ready"]
    web.shutdown()
    web.server_close()
