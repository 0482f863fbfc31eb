"""The verdict on a TrainJob before it is submitted: what the cluster would refuse, and each node's plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker.cluster.admission import Admission, admission_of
from stoker.cluster.images import has_package, packages_of
from stoker.cluster.pods import NodeJob, expand, initializers_of, job_of, quantity, rewritten
from stoker.cluster.resources import (
    RUNTIME_KINDS,
    Resource,
    name_of,
    of_kind,
    read_resources,
    runtime_of,
    trainjobs_of,
    volume_folders,
)
from stoker.contract.exits import PRECEDENCE, ExitCode, RunError
from stoker.contract.files import exists
from stoker.contract.variables import kept_variables, unknown_variables
from stoker.entry.hook import launcher_of
from stoker.entry.launchers import Launch, translate
from stoker.entry.own_command import own_arguments
from stoker.fetch.request import CREDENTIALS, request_of
from stoker.frameworks import get_framework
from stoker.node.planning import read_config
from stoker.node.preflight import framework_problems, input_problems, package_problems
from stoker.plan.facts import Facts, whole_number
from stoker.plan.plan import Plan
from stoker.plan.resolve import RunRequest, read_request, resolve_plan
from stoker.plan.world import DEFAULT_PORT, yields

# Extended resources whose count is the number of devices, by the accelerator profile.
_RESOURCES = {
    "nvidia": ("nvidia.com/",),
    "amd": ("amd.com/",),
    "intel": ("gpu.intel.com/", "habana.ai/"),
    "tpu": ("google.com/tpu",),
}
# Sources of a variable that only the cluster can read. Of a pod's fields, only its labels and annotations are known.
_UNSEEN = ("secretKeyRef", "configMapKeyRef", "fileKeyRef")
_KNOWN_FIELDS = ("metadata.labels['", "metadata.annotations['")
_NODES_CHECKED = 16


@dataclass(frozen=True, slots=True)
class Validation:
    """What is wrong with one TrainJob, and how it would run.

    Attributes:
        name: the TrainJob's name.
        plan: node 0's plan; None if no plan can be made.
        problems: why it would fail, each with the exit code of its pods.
        notices: what else the user should know.
    """

    name: str
    plan: Plan | None
    problems: tuple[tuple[ExitCode, str], ...]
    notices: tuple[str, ...]

    @property
    def code(self) -> ExitCode:
        """The exit code of `stoker run` in its pods; 0 if there is no problem."""
        return min((code for code, _ in self.problems), key=PRECEDENCE.index, default=ExitCode.FINISHED)

    @property
    def errors(self) -> str:
        """The problems, one per line; empty without problems."""
        return "\n".join(f"{self.name}: {text}" for _, text in self.problems)

    @property
    def summary(self) -> str:
        """What to print besides the errors: the run, if it is valid, and the notices."""
        lines = [f"{self.name}: note: {notice}" for notice in self.notices]
        if not self.problems:
            lines.insert(0, f"{self.name}: {self._valid()}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join(filter(None, (self.errors, self.summary)))

    def _valid(self) -> str:
        if self.plan is None:
            return "the TrainJob is valid"
        world = self.plan.world
        size = f"{world.nnodes} nodes × {world.nproc_per_node} processes"
        return f"valid: {self.plan.framework} {self.plan.method} on {size}"


def validate(trainjob: Path, runtimes: Sequence[Path], volumes: Sequence[str]) -> list[Validation]:
    """Check every TrainJob of a file.

    Args:
        trainjob: file with TrainJobs and perhaps their runtimes; `-` is standard input.
        runtimes: more files with runtimes; the cluster is asked for a runtime that no file has.
        volumes: `NAME=DIR`, a folder with the content of a volume of the pods.

    Raises:
        RunError: a file or an option is wrong, or the runtime cannot be found.
    """
    resources = read_resources(trainjob)
    jobs = trainjobs_of(resources, trainjob)
    known = of_kind([*resources, *(r for path in runtimes for r in read_resources(path))], *RUNTIME_KINDS)
    return [validate_one(job, runtime_of(job, known), volumes) for job in jobs]


def validate_one(trainjob: Resource, runtime: Resource, volumes: Sequence[str] = ()) -> Validation:
    """Check one TrainJob on its runtime: what the cluster would refuse, then the plan of every node.

    Raises:
        RunError: an option does not fit the runtime.
    """
    name = name_of(trainjob) or "TrainJob"
    admission = admission_of(trainjob, runtime)
    problems = [(ExitCode.USAGE, text) for text in admission.problems]
    try:
        job = job_of(trainjob, runtime)
    except RunError as error:
        # Both checks report a wrong shape: once is enough.
        return Validation(name, None, tuple(problems) or _problems(error), admission.notices)
    problems += _fetching(trainjob, runtime)
    return _judge_nodes(
        name,
        job,
        {job.mounts[name]: str(folder) for name, folder in volume_folders(job.mounts, volumes).items()},
        admission,
        problems,
    )


def _judge_nodes(
    name: str,
    job: NodeJob,
    folders: Mapping[str, str],
    admission: Admission,
    problems: list[tuple[ExitCode, str]],
) -> Validation:
    notices = list(admission.notices)
    job, unseen = _without_unseen(job)
    notices += [f"env {variable} comes from the cluster and was not checked" for variable in unseen]
    plans: list[Plan] = []
    # Nodes differ only in their rank, so a few of a large run are enough.
    for node in sorted({*range(min(job.nodes, _NODES_CHECKED)), job.nodes - 1}):
        try:
            environment = _environment(job, node)
            launch = _launch_of([expand(word, environment) for word in job.argv], job.nodes)
            if launch is None:
                notices.append(
                    f"stoker does not launch the command {job.argv[0]!r}: only the fields of the TrainJob were checked"
                    if job.argv
                    else "the image's own command runs: only the fields of the TrainJob were checked"
                )
                break
            notices += _unknown_image(job.image)
            facts = assumed_facts(job, environment)
            framework = get_framework(facts.get("STOKER_FRAMEWORK"))
            request = read_request(facts, framework, launch.args, launch.world)
            config, notice = _config(request, folders)
            notices += [notice] if notice else []
            plans.append(resolve_plan(request, config))
        except RunError as error:
            problems += _problems(error)
            break
    plan = plans[0] if plans else None
    for made in plans[:1]:
        notices += [*made.notices, *_unknown_packages(made, job.image)]
        problems += _lacking(made, job.image)
        problems += _missing(made, folders)
        problems += input_problems(made, lambda path: local if (local := rewritten(path, folders)) != path else None)
    return Validation(name, plan, tuple(dict.fromkeys(problems)), tuple(dict.fromkeys(notices)))


def _fetching(trainjob: Resource, runtime: Resource) -> Iterator[tuple[ExitCode, str]]:
    """Yield what `stoker fetch` would refuse of each initializer's variables."""
    try:
        found = initializers_of(trainjob, runtime)
    except RunError:  # the cluster refuses it too, and that problem is reported
        return
    for initializer in found:
        if not initializer.is_ours:
            continue
        job, _ = _without_unseen(initializer.job)
        kind = initializer.name.removesuffix("-initializer")
        try:
            environment = job.environment(0, 0, "job", "run", "", DEFAULT_PORT)
            # The secret may hold one of the two credentials.
            known = {name: value for name, value in environment.items() if name not in CREDENTIALS}
            if problems := unknown_variables(kept_variables(known)):
                raise RunError(ExitCode.USAGE, "\n".join(problems))
            request_of(kind, known, Path(environment.get("STOKER_WORKSPACE") or "/workspace"))
        except RunError as error:
            yield from ((code, f"spec.initializer.{kind}: {text}") for code, text in _problems(error))


