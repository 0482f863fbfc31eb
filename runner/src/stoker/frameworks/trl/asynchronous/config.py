"""The settings of `grpo_async`: TRL's for GRPO, and ours.

Only training processes import this module, because it imports trl.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trl import GRPOConfig

from stoker.frameworks.trl.asynchronous.refusals import FSDP_1
from stoker.frameworks.trl.asynchronous.request import OWN_WAIT_SECONDS, WAIT_SECONDS


@dataclass
class GRPOAsyncConfig(GRPOConfig):
    """TRL's settings for GRPO, with other defaults for the correction, and those of the rollouts; `--help` names them.

    Raises:
        ValueError: the settings contradict each other.
    """

    # TRL's default drops whole answers that are too unlikely; this keeps them, with less weight.
    vllm_importance_sampling_mode: str = field(
        default="token_truncate",
        metadata={
            "help": (
                "How `--correction decoupled` bounds the ratio of a token's probabilities, trainer to "
                "sampler: 'token_truncate' cuts it, 'token_mask' drops the token; 'sequence_truncate' "
                "and 'sequence_mask' take a whole answer's."
            )
        },
    )
    vllm_importance_sampling_clip_max: float | None = field(
        default=2.0,
        metadata={
            "help": ("The largest ratio of a token's probabilities, trainer to sampler, in `--correction decoupled`.")
        },
    )

    samplers: str | None = field(
        default=None,
        metadata={
            "help": (
                "Addresses of the samplers, separated by commas, such as `http://sampler-0:8000`; or "
                "`role`: the samplers of this TrainJob."
            )
        },
    )
    max_staleness: int = field(
        default=4,
        metadata={
            "help": (
                "The most optimizer steps between the policy that wrote a sample and the step that trains it. 0: none."
            )
        },
    )
    depth: str = field(
        default="auto",
        metadata={
            "help": (
                "How many batches may be written beside the one in training. `auto`: the fewest that "
                "hide the wait, at most what --max_staleness allows."
            )
        },
    )
    correction: Literal["decoupled", "behaviour", "none"] = field(
        default="decoupled",
        metadata={
            "help": (
                "What corrects for samples of older policies. 'decoupled': the probabilities are "
                "computed anew, the loss is clipped against them and weighted by their ratio to the "
                "sampler's. 'behaviour': the loss is clipped against the sampler's probabilities, one "
                "forward pass less; made for `--loss_type cispo`. 'none': nothing, which only suits "
                "--max_staleness 0."
            )
        },
    )
    publish_every: int = field(
        default=1,
        metadata={"help": "Optimizer steps from one published version of the policy to the next."},
    )
    publish_whole_every: int = field(
        default=20,
        metadata={
            "help": (
                "Without --use_peft: published versions from one with all weights to the next; those between have only "
                "what has changed. 1: always all weights."
            )
        },
    )
    publish_seconds: float = field(
        default=5.0,
        metadata={"help": "How long a sampler may take to load a version before the others go on without it."},
    )
    guard_every: int = field(
        default=16,
        metadata={
            "help": ("Within how many steps the trainer notices samplers that do not serve the policy they name.")
        },
    )
    episode_seconds: float | None = field(
        default=None,
        metadata={"help": "How long the tools and the environment of one sample may take in all. None: 600."},
    )
    reward_seconds: float = field(
        default=300.0,
        metadata={
            "help": (
                "How long reward functions may take for the samples of one prompt, and a reward model for one request."
            )
        },
    )
    fleet_wait_seconds: float | None = field(
        default=None,
        metadata={
            "help": (
                "How long to wait while no sampler is ready, before the run ends with 75. None: "
                f"{OWN_WAIT_SECONDS:g} with `--samplers role`, whose pods Kubernetes starts anew after up to 10 "
                f"minutes, and {WAIT_SECONDS:g} otherwise."
            )
        },
    )
    rollout_wait_seconds: float = field(
        default=1800.0,
        metadata={"help": ("How long to wait for one batch while samplers are ready, before the run ends with 75.")},
    )
    skip_flat_groups: bool = field(
        default=False,
        metadata={
            "help": (
                "Leave groups whose samples all have the same reward out of the step. They teach "
                "nothing, but the loss is then the mean over fewer tokens, and with `--scale_rewards batch` or "
                "`--multi_objective_aggregation normalize_then_sum` the standard deviation is that of the kept groups. "
                "Not with --beta above 0."
            )
        },
    )
    adapters: str | None = field(
        default=None,
        metadata={
            "help": ("Folder for the published versions, shared with the samplers. None: `adapters` in the workspace.")
        },
    )
    allow_incomparable_logprobs: bool = field(
        default=False,
        metadata={
            "help": (
                "Allow what makes the probabilities of trainer and sampler incomparable: top_p below "
                "1, top_k, min_p, a repetition penalty, LoRA dropout. Turns the correction off."
            )
        },
    )
    tools: list[str] | None = field(
        default=None,
        metadata={
            "help": ("Functions that the policy may call, each as `module:function`, with types and a docstring.")
        },
    )
    environment_factory: list[str] | None = field(
        default=None,
        metadata={
            "help": (
                "What makes the environment of each sample, as `module:factory`: `reset`, methods as "
                "tools, `get_reward`. Several have names, as `name=module:factory`; the column "
                "`environment` chooses."
            )
        },
    )

    def __post_init__(self) -> None:
        """Refuse what contradicts itself, as TRL does."""
        super().__post_init__()
        if self.use_vllm:
            raise ValueError("--use_vllm is not for grpo_async, which names its samplers: write --samplers")
        if self.num_iterations != 1:
            raise ValueError(f"--num_iterations is {self.num_iterations}: write 1, each batch is trained once")
        if (self.fsdp_plugin_args or {}).get("fsdp_version") == 1:  # planning does not read files
            raise ValueError(FSDP_1)
        if self.steps_per_generation != self.gradient_accumulation_steps:
            raise ValueError(
                f"one batch of samples is one optimizer step, but it has {self.steps_per_generation} parts and a step "
                f"has {self.gradient_accumulation_steps}: leave out --steps_per_generation and --generation_batch_size"
            )
        if self.allow_incomparable_logprobs:
            self.correction = "none"

    @property
    def groups_per_step(self) -> int:
        """The number of prompts that one optimizer step trains."""
        return int(self.generation_batch_size // self.num_generations)
