"""Trainers on transformers' `Trainer` (TRL): callbacks among the defaults that every Trainer starts with."""

from __future__ import annotations

import runpy
import sys
from typing import Any

from transformers import Trainer, trainer

from stoker.frameworks.trl.callback import GuardCallback, RunCallback
from stoker.rank.job import Job, Outcome


def train(job: Job) -> Outcome:
    """Run the trainer's module to its end.

    Raises:
        RunError, StopRequested, and whatever the trainer raises.
    """
    outcome = Outcome()
    following = RunCallback(job.stop_flag, job.plan.fingerprint, outcome, job.pulse, job.on_training)
    # The trainer's script builds its own Trainer; the default callbacks are what every Trainer starts with.
    trainer.DEFAULT_CALLBACKS.extend([GuardCallback(job.guard), following])
    _do_no_step_too_many()
    resume = ["--resume_from_checkpoint", str(job.checkpoint)] if job.checkpoint else []
    sys.argv = [job.plan.module, *job.plan.trainer_argv, *resume]
    runpy.run_module(job.plan.module, run_name="__main__", alter_sys=True)
    return outcome


def _do_no_step_too_many() -> None:
    """Have a run that goes on from a checkpoint of its last step do no more steps.

    transformers 5 asks whether all steps are done only after a step, so it would do one more.
    """
    run_epoch = Trainer._run_epoch

    def run_what_is_left(self: Trainer, *args: Any, **options: Any) -> None:
        if self.state.global_step < self.state.max_steps:
            run_epoch(self, *args, **options)
        else:
            self.control.should_training_stop = True

    Trainer._run_epoch = run_what_is_left
