"""A fleet's replica with real vLLM loads whole weights from a folder, and keeps those it has if it cannot."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from runner.tests.integration.environments import TINY_INPUTS, made_once
from runner.tests.integration.fleet_replicas import Replica, ask

from stoker.cluster.processes import free_ports

pytestmark = pytest.mark.full  # needs vLLM's environment on this machine

CASES = Path(__file__).with_name("fleet_weights_cases.py")


class Fleet:
    """One replica with a fleet of its own.

    Args:
        python: of an environment with vLLM.
        folder: gets everything.
        stack: ends the processes.

    Attributes:
        base: the model that it starts with.
        trained: the same model with other weights.
        replica: the replica.
    """

    def __init__(self, python: Path, folder: Path, stack: ExitStack) -> None:
        self._python = python
        made = made_once("vllm", python, TINY_INPUTS)
        subprocess.run([python, CASES, "make", made / "model", folder], check=True)
        self.base, self.trained = folder / "base", folder / "trained"
        self.replica = Replica(python, folder / "replica", self.base, folder / "state", stack)
        (self._port,) = free_ports(1)
        watch = f"127.0.0.1:{self.replica.watch}"
        at = (f"--ready={watch}", f"--known={watch}", f"--port={self._port}")
        self.replica.programs.stoker("fleet", "fleet", f"--folder={folder / 'state'}", *at)
        self.replica.await_ready()

    def reload(self, path: Path | None) -> tuple[int, Any]:
        """Return the status and the answer to a call."""
        kwargs = {"weights_path": str(path)} if path else {}
        return ask(self._port, "/collective_rpc", {"method": "reload_weights", "kwargs": kwargs})

    def off(self, model: Path) -> float:
        """Return how far the replica's log-probabilities are from those of a model, at most."""
        done = subprocess.run([self._python, CASES, "score", model], check=True, stdout=subprocess.PIPE)
        wanted = json.loads(done.stdout)
        body = {"model": "base", "prompt": wanted["tokens"], "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
        _, answer = ask(self.replica.vllm, "/v1/completions", body)
        entries = answer["choices"][0]["prompt_logprobs"][1:]
        pairs = zip(entries, wanted["tokens"][1:], wanted["scores"], strict=True)
        worst: float = max(abs(entry[str(token)]["logprob"] - score) for entry, token, score in pairs)
        return worst


@pytest.fixture(scope="module")
def fleet(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet that is ready."""
    with ExitStack() as stack:
        yield Fleet(vllm_python, tmp_path_factory.mktemp("fleet"), stack)


def test_it_loads_each_model_that_is_named_and_its_own_again(fleet: Fleet) -> None:
    assert fleet.off(fleet.base) < 0.01
    assert fleet.off(fleet.trained) > 0.5
    assert fleet.reload(fleet.trained) == (200, {"results": [None]})
    assert fleet.off(fleet.trained) < 0.01
    assert fleet.reload(None)[0] == 200
    assert fleet.off(fleet.base) < 0.01


def test_a_damaged_file_changes_nothing(fleet: Fleet, tmp_path: Path) -> None:
    assert fleet.reload(fleet.trained)[0] == 200
    damaged = shutil.copytree(fleet.trained, tmp_path / "damaged")
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    status, answer = fleet.reload(damaged)
    assert status == 502, answer
    assert "SafetensorError" in answer["error"]["message"]
    assert fleet.off(fleet.trained) < 0.01
    fleet.replica.await_ready()
