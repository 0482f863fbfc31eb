"""Runs TRL's scripts, with Stoker's callbacks added to the defaults of transformers' `Trainer`."""

from __future__ import annotations

import runpy
import sys
from typing import Any

import numpy as np
from transformers import Trainer, TrainingArguments, trainer
from trl import TrlParser

from stoker.contract.exits import ExitCode
from stoker.frameworks.trl.callback import GuardCallback, RunCallback
from stoker.frameworks.trl.configuration import REFUSALS, build, refusal
from stoker.frameworks.trl.dataset_formats import FLAG
from stoker.frameworks.trl.known_words import VARLEN
from stoker.frameworks.trl.lists import read_lists
from stoker.frameworks.trl.sharded import prepare_sharding
from stoker.plan.arguments import is_true
from stoker.plan.plan import Plan
from stoker.rank.endings import ending_of
from stoker.rank.job import Job, Outcome

# The packages whose classes refuse what they are configured with.
_CONFIGURED = ("accelerate", "peft", "transformers", "trl")
# The functions of these packages that look at what they are given, and raise if they do not like it.
_CONSTRUCTORS = (
    *("__init__", "__post_init__", "create_accelerator_and_postprocess", "get_reporting_integration_callbacks"),
    *("get_correct_attn_implementation", "_flash_attn_can_dispatch", "_flex_attn_can_dispatch", "_sdpa_can_dispatch"),
    *("from_pretrained", "validate_environment", "_prepare_dataset", "inject_adapter"),
)
# The modules of these packages whose functions all do so.
_CONSTRUCTING = ("transformers.optimization", "transformers.trainer_optimizer")


def check(plan: Plan) -> None:
    """Refuse what TRL's configuration classes refuse, before this rank waits for another.

    Raises:
        RunError: TRL refuses the arguments (64), or this image or machine lacks what they need (78).
    """
    build(plan.module, plan.trainer_argv, plan.world.size)


def train(job: Job) -> Outcome:
    """Run the trainer's module to its end.

    Raises:
        RunError, StopRequested, and any exception of the trainer.
    """
    outcome = Outcome()
    began = []

    def on_training() -> None:
        began.append(True)
        job.on_training()

    callback = RunCallback(job.stop_flag, job.plan.record, outcome, job.pulse, on_training)
    # The script builds its Trainer itself, but every Trainer starts with the default callbacks.
    trainer.DEFAULT_CALLBACKS.extend([GuardCallback(job.guard), callback])
    _skip_steps_after_the_last()
    _take_lists()
    _convert_data(job.plan)
    # The script splits a mixture by numpy's state before the Trainer seeds it: all ranks and attempts must split alike.
    np.random.seed(_seed(job.plan))
    if any(setting.name == "fsdp" for setting in job.plan.settings):
        prepare_sharding()
    if any(VARLEN in str(setting.value) for setting in job.plan.settings):
        from stoker.frameworks.trl.varlen import register_varlen_attention

        register_varlen_attention()
    switched_on = {setting.name for setting in job.plan.settings if is_true(setting.value)}
    if "use_peft" in switched_on and "use_dora" not in switched_on:
        from stoker.frameworks.trl.lora_layers import leave_inputs_to_autocast, scale_small

        leave_inputs_to_autocast()
        scale_small()
    resume = ["--resume_from_checkpoint", str(job.checkpoint)] if job.checkpoint else []
    sys.argv = [job.plan.module, *job.plan.trainer_argv, *resume]
    try:
        runpy.run_module(job.plan.module, run_name="__main__", alter_sys=True)
    except REFUSALS as error:
        if not began and _is_refusal(error) and ending_of(error, job.plan.flag_names).code is ExitCode.CRASHED:
            raise refusal(error) from error
        raise
    return outcome


def _convert_data(plan: Plan) -> None:
    """Have the script read the data set in the format that the plan names, if it names one."""
    settings = {setting.name: str(setting.value) for setting in plan.settings}
    if FLAG in settings:
        from stoker.frameworks.trl.dataset_conversion import convert_loaded

        splits = {settings.get("dataset_train_split", "train")}
        if settings.get("eval_strategy", "no") != "no":
            splits.add(settings.get("dataset_test_split", "test"))
        dataset, config = settings.get("dataset_name", ""), settings.get("dataset_config")
        convert_loaded(settings[FLAG], plan.method, dataset, config, splits)


def _seed(plan: Plan) -> int:
    """Return the seed of a run: its own, or else the Trainer's."""
    settings = {setting.name: str(setting.value) for setting in plan.settings}
    return int(settings.get("seed", TrainingArguments.seed))


def _is_refusal(error: BaseException) -> bool:
    """Return whether a trainer did not like what it was made of: a constructor of these packages raised it itself."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is None or isinstance(error, OSError):
        return False
    frame = innermost.tb_frame
    module = str(frame.f_globals.get("__name__", ""))
    is_constructor = module.partition(".")[0] in _CONFIGURED and frame.f_code.co_name in _CONSTRUCTORS
    return is_constructor or module in _CONSTRUCTING


def _take_lists() -> None:
    """Have the script's own parser read lists."""
    parse = TrlParser.parse_args_and_config

    def parse_lists(self: TrlParser, *args: Any, **options: Any) -> Any:
        read_lists(self)
        return parse(self, *args, **options)

    TrlParser.parse_args_and_config = parse_lists


def _skip_steps_after_the_last() -> None:
    """Stop a run that resumes from a checkpoint of its last step from doing another one.

    transformers 5 checks only after a step whether all steps are done.
    """
    run_epoch = Trainer._run_epoch

    def run_remaining(self: Trainer, *args: Any, **options: Any) -> None:
        if self.state.global_step < self.state.max_steps:
            run_epoch(self, *args, **options)
        else:
            self.control.should_training_stop = True

    Trainer._run_epoch = run_remaining
