"""Every environment variable that the runner reads, and what it means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from stoker.contract.exits import ExitCode, RunError

# Prefix of the variables that become trainer flags.
ARG_PREFIX = "STOKER_ARG_"
# The path of the plan, for the processes that `stoker run` starts.
PLAN_FILE = "STOKER_PLAN"
# Disables transformers' progress reports to Trainer, because only Stoker's callback may report progress.
DISABLE_PROGRESS = "DISABLE_KUBEFLOW_INTEGRATION"

# Where to tell that a run has ended. Whoever knows such an address can write there, so it is a secret.
WEBHOOK = "STOKER_WEBHOOK"
# How often rank 0 prints its progress outside a cluster.
PROGRESS_SECONDS = "STOKER_PROGRESS_SECONDS"
# How long the runner may take to stop, and what it takes if it is not told: the default of Kubernetes.
GRACE_PERIOD = "STOKER_GRACE_PERIOD_SECONDS"
GRACE_PERIOD_UNTOLD = 30

_PREFIX = "STOKER_"
_ROLES = ("node", "sampler", "tinker")

KNOWN = {
    "STOKER_FRAMEWORK": "framework to run, from the pod label trainer.kubeflow.org/framework (default trl)",
    "STOKER_METHOD": "training method if the arguments name none, e.g. sft",
    "STOKER_WORKSPACE": "folder shared by all pods of the run (default /workspace)",
    "STOKER_NPROC_PER_NODE": "processes per node; wins over PET_NPROC_PER_NODE if that is auto, 1, the CPU request "
    "or, with an accelerator, the CPU limit",
    "STOKER_RESUME": "auto (default): resume from the newest complete checkpoint, if there is one; never: start over; "
    "require: fail without a complete checkpoint",
    "STOKER_SHARDING": "none (default): every process holds the whole model; full: all processes share weights, "
    "gradients and optimizer (FSDP2)",
    "STOKER_ACCELERATOR": "accelerator profile of the runtime: nvidia, amd, intel, tpu or cpu (default nvidia on a "
    "node with its devices, else cpu)",
    "STOKER_RUNTIME": "name of the pod's runtime",
    "STOKER_RUNTIME_DEFAULTS": "JSON object with the runtime's defaults, to tell them from the TrainJob's env",
    "STOKER_JOB_ID": "id of the job, the same in all attempts",
    "STOKER_RUN_ID": "id of this attempt, the same in all pods",
    "STOKER_RESTART_ATTEMPT": "number of restarts before this attempt",
    "STOKER_CPU_REQUEST": "CPU request of this container, rounded up to whole cores",
    "STOKER_CPU_LIMIT": "CPU limit of this container, rounded up to whole cores",
    GRACE_PERIOD: "seconds between SIGTERM and SIGKILL (default 30)",
    "STOKER_RENDEZVOUS_TIMEOUT_SECONDS": "seconds to wait for the other pods of the run (default 1800)",
    "STOKER_HANG_TIMEOUT_SECONDS": "seconds a step may take before the run counts as hung; 0: no limit (default 1200)",
    "STOKER_TERMINATION_LOG": "file for the one-line reason of the ending (default /dev/termination-log)",
    "STOKER_IMAGE_VERSION": "tag of the image, set by the image",
    "STOKER_ROLE": "what this pod does: node (default) trains, sampler writes the answers that the nodes learn from, "
    "tinker serves the tinker client",
    "STOKER_SAMPLERS": "addresses of the run's samplers, with commas between them; the runtime sets it",
    "STOKER_SAMPLERS_API_KEY": "key of the samplers' API, from the Secret of their session or serving release",
    "STOKER_IDLE_SECONDS": "end with 0 after so many seconds without a step and without a request to the run's "
    "samplers; 0 (default): never",
    "STOKER_METRICS_PORT": "port at which each node shows its metrics to Prometheus; 0 (default): none",
    PROGRESS_SECONDS: "seconds between the progress lines that a run prints outside a cluster (default 10)",
    "STOKER_FETCH_REPLACE": "true: an initializer may replace a model or data set that it did not fetch",
    "STOKER_FETCH_FOR": "who fetches, for messages: trainjob (default) or serving, set by the chart vllm-serving",
    WEBHOOK: "http or https address that node 0 tells how each attempt ended (a POST of JSON); take it from a Secret",
    PLAN_FILE: "path of the plan, set by the runner for the processes it starts",
}

# Variables that Trainer sets in each pod for torchrun (pkg/constants: TorchRunReservedEnvNames).
LAUNCHER = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
_LAUNCHER_PREFIX = "PET_"

# With service links on, a Service named `stoker` makes Kubernetes inject these names.
_SERVICE_LINK = re.compile(r"^STOKER(_\w+)?(_SERVICE_HOST|_SERVICE_PORT\w*|_PORT(_\d+_\w+)?)$")

# Variables that hide devices are not kept; `stoker.plan.devices` reads them.
_KEPT = re.compile(r"^(PET_|STOKER_|JOBSET_NAME$|JOB_COMPLETION_INDEX$|HOSTNAME$|OMP_NUM_THREADS$|TMPDIR$)")


def kept_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that Stoker reads, sorted by name."""
    return {name: value for name, value in sorted(environ.items()) if _KEPT.match(name)}


