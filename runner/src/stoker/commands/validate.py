"""`stoker validate`."""

from __future__ import annotations

from pathlib import Path

import click

from stoker.commands.group import PATH, formatted, reported
from stoker.contract.exits import PRECEDENCE
from stoker.contract.secrets import hidden_json, hide
from stoker.contract.words import report_error


@click.command(
    "validate",
    epilog="\b\nExamples:\n"
    "  stoker validate trainjob.yaml --runtime runtime.yaml\n"
    "  stoker validate trainjob.yaml     # kubectl reads the runtime from your cluster\n"
    "  helm template charts/training-runtimes --set skipApiCheck=true > runtimes.yaml &&\n"
    "    stoker validate trainjob.yaml --runtime runtimes.yaml\n"
    "  cat trainjob.yaml runtime.yaml | stoker validate -\n"
    "  stoker validate trainjob.yaml --runtime runtime.yaml --volume initializer=./workspace\n"
    "  stoker validate trainjob.yaml --output json | jq -r '.[].problems[].message'",
)
@click.argument("trainjob", type=PATH)
@click.option(
    "--runtime",
    "runtimes",
    multiple=True,
    type=PATH,
    help="File with rendered (Cluster)TrainingRuntimes, one or many.",
)
@click.option("--volume", "volumes", multiple=True, metavar="NAME=DIR", help="Folder with a pod volume's content.")
@formatted()
@reported
def validate_command(trainjob: Path, runtimes: tuple[Path, ...], volumes: tuple[str, ...], output: str) -> int:
    """Check TRAINJOB before you submit it. The command starts nothing and changes no cluster.

    It checks every TrainJob in the file (`-` is standard input) as the cluster would, and plans it as its pods would.
    The exit code is the one that the pods would end with. Devices come from the requested resources. Name a folder
    with --volume to check the content of a volume too.
    """
    from stoker.cluster import validate

    verdicts = validate.validate(trainjob, runtimes, volumes)
    if output == "json":
        click.echo(hidden_json([verdict.facts for verdict in verdicts], indent=2))
    else:
        for verdict in verdicts:
            report_error(verdict.errors)
            if verdict.summary:
                click.echo(hide(verdict.summary), err=bool(verdict.problems))
    return min((verdict.code for verdict in verdicts), key=PRECEDENCE.index)
