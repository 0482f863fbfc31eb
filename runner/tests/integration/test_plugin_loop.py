"""A plugin with a training loop without transformers, on `stoker.plugin` alone, stops and resumes on two nodes."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from runner.tests.integration.jobs import LocalJob


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module, its entry point beside it as an installation would write it."""
    info = tmp_path / "site" / "counter-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counter\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[stoker.backends]\ncounter = loop_plugin:CounterConfig\n")
    shutil.copy(Path(__file__).with_name("loop_plugin.py"), info.parent)
    monkeypatch.setenv("PYTHONPATH", str(info.parent))


@pytest.mark.full
@pytest.mark.usefixtures("plugin")
def test_a_loop_without_transformers_stops_and_resumes(job: LocalJob) -> None:
    options: dict[str, Any] = {"nodes": 2, "command": ("stoker", "run"), "env": {"STOKER_FRAMEWORK": "counter"}}
    process = job.start("loop_plugin", "--max_steps", "100000", **options)
    job.wait_for(lambda: len(job.ranks()) == 2, process)
    process.send_signal(signal.SIGTERM)
    stopped = job.end(process)
    assert stopped.code == 75, stopped.output
    (step,) = job.sealed()
    ended = job.run("loop_plugin", "--max_steps", str(step + 3), **options)
    assert ended.code == 0, ended.output
    manifest = job.manifest()
    assert (manifest["steps"], manifest["world_size"]) == (step + 3, 2)
    assert manifest["resumed_from"] == f"checkpoint-{step}"


@pytest.mark.full
@pytest.mark.usefixtures("plugin")
def test_a_crash_in_c_code_prints_where_it_was(job: LocalJob) -> None:
    options: dict[str, Any] = {"command": ("stoker", "run"), "env": {"STOKER_FRAMEWORK": "counter"}}
    process = job.start("loop_plugin", "--max_steps", "100", **options)
    job.wait_for(lambda: len(job.ranks()) == 1, process)
    (rank,) = job.ranks().values()
    os.kill(rank, signal.SIGSEGV)
    ended = job.end(process)
    assert ended.code == 0, ended.output
    assert "rank 0 died of SIGSEGV" in ended.output
    assert "Fatal Python error: Segmentation fault" in ended.output
    assert 'loop_plugin.py", line' in ended.output
