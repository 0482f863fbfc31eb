"""A fleet's replica with real vLLM loads whole weights from a folder, and gives them back if it cannot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from runner.tests.integration.environments import TINY_INPUTS, made_once

import stoker
from stoker.cluster.processes import free_ports

pytestmark = pytest.mark.full  # needs vLLM's environment on this machine

CASES = Path(__file__).with_name("fleet_weights_cases.py")
SOURCE = str(Path(stoker.__file__).parents[1])
VLLM = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip


class Replica:
    """vLLM, its watcher and a fleet of it alone.

    Args:
        python: of an environment with vLLM.
        folder: gets everything.
        stack: ends the processes.

    Attributes:
        folder: has `base`, which it starts with, and `trained`.
    """

    def __init__(self, python: Path, folder: Path, stack: ExitStack) -> None:
        self._python, self.folder, self._stack = python, folder, stack
        made = made_once("vllm", python, TINY_INPUTS)
        subprocess.run([python, CASES, "make", made / "model", folder], check=True)
        self._vllm, watch, self._fleet = free_ports(3)
        settings = folder / "adapters.yaml"
        settings.write_text(
            yaml.safe_dump(
                {"model": {"path": str(folder / "base"), "name": "base"}, "fleet": {"folder": str(folder / "state")}}
            )
        )
        self._stoker("adapters", "prepare", "--settings", str(settings), "--output", str(folder / "config")).wait()
        server = [
            str(python.with_name("vllm")), "serve", str(folder / "base"), "--config", str(folder / "config/vllm.yaml"),
            "--served-model-name=base", "--host=127.0.0.1", f"--port={self._vllm}", "--dtype=float32",
            "--enforce-eager", "--max-model-len=64", "--max-num-seqs=4",
        ]  # fmt: skip
        self._start("vllm", server, {**VLLM, "PYTHONPATH": str(folder / "config/python"), "HOME": str(folder)})
        here = ["--server", f"http://127.0.0.1:{self._vllm}", "--host", "127.0.0.1", "--port", str(watch)]
        self._stoker("adapters", "watch", "--settings", str(settings), *here)
        at = [f"--ready=127.0.0.1:{watch}", f"--known=127.0.0.1:{watch}", f"--port={self._fleet}"]
        self._stoker("fleet", f"--folder={folder / 'state'}", *at)

    def _stoker(self, *words: str) -> subprocess.Popen[bytes]:
        return self._start(words[0], [sys.executable, "-m", "stoker", *words], {"PYTHONPATH": SOURCE})

    def _start(self, name: str, command: list[str], environ: dict[str, str]) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self.folder / f"{name}.log").open("ab"))
        process = subprocess.Popen(command, env={**os.environ, **environ}, stdout=log, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        return process

    def reload(self, path: Path | None) -> tuple[int, Any]:
        """Return the status and the answer to a call of the fleet."""
        kwargs = {"weights_path": str(path)} if path else {}
        return self._ask(self._fleet, "/collective_rpc", {"method": "reload_weights", "kwargs": kwargs})

    def ready(self) -> bool:
        """Return whether the replica has all that the fleet wants."""
        _, found = self._ask(self._fleet, "/fleet")
        return isinstance(found, dict) and [one["ready"] for one in found["replicas"].values()] == [True]

    def off(self, model: Path) -> float:
        """Return how far the replica's log-probabilities are from those of a model, at most."""
        done = subprocess.run([self._python, CASES, "score", model], check=True, stdout=subprocess.PIPE)
        wanted = json.loads(done.stdout)
        body = {"model": "base", "prompt": wanted["tokens"], "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        _, answer = self._ask(self._vllm, "/v1/completions", body)
        entries = answer["choices"][0]["prompt_logprobs"][1:]
        pairs = zip(entries, wanted["tokens"][1:], wanted["scores"], strict=True)
        worst: float = max(abs(entry[str(token)]["logprob"] - score) for entry, token, score in pairs)
        return worst

    @staticmethod
    def _ask(port: int, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, None


@pytest.fixture(scope="module")
def replica(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """A replica that is ready."""
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("fleet")
        found = Replica(vllm_python, folder, stack)
        deadline = time.monotonic() + 300
        while not found.ready():
            logs = "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in folder.glob("*.log"))
            assert time.monotonic() < deadline, logs
            time.sleep(0.5)
        yield found


def test_it_loads_each_model_that_is_named_and_its_own_again(replica: Replica) -> None:
    base, trained = replica.folder / "base", replica.folder / "trained"
    assert replica.off(base) < 0.01
    assert replica.off(trained) > 0.5
    assert replica.reload(trained) == (200, {"results": [None]})
    assert replica.off(trained) < 0.01
    assert replica.reload(None)[0] == 200
    assert replica.off(base) < 0.01


def test_a_damaged_file_changes_nothing(replica: Replica, tmp_path: Path) -> None:
    trained = replica.folder / "trained"
    assert replica.reload(trained)[0] == 200
    damaged = shutil.copytree(trained, tmp_path / "damaged")
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    status, answer = replica.reload(damaged)
    assert status == 502, answer
    assert "SafetensorError" in answer["error"]["message"]
    assert replica.off(trained) < 0.01
    assert replica.ready()
