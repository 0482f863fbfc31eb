"""Runs TRL's scripts, with Stoker's callbacks added to the defaults of transformers' `Trainer`."""

from __future__ import annotations

import runpy
import sys
from typing import Any

from transformers import Trainer, trainer

from stoker.frameworks.trl.callback import GuardCallback, RunCallback
from stoker.frameworks.trl.dataset_formats import FLAG
from stoker.frameworks.trl.sharded import prepare_sharding
from stoker.plan.plan import Plan
from stoker.rank.job import Job, Outcome


def train(job: Job) -> Outcome:
    """Run the trainer's module to its end.

    Raises:
        RunError, StopRequested, and any exception of the trainer.
    """
    outcome = Outcome()
    callback = RunCallback(job.stop_flag, job.plan.fingerprint, outcome, job.pulse, job.on_training)
    # The script builds its Trainer itself, but every Trainer starts with the default callbacks.
    trainer.DEFAULT_CALLBACKS.extend([GuardCallback(job.guard), callback])
    _skip_steps_after_the_last()
    _convert_data(job.plan)
    prepare_sharding()
    resume = ["--resume_from_checkpoint", str(job.checkpoint)] if job.checkpoint else []
    sys.argv = [job.plan.module, *job.plan.trainer_argv, *resume]
    runpy.run_module(job.plan.module, run_name="__main__", alter_sys=True)
    return outcome


def _convert_data(plan: Plan) -> None:
    """Have the script read the data set in the format that the plan names, if it names one."""
    settings = {setting.name: str(setting.value) for setting in plan.settings}
    if FLAG in settings:
        from stoker.frameworks.trl.dataset_conversion import convert_loaded

        splits = {settings.get("dataset_train_split", "train")}
        if settings.get("eval_strategy", "no") != "no":
            splits.add(settings.get("dataset_test_split", "test"))
        convert_loaded(settings[FLAG], plan.method, splits)


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
