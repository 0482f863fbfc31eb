"""The verdict on a TrainJob before it is submitted: what the cluster would refuse, and each node's plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.cluster.admission import admission_of
from stoker.cluster.assumed import assumed_facts, environment_of, partition_problem, without_unseen
from stoker.cluster.grace import grace_notice, grace_problem
from stoker.cluster.images import has_package, packages_of
from stoker.cluster.pods import NodeJob, expand, initializers_of, job_of, rewritten
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
from stoker.cluster.samplers import samplers_of
from stoker.cluster.starts import Start, start_of
from stoker.cluster.volumes import PathFacts, Volumes, claims_of_two_volumes, volumes_of
from stoker.contract.exits import PRECEDENCE, ExitCode, RunError
from stoker.contract.files import exists
from stoker.contract.samplers import API_KEY
from stoker.contract.variables import GRACE_PERIOD, kept_variables, unknown_variables, workspace_of
from stoker.fetch.request import CREDENTIALS, request_of
from stoker.frameworks import get_framework
from stoker.node.planning import read_config
from stoker.node.preflight import (
    account_problems,
    checkpoint_problems,
    framework_problems,
    input_problems,
    package_problems,
)
from stoker.plan.facts import Facts
from stoker.plan.inputs import Input
from stoker.plan.plan import Check, Plan
from stoker.plan.resolve import RunRequest, input_check, read_request, resolve_plan
from stoker.plan.world import DEFAULT_PORT, resolve_world
from stoker.rank.guard import expect_world
from stoker.rollouts.addresses import addresses_in
from stoker.tinker.options import KEY_PREFIX, options_of

_NODES_CHECKED = 16


@dataclass(frozen=True, slots=True)
class Validation:
    """What is wrong with one TrainJob, and how it would run.

    Attributes:
        name: the TrainJob's name.
        plan: node 0's plan; None if no plan can be made.
        problems: why it would fail, each with the exit code of its pods.
        notices: what else the user should know.
        code: what the run ends with, 0 if there is no problem: the cluster refuses a TrainJob before anything starts,
            and initializers run before the nodes.
        samplers: how many samplers run beside the nodes.
        serves: what the nodes serve; empty if they train.
    """

    name: str
    plan: Plan | None
    problems: tuple[tuple[ExitCode, str], ...]
    notices: tuple[str, ...]
    code: ExitCode
    samplers: int = 0
    serves: str = ""

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

    @property
    def facts(self) -> dict[str, Any]:
        """What a program wants to know, as JSON takes it."""
        world = None if self.plan is None else self.plan.world
        return {
            "name": self.name,
            "code": int(self.code),
            "problems": [{"code": int(code), "message": text} for code, text in self.problems],
            "notices": [*self.notices],
            "framework": self.plan and self.plan.framework,
            "method": self.plan and self.plan.method,
            "nodes": world and world.nnodes,
            "processes_per_node": world and world.nproc_per_node,
            "samplers": self.samplers,
            "serves": self.serves or None,
        }

    def _valid(self) -> str:
        beside = f", beside {self.samplers} samplers" if self.samplers else ""
        if self.serves:
            return f"valid: {self.serves}{beside}"
        if self.plan is None:
            return "the TrainJob is valid"
        world = self.plan.world
        size = f"{world.nnodes} nodes × {world.nproc_per_node} processes{beside}"
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
        job, samplers = job_of(trainjob, runtime), samplers_of(trainjob, runtime)
    except RunError as error:
        # Both checks report a wrong shape: once is enough.
        found = tuple(problems) or _problems(error)
        return Validation(name, None, found, admission.notices, _code_of(found))
    given = volume_folders(job.mounts, volumes)
    folders = {path: str(folder) for name, folder in given.items() for path in job.mounts[name]}
    judge = _Judge(job, folders, problems, [*admission.notices])
    code = _code_of(problems)
    try:
        problems += [(ExitCode.USAGE, text) for text in claims_of_two_volumes(trainjob, runtime)]
        fetching = judge.fetching(trainjob, runtime)
        code = code or _code_of(problems)
        plan = judge.nodes(volumes_of(trainjob, runtime, fetching, packages_of(job.image) is not None))
        if plan is not None and not judge.is_config_unread:
            judge.notices += _unread(plan, fetching.get("dataset-initializer"))
    except RunError as error:
        plan = None
        problems += _problems(error)
    notices = tuple(dict.fromkeys(judge.notices))
    count = 0 if samplers is None else samplers.count
    return Validation(
        name, plan, tuple(dict.fromkeys(problems)), notices, code or _code_of(problems), count, judge.serves
    )


def _unread(plan: Plan, folder: str | None) -> Iterator[str]:
    """Yield a notice if no setting of a run reads the data set that was fetched for it: it trains on another one.

    Args:
        plan: the run.
        folder: where the data set is; empty or None if none is fetched, or nobody knows where.
    """
    read = [Path(check.path) for check in plan.checks if check.kind == "exists"]
    # A framework that names nothing reads what its own code names.
    if folder and read and not any(path.is_relative_to(folder) for path in read):
        yield (
            f"spec.initializer.dataset is fetched to {folder}, and no setting reads it: name the folder in the setting "
            "for the data set, which is dataset.source for TorchTune"
        )


@dataclass(slots=True)
class _Judge:
    """Collects what is wrong with the pods of a TrainJob, and what nobody can know before they run.

    Attributes:
        job: what the nodes run.
        folders: mount path → folder with the content of that volume.
        problems: what is wrong, with the exit code of the pods.
        notices: what else the user should know.
        unchecked: what was not checked, each as a part of a sentence.
        is_config_unread: True if the `--config` file could not be read here: it may change any setting.
        serves: what the nodes serve; empty if they train.
    """

    job: NodeJob
    folders: Mapping[str, str]
    problems: list[tuple[ExitCode, str]]
    notices: list[str]
    unchecked: list[str] = field(default_factory=list)
    is_config_unread: bool = False
    serves: str = ""

    def fetching(self, trainjob: Resource, runtime: Resource) -> dict[str, str | None]:
        """Check what `stoker fetch` would refuse; return each initializer's folder (see :func:`volumes_of`)."""
        folders: dict[str, str | None] = {}
        try:
            found = initializers_of(trainjob, runtime)
        except RunError:  # the cluster refuses it too, and that problem is reported
            return folders
        for initializer in found:
            folders[initializer.name] = None
            if not initializer.is_ours:
                continue
            job, unseen = without_unseen(initializer.job)
            kind = initializer.name.removesuffix("-initializer")
            try:
                environment = job.environment(0, 0, "job", "run", "", DEFAULT_PORT)
                # The secret may hold one of the two credentials.
                known = {name: value for name, value in environment.items() if name not in CREDENTIALS}
                if problems := unknown_variables(kept_variables(known)):
                    raise RunError(ExitCode.USAGE, "\n".join(problems))
                request = request_of(kind, known, workspace_of(environment))
            except RunError as error:
                self.problems += [(code, f"spec.initializer.{kind}: {text}") for code, text in _problems(error)]
            else:
                if "STORAGE_URI" not in unseen:
                    folders[initializer.name] = "" if request is None else str(request.target)
        return folders

    def nodes(self, volumes: Volumes) -> Plan | None:
        """Plan every node, and check what node 0 would check before its start; return its plan.

        Raises:
            RunError: the pods would end with this.
        """
        job, unseen = without_unseen(self.job)
        self.notices += [f"env {variable} comes from the cluster and was not checked" for variable in unseen]
        first: Plan | None = None
        # Nodes differ only in their rank, so a few of a large run are enough.
        for node in sorted({*range(min(job.nodes, _NODES_CHECKED)), job.nodes - 1}):
            environment = environment_of(job, node)
            words = [expand(word, environment) for word in job.argv]
            start = start_of(words, environment)
            if start is None:
                if words[:2] == ["stoker", "tinker"]:
                    self._endpoint(words[2:], environment, volumes, unseen)
                else:
                    self._not_launched()
                return None
            facts = assumed_facts(job, environment, volumes.shm_bytes)
            if node == 0:
                self._unknown_image()
                if problem := partition_problem(job, facts.accelerator):
                    self.problems.append((ExitCode.CONFIG, problem))
            plan = self._planned(start, facts, volumes)
            if first is None and plan is not None:
                first = plan
                self.notices += plan.notices
                if start.trains:
                    self._before_the_start(plan, volumes, unseen)
                else:
                    self.notices.append("the pods only print the plan: nothing is trained")
        return first

    def _endpoint(
        self, words: Sequence[str], environment: Mapping[str, str], volumes: Volumes, unseen: Sequence[str]
    ) -> None:
        """Check what an endpoint for the tinker client would refuse.

        Raises:
            RunError: it would.
        """
        # Only the cluster knows the session's key.
        key = {API_KEY: f"{KEY_PREFIX}{'0' * 32}"} if API_KEY in unseen else {}
        options = options_of(words, {**environment, **key})
        addresses_in(options.samplers)
        if problems := unknown_variables(kept_variables(environment)):
            raise RunError(ExitCode.USAGE, "\n".join(problems))
        if options.model.startswith("/"):
            model = Input(options.model, "model", "spec.initializer.model", "--model_name_or_path")
            self._check(input_check(model), volumes)
            self._tell_unchecked()
        self.serves = "an endpoint for the tinker client"

    def _planned(self, start: Start, facts: Facts, volumes: Volumes) -> Plan | None:
        """Return a node's plan; None for a trainer that stoker does not launch, but guards."""
        if start.launch is None:
            world = resolve_world(facts)
            if world.problems:
                raise RunError(ExitCode.CONFIG, "\n".join(world.problems))
            expect_world(1, world.size)
            self._not_launched()
            return None
        framework = get_framework(facts.get("STOKER_FRAMEWORK"))
        request = read_request(facts, framework, start.launch.args, start.launch.world)
        return resolve_plan(request, self._config(request, volumes))

    def _config(self, request: RunRequest, volumes: Volumes) -> Mapping[str, Any] | None:
        """Return the content of the `--config` file; None without one, or if nobody can read it here.

        Raises:
            RunError: the pods cannot read it.
        """
        path = request.config_file
        if path is None:
            return None
        if (local := self._local(volumes.absolute(path))) is not None:
            return read_config(Path(local), named=path)
        found, why = volumes.look(path)
        if found is PathFacts.MISSING:
            raise RunError(
                ExitCode.NO_INPUT, f"--config {path} cannot be read, because {why}: mount it, or correct the path"
            )
        self.notices.append(f"--config {path} is in the pods and was not read: give its volume with --volume NAME=DIR")
        self.is_config_unread = True
        return None

    def _before_the_start(self, plan: Plan, volumes: Volumes, unseen: Sequence[str]) -> None:
        """Check what a node would check before its trainer starts."""
        for check in plan.checks:
            self._check(check, volumes)
        self.problems += input_problems(plan, self._local)
        self._packages(plan)
        self._accounts(plan)
        self._checkpoint(plan)
        self.unchecked += plan.unseen
        self._tell_unchecked()
        if GRACE_PERIOD not in unseen:
            self._grace(plan)

    def _tell_unchecked(self) -> None:
        if self.unchecked:
            self.notices.append(f"not checked: {'; '.join(dict.fromkeys(self.unchecked))}")

    def _grace(self, plan: Plan) -> None:
        """Compare the time that the pods have to stop with the time that the runner counts on."""
        pods, told = self.job.grace_seconds, plan.grace_seconds
        if problem := grace_problem(pods, told):
            self.problems.append((ExitCode.CONFIG, problem))
        elif notice := grace_notice(pods, told):
            self.notices.append(notice)

    def _check(self, check: Check, volumes: Volumes) -> None:
        if check.kind == "writable":
            if (why := volumes.refusal(check.path)) is not None:
                self.problems.append((check.code, f"the {check.what} {check.path} cannot be written to: {why}"))
            return
        if (local := self._local(check.path)) is not None:
            if not exists(Path(local)):
                text = f"the {check.what} {check.path} does not exist in {local}: {check.fix}"
                self.problems.append((check.code, text))
            return
        found, why = volumes.look(check.path)
        if found is PathFacts.MISSING and not self.is_config_unread:
            self.problems.append((check.code, f"the {check.what} {check.path} is missing, because {why}: {check.fix}"))
        else:
            self.unchecked.append(f"the {check.what} {check.path}, {why}")

    def _packages(self, plan: Plan) -> None:
        packages = packages_of(self.job.image)

        def is_installed(name: str) -> bool:
            return packages is not None and has_package(packages, name)

        # A volume may have what the image lacks.
        has_more = any(entry["name"] == "PYTHONPATH" for entry in self.job.env)
        if packages is None or has_more or self.is_config_unread:
            self.unchecked += [
                f"the package {names} for {needing}"
                for names, needing in plan.packages_needed.items()
                if not any(map(is_installed, names.split(" or ")))
            ]
        else:
            self.problems += package_problems(plan, is_installed)
        if packages is not None and not self.problems:
            self.problems += framework_problems(plan, is_installed, f"the image {self.job.image}")

    def _accounts(self, plan: Plan) -> None:
        packages = packages_of(self.job.image)
        self.unchecked += [
            f"the account for {account.setting}"
            for account in plan.accounts_needed
            if self.job.has_more_env or (account.only_with and packages is None)
        ]

        def is_installed(name: str) -> bool:
            return packages is not None and has_package(packages, name)

        if not (self.job.has_more_env or self.is_config_unread):
            variables = {
                str(entry["name"]): None if "valueFrom" in entry else str(entry.get("value") or "")
                for entry in self.job.env
            }
            self.problems += account_problems(plan, variables, is_installed)

    def _checkpoint(self, plan: Plan) -> None:
        if plan.resume != "require":
            return
        local = self._local(plan.output_dir)
        try:
            problems = None if local is None else [*checkpoint_problems(plan, Path(local))]
        except OSError:
            problems = None
        if problems is None:
            self.unchecked.append(f"a complete checkpoint in {plan.output_dir}")
        else:
            self.problems += problems

    def _local(self, path: str) -> str | None:
        """Return the folder or file here that has the content of a path in the pods; None without one."""
        local = rewritten(path, self.folders)
        return None if local == path else local

    def _not_launched(self) -> None:
        argv = self.job.argv
        who = f"stoker does not launch the command {argv[0]!r}" if argv else "the image's own command runs"
        self.notices.append(f"{who}: only the fields of the TrainJob were checked")

    def _unknown_image(self) -> None:
        if packages_of(self.job.image) is None:
            named = f"the image {self.job.image}" if self.job.image else "the image that the runtime lacks"
            rest = "the plan is that of an image of this version of stoker"
            self.notices.append(f"{named} is not known here, so its packages were not checked; {rest}")


def _code_of(problems: Sequence[tuple[ExitCode, str]]) -> ExitCode:
    return min((code for code, _ in problems), key=PRECEDENCE.index, default=ExitCode.FINISHED)


def _problems(error: RunError) -> tuple[tuple[ExitCode, str], ...]:
    return tuple((error.code, line) for line in error.message.split("\n"))
