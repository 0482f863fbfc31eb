"""How rewards train a policy: one plain dataclass. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any

from stoker.lab.config import LoRATrainConfig
from stoker.lab.errors import refuse
from stoker.lab.fields import is_text, is_whole, must_be, number

SAMPLERS = ("vllm", "transformers")
REFERENCES = ("base", "start")
# What a resumed run may have other than the run before.
_FREE = ("lora_config", "output_dir", "reward_seconds", "save_steps")


@dataclass
class RLHFConfig:
    """Training with PPO. Wrong values are refused when the object is made.

    Attributes:
        lora_config: the adapter that `RLHFTrainer` makes; with `RLHF` it is the policy's own that counts.
        temperature: of the answers that are sampled; the policy that is trained is the one at this temperature.
        max_new_tokens: tokens that an answer may have.
        save_steps: steps between two checkpoints; 0 saves none.
        batch_size: prompts of a step.
        samples: answers to each prompt.
        mini_batch_size: answers in an update, and in memory at a time.
        ppo_epochs: passes over the answers of a step.
        learning_rate: of the adapter.
        value_learning_rate: of the value head, which begins at zero.
        max_grad_norm: length to which longer gradients are cut; 0 turns it off.
        gamma: what a reward is worth one token earlier.
        lam: of generalized advantage estimation: 1 trusts rewards, 0 trusts the value head.
        clip_range: how far the probability of a token may move in a step, as a ratio.
        clip_range_value: how far a value may move in a step.
        vf_coef: weight of the value head's loss.
        kl_coef: price of a nat between the policy and the reference, at each token.
        reference: what the policy must stay close to: `base`, the model with its adapter switched off, or `start`, the
            policy as it was when training began.
        whiten_rewards: divide the rewards of a step by their standard deviation.
        whiten_advantages: give the advantages of a step mean 0 and standard deviation 1.
        missing_eos_penalty: taken from the reward of an answer that was cut at `max_new_tokens`.
        sampler: what generates: `vllm`, or `transformers`, which needs no second copy of the model but is slower.
        reward_seconds: how long to wait for a reward model behind an address.
        seed: of the order of prompts and of what is sampled.
        output_dir: folder for checkpoints.
    """

    lora_config: LoRATrainConfig = field(default_factory=LoRATrainConfig)
    temperature: float = 1.0
    max_new_tokens: int = 128
    save_steps: int = 100
    _: KW_ONLY
    batch_size: int = 16
    samples: int = 1
    mini_batch_size: int = 4
    ppo_epochs: int = 4
    learning_rate: float = 5e-5
    value_learning_rate: float = 1e-3
    max_grad_norm: float = 1.0
    gamma: float = 1.0
    lam: float = 0.95
    clip_range: float = 0.2
    clip_range_value: float = 0.2
    vf_coef: float = 0.1
    kl_coef: float = 0.05
    reference: str = "base"
    whiten_rewards: bool = False
    whiten_advantages: bool = True
    missing_eos_penalty: float = 0.0
    sampler: str = "vllm"
    reward_seconds: float = 300.0
    seed: int = 42
    output_dir: str = "./rlhf_output"

    def __post_init__(self) -> None:
        """Check the values."""
        self.validate()

    def validate(self) -> None:
        """Check the values again, after a change of one.

        Raises:
            LabError: names every field that is wrong.
        """
        refuse(self._problems())

    def decides(self) -> dict[str, Any]:
        """Return the fields that decide what is learned: a resumed run must have the same."""
        return {name: value for name, value in asdict(self).items() if name not in _FREE}

    def _problems(self) -> Iterator[str]:
        lora: object = self.lora_config
        if not isinstance(lora, LoRATrainConfig):
            yield must_be(self, "lora_config", "a LoRATrainConfig")
        for name in ("max_new_tokens", "batch_size", "samples", "mini_batch_size", "ppo_epochs"):
            if not is_whole(self, name, 1):
                yield must_be(self, name, "a whole number, 1 or more")
        for name in ("save_steps", "seed"):
            if not is_whole(self, name, 0):
                yield must_be(self, name, "a whole number, 0 or more")
        for name in ("temperature", "learning_rate", "value_learning_rate", "clip_range_value", "reward_seconds"):
            if not 0 < number(self, name) < math.inf:
                yield must_be(self, name, "a number more than 0")
        if not 0 < number(self, "clip_range") < 1:
            yield must_be(self, "clip_range", "a number more than 0 and less than 1")
        for name in ("gamma", "lam"):
            if not 0 <= number(self, name) <= 1:
                yield must_be(self, name, "a number from 0 to 1")
        for name in ("max_grad_norm", "vf_coef", "kl_coef", "missing_eos_penalty"):
            if not 0 <= number(self, name) < math.inf:
                yield must_be(self, name, "a number, 0 or more")
        for name in ("whiten_rewards", "whiten_advantages"):
            if not isinstance(getattr(self, name), bool):
                yield must_be(self, name, "True or False")
        for name, words in (("reference", REFERENCES), ("sampler", SAMPLERS)):
            if getattr(self, name) not in words:
                yield must_be(self, name, f"one of {', '.join(words)}")
        if not is_text(self.output_dir):
            yield must_be(self, "output_dir", "the path of a folder, as text")
