"""Our images and charts in the cluster's registry, built from this checkout."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from charts.helm import ROOT
from cluster import Cluster


@dataclass(frozen=True)
class Image:
    """An image in the cluster's registry.

    Attributes:
        repository: its name with the registry.
        tag: its tag, which names what it was built from.
    """

    repository: str
    tag: str

    @property
    def reference(self) -> str:
        """What a pod writes in `image`."""
        return f"{self.repository}:{self.tag}"

    @property
    def values(self) -> dict[str, str]:
        """What a chart's values say of it, under `images.<name>`."""
        return {"repository": self.repository, "tag": self.tag}


def push_image(cluster: Cluster, name: str, *words: str) -> Image:
    """Build one of our images, `images/build NAME WORDS…`, and push it."""
    built = subprocess.run([ROOT / "images/build", name, *words], check=True, stdout=subprocess.PIPE, text=True)
    facts = json.loads(built.stdout)
    cluster.push(Path(facts["oci"]), f"stoker-dev/{name}:{facts['tag']}")
    return Image(f"{cluster.registry}/stoker-dev/{name}", facts["tag"])


def push_chart(cluster: Cluster, helm: Callable[..., str], name: str, folder: Path) -> list[str]:
    """Package one of our charts in a folder and push it; return the words by which helm finds it in the registry."""
    chart = ROOT / "charts" / name
    helm("package", str(chart), "--destination", str(folder))
    (package,) = folder.glob("*.tgz")
    helm("push", str(package), f"oci://{cluster.registry}/charts", "--plain-http")
    version = yaml.safe_load((chart / "Chart.yaml").read_text())["version"]
    return [f"oci://{cluster.registry}/charts/{name}", "--version", version, "--plain-http"]
