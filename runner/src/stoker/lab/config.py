"""How an adapter is trained: one plain dataclass, and the same in the words of PEFT and transformers. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from stoker.lab.errors import refuse
from stoker.lab.fields import are_texts, is_text, is_whole, must_be, number

ALL_LINEAR = "all-linear"
DTYPES = ("auto", "float32", "bfloat16")


@dataclass
class LoRATrainConfig:
    """A LoRA adapter and its training. Wrong values are refused when the object is made.

    Attributes:
        rank: rank of the adapter.
        alpha: its scale: what it adds is multiplied by `alpha / rank`.
        target_modules: last parts of the names of the layers that get an adapter, or `all-linear`.
        dropout: dropout before the adapter, in training only.
        learning_rate: learning rate at its peak.
        batch_size: examples in each process and step.
        gradient_accumulation_steps: steps to sum gradients over before an update.
        num_epochs: passes over the data.
        warmup_ratio: part of all updates in which the learning rate rises.
        max_grad_norm: length to which longer gradients are cut; 0 turns it off.
        output_dir: folder for checkpoints, and for adapters that are saved without a folder.
        max_length: tokens to cut longer rows to. Rows that are longer than the model takes are refused.
        beta: how close DPO keeps to the base model: more is closer.
        seed: seed of the adapter's first weights and of the order of rows.
        dtype: type of the base model's weights: `float32`, `bfloat16`, or `auto`, which is bfloat16 on GPUs that have
            it and float32 elsewhere. The adapter is always float32.
        logging_steps: updates between two entries of a training's history.
    """

    rank: int = 8
    alpha: int = 16
    target_modules: list[str] | str = field(default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj"])
    dropout: float = 0.0
    learning_rate: float = 2e-4
    batch_size: int = 4
    gradient_accumulation_steps: int = 4
    num_epochs: int = 3
    warmup_ratio: float = 0.1
    max_grad_norm: float = 1.0
    output_dir: str = "./lora_output"
    _: KW_ONLY
    max_length: int = 2048
    beta: float = 0.1
    seed: int = 42
    dtype: str = "auto"
    logging_steps: int = 10

    def __post_init__(self) -> None:
        """Check the values."""
        self.validate()

    @property
    def scaling(self) -> float:
        """What the adapter's output is multiplied by."""
        return self.alpha / self.rank

    def validate(self) -> None:
        """Check the values again, after a change of one.

        Raises:
            LabError: names every field that is wrong.
        """
        refuse(self._problems())

    def lora_arguments(self) -> dict[str, Any]:
        """Return the arguments of `peft.LoraConfig`."""
        targets = self.target_modules
        return {
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": self.dropout,
            "target_modules": targets if isinstance(targets, str) else list(targets),
            "task_type": "CAUSAL_LM",
        }

    def training_arguments(self) -> dict[str, Any]:
        """Return the arguments that `trl.SFTConfig` and `trl.DPOConfig` share.

        A ratio of warm-up steps is `warmup_steps` below 1: transformers 5 has no `warmup_ratio`.
        """
        return {
            "output_dir": self.output_dir,
            "learning_rate": self.learning_rate,
            "per_device_train_batch_size": self.batch_size,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "num_train_epochs": self.num_epochs,
            "warmup_steps": self.warmup_ratio,
            "max_grad_norm": self.max_grad_norm,
            "max_length": self.max_length,
            "seed": self.seed,
            "logging_steps": self.logging_steps,
        }

    def _problems(self) -> Iterator[str]:
        whole = (
            "rank",
            "alpha",
            "batch_size",
            "gradient_accumulation_steps",
            "num_epochs",
            "max_length",
            "logging_steps",
        )
        yield from (must_be(self, name, "a whole number, 1 or more") for name in whole if not is_whole(self, name, 1))
        if not is_whole(self, "seed", 0):
            yield must_be(self, "seed", "a whole number, 0 or more")
        for name in ("dropout", "warmup_ratio"):
            if not 0 <= number(self, name) < 1:
                yield must_be(self, name, "a number, 0 or more and less than 1")
        for name in ("learning_rate", "beta"):
            if not 0 < number(self, name) < math.inf:
                yield must_be(self, name, "a number more than 0")
        if not 0 <= number(self, "max_grad_norm") < math.inf:
            yield must_be(self, "max_grad_norm", "a number, 0 or more; 0 cuts no gradient")
        if not is_text(self.output_dir):
            yield must_be(self, "output_dir", "the path of a folder, as text")
        if self.dtype not in DTYPES:
            yield must_be(self, "dtype", f"one of {', '.join(DTYPES)}: gradients need one of these, fp8 has none")
        if self.target_modules != ALL_LINEAR and not are_texts(self.target_modules):
            yield must_be(self, "target_modules", f'a list of names such as ["q_proj", "v_proj"], or "{ALL_LINEAR}"')
