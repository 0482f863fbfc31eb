"""Two samplers with real vLLM follow a trainer's versions: what they write is what each version would."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from runner.tests.integration.local_sampler import VLLM, sampler

import stoker
from stoker.cluster.processes import free_ports
from stoker.contract.exits import ExitCode, RunError
from stoker.contract.samplers import SamplerRequest, request_path
from stoker.rollouts.addresses import addresses_in
from stoker.rollouts.fleet import Fleet
from stoker.rollouts.publish import Published, Publisher
from stoker.rollouts.records import Request, Turn
from stoker.rollouts.replicas import Needs
from stoker.rollouts.stores import Adapters
from stoker.serve.adapters import live
from stoker.serve.adapters.files import read_base_model

pytestmark = pytest.mark.full  # needs vLLM's and the trainer's environments on this machine

ROOT = Path(__file__).parents[3]
POLICY = Path(__file__).with_name("policy_versions.py")
TEMPERATURE = 0.7


class Run:
    """A trainer's side of a run: its samplers, and two adapters to publish.

    Args:
        folder: gets everything.
        model: the base model.
        python: of an environment with the trainers.
    """

    def __init__(self, folder: Path, model: Path, python: Path) -> None:
        self.folder, self.model, self._python = folder, model, python
        self.adapters = [folder / "made" / name for name in ("one", "other")]
        subprocess.run([python, POLICY, "write", model, *self.adapters], check=True)
        self.published = folder / "adapters"
        self.name = live.claim(self.published, "run", "job")
        request = SamplerRequest(str(model), "policy", str(self.published), 128, 8, versions=4, dtype="float32")
        request.write(request_path(folder, "job", 0))
        self._ports = free_ports(4)
        self._processes = [self._sampler(index) for index in range(2)]
        known = read_base_model(model).fingerprint
        self.fleet = Fleet(
            addresses_in(
                ",".join(
                    f"http://127.0.0.1:{port};watcher=http://127.0.0.1:{watcher}"
                    for port, watcher in zip(self._ports[::2], self._ports[1::2], strict=True)
                )
            ),
            self.name,
            Needs(fingerprint=known, prompt=100, answer=28, loras=4, rank=8),
            wait_seconds=900,
        )
        self.usable: list[int] = []
        self.in_use = frozenset[int]()
        store = Adapters(self.published, self.name, {"name_or_path": str(model), "revision": None})
        self.publisher = Publisher(store, self.fleet, self.usable.append, lambda: self.in_use)

    def _sampler(self, index: int) -> subprocess.Popen[bytes]:
        made = subprocess.run([ROOT / "images/vllm/venv"], check=True, stdout=subprocess.PIPE, text=True)
        port, watcher = self._ports[2 * index : 2 * index + 2]
        command = [sys.executable, "-m", "stoker", "sampler", "--output", str(self.folder / f"config-{index}")]
        own = ["--vllm", f"{made.stdout.strip()}/bin/vllm", "--port", str(port), "--watch-port", str(watcher)]
        told = {
            "PYTHONPATH": str(Path(stoker.__file__).parents[1]), "HOME": str(self.folder),
            "STOKER_WORKSPACE": str(self.folder), "STOKER_JOB_ID": "job", "STOKER_RESTART_ATTEMPT": "0",
        }  # fmt: skip
        with (self.folder / f"sampler-{index}.log").open("wb") as log:
            return subprocess.Popen(
                [*command, *own, "--", "--enforce-eager", "--max-num-seqs=16"],
                env={**os.environ, **VLLM, **told}, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def wait_for_both(self) -> None:
        """Wait until both samplers serve the newest version."""
        self.until(lambda: len(self.fleet.ready()) == 2, 600)

    def until(self, what: Callable[[], object], seconds: float) -> None:
        """Wait until something is true; show the logs if it does not come true."""
        deadline = time.monotonic() + seconds
        while not what():
            ended = [process.poll() for process in self._processes]
            if any(code is not None for code in ended) or time.monotonic() > deadline:
                logs = [f"--- {path.name}\n{path.read_text()[-3000:]}" for path in self.folder.glob("*.log")]
                raise AssertionError("\n".join([f"samplers ended with {ended}", *logs]))
            time.sleep(0.02)

    def publish(self, version: int) -> Published:
        """Publish one of the adapters as a version, and return how that went."""
        source = self.adapters[version % 2]
        self.publisher.publish(version, lambda draft: _copy(source, draft))
        self.until(lambda: version in self.usable or self.publisher.failed(), 120)
        assert self.publisher.failed() is None
        (told,) = self.publisher.published()
        return told

    def versions(self) -> list[int]:
        """Return the versions that are there."""
        return [int(path.name) for path in (self.published / self.name).iterdir() if path.name.isdecimal()]

    async def ask(self, version: int, first: int = 0, groups: int = 4, max_tokens: int = 24) -> list[Turn]:
        """Return four answers of each of some groups."""
        prompts = {ordinal: (5 + ordinal, 40, 41) for ordinal in range(first, first + groups)}
        return await asyncio.gather(
            *(
                self.fleet.complete(
                    Request(prompt, version, ordinal, index, 0, max_tokens, TEMPERATURE, seed=100 * ordinal + index)
                )
                for ordinal, prompt in prompts.items()
                for index in range(4)
            )
        )

    def scores(self, turns: list[Turn]) -> list[list[list[float]]]:
        """Return what PEFT says of answers: for each, by the base model and by each adapter."""
        answers = self.folder / "answers.json"
        answers.write_text(
            json.dumps(
                [
                    {"prompt": turn.prompt_ids, "completion": turn.completion_ids, "temperature": TEMPERATURE}
                    for turn in turns
                ]
            )
        )
        done = subprocess.run(
            [self._python, POLICY, "score", self.model, answers, *self.adapters], check=True, stdout=subprocess.PIPE
        )
        found: list[list[list[float]]] = json.loads(done.stdout)
        return found

    def kill_vllm(self) -> None:
        """Kill the vLLM of the first sampler."""
        listed = subprocess.run(
            ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(self._processes[0].pid)],
            check=True, stdout=subprocess.PIPE, text=True,
        ).stdout  # fmt: skip
        (line,) = (line for line in listed.splitlines() if " adapters watch " not in line)
        os.kill(int(line.split()[0]), signal.SIGKILL)

    def close(self) -> None:
        """End everything."""
        self.publisher.close()
        self.fleet.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(120)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, inputs: Path, trainer_python: Path) -> Iterator[Run]:
    """A run whose samplers are both ready."""
    started = Run(tmp_path_factory.mktemp("samplers"), inputs / "model", trainer_python)
    try:
        started.fleet.check()
        started.wait_for_both()
        yield started
    finally:
        started.close()


def test_each_version_writes_as_its_adapter_and_no_other(run: Run) -> None:
    turns = asyncio.run(run.ask(0))
    run.in_use = frozenset({1, 2})
    for version in (1, 2):
        run.publish(version)
    run.wait_for_both()
    turns += asyncio.run(run.ask(1))
    turns += asyncio.run(run.ask(2))
    assert {turn.replica for turn in turns} == set(run.fleet.ready()), "both have work"
    for version in (0, 1, 2):
        homes: dict[tuple[int, ...], set[str]] = {}
        for turn in turns:
            if turn.version == version:
                homes.setdefault(turn.prompt_ids, set()).add(turn.replica)
        assert all(len(home) == 1 for home in homes.values()), "a group stays together"
    distances = []
    for turn, scores in zip(turns, run.scores(turns), strict=True):
        off = [max(abs(a - b) for a, b in zip(turn.logprobs, other, strict=True)) for other in scores]
        # Version 1 is the second adapter: see `publish`.
        own = off.pop({0: 0, 1: 2, 2: 1}[turn.version])
        assert own < 0.02, f"version {turn.version} at {turn.replica}"
        distances.append(min(off))
    assert statistics.median(distances) > 0.5


def test_the_same_seed_writes_the_same(run: Run) -> None:
    first, second = (asyncio.run(run.ask(0)) for _ in range(2))
    assert [turn.completion_ids for turn in first] == [turn.completion_ids for turn in second]


def test_versions_are_usable_soon_and_old_ones_go(run: Run, measured: Callable[[str], None]) -> None:
    run.in_use = frozenset()
    spread = [run.publish(version).spread_seconds for version in range(3, 23)]
    measured(f"to two samplers: median {statistics.median(spread):.3f} s beyond the write, most {max(spread):.3f} s")
    assert statistics.median(spread) < 2, "a poll alone would take half a second, on a machine with time"
    run.until(lambda: run.versions() == [22], 120)
    assert len(asyncio.run(run.ask(22))) == 16


def test_a_sampler_that_is_killed_loses_nothing_and_comes_back_with_the_newest_version(run: Run) -> None:
    run.publish(23)

    async def ask_on() -> list[Turn]:
        found = []
        for _ in range(6):
            found += await run.ask(23, groups=8, max_tokens=60)
        return found

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: asyncio.run(ask_on()))
        run.until(lambda: sum(run.fleet.under_way().values()) > 0, 120)
        run.kill_vllm()
        run.until(lambda: len(run.fleet.ready()) == 1, 120)
        turns = asked.result(600)
    assert len(turns) == 6 * 8 * 4
    assert {turn.version for turn in turns} == {23}
    run.publish(24)
    run.wait_for_both()
    # Groups stay where they were, so these are new ones.
    scores = run.scores(turns := asyncio.run(run.ask(24, first=100, groups=8)))
    assert {turn.replica for turn in turns} == set(run.fleet.ready())
    for turn, (_, one, _) in zip(turns, scores, strict=True):
        assert max(abs(a - b) for a, b in zip(turn.logprobs, one, strict=True)) < 0.02


def test_a_sampler_starts_with_the_context_that_its_memory_holds(inputs: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(inputs / "model", model)
    config = json.loads((model / "config.json").read_text())
    # One sequence of 40,960 tokens needs 1.25 GiB, and VLLM has 1 GiB.
    config |= {"max_position_embeddings": 40_960, "hidden_size": 2048, "num_hidden_layers": 2, "layer_types": None}
    config |= {"num_attention_heads": 16, "num_key_value_heads": 16}
    (model / "config.json").write_text(json.dumps(config))
    request = SamplerRequest(str(model), "policy", str(tmp_path / "adapters"), None, 8, versions=2, dtype="float32")
    request.write(request_path(tmp_path, "job", 0))
    port, watcher = free_ports(2)
    with sampler(tmp_path, port, watcher, "--load-format=dummy"):
        fleet = Fleet(
            addresses_in(f"http://127.0.0.1:{port};watcher=http://127.0.0.1:{watcher}"),
            live.claim(tmp_path / "adapters", "run", "job"),
            Needs(prompt=39_960, answer=1000, loras=2, rank=8),
            wait_seconds=1800,
        )
        try:
            with pytest.raises(RunError) as refused:
                fleet.check()
        finally:
            fleet.close()
    assert refused.value.code is ExitCode.CONFIG, (tmp_path / f"sampler-{port}.log").read_text()[-5000:]
    (length,) = map(int, re.findall(r"it takes (\d+) tokens, but the longest prompt", refused.value.message))
    assert 30_000 < length < 40_960


def _copy(source: Path, draft: Path) -> None:
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copyfile(source / file, draft / file)
