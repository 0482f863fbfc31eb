"""`stoker fetch`."""

from __future__ import annotations

import click

from stoker.commands.group import reported


@click.command(
    "fetch",
    epilog="\b\nExamples:\n"
    "  STORAGE_URI=hf://Qwen/Qwen3-0.6B STOKER_WORKSPACE=./out stoker fetch model\n"
    "  STORAGE_URI=hf://trl-lib/Capybara@main/data stoker fetch dataset --dry-run\n"
    "  STORAGE_URI=s3://bucket/prefix ENDPOINT=https://s3.example.com stoker fetch dataset",
)
@click.option("--dry-run", is_flag=True, help="Print which files would be fetched, which are skipped, and why.")
@click.argument("kind", type=click.Choice(["model", "dataset"]), required=False)
@reported
def fetch_command(kind: str | None, dry_run: bool) -> None:
    """Fetch the model or data set of STORAGE_URI into the workspace, as a TrainJob's initializers do.

    Without `model` or `dataset`, the pod's host name decides. The command does nothing if STORAGE_URI is empty or the
    workspace already has the files.
    """
    from stoker.fetch import command

    command.run(kind, dry_run)
