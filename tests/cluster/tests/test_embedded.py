"""The embedded provider's pure parts: configuration, commands, process identity."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from cluster import addons, controllers, package, tools
from cluster.embedded import (
    cgroups,
    control_plane,
    devices,
    host,
    layout,
    network,
    node,
    pki,
    processes,
    state,
    teardown,
)
from cluster.embedded.layout import DEVICE_NODE, FIRST, NODES
from cluster.embedded.provider import EmbeddedProvider
from cluster.errors import CannotRunHereError, ClusterError
from cluster.provider import Health


def test_networks_do_not_overlap_and_hold_the_nodes() -> None:
    networks = [ipaddress.IPv4Network(n) for n in (layout.NODE_NETWORK, layout.POD_NETWORK, layout.SERVICE_NETWORK)]
    assert not any(a.overlaps(b) for a in networks for b in networks if a is not b)
    for each in (*NODES, DEVICE_NODE):
        assert ipaddress.IPv4Address(each.address) in networks[0]
        assert ipaddress.IPv4Network(each.pod_network).subnet_of(networks[1])
    for address in (layout.KUBERNETES_SERVICE, layout.DNS_SERVICE):
        assert ipaddress.IPv4Address(address) in networks[2]


def test_there_is_no_default_route() -> None:
    routes = [command for command in network.wire_commands() if "route" in command]
    assert routes
    assert not any("default" in route or "0.0.0.0/0" in route for route in routes)


@pytest.mark.parametrize("each", NODES, ids=lambda each: each.name)
def test_containerd_config(each: layout.Node) -> None:
    text = node.containerd_config(each, Path("/cni"), "registry/pause:1", keep_oom_scores=True)
    config = tomllib.loads(text)
    cri = config["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["sandbox_image"] == "registry/pause:1"
    assert cri["restrict_oom_score_adj"] is True
    assert Path(cri["registry"]["config_path"]) == node.REGISTRY_HOSTS
    assert all(each.name in config[folder] for folder in ("root", "state"))


def test_containerd_speaks_plain_http_to_the_registry_only() -> None:
    hosts = tomllib.loads(node.registry_hosts())
    assert list(hosts["host"]) == [f"http://{layout.REGISTRY}"]


@pytest.mark.parametrize("each", NODES, ids=lambda each: each.name)
def test_kubelet_config(each: layout.Node) -> None:
    config = json.loads(node.kubelet_config(each))
    assert config["cgroupRoot"] == each.cgroup
    assert config["authentication"]["anonymous"] == {"enabled": False}
    assert config["imageGCHighThresholdPercent"] == 100
    assert f"--hostname-override={each.name}" in node.kubelet(each, Path("/bin")).argv


def test_the_node_with_devices_takes_no_other_pods() -> None:
    config = json.loads(node.kubelet_config(DEVICE_NODE, [devices.TAINT]))
    assert config["registerWithTaints"] == [{"key": "gpu.example.com", "effect": "NoSchedule"}]
    assert "registerWithTaints" not in json.loads(node.kubelet_config(FIRST))


def test_containerd_2_finds_devices_where_the_driver_describes_them() -> None:
    config = tomllib.loads(devices.containerd_config(Path("/cni"), "registry/pause:1", keep_oom_scores=True))
    assert config["version"] == 3
    runtime, images = (config["plugins"][f"io.containerd.cri.v1.{part}"] for part in ("runtime", "images"))
    assert runtime["enable_cdi"] is True
    (folder,) = runtime["cdi_spec_dirs"]
    driver = devices.driver(Path("/driver"))
    assert f"--cdi-root={folder}" in driver.argv
    assert f"--node-name={DEVICE_NODE.name}" in driver.argv
    (root,) = (word for word in node.kubelet(DEVICE_NODE, Path("/bin")).argv if word.startswith("--root-dir="))
    assert f"--kubelet-plugins-directory-path={root.removeprefix('--root-dir=')}/plugins" in driver.argv
    assert runtime["restrict_oom_score_adj"] is True
    assert runtime["cni"]["bin_dirs"] == ["/cni"]
    assert images["pinned_images"] == {"sandbox": "registry/pause:1"}
    assert Path(images["registry"]["config_path"]) == node.REGISTRY_HOSTS
    assert all(DEVICE_NODE.name in config[part] for part in ("root", "state"))


def test_containerd_2_starts_the_shim_of_its_own_version() -> None:
    folders = {module: Path("/built") / module.name for module in devices.MODULES}
    daemon = devices.containerd(folders)
    assert daemon.argv[0] == "/built/containerd/containerd"
    assert dict(daemon.environment)["PATH"].startswith("/built/containerd-shim-runc-v2:")
    assert daemon.mounts_of == devices.driver(Path("/driver")).mounts_of == node.mounts(DEVICE_NODE)


def test_a_node_that_is_not_there_has_no_daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_NETNS", tmp_path)
    assert devices.daemons() == []
    before = [daemon.name for daemon in EmbeddedProvider()._daemons(Path(), Path())]
    (tmp_path / DEVICE_NODE.netns).touch()
    names = [daemon.name for daemon in EmbeddedProvider()._daemons(Path(), Path())]
    assert names[: len(before)] == before
    assert names[len(before) :] == [
        f"node-3-{part}" for part in ("mounts", "containerd", "kubelet", "kube-proxy", "devices")
    ]


def test_devices_need_a_cluster_of_this_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "STATE", tmp_path / "state.json")
    monkeypatch.setattr(state, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(host, "check", lambda: None)
    for made_by in (None, "another"):
        if made_by:
            state.write(state.State(made_by))
        with pytest.raises(ClusterError, match="run `up` first"):
            EmbeddedProvider().add_devices()


def test_one_nodes_processes_end_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_tracking", lambda: tmp_path)
    monkeypatch.setattr(cgroups, "_hierarchies", lambda: [tmp_path])
    pods = {each: tmp_path / each.cgroup.lstrip("/") / "kubepods/pod-a/cgroup.procs" for each in (FIRST, DEVICE_NODE)}
    for number, (each, inside) in enumerate(pods.items()):
        (of_daemons,) = cgroups.daemons(each)
        for procs in (of_daemons, inside):
            procs.parent.mkdir(parents=True)
        of_daemons.write_text(f"{10 * number + 1}\n")
        inside.write_text(f"{10 * number + 2}\n{10 * number + 3}\n")
    assert sorted(cgroups.processes(DEVICE_NODE)) == [11, 12, 13]
    assert sorted(cgroups.processes()) == [1, 2, 3, 11, 12, 13]


def test_pods_get_addresses_of_their_node() -> None:
    for each in NODES:
        bridge = json.loads(node.cni_config(each))["plugins"][0]
        assert bridge["ipam"]["ranges"] == [[{"subnet": each.pod_network}]]


def test_the_api_server_answers_to_its_issuers_name() -> None:
    (issuer,) = (a for a in control_plane.api_server(Path("/bin")).argv if a.startswith("--service-account-issuer="))
    host_name = issuer.partition("https://")[2]
    assert f"DNS:{host_name}" in pki.certificate_extensions(pki.API_SERVER_TLS)


def test_kubelets_log_in_as_their_nodes() -> None:
    for each, identity in pki.KUBELETS.items():
        assert identity.user == f"system:node:{each.name}"
        assert identity.groups == ("system:nodes",)
        assert f"IP:{each.address}" in pki.certificate_extensions(identity)


def test_daemons_have_names_of_their_own() -> None:
    daemons = [build(each) for each in NODES for build in (node.mounts, node.containerd)]
    assert len({daemon.name for daemon in daemons}) == len(daemons)
    assert {daemon.node for daemon in daemons} == set(NODES)


def test_cgroup_hierarchies_are_read_from_mountinfo() -> None:
    mountinfo = (
        "24 1 0:21 / /proc rw - proc proc rw\n"
        "30 1 0:26 / /sys/fs/cgroup/pids rw,relatime shared:9 - cgroup cgroup rw,pids\n"
        "31 1 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "32 1 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    )
    assert cgroups.hierarchies(mountinfo) == [Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup/unified")]


@pytest.mark.parametrize(("name", "weight"), [("cpu.shares", "4096"), ("cpu.weight", "400")])
def test_a_cgroup_weighs_as_much_as_several_processes(tmp_path: Path, name: str, weight: str) -> None:
    (tmp_path / name).write_text("1")
    cgroups.weigh(tmp_path, 4)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {name: weight}


def test_daemons_are_in_the_hierarchies_that_find_them_again_and_that_divide_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids, cpu, memory = (tmp_path / name for name in ("pids", "cpu", "memory"))
    (cpu / layout.NAME).mkdir(parents=True)
    (cpu / layout.NAME / "cpu.shares").touch()
    monkeypatch.setattr(cgroups, "_tracking", lambda: pids)
    monkeypatch.setattr(cgroups, "_hierarchies", lambda: [memory, cpu, pids])
    inside = Path(layout.NAME) / "daemons" / FIRST.name / "cgroup.procs"
    assert cgroups.daemons(FIRST) == [pids / inside, cpu / inside]


def test_no_controller_gives_up_a_lease() -> None:
    jobset, trainer = controllers.releases("registry:5000", None)
    assert jobset.values["controller"]["leaderElection"] == {"enable": False}
    assert trainer.values["manager"]["config"]["leaderElection"] == {"leaderElect": False}


def test_a_reused_process_id_is_not_taken_for_the_daemon(tmp_path: Path) -> None:
    pidfile = tmp_path / "daemon"
    pidfile.write_text(f"{os.getpid()} {processes.start_time(os.getpid())}\n")
    assert processes.remembered_pid(pidfile) == os.getpid()
    pidfile.write_text(f"{os.getpid()} 1\n")
    assert processes.remembered_pid(pidfile) is None
    pidfile.write_text("nonsense\n")
    assert processes.remembered_pid(pidfile) is None
    assert processes.remembered_pid(tmp_path / "none") is None


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert processes.start_time(child.pid) is None
    child.wait()


def test_a_state_that_cannot_be_read_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "STATE", tmp_path / "state.json")
    assert state.read() is None
    state.write(state.State("abc"))
    assert state.read() == state.State("abc")
    for broken in ("{", "[]", '{"other": 1}'):
        (tmp_path / "state.json").write_text(broken)
        assert state.read() is None


def test_the_fingerprint_is_stable() -> None:
    assert package.fingerprint() == package.fingerprint()


def test_up_renews_the_links_to_the_clients_of_a_cluster_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(state, "read", lambda: state.State(package.fingerprint()))
    monkeypatch.setattr(host, "check", lambda: None)
    monkeypatch.setattr(EmbeddedProvider, "_is_or_gets_healthy", lambda self: True)
    monkeypatch.setattr("cluster.embedded.provider.BIN", tmp_path)
    monkeypatch.setattr(tools, "find", lambda: {"helm": Path("/new/helm")})
    (tmp_path / "helm").symlink_to("/gone/helm")
    EmbeddedProvider().up()
    assert (tmp_path / "helm").readlink() == Path("/new/helm")


def test_missing_packages_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    monkeypatch.setattr(host, "_CNI_FOLDERS", ())
    missing = host.missing_packages()
    assert missing.count("containerd") == 1
    assert host.CNI_PACKAGE in missing


def test_the_module_for_bridges_is_loaded_where_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, program = tmp_path / "bridge", tmp_path / "modprobe"
    monkeypatch.setattr(host, "_BRIDGE_SETTINGS", settings)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotRunHereError, match=r"br_netfilter, .* no modprobe\); load it .* --provider kind"):
        host.load_modules()
    program.write_text("#!/bin/sh\necho 'not found in /lib/modules' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(CannotRunHereError, match="not found in /lib/modules"):
        host.load_modules()
    program.write_text(f'#!/bin/sh\n[ "$1" = br_netfilter ] && /bin/mkdir {settings}\n')
    host.load_modules()
    program.unlink()
    host.load_modules()


def test_leftovers_are_found_by_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "processes", list)
    monkeypatch.setattr(network, "namespaces", list)
    monkeypatch.setattr(teardown, "RUN", tmp_path / "run")
    monkeypatch.setattr(teardown, "DATA", tmp_path)
    assert teardown.leftovers() == [str(tmp_path)]


def test_manifests_are_filled_in() -> None:
    dns = addons.dns_manifest("registry:5000", FIRST.name, layout.DNS_SERVICE, layout.CLUSTER_DOMAIN)
    assert f"clusterIP: {layout.DNS_SERVICE}" in dns
    assert "image: registry:5000/cluster/coredns:v" in dns
    storage = addons.storage_manifest("registry:5000", FIRST.name, "/volumes")
    assert '"sharedFileSystemPath": "/volumes"' in storage
    assert "image: registry:5000/cluster/volume-helper:v" in storage
    assert "expression: device.driver == 'gpu.example.com'" in addons.device_class_manifest()


def test_controllers_come_from_the_registry_with_the_status_gate_on() -> None:
    jobset, trainer = controllers.releases("registry:5000", "node-1")
    assert jobset.values["image"]["repository"] == "registry:5000/cluster/jobset"
    assert trainer.values["image"]["registry"] == "registry:5000"
    assert trainer.values["manager"]["config"]["featureGates"] == {"TrainJobStatus": True}
    assert jobset.install_command(Path("/chart"))[:5] == ["helm", "upgrade", "--install", "jobset", "/chart"]


@pytest.mark.parametrize(
    ("status", "available"),
    [
        ({}, False),
        ({"observedGeneration": 1, "updatedReplicas": 1, "availableReplicas": 1}, False),
        ({"observedGeneration": 2, "updatedReplicas": 1, "availableReplicas": 0}, False),
        ({"observedGeneration": 2, "updatedReplicas": 1, "availableReplicas": 1}, True),
    ],
)
def test_a_deployment_is_available_in_its_newest_version(status: dict[str, int], available: bool) -> None:
    deployment = {"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": status}
    assert controllers.is_available(deployment) is available


@pytest.mark.parametrize(("dead", "expected"), [("etcd", False), ("deployment/a/b", True)])
def test_up_waits_for_deployments_but_not_for_dead_daemons(
    dead: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = EmbeddedProvider()
    names = [daemon.name for daemon in provider._daemons(Path(), Path())] + ["deployment/a/b"]
    monkeypatch.setattr(provider, "status", lambda: [Health(name, name != dead, "") for name in names])
    monkeypatch.setattr(provider, "_wait_for_nodes", lambda: None)
    monkeypatch.setattr(controllers, "wait", lambda run, seconds: None)
    assert provider._is_or_gets_healthy() is expected


def test_a_users_broken_deployment_is_not_the_clusters() -> None:
    listed = [
        {"metadata": {"namespace": namespace, "name": "x", "generation": 1}, "spec": {}, "status": {}}
        for namespace in ("default", "kube-system")
    ]
    assert controllers.deployments(lambda argv, stdin="": json.dumps({"items": listed})) == {"kube-system/x": False}
