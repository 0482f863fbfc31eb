"""What may not change between two releases of the catalogue without a version that says so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Object = dict[str, Any]

IMMUTABLE = ("failurePolicy", "network", "successPolicy", "startupPolicy", "volumeClaimPolicies")
"""Fields of a runtime's JobSet that Trainer's CRDs do not let change (transition rules of v2.3.0)."""


def breaks(old: Iterable[Object], new: Iterable[Object]) -> list[str]:
    """Return what would break a cluster that goes from one rendering to the other: one line each.

    Args:
        old: the runtimes that are installed.
        new: the runtimes that are to take their place.
    """
    now = {_name(runtime): runtime for runtime in new}
    found = []
    for runtime in old:
        name = _name(runtime)
        if name not in now:
            found.append(f"{name} is gone")
            continue
        before, after = _jobset(runtime), _jobset(now[name])
        found += [
            f"{name}: {field} changed" for field in IMMUTABLE if field in before and before[field] != after.get(field)
        ]
        jobs = {job["name"]: job for job in after["replicatedJobs"]}
        for job in before["replicatedJobs"]:
            if job["name"] not in jobs:
                found.append(f"{name}: job {job['name']} is gone")
            elif "dependsOn" in job and job["dependsOn"] != jobs[job["name"]].get("dependsOn"):
                found.append(f"{name}: dependsOn of {job['name']} changed")
    return found


def allows_breaks(old: str, new: str) -> bool:
    """Return whether a version may break what an older one has: a higher major, before 1.0 a higher minor."""
    before, after = ([int(part) for part in version.split(".")] for version in (old, new))
    significant = 2 if before[0] == 0 else 1
    return after[:significant] > before[:significant]


def _name(runtime: Object) -> str:
    return str(runtime["metadata"]["name"])


def _jobset(runtime: Object) -> Object:
    jobset: Object = runtime["spec"]["template"]["spec"]
    return jobset
