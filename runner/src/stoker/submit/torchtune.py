"""TorchTune as a backend: the Kubeflow SDK's fields, and its arguments word for word.

Follows kubeflow 0.5.0 (kubeflow/trainer/types/types.py; backends/kubernetes/utils.py: get_args_using_torchtune_config);
a test compares the two. The SDK's own enums and dataclasses work too.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar
from urllib.parse import urlparse

from stoker.frameworks.registry import register_backend
from stoker.frameworks.torchtune.admission import COMMAND, model_of
from stoker.submit.base import LLMBackend, count_problems, dropout_problems
from stoker.submit.compat import take_placement
from stoker.submit.initializer import DATASET, Initialized, hub_subpath

_INSTRUCT_DATASET = "torchtune.datasets.instruct_dataset"
_LORA_KEYS = (
    *("apply_lora_to_mlp", "apply_lora_to_output", "lora_rank", "lora_alpha", "lora_dropout"),
    *("quantize_base", "use_dora"),
)


class Loss(Enum):
    """Loss functions."""

    CEWithChunkedOutputLoss = "torchtune.modules.loss.CEWithChunkedOutputLoss"


class DataType(Enum):
    """Data types of the model's weights and the optimizer's state."""

    BF16 = "bf16"
    FP32 = "fp32"


class DataFormat(Enum):
    """File formats of a data set."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"
    TEXT = "text"
    XML = "xml"


@dataclass
class TorchTuneInstructDataset:
    """A data set of instructions and answers.

    Attributes:
        source: file format.
        split: the part to use, e.g. `train[:10%]`.
        train_on_input: train on the instructions too.
        new_system_prompt: text to put before each example.
        column_map: column names for `input` and `output`.
    """

    source: DataFormat | None = None
    split: str | None = None
    train_on_input: bool | None = None
    new_system_prompt: str | None = None
    column_map: dict[str, str] | None = None

    def to_args(self) -> Iterator[str]:
        """Return its overrides."""
        yield f"dataset={_INSTRUCT_DATASET}"
        if self.source:
            yield f"dataset.source={self.source.value}"
        if self.split:
            yield f"dataset.split={self.split}"
        if self.train_on_input is not None:
            yield f"dataset.train_on_input={self.train_on_input}"
        if self.new_system_prompt:
            yield f"dataset.new_system_prompt={self.new_system_prompt}"
        if self.column_map:
            yield f"dataset.column_map={self.column_map}"

    def problems(self) -> Iterator[str]:
        """Yield what is wrong."""
        yield from _choice_problems("source", self.source, DataFormat)


@dataclass
class LoraConfig:
    """An adapter to train instead of the model's own weights (LoRA, QLoRA, DoRA).

    Attributes:
        apply_lora_to_mlp: adapters in the MLPs too.
        apply_lora_to_output: an adapter on the output projection too.
        lora_attn_modules: the layers of attention that get an adapter.
        lora_rank: rank.
        lora_alpha: scale.
        lora_dropout: dropout in the adapter, 0 to 1.
        quantize_base: quantize the base model (QLoRA).
        use_dora: learn magnitude and direction separately.
    """

    apply_lora_to_mlp: bool | None = None
    apply_lora_to_output: bool | None = None
    lora_attn_modules: list[str] = field(default_factory=lambda: ["q_proj", "v_proj", "output_proj"])
    lora_rank: int | None = None
    lora_alpha: int | None = None
    lora_dropout: float | None = None
    quantize_base: bool | None = None
    use_dora: bool | None = None

    def to_args(self) -> Iterator[str]:
        """Return its overrides."""
        for name in _LORA_KEYS:
            value = getattr(self, name)
            if value is not None:
                yield f"model.{name}={value}"
        if self.lora_attn_modules:
            yield f"model.lora_attn_modules=[{','.join(self.lora_attn_modules)}]"

    def problems(self) -> Iterator[str]:
        """Yield what is wrong."""
        yield from count_problems(lora_rank=self.lora_rank, lora_alpha=self.lora_alpha)
        yield from dropout_problems(self.lora_dropout)
        wrong = set(self.lora_attn_modules or ()) - {"q_proj", "k_proj", "v_proj", "output_proj"}
        if wrong:
            yield f"lora_attn_modules names {', '.join(sorted(wrong))}: choose from q_proj, k_proj, v_proj, output_proj"
        if not self.lora_attn_modules:
            yield "lora_attn_modules is empty, so Trainer would train without an adapter: name a layer"


