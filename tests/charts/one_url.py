"""The one URL over replicas with real vLLM, on this machine: all proxies run the chart's own configuration."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.tests.integration.fleet_replicas import Programs, Replica

from charts.helm import Manifest
from charts.loopback_fleet import LoopbackFleet, until_it_answers
from charts.serving_settings import settings_files
from stoker.cluster.processes import free_ports
from stoker.serve.fleet.control import Control
from stoker.serve.fleet.endpoints import FleetServer
from stoker.serve.fleet.log import Log
from stoker.serve.fleet.replicas import Replicas


@dataclass(frozen=True)
class OneUrl:
    """The one URL.

    Attributes:
        url: where it is.
        log: the fleet's states.
        replicas: what is behind it.
        proxies: where clients reach each replica's own proxy.
    """

    url: str
    log: Log
    replicas: list[Replica]
    proxies: list[str]


@contextmanager
def one_url(
    caddy: Path,
    python: Path,
    model: Path,
    folder: Path,
    *,
    count: int = 2,
    lora: Mapping[str, Any] = {},
    refresh: str = "100ms",
) -> Iterator[OneUrl]:
    """Have the one URL, with ready replicas behind it, and end everything.

    Args:
        caddy: the proxy's program.
        python: of an environment with vLLM.
        model: what replicas serve as `base`.
        folder: gets everything.
        count: replicas.
        lora: the settings of adapters; without them replicas take whole weights.
        refresh: how often the proxy looks up which replicas there are, in Caddy's words.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        log = Log(folder / "state")
        replicas = [
            Replica(python, folder / f"replica-{number}", model, log.folder, stack, lora) for number in range(count)
        ]
        fleet = LoopbackFleet(caddy, folder, stack, (), refresh)
        ips = [f"127.0.0.{number + 2}" for number in range(count)]
        proxies = [
            own_proxy(caddy, fleet, ip, one.vllm, one.watch, stack) for ip, one in zip(ips, replicas, strict=True)
        ]
        for one in replicas:
            one.await_ready()
        addresses = [f"{ip}:{fleet.ports[8090]}" for ip in ips]
        control = Control(log, Replicas(lambda: addresses, lambda: addresses, None), 60)
        calls = FleetServer(("127.0.0.1", fleet.ports[8084]), control, lambda path: Path(path).is_dir())
        stack.callback(calls.server_close)
        threading.Thread(target=calls.serve_forever, daemon=True).start()
        stack.callback(calls.shutdown)
        fleet.names.listed += ips
        yield OneUrl(fleet.url, log, replicas, proxies)


def own_proxy(caddy: Path, fleet: LoopbackFleet, ip: str, vllm: int, watch: int, stack: ExitStack) -> str:
    """Start the proxy of a replica's pod, and return where clients reach it.

    Args:
        caddy: the proxy's program.
        fleet: what the replica belongs to, once its address is listed.
        ip: the replica's address.
        vllm: the port of its vLLM.
        watch: the port of its watcher.
        stack: ends the proxy.
    """
    clients, probes = free_ports(2)
    ports = {8000: vllm, 8081: watch, 8080: clients, 8082: probes, 8090: fleet.ports[8090]}
    file = fleet.folder / f"{ip}.caddyfile"
    file.write_text(_replica_file(fleet.objects, ip, ports))
    command: Sequence[str | Path] = [caddy, "run", "--config", file, "--adapter", "caddyfile"]
    process = Programs(fleet.folder, stack).start(f"proxy-{ip}", command)
    until_it_answers(f"http://{ip}:{probes}/proxy/health", process, fleet.folder / f"proxy-{ip}.log")
    return f"http://{ip}:{clients}"


def _replica_file(objects: Sequence[Manifest], ip: str, ports: Mapping[int, int]) -> str:
    """Return the configuration of a replica's own proxy, at an address and at ports of this machine.

    Args:
        objects: what the chart renders.
        ip: the address that it listens at, as a pod has one.
        ports: the port of this machine that stands for each of the pod's.
    """
    text = settings_files(objects)["Caddyfile"]
    for port, mine in ports.items():
        text = text.replace(f":{port}", f":{mine}")
    options = "{\n\tadmin off\n"
    assert text.startswith(options)
    # What is set for a listener is found by its whole address.
    return f"{options}\tdefault_bind {ip}\n" + text.removeprefix(options).replace("servers :", f"servers {ip}:")
