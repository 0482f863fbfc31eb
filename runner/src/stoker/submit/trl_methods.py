"""The training methods of TRL, each with its own flags as a typed config.

A field has the name of TRL 1.16's flag, except for older names (`compat.py`). None leaves the flag to the runtime and
TRL. Flags without a field go into `TRLConfig.extra_args`.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import ClassVar, Literal

from stoker.frameworks.trl.flags import METHODS
from stoker.submit.compat import MethodFlags, default
from stoker.submit.trl_flags import flag_words


class TRLTrainerType(Enum):
    """The training methods, by the names of KEP-2839. TRL no longer has PPO: it is refused."""

    SFT = "sft"
    DPO = "dpo"
    PPO = "ppo"
    ORPO = "orpo"
    KTO = "kto"
    GRPO = "grpo"
    RLOO = "rloo"
    REWARD = "reward"
    DISTILLATION = "distillation"
    GRPO_ASYNC = "grpo_async"

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(f"{value!r} is not a training method: write one of {', '.join(METHODS)}")


@dataclass
class TRLMethodConfig(MethodFlags):
    """The flags that only one method has, or that mean something else in it.

    Attributes:
        trainer_type: the method.
        needs: the method needs one of these flags.
    """

    trainer_type: ClassVar[TRLTrainerType]
    needs: ClassVar[tuple[str, ...]] = ()

    @property
    def module(self) -> str:
        """The last part of the name of the method's module (the KEP's newest text)."""
        return self.trainer_type.value

    def to_args(self, with_defaults: bool = False) -> list[str]:
        """Return the flags of the method.

        Args:
            with_defaults: True to send the defaults of the KEP's first text too.
        """
        words: list[str] = []
        for name, value in self.sent(with_defaults):
            words += flag_words(name, value)
        return words

    def problems(self) -> list[str]:
        """Return contradictions among the method's own flags."""
        return []


@dataclass
class TRLSFTConfig(TRLMethodConfig):
    """Supervised fine-tuning."""

    trainer_type: ClassVar[TRLTrainerType] = TRLTrainerType.SFT

    max_seq_length: int = default(2048)
    packing: bool | None = default(False)
    dataset_text_field: str | None = None
    _: KW_ONLY
    max_length: int | None = None
    packing_strategy: Literal["bfd", "bfd_split", "wrapped"] | None = None
    padding_free: bool | None = None
    completion_only_loss: bool | None = None
    assistant_only_loss: bool | None = None
    loss_type: Literal["nll", "dft", "chunked_nll"] | None = None
    chat_template_path: str | None = None
    eos_token: str | None = None
    shuffle_dataset: bool | None = None

    def problems(self) -> list[str]:
        """Return contradictions."""
        problems = []
        if self.max_length is not None and self.was_given("max_seq_length"):
            problems.append("max_seq_length and max_length are the same flag in TRL 1.16: write only max_length")
        if self.packing_strategy is not None and not self.packing:
            problems.append("packing_strategy needs packing: write packing=True, or drop it")
        if self.padding_free and not self.packing:
            problems.append("padding_free without packing cuts no sample to max_length: write packing=True, or drop it")
        if self.completion_only_loss and self.assistant_only_loss:
            problems.append("completion_only_loss and assistant_only_loss exclude each other: write one of them")
        return problems