@register_backend("torchtune")
@dataclass
class TorchTuneConfig(LLMBackend):
    """A run of TorchTune. The runtime, named `torchtune-<model>-<size>`, decides model and recipe.

    Attributes:
        dtype: data type of weights and optimizer state.
        batch_size: examples in each process and step.
        epochs: passes over the data.
        loss: loss function.
        peft_config: the adapter to train; None trains the model's own weights.
        dataset_preprocess_config: how to read the data.
    """

    framework: ClassVar[str] = "torchtune"
    command: ClassVar[tuple[str, ...]] = COMMAND

    # In the SDK's order, the two placement fields by the names of the KEP's first text.
    dtype: DataType | None = None
    batch_size: int | None = None
    epochs: int | None = None
    loss: Loss | None = None
    _num_nodes: InitVar[int | None] = None
    peft_config: LoraConfig | None = None
    dataset_preprocess_config: TorchTuneInstructDataset | None = None
    _resources_per_node: InitVar[dict[str, Any] | None] = None

    def __post_init__(self, _num_nodes: int | None, _resources_per_node: dict[str, Any] | None) -> None:
        """Take the placement, if it was given by position or by its older name."""
        take_placement(self, _num_nodes, _resources_per_node)

    def command_on(self, runtime: str) -> tuple[str, ...] | None:
        """Return the command that lets Trainer choose the recipe, if the runtime's name has the model."""
        return self.command if model_of(runtime) else None

    def to_args(self, initializer: Initialized | None = None) -> list[str]:
        """Return the overrides of the recipe's config, as the Kubeflow SDK writes them."""
        words = []
        if self.dtype:
            words.append(f"dtype={self.dtype.value}")
        if self.batch_size:
            words.append(f"batch_size={self.batch_size}")
        if self.epochs:
            words.append(f"epochs={self.epochs}")
        if self.loss:
            words.append(f"loss={self.loss.value}")
        if initializer is not None and initializer.dataset is not None:
            words += _dataset_words(initializer.dataset.storage_uri)
        if self.peft_config:
            words += LoraConfig.to_args(self.peft_config)
        if self.dataset_preprocess_config:
            words += TorchTuneInstructDataset.to_args(self.dataset_preprocess_config)
        return words

    def validate(self) -> None:
        """Check the config.

        Raises:
            ValueError: names every problem.
        """
        problems = []
        try:
            super().validate()
        except ValueError as error:
            problems.append(str(error))
        problems += [*_choice_problems("dtype", self.dtype, DataType), *_choice_problems("loss", self.loss, Loss)]
        problems += count_problems(batch_size=self.batch_size, epochs=self.epochs)
        for name, kind in (("peft_config", LoraConfig), ("dataset_preprocess_config", TorchTuneInstructDataset)):
            value = getattr(self, name)
            if value is None:
                continue
            if all(hasattr(value, item.name) for item in fields(kind)):
                problems += kind.problems(value)
            else:
                problems.append(f"{name} is a {type(value).__name__}: write a {kind.__name__}")
        if problems:
            raise ValueError("\n".join(problems))


def _choice_problems(name: str, value: object, choices: type[Enum]) -> Iterator[str]:
    """Yield a problem if a value is not one of the choices. Another enum with the same values works too."""
    if value is not None and getattr(value, "value", None) not in {item.value for item in choices}:
        yield f"{name} is {value!r}: write one of {', '.join(f'{choices.__name__}.{item.name}' for item in choices)}"


def _dataset_words(storage_uri: str) -> list[str]:
    # Like the SDK, only for data from the Hub; other addresses have another scheme.
    if urlparse(storage_uri).scheme not in ("", "hf"):
        return []
    subpath = hub_subpath(storage_uri) or "."
    key = "data_files" if subpath != "." and "." in subpath else "data_dir"
    return [f"dataset.{key}={posixpath.join(DATASET, subpath)}"]
