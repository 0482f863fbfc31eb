"""Stoker's callbacks in the training loop: guard, stop flag, checkpoint seals, progress, metrics.

Only training processes import this module, because it imports transformers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.metrics import LOSS, PEAK_MEMORY, TOKENS, TOKENS_PER_SECOND
from stoker.frameworks.trl.sharded import save_whole_model
from stoker.rank import checkpoints
from stoker.rank.guard import achieved_world_size
from stoker.rank.job import Guard, Outcome, StopRequested, any_rank, barrier
from stoker.rank.metrics import MetricsFile, peak_memory_gib
from stoker.rank.progress import Progress
from stoker.rank.pulse import EVALUATING, FINISHING, FIRST_STEP, SAVING, TRAINING, Pulse


class GuardCallback(TrainerCallback):
    """Runs the guard when training starts.

    Args:
        guard: raises if this process must not train.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Check device and world before the first step."""
        self._guard(args.device)


class RunCallback(TrainerCallback):
    """Follows a run: agrees with all ranks on a stop, seals checkpoints, reports progress, records the outcome.

    Args:
        stop_flag: a file that stops all ranks once it exists on any node.
        record: written into each checkpoint's seal.
        outcome: updated during training.
        pulse: shows the runner that this process is alive.
        on_training: called just before the first step.

    Attributes:
        metrics: the file of metrics; None before training, and on all ranks but the first.
    """

    def __init__(
        self,
        stop_flag: Path,
        record: Mapping[str, Mapping[str, Any]],
        outcome: Outcome,
        pulse: Pulse,
        on_training: Callable[[], None],
    ) -> None:
        self._stop_flag = stop_flag
        self._record = record
        self._outcome = outcome
        self._pulse = pulse
        self._on_training = on_training
        self._stopping = False
        self._progress: Progress | None = None
        self.metrics: MetricsFile | None = None
        self._first_step = 0

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Take the token out of the arguments, which transformers writes into each checkpoint and the output."""
        if token := getattr(args, "hub_token", None):
            os.environ["HF_TOKEN"] = token
            args.hub_token = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Record where training starts, and start to report."""
        self._first_step = state.global_step
        self._outcome.step, self._outcome.total = state.global_step, state.max_steps
        for logged in state.log_history:
            # Metrics of earlier attempts count until this attempt has newer ones.
            self._outcome.metrics.update(_finite({name: value for name, value in logged.items() if name != "step"}))
        if state.is_world_process_zero:
            self._progress = Progress(state.global_step, state.max_steps, achieved_world_size())
            self.metrics = MetricsFile(Path(str(args.output_dir)), state.global_step)
        self._pulse.beat(FIRST_STEP, state.global_step)
        self._on_training()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Show that this rank has its data."""
        self._show_step(state)

    def on_substep_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Show that gradient accumulation continues."""
        self._show_step(state)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Show that an evaluation continues."""
        self._pulse.beat(EVALUATING, state.global_step)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Show that an evaluation is over."""
        self._pulse.beat(self._next_phase(control), state.global_step)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Show what follows the epoch: an evaluation, a checkpoint, or the first step of the next epoch."""
        self._log_before_saving(state, control)
        self._pulse.beat(self._next_phase(control), state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Agree with all ranks on a stop; every rank then saves this same step."""
        self._outcome.step = state.global_step
        if any_rank(self._stop_flag.exists(), args.device) and state.global_step < state.max_steps:
            self._stopping = True
            # transformers would evaluate first, but the grace period is for the checkpoint.
            control.should_evaluate, control.should_save = False, True
        self._log_before_saving(state, control)
        self._pulse.beat(self._next_phase(control), state.global_step)
        if self._progress is not None:
            self._progress.step(state.global_step)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Seal the checkpoint after every rank wrote its part; end if the ranks agreed on a stop."""
        barrier()
        if state.is_world_process_zero:
            folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            checkpoints.seal(folder, state.global_step, **self._record)
        if self._stopping:
            barrier()
            self._close()
            raise StopRequested(state.global_step)
        self._pulse.beat(TRAINING, state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Report progress; end the run if the loss is NaN or infinite."""
        numbers = {name: float(value) for name, value in (logs or {}).items() if isinstance(value, int | float)}
        if "train_runtime" in numbers and state.global_step == self._first_step:
            return  # the summary of an attempt without any step left
        self._outcome.metrics.update(_finite(numbers))
        self._write(state, numbers)
        loss = numbers.get(LOSS, 0.0)
        if not math.isfinite(loss):
            raise RunError(
                ExitCode.CRASHED,
                f"the loss is {loss} at step {state.global_step}: lower the learning rate, or look for broken rows in "
                "the data",
            )
        if self._progress is not None:
            # TRL counts the tokens of all ranks; transformers does so if `include_num_input_tokens_seen` is set.
            tokens = numbers.get(TOKENS, state.num_input_tokens_seen or None)
            shown = self._progress.log(state.global_step, numbers, tokens)
            self._outcome.metrics.update(shown)
            if LOSS in numbers and tokens is not None and TOKENS_PER_SECOND in shown:
                self._write(state, {TOKENS_PER_SECOND: shown[TOKENS_PER_SECOND]})

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Record that the loop ended, and whether it did all its steps."""
        self._outcome.step, self._outcome.total = state.global_step, state.max_steps
        self._outcome.finished = state.global_step >= state.max_steps
        self._pulse.beat(FINISHING, state.global_step)
        if self._progress is not None:
            self._progress.step(state.global_step)
        self._close()
        save_whole_model()

    def waits(self, state: TrainerState) -> bool:
        """Show a sign of life while all ranks wait for the same thing; return whether this rank is told to stop."""
        self._show_step(state)
        return self._stop_flag.exists()

    def show(self, state: TrainerState, numbers: Mapping[str, float]) -> None:
        """Report the numbers of a step that is not logged."""
        self._outcome.metrics.update(_finite(numbers))
        if self._progress is not None:
            self._progress.log(state.global_step, _finite(numbers))

    def stop(self, args: TrainingArguments, state: TrainerState, save: Callable[[], None]) -> NoReturn:
        """Leave between two steps, with a checkpoint of the last one. Every rank must call this at the same point.

        Args:
            args: the trainer's arguments.
            state: of the last step.
            save: saves a checkpoint and calls the callbacks.

        Raises:
            StopRequested: always.
        """
        step = state.global_step
        self._stopping, self._outcome.step = True, step
        self.keep(args, state, save)
        self._close()
        raise StopRequested(step, "checkpoint saved" if step else "before the first step")

    def keep(self, args: TrainingArguments, state: TrainerState, save: Callable[[], None]) -> None:
        """Save the last step, unless its checkpoint is there. Every rank must call this at the same point.

        Args:
            args: the trainer's arguments.
            state: of the last step.
            save: saves a checkpoint and calls the callbacks.
        """
        step = state.global_step
        seal = Path(str(args.output_dir)) / f"checkpoint-{step}" / checkpoints.SEAL
        if step and not any_rank(seal.exists(), args.device):
            self._pulse.beat(SAVING, step)
            save()

    def _write(self, state: TrainerState, numbers: Mapping[str, float]) -> None:
        if self.metrics is not None:
            self.metrics.write(state.global_step, {**numbers, PEAK_MEMORY: peak_memory_gib()})

    def _show_step(self, state: TrainerState) -> None:
        self._pulse.beat(FIRST_STEP if state.global_step == self._first_step else TRAINING, state.global_step)

    @staticmethod
    def _log_before_saving(state: TrainerState, control: TrainerControl) -> None:
        """Log the loss before each checkpoint and at the end, so that a run with a NaN loss saves neither.

        transformers logs before it saves. It would never log the steps after the last logging step.
        """
        if control.should_save or state.global_step >= state.max_steps:
            control.should_log = True

    @staticmethod
    def _next_phase(control: TrainerControl) -> str:
        # transformers evaluates first, then saves.
        if control.should_evaluate:
            return EVALUATING
        return SAVING if control.should_save else TRAINING

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None


def _finite(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Return only the finite numbers, because JSON has no NaN and no infinity."""
    return {
        name: float(value) for name, value in numbers.items() if isinstance(value, int | float) and math.isfinite(value)
    }
