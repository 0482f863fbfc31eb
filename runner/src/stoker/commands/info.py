"""`stoker doctor`, `stoker flags` and `stoker recipe`."""

from __future__ import annotations

import click

from stoker.commands.group import formatted, reported
from stoker.contract.exits import ExitCode, RunError


@click.command(
    "doctor",
    epilog="\b\nExamples:\n  stoker doctor\n  stoker doctor --image     # in an image build\n"
    "  stoker doctor --cluster   # what pods of its runtimes would wait for\n"
    "  stoker doctor --output json | jq -r '.[] | select(.mark == \"FAIL\") | .fix'",
)
@click.option("--image", is_flag=True, help="Check only what is installed, as an image build does.")
@click.option("--cluster", is_flag=True, help="Check that the cluster has nodes for the pods of its runtimes.")
@click.option("--context", metavar="NAME", help="Context of the kubeconfig, for --cluster.")
@formatted()
@reported
def doctor_command(image: bool, cluster: bool, context: str | None, output: str) -> int:
    """Print what this container sees, one line each; exit with 78 if a run could not work.

    Outside a pod, print what works on this machine, and how to install what is missing.
    """
    from stoker.commands import doctor

    if image and cluster:
        raise RunError(ExitCode.USAGE, "write one of --image and --cluster")
    as_json = output == "json"
    return doctor.run_on_cluster(context, as_json=as_json) if cluster else doctor.run(image_only=image, as_json=as_json)


@click.command(
    "flags",
    epilog="\b\nExamples:\n  stoker flags sft\n  stoker flags sft lora",
)
@click.argument("method")
@click.argument("containing", default="")
@reported
def flags_command(method: str, containing: str) -> None:
    """List the trainer flags of METHOD with type, default and help; CONTAINING filters by name."""
    from stoker.commands import describe

    click.echo(describe.flags(method, containing))


@click.group("recipe", epilog="\b\nExamples:\n  stoker recipe list\n  stoker recipe show --tuning lora")
def recipe_group() -> None:
    """The trainer defaults that Stoker changes, each with its reason."""


@recipe_group.command("list", epilog="\b\nExamples:\n  stoker recipe list")
@reported
def recipe_list_command() -> None:
    """List every default that Stoker sets, for which runs, and why."""
    from stoker.commands import describe

    click.echo(describe.recipe_list())


@recipe_group.command(
    "show",
    epilog="\b\nExamples:\n  stoker recipe show --tuning qlora\n  stoker recipe show --accelerator cpu --method reward",
)
@click.option("--accelerator", default="nvidia", show_default=True, help="nvidia, amd, intel, tpu or cpu.")
@click.option("--tuning", default="full", show_default=True, help="full, lora or qlora.")
@click.option("--method", default="sft", show_default=True, help="Training method.")
@reported
def recipe_show_command(accelerator: str, tuning: str, method: str) -> None:
    """Show the defaults for one kind of run, and why."""
    from stoker.commands import describe

    click.echo(describe.recipe(accelerator, tuning, method))
