"""A TrainJob on this machine without Kubernetes: initializers first, then the nodes, restarted as the JobSet would."""

from __future__ import annotations

import os
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from stoker.cluster.assumed import environment_of, without_unseen
from stoker.cluster.grace import grace_problem
from stoker.cluster.pods import InitializerJob, NodeJob, expand, initializers_of, job_of
from stoker.cluster.processes import Container, Stop, free_ports, run_attempt
from stoker.cluster.resources import RUNTIME_KINDS, Resource, name_of, of_kind, read_resources, runtime_of, trainjobs_of
from stoker.cluster.samplers import SamplerJob, local_sampler, samplers_of, vllm_program, with_addresses
from stoker.cluster.screen import Show, screen
from stoker.cluster.starts import start_of
from stoker.cluster.substitutes import FETCH, VLLM, Substitutes, substitutes_of
from stoker.contract.exits import ExitCode, RunError
from stoker.contract.variables import GRACE_PERIOD, GRACE_PERIOD_UNTOLD
from stoker.contract.words import say
from stoker.plan.facts import whole_number


def run(
    trainjob: Path,
    runtime: Path | None,
    workspace: Path,
    volumes: Sequence[str],
    pythons: Sequence[str] = (),
    secrets: Sequence[str] = (),
) -> ExitCode:
    """Run a TrainJob to its end, with its initializers and restarts.

    Args:
        trainjob: file with the TrainJob.
        runtime: file with rendered runtimes; the cluster is asked for a runtime that is in neither file.
        workspace: folder to use as the workspace volume; created if missing.
        volumes: `NAME=DIR`, a folder to use as another volume of the pods.
        pythons: `FRAMEWORK=PATH`, the Python that has the framework; `fetch=PATH` for the initializers.
        secrets: `NAME=FILE`, a file with lines `KEY=VALUE` to use as a secret.

    Returns:
        the job's exit code.

    Raises:
        RunError: a file or an option is wrong.
    """
    trainjob_and_runtime = _read(trainjob, runtime)
    job, initializers = job_of(*trainjob_and_runtime), initializers_of(*trainjob_and_runtime)
    samplers = samplers_of(*trainjob_and_runtime)
    _expect_time_to_stop(job)
    jobs = [job, *(initializer.job for initializer in initializers)]
    substitutes = substitutes_of(jobs, workspace, volumes, pythons, secrets)
    try:
        workspace.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            ExitCode.CONFIG,
            f"--workspace {workspace} cannot be created ({error.strerror}): name a folder that you can write to",
        ) from error
    for name, path in {name: path for one in jobs for name, path in substitutes.missing(one).items()}.items():
        say(f"the volume {name} at {path} has no folder here: name one with --volume {name}=DIR")
    python = substitutes.pythons.get(job.framework, sys.executable)
    folders = substitutes.folders(job.mounts)
    fetching = [(_container(initializer, substitutes), initializer.backoff_limit) for initializer in initializers]
    name = name_of(trainjob_and_runtime[0]) or "run"
    with (
        tempfile.TemporaryDirectory(prefix="stoker-samplers-") as scratch,
        screen(name, job.nodes, os.environ) as (show, told),
    ):
        beside: list[Container] = []
        if samplers is not None:
            job, beside = _samplers(job, samplers, substitutes, Path(scratch))
        nodes = [Container(f"node-{rank}", job, rank, python, folders, told) for rank in range(job.nodes)]
        return _run_with_restarts(nodes, fetching, beside, job.max_restarts, show)


def _expect_time_to_stop(job: NodeJob) -> None:
    """Refuse nodes that would be killed before their runner is done.

    Raises:
        RunError: the runner counts on more time to stop than the pods have (78).
    """
    seen, unseen = without_unseen(job)
    environment = environment_of(seen, 0)
    told = whole_number(environment.get(GRACE_PERIOD) or str(GRACE_PERIOD_UNTOLD))
    start = start_of([expand(word, environment) for word in seen.argv], environment)
    is_launched = start is not None and start.launch is not None and start.trains
    # What is no number, the plan refuses.
    if is_launched and GRACE_PERIOD not in unseen and told and (problem := grace_problem(job.grace_seconds, told)):
        raise RunError(ExitCode.CONFIG, problem)


