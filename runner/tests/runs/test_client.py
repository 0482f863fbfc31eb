"""The cluster is asked with the user's kubeconfig, and every refusal is one line with what to do."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from runner.tests.runs.api_server import Cluster, forbidden, serving, write_kubeconfig

from stoker.contract.exits import ExitCode
from stoker.runs import client as module
from stoker.runs.client import Client, connect
from stoker.runs.errors import (
    ClusterError,
    ExistsError,
    KubeconfigError,
    NotFoundError,
    NotInstalledError,
    ObjectRefusedError,
    RightsError,
    UnreachableError,
)
from stoker.runs.kinds import PODS, TRAINJOBS


def pod(name: str, namespace: str = "ml", **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {},
    }


def one_line(error: ClusterError) -> str:
    assert "\n" not in error.message
    return error.message


# Objects.


def test_lists_are_of_the_contexts_namespace_and_whole(
    cluster: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE", 2)
    cluster.add("pods", *(pod(f"a-{number}", run="a") for number in range(5)), pod("b", run="b"), pod("a", "prod"))
    found = client.list(PODS, "run=a")
    assert [one["metadata"]["name"] for one in found] == [f"a-{number}" for number in range(5)]
    assert {(one["apiVersion"], one["kind"]) for one in found} == {("v1", "Pod")}
    assert len(client.list(PODS)) == 6
    assert len(client.list(PODS, everywhere=True)) == 7
    assert [one["metadata"]["name"] for one in client.list(PODS, namespace="prod")] == ["a"]
    assert [one["metadata"]["name"] for one in client.list(PODS, fields="metadata.name=b")] == ["b"]


def test_objects_are_made_patched_and_deleted(cluster: Cluster, client: Client) -> None:
    job = {"apiVersion": TRAINJOBS.version, "kind": "TrainJob", "metadata": {"name": "a"}, "spec": {"suspend": True}}
    assert client.create(TRAINJOBS, job, dry_run=True)["spec"] == {"suspend": True}
    assert client.find(TRAINJOBS, "a") is None
    assert client.create(TRAINJOBS, job)["metadata"]["namespace"] == "ml"
    assert client.patch(TRAINJOBS, "a", {"spec": {"suspend": False}})["spec"] == {"suspend": False}
    assert client.get(TRAINJOBS, "a")["metadata"]["uid"] == "uid-a"
    assert client.delete(TRAINJOBS, "a")
    assert not client.delete(TRAINJOBS, "a")
    assert cluster.objects == {}


def test_a_log_is_lines(cluster: Cluster, client: Client) -> None:
    cluster.logs["a", "node"] = "2026-11-22T10:00:00Z one\n2026-11-22T10:00:01Z two\n2026-11-22T10:00:02Z half"
    assert [*client.log("a", "node")] == [b"one", b"two", b"half"]
    assert [*client.log("a", "node", tail=1, timestamps=True)] == [b"2026-11-22T10:00:02Z half"]
    assert [*client.log("a", "node", since="2026-11-22T10:00:01Z")] == [b"two", b"half"]
    with pytest.raises(ObjectRefusedError, match="waiting to start"):
        next(client.log("a", "other"))


def test_a_token_is_sent(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.token = "good"
    with serving(cluster, tmp_path) as path:
        monkeypatch.setenv("KUBECONFIG", str(path))
        assert connect().list(PODS) == []
        cluster.token = "renewed"
        with pytest.raises(RightsError, match="log in again") as raised:
            connect().list(PODS)
        assert raised.value.code == ExitCode.CONFIG


@pytest.mark.parametrize("ends", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_command_is_no_broken_connection(
    client: Client, monkeypatch: pytest.MonkeyPatch, ends: type[BaseException]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise ends

    monkeypatch.setattr("kubernetes.stream.ws_client.WSClient", interrupted)
    with pytest.raises(ends):
        list(client.exec("a", "get", ["true"]))


# Which cluster.


def test_a_context_and_a_namespace_can_be_named(cluster: Cluster, kubeconfig: Path) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    config["contexts"].append({"name": "bare", "context": {"cluster": "test", "user": "test"}})
    kubeconfig.write_text(yaml.safe_dump(config))
    assert connect().namespace == "ml"
    assert connect(namespace="prod").namespace == "prod"
    assert connect("bare").namespace == "default"
    with pytest.raises(KubeconfigError, match="has no such context, only bare, test"):
        connect("bear")


@pytest.mark.parametrize("current", [None, ""])
def test_a_named_context_needs_no_current_one(kubeconfig: Path, current: str | None) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    del config["current-context"]
    kubeconfig.write_text(yaml.safe_dump(config | ({} if current is None else {"current-context": current})))
    assert connect("test").list(PODS) == []
    with pytest.raises(KubeconfigError, match="it has no current context; it has the contexts test") as raised:
        connect()
    assert "--context" in one_line(raised.value)


def test_several_kubeconfigs_are_merged_and_missing_ones_skipped(
    kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{kubeconfig}")
    assert connect().list(PODS) == []


@pytest.mark.parametrize("text", ["", "a: [", "apiVersion: v1\nkind: Config\n", "current-context: x\ncontexts: []\n"])
def test_a_broken_kubeconfig_is_78(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(KubeconfigError, match="cannot be used") as raised:
        connect()
    assert raised.value.code == ExitCode.CONFIG
    assert str(path) in one_line(raised.value)


def test_no_kubeconfig_is_78(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeconfigError, match=r"there is no kubeconfig at .*missing: name .* KUBECONFIG") as raised:
        connect()
    assert raised.value.code == ExitCode.CONFIG


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes.client", None)
    with pytest.raises(NotInstalledError) as raised:
        connect()
    assert one_line(raised.value).endswith("pip install './runner[cluster]'")
    assert raised.value.code == ExitCode.CONFIG


# Refusals.


def test_no_answer_is_69(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, address)))
        with pytest.raises(UnreachableError) as raised:
            connect().list(PODS)
    assert raised.value.code == ExitCode.UNAVAILABLE
    assert one_line(raised.value).startswith(f"the cluster at {address} does not answer (")
    assert "Connection refused" in raised.value.message


def test_no_rights_are_78_and_named(cluster: Cluster, client: Client) -> None:
    cluster.refusals["GET", "pods"] = forbidden("list", "pods")
    with pytest.raises(RightsError, match="you may not list pods in namespace ml: ask") as raised:
        client.list(PODS)
    assert raised.value.code == ExitCode.CONFIG
    cluster.refusals["GET", "pods/log"] = forbidden("get", "pods")
    with pytest.raises(RightsError, match="you may not get pods/log in namespace ml"):
        next(client.log("a", "node"))


def test_a_cluster_without_trainer_is_told_from_a_missing_run(cluster: Cluster, client: Client) -> None:
    with pytest.raises(NotFoundError, match="there is no TrainJob a in namespace ml: correct the name") as raised:
        client.get(TRAINJOBS, "a")
    assert raised.value.code == ExitCode.NO_INPUT
    cluster.kinds.remove("trainjobs")
    with pytest.raises(NotFoundError, match=r"has no trainjobs\..*: install Kubeflow Trainer") as raised:
        client.list(TRAINJOBS)
    assert raised.value.code == ExitCode.CONFIG


def test_what_the_cluster_says_of_an_object_is_told(cluster: Cluster, client: Client) -> None:
    client.create(PODS, pod("a"))
    with pytest.raises(ExistsError, match="Pod a exists already in namespace ml: choose another name"):
        client.create(PODS, pod("a"))
    quota = {"message": 'pods "b" is forbidden: exceeded quota: small, requested: pods=1', "reason": "Forbidden"}
    cluster.refusals["POST", "pods"] = (403, quota)
    with pytest.raises(ObjectRefusedError, match=r"refuses to create Pod b, so change .*: .*exceeded quota") as raised:
        client.create(PODS, pod("b"))
    assert raised.value.code == ExitCode.USAGE


@pytest.mark.parametrize("status", [500, 503])
def test_an_ailing_api_server_is_69(status: int, cluster: Cluster, client: Client) -> None:
    cluster.refusals["GET", "pods"] = (status, {"message": "etcdserver: request timed out"})
    with pytest.raises(UnreachableError, match="request timed out") as raised:
        client.list(PODS)
    assert raised.value.code == ExitCode.UNAVAILABLE
