"""TRL's GRPO trainer, fed by samplers that write while it trains.

TRL's losses, corrections, evaluation, checkpoints and logs stay TRL's. What differs: rows come from rank 0's rollouts
instead of a generation in the step, rewards come with them, and versions of what is trained are published meanwhile.

Only training processes import this module, because it imports torch and trl.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Sampler
from trl import GRPOTrainer

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.metrics import PEAK_MEMORY
from stoker.contract.words import say
from stoker.frameworks.trl.asynchronous.collector import Collector, Waiting
from stoker.frameworks.trl.asynchronous.config import GRPOAsyncConfig
from stoker.frameworks.trl.asynchronous.guard import IdentityGuard, scorer
from stoker.frameworks.trl.asynchronous.handout import Ranks, StoppedWaitingError
from stoker.frameworks.trl.asynchronous.metrics import RATIO_EDGES, SamplesFile, numbers_of
from stoker.frameworks.trl.asynchronous.probes import PROBES
from stoker.frameworks.trl.asynchronous.prompts import evaluated_by_name
from stoker.frameworks.trl.asynchronous.refusals import BEHAVIOUR, DECOUPLED
from stoker.frameworks.trl.asynchronous.rows import Handout, Row, rows_of, scored, slice_of, trained_and_skipped
from stoker.frameworks.trl.asynchronous.snapshot import Copies, adapter_of
from stoker.frameworks.trl.asynchronous.trim import trimmed
from stoker.frameworks.trl.asynchronous.weights import Plausible, weights_of
from stoker.frameworks.trl.callback import RunCallback
from stoker.rank.metrics import MetricsFile, peak_memory_gib
from stoker.rollouts.records import Written
from stoker.rollouts.schedule import steps_for
from stoker.rollouts.state import RolloutState, read_state

_REWARDS = "stoker_rewards"
# The column with the number of a row to evaluate, because TRL shuffles them.
_NUMBER = "stoker_number"
# A wait is worth a line in the log after so many seconds, and again each time as many have passed.
_SECONDS_BETWEEN_LINES = 30.0
# In the status of the TrainJob: seconds that the trainer waits for samplers by now.
_WAITING, _SECONDS_UNTIL_SHOWN = "rollout/waiting", 5.0
# What ends an attempt and nothing else: samplers, a reward model or a volume have been away for too long.
_PASSING = (ExitCode.STOPPED, ExitCode.UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class RolloutStart:
    """What rank 0 needs to begin its rollouts.

    Attributes:
        settings: the run's settings.
        step: the step it begins at.
        total: the step it ends at.
        state: what the checkpoint kept; None at the first step.
        rows: the data.
        tokenizer: the model's.
        evaluation: data to evaluate, by what messages call it.
    """

    settings: GRPOAsyncConfig
    step: int
    total: int
    state: RolloutState | None
    rows: Sequence[Mapping[str, Any]]
    tokenizer: Any
    evaluation: Mapping[str, Sequence[Mapping[str, Any]]]


class GRPOAsyncTrainer(GRPOTrainer):
    """TRL's trainer, with the rows that samplers write.

    Args:
        args: the settings.
        reward_names: names of the reward functions; they run beside the samplers.
        collect: begins the rollouts; called on rank 0 only, with what shows that it waits.
        train_dataset: the data, with a column `prompt`.
        eval_dataset: data to evaluate; None for none.
        more: as for TRL's trainer: model, tokenizer, PEFT's configuration.

    Raises:
        RunError: the data or the model cannot be trained this way (64, 65).
    """

    control: Any
    _signature_columns: Any

    def __init__(
        self,
        *,
        args: GRPOAsyncConfig,
        reward_names: Sequence[str],
        collect: Callable[[RolloutStart, Waiting], Collector],
        train_dataset: Any,
        eval_dataset: Any = None,
        **more: Any,
    ) -> None:
        if args.max_steps <= 0:
            # Each row once per epoch. TRL leaves out the rows that are too few for a batch.
            args.max_steps = steps_for(len(train_dataset), args.num_train_epochs, args.groups_per_step)
        if args.reward_weights is not None and args.environment_factory:
            # As in TRL: what environments give counts once.
            args.reward_weights = [*args.reward_weights, *[1.0] * (len(reward_names) - len(args.reward_weights))]
        super().__init__(
            args=args,
            train_dataset=train_dataset,
            reward_funcs=[_handed_over(name, index) for index, name in enumerate(reward_names)],
            rollout_func=self._answers,
            eval_dataset=_numbered(eval_dataset),
            **more,
        )
        if self._is_vlm or {"image", "images"} & {*(self.train_dataset.column_names or ())}:
            raise RunError(ExitCode.BAD_DATA, "grpo_async trains on texts, and this run has images: choose grpo")
        # What TRL says of vLLM's answers is true of the samplers': their probabilities come with them.
        self.use_vllm = True
        self.vllm_importance_sampling_correction = args.correction == DECOUPLED
        self._collect = collect
        self._collector: Collector | None = None
        self._ranks = Ranks()
        self._copies: Copies
        self._guard: IdentityGuard
        self._begun = False
        self._published = -1
        self._plausible = Plausible()
        # The sum of the learning rates of the steps with a gradient, in this attempt; and this step's.
        self._way = self._rate = 0.0
        self._state: RolloutState | None = None
        self._rows: Sequence[Row] = ()
        self._prompts: tuple[tuple[int, ...], ...] = ()
        self._weights = [float(weight) for weight in self.reward_weights]
        self._files: tuple[MetricsFile, SamplesFile] | None = None
        self._marks: dict[str, int] = {}
        # Rewards of the rows of an evaluation, by their numbers.
        self._judged: dict[int, list[float]] = {}
        self._noted = -1
        self._lists: dict[str, list[float]] = {}
        device = self.accelerator.device
        self._edges = torch.tensor(RATIO_EDGES, device=device)
        # Tokens by their ratio, and the sum of the ratios.
        self._sums = torch.zeros(len(RATIO_EDGES) + 2, device=device)
        self._loss = torch.zeros((), device=device)
        self._waiting_since = self._said = 0.0

    # Training

    def train(self, resume_from_checkpoint: str | bool | None = None, **more: Any) -> Any:
        """Train to the end, and end the rollouts however it ends."""
        if resume_from_checkpoint:
            folder = Path(str(resume_from_checkpoint))
            self._state = self._ranks.share(lambda _: read_state(folder), lambda _: False)
        try:
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **more)
        finally:
            if self._collector is not None:
                self._collector.stop()

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        return _Counter(len(self.train_dataset), self.args)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        # TRL must not send weights itself.
        self._last_loaded_step = self.state.global_step
        self._begin()
        if not self.model.training:
            return self._evaluated(inputs)
        step = self.state.global_step
        if step - self._published >= self.args.publish_every:
            self._publish()
        if self._copies.adapted:
            self._copies.drop_before(step - self.args.max_staleness - self.args.publish_every)
        handout = self._together(lambda waiting: self._handout(step, waiting))
        self._prompts = tuple(dict.fromkeys(row.prompt_ids for row in handout.rows))[:PROBES]
        self._guard.hear(handout.probed)
        # A sampler with another model may get no reward at all, so that only groups that are skipped show it.
        self._guard.look(step, (*handout.rows, *handout.skipped))
        self._rows = slice_of(handout.rows, self._ranks.rank, self._ranks.size)
        output = super()._generate_and_score_completions([{"prompt": row.prompt} for row in self._rows])
        if self.args.correction == BEHAVIOUR:
            output["old_per_token_logps"] = output["sampling_per_token_logps"]
        self._note(handout)
        return output  # type: ignore[no-any-return]

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        inputs = super()._prepare_inputs(generation_batch)
        return inputs if self.pad_to_multiple_of is not None else trimmed(inputs)

    def _begin(self) -> None:
        """Begin the rollouts, once it is known how many steps there are."""
        if self._begun:
            return
        self._begun = True
        step = self.state.global_step
        # Only now are the weights where they are trained, and shared between ranks if they are.
        model = self.accelerator.unwrap_model(self.model)
        # Of an adapter there is room for every version, of all weights for the one that is watched and one before it.
        self._copies = Copies(model, None if hasattr(model, "peft_config") else 2)
        comparable = not self.args.allow_incomparable_logprobs
        self._guard = IdentityGuard(self.args.guard_every, comparable, self._copies, self._ranks, scorer(self))
        if self._ranks.rank == 0:
            folder = Path(str(self.args.output_dir))
            # What is logged, such as evaluations, goes into the same file.
            written = (callback.metrics for callback in self._callbacks() if callback.metrics is not None)
            self._files = next(written, None) or MetricsFile(folder, step), SamplesFile(folder)

        def collect(waiting: Waiting) -> None:
            start = RolloutStart(
                settings=self.args,
                step=step,
                total=self.state.max_steps,
                state=self._state,
                rows=self.train_dataset,
                tokenizer=self.processing_class,
                evaluation=evaluated_by_name(self.eval_dataset),
            )
            self._collector = self._collect(start, waiting)

        self._together(collect)
        if step or not self._copies.adapted:
            self._publish()
        else:
            # Samplers serve version 0 as the base model itself.
            self._copies.keep(0)
            self._published = 0

        def begin(waiting: Waiting) -> None:
            self._rank0.begin(step, waiting)

        self._together(begin)

    @property
    def _apart(self) -> bool:
        return bool(self.args.multi_objective_aggregation == "normalize_then_sum")

    @property
    def _rank0(self) -> Collector:
        assert self._collector is not None, "only rank 0 collects"
        return self._collector

    def _publish(self) -> None:
        """Give what is trained, as it is now, to the samplers."""
        step = self.state.global_step
        model = self.accelerator.unwrap_model(self.model)
        job: Any
        watched = False
        if self._collector is not None:
            self._collector.make_room()
        if self._copies.adapted:
            self._copies.keep(step)
            job = adapter_of(model)
        else:
            watched = self._guard.wants(step, self.args.max_staleness + self.args.publish_every)
            if watched:
                self._copies.keep(step)
            job = weights_of(model, self._way, self._plausible, keep=self._collector is not None)
        if self._collector is not None:
            self._collector.publish(step, job, needed=watched, prompts=self._prompts if watched else ())
        self._published = step

    def _handout(self, step: int, waiting: Waiting) -> Handout:
        batch = self._rank0.take(step, waiting)
        numbers, lists, reward = numbers_of(batch, self._weights, apart=self._apart)
        trained: Sequence[Written] = batch.groups
        skipped: Sequence[Written] = ()
        if self.args.skip_flat_groups:
            parts = self._ranks.size * self.args.steps_per_generation
            trained, skipped = trained_and_skipped(batch, self._weights, parts, apart=self._apart)
        if self._files is not None:
            self._files[1].write(batch)
        numbers = {**numbers, **self._rank0.figures()}
        return Handout(rows_of(trained), numbers, lists, reward, self._rank0.probed(), rows_of(skipped))

    def _answers(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """Return what the samplers wrote, in the form that TRL expects of a function of its own name."""
        found: dict[str, Any] = {
            "prompt_ids": [list(row.prompt_ids) for row in self._rows],
            "completion_ids": [list(row.completion_ids) for row in self._rows],
            "logprobs": [list(row.logprobs) for row in self._rows],
            _REWARDS: [row.rewards for row in self._rows],
        }
        if any(0 in row.mask for row in self._rows):
            found["env_mask"] = [list(row.mask) for row in self._rows]
        return found

    # Waiting

    def _together(self, produce: Callable[[Waiting], Any]) -> Any:
        """Let rank 0 do something while all ranks wait, and stop if one is told to."""
        self._waiting_since = self._said = time.monotonic()
        try:
            return self._ranks.share(produce, self._attend, self._ended)
        except StoppedWaitingError:
            for callback in self._callbacks():
                callback.stop(self.args, self.state, self._save_now)

    def _ended(self, error: RunError) -> None:
        """Keep this step, which all ranks have completed, if the next attempt can go on from it."""
        if error.code not in _PASSING:
            return
        try:
            for callback in self._callbacks():
                callback.keep(self.args, self.state, self._save_now)
        except Exception as failure:  # noqa: BLE001 - a volume that takes no version may take no checkpoint either
            say(f"step {self.state.global_step} could not be saved: {type(failure).__name__}: {failure}")

    def _attend(self, reason: str) -> bool:
        now = time.monotonic()
        waited = now - self._waiting_since
        if self._ranks.rank == 0 and now - self._said > _SECONDS_BETWEEN_LINES:
            self._said = now
            say(f"step {self.state.global_step}: {reason} (since {waited:.0f} s)")
        if waited > _SECONDS_UNTIL_SHOWN:
            for callback in self._callbacks():
                callback.show(self.state, {_WAITING: waited})
        return any(callback.waits(self.state) for callback in self._callbacks())

    def _callbacks(self) -> list[RunCallback]:
        return [callback for callback in self.callback_handler.callbacks if isinstance(callback, RunCallback)]

    def _save_now(self) -> None:
        self._save_checkpoint(self.model, trial=None)
        self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    # Evaluation

    def _evaluated(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Have the version of this very step answer the rows of all ranks."""
        version = self.state.global_step
        if self._published != version:
            self._publish()
        everybodys = [row for rows in self._ranks.gather(inputs) for row in rows]
        asked = everybodys[:: self.num_generations_eval]
        numbers = [row[_NUMBER] for row in asked]
        columns = [{name: value for name, value in row.items() if name != _NUMBER} for row in asked]
        rows = dict(zip(numbers, columns, strict=True))

        def evaluate(waiting: Waiting) -> dict[int, tuple[Row, ...]]:
            found = self._rank0.evaluate(rows, version, waiting)
            return {number: rows_of([group]) for number, group in zip(rows, found, strict=True)}

        answers = self._together(evaluate)
        everybodys_rows = [row for number in numbers for row in answers[number]]
        self._rows = slice_of(everybodys_rows, self._ranks.rank, self._ranks.size)
        output = super()._generate_and_score_completions([{"prompt": row.prompt} for row in self._rows])
        self._note_evaluated(version, answers)
        return output  # type: ignore[no-any-return]

    def _note_evaluated(self, version: int, answers: Mapping[int, Sequence[Row]]) -> None:
        """Add what is known of a batch to TRL's metrics, of which TRL logs the mean over the batches.

        Ranks fill the last batch with rows of the first one. Here each row counts once.
        """
        metrics = self._metrics["eval"]
        if not metrics["rows"]:  # another evaluation than the one before, which TRL has logged
            self._judged.clear()
        self._judged |= {number: scored(rows, self._weights) for number, rows in answers.items()}
        rewards = [reward for found in self._judged.values() for reward in found]
        metrics["version"].append(float(version))
        metrics["rows"] = [float(len(self._judged))]
        metrics["reward"] = [sum(rewards) / len(rewards) if rewards else math.nan]

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        self._signature_columns = [*{*self._signature_columns, _NUMBER}]

    # Checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self._collector is not None:
            folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
            self._collector.state().write(folder)

    # Metrics

    def _note(self, handout: Handout) -> None:
        """Add what is known of a batch to TRL's metrics."""
        metrics = self._metrics["train"]
        for name, value in handout.numbers.items():
            metrics[name].append(value)
        metrics["guard/error"].append(self._guard.error)
        metrics["guard/noise"].append(self._guard.noise)
        # TRL saw the trained groups alone.
        metrics["reward"][-1] = handout.reward
        self._lists = dict(handout.lists)

    def _get_per_token_logps_and_entropies(self, *args: Any, **more: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **more)
        if more.get("compute_entropy"):
            # Of the loss, which does not give them away.
            self._trained_logps = found[0].detach()
        return found

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        if self.model.training:
            mask = inputs["completion_mask"].bool()
            if inputs.get("tool_mask") is not None:
                mask = mask & inputs["tool_mask"].bool()
            ratio = (self._trained_logps - inputs["sampling_per_token_logps"])[mask].float().exp()
            self._sums[:-1] += torch.bincount(torch.bucketize(ratio, self._edges), minlength=len(RATIO_EDGES) + 1)
            self._sums[-1] += ratio.sum()
        return loss

    def training_step(self, *args: Any, **more: Any) -> torch.Tensor:
        """Train a micro-batch, and remember its loss."""
        self._rate = self._get_learning_rate()
        loss: torch.Tensor = super().training_step(*args, **more)
        self._loss += loss.detach()
        return loss

    def _maybe_log_save_evaluate(self, tr_loss: Any, grad_norm: Any, *args: Any, **more: Any) -> None:
        if self.state.global_step > max(self._noted, 0) and self._begun:
            self._noted = self.state.global_step
            if grad_norm is None or float(grad_norm) > 0:
                self._way += self._rate
            self._write_metrics(grad_norm)
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, **more)
        self._marks = {name: len(values) for name, values in self._metrics["train"].items()}

    def _write_metrics(self, grad_norm: Any) -> None:
        mine = [float(self._loss), *self._sums.tolist()]
        sums = [sum(values) for values in zip(*self._ranks.gather(mine), strict=True)]
        self._loss.zero_()
        self._sums.zero_()
        tokens = sum(sums[1:-1])
        self._metrics["train"]["sampling/ratio/mean"].append(sums[-1] / tokens if tokens else math.nan)
        if self._files is None:
            return
        numbers: dict[str, Any] = {}
        for name, values in self._metrics["train"].items():
            fresh = values[self._marks.get(name, 0) :]
            known = [value for value in fresh if not math.isnan(value)]
            if fresh:
                numbers[name] = sum(known) / len(known) if known else None
        numbers |= {"loss": sums[0] / self._ranks.size, "learning_rate": self._get_learning_rate()}
        if grad_norm is not None:
            numbers["grad_norm"] = float(grad_norm)
        histograms = {**self._lists, "sampling/ratio/histogram": sums[1:-1]}
        memory = {PEAK_MEMORY: peak_memory_gib()}
        self._files[0].write(self.state.global_step, {**numbers, **memory, **histograms})
        shown = {name: value for name, value in numbers.items() if value is not None}
        for callback in self._callbacks():
            callback.show(self.state, {**shown, _WAITING: 0.0})


def _handed_over(name: str, index: int) -> Callable[..., list[float | None]]:
    """Return a reward function under the user's name, which returns what the samplers' side computed."""

    def reward(**columns: Any) -> list[float | None]:
        return [rewards[index] for rewards in columns[_REWARDS]]

    reward.__name__ = name
    return reward


def _numbered(data: Any) -> Any:
    """Return data to evaluate with the numbers of its rows; of each set if there are several."""
    if isinstance(data, Mapping):
        return {name: _numbered(one) for name, one in data.items()}
    return data if data is None else data.add_column(_NUMBER, [*range(len(data))])


class _Counter(Sampler[int]):
    """Counts the steps of an epoch for transformers' loop; the rows themselves come from the rollouts."""

    def __init__(self, rows: int, args: GRPOAsyncConfig) -> None:
        # As many as the schedule takes: the last one goes on with the rows of the next epoch.
        steps = -(-rows // args.groups_per_step)
        self._length: int = steps * args.generation_batch_size * args.steps_per_generation

    def __iter__(self) -> Iterator[int]:
        return itertools.repeat(0, self._length)

    def __len__(self) -> int:
        return self._length
