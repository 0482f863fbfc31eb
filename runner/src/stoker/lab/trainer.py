"""Trains an adapter with TRL and PEFT, and asks vLLM for answers with it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode
from stoker.lab.config import LoRATrainConfig
from stoker.lab.errors import LabError, closed, refuse
from stoker.lab.generation import AdapterEngine, Prompt
from stoker.lab.machine import (
    check_adapter,
    dtype_of,
    loading,
    model_facts,
    need_training,
    positions_of,
    quantization_problems,
)
from stoker.lab.rows import Row, RowKind, as_rows, is_conversation, kind_of, with_equal_columns

# How many rows that are too long one message names.
_SHOWN = 3
# The adapter that DPO compares with, as TRL names it.
_REFERENCE = "ref"
# The method of what changed an adapter and did not come to its end.
_UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training did.

    Attributes:
        method: `sft`, `dpo` or `ppo`; `unfinished` if it was interrupted.
        steps: updates; with `ppo`, each has several.
        loss: mean loss over all of them.
        seconds: how long it took.
        world_size: processes that trained together.
        history: what the trainer logged: one mapping for each time.
    """

    method: str
    steps: int
    loss: float
    seconds: float
    world_size: int
    history: tuple[Mapping[str, float], ...]

    @staticmethod
    def unfinished(steps: int, seconds: float) -> Trained:
        """Return what a training did that changed the adapter, and did not come to its end.

        Args:
            steps: updates before its end.
            seconds: how long it took.
        """
        return Trained(_UNFINISHED, steps, float("nan"), seconds, 1, ())

    def followed_by(self, other: Trained) -> Trained | None:
        """Return both as one: steps of a loop that were each told alone; None if they are two trainings."""
        if not self.method == other.method == _UNFINISHED:
            return None
        return Trained.unfinished(self.steps + other.steps, self.seconds + other.seconds)


