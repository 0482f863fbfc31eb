"""Every path of the pinned vLLM is one that clients may have, or one that the serving chart never opens to them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from charts.helm import ROOT, VLLM_SERVING

ROUTERS = {"get", "post", "put", "patch", "delete", "api_route", "websocket", "mount", "Mount"}
FOR_CLIENTS = {
    *("/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"),
    *("/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel", "/v1/chat/completions/batch"),
    *("/v1/chat/completions/render", "/v1/completions/render", "/v1/responses/render", "/v1/messages/render"),
    *("/v1/chat/completions/derender", "/v1/completions/derender", "/cohere/v2/chat", "/cohere/v2/chat/render"),
    *("/v1/messages", "/v1/messages/count_tokens", "/v1/audio/transcriptions", "/v1/audio/translations"),
    *("/v1/realtime", "/tokenize", "/detokenize", "/generative_scoring", "/classify", "/pooling", "/v2/embed"),
    *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
    # They tell something, and change nothing.
    *("/docs", "/static", "/health", "/ready", "/readyz", "/load", "/metrics", "/version", "/tokenizer_info"),
    "/kv_event_sources",
}


def refused() -> re.Pattern[str]:
    """Return what the chart never opens."""
    (pattern,) = re.findall(r'regexMatch "(\S+)" \$path', (VLLM_SERVING / "templates/_validate.tpl").read_text())
    return re.compile(pattern)


def routes(package: Path) -> set[str]:
    """Return the paths that a package's modules declare."""
    calls = (
        node
        for module in package.rglob("*.py")
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Call) and node.args
    )
    return {
        call.args[0].value
        for call in calls
        if (call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")) in ROUTERS
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
        and call.args[0].value.startswith("/")
    }


@pytest.mark.parametrize("path", sorted(FOR_CLIENTS))
def test_what_clients_may_have_can_be_opened(path: str) -> None:
    assert refused().search(path) is None


@pytest.mark.full
def test_every_other_path_of_the_pinned_vllm_is_never_opened() -> None:
    """Full, because it needs vLLM's environment on this machine."""
    made = subprocess.run([sys.executable, ROOT / "images/vllm/venv"], check=True, stdout=subprocess.PIPE, text=True)
    (package,) = Path(made.stdout.strip()).glob("lib/python3*/site-packages/vllm/entrypoints")
    found = routes(package)
    assert {"/v1/models", "/metrics", "/pause", "/v1/load_lora_adapter"} <= found
    assert found >= FOR_CLIENTS
    assert [path for path in sorted(found - FOR_CLIENTS) if refused().search(path) is None] == []
