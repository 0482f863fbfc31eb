"""Every environment variable the runner reads, and what it means: the one place that knows their names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

# Prefix of the variables that become trainer flags.
ARG_PREFIX = "STOKER_ARG_"
# Names the file with the plan of a process that `stoker run` started.
PLAN_FILE = "STOKER_PLAN"

_PREFIX = "STOKER_"

KNOWN = {
    "STOKER_FRAMEWORK": "framework to run, from the pod label trainer.kubeflow.org/framework (default trl)",
    "STOKER_METHOD": "training method when the arguments name none, e.g. sft",
    "STOKER_WORKSPACE": "folder shared by all pods of the run (default /workspace)",
    "STOKER_NPROC_PER_NODE": "processes per node; wins over PET_NPROC_PER_NODE when that is auto, 1 or the CPU count",
    "STOKER_RESUME": "auto (default): go on from the newest complete checkpoint; never: start anew; "
    "require: fail without one",
    "STOKER_ACCELERATOR": "accelerator profile of the runtime: nvidia, amd, intel, tpu or cpu",
    "STOKER_RUNTIME": "name of the runtime the pod was made from",
    "STOKER_RUNTIME_DEFAULTS": "JSON object of the runtime's own defaults, to tell them from a TrainJob's env",
    "STOKER_JOB_ID": "id of the job, the same in all its attempts",
    "STOKER_RUN_ID": "id of this attempt, the same in all its pods",
    "STOKER_RESTART_ATTEMPT": "how often the job was restarted before this attempt",
    "STOKER_CPU_REQUEST": "CPU request of this container, rounded up to whole cores",
    "STOKER_GRACE_PERIOD_SECONDS": "seconds between SIGTERM and SIGKILL (default 30)",
    "STOKER_RENDEZVOUS_TIMEOUT_SECONDS": "seconds to wait for the other pods of the run (default 1800)",
    "STOKER_HANG_TIMEOUT_SECONDS": "seconds a step may take before the run counts as hung; 0: for ever (default 1200)",
    "STOKER_TERMINATION_LOG": "file for the one-line reason of the ending (default /dev/termination-log)",
    "STOKER_IMAGE_VERSION": "tag of the image, set by the image",
    "STOKER_FETCH_REPLACE": "true: an initializer replaces a model or data set that it did not put there",
    PLAN_FILE: "the plan's file, set by the runner for the processes it starts",
}

# What Trainer tells each pod for its launcher (pkg/constants: TorchRunReservedEnvNames).
LAUNCHER = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
_LAUNCHER_PREFIX = "PET_"

# A Service named `stoker` in the namespace makes Kubernetes inject such names where service links are on.
_SERVICE_LINK = re.compile(r"^STOKER(_\w+)?(_SERVICE_HOST|_SERVICE_PORT\w*|_PORT(_\d+_\w+)?)$")


# Variables that say which of the device nodes a process may use are read with the devices, not kept.
_KEPT = re.compile(r"^(PET_|STOKER_|JOBSET_NAME$|JOB_COMPLETION_INDEX$|HOSTNAME$|OMP_NUM_THREADS$)")


def kept_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that Stoker reads, sorted by name."""
    return {name: value for name, value in sorted(environ.items()) if _KEPT.match(name)}


def workspace_of(environ: Mapping[str, str]) -> Path:
    """Return the folder shared by all pods of a run."""
    return Path(environ.get("STOKER_WORKSPACE") or "/workspace")


def termination_log_of(environ: Mapping[str, str]) -> Path:
    """Return the file for the one-line reason of the ending."""
    return Path(environ.get("STOKER_TERMINATION_LOG") or "/dev/termination-log")


def unknown_variables(names: Iterable[str]) -> list[str]:
    """Return one problem for each `STOKER_…` or `PET_…` name that means nothing, with what was probably meant."""
    problems = []
    for name in names:
        if name.startswith(_LAUNCHER_PREFIX) and name not in LAUNCHER:
            # torchrun takes any of its options so, but the plan decides all of them.
            close = difflib.get_close_matches(name, LAUNCHER, n=1, cutoff=0.7)
            advice = (
                f"did you mean {close[0]}?"
                if close
                else f"torchrun is told by the plan, leave it out (known: {', '.join(LAUNCHER)})"
            )
            problems.append(f"{name} is not a variable stoker takes: {advice}")
        if not name.startswith(_PREFIX) or name.startswith(ARG_PREFIX) or name in KNOWN or _SERVICE_LINK.match(name):
            continue
        # Without the prefix, which makes any two names alike.
        close = difflib.get_close_matches(name.removeprefix(_PREFIX), (n.removeprefix(_PREFIX) for n in KNOWN), n=1)
        advice = f"did you mean {_PREFIX}{close[0]}?" if close else f"trainer flags are written {ARG_PREFIX}<FLAG>"
        problems.append(f"{name} is not a variable stoker knows: {advice}")
    return problems
