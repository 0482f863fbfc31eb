"""`stoker rl`: sessions."""

from __future__ import annotations

from typing import Any

import click

from stoker.commands.group import PATH, Commands, formatted, reported
from stoker.commands.runs import interrupted_by_any_signal, logs_command, on_cluster


@click.group(
    "rl",
    cls=Commands,
    epilog="\b\nExamples:\n"
    "  stoker rl up math --model hf://Qwen/Qwen3-0.6B --dataset hf://trl-lib/DeepMath-103K \\\n"
    "    --set reward_funcs=think_format_reward --time-limit 8h --idle-limit 30m\n"
    "  stoker rl list\n"
    "  stoker rl down math",
)
def rl_group() -> None:
    """Start, show and end sessions: TrainJobs with samplers that no other run can reach."""


@rl_group.command(
    "up",
    epilog="\b\nExamples:\n"
    "  stoker rl up math --model hf://Qwen/Qwen3-0.6B --dataset hf://trl-lib/DeepMath-103K \\\n"
    "    --set reward_funcs=think_format_reward --samplers 4 --time-limit 8h\n"
    "  stoker rl up sums trainjob.yaml --idle-limit 30m\n"
    "  stoker rl up sums trainjob.yaml --queue gpu-0 --device-claim gpu-0=gpu.nvidia.com --turns\n"
    "  stoker rl up loops --runtime trl-tinker --model hf://Qwen/Qwen3-0.6B     # for the tinker client\n"
    "  stoker rl up sums trainjob.yaml --dry-run --runtimes runtimes.yaml     # asks no cluster",
)
@click.argument("name")
@click.argument("subject", metavar="[METHOD|FILE.py:NAME|TRAINJOB.yaml]", required=False)
@click.option("--runtime", help="Name of a runtime with samplers.  [default: trl-grpo-async]")
@click.option("--model", help="Model: an address to fetch (hf://…), or a folder or Hub id for the trainer.")
@click.option("--dataset", help="Data: an address to fetch (hf://…), or a folder or Hub id for the trainer.")
@click.option("--secret", default="", help="Secret for the initializers, with keys such as ACCESS_TOKEN.")
@click.option("--nodes", type=click.IntRange(min=1), help="Number of pods that train.")
@click.option("--resources", multiple=True, metavar="NAME=AMOUNT", help="Resource of each pod that trains, e.g. gpu=1.")
@click.option("--set", "settings", multiple=True, metavar="FLAG=VALUE", help="Flag of the trainer.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Variable of the trainer container.")
@click.option("--samplers", type=click.IntRange(min=1), help="Number of samplers; by default the runtime's.")
@click.option("--time-limit", metavar="TIME", help="End the session after this time, e.g. 8h.")
@click.option("--idle-limit", metavar="TIME", help="End the session after this time without a request or a step.")
@click.option("--queue", metavar="NAME", help="Kueue queue: the session waits there until all its pods fit.")
@click.option("--device-claim", metavar="NAME=CLASS", help="Device that sessions share: a ResourceClaim of this class.")
@click.option(
    "--device-limit", type=click.IntRange(min=1), help="Sessions that may use it at once; without Kueue's quota."
)
@click.option("--turns", is_flag=True, help="Create the Lease for samplers that take turns at a device.")
@click.option(
    "--wait",
    "seconds",
    type=click.FloatRange(min=0),
    default=1800.0,
    show_default=True,
    help="Seconds to wait until its samplers answer; 0 not to wait.",
)
@click.option("--dry-run", is_flag=True, help="Print the objects instead of creating them.")
@click.option("--runtimes", type=PATH, help="File with rendered runtimes, for --dry-run without a cluster.")
@on_cluster
@reported
def up_command(name: str, subject: str | None, **words: Any) -> None:
    """Start the session NAME, and wait until its samplers answer.

    The session runs a method of TRL, a config in a Python file, or the TrainJob in a file. The default depends on the
    runtime: grpo_async, or an endpoint for the tinker client (trl-tinker). The same command again changes nothing.
    """
    from stoker.sessions import command_line

    for line in command_line.up(command_line.SessionOptions(subject or "", name, **words)):
        click.echo(line)


@rl_group.command("list", epilog="\b\nExamples:\n  stoker rl list\n  stoker rl list --output json")
@formatted()
@on_cluster
@reported
def list_command(output: str, namespace: str | None, context: str | None) -> None:
    """Show the sessions of a namespace."""
    from stoker.sessions import command_line

    command_line.print_list(output, namespace, context)


# A session is a TrainJob, so its logs are those of any run.
rl_group.add_command(logs_command)


@rl_group.command(
    "down",
    epilog="\b\nExamples:\n  stoker rl down math\n  stoker rl down math --purge\n"
    "  stoker rl down --ended     # every session that a limit or a failure has ended",
)
@click.argument("name", required=False)
@click.option("--ended", is_flag=True, help="End every session of the namespace that has ended, in place of NAME.")
@click.option(
    "--wait",
    "seconds",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="Seconds to wait until all objects are gone.",
)
@click.option("--purge", is_flag=True, help="Delete the run folder too.")
@on_cluster
@reported
def down_command(
    name: str | None, ended: bool, seconds: float, purge: bool, namespace: str | None, context: str | None
) -> None:
    """End the session NAME, and wait until all its objects are gone."""
    from stoker.runs.client import connect
    from stoker.sessions.down import down, down_ended

    if ended is (name is not None):
        raise click.UsageError("write the NAME of a session, or --ended for all that have ended")
    with interrupted_by_any_signal():
        client = connect(context, namespace)
        if name is None:
            down_ended(client, seconds, purge=purge)
        else:
            down(client, name, seconds, purge=purge)
