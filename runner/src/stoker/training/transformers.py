"""Trainers on transformers' `Trainer` (TRL): callbacks among the defaults that every Trainer starts with."""

from __future__ import annotations

import runpy
import sys

from transformers import trainer

from stoker.callback import GuardCallback, RunCallback
from stoker.training.job import Job, Outcome


def train(job: Job) -> Outcome:
    """Run the trainer's module to its end.

    Raises:
        RunError, StopRequested, and whatever the trainer raises.
    """
    outcome = Outcome()
    following = RunCallback(job.stop_flag, job.orders.fingerprint, outcome, job.pulse, job.on_training)
    # The trainer's script builds its own Trainer; the default callbacks are what every Trainer starts with.
    trainer.DEFAULT_CALLBACKS.extend([GuardCallback(job.guard), following])
    resume = ["--resume_from_checkpoint", str(job.checkpoint)] if job.checkpoint else []
    sys.argv = [job.orders.module, *job.orders.argv, *resume]
    runpy.run_module(job.orders.module, run_name="__main__", alter_sys=True)
    return outcome
