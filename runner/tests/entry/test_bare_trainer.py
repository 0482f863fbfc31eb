"""A trainer that `stoker run` did not start computes on the devices of its pod, or ends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from runner.tests.samples import alone

from stoker.contract.exits import ExitCode
from stoker.entry.bare_trainer import guard_bare_process
from stoker.plan import facts
from stoker.rank import accelerator
from stoker.rank.accelerator import Found

WORKS = Found("2.13.0+cu130", "13.0", "580.65.06", 1)
OLD_DRIVER = Found("2.13.0+cu130", "13.0", "550.54", error="too old")


@pytest.mark.parametrize(
    ("env", "found", "why"),
    [
        ({"STOKER_ACCELERATOR": "nvidia"}, WORKS, "the trainer computes on cpu, but the runtime is for nvidia"),
        ({}, WORKS, "the trainer computes on cpu, but this node has nvidia devices"),
        (
            {"STOKER_ACCELERATOR": "nvidia"},
            OLD_DRIVER,
            "driver 550.54) cannot use the nvidia devices of this node (too old): CUDA 13.0 needs driver 580 or newer",
        ),
    ],
    ids=["of a runtime", "of a device node", "with an old driver"],
)
def test_a_bare_trainer_on_the_cpu_of_a_gpu_node_ends_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: Mapping[str, str], found: Found, why: str
) -> None:
    log = tmp_path / "termination-log"
    told = {**env, "STOKER_TERMINATION_LOG": str(log)}
    monkeypatch.setattr(facts, "read_facts", lambda: alone(told, ["nvidia0"]))
    monkeypatch.setattr(accelerator, "look", lambda *_: found)
    cpu: Any = "cpu"
    with pytest.raises(SystemExit) as ended:
        guard_bare_process(cpu)
    assert ended.value.code == ExitCode.CONFIG
    assert why in log.read_text()
