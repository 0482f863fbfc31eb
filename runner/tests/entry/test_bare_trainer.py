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


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"STOKER_ACCELERATOR": "nvidia"}, "but the runtime is for nvidia"),
        ({}, "but this node has nvidia devices"),
    ],
    ids=["of a runtime", "of a device node"],
)
def test_a_bare_trainer_on_the_cpu_of_a_gpu_node_ends_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: Mapping[str, str], why: str
) -> None:
    log = tmp_path / "termination-log"
    told = {**env, "STOKER_TERMINATION_LOG": str(log)}
    monkeypatch.setattr(facts, "read_facts", lambda: alone(told, ["nvidia0"]))
    cpu: Any = "cpu"
    with pytest.raises(SystemExit) as ended:
        guard_bare_process(cpu)
    assert ended.value.code == ExitCode.CONFIG
    assert f"the trainer computes on cpu, {why}" in log.read_text()
