"""What this container sees, a line each, and whether a run could work in it; elsewhere, what works on this machine."""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import click

from stoker import __version__
from stoker.contract.exits import ExitCode
from stoker.contract.packages import from_checkout
from stoker.contract.secrets import HIDDEN, hidden_json, hide, is_secret
from stoker.contract.variables import ARG_PREFIX, LAUNCHER, unknown_variables
from stoker.frameworks import TRL, TorchTune, known_frameworks
from stoker.plan.facts import Facts, read_facts
from stoker.plan.resolve import flag_of_variable
from stoker.plan.world import resolve_world
from stoker.rank import accelerator
from stoker.runs.client import connect
from stoker.runs.errors import PACKAGES
from stoker.runs.kinds import CLUSTER_RUNTIMES, NODES, RUNTIMES
from stoker.runs.placement import homeless
from stoker.submit import broken_plugins, get_registered_backends

# Below this the loaders' worker processes and NCCL run out of shared memory.
_SHM_WANTED = 64 * 2**20

# What `stoker fetch` and `stoker export --push` import, and what submitting from Python does.
FETCHING = ("huggingface_hub", "fsspec", "s3fs", "gcsfs", "oras")
SUBMITTING = ("kubeflow",)
LAB = ("trl", "peft", "vllm")
# Other extras → who needs them, and what they bring.
_EXTRAS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "board": ("stoker board", ("jinja2", "starlette", "uvicorn")),
    "plot": ("stoker plot --to FILE.png", ("matplotlib",)),
    "evaluate": ("stoker evaluate --tasks", ("lm_eval",)),
    "gguf": ("stoker export --gguf", ("sentencepiece",)),
}
# Only a pod or an image of ours has one of these.
_IN_A_POD = ("KUBERNETES_SERVICE_HOST", "STOKER_IMAGE_VERSION", "STOKER_JOB_ID", "STOKER_RUN_ID", *LAUNCHER)
# Where a framework's packages come from outside a pod.
_BROUGHT_BY = {
    TRL.name: from_checkout("local"),
    TorchTune.name: "from a checkout, use the Python that images/torchtune/venv --with-runner makes",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One finding.

    Attributes:
        name: what was looked at.
        text: what was found.
        flaw: why a run could not work with that, and the fix; empty if it could.
        warning: what is wrong without hindering a run that does not need it, and the fix; empty if nothing is.
        missing: how to get what is not installed; empty if nothing is missing.
    """

    name: str
    text: str
    flaw: str = ""
    warning: str = ""
    missing: str = ""

    @property
    def mark(self) -> str:
        """The word that the line begins with."""
        return "FAIL" if self.flaw else "warn" if self.warning else "missing" if self.missing else "ok"

    @property
    def fix(self) -> str:
        """What to do; empty if there is nothing to do."""
        return self.flaw or self.warning or self.missing


def run(image_only: bool, *, as_json: bool = False) -> ExitCode:
    """Print all findings; return 0, or 78 if one of them would stop a run.

    Args:
        image_only: True to look only at what is installed.
        as_json: True for one list instead of lines as they are found.
    """
    facts = read_facts()
    findings: list[Callable[[Facts], Iterator[Line]]]
    if image_only:
        findings = [_image, _backends]
    elif any(os.environ.get(name) for name in _IN_A_POD):
        findings = [_image, _backends, _identity, _hardware, _memory, _folders, _variables, _world]
    else:
        findings = [_machine, _backends, _variables]
    lines = []
    for line in (line for finding in findings for line in finding(facts)):
        lines.append(line)
        if not as_json:
            head = f"{line.mark:<4}  "
            click.echo(hide(f"{head}{line.name:<{22 - len(head)}}  {line.text}"))
            if line.fix:
                click.echo(hide(f"      {'':<16}  fix: {line.fix}"))
    if as_json:
        found = [{"name": line.name, "mark": line.mark, "text": line.text, "fix": line.fix} for line in lines]
        click.echo(hidden_json(found, indent=2))
    return ExitCode.CONFIG if any(line.flaw for line in lines) else ExitCode.FINISHED


def run_on_cluster(context: str | None, *, as_json: bool = False) -> ExitCode:
    """Print which pods of the cluster's runtimes would wait for a node, and why; return 0, or 78 if any would.

    Args:
        context: of the kubeconfig; None for its current one.
        as_json: True for a list of them.

    Raises:
        RunError: the cluster cannot be asked.
    """
    client = connect(context)
    nodes = client.list(NODES, everywhere=True)
    runtimes = [*client.list(CLUSTER_RUNTIMES, everywhere=True), *client.list(RUNTIMES)]
    problems = [problem for runtime in runtimes for problem in homeless(runtime, nodes, client.cluster)]
    if as_json:
        click.echo(json.dumps(problems, indent=2))
        return ExitCode.CONFIG if problems else ExitCode.FINISHED
    for problem in problems:
        click.echo(problem)
    if not problems:
        click.echo(f"{len(runtimes)} runtimes, {len(nodes)} nodes: each has nodes for its pods, by labels and taints")
    return ExitCode.CONFIG if problems else ExitCode.FINISHED


def _image(facts: Facts) -> Iterator[Line]:
    yield Line("stoker", f"{__version__}, image {facts.image_version}, frameworks {', '.join(known_frameworks())}")
    yield Line("python", f"{platform.python_version()} on {platform.machine()}")
    wanted = facts.get("STOKER_FRAMEWORK") or "trl"
    framework = known_frameworks().get(wanted)
    if framework is None:
        yield _unknown(wanted)
        return
    for name in framework.packages:
        try:
            importlib.import_module(name)
            yield Line(name, metadata.version(name))
        except Exception as error:  # noqa: BLE001 - a broken package may raise anything at import
            yield Line(name, f"{type(error).__name__}: {error}", f"install {name}, or use an image that has it")


def _machine(facts: Facts) -> Iterator[Line]:
    frameworks = known_frameworks()
    yield Line("stoker", f"{__version__}, outside a pod: this is what works on this machine")
    yield Line("python", f"{platform.python_version()} on {platform.machine()}, {sys.executable}")
    wanted = facts.get("STOKER_FRAMEWORK")
    if wanted is not None and wanted not in frameworks:
        yield _unknown(wanted)
    yield Line("commands", "plan, validate, trainjob, flags and recipe need no more packages")
    for name, framework in sorted(frameworks.items()):
        fix = _BROUGHT_BY.get(name, f"install them beside the package that brings {name}")
        yield _needing(name, "stoker local", framework.packages, fix)
    yield _needing("fetch", "stoker fetch", FETCHING, from_checkout("fetch"))
    yield _needing("sdk", "submitting from Python", SUBMITTING, from_checkout("sdk"))
    yield _needing("cluster", "looking at runs on a cluster", PACKAGES, from_checkout("cluster"))
    for extra, (user, packages) in _EXTRAS.items():
        yield _needing(extra, user, packages, from_checkout(extra))
    yield _needing(
        "lab", "training and serving in one Python process", LAB, "docs/guides/notebook.md, an environment of its own"
    )
    if shutil.which("kubectl"):
        yield Line("kubectl", "installed: validate and local ask it for the runtimes of your cluster")
    else:
        text = "validate and local need it to read runtimes from your cluster"
        yield Line("kubectl", text, missing="install kubectl, or name a file with the runtimes: --runtime FILE")


def _needing(name: str, user: str, packages: Sequence[str], fix: str) -> Line:
    # Without importing them: torch and the trainers take many seconds.
    found = {package: _version(package) for package in packages}
    absent = [package for package, version in found.items() if version is None]
    if absent:
        return Line(name, f"{user} needs {', '.join(absent)}", missing=fix)
    return Line(name, f"{user} has {', '.join(f'{package} {version}' for package, version in found.items())}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _unknown(framework: str) -> Line:
    return Line("framework", f"{framework} is unknown", "correct STOKER_FRAMEWORK, or use an image that has it")


def _backends(facts: Facts) -> Iterator[Line]:
    frameworks = known_frameworks()
    for name, backend in sorted(get_registered_backends().items()):
        framework = frameworks.get(backend.framework)
        runs = f"runs {', '.join(framework.methods)}" if framework else "is submitted only"
        yield Line(f"backend {name}", f"{backend.__module__}.{backend.__qualname__}, {runs}")
    for plugin in broken_plugins():
        fix = f"repair or uninstall {plugin.package}"
        asked_for = plugin.name == facts.get("STOKER_FRAMEWORK")
        text = f"{plugin.target} of {plugin.package}: {plugin.error}"
        yield Line(f"backend {plugin.name}", text, **{"flaw" if asked_for else "warning": fix})


def _identity(facts: Facts) -> Iterator[Line]:
    yield Line("user", f"UID {facts.uid}, GID {facts.gid}, HOME {os.environ.get('HOME', 'unset')}")


def _hardware(facts: Facts) -> Iterator[Line]:
    yield Line("cpus", f"{facts.cpus} usable, request {facts.get('STOKER_CPU_REQUEST') or 'unknown'}")
    text = f"{facts.accelerator}: {', '.join(facts.devices) or 'no device visible'}"
    if facts.accelerator != "cpu" and not facts.devices:
        yield Line("accelerator", text, "request the device in resourcesPerNode, or use a runtime for cpu")
        return
    yield Line("accelerator", text)
    if facts.devices and find_spec("torch"):
        yield from _usable(facts)


def _usable(facts: Facts) -> Iterator[Line]:
    """Yield whether torch can compute on the devices that this node's processes use."""
    used = range(resolve_world(facts).nproc_per_node)
    try:
        judgement = accelerator.judge(facts.accelerator, used, is_guess=facts.is_accelerator_guessed)
    except Exception as error:  # noqa: BLE001 - a broken device or package may raise anything
        said = " ".join(str(error).split())
        yield Line("devices", f"{type(error).__name__}: {said}", "see what else uses the device, or choose other nodes")
        return
    if judgement is not None and judgement.problem:
        yield Line("devices", judgement.problem, judgement.remedy)
    elif judgement is not None:
        yield Line("devices", f"{judgement.found} computes on {len(used)}")


def _memory(facts: Facts) -> Iterator[Line]:
    # cgroup v2, then v1: whichever this node has.
    for path in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        if path.exists():
            limit = path.read_text().strip()
            plenty = not limit.isdecimal() or int(limit) >= 2**60
            yield Line("memory limit", "none" if plenty else _mebibytes(int(limit)))
            break
    size = facts.shm_bytes
    if size is None or size < _SHM_WANTED:
        found = "missing" if size is None else _mebibytes(size)
        yield Line("/dev/shm", found, "mount an emptyDir with medium Memory at /dev/shm")
    else:
        yield Line("/dev/shm", _mebibytes(size))


def _folders(facts: Facts) -> Iterator[Line]:
    for name, path in (("workspace", facts.workspace), ("home", Path(os.environ.get("HOME", "/")))):
        if not path.is_dir():
            fix = "mount a volume there, or set STOKER_WORKSPACE" if name == "workspace" else "set HOME to a folder"
            yield Line(name, f"{path} is not a folder", fix)
        elif os.access(path, os.W_OK):
            yield Line(name, f"{path}, {_mebibytes(shutil.disk_usage(path).free)} free")
        else:
            yield Line(name, f"{path} is not writable", "give the folder to GID 0 with group write, or set fsGroup")


def _variables(facts: Facts) -> Iterator[Line]:
    secrets = {flag for framework in known_frameworks().values() for flag in framework.secrets}
    for name, value in facts.env.items():
        is_flag = name.startswith(ARG_PREFIX) and flag_of_variable(name) in secrets
        yield Line(
            name, HIDDEN if is_flag or is_secret(name) else value, "; ".join(unknown_variables([name]) if value else ())
        )


def _world(facts: Facts) -> Iterator[Line]:
    world = resolve_world(facts)
    text = f"{world.size} = {world.nnodes} nodes × {world.nproc_per_node} processes"
    yield Line("world size", text, "; ".join(world.problems))


def _mebibytes(count: int) -> str:
    return f"{count // 2**20} MiB"
