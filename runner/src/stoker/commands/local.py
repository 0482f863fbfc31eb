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
    help="File with rendered runtimes; kubectl reads any other runtime from your cluster.",
)
@click.option("--workspace", required=True, type=PATH, help="Folder to use as the /workspace volume.")
@click.option("--volume", "volumes", multiple=True, metavar="NAME=DIR", help="Folder to use as a pod volume.")
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="FRAMEWORK=PATH",
    help="Python for a framework, or for `fetch`, the initializers; default: the current one.",
)
@click.option(
    "--secret", "secrets", multiple=True, metavar="NAME=FILE", help="File of KEY=VALUE lines to use as a secret."
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
    """Run TRAINJOB as local processes, one group for each node, with the environment that Trainer would set.

    The runtime's initializers run first. Restarts follow the runtime's rules. The exit code is the job's.
    """
    from stoker.cluster import local

    return local.run(trainjob, runtime, workspace, volumes, pythons, secrets)
