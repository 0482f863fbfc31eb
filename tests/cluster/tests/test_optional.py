"""Add-ons: what is installed, and what a cluster of the user's own is spared."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cluster import artifacts, cli, optional
from cluster.connection import Cluster
from cluster.embedded import EmbeddedProvider
from cluster.errors import UNAVAILABLE, USAGE, ClusterError, UsageError
from cluster.existing import ExistingProvider
from cluster.kind import WORKERS, KindProvider


def test_kueue_decides_about_trainjobs_alone_and_runs_beside_the_other_controllers() -> None:
    release = optional.kueue_release("registry:5000", "node-1")
    assert release.install_command(Path("chart"))[:5] == ["helm", "upgrade", "--install", "kueue", "chart"]
    manager = release.values["controllerManager"]
    assert manager["nodeSelector"] == {"kubernetes.io/hostname": "node-1"}
    assert manager["manager"]["image"]["repository"] == "registry:5000/cluster/kueue"
    assert manager["manager"]["image"]["tag"] == artifacts.KUEUE.version
    config = json.loads(release.values["managerConfig"]["controllerManagerConfigYaml"])
    assert config["integrations"] == {"frameworks": ["trainer.kubeflow.org/trainjob"]}
    assert set(config["featureGates"].values()) == {False}
    assert optional.kueue_release("registry:5000", None).values["controllerManager"]["nodeSelector"] == {}


def test_kueue_computes_pods_with_the_trainer_of_the_cluster() -> None:
    trainer = artifacts.TRAINER
    assert trainer.upstream
    assert artifacts.pinned_version(artifacts.KUEUE.source / "go.mod", trainer.upstream) == trainer.version


def test_system_pods_stay_off_a_node_that_can_be_drained() -> None:
    assert (EmbeddedProvider.system_node, KindProvider.system_node) == ("node-1", WORKERS[0])
    assert ExistingProvider.system_node is None


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster of the user's own, with Kueue in it."""
    done = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(Cluster, "run", lambda *words, **options: done)
    return Cluster(ExistingProvider(), {})


@pytest.mark.parametrize("name", optional.ADD_ONS)
@pytest.mark.parametrize("change", [optional.add, optional.remove])
def test_a_cluster_of_the_users_own_is_left_alone(own: Cluster, change: Any, name: str) -> None:
    with pytest.raises(ClusterError, match=f"the cluster is yours: install or remove {name} as its own documentation"):
        change(own, name)


def test_a_provider_without_devices_names_the_one_that_has_them() -> None:
    with pytest.raises(ClusterError, match="the kind provider has no node with devices: use --provider embedded"):
        optional.add(Cluster(KindProvider(), {}), "dra")


def test_an_unknown_add_on_is_named_with_the_known_ones(own: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="unknown add-on 'volcano': choose one of dra, kueue"):
        optional.has(own, "volcano")
    with pytest.raises(SystemExit) as ended:
        cli.main(["add", "volcano"])
    assert ended.value.code == USAGE
    assert "choose from" in capsys.readouterr().err


def test_the_command_says_why_it_cannot(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "connect", lambda name: Cluster(ExistingProvider(), {}))
    assert cli.main(["--provider", "existing", "add", "kueue"]) == UNAVAILABLE
    assert "the cluster is yours" in capsys.readouterr().err
