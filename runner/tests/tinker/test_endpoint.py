"""The endpoint over HTTP with a tiny model, and the public client against it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from runner.tests.integration.local_sampler import VLLM
from runner.tests.lab.scripts import TRAINING, environment_of, failures
from runner.tests.tinker import vllm_stand_in
from runner.tests.tinker.public_client import CLIENT, client_python

import stoker
from builders import replicated_jobs, trainjob
from stoker.cluster.processes import free_ports
from stoker.contract.exits import ExitCode
from stoker.contract.samplers import SamplerRequest, request_path

__all__ = ["client_python"]  # a fixture

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CASES = HERE / "endpoint_cases.py"
KEY = "tml-" + "k" * 32
SECONDS = 900


def test_models_are_trained_apart_and_exactly(trainer_python: Path, inputs: Path, tmp_path: Path) -> None:
    failed = failures(trainer_python, CASES, inputs / "model", tmp_path)
    assert not failed, failed


@contextmanager
def endpoint(
    python: Path, folder: Path, model: Path, samplers: str, port: int, *more: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start an endpoint as a pod does, and wait until it answers."""
    (folder / "key").write_text(KEY + "\n")
    command = [
        python, "-m", "stoker", "tinker", "--model_name_or_path", model, "--output_dir", folder / "output",
        "--samplers", samplers, "--adapters", folder / "adapters", "--key_file", folder / "key", "--max_rank", "8",
        "--max_models", "32", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
        *more,
    ]  # fmt: skip
    process = subprocess.Popen([*map(str, command)], env=environment_of(TRAINING))
    try:
        wait_for(process, port)
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until an endpoint answers."""
    until = time.monotonic() + SECONDS
    while True:
        assert process.poll() is None, process.returncode
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/healthz", timeout=5).close()
            return
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.1)


def client(python: Path, what: str, port: int, model: Path, packages: str = "") -> subprocess.Popen[str]:
    """Start the client; it finds what its own environment lacks in a folder of packages."""
    start = f"import runpy, sys; sys.path.append({packages!r}); runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    command = [python, "-P", "-c", start, CLIENT, what, f"http://127.0.0.1:{port}", KEY, model]
    pipe = subprocess.PIPE
    env = {**os.environ, "TINKER_TELEMETRY": "0"}
    return subprocess.Popen([*map(str, command)], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env)


def seen(process: subprocess.Popen[str], told: str = "") -> dict[str, Any]:
    """Return what the client saw."""
    output, errors = process.communicate(told, timeout=SECONDS)
    assert process.returncode == 0, errors[-5000:]
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


@pytest.mark.full
def test_the_public_client_trains_and_samples(
    trainer_python: Path, client_python: Path, inputs: Path, tmp_path: Path
) -> None:
    model, (port,) = inputs / "model", free_ports(1)
    (tmp_path / "adapters").mkdir()
    with (
        vllm_stand_in.serving(tmp_path / "adapters") as sampler,
        endpoint(trainer_python, tmp_path, model, sampler.address, port) as process,
    ):
        found = seen(client(client_python, "all", port, model))
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == ExitCode.STOPPED
        assert sampler.names() == {}
    supervised, reinforced = found["supervised"], found["reinforced"]
    assert supervised["losses"][-1] < 0.9 * supervised["losses"][0]
    assert supervised["saved"] == supervised["loaded"]
    assert (supervised["rank"], supervised["logprobs"]) == (8, [3, 2])
    assert reinforced["chances"][-1] > reinforced["chances"][0] + 0.2
    assert reinforced["scored"] == [None, -1.5, -1.5]
    assert (len(reinforced["tokens"]), reinforced["stop_reason"]) == (2, "length")
    said = {
        "model": "this endpoint has",
        "key": "TINKER_API_KEY",
        "loss": "write one of cross_entropy, importance_sampling, ppo",
        "token": "write numbers from 0 to",
        "step": "call forward_backward before optim_step",
        "name": "is not a checkpoint's name",
        "path": "is not a checkpoint's name",
        "checkpoint": "does not exist",
    }
    assert {name: said[name] in text for name, text in found["refused"].items()} == dict.fromkeys(said, True), found
    for alone, together in zip(found["apart"]["solo"], found["apart"]["together"], strict=True):
        assert together == pytest.approx(alone, abs=1e-5)
        assert alone[-1] < alone[0]
    pairs = zip(found["apart"]["solo"], found["apart"]["together"], strict=True)
    gap = max(abs(a - b) for alone, together in pairs for a, b in zip(alone, together, strict=True))
    print(f"eight clients at once: losses differ from solo runs by {gap:g} at most")


@pytest.mark.full
def test_the_public_client_trains_with_a_loss_of_its_own(
    trainer_python: Path, client_python: Path, inputs: Path, tmp_path: Path
) -> None:
    model, (port,) = inputs / "model", free_ports(1)
    where = "from importlib.util import find_spec; print(find_spec('torch').origin)"
    torch = subprocess.run([trainer_python, "-c", where], check=True, stdout=subprocess.PIPE, text=True).stdout
    (tmp_path / "adapters").mkdir()
    with (
        vllm_stand_in.serving(tmp_path / "adapters") as sampler,
        endpoint(trainer_python, tmp_path, model, sampler.address, port),
    ):
        found = seen(client(client_python, "custom", port, model, str(Path(torch).parents[1])))
    assert found["ours"] == pytest.approx(found["theirs"], abs=1e-5)
    assert found["ours"][-1] < 0.9 * found["ours"][0]
    assert found["margins"][-1] > found["margins"][0] + 1


@pytest.mark.full
def test_the_guides_snippet_runs_as_it_is_written(
    trainer_python: Path, client_python: Path, inputs: Path, tmp_path: Path
) -> None:
    guide = (ROOT / "docs/guides/tinker.md").read_text()
    (snippet,) = re.findall(r"^```python\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    model, (port,) = inputs / "model", free_ports(1)
    assert snippet.count("Qwen/Qwen3-0.6B") == 1
    (tmp_path / "adapters").mkdir()
    with (
        vllm_stand_in.serving(tmp_path / "adapters") as sampler,
        endpoint(trainer_python, tmp_path, model, sampler.address, port, "--base_model", "Qwen/Qwen3-0.6B"),
    ):
        done = subprocess.run(
            [client_python, "-c", snippet.replace("rank=16", "rank=8")],
            check=False,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={**os.environ, "TINKER_BASE_URL": f"http://127.0.0.1:{port}", "TINKER_API_KEY": KEY},
        )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0


@pytest.mark.full
def test_a_client_goes_on_from_its_checkpoint_after_a_kill(
    trainer_python: Path, client_python: Path, inputs: Path, tmp_path: Path
) -> None:
    model, (port,) = inputs / "model", free_ports(1)
    (tmp_path / "adapters").mkdir()
    with vllm_stand_in.serving(tmp_path / "adapters") as sampler:
        with endpoint(trainer_python, tmp_path, model, sampler.address, port):
            process = client(client_python, "restart", port, model)
            assert process.stdout is not None
            assert process.stdout.readline() == "saved\n"
        with endpoint(trainer_python, tmp_path, model, sampler.address, port):
            found = seen(process, "\n")
    assert "create_training_client_from_state_with_optimizer" in found["told"], found
    assert found["after"] == pytest.approx(found["before"], abs=1e-5)


@pytest.mark.full
def test_the_public_client_samples_from_vllm_what_was_trained(
    trainer_python: Path, client_python: Path, inputs: Path, tmp_path: Path
) -> None:
    model, ports = inputs / "model", free_ports(3)
    made = subprocess.run([ROOT / "images/vllm/venv"], check=True, stdout=subprocess.PIPE, text=True)
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    # As many versions as the endpoint keeps, and those with a name.
    request = SamplerRequest(str(model), "base", str(adapters), 128, 8, versions=16, dtype="float32")
    request.write(request_path(tmp_path, "job", 0))
    command = [
        sys.executable, "-m", "stoker", "sampler", "--output", str(tmp_path / "config"),
        "--vllm", f"{made.stdout.strip()}/bin/vllm", "--port", str(ports[0]), "--watch-port", str(ports[1]),
        "--", "--enforce-eager", "--max-num-seqs=16",
    ]  # fmt: skip
    told = {
        "PYTHONPATH": str(Path(stoker.__file__).parents[1]), "HOME": str(tmp_path),
        "STOKER_WORKSPACE": str(tmp_path), "STOKER_JOB_ID": "job", "STOKER_RESTART_ATTEMPT": "0",
    }  # fmt: skip
    sampler = subprocess.Popen(command, env={**os.environ, **VLLM, **told}, start_new_session=True)
    try:
        with endpoint(trainer_python, tmp_path, model, f"http://127.0.0.1:{ports[0]}", ports[2]):
            found = seen(client(client_python, "loops", ports[2], model))
    finally:
        os.killpg(sampler.pid, signal.SIGKILL)
        sampler.wait()
    # What the samplers say of their tokens is what the trainer computes for them, after every step.
    assert max(found["reinforced"]["gaps"]) < 0.05, found


@pytest.mark.full
def test_a_trainjob_of_the_catalogues_runtime_serves_clients_without_kubernetes(
    trainer_python: Path, client_python: Path, inputs: Path, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    made = subprocess.run([ROOT / "images/vllm/venv"], check=True, stdout=subprocess.PIPE, text=True)
    runtime = yaml.safe_load((ROOT / "examples/runtimes/trl-tinker-cpu.yaml").read_text())
    (samplers,) = (job for job in replicated_jobs(runtime) if job["name"] == "sampler")
    samplers["template"]["spec"]["template"]["spec"]["containers"][0]["args"] += ["--max-num-seqs=16"]
    args = [f"--port={port}", "--host=127.0.0.1", "--dtype=float32", "--max_rank=8", "--versions=16"]
    env = [{"name": "STOKER_SAMPLERS_API_KEY", "value": KEY}]
    (tmp_path / "runtime.yaml").write_text(json.dumps(runtime))
    (tmp_path / "trainjob.yaml").write_text(json.dumps(trainjob(runtime="trl-tinker", numNodes=1, args=args, env=env)))
    workspace = tmp_path / "workspace"
    shutil.copytree(inputs / "model", workspace / "model")
    command = [
        trainer_python, "-m", "stoker", "local", tmp_path / "trainjob.yaml", "--runtime", tmp_path / "runtime.yaml",
        "--workspace", workspace, "--python", f"vllm={made.stdout.strip()}/bin/python",
    ]  # fmt: skip
    own = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([*map(str, command)], env={**environment_of(TRAINING), **own})
    try:
        wait_for(process, port)
        found = seen(client(client_python, "loops", port, workspace / "model"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == ExitCode.STOPPED
    finally:
        process.kill()
        process.wait()
    assert max(found["reinforced"]["gaps"]) < 0.05, found
    assert [*(workspace / "adapters").glob("*/[0-9]*")] == [], "nothing that was published is left"
