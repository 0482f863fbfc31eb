"""`stoker run` and `stoker plan`."""

from __future__ import annotations

import os

import click

from stoker.commands.group import reported
from stoker.contract.exits import ExitCode, RunError
from stoker.contract.secrets import hidden_json, hide
from stoker.contract.variables import role_of
from stoker.entry.own_command import OUTPUT, PASS_THROUGH, misspelled_option, trainer_arguments


@click.command(
    "run",
    params=[trainer_arguments()],
    context_settings=PASS_THROUGH,
    epilog="\b\nExamples:\n"
    "  stoker run --learning_rate 2e-4 --use_peft     # in a TrainJob's pod, which names method, model and data\n"
    "  stoker run trl.scripts.sft --config /workspace/sft.yaml\n"
    "  STOKER_ARG_MAX_STEPS=100 stoker run",
)
@reported
def run_command(trainer_args: tuple[str, ...]) -> int:
    """Train on this node, as a TrainJob's pods do.

    TRAINER_ARGS are the trainer's own flags. The trainer's module may come first. Defaults come from STOKER_ARG_<FLAG>
    in the environment. `stoker plan` shows what would run.
    """
    from stoker.node import launch

    return launch.start(trainer_args)


@click.command(
    "plan",
    params=[OUTPUT, trainer_arguments()],
    context_settings=PASS_THROUGH,
    epilog="\b\nExamples:\n"
    "  stoker plan trl.scripts.sft --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/Capybara\n"
    "  stoker plan --output json --use_peft     # in a TrainJob's pod, which names method, model and data",
)
@reported
def plan_command(output: str, trainer_args: tuple[str, ...]) -> None:
    """Print what `stoker run` would do, and where every value comes from. Options of this command come first."""
    from stoker.commands import describe
    from stoker.commands.sampler import sampler_plan
    from stoker.commands.tinker import tinker_plan
    from stoker.node import planning

    role = role_of(os.environ)
    if role != "node":
        click.echo(sampler_plan(output) if role == "sampler" else tinker_plan(trainer_args, output))
        return
    if wrong := misspelled_option(trainer_args):
        raise RunError(ExitCode.USAGE, wrong)
    if trainer_args and trainer_args[0].endswith((".yaml", ".yml")):
        raise RunError(
            ExitCode.USAGE,
            f"`stoker plan` reads a pod's variables and flags, no file: `stoker validate {trainer_args[0]}` prints "
            "the plan of a TrainJob",
        )
    plan = planning.plan_here(trainer_args)
    click.echo(hidden_json(plan.to_json(), indent=2) if output == "json" else hide(describe.plan_text(plan)))
