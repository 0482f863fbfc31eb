"""Which provider is chosen, what each would run, and how the command line reports."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster import cli, existing, kind, package, provider, tools
from cluster.embedded import EmbeddedProvider
from cluster.errors import CannotRunHereError, ClusterError, UsageError
from cluster.existing import ExistingProvider
from cluster.kind import KindProvider
from cluster.provider import Health


@pytest.mark.parametrize(
    ("name", "environ", "docker", "expected"),
    [
        ("embedded", {"CLUSTER_PROVIDER": "kind"}, True, EmbeddedProvider),
        (None, {"CLUSTER_PROVIDER": "existing"}, True, ExistingProvider),
        (None, {"CLUSTER_PROVIDER": ""}, True, KindProvider),
        (None, {}, False, EmbeddedProvider),
    ],
)
def test_the_provider_is_named_or_suits_the_machine(
    name: str | None, environ: dict[str, str], docker: bool, expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider, "docker_answers", lambda: docker)
    assert isinstance(provider.choose(name, environ), expected)


def test_an_unknown_provider_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown cluster provider 'minikube': choose one of embedded, kind, existing"):
        provider.choose("minikube", {})


def test_kind_config_has_workers_that_share_a_folder_and_read_registry_hosts() -> None:
    config = json.loads(kind.cluster_config(Path("/volumes")))
    workers = [node for node in config["nodes"] if node["role"] == "worker"]
    assert [node["extraMounts"][0]["hostPath"] for node in workers] == ["/volumes"] * len(kind.WORKERS)
    assert "certs.d" in config["containerdConfigPatches"][0]


def test_kind_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLUSTER_CACHE", str(tmp_path))
    kubeconfig = str(tmp_path / "cluster" / "kind" / "kubeconfig")
    assert kind.create_command()[:5] == ["kind", "create", "cluster", "--name", kind.NAME]
    assert kind.create_command()[-2:] == ["--kubeconfig", kubeconfig]
    assert "127.0.0.1:5001:5000" in kind.registry_command()
    assert kind.hosts_command("n")[:4] == ["docker", "exec", "-i", "n"]
    assert f"certs.d/{kind.REGISTRY}/hosts.toml" in kind.hosts_command("n")[-1]


def test_kind_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CannotRunHereError, match="needs docker, kind, kubectl on PATH"):
        KindProvider().up()


def test_kind_trusts_only_a_cluster_that_this_version_finished(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLUSTER_CACHE", str(tmp_path))
    for name in ("_check", "_run"):
        monkeypatch.setattr(KindProvider, name, lambda *words: "")
    monkeypatch.setattr(KindProvider, "status", lambda self: [Health("node/a", healthy=True, detail="")])
    monkeypatch.setattr(tools, "find", dict)
    monkeypatch.setattr(kind, "capture", lambda *words, **options: "")
    for name in ("artifacts.build", "images.publish", "addons.apply", "controllers.install"):
        monkeypatch.setattr(f"cluster.kind.{name}", lambda *words: {})

    def up(wait: Callable[..., None]) -> bool:
        monkeypatch.setattr("cluster.kind.controllers.wait", wait)
        KindProvider().up()
        return "already up" not in capsys.readouterr().err

    def interrupted(*words: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        up(interrupted)
    assert up(lambda *words: None)
    assert not up(interrupted)
    monkeypatch.setattr(package, "fingerprint", lambda: "another")
    assert up(lambda *words: None)


def test_existing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [Health("API server", healthy=True, detail=""), Health("trainjobs", healthy=False, detail="not found")]
    monkeypatch.setattr(ExistingProvider, "status", lambda self: parts)
    with pytest.raises(ClusterError, match=r"(?s)has no trainjobs.*helm install kubeflow-trainer oci://"):
        ExistingProvider().up()


def test_existing_says_that_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = [Health("API server", healthy=False, detail="connection refused")]
    monkeypatch.setattr(ExistingProvider, "status", lambda self: dead)
    with pytest.raises(ClusterError, match="no cluster answers: connection refused\npoint KUBECONFIG"):
        ExistingProvider().up()


def test_existing_passes_the_users_settings_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/my/config")
    monkeypatch.setenv("CLUSTER_REGISTRY", "registry.example:5000")
    monkeypatch.setenv("CLUSTER_REGISTRY_PLAIN_HTTP", "true")
    environment = existing.ExistingProvider().environment()
    assert environment["KUBECONFIG"] == "/my/config"
    assert environment["CLUSTER_REGISTRY"] == "registry.example:5000"
    assert environment["CLUSTER_REGISTRY_PLAIN_HTTP"] == "true"


@pytest.mark.parametrize(
    ("system", "user", "message"), [("Darwin", 0, "needs Linux, but this is Darwin"), ("Linux", 1000, "needs root")]
)
def test_the_embedded_provider_says_why_it_cannot_run(
    system: str, user: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    for command in (["up"], ["down"]):
        assert cli.main(["--provider", "embedded", *command]) == 77
        told = capsys.readouterr().err
        assert told.startswith("cluster: error: ")
        assert message in told


def test_status_prints_one_line_each_and_fails_unless_all_are_healthy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [Health("etcd", healthy=True, detail="process 1"), Health("kubelet", healthy=False, detail="not running")]
    monkeypatch.setattr(ExistingProvider, "status", lambda self: parts)
    assert cli.main(["--provider", "existing", "status"]) == 1
    assert capsys.readouterr().out == "ok    etcd     process 1\nFAIL  kubelet  not running\n"


def test_wrong_usage_ends_with_64(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["sideways"])
    assert ended.value.code == 64
    told = capsys.readouterr().err
    assert told.startswith("cluster: error: ")
    assert "sideways" in told
    assert cli.main(["--provider", "existing", "exec", "--"]) == 64


def test_tools_are_taken_from_the_named_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tools.NEEDED:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("CLUSTER_TOOLS", str(tmp_path))
    assert tools.find() == {name: tmp_path / name for name in tools.NEEDED}


def test_missing_tools_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTER_TOOLS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="helm and crane not found"):
        tools.find()