@dataclass
class TRLDPOConfig(TRLMethodConfig):
    """Direct preference optimization."""

    trainer_type: ClassVar[TRLTrainerType] = TRLTrainerType.DPO

    beta: float | None = default(0.1)
    max_length: int | None = default(1024)
    max_prompt_length: int | None = default(512)
    loss_type: str | list[str] | None = default("sigmoid")
    _: KW_ONLY
    loss_weights: list[float] | None = None
    label_smoothing: float | None = None
    f_divergence_type: str | None = None
    precompute_ref_log_probs: bool | None = None
    sync_ref_model: bool | None = None
    ref_model_mixup_alpha: float | None = None
    ref_model_sync_steps: int | None = None
    use_weighting: bool | None = None
    truncation_mode: Literal["keep_end", "keep_start"] | None = None
    padding_free: bool | None = None

    def problems(self) -> list[str]:
        """Return contradictions."""
        kinds = [self.loss_type] if isinstance(self.loss_type, str) else list(self.loss_type or ())
        problems = []
        if self.loss_weights is not None and len(self.loss_weights) != len(kinds):
            problems.append(
                f"loss_weights has {len(self.loss_weights)} entries, but loss_type has {len(kinds)}: write one for each"
            )
        return problems + _reference_model_problems(self.sync_ref_model, self.precompute_ref_log_probs)


@dataclass
class TRLKTOConfig(TRLMethodConfig):
    """Kahneman-Tversky optimization: answers marked as wanted or unwanted."""

    trainer_type: ClassVar[TRLTrainerType] = TRLTrainerType.KTO

    _: KW_ONLY
    beta: float | None = None
    max_length: int | None = None
    loss_type: Literal["kto", "apo_zero_unpaired"] | None = None
    desirable_weight: float | None = None
    undesirable_weight: float | None = None
    precompute_ref_log_probs: bool | None = None
    sync_ref_model: bool | None = None

    def problems(self) -> list[str]:
        """Return contradictions."""
        return _reference_model_problems(self.sync_ref_model, self.precompute_ref_log_probs)


@dataclass
class TRLORPOConfig(TRLMethodConfig):
    """Odds ratio preference optimization. TRL 1.16 has an experimental trainer; the image has the script."""

    trainer_type: ClassVar[TRLTrainerType] = TRLTrainerType.ORPO

    _: KW_ONLY
    beta: float | None = None
    max_length: int | None = None


@dataclass
class _Generating(TRLMethodConfig):
    """Flags of methods that let the model answer while it trains."""

    _: KW_ONLY
    beta: float | None = None
    max_completion_length: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    log_completions: bool | None = None
    use_vllm: bool | None = None
    vllm_mode: Literal["colocate", "server"] | None = None
    vllm_server_base_url: str | None = None
    vllm_gpu_memory_utilization: float | None = None

    def problems(self) -> list[str]:
        """Return contradictions."""
        problems = []
        for name in ("vllm_mode", "vllm_server_base_url", "vllm_gpu_memory_utilization"):
            if getattr(self, name) is not None and not self.use_vllm:
                problems.append(f"{name} needs use_vllm: write use_vllm=True, or drop it")
        if self.vllm_server_base_url is not None and self.use_vllm and self.vllm_mode != "server":
            problems.append('vllm_server_base_url needs vllm_mode="server": write that too, or drop it')
        return problems


@dataclass
class _Rewarded(_Generating):
    """Flags of methods that score the model's answers."""

    needs: ClassVar[tuple[str, ...]] = ("reward_funcs", "reward_model_name_or_path")

    _: KW_ONLY
    reward_funcs: list[str] | None = None
    reward_weights: list[float] | None = None
    reward_model_name_or_path: str | None = None
    num_generations: int | None = None
    num_iterations: int | None = None
    generation_batch_size: int | None = None
    steps_per_generation: int | None = None
    epsilon: float | None = None
    epsilon_high: float | None = None
    mask_truncated_completions: bool | None = None
    sync_ref_model: bool | None = None

    def problems(self) -> list[str]:
        """Return contradictions."""
        problems = super().problems()
        method = self.trainer_type.value
        rewards = len(self.reward_funcs or ()) + (self.reward_model_name_or_path is not None)
        if self.reward_weights is not None and rewards and len(self.reward_weights) != rewards:
            problems.append(
                f"reward_weights has {len(self.reward_weights)} entries for {rewards} rewards: write one for each"
            )
        if self.num_generations is not None and self.num_generations < 2:
            problems.append(
                f"num_generations is {self.num_generations}: {method} compares answers, so it needs 2 or more"
            )
        if self.generation_batch_size is not None and self.steps_per_generation is not None:
            problems.append("generation_batch_size and steps_per_generation exclude each other: write one of them")
        return problems


