"""The options of commands that can also print themselves as a Kubernetes Job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from stoker.contract.exits import ExitCode, RunError

_OPTIONS = (
    click.option("--job", metavar="RUN", help="Only print a Job that does this with the result of RUN."),
    click.option(
        "--claim", metavar="NAME", help="With --job: the claim with the workspace  [default: initializer-RUN]"
    ),
    click.option("--image", metavar="IMAGE", help="With --job: image to use instead of Stoker's."),
    click.option(
        "--registry", metavar="HOST", help="With --job: pull Stoker's images from this mirror instead of ghcr.io."
    ),
    click.option("--pull-secret", metavar="NAME", help="With --job: a Secret to pull the images with."),
    click.option("--gpu", is_flag=True, help="With evaluate --job: use one NVIDIA GPU."),
    click.option("--memory", default="8Gi", show_default=True, metavar="SIZE", help="With --job: memory of the pod."),
    click.option(
        "--secret", metavar="NAME", help="With --job: a Secret whose keys become variables, such as HF_TOKEN."
    ),
)

_ONLY_FOR_A_JOB = ("claim", "image", "registry", "pull_secret", "gpu", "secret")


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a user wants of a Job, by the options' names."""

    job: str
    claim: str | None
    image: str | None
    registry: str | None
    pull_secret: str | None
    gpu: bool
    memory: str
    secret: str | None


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def taken(given: dict[str, Any]) -> JobOptions | None:
    """Take the options out of a command's arguments; None without --job.

    Raises:
        RunError: another of them is given without --job (64).
    """
    found = {name: given.pop(name) for name in JobOptions.__slots__}
    if found["job"] is not None:
        return JobOptions(**found)
    if lone := [f"--{name.replace('_', '-')}" for name in _ONLY_FOR_A_JOB if found[name]]:
        raise RunError(ExitCode.USAGE, f"{', '.join(lone)} is for a Job: add --job RUN, or drop it")
    return None


def image_for(options: JobOptions, kind: str) -> str:
    """Return the image of a container: the user's, unless it is the small one that fetches and sends.

    Args:
        options: what the user wants of the Job.
        kind: which of our images it needs.
    """
    from stoker.cluster.images import image_of

    registry = options.registry or ""
    if kind == "fetch":
        return image_of(kind, registry=registry)
    return options.image or image_of(kind, "cuda" if options.gpu else "cpu", registry)


def print_job(purpose: str, steps: Sequence[tuple[str, str, Sequence[str]]], options: JobOptions) -> None:
    """Print a Job.

    Args:
        purpose: what it does, which is in its name.
        steps: for each container its name, which of our images it uses, and what it runs.
        options: what the user wants of it.

    Raises:
        RunError: the run's name is not a valid name (64).
    """
    from stoker.cluster.images import architecture_of
    from stoker.results.job import Around, Step, job
    from stoker.submit.trainjob import to_yaml

    made = [Step(name, image_for(options, kind), argv) for name, kind, argv in steps]
    around = Around(
        options.job,
        options.claim or f"initializer-{options.job}",
        memory=options.memory,
        gpu=options.gpu,
        secret=options.secret or "",
        pull_secret=options.pull_secret or "",
        # Stoker's images are all for the same one; others do not say.
        architecture=max(architecture_of(step.image) for step in made),
    )
    click.echo(to_yaml(job(purpose, made, around)), nl=False)
