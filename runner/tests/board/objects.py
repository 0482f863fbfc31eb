"""A team's namespace: runs in each state, serving releases, and what runs have left on claims."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner.tests.report.hostile import group, write_run
from runner.tests.runs.api_server import Cluster
from runner.tests.runs.objects import ended, pod, progress, terminated, trainjob, unschedulable

from stoker.report.write import write_report

Object = dict[str, Any]

SECRET = "hf_" + "a1B2" * 8
SETTINGS = """\
model:
  name: "support"
  source: "Qwen/Qwen3-0.6B"
adapters:
  - name: "tone"
    path: "/claims/initializer-tone/output"
published:
  folder: "/claims/adapters/live"
"""


def deployment(name: str = "chat", settings: str | None = SETTINGS, replicas: int = 2, **status: Any) -> Object:
    """Return the Deployment of a serving release; of something else without settings."""
    annotations = {} if settings is None else {"stoker.dev/adapters.yaml": settings}
    labels = {"app.kubernetes.io/name": "vllm-serving", "app.kubernetes.io/instance": name}
    told = {"observedGeneration": 1, "updatedReplicas": replicas, "readyReplicas": replicas, **status}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"{name}-vllm-serving", "namespace": "ml", "generation": 1, "labels": labels},
        "spec": {"replicas": replicas, "template": {"metadata": {"annotations": annotations}}},
        "status": told,
    }


def lines(count: int = 60) -> list[Object]:
    """Return the metrics of a run."""
    return [
        {
            "step": step,
            "loss": 0.5 + math.exp(-step / 20),
            "reward": 1 - math.exp(-step / 20),
            "learning_rate": 1e-4,
            "tokens_per_second": 900.0,
        }
        for step in range(1, count + 1)
    ]


def fill(cluster: Cluster) -> None:
    """Put a team's objects into a cluster."""
    now = datetime.now(UTC).isoformat()
    cluster.add(
        "trainjobs",
        trainjob(trainerStatus=progress(loss=1.5, reward=0.25, step=42, time=now)),
        trainjob("wait"),
        trainjob("new"),
        trainjob("broken", **ended("Failed", "JobFailed")),
        trainjob("done", **ended("Complete", "JobsCompleted")),
    )
    message = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    cluster.add(
        "pods",
        pod(),
        pod(index=1),
        unschedulable(message, run="wait", spec={"nodeSelector": {"gpu": "h200"}}),
        terminated(64, f"unknown flag --lerning_rate, token {SECRET}", run="broken"),
    )
    cluster.add("deployments", deployment(), deployment("other", None))


def claims(folder: Path) -> dict[str, Path]:
    """Make what runs have left: a run of the cluster, an older one, one that still trains, and published adapters."""
    done = write_run(folder / "done/output", lines(), [group(step, "1+1=", "2", "3") for step in range(10)])
    facts = {"method": "grpo_async", "base_model": {"name_or_path": "/workspace/model"}, "steps": 60, "seconds": 61.2}
    assert write_report(done, facts)
    (done / "stoker.json").write_text(json.dumps({**facts, "time": "2026-11-22T10:05:00Z"}))
    shared = folder / "shared"
    write_run(shared / "older/output", lines(30))
    (shared / "older/output/stoker.json").write_text(json.dumps({"method": "sft", "steps": 30, "time": "2026-11-01"}))
    write_run(shared / "team/young/output", lines(3))
    for name in ("tone-1", "tone-2"):
        (folder / "adapters/live" / name).mkdir(parents=True)
        (folder / "adapters/live" / name / "adapter_config.json").write_text("{}")
        (folder / "adapters/live" / name / "stoker.json").write_text("{}")
    return {"initializer-done": folder / "done", "shared": shared, "adapters": folder / "adapters"}


def folders(named: dict[str, Path]) -> list[str]:
    """Return the options that name folders."""
    return [word for name, path in named.items() for word in ("--folder", f"{name}={path}")]
