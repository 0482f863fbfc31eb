"""Users' files with classes as KEP-2839's first two texts print them: every name, field, default, decorator and flag.

The texts are those of kubeflow/trainer#3263, the first as it was drafted, the second as its redesign describes it. Only
what is inside the methods is written here. A user's file changes the imports and nothing else.
"""

# After the first text: `LLMBackend`, its registry, `TorchTuneConfig` and `TRLConfig`.
FIRST_TEXT = """
from dataclasses import dataclass, field
from enum import Enum

from stoker.backends import DataType, LLMBackend, LoraConfig, Loss, TorchTuneInstructDataset, register_backend


def _get_args_from_peft_config(peft_config: LoraConfig) -> list[str]:
    return [*peft_config.to_args()]


def _get_args_from_dataset_preprocess_config(config: TorchTuneInstructDataset) -> list[str]:
    return [*config.to_args()]


@register_backend("torchtune")
@dataclass
class TorchTuneConfig(LLMBackend):
    dtype: DataType | None = None
    batch_size: int | None = None
    epochs: int | None = None
    loss: Loss | None = None
    _num_nodes: int | None = field(default=None, repr=True)
    peft_config: LoraConfig | None = None
    dataset_preprocess_config: TorchTuneInstructDataset | None = None
    _resources_per_node: dict | None = field(default=None, repr=True)

    def to_command(self) -> tuple[str, ...]:
        return ("tune", "run")

    def to_args(self) -> list[str]:
        given = {name: getattr(self, name) for name in ("dtype", "batch_size", "epochs", "loss")}
        args = [f"{name}={getattr(value, 'value', value)}" for name, value in given.items() if value is not None]
        if self.peft_config is not None:
            args += _get_args_from_peft_config(self.peft_config)
        if self.dataset_preprocess_config is not None:
            args += _get_args_from_dataset_preprocess_config(self.dataset_preprocess_config)
        return args

    def framework(self) -> str:
        return "torchtune"

    @property
    def num_nodes(self) -> int | None:
        return self._num_nodes

    @property
    def resources_per_node(self) -> dict | None:
        return self._resources_per_node


class TRLTrainerType(Enum):
    SFT = "sft"
    DPO = "dpo"
    PPO = "ppo"
    ORPO = "orpo"
    KTO = "kto"


@dataclass
class TRLPeftConfig:
    r: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.05
    target_modules: list[str] = field(default_factory=lambda: ["q_proj", "v_proj"])
    use_rslora: bool = False
    use_dora: bool = False


@dataclass
class TRLSFTConfig:
    max_seq_length: int = 2048
    packing: bool = False
    dataset_text_field: str | None = None


@dataclass
class TRLDPOConfig:
    beta: float = 0.1
    max_length: int = 1024
    max_prompt_length: int = 512
    loss_type: str = "sigmoid"


def _flags(config: object, *names: str) -> list[str]:
    return [word for name in names for word in (f"--{name}", str(getattr(config, name)))]


@register_backend("trl")
@dataclass
class TRLConfig(LLMBackend):
    trainer_type: TRLTrainerType = TRLTrainerType.SFT
    model_name_or_path: str = "/workspace/model"
    learning_rate: float = 2e-5
    num_train_epochs: int = 3
    per_device_train_batch_size: int = 4
    gradient_accumulation_steps: int = 1
    bf16: bool = True
    fp16: bool = False
    peft_config: TRLPeftConfig | None = None
    sft_config: TRLSFTConfig | None = None
    dpo_config: TRLDPOConfig | None = None
    _num_nodes: int | None = None
    _resources_per_node: dict | None = None
    output_dir: str = "/workspace/output"

    def to_command(self) -> tuple[str, ...]:
        return ("python", "-m", "trl")

    def to_args(self) -> list[str]:
        args = [self.trainer_type.value, *_flags(self, "model_name_or_path", "output_dir", "learning_rate")]
        args += _flags(self, "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps")
        args += [f"--{name}" for name in ("bf16", "fp16") if getattr(self, name)]
        if (peft := self.peft_config) is not None:
            args += ["--use_peft", "--lora_r", str(peft.r), *_flags(peft, "lora_alpha", "lora_dropout")]
            args += ["--lora_target_modules", *peft.target_modules] if peft.target_modules else []
        if self.trainer_type is TRLTrainerType.SFT and (sft := self.sft_config):
            args += _flags(sft, "max_seq_length")
            args += ["--packing"] if sft.packing else []
            args += _flags(sft, "dataset_text_field") if sft.dataset_text_field else []
        if self.trainer_type is TRLTrainerType.DPO and (dpo := self.dpo_config):
            args += _flags(dpo, "beta", "max_length", "max_prompt_length", "loss_type")
        return args

    def framework(self) -> str:
        return "trl"

    def validate(self) -> None:
        if self.bf16 and self.fp16:
            raise ValueError("bf16 and fp16 exclude each other")
        if self.trainer_type is TRLTrainerType.DPO and self.sft_config is not None:
            raise ValueError("sft_config is not for DPO")
        if self.trainer_type is TRLTrainerType.SFT and self.dpo_config is not None:
            raise ValueError("dpo_config is not for SFT")

    @property
    def num_nodes(self) -> int | None:
        return self._num_nodes

    @property
    def resources_per_node(self) -> dict | None:
        return self._resources_per_node
"""

# After the second text: `ConfigTrainer` with a ClassVar `command` and the placement in the base. It names methods, the
# command `trl` and no registry, and prints no fields: those are of the first text.
SECOND_TEXT = """
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from stoker.backends import ConfigTrainer, TorchTuneTrainer


class TRLTrainerType(Enum):
    SFT = "sft"
    DPO = "dpo"
    KTO = "kto"
    GRPO = "grpo"


@dataclass
class TRLTrainer(ConfigTrainer):
    supported_frameworks: ClassVar[list[str]] = ["trl"]
    command: ClassVar[tuple[str, ...]] = ("trl",)

    trainer_type: TRLTrainerType = TRLTrainerType.SFT
    learning_rate: float = 2e-5

    def to_args(self) -> list[str]:
        return [self.trainer_type.value, "--learning_rate", str(self.learning_rate)]


TorchTuneConfig = TorchTuneTrainer
"""

# What users make of them, for `stoker trainjob FILE.py:NAME`.
FIRST_RUNS = """
sft = TRLConfig(peft_config=TRLPeftConfig(), sft_config=TRLSFTConfig(), _num_nodes=2)
dpo = TRLConfig(trainer_type=TRLTrainerType.DPO, dpo_config=TRLDPOConfig(), bf16=False)
tune = TorchTuneConfig(epochs=2)
"""
SECOND_RUNS = """
sft = TRLTrainer(num_nodes=2)
"""
