"""What a sampler pod serves follows from what the run's trainer asks for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import stoker
from stoker.contract.exits import ExitCode, RunError
from stoker.contract.samplers import SamplerRequest, request_path
from stoker.serve.adapters.settings import load
from stoker.serve.sampler import flags_of, prepare

REQUEST = SamplerRequest(
    model="/workspace/model", name="model", adapters="/workspace/adapters", length=640, rank=12, versions=6
)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return tmp_path


def environment(workspace: Path) -> dict[str, str]:
    return {"STOKER_WORKSPACE": str(workspace), "STOKER_JOB_ID": "job", "STOKER_RESTART_ATTEMPT": "1"}


def asked(workspace: Path, request: SamplerRequest = REQUEST) -> SamplerRequest:
    request = replace(request, model=str(workspace / "model"))
    request.write(request_path(workspace, "job", 1))
    return request


def test_a_request_is_read_as_it_was_written(tmp_path: Path) -> None:
    REQUEST.write(tmp_path / "request.json")
    assert SamplerRequest.read(tmp_path / "request.json") == REQUEST
    assert SamplerRequest.read(tmp_path / "none.json") is None


def test_a_request_of_another_version_of_stoker_is_refused(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text(json.dumps({"model": "/m", "name": "m", "adapters": "/a", "news": 1}))
    with pytest.raises(RunError, match="use images of one release") as refused:
        SamplerRequest.read(tmp_path / "request.json")
    assert refused.value.code is ExitCode.CONFIG


def test_vllm_has_room_for_every_version_that_requests_may_name() -> None:
    flags = {flag.name: flag.value for flag in flags_of(REQUEST)}
    assert flags["max-loras"] == flags["max-cpu-loras"] == 6
    assert flags["max-lora-rank"] == 16  # vLLM has no room of 12
    assert flags["max-model-len"] == 640
    assert flags["logprobs-mode"] == "processed_logprobs"


def test_a_run_that_trains_the_whole_model_needs_no_adapters() -> None:
    names = {flag.name for flag in flags_of(replace(REQUEST, rank=None))}
    assert not names & {"enable-lora", "max-loras", "max-lora-rank", "max-cpu-loras"}


def test_vllm_shortens_a_context_that_nobody_asks_for_to_what_its_memory_holds() -> None:
    flags = {flag.name: flag.value for flag in flags_of(replace(REQUEST, length=None))}
    assert flags["max-model-len"] == -1


def test_vllm_gets_what_takes_whole_weights(workspace: Path, tmp_path: Path) -> None:
    request = replace(REQUEST, model=str(workspace / "model"), rank=None)
    request.write(request_path(workspace, "job", 1))
    config = tmp_path / "config"
    prepare(environment(workspace), config, 0)
    assert yaml.safe_load((config / "vllm.yaml").read_text())["worker-extension-cls"] == "stoker_in_vllm.Weights"
    # It is alone there: no image of vLLM has anything of ours.
    source = (config / "python/stoker_in_vllm.py").read_text()
    assert "class Weights:" in source
    assert not [line for line in source.splitlines() if line.lstrip().startswith(("import stoker", "from stoker"))]
    settings = load(config / "adapters.yaml")
    assert (settings.weights, settings.folder) == (Path("/workspace/adapters"), None)


def test_a_rank_that_vllm_does_not_serve_is_refused() -> None:
    with pytest.raises(RunError, match=r"rank 4096 is too large.*lower --lora_r"):
        flags_of(replace(REQUEST, rank=4096))


def test_the_files_are_what_vllm_and_the_watcher_read(workspace: Path, tmp_path: Path) -> None:
    request = asked(workspace)
    prepare(environment(workspace), tmp_path / "config", 0)
    written = yaml.safe_load((tmp_path / "config/vllm.yaml").read_text())
    assert written == {flag.name: flag.value for flag in flags_of(request)}
    settings = load(tmp_path / "config/adapters.yaml")
    assert (settings.model, settings.model_name) == (workspace / "model", "model")
    assert (settings.folder, settings.keep, settings.require_manifest) == (Path("/workspace/adapters"), 6, True)


def test_the_request_of_an_earlier_attempt_is_not_taken(workspace: Path, tmp_path: Path) -> None:
    REQUEST.write(request_path(workspace, "job", 0))
    with pytest.raises(RunError, match=r"the trainer has not written .*job-1\.json in 0 s") as ended:
        prepare(environment(workspace), tmp_path / "config", 0)
    assert ended.value.code is ExitCode.STOPPED


def test_a_missing_model_is_said_before_vllm_starts(workspace: Path, tmp_path: Path) -> None:
    asked(workspace)
    (workspace / "model/config.json").unlink()
    with pytest.raises(RunError, match=r"has no model: config\.json is missing"):
        prepare(environment(workspace), tmp_path / "config", 0)


def command(workspace: Path, *words: str, role: str = "sampler") -> subprocess.Popen[str]:
    source = str(Path(stoker.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-m", "stoker", *words],
        env={**os.environ, **environment(workspace), "STOKER_ROLE": role, "PYTHONPATH": source},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_sampler_waits_for_the_trainer_and_stops_when_it_is_told_to(workspace: Path, tmp_path: Path) -> None:
    waiting = command(workspace, "sampler", "--output", str(tmp_path / "config"))
    assert waiting.stdout is not None
    assert "waiting for the trainer to write" in waiting.stdout.readline()
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(120) == ExitCode.STOPPED
    waiting.stdout.close()


def test_stoker_plan_in_a_sampler_pod_prints_what_it_serves_and_why(workspace: Path) -> None:
    asked(workspace)
    printed, _ = command(workspace, "plan").communicate(timeout=120)
    assert "max-lora-rank      16" in printed
    assert "the smallest room that vLLM has for rank 12" in printed
    data, _ = command(workspace, "plan", "--output", "json").communicate(timeout=120)
    assert json.loads(data)["adapters"]["published"] == {"folder": "/workspace/adapters", "keep": 6}


def test_a_role_that_does_not_exist_is_refused(workspace: Path) -> None:
    refused = command(workspace, "plan", role="judge")
    printed, _ = refused.communicate(timeout=120)
    assert refused.returncode == ExitCode.CONFIG
    assert "STOKER_ROLE is 'judge': write node, sampler or tinker; the runtime sets it" in printed


# Stands for vLLM's program: notes each start, and ends the first two at once.
_VLLM = """#!{python}
import pathlib, sys, time
starts = pathlib.Path({folder!r}) / "starts"
with starts.open("a") as stream:
    stream.write(" ".join(sys.argv[1:]) + "\\n")
if len(starts.read_text().splitlines()) > 2:
    time.sleep(60)
"""


def test_without_kubernetes_a_vllm_that_ends_is_started_again(workspace: Path, tmp_path: Path) -> None:
    asked(workspace)
    program = tmp_path / "vllm"
    program.write_text(_VLLM.format(python=sys.executable, folder=str(tmp_path)))
    program.chmod(0o755)
    serving = command(
        workspace, "sampler", "--output", str(tmp_path / "config"), "--vllm", str(program), "--port", "1", "--",
        "--dtype=float32",
    )  # fmt: skip
    deadline = time.monotonic() + 120
    starts = tmp_path / "starts"
    starts.touch()
    while time.monotonic() < deadline and len(starts.read_text().splitlines()) < 3:
        time.sleep(0.1)
    serving.send_signal(signal.SIGTERM)
    said, _ = serving.communicate(timeout=120)
    lines = starts.read_text().splitlines()
    assert len(lines) >= 3, said
    assert "vLLM ended with 0: starting it again" in said
    assert lines[0].startswith(f"serve --config {tmp_path}/config/vllm.yaml --host=127.0.0.1 --port=1")
    assert lines[0].endswith("--dtype=float32")
