"""The files that a replica of the serving chart reads at /settings, as its kubelet writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from charts.helm import Manifest

_ANNOTATION = re.compile(r"metadata\.annotations\['(.+)'\]")


def settings_files(objects: Iterable[Manifest]) -> dict[str, str]:
    """Return the text of each file by its name: the pod's own annotations, through the downward API."""
    template = replicas(objects)["spec"]["template"]
    (volume,) = (volume for volume in template["spec"]["volumes"] if volume["name"] == "settings")
    found = {}
    for item in volume["downwardAPI"]["items"]:
        named = _ANNOTATION.fullmatch(item["fieldRef"]["fieldPath"])
        assert named, item
        found[item["path"]] = template["metadata"]["annotations"][named[1]]
    return found


def replicas(objects: Iterable[Manifest]) -> Manifest:
    """Return the Deployment of the replicas: a fleet has one more."""
    (found,) = (
        item for item in objects if item["kind"] == "Deployment" and not item["metadata"]["name"].endswith("-fleet")
    )
    return found