@dataclass
class TRLGRPOConfig(_Rewarded):
    """Group relative policy optimization."""

    trainer_type: ClassVar[TRLTrainerType] = TRLTrainerType.GRPO

    _: KW_ONLY
    loss_type: Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"] | None = None
    scale_rewards: Literal["group", "batch", "none"] | None = None
    importance_sampling_level: Literal["token", "sequence"] | None = None
    top_entropy_quantile: float | None = None


@dataclass
class TRLRLOOConfig(_Rewarded):
    """REINFORCE, leave one out."""

    trainer_type: ClassVar[TRLTrainerType] = TRLTrainerType.RLOO

    _: KW_ONLY
    normalize_advantages: bool | None = None


@dataclass
class TRLRewardConfig(TRLMethodConfig):
    """Training of a reward model on preferences."""

    trainer_type: ClassVar[TRLTrainerType] = TRLTrainerType.REWARD

    _: KW_ONLY
    max_length: int | None = None
    center_rewards_coefficient: float | None = None
    disable_dropout: bool | None = None
    chat_template_path: str | None = None
    eos_token: str | None = None


@dataclass
class TRLDistillationConfig(_Generating):
    """Distillation from a teacher model, on the student's own answers."""

    trainer_type: ClassVar[TRLTrainerType] = TRLTrainerType.DISTILLATION
    needs: ClassVar[tuple[str, ...]] = ("teacher_model_name_or_path",)

    _: KW_ONLY
    teacher_model_name_or_path: str | None = None
    teacher_model_revision: str | None = None


@dataclass
class TRLGRPOAsyncConfig(TRLMethodConfig):
    """Group relative policy optimization on what samplers write meanwhile. It trains an adapter."""

    trainer_type: ClassVar[TRLTrainerType] = TRLTrainerType.GRPO_ASYNC
    needs: ClassVar[tuple[str, ...]] = ("reward_funcs", "environment_factory")

    _: KW_ONLY
    samplers: str | None = None
    reward_funcs: list[str] | None = None
    reward_weights: list[float] | None = None
    tools: list[str] | None = None
    environment_factory: list[str] | None = None
    num_generations: int | None = None
    max_completion_length: int | None = None
    temperature: float | None = None
    loss_type: Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"] | None = None
    scale_rewards: Literal["group", "batch", "none"] | None = None
    beta: float | None = None
    epsilon: float | None = None
    epsilon_high: float | None = None
    max_staleness: int | None = None
    depth: int | Literal["auto"] | None = None
    correction: Literal["decoupled", "behaviour", "none"] | None = None
    publish_every: int | None = None
    guard_every: int | None = None
    episode_seconds: float | None = None
    reward_seconds: float | None = None
    skip_flat_groups: bool | None = None
    allow_incomparable_logprobs: bool | None = None

    def problems(self) -> list[str]:
        """Return contradictions."""
        rewards = len(self.reward_funcs or ())
        if self.reward_weights is None or not rewards or len(self.reward_weights) == rewards:
            return []
        return [f"reward_weights has {len(self.reward_weights)} entries for {rewards} rewards: write one for each"]


def _reference_model_problems(sync: bool | None, precompute: bool | None) -> list[str]:
    if sync and precompute:
        return [
            "sync_ref_model changes the reference, but precompute_ref_log_probs needs a fixed one: write one of them"
        ]
    return []


METHOD_CONFIGS: dict[TRLTrainerType, type[TRLMethodConfig]] = {
    config.trainer_type: config
    for config in (
        *(TRLSFTConfig, TRLDPOConfig, TRLKTOConfig, TRLORPOConfig),
        *(TRLGRPOConfig, TRLRLOOConfig, TRLRewardConfig, TRLDistillationConfig, TRLGRPOAsyncConfig),
    )
}
