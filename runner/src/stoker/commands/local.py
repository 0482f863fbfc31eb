"""`stoker local`."""

from __future__ import annotations

from pathlib import Path

import click

from stoker.commands.group import PATH, reported


@click.command(
    "local",
    epilog="\b\nExamples:\n"
    "  stoker local trainjob.yaml --runtime runtime.yaml --workspace ./out\n"
    "  stoker local trainjob.yaml --runtime runtime.yaml --workspace ./out --volume inputs=./inputs\n"
    "  stoker local trainjob.yaml --runtime runtime.yaml --workspace ./out --python torchtune=venv/bin/python",
)
@click.argument("trainjob", type=PATH)
@click.option(
    "--runtime",
    type=PATH,
    help="Rendered runtimes; one that is not in there is read from your cluster, with kubectl.",
)
@click.option("--workspace", required=True, type=PATH, help="Folder in the place of the /workspace volume.")
@click.option("--volume", "volumes", multiple=True, metavar="NAME=DIR", help="Folder in the place of a pod volume.")
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="FRAMEWORK=PATH",
    help="Python that has a framework, `fetch` for the initializers; this one by default.",
)
@click.option(
    "--secret", "secrets", multiple=True, metavar="NAME=FILE", help="File of KEY=VALUE lines in the place of a secret."
)
@reported
def local_command(
    trainjob: Path,
    runtime: Path | None,
    workspace: Path,
    volumes: tuple[str, ...],
    pythons: tuple[str, ...],
    secrets: tuple[str, ...],
) -> int:
    """Run TRAINJOB as local processes, one group per node, with the environment Trainer would give them.

    The runtime's initializers come first. Restarts follow the runtime's rules; the exit code is the job's.
    """
    from stoker.cluster import local

    return local.run(trainjob, runtime, workspace, volumes, pythons, secrets)
