"""One model of transformers that trains, and generates by continuous batching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from stoker.lab.config import LoRATrainConfig
from stoker.lab.data import end_token_ids
from stoker.lab.engine.sampling import AnswerSampling
from stoker.lab.errors import LabError
from stoker.lab.generation import Completion, Prompt
from stoker.lab.lora.injector import LoRAInjector
from stoker.lab.lora.layers import TrainableLoRALinear

# Tokens in a block of the cache, and in one forward pass.
BLOCK = 32
BATCH = 512


class TransformersBackend:
    """The same modules train and generate.

    Args:
        model_name: name or path of the base model.
        config: the adapters.
        dtype: of the weights, unless the arguments name one.
        arguments: of `AutoModelForCausalLM.from_pretrained`.

    Attributes:
        model: the model.
        injector: knows the adapters.
        tokenizer: the model's.
    """

    def __init__(self, model_name: str, config: LoRATrainConfig, dtype: str, arguments: dict[str, Any]) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        known = {name: arguments[name] for name in ("revision", "trust_remote_code") if name in arguments}
        self.tokenizer = AutoTokenizer.from_pretrained(model_name, **known)
        self.injector = LoRAInjector(config)
        model = AutoModelForCausalLM.from_pretrained(model_name, **{"dtype": dtype, **arguments})
        if torch.cuda.is_available() and "device_map" not in arguments:
            model = model.to("cuda")
        self.model = self.injector.inject(model)

    def generate(
        self, prompts: Sequence[Prompt], tokens: Sequence[list[int]], sampling: AnswerSampling
    ) -> list[Completion]:
        """Answer each prompt once."""
        from transformers import ContinuousBatchingConfig, GenerationConfig

        ends = end_token_ids(self.model, self.tokenizer)
        blocks = sum(-(-(len(ids) + sampling.max_tokens) // BLOCK) + 1 for ids in tokens)
        found = self.model.generate_batch(
            inputs=list(tokens),
            generation_config=GenerationConfig(
                max_new_tokens=sampling.max_tokens,
                do_sample=sampling.temperature > 0,
                temperature=sampling.temperature or 1.0,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                eos_token_id=ends or None,
                pad_token_id=self.tokenizer.pad_token_id,
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                block_size=BLOCK, num_blocks=blocks, max_batch_tokens=BATCH, return_logprobs=True, seed=sampling.seed
            ),
        )
        if len(found) < len(prompts) or any(output.error for output in found.values()):
            reasons = {output.error for output in found.values() if output.error} or {"see the log above"}
            raise LabError(f"transformers could not generate: {'; '.join(map(str, reasons))}")
        return [
            Completion(
                prompt,
                self.tokenizer.decode(output.generated_tokens, skip_special_tokens=True),
                tuple(output.generated_tokens),
                tuple(output.logprobs),
                "stop" if output.generated_tokens[-1] in ends else "length",
            )
            for prompt, output in zip(prompts, found.values(), strict=True)
        ]

    def gradient_norm(self) -> torch.Tensor:
        """Return the length of all gradients."""
        return nn.utils.get_total_norm([matrix.grad for matrix in self.injector.get_trainable_params()])

    def whole_layers(self) -> dict[str, TrainableLoRALinear]:
        """Return the adapters."""
        return self.injector.lora_layers

    def take(self, whole: Mapping[str, TrainableLoRALinear]) -> None:
        """What `whole_layers` returned is in use."""

    def weights_changed(self) -> None:
        """Nothing outlives a call."""

    def close(self) -> None:
        """Nothing is left running."""
