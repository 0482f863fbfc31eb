"""Two real vLLMs take turns at a device by a Lease of the cluster, and each batch that they compute is noted.

Their processes are not in pods, so that tests can stop each of them, and read one journal of both.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from runner.tests.integration.environments import TINY_INPUTS, environment, made_once
from runner.tests.integration.fleet_replicas import VLLM
from runner.tests.serve.slices import processes
from runner.tests.serve.slices.processes import (
    DURATION,
    LEASE,
    NEXT,
    START,
    WAIT,
    Device,
    Member,
    harm_one,
    wait_for,
)

from cluster import Cluster
from cluster.embedded.control_plane import api_server
from cluster.embedded.processes import pid_of
from e2e.kube import Kube

pytestmark = [pytest.mark.full, pytest.mark.alone]

HERE = Path(__file__).parent
TURNS = 1_000
# Requests that each engine has at any time.
CLIENTS = "2"
PLUGIN = "[vllm.general_plugins]\nnotes = vllm_notes:register\n"
NAME = "turns"


@contextmanager
def an_account(kube: Kube, folder: Path) -> Iterator[list[str]]:
    """Have an account that may read and write one Lease, until the end of the block.

    Args:
        kube: its namespace.
        folder: gets what a pod has of its account.

    Yields:
        the words by which `stoker slice run` finds the API server and the account.
    """
    kube.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}})
    kube.kubectl("create", "serviceaccount", NAME)
    kube.kubectl("create", "role", NAME, "--verb=get,update", "--resource=leases", f"--resource-name={LEASE}")
    kube.kubectl("create", "rolebinding", NAME, f"--role={NAME}", f"--serviceaccount={kube.namespace}:{NAME}")
    config = json.loads(kube.kubectl("config", "view", "--raw", "--minify", "--flatten", "--output=json").stdout)
    server = config["clusters"][0]["cluster"]
    folder.mkdir()
    (folder / "ca.crt").write_bytes(base64.b64decode(server["certificate-authority-data"]))
    (folder / "namespace").write_text(kube.namespace)
    (folder / "token").write_text(kube.kubectl("create", "token", NAME, "--duration=3h").stdout)
    try:
        yield ["--api", server["server"], "--account", str(folder)]
    finally:
        for kind, name in (("rolebinding", NAME), ("role", NAME), ("serviceaccount", NAME), ("lease", LEASE)):
            kube.delete(kind, name)


class VllmMember(Member):
    """A vLLM, its guard, and its `stoker slice run`.

    Args:
        cluster: where they run.
        python: of an environment with vLLM.
        model: what it serves.
        more: as for `Member`; the first two are name and folder.
    """

    def __init__(self, cluster: Cluster, python: Path, model: Path, *more: object) -> None:
        self._cluster, self._python, self._model = cluster, python, model
        super().__init__(*more)  # type: ignore[arg-type]

    def enter(self, command: list[str]) -> list[str]:
        """Return the command that starts another one where the cluster can be reached."""
        return self._cluster.provider.wrap(command)

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


@pytest.fixture(scope="module")
def vllms(cluster: Cluster, kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """Two vLLMs that share a device, and are asked without end."""
    python = environment("vllm", runner=False)
    model = made_once("vllm", python, TINY_INPUTS) / "model"
    folder = tmp_path_factory.mktemp("device")
    with ExitStack() as stack:
        words = stack.enter_context(an_account(kube, folder / "account"))
        made = Device(folder, words, make=partial(VllmMember, cluster, python, model))
        stack.callback(made.close)
        ports = [str(member.port) for member in made.members]
        asks = [sys.executable, str(HERE / "vllm_asks.py"), CLIENTS, *ports]
        asking = stack.enter_context(subprocess.Popen(cluster.provider.wrap(asks)))
        stack.callback(asking.kill)
        yield made


@pytest.fixture
def device(vllms: Device) -> Device:
    """The two, in turns; a test may have ended `stoker slice`."""
    for member in vllms.members:
        if member.asks.poll() is not None:
            member.asks = member.start()
    wait_for(lambda: all(member.events("running") for member in vllms.members), "they do not start", START)
    return vllms


def test_turns_never_overlap(device: Device, kube: Kube, measured: Callable[[str], None]) -> None:
    wait_for(lambda: device.turns() > TURNS, "no turns", WAIT + 2 * TURNS)
    for member in device.members:
        member.asks.terminate()
    # Told to stop they give the device back.
    assert [member.asks.wait(WAIT) for member in device.members] == [0, 0]
    lease = kube.get("lease", LEASE)
    assert lease
    assert not lease["spec"].get("holderIdentity")
    device.check()
    counts = [len(member.events("running")) for member in device.members]
    assert max(counts) - min(counts) <= 1
    held = [sum(line["held"] for line in member.events("given")) for member in device.members]
    assert 0.95 < held[0] / held[1] < 1.05
    # Each had one engine, and computed in most of its turns.
    assert [len({line["pid"] for line in member.lines()}) for member in device.members] == [1, 1]
    used = sorted((*served, member.name) for member in device.members for served in member.served())
    switches = sum(one != other for (*_, one), (*_, other) in pairwise(used))
    measured(
        f"{sum(counts)} turns of two vLLMs: {len(used)} batches, {switches} times by another one than before, "
        f"{held[0]:.1f} s and {held[1]:.1f} s"
    )
    assert switches > TURNS / 2


def test_an_api_server_that_does_not_answer_stops_everybody_and_ends_nobody(device: Device, cluster: Cluster) -> None:
    if cluster.provider.name != "embedded":
        pytest.skip("only the API server of the embedded cluster is a process of this machine")
    server = pid_of(api_server(Path()))
    assert server
    enough = device.turns() + 4
    wait_for(lambda: device.turns() >= enough, "no turns")
    os.kill(server, signal.SIGSTOP)
    try:
        silent = time.monotonic()
        time.sleep(DURATION)
        counts = [member.begun() for member in device.members]
        time.sleep(2.0)
        assert [member.begun() for member in device.members] == counts, "an engine computes without a Lease"
        turns = [len(member.events("running")) for member in device.members]
    finally:
        os.kill(server, signal.SIGCONT)
    wait_for(lambda: any(map(_has_more, device.members, turns)), "no turn")
    assert time.monotonic() - silent < DURATION + NEXT
    for member, before in zip(device.members, turns, strict=True):
        wait_for(partial(_has_more, member, before), "no turn")
    device.check()
    assert [len({line["pid"] for line in member.lines()}) for member in device.members] == [1, 1], "an engine was ended"


def test_what_is_killed_or_stopped_loses_its_turn(device: Device) -> None:
    for number in ("SIGSTOP", "SIGKILL"):
        for what in ("the one that asks", "the engine"):
            harm_one(device, f"{number} of {what}")


def _has_more(member: Member, turns: int) -> bool:
    return len(member.events("running")) > turns
