"""`stoker trainjob`."""

from __future__ import annotations

from typing import Any

import click

from stoker.commands.group import reported
from stoker.contract.words import say


@click.command(
    "trainjob",
    epilog="\b\nExamples:\n"
    "  stoker trainjob sft --name capybara --model hf://Qwen/Qwen3-0.6B --dataset hf://trl-lib/Capybara \\\n"
    "    --nodes 2 --lora --set learning_rate=2e-4 | kubectl apply -f -\n"
    "  stoker trainjob dpo --name prefs --model /workspace/sft --dataset hf://trl-lib/ultrafeedback_binarized\n"
    "  stoker trainjob sft --name large --resources gpu=8 --sharding full --model hf://Qwen/Qwen3-8B \\\n"
    "    --dataset hf://trl-lib/Capybara\n"
    "  stoker trainjob run.py:config --name capybara --dataset hf://trl-lib/Capybara    # config = TRLConfig(…)",
)
@click.argument("subject", metavar="METHOD|FILE.py:NAME")
@click.option("--name", metavar="NAME", required=True, help="Name of the TrainJob.")
@click.option("--runtime", help="Name of the runtime; by default the framework's general one, e.g. trl-distributed.")
@click.option("-n", "--namespace", metavar="NAME", help="Namespace of the TrainJob; by default kubectl's.")
@click.option("--model", help="Model: an address to fetch (hf://…), or a folder or Hub id for the trainer.")
@click.option("--dataset", help="Data: an address to fetch (hf://…), or a folder or Hub id for the trainer.")
@click.option("--secret", default="", help="Secret for the initializers, with keys such as ACCESS_TOKEN.")
@click.option("--nodes", type=int, help="Number of pods.")
@click.option("--resources", multiple=True, metavar="NAME=AMOUNT", help="Resource of each pod, e.g. gpu=1.")
@click.option("--set", "settings", multiple=True, metavar="FLAG=VALUE", help="Flag of the trainer.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Variable of the trainer container.")
@click.option("--lora", "adapter", flag_value="lora", help="Train an adapter, by default on every linear layer.")
@click.option("--qlora", "adapter", flag_value="qlora", help="Train an adapter on a base model in 4 bits.")
@click.option(
    "--sharding",
    type=click.Choice(["none", "full"]),
    help="full: all processes share weights, gradients and optimizer; by default the runtime decides.",
)
@reported
def trainjob_command(subject: str, adapter: str | None, **words: Any) -> None:
    """Check the flags and print a TrainJob for `kubectl apply`.

    METHOD is a method of TRL, e.g. sft. FILE.py:NAME is a config in a Python file; the command runs the file to get it.
    """
    from stoker.submit.command_line import TrainJobOptions, missing_sources, trainjob_of
    from stoker.submit.trainjob import to_yaml

    made = trainjob_of(TrainJobOptions(subject, adapter=adapter or "", **words))
    for notice in missing_sources(made):
        say(notice)
    click.echo(to_yaml(made), nl=False)
