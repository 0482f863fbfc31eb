"""The command `stoker`, put together from one file for each group of commands."""

from __future__ import annotations

import click

from stoker import __version__
from stoker.commands.adapters import adapters_group
from stoker.commands.board import board_command
from stoker.commands.chat import chat_command
from stoker.commands.estimate import estimate_command
from stoker.commands.evaluate import evaluate_command
from stoker.commands.export import export_command
from stoker.commands.fetch import fetch_command
from stoker.commands.fleet import fleet_command
from stoker.commands.group import Commands
from stoker.commands.info import doctor_command, flags_command, recipe_group
from stoker.commands.local import local_command
from stoker.commands.plot import plot_command
from stoker.commands.rl import rl_group
from stoker.commands.run import plan_command, run_command
from stoker.commands.runs import COMMANDS as RUNS
from stoker.commands.sampler import sampler_command
from stoker.commands.slice import slice_group
from stoker.commands.tinker import tinker_command
from stoker.commands.trainjob import trainjob_command
from stoker.commands.validate import validate_command
from stoker.contract.exits import ExitCode
from stoker.entry.own_command import HELP_OPTIONS

# Columns. Help is as wide as the terminal, up to this; without a limit, click stops at 80.
_WIDEST = 1000
_EXIT_CODES = "\n".join(f"  {int(code):>2}  {code.meaning}" for code in ExitCode)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": [*HELP_OPTIONS], "max_content_width": _WIDEST},
    epilog=f"\b\nExit codes:\n{_EXIT_CODES}",
)
@click.version_option(__version__, prog_name="stoker")
def main() -> None:
    """Plan, launch and guard a fine-tuning run inside a Kubeflow TrainJob."""


for _command in (
    run_command,
    plan_command,
    validate_command,
    estimate_command,
    trainjob_command,
    doctor_command,
    flags_command,
    recipe_group,
    local_command,
    plot_command,
    adapters_group,
    sampler_command,
    fleet_command,
    rl_group,
    slice_group,
    tinker_command,
    fetch_command,
    export_command,
    evaluate_command,
    chat_command,
    board_command,
    *RUNS,
):
    main.add_command(_command)