def role_of(environ: Mapping[str, str]) -> str:
    """Return what this pod does: `node`, `sampler` or `tinker`.

    Raises:
        RunError: there is no such role (78).
    """
    role = environ.get("STOKER_ROLE") or _ROLES[0]
    if role not in _ROLES:
        raise RunError(
            ExitCode.CONFIG,
            f"STOKER_ROLE is {role!r}: write {', '.join(_ROLES[:-1])} or {_ROLES[-1]}; the runtime sets it",
        )
    return role


def workspace_of(environ: Mapping[str, str]) -> Path:
    """Return the folder shared by all pods of a run."""
    return Path(environ.get("STOKER_WORKSPACE") or "/workspace")


def termination_log_of(environ: Mapping[str, str]) -> Path:
    """Return the file for the one-line reason of the ending."""
    return Path(environ.get("STOKER_TERMINATION_LOG") or "/dev/termination-log")


def webhook_of(environ: Mapping[str, str]) -> str:
    """Return the address that is told how a run ends; empty if none is."""
    return environ.get("STOKER_WEBHOOK", "").strip()


def webhook_problem(environ: Mapping[str, str]) -> str:
    """Return what is wrong with that address, which is not quoted because it is a secret; empty if nothing is."""
    address = webhook_of(environ)
    if not address or _is_address(address):
        return ""
    return f"{WEBHOOK} is not an http or https address: write one such as https://hooks.example/runs"


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    printable = all("!" <= character <= "~" for character in text)
    return printable and parts.scheme in ("http", "https") and bool(parts.hostname)


def key_in(variable: str, environ: Mapping[str, str], place: str = "it") -> str:
    """Return the key of an API in a variable, without the line end that a file may have; empty if there is none.

    Args:
        variable: its name.
        environ: the environment.
        place: where its user writes the key.

    Raises:
        RunError: no header can have it (78). The message does not show it.
    """
    key = environ.get(variable, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise RunError(
            ExitCode.CONFIG,
            f"{variable} is not a valid key: write one line of letters, digits and signs into {place}",
        )
    return key


def unknown_variables(names: Iterable[str]) -> list[str]:
    """Return one problem for each unknown `STOKER_…` or `PET_…` name, with the closest known name."""
    problems = []
    for name in names:
        if name.startswith(_LAUNCHER_PREFIX) and name not in LAUNCHER:
            # torchrun reads every option from such a variable, but the plan sets them all.
            close = difflib.get_close_matches(name, LAUNCHER, n=1, cutoff=0.7)
            options = f"stoker sets torchrun's options, leave it out (known: {', '.join(LAUNCHER)})"
            advice = f"did you mean {close[0]}?" if close else options
            problems.append(f"{name} is not a variable that stoker reads: {advice}")
        if not name.startswith(_PREFIX) or name.startswith(ARG_PREFIX) or name in KNOWN or _SERVICE_LINK.match(name):
            continue
        # The common prefix would make any two names similar.
        close = difflib.get_close_matches(name.removeprefix(_PREFIX), (n.removeprefix(_PREFIX) for n in KNOWN), n=1)
        advice = f"did you mean {_PREFIX}{close[0]}?" if close else f"write a trainer flag as {ARG_PREFIX}<FLAG>"
        problems.append(f"{name} is not a variable that stoker reads: {advice}")
    return problems