def _samplers(
    job: NodeJob, samplers: SamplerJob, substitutes: Substitutes, scratch: Path
) -> tuple[NodeJob, list[Container]]:
    """Return the nodes' job with the addresses of its samplers, and the samplers."""
    vllm = vllm_program(substitutes.pythons.get(VLLM))
    folders = substitutes.folders(samplers.mounts)
    found, addresses = [], []
    ports = iter(free_ports(2 * samplers.count))
    for index, (port, watch_port) in enumerate(zip(ports, ports, strict=True)):
        own = local_sampler(job, samplers, vllm, scratch / f"sampler-{index}", port, watch_port)
        found.append(Container(f"sampler-{index}", own, 0, sys.executable, folders))
        addresses.append(f"http://127.0.0.1:{port};watcher=http://127.0.0.1:{watch_port}")
    return with_addresses(job, addresses), found


def _read(trainjob: Path, runtime: Path | None) -> tuple[Resource, Resource]:
    """Return the only TrainJob of a file, and its runtime."""
    given = read_resources(trainjob)
    asked, *more = trainjobs_of(given, trainjob)
    if more:
        names = ", ".join(name_of(one) or "?" for one in (asked, *more))
        raise RunError(
            ExitCode.USAGE,
            f"{trainjob} has {1 + len(more)} TrainJobs, but only one can run at a time: {names}; "
            "write each in its own file",
        )
    known = of_kind([*given, *(read_resources(runtime) if runtime else ())], *RUNTIME_KINDS)
    return asked, runtime_of(asked, known)


def _container(initializer: InitializerJob, substitutes: Substitutes) -> Container:
    if initializer.secret and initializer.secret not in substitutes.secrets:
        say(
            f"{initializer.name}: the secret {initializer.secret} is only in the cluster: "
            f"give a file to use instead with --secret {initializer.secret}=FILE"
        )
    return Container(
        initializer.name,
        initializer.job,
        0,
        substitutes.pythons.get(FETCH, sys.executable),
        substitutes.folders(initializer.job.mounts),
        substitutes.secrets.get(initializer.secret or "", {}),
    )


def _run_with_restarts(
    nodes: Sequence[Container],
    fetching: Sequence[tuple[Container, int]],
    beside: Sequence[Container],
    max_restarts: int,
    show: Show,
) -> ExitCode:
    """Run attempts until one finishes, is stopped or fails for good, or no restart is left; an interruption is free."""
    stop = Stop()
    job_id = uuid.uuid4().hex
    restarts = counted = 0
    while True:
        code = _run_once(nodes, fetching, beside, job_id, restarts, stop, show)
        if code is ExitCode.FINISHED or code.is_final or stop.asked:
            return code
        if code is not ExitCode.STOPPED:
            counted += 1
        if counted > max_restarts:
            say(f"no restart left of {max_restarts}")
            return code
        restarts += 1


def _run_once(
    nodes: Sequence[Container],
    fetching: Sequence[tuple[Container, int]],
    beside: Sequence[Container],
    job_id: str,
    attempt: int,
    stop: Stop,
    show: Show,
) -> ExitCode:
    """Run the initializers one after another, then all nodes with their samplers, as the runtime's `dependsOn` says."""
    for container, backoff_limit in fetching:
        code = _fetch(container, backoff_limit, job_id, attempt, stop, show)
        if code is not ExitCode.FINISHED:
            say(f"attempt {attempt}: {container.title} ended with {int(code)} ({code.meaning})")
            return code
    code = run_attempt(nodes, job_id, attempt, stop, beside, show)
    say(f"attempt {attempt}: {len(nodes)} nodes ended with {int(code)} ({code.meaning})")
    return code


def _fetch(container: Container, backoff_limit: int, job_id: str, attempt: int, stop: Stop, show: Show) -> ExitCode:
    """Run an initializer, and retry it as its Job would: an interruption is free, a user's error is final."""
    failures = 0
    while True:
        code = run_attempt([container], job_id, attempt, stop, show=show)
        if code is ExitCode.FINISHED or code.is_final or stop.asked:
            return code
        if code is not ExitCode.STOPPED:
            failures += 1
        if failures > backoff_limit:
            return code
        say(f"{container.title} ended with {int(code)} ({code.meaning}): trying again")
