"""Whatever a TrainJob asks for is what trains, or the run refuses: achieved world sizes, read from the manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml

from e2e.conftest import ROOT
from e2e.kube import Kube
from e2e.trainjobs import LORA_SFT, Reader, Run, trainjob

Submit = Callable[[Mapping[str, Any]], Run]


@pytest.mark.full
@pytest.mark.parametrize(
    ("nodes", "processes", "expected"), [(4, None, 4), (2, 2, 4)], ids=["four-by-one", "two-by-two"]
)
def test_nodes_and_processes_are_as_the_trainjob_asks(
    submit: Submit, reader: Reader, nodes: int, processes: int | None, expected: int
) -> None:
    run = submit(trainjob(f"world-{nodes}-{expected // nodes}", nodes=nodes, processes=processes))
    run.wait_complete()
    manifest = run.manifest(reader)
    assert manifest["world_size"] == expected
    assert (manifest["nodes"], manifest["processes_per_node"]) == (nodes, expected // nodes)


@pytest.mark.full
def test_a_trainjob_without_a_trainer_has_the_runtimes_own_world(
    submit: Submit, kube: Kube, reader: Reader, helm: Callable[..., str], catalogue_values: list[str]
) -> None:
    # Trainer injects nothing if spec.trainer is missing, so the world is the runtime's fallback.
    flags = dict(word.removeprefix("--").partition("=")[::2] for word in LORA_SFT)
    settings = [f"runtimes.trl-distributed.args.{flag}={value or 'true'}" for flag, value in flags.items()]
    rendered = helm(
        "template", "pair", str(ROOT / "charts/training-runtimes"), *catalogue_values, "--set", "skipApiCheck=true",
        "--set", "runtimes.trl-distributed.numNodes=2", *(w for s in settings for w in ("--set-string", s)),
    )  # fmt: skip
    runtime = next(d for d in yaml.safe_load_all(rendered) if d and d["kind"] == "ClusterTrainingRuntime")
    runtime["metadata"]["name"] = "trl-distributed-pair"
    kube.apply(runtime)
    try:
        run = submit(trainjob("no-trainer", trainer=False, runtime="trl-distributed-pair"))
        run.wait_complete()
        assert "trainer" not in run.object()["spec"]
        assert run.manifest(reader)["world_size"] == 2
        run.delete()
    finally:
        kube.delete("clustertrainingruntime", "trl-distributed-pair")
