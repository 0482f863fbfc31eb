"""Two real vLLMs take turns at a device by `stoker slice`, and each batch that they compute is noted."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from runner.tests.integration.environments import TINY_INPUTS, made_once
from runner.tests.integration.fleet_replicas import VLLM, ask
from runner.tests.serve.slices import processes
from runner.tests.serve.slices.processes import LEASE, START, WAIT, Device, Member, harm_one, wait_for

pytestmark = [pytest.mark.full, pytest.mark.alone]

HERE = Path(__file__).parent
# The stand-in engines of `test_processes.py` take a thousand; those of vLLM take twice as long.
TURNS = 300
# Requests that each engine has at any time.
CLIENTS = 2
PLUGIN = "[vllm.general_plugins]\nnotes = vllm_notes:register\n"


class VllmMember(Member):
    """A vLLM, its guard, and its `stoker slice run`.

    Args:
        python: of an environment with vLLM.
        model: what it serves.
        more: as for `Member`; the first two are name and folder.
    """

    def __init__(self, python: Path, model: Path, *more: object) -> None:
        self._python, self._model = python, model
        super().__init__(*more)  # type: ignore[arg-type]

    def command(self, load: int = 1, read: float = 0.0) -> list[str]:
        """Return the command that starts it."""
        plugin = self.requests.with_name("plugin")
        if not plugin.exists():
            described = plugin / "notes-1.dist-info"
            described.mkdir(parents=True)
            (described / "METADATA").write_text("Metadata-Version: 2.1\nName: notes\nVersion: 1\n")
            (described / "entry_points.txt").write_text(PLUGIN)
            for file in (HERE / "vllm_notes.py", Path(processes.__file__).with_name("device_journal.py")):
                shutil.copy(file, plugin)
        own = {**VLLM, "PYTHONPATH": plugin, "HOME": plugin, "VLLM_NOTES": self.requests}
        return [
            "env", *(f"{name}={value}" for name, value in own.items()), str(self._python.with_name("vllm")), "serve",
            str(self._model), "--host=127.0.0.1", f"--port={self.port}", "--served-model-name=base", "--dtype=float32",
            "--enforce-eager", "--max-model-len=128", "--max-num-seqs=16", "--disable-uvicorn-access-log",
        ]  # fmt: skip


@pytest.fixture
def device(vllm_python: Path, tmp_path: Path) -> Iterator[Device]:
    """Two vLLMs that share a device, and are asked without end."""
    model = made_once("vllm", vllm_python, TINY_INPUTS) / "model"
    over = threading.Event()
    with ExitStack() as stack:
        made = Device(tmp_path, make=partial(VllmMember, vllm_python, model))
        for member in made.members * CLIENTS:
            asking = threading.Thread(target=_ask, args=(member.port, over))
            asking.start()
            stack.callback(asking.join)
        stack.callback(made.close)
        stack.callback(over.set)
        wait_for(lambda: all(member.events("running") for member in made.members), "they do not start", START)
        yield made


def _ask(port: int, over: threading.Event) -> None:
    """Ask for texts until it is over."""
    body = {"model": "base", "prompt": "1 + 1 =", "max_tokens": 8, "ignore_eos": True}
    while not over.is_set():
        if ask(port, "/v1/completions", body)[0] != 200:
            over.wait(1.0)  # it starts


def test_turns_never_overlap(device: Device, measured: Callable[[str], None]) -> None:
    wait_for(lambda: device.turns() > TURNS, "no turns", WAIT + 2 * TURNS)
    for member in device.members:
        member.asks.terminate()
    assert [member.asks.wait(WAIT) for member in device.members] == [0, 0]
    assert device.api.holder(LEASE) == ""
    device.check()
    counts = [len(member.events("running")) for member in device.members]
    assert max(counts) - min(counts) <= 1
    # Each had one engine, and computed in most of its turns.
    assert [len({line["pid"] for line in member.lines()}) for member in device.members] == [1, 1]
    used = sorted((*served, member.name) for member in device.members for served in member.served())
    switches = sum(one != other for (*_, one), (*_, other) in pairwise(used))
    measured(f"{sum(counts)} turns of two vLLMs: {len(used)} batches, {switches} times by another one than before")
    assert switches > TURNS / 2


def test_what_is_killed_or_stopped_loses_its_turn(device: Device) -> None:
    for signal in ("SIGSTOP", "SIGKILL"):
        for what in ("the one that asks", "the engine"):
            harm_one(device, f"{signal} of {what}")