def assumed_facts(job: NodeJob, environment: Mapping[str, str]) -> Facts:
    """Return the facts that a node's container would find, with the devices it requests."""
    accelerator = environment.get("STOKER_ACCELERATOR") or "nvidia"
    prefixes = _RESOURCES.get(accelerator, ())
    amounts = {**job.resources, **job.limits}
    count = sum(int(quantity(amounts[name])) for name in amounts if name.startswith(prefixes or ("?",)))
    if job.claims:
        # A claim asks for one device per process of the runtime.
        count = max(count, whole_number(environment.get("STOKER_NPROC_PER_NODE", "")) or 1)
    facts = Facts(
        env=kept_variables(environment),
        devices=tuple(f"{accelerator}{index}" for index in range(count)),
        cpus=max(1, math.ceil(quantity(job.resources.get("cpu", "1")))),
    )
    if job.injected and job.processes is None and yields(facts):
        # Unlike a pod, we know that Trainer chose this number, not the user: there is nothing to note.
        return replace(facts, env={**facts.env, "PET_NPROC_PER_NODE": "auto"})
    return facts


def _environment(job: NodeJob, node: int) -> dict[str, str]:
    address = f"{job.name}-node-0-0.{job.name}"
    environment = job.environment(node, 0, "job", "run", address, DEFAULT_PORT)
    # Kubernetes sets this in every pod of an Indexed Job.
    return {**environment, "JOB_COMPLETION_INDEX": str(node)}


