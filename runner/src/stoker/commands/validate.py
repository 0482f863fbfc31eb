"""`stoker validate`."""

from __future__ import annotations

from pathlib import Path

import click

from stoker.commands.group import PATH, reported
from stoker.contract.exits import PRECEDENCE
from stoker.contract.words import report_error


@click.command(
    "validate",
    epilog="\b\nExamples:\n"
    "  stoker validate trainjob.yaml --runtime runtime.yaml\n"
    "  stoker validate trainjob.yaml     # the runtime is read from your cluster, with kubectl\n"
    "  helm template charts/training-runtimes --set skipApiCheck=true > runtimes.yaml &&\n"
    "    stoker validate trainjob.yaml --runtime runtimes.yaml\n"
    "  cat trainjob.yaml runtime.yaml | stoker validate -\n"
    "  stoker validate trainjob.yaml --runtime runtime.yaml --volume initializer=./workspace",
)
@click.argument("trainjob", type=PATH)
@click.option(
    "--runtime",
    "runtimes",
    multiple=True,
    type=PATH,
    help="File with rendered (Cluster)TrainingRuntimes, one or many.",
)
@click.option("--volume", "volumes", multiple=True, metavar="NAME=DIR", help="Folder with what a pod volume will hold.")
@reported
def validate_command(trainjob: Path, runtimes: tuple[Path, ...], volumes: tuple[str, ...]) -> int:
    """Say what would become of TRAINJOB, before it is submitted: nothing is started, no cluster is changed.

    Every TrainJob of the file (`-` is standard input) is judged as the cluster would judge it, and planned as each of
    its pods would plan it. The exit code is the one its pods would end with. Devices are taken from the resources
    asked for; what lies in a volume is looked at only where --volume says what it holds.
    """
    from stoker.cluster import validate

    verdicts = validate.validate(trainjob, runtimes, volumes)
    for verdict in verdicts:
        report_error(verdict.errors)
        if verdict.summary:
            click.echo(verdict.summary, err=bool(verdict.problems))
    return min((verdict.code for verdict in verdicts), key=PRECEDENCE.index)
