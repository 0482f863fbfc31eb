"""The network that NCCL chose between nodes goes from its log into the pod's log and the manifest."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runner.tests.rank.nccl_logs import IB, SOCKET
from runner.tests.samples import check, pod, resolve

from stoker.contract.files import read_json
from stoker.contract.manifest import MANIFEST
from stoker.node.report import write_run_manifest
from stoker.plan.plan import Plan
from stoker.rank.folders import LocalFolder

HERE = Path(__file__).parent


def plan_in(folder: Path) -> Plan:
    """Return the plan of the first of two nodes with an NVIDIA GPU each, whose trainer is `recorded_nccl`."""
    told = {"STOKER_ACCELERATOR": "nvidia", "STOKER_WORKSPACE": str(folder)}
    plan = resolve(pod(told, devices=("nvidia0",)))
    Path(plan.output_dir).mkdir(parents=True)
    return replace(plan, training="recorded_nccl")


def trained(python: Path, plan: Plan, log: str) -> tuple[LocalFolder, str]:
    """Let rank 0 train while NCCL writes a log; return the folder with its status, and what the pod's log says."""
    local = LocalFolder(Path(plan.workspace) / "local")
    local.plan.parent.mkdir(parents=True)
    plan.write(local.plan)
    recorded = Path(plan.workspace) / "recorded.log"
    recorded.write_text(log)
    done = subprocess.run(
        [python, HERE / "recorded_nccl.py", recorded],
        env={**os.environ, "STOKER_PLAN": str(local.plan), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return local, done.stderr


@pytest.mark.parametrize(("log", "transport"), [(IB, "IB with GPUDirect RDMA"), (SOCKET, "Socket")])
def test_the_transport_of_a_recorded_log_reaches_log_and_manifest(
    trainer_python: Path, tmp_path: Path, log: str, transport: str
) -> None:
    plan = plan_in(tmp_path)
    local, said = trained(trainer_python, plan, log)
    assert f"[stoker] between nodes NCCL uses {transport}" in said
    (status,) = local.statuses()
    write_run_manifest(plan, status.result)
    manifest: Any = read_json(Path(plan.output_dir) / MANIFEST)
    check(manifest, "manifest-v1")
    assert manifest["transport"] == transport


def test_a_log_without_networks_leaves_the_manifest_without_one(trainer_python: Path, tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    local, said = trained(trainer_python, plan, "")
    assert "between nodes" not in said
    (status,) = local.statuses()
    assert "transport" not in write_run_manifest(plan, status.result)
