"""The calls over HTTP, in vLLM's form, and what is refused with the fix."""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from runner.tests.serve.fleet.members import Members

from stoker.serve.fleet import control as control_module
from stoker.serve.fleet.endpoints import REFUSED, FleetServer

Ask = Callable[..., tuple[int, Any]]


@pytest.fixture
def ask(members: Members, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Asks a process of a fleet of two replicas."""
    monkeypatch.setattr(control_module, "_DOUBT_SECONDS", 0.3)
    members.start(2)
    web = FleetServer(("127.0.0.1", 0), members.control(), lambda path: Path(path).is_dir())
    threading.Thread(target=web.serve_forever, args=(0.01,), daemon=True).start()

    def asked(path: str, body: Any = None, raw: bytes | None = None) -> tuple[int, Any]:
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{web.server_port}{path}", data, timeout=120) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode()

    yield asked
    web.shutdown()
    web.server_close()


def test_the_calls_are_answered_as_vllm_answers(ask: Ask, members: Members) -> None:
    path = members.adapter("a")
    order = {"lora_name": "a", "lora_path": path, "load_inplace": False}
    assert ask("/v1/load_lora_adapter", order) == (200, "Success: LoRA adapter 'a' added successfully.")
    assert ask("/pause?mode=keep", raw=b"") == (200, {"status": "paused"})
    assert ask("/is_paused") == (200, {"is_paused": True})
    assert ask("/resume", raw=b"") == (200, {"status": "resumed"})
    assert ask("/reset_prefix_cache", raw=b"") == (200, {"success": True})
    shown = ask("/fleet")[1]
    assert (shown["generation"], shown["kept"], shown["paused"], shown["adapters"]) == (8, True, False, {"a": path})
    assert {name: one["ready"] for name, one in shown["replicas"].items()} == {one.name: True for one in members.all}
    assert ask("/v1/unload_lora_adapter", {"lora_name": "a"})[0] == 200
    assert ask("/v1/unload_lora_adapter", {"lora_name": "a"})[0] == 404
    assert ask("/health") == (200, "")


def test_other_weights_under_a_name_that_is_loaded_are_refused(ask: Ask, members: Members) -> None:
    path = members.adapter("a")
    order = {"lora_name": "a", "lora_path": path}
    assert ask("/v1/load_lora_adapter", order)[0] == 200
    assert ask("/v1/load_lora_adapter", order)[0] == 200
    os.utime(f"{path}/adapter_model.safetensors", ns=(1, 1))
    status, answer = ask("/v1/load_lora_adapter", order)
    assert status == 400
    assert f"a is loaded, and the weights in {path} have changed since" in answer["error"]["message"]
    assert ask("/v1/unload_lora_adapter", {"lora_name": "a"})[0] == 200
    assert ask("/v1/load_lora_adapter", order)[0] == 200
    assert [one.vllm.adapters for one in members.all] == [{"a": path}] * 2


def test_a_502_names_the_replicas_in_its_message(ask: Ask, members: Members) -> None:
    members.all[1].vllm.unloadable.add("a")
    status, answer = ask("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": members.adapter("a")})
    assert status == 502
    assert [*answer["replicas"]] == [members.all[1].name]
    assert f"{members.all[1].name}: a: vLLM refused it" in answer["error"]["message"]
    assert answer["error"]["type"] == "fleet_error"


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/v1/load_lora_adapter", {}, 400, "lora_name is missing: send JSON with lora_name as a text"),
        ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": 1}, 400, "lora_path is missing"),
        ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/nowhere"}, 400, "below /claims/CLAIM"),
        ("/v1/load_lora_adapter", {"lora_name": "a:1", "lora_path": "/"}, 400, "lora_name 'a:1' is wrong"),
        ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/", "load_inplace": True}, 400, "a new name"),
        ("/v1/load_lora_adapter", [], 400, "the body is not a JSON object"),
        ("/pause?mode=abort", {}, 400, "use mode=keep"),
        ("/collective_rpc", {}, 400, "method is missing"),
        ("/collective_rpc", {"method": "sleep"}, 501, "with the method reload_weights"),
        ("/collective_rpc", {"method": "reload_weights", "args": ["/a"]}, 400, "or no kwargs for the model's own"),
        ("/collective_rpc", {"method": "reload_weights", "kwargs": {"tags": 1}}, 400, '{"weights_path": FOLDER}'),
        (
            "/collective_rpc",
            {"method": "reload_weights", "kwargs": {"weights_path": 1}},
            400,
            "weights_path is missing",
        ),
        ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "/"}}, 400, "it has no model.safe"),
        ("/nothing", {}, 404, "there is no such path"),
        *((path, {}, 501, "a fleet takes adapters") for path in REFUSED),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_fix(ask: Ask, path: str, body: Any, status: int, says: str) -> None:
    found, answer = ask(path, body)
    assert (found, answer["error"]["code"]) == (status, status)
    assert says in answer["error"]["message"]


def test_a_body_that_is_no_json_or_too_large_is_refused(ask: Ask) -> None:
    assert ask("/pause", raw=b"{")[0] == 400
    assert ask("/pause", raw=b"[" * 60_000)[0] == 400
    assert ask("/pause", raw=b" " * 70_000)[0] == 413


def test_without_a_listed_replica_it_is_not_healthy(ask: Ask, members: Members) -> None:
    members.listed.clear()
    assert ask("/health")[0] == 503
    assert ask("/healthz")[0] == 200
    assert ask("/readyz")[0] == 200
