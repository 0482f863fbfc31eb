"""The Python side for tests: a cluster that is up, to run commands against."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import images
from .commands import capture
from .provider import Provider, choose


@dataclass(frozen=True)
class Cluster:
    """A cluster that can be reached.

    Attributes:
        provider: What it is reached through.
        env: What clients need on top of this process' own environment.
    """

    provider: Provider
    env: dict[str, str]

    @property
    def registry(self) -> str:
        """The registry's host:port as clients and nodes see it; empty if the provider has none."""
        return self.env.get("CLUSTER_REGISTRY", "")

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command where the cluster can be reached.

        Args:
            argv: The command, such as ``["kubectl", "get", "pods"]``.
            options: For `subprocess.run`; text mode and ``check=True`` unless said otherwise. ``env`` adds to the
                environment instead of replacing it.

        Raises:
            subprocess.CalledProcessError: The command failed and ``check`` was not turned off.
        """
        env = {**os.environ, **self.env, **options.pop("env", {})}
        check = options.pop("check", True)
        return subprocess.run(self.provider.wrap(argv), check=check, env=env, **{"text": True, **options})

    def nodes(self) -> list[str]:
        """Return the nodes' names, sorted."""
        listed = json.loads(self.output(["kubectl", "get", "nodes", "-o", "json"]))
        return sorted(item["metadata"]["name"] for item in listed["items"])

    def push(self, layout: Path, name: str) -> str:
        """Push an OCI layout to the registry as NAME:TAG and return the full reference with its digest.

        Raises:
            ClusterError: It is no OCI layout, there is no registry, or the push failed.
        """
        return images.push(layout, name, self.registry, self.output)

    def output(self, argv: Sequence[str], stdin: str = "") -> str:
        """Run a command where the cluster can be reached, and return its standard output.

        Raises:
            ClusterError: It failed; the message holds the end of what it said.
        """
        return capture(self.provider.wrap(argv), {**os.environ, **self.env}, stdin)


def connect(provider: str | None = None) -> Cluster:
    """Return the cluster of a provider (by name; None chooses as the command line does).

    It does not start one: ``python3 -m cluster up`` does, and is quick if there is one.

    Raises:
        CannotRunHereError: The provider cannot work on this machine; tests skip with the message.
        ClusterError: There is no cluster to reach.
    """
    chosen = choose(provider)
    cluster = Cluster(chosen, chosen.environment())
    chosen.wrap([])  # raises if there is nothing to reach
    return cluster
