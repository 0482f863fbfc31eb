"""What the pod of `helm test` does where the API server does not answer well."""

from __future__ import annotations

import io
import runpy
import time
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from charts.helm import TRAINING_RUNTIMES

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs"
Call = Callable[..., str | None]


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """The call of the pod, which has a token."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr("ssl.create_default_context", lambda cafile: None)
    (tmp_path / "token").write_text("token")
    found = runpy.run_path(str(TRAINING_RUNTIMES / "files/test/wait.py"))
    call: Call = found["patient"]
    monkeypatch.setitem(call.__globals__, "ACCOUNT", tmp_path)
    return call


def answering(monkeypatch: pytest.MonkeyPatch, *codes: int) -> list[str]:
    """Have an API server that answers with these codes; return the list of what it is asked."""
    left, asked = list(codes), []

    def answer(request: urllib.request.Request, **options: Any) -> io.BytesIO:
        asked.append(request.get_method())
        if (code := left.pop(0)) != 200:
            raise HTTPError(request.full_url, code, "", Message(), io.BytesIO(b"why"))
        return io.BytesIO(b"{}")

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    return asked


@pytest.mark.parametrize("code", [429, 500, 503, 504])
def test_a_busy_api_server_is_asked_again(monkeypatch: pytest.MonkeyPatch, patient: Call, code: int) -> None:
    asked = answering(monkeypatch, code, 200)
    assert patient(time.monotonic() + 60, "GET", PATH) == "{}"
    assert asked == ["GET", "GET"]


def test_one_that_stays_busy_is_named(monkeypatch: pytest.MonkeyPatch, patient: Call) -> None:
    answering(monkeypatch, 503)
    with pytest.raises(SystemExit, match="the API server does not answer: HTTP Error 503"):
        patient(time.monotonic() - 1, "GET", PATH)


def test_what_was_made_by_a_call_whose_answer_was_lost_is_there(monkeypatch: pytest.MonkeyPatch, patient: Call) -> None:
    asked = answering(monkeypatch, 504, 409)
    assert patient(time.monotonic() + 60, "POST", PATH, {"kind": "TrainJob"}) is None
    assert asked == ["POST", "POST"]


@pytest.mark.parametrize(("method", "code"), [("POST", 403), ("POST", 404), ("GET", 403), ("DELETE", 409)])
def test_a_refusal_is_final(monkeypatch: pytest.MonkeyPatch, patient: Call, method: str, code: int) -> None:
    answering(monkeypatch, code)
    with pytest.raises(SystemExit, match=f"refused {method} {PATH}: why"):
        patient(time.monotonic() + 60, method, PATH, {"kind": "TrainJob"})
