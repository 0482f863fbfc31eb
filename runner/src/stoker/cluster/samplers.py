"""The samplers of a TrainJob: what a runtime's second role serves, and the same as processes of this machine."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker.cluster.patches import patched
from stoker.cluster.pods import NodeJob, mounts_of
from stoker.cluster.schema import shape_errors, without_nulls
from stoker.contract.exits import ExitCode, RunError
from stoker.contract.samplers import ADDRESSES

# The name of their job, and of vLLM's container in it.
JOB, _CONTAINER = "sampler", "vllm"
# What an image of vLLM, not a machine, knows.
_PLACES = ("--host", "--port")
_FOLDERS = ("PYTHONPATH",)


@dataclass(frozen=True, slots=True)
class SamplerJob:
    """The samplers of a TrainJob on a runtime.

    Attributes:
        count: how many.
        args: vLLM's flags in the runtime, without host and port.
        env: variables with values that the runtime gives vLLM.
        mounts: volume name → the paths where it is mounted.
    """

    count: int
    args: tuple[str, ...]
    env: Mapping[str, str]
    mounts: Mapping[str, tuple[str, ...]]


def samplers_of(trainjob: Mapping[str, Any], runtime: Mapping[str, Any]) -> SamplerJob | None:
    """Return the samplers of a TrainJob on a runtime; None if the runtime has none.

    Raises:
        RunError: the two do not fit, or one is invalid (64).
    """
    trainjob = without_nulls(trainjob)
    with shape_errors():
        jobs = patched(trainjob, runtime)["spec"]["template"]["spec"]["replicatedJobs"]
        spec = next((job["template"]["spec"] for job in jobs if job.get("name") == JOB), None)
        if spec is None:
            return None
        pod = spec["template"]["spec"]
        container = next((one for one in pod["containers"] if one.get("name") == _CONTAINER), None)
        if container is None:
            raise RunError(ExitCode.USAGE, f"the job {JOB} of the runtime has no container named {_CONTAINER}: add it")
        return SamplerJob(
            count=int(spec.get("completions") or spec.get("parallelism") or 1),
            args=tuple(word for word in container.get("args", ()) if word.partition("=")[0] not in _PLACES),
            env={
                entry["name"]: str(entry.get("value") or "")
                for entry in container.get("env", ())
                if "value" in entry and entry["name"] not in _FOLDERS
            },
            mounts=mounts_of(container),
        )


def local_sampler(job: NodeJob, samplers: SamplerJob, vllm: str, config: Path, port: int, watch_port: int) -> NodeJob:
    """Return a sampler as the job of a process of this machine.

    Args:
        job: the nodes' job, whose identity it has.
        samplers: what it serves.
        vllm: the program.
        config: a folder of its own.
        port: a free port for vLLM.
        watch_port: a free port for the watcher.
    """
    ports = ("--port", str(port), "--watch-port", str(watch_port))
    argv = ("stoker", "sampler", "--output", str(config), "--vllm", vllm, *ports, "--", *samplers.args)
    identity = [entry for entry in job.env if entry["name"] in ("STOKER_JOB_ID", "STOKER_RESTART_ATTEMPT")]
    values = {"STOKER_WORKSPACE": _value(job, "STOKER_WORKSPACE"), **samplers.env, "STOKER_ROLE": "sampler"}
    given = ({"name": name, "value": value} for name, value in values.items())
    return replace(job, nodes=1, argv=argv, env=(*identity, *given), injected=False, mounts=samplers.mounts)


def with_addresses(job: NodeJob, addresses: Sequence[str]) -> NodeJob:
    """Return the nodes' job with the addresses of its samplers."""
    others = (entry for entry in job.env if entry["name"] != ADDRESSES)
    return replace(job, env=(*others, {"name": ADDRESSES, "value": ",".join(addresses)}))


def vllm_program(python: str | None) -> str:
    """Return vLLM's program: the one beside a Python, or the one on the PATH.

    Args:
        python: the Python whose environment has vLLM; None to look at the PATH.

    Raises:
        RunError: there is none (78).
    """
    found = shutil.which("vllm", path=None if python is None else str(Path(python).parent))
    if found is None:
        where = "on the PATH" if python is None else f"beside {python}"
        raise RunError(
            ExitCode.CONFIG,
            f"the runtime has samplers, and there is no vllm {where}: make an environment with vLLM, apart from "
            f"{sys.executable}, because the two need different packages, and name its Python with --python vllm=PATH",
        )
    return found


def _value(job: NodeJob, name: str) -> str:
    return next((str(entry.get("value") or "") for entry in job.env if entry["name"] == name), "")