def _without_unseen(job: NodeJob) -> tuple[NodeJob, list[str]]:
    unseen = [str(entry["name"]) for entry in job.env if _is_unseen(entry.get("valueFrom"))]
    return replace(job, env=tuple(entry for entry in job.env if entry["name"] not in unseen)), unseen


def _is_unseen(source: object) -> bool:
    if not isinstance(source, dict):
        return False
    field = source.get("fieldRef")
    path = str(field.get("fieldPath")) if isinstance(field, dict) else _KNOWN_FIELDS[0]
    return bool(set(_UNSEEN) & {*source}) or not source or not path.startswith(_KNOWN_FIELDS)


def _launch_of(argv: Sequence[str], nodes: int) -> Launch | None:
    """Return what a container's command line launches; None if stoker does not launch it.

    Raises:
        RunError: it starts a trainer with a launcher option that stoker does not have (64).
    """
    if not argv:
        return None
    command, *rest = argv
    if Path(command).name == "stoker":
        args = own_arguments(rest)
        return None if args is None else Launch(args, {})
    if Path(command).name.startswith("python"):
        found = launcher_of(argv)
        return None if found is None else translate(*found, {"PET_NNODES": str(nodes)})
    return translate(Path(command).name, rest, {"PET_NNODES": str(nodes)})


def _config(request: RunRequest, folders: Mapping[str, str]) -> tuple[Mapping[str, Any] | None, str | None]:
    """Return the content of the `--config` file if its volume was given, else a notice."""
    path = request.config_file
    if path is None:
        return None, None
    local = rewritten(path, folders)
    if local == path:
        return None, f"--config {path} is in the pods and was not read: give its volume with --volume NAME=DIR"
    return read_config(Path(local), named=path), None


def _missing(plan: Plan, folders: Mapping[str, str]) -> list[tuple[ExitCode, str]]:
    """Return a problem for each path that the plan needs and that is missing from a given volume."""
    problems = []
    for check in plan.checks:
        local = rewritten(check.path, folders)
        if check.kind == "exists" and local != check.path and not exists(Path(local)):
            problems.append((check.code, f"the {check.what} {check.path} does not exist in {local}: {check.fix}"))
    return problems


def _lacking(plan: Plan, image: str) -> list[tuple[ExitCode, str]]:
    """Return a problem for the packages that the run needs and that are missing from an image that we know."""
    packages = packages_of(image)
    if packages is None:
        return []

    def is_installed(name: str) -> bool:
        return has_package(packages, name)

    return [*framework_problems(plan, is_installed, f"the image {image}"), *package_problems(plan, is_installed)]


def _unknown_image(image: str) -> list[str]:
    """Return a notice if nobody here knows what is in an image."""
    if packages_of(image) is not None:
        return []
    named = f"the image {image}" if image else "the image, which the runtime does not name"
    return [f"not checked: the packages of {named}; the rest is checked as for an image of this version of stoker"]


def _unknown_packages(plan: Plan, image: str) -> list[str]:
    """Return a notice for each package that a setting needs and that an image that we do not know may lack."""
    if packages_of(image) is not None:
        return []
    return [
        f"not checked: whether the image has the Python package {packages}, which {needing} needs"
        for packages, needing in plan.packages_needed.items()
    ]


def _problems(error: RunError) -> tuple[tuple[ExitCode, str], ...]:
    return tuple((error.code, line) for line in error.message.splitlines())