class LoRATrainer:
    """Trains with TRL and PEFT, generates with vLLM. Nothing is loaded before it is needed.

    Args:
        model_name: the base model's folder or Hub id.
        train_config: the adapter and its training.
        adapter: folder of an adapter to go on from; a new one by default.
        engine: further arguments of `vllm.LLM`.
        share_weights: train on the weights of vLLM's engine, not on a copy of them; needs vLLM to train.

    Attributes:
        interrupted: what the last training did, if it changed the adapter and did not come to its end.

    Raises:
        LabError: the folder has no model, or a quantized one to share; the adapter is for another one, or its rank is
            not the config's.
    """

    def __init__(
        self,
        model_name: str,
        train_config: LoRATrainConfig,
        *,
        adapter: str | Path | None = None,
        engine: Mapping[str, Any] | None = None,
        share_weights: bool = False,
    ) -> None:
        train_config.validate()
        self.model_name = model_name
        self.config = train_config
        self._facts = model_facts(model_name)
        self._positions = self._facts.positions
        self._adapter = None if adapter is None else Path(adapter)
        if self._adapter is not None:
            check_adapter(self._adapter, self._facts, train_config.rank)
        self._hf_model: Any = None
        self.interrupted: Trained | None = None
        self._closed = False
        self._tokenizer: Any = None
        self._shares = share_weights
        self._vllm = AdapterEngine(model_name, train_config, engine, shares=share_weights)

    @property
    def positions(self) -> int | None:
        """The longest sequence that the model takes; None if it is not known."""
        if self._positions is None:
            self._positions = positions_of(self._facts)
        return self._positions

    @property
    def model(self) -> Any:
        """The model with its adapter, as PEFT has it."""
        self.setup_training()
        return self._hf_model

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer.

        Raises:
            LabError: a package, or the tokenizer, is missing.
        """
        if self._tokenizer is None:
            need_training()
            from transformers import AutoTokenizer

            with loading(self.model_name):
                self._tokenizer = AutoTokenizer.from_pretrained(self.model_name)
        return self._tokenizer

    def setup_training(self) -> None:
        """Load the model and give it an adapter, unless that was done before.

        Raises:
            LabError: a package or the model is missing, this machine cannot compute in the type, the model has weights
                in fp8 or lacks target modules, the adapter is for another one, or the trainer is closed.
        """
        self._refuse_closed()
        if self._hf_model is not None:
            return
        need_training()
        self.config.validate()
        name = dtype_of(self.config)
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoConfig, AutoModelForCausalLM, set_seed

        with loading(self.model_name):
            described = AutoConfig.from_pretrained(self.model_name)
        quantization = getattr(described, "quantization_config", None)
        refuse(quantization_problems(self.model_name, quantization, "fp8"))
        base: Any = self._vllm.model_of_views() if self._shares else None
        # As TRL does it: the adapter's first weights are random.
        set_seed(self.config.seed)
        if base is None:
            with loading(self.model_name):
                base = AutoModelForCausalLM.from_pretrained(self.model_name, dtype=getattr(torch, name))
        if self._adapter is not None:
            self._hf_model = self._with_adapter(base, self._adapter)
            return
        try:
            self._hf_model = get_peft_model(base, LoraConfig(**self.config.lora_arguments()))
        except ValueError as error:  # PEFT found no module of these names
            raise LabError(
                f"LoRATrainConfig: target_modules is {self.config.target_modules!r}, and {self.model_name} cannot "
                f"have an adapter there: write names of its layers, or 'all-linear' ({error})"
            ) from error

    def train(self, dataset: Any) -> Trained:
        """Train the adapter on rows; a second call goes on from the first one's.

        Rows of preferences train with DPO against the adapter as it is now, all others with supervised training. Rows
        that are cut before their first token to learn are left out.

        Args:
            dataset: a list of rows, a Hugging Face data set, a `CausalLMDataset` or a `PreferenceDataset`.

        Raises:
            LabError: the rows are wrong, too long or all left out, or as `setup_training`.
        """
        self.interrupted = None
        need_training()
        from stoker.lab.data import chat_template

        read = self._read(dataset)
        kind: RowKind = read.kind
        self.setup_training()
        with _as_it_was(self._hf_model):
            with chat_template():
                trainer = self._trainer(read)
            refuse_nothing_to_learn(trainer.train_dataset)
            started = time.monotonic()
            try:
                done = trainer.train()
            except BaseException:
                if trainer.state.global_step:
                    self.interrupted = Trained.unfinished(int(trainer.state.global_step), time.monotonic() - started)
                raise
        return Trained(
            kind.method,
            int(done.global_step),
            float(done.training_loss),
            time.monotonic() - started,
            int(trainer.args.world_size),
            tuple(dict(entry) for entry in trainer.state.log_history),
        )

    def save_lora(self, path: str) -> None:
        """Save the adapter as PEFT does, for vLLM, PEFT and `generate`.

        Args:
            path: the folder.
        """
        self.setup_training()
        self._hf_model.save_pretrained(str(path))

    def generate(self, prompts: Sequence[Prompt], lora_path: str | None = None, **kwargs: Any) -> Any:
        """Return vLLM's outputs for prompts.

        Args:
            prompts: texts, or lists of token ids.
            lora_path: folder of the adapter to answer with; the base model answers by default. What is saved there
                anew is read anew.
            kwargs: arguments of `vllm.SamplingParams`.

        Raises:
            LabError: vLLM is missing, the adapter is of another model, an argument or a prompt is refused, or the
                trainer is closed.
        """
        self._refuse_closed()
        return self._vllm.outputs(prompts, None if lora_path is None else Path(lora_path), kwargs)

    def check_request(self, prompts: Sequence[Prompt], sampling: Mapping[str, Any]) -> None:
        """Refuse what `generate` can refuse before anything is loaded.

        Args:
            prompts: as of `generate`.
            sampling: its other arguments.

        Raises:
            LabError: as `generate`.
        """
        self._vllm.parameters(prompts, sampling)

    def close(self) -> None:
        """Forget the model and end the engine."""
        self._closed = True
        self._hf_model = None
        self._vllm.close()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise closed("trainer")

    def _with_adapter(self, base: Any, adapter: Path) -> Any:
        """Return a model with an adapter that was saved before.

        Raises:
            LabError: the adapter is for another model.
        """
        from peft import PeftModel

        # The model may have been downloaded just now.
        check_adapter(adapter, model_facts(self.model_name), self.config.rank)
        try:
            return PeftModel.from_pretrained(base, str(adapter), is_trainable=True)
        except (RuntimeError, ValueError) as error:  # no file of a model tells its shapes but safetensors
            reason = str(error).splitlines()[-1].strip()
            raise LabError(
                f"the adapter {adapter} does not fit {self.model_name} ({reason}): write the folder of one that was "
                "trained on this model",
                ExitCode.BAD_DATA,
            ) from error

    def _read(self, dataset: Any) -> Any:
        """Return a data set as a `CausalLMDataset` or a `PreferenceDataset`."""
        from stoker.lab.data import CausalLMDataset, PreferenceDataset

        if isinstance(dataset, CausalLMDataset | PreferenceDataset):
            made: Any = dataset
        else:
            rows = as_rows(dataset)
            whole = PreferenceDataset if kind_of(rows) is RowKind.PREFERENCE else CausalLMDataset
            made = whole(rows, self.tokenizer, self.config.max_length)
        refuse_long_rows(made, self.positions)
        return made

    def _trainer(self, read: Any) -> Any:
        import torch
        from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

        arguments = {
            **self.config.training_arguments(),
            "max_length": read.max_length,
            "bf16": dtype_of(self.config) == "bfloat16",
            "use_cpu": not torch.cuda.is_available(),
            "save_strategy": "epoch",
            "save_total_limit": 3,
            "report_to": "none",
            "disable_tqdm": True,
            **({} if torch.cuda.is_available() else {"dataloader_pin_memory": False}),
        }
        preference = read.kind is RowKind.PREFERENCE
        args: Any = DPOConfig(**arguments, beta=self.config.beta) if preference else SFTConfig(**arguments)
        # One process trains on one GPU, as Trainer sets it for a model on several: TRL refuses DataParallel.
        args._n_gpu = min(args.n_gpu, 1)
        return (DPOTrainer if preference else SFTTrainer)(
            model=self._hf_model,
            args=args,
            train_dataset=_data_set(read.data, read.kind),
            processing_class=read.tokenizer,
        )


def _data_set(rows: Sequence[Row], kind: RowKind) -> Any:
    """Return rows as a data set of which each is read as it was written.

    Left to itself, a data set gives a message the keys that others have, without values, and reads text as JSON where
    other messages have lists instead.
    """
    from datasets import Dataset, Features, Json, List, Value

    equal = with_equal_columns(rows, kind)

    def feature(name: str, value: object) -> Any:
        if name not in ("prompt", *kind.value):
            return Json()
        return List(Json()) if is_conversation(value) else Value("string")

    return Dataset.from_list(equal, features=Features({name: feature(name, value) for name, value in equal[0].items()}))


def refuse_long_rows(dataset: Any, positions: int | None) -> None:
    """Refuse rows that are longer than the model takes, even if they would be cut: no cut lets it read all of them.

    Args:
        dataset: a `CausalLMDataset` or a `PreferenceDataset`.
        positions: tokens that the model takes; None if it is not known.

    Raises:
        LabError: names the rows, with their lengths.
    """
    if positions is None:
        return
    lengths = [(row, length) for row, length in _lengths(dataset, positions) if length > positions]
    if lengths:
        named = ", ".join(f"row {row} has {length}" for row, length in lengths[:_SHOWN])
        more = f" (and {len(lengths) - _SHOWN} more rows)" if len(lengths) > _SHOWN else ""
        raise LabError(
            f"{named} tokens{more}, but the model takes {positions}: shorten them, or leave them out",
            ExitCode.BAD_DATA,
        )


def refuse_nothing_to_learn(rows: Sized) -> None:
    """Refuse to train if no row is left.

    Args:
        rows: those that were not cut before their first token to learn.

    Raises:
        LabError: there are none.
    """
    if not rows:
        raise LabError("no row has a token to learn after it was cut: raise max_length", ExitCode.BAD_DATA)


def _lengths(dataset: Any, positions: int) -> Iterator[tuple[int, int]]:
    """Yield the numbers and lengths of rows, but for those that are short without being counted in tokens."""
    for index, row in enumerate(dataset.data):
        # A token has one byte or more. The other half is room for what a chat template writes.
        if len(json.dumps(dict(row), default=str)) <= positions // 2:
            continue
        tokens = dataset.tokens(index)
        if dataset.kind is RowKind.PREFERENCE:
            answers = max(len(tokens["chosen_ids"]), len(tokens["rejected_ids"]))
            yield index, len(tokens["prompt_ids"]) + answers
        else:
            yield index, len(tokens[0])


@contextmanager
def _as_it_was(model: Any) -> Iterator[None]:
    """Undo what a trainer hangs on a model to train it: another training, or none, must find it as it was.

    TRL wraps the forward of the base model, and accelerate that of the whole, each time once more.
    """
    wrapped: Iterable[Any] = (model, model.get_base_model())
    try:
        yield
    finally:
        if _REFERENCE in model.peft_config:
            model.delete_adapter(_REFERENCE)
        for module in wrapped:
            vars(module).pop("forward", None)
            vars(module).pop("_original_forward", None)
        model.eval()
