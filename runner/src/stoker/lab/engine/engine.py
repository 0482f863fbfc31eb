"""Train a model and ask it, with one copy of its weights."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol

import torch
from torch import nn

from stoker.contract.exits import ExitCode
from stoker.lab.config import LoRATrainConfig
from stoker.lab.engine.sampling import AnswerSampling
from stoker.lab.errors import LabError, closed, refuse
from stoker.lab.generation import Completion, Prompt, checked_prompts
from stoker.lab.lora import files
from stoker.lab.lora.injector import LoRAInjector
from stoker.lab.lora.layers import TrainableLoRALinear
from stoker.lab.machine import (
    ModelFacts,
    bfloat16_problems,
    dtype_of,
    is_main_rank,
    model_facts,
    quantization_problems,
)
from stoker.lab.rows import some

IGNORED = -100  # a label that is not learned
# What an engine holds until it is closed.
_HELD = ("_backend", "model", "optimizer", "tokenizer", "injector")
Batch = Mapping[str, torch.Tensor]
Loss = Callable[[Any, Batch], torch.Tensor]


class EngineBackend(Protocol):
    """What generates, and the model that trains."""

    model: Any
    tokenizer: Any
    injector: LoRAInjector

    def generate(
        self, prompts: Sequence[Prompt], tokens: Sequence[list[int]], sampling: AnswerSampling
    ) -> list[Completion]:
        """Answer each prompt once."""

    def gradient_norm(self) -> torch.Tensor:
        """Return the length of all gradients, once all ranks agree on them."""

    def whole_layers(self) -> dict[str, TrainableLoRALinear]:
        """Return the adapters, as they would be on one rank."""

    def take(self, whole: Mapping[str, TrainableLoRALinear]) -> None:
        """Use the values of what `whole_layers` returned."""

    def weights_changed(self) -> None:
        """Forget what was computed with other weights."""

    def close(self) -> None:
        """End what runs."""


class TrainableEngine:
    """Trains an adapter and generates with it at once: no copy of the weights, no files, no second load.

    Args:
        model_name: name or path of the base model.
        train_config: the adapter, its learning rate and the longest gradient.
        backend: what generates: `vllm`, or `transformers` by continuous batching.
        arguments: of `vllm.LLM`, or of `AutoModelForCausalLM.from_pretrained`.

    Attributes:
        model: the model that trains, of transformers.
        optimizer: changes its adapters.
        tokenizer: the model's.
        injector: knows the adapters; `injector.disabled()` makes the base model of it.
        positions: the longest sequence that the model takes; None if that is not known.

    Raises:
        LabError: the model cannot train in an engine; says what to do instead.
    """

    def __init__(
        self,
        model_name: str,
        train_config: LoRATrainConfig,
        backend: Literal["vllm", "transformers"] = "vllm",
        **arguments: Any,
    ) -> None:
        self._closed = False
        train_config.validate()
        facts = model_facts(model_name)
        refuse(_problems(facts, backend, arguments))
        self.model_name = model_name
        self.config = train_config
        # vLLM's own "auto" is the files' type, which this machine may have no kernels to train in.
        asked = {name: value for name, value in arguments.items() if (name, value) != ("dtype", "auto")}
        self._backend: EngineBackend
        self._backend = _backend(backend)(model_name, train_config, dtype_of(train_config), asked)
        self.model = self._backend.model
        self.tokenizer = self._backend.tokenizer
        self.injector = self._backend.injector
        self.positions = getattr(self.model.config, "max_position_embeddings", facts.positions)
        self.optimizer = torch.optim.AdamW(
            self.injector.get_trainable_params(), lr=train_config.learning_rate, weight_decay=0.0
        )

    def __getattr__(self, name: str) -> Any:
        """Refuse what a closed engine has no more.

        Raises:
            LabError: the engine is closed.
            AttributeError: no engine has this.
        """
        if name in _HELD and self._closed:
            raise closed("engine", again="load_lora(FOLDER)")
        raise AttributeError(f"{type(self).__name__} has no {name}")

    @property
    def llm(self) -> Any:
        """The `vllm.LLM` that generates.

        Raises:
            LabError: another backend generates.
        """
        llm = getattr(self._backend, "llm", None)
        if llm is None:
            raise LabError('TrainableEngine: this engine has no vLLM: write backend="vllm"')
        return llm

    def train_step(self, batch: Batch | Sequence[Batch], loss: Loss | None = None) -> dict[str, float]:
        """Change the adapter once. What is generated next is generated with the change.

        Args:
            batch: `input_ids`, `labels` (-100 where there is nothing to learn) and `attention_mask`; or several such
                batches, whose gradients are summed up as if they were one.
            loss: takes the model and a batch, and returns what to make smaller; without it, the mean negative
                log-likelihood of all labels of this step.

        Returns:
            `loss`; `grad_norm`, before it was cut.

        Raises:
            LabError: a column is missing, rows are too long, there is nothing to learn, or the loss is not a number.
        """
        batches = [batch] if isinstance(batch, Mapping) else list(batch)
        refuse(self._wrong(batches, ("input_ids",) if loss else ("input_ids", "labels")), ExitCode.BAD_DATA)
        labels = 0 if loss else sum(int((one["labels"][..., 1:] != IGNORED).sum()) for one in batches)
        if not batches or (not loss and not labels):
            raise LabError(f"train_step: the batch has no label to learn: give one that is not {IGNORED}")
        self.model.train()
        self.optimizer.zero_grad()  # an interrupted step leaves gradients
        total = 0.0
        for one in batches:
            part = loss(self.model, one) / len(batches) if loss else self._likelihood(one, labels)
            part.backward()
            total += part.item()
        parameters = self.injector.get_trainable_params()
        norm = self._backend.gradient_norm()
        if self.config.max_grad_norm:
            nn.utils.clip_grads_with_norm_(parameters, self.config.max_grad_norm, norm)
        if not torch.isfinite(norm):
            self.optimizer.zero_grad()
            raise LabError(
                f"train_step: the loss is {total} and the gradient {norm}: lower learning_rate, or look for rows that "
                "are not text. The adapter is as it was before this step"
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._backend.weights_changed()
        return {"loss": total, "grad_norm": norm.item()}

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        max_tokens: int = 16,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int | None = None,
        adapter: bool = True,
        **others: Any,
    ) -> list[Completion]:
        """Answer each prompt once, with the adapter as it is now.

        Args:
            prompts: texts, or lists of tokens.
            max_tokens: tokens that an answer may have.
            temperature: 0 takes the most likely token.
            top_p: probability that the tokens to choose from have together.
            top_k: tokens to choose from; 0 is all.
            seed: makes answers repeat.
            adapter: False asks the base model.
            others: refused; vLLM's `SamplingParams` has more than both backends do.

        Returns:
            The answers, in the order of the prompts.

        Raises:
            LabError: an argument is wrong or unknown, or a prompt is too long.
        """
        refuse(_unknown(others))
        asked = checked_prompts(prompts)
        sampling = AnswerSampling(max_tokens, temperature, top_p, top_k, seed)
        tokens = [self.tokenizer(prompt).input_ids if isinstance(prompt, str) else list(prompt) for prompt in asked]
        refuse(self._too_long(tokens, max_tokens), ExitCode.BAD_DATA)
        self.model.eval()
        if adapter:
            return self._backend.generate(asked, tokens, sampling)
        self._backend.weights_changed()
        try:
            with self.injector.disabled():
                return self._backend.generate(asked, tokens, sampling)
        finally:
            self._backend.weights_changed()

    def save_lora(self, path: str | Path) -> None:
        """Write the adapter as PEFT does, for PEFT and vLLM. All ranks call it, the first writes."""
        layers = self._backend.whole_layers()
        if is_main_rank():
            files.write(path, layers, self.config, self.model_name)
        if torch.distributed.is_initialized():
            torch.distributed.barrier()  # when one returns, all may read

    def load_lora(self, path: str | Path) -> None:
        """Read an adapter that PEFT or `save_lora` wrote.

        Raises:
            LabError: the files are missing, or belong to another model or config.
        """
        layers = self._backend.whole_layers()
        files.read(path, layers, self.model_name)
        self._backend.take(layers)
        self._backend.weights_changed()

    def close(self) -> None:
        """Forget the model, end the engine and give their memory back. A closed engine refuses what is asked of it."""
        if not self._closed:
            self._closed = True
            self._backend.close()
            for name in _HELD:
                delattr(self, name)

    def __enter__(self) -> TrainableEngine:
        """Return the engine, to be closed at the end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the engine."""
        self.close()

    def _wrong(self, batches: Sequence[Batch], needed: Sequence[str]) -> Iterator[str]:
        for one in batches:
            missing = [name for name in needed if name not in one]
            if missing:
                has = ", ".join(one) or "nothing"
                yield f"train_step: the batch has {has}, but needs {', '.join(needed)}: add {', '.join(missing)}"
            elif odd := [name for name in needed if not _has_rows(one[name])]:
                yield (
                    f"train_step: {', '.join(odd)} must be tensors with a row for each example: let CausalLMCollator "
                    "make the batch, or write torch.tensor([token ids])"
                )
            elif self.positions is not None and (length := one["input_ids"].shape[-1]) > self.positions:
                yield (
                    f"train_step: the batch has rows of {length} tokens, but the model takes {self.positions}: shorten "
                    "them"
                )

    def _too_long(self, tokens: Sequence[Sequence[int]], room: int) -> Iterator[str]:
        if self.positions is not None:
            long = [f"prompt {at} has {len(ids)}" for at, ids in enumerate(tokens) if len(ids) + room > self.positions]
            if long:
                yield (
                    f"generate: {some(long)} tokens, but the model takes {self.positions}, of which max_tokens={room} "
                    "are for the answer: shorten the prompts, or lower max_tokens"
                )

    def _likelihood(self, batch: Batch, labels: int) -> torch.Tensor:
        inputs = {name: tensor.to(self.model.device) for name, tensor in batch.items()}
        loss: torch.Tensor = self.model(**inputs, num_items_in_batch=labels, use_cache=False).loss
        return loss


def _has_rows(column: object) -> bool:
    return isinstance(column, torch.Tensor) and column.dim() == 2


def _unknown(arguments: Iterable[str]) -> Iterator[str]:
    known = ", ".join([*(field.name for field in fields(AnswerSampling)), "adapter"])
    for name in arguments:
        yield f"generate: an engine that trains does not know {name}: leave it out, or write one of {known}"


def _problems(facts: ModelFacts, backend: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Say what can be said before the model is loaded."""
    if backend not in ("vllm", "transformers"):
        yield f'TrainableEngine: backend is {backend!r}: it must be "vllm" or "transformers"'
        return
    if backend == "vllm" and importlib.util.find_spec("vllm") is None:
        yield 'TrainableEngine: vLLM is not installed here: write backend="transformers", which needs no vLLM'
    yield from (
        f"TrainableEngine: {name} is the engine's own: leave it out"
        for name in (
            "load_format",
            "model_loader_extra_config",
            "enforce_eager",
            "logprobs_mode",
            "enable_lora",
            "distributed_executor_backend",
        )
        if backend == "vllm" and name in arguments
    )
    ranks = arguments.get("tensor_parallel_size", 1)
    if ranks != 1 and (backend != "vllm" or os.environ.get("WORLD_SIZE") != str(ranks)):
        yield (
            f"TrainableEngine: tensor_parallel_size is {ranks}: start as many processes of one script, torchrun "
            f'--nproc-per-node {ranks} SCRIPT, with backend="vllm"'
        )
    yield from (
        f"TrainableEngine: {name} is {arguments[name]}, which an engine that trains cannot be: leave it out, or write "
        "tensor_parallel_size"
        for name in ("pipeline_parallel_size", "data_parallel_size")
        if arguments.get(name, 1) != 1
    )
    dtype = str(arguments.get("dtype", "")).removeprefix("torch.")
    if dtype == "bfloat16":
        yield from bfloat16_problems("TrainableEngine")
    eight_bits = dtype if dtype.startswith(("float8", "fp8", "int8", "uint8")) else ""
    quantized = arguments.get("quantization") or arguments.get("quantization_config") or eight_bits
    if not quantized:
        from transformers import AutoConfig

        known = {name: arguments[name] for name in ("revision", "trust_remote_code") if name in arguments}
        try:
            quantized = getattr(AutoConfig.from_pretrained(facts.name, **known), "quantization_config", None)
        except (OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            yield f"TrainableEngine: {facts.name} is not a model ({reason}): write its folder, or its id on the Hub"
    yield from (f"TrainableEngine: {line}" for line in quantization_problems(facts.name, quantized))


def _backend(name: str) -> Callable[[str, LoRATrainConfig, str, dict[str, Any]], EngineBackend]:
    if name == "vllm":
        from stoker.lab.engine.vllm_backend import VllmBackend

        return VllmBackend
    from stoker.lab.engine.transformers_backend import TransformersBackend

    return TransformersBackend
