"""vLLM in this process, and a model of transformers that trains on its weights."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from stoker.lab.config import LoRATrainConfig
from stoker.lab.engine.parallel import Shards
from stoker.lab.engine.sampling import AnswerSampling
from stoker.lab.engine.views import model_of_views
from stoker.lab.errors import LabError
from stoker.lab.generation import (
    AS_MEMORY_ALLOWS,
    Completion,
    Prompt,
    completions,
    same_random_numbers,
    starting,
    taken_back,
    vllm_refusal,
)
from stoker.lab.lora.injector import LoRAInjector
from stoker.lab.lora.layers import TrainableLoRALinear

IN_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"
# vLLM would take nearly all memory, and leave nothing for gradients.
_GPU_SHARE = 0.6
_CPU_CACHE = 2**30


class VllmBackend:
    """vLLM generates, transformers trains; both use the weights and the adapters of vLLM's model.

    Args:
        model_name: name or path of the base model.
        config: the adapters.
        dtype: of the weights, unless the arguments name one.
        arguments: of `vllm.LLM`.

    Attributes:
        llm: vLLM.
        model: the model that trains.
        injector: knows the adapters.
        tokenizer: the model's.
    """

    def __init__(self, model_name: str, config: LoRATrainConfig, dtype: str, arguments: dict[str, Any]) -> None:
        from transformers import AutoConfig
        from vllm import LLM

        from stoker.lab.engine.loader import LOAD_FORMAT

        chosen: dict[str, Any] = {"dtype": dtype, "max_model_len": AS_MEMORY_ALLOWS}
        if not arguments.keys() & {"gpu_memory_utilization", "kv_cache_memory_bytes"}:
            gpu = torch.cuda.is_available()
            chosen |= {"gpu_memory_utilization": _GPU_SHARE} if gpu else {"kv_cache_memory_bytes": _CPU_CACHE}
        self._arguments = arguments
        ranks = arguments.get("tensor_parallel_size", 1)
        if ranks > 1:
            chosen["distributed_executor_backend"] = "external_launcher"
        # Each rank draws the tokens by itself, and must draw those of the others: vLLM has seeded all of them alike.
        seeded = ranks > 1 or "seed" in arguments
        with _in_this_process(), starting(model_name, arguments), nullcontext() if seeded else same_random_numbers():
            self.llm = LLM(
                model=model_name,
                load_format=LOAD_FORMAT,
                model_loader_extra_config={"lora": asdict(config)},
                # The adapters are switched on and off in Python.
                enforce_eager=True,
                logprobs_mode="processed_logprobs",
                **{**chosen, **arguments},
            )
        (self.engine_model,) = self.llm.apply_model(lambda model: model)
        trust = arguments.get("trust_remote_code", False)
        described = AutoConfig.from_pretrained(model_name, revision=arguments.get("revision"), trust_remote_code=trust)
        model = model_of_views(self.engine_model, described, self.llm.model_config.dtype, ranks)
        self.injector = LoRAInjector(config, shared=self.engine_model.lora_injector.lora_layers)
        self.model = self.injector.inject(model)
        self._shards: Shards | None = None
        if ranks > 1:
            self._shards = Shards(self.model, self.engine_model, self.injector.lora_layers)
        self.tokenizer = self.llm.get_tokenizer()

    def generate(
        self, prompts: Sequence[Prompt], tokens: Sequence[list[int]], sampling: AnswerSampling
    ) -> list[Completion]:
        """Answer each prompt once."""
        from vllm import SamplingParams
        from vllm.exceptions import VLLMClientError

        parameters = SamplingParams(**asdict(sampling), logprobs=0)
        try:
            with taken_back(self.llm):
                outputs = self.llm.generate([{"prompt_token_ids": ids} for ids in tokens], parameters, use_tqdm=False)
        except (ValueError, VLLMClientError) as error:  # a prompt is longer than max_model_len, for example
            raise vllm_refusal(error, self._arguments) from error
        return completions(outputs, prompts)

    def gradient_norm(self) -> torch.Tensor:
        """Return the length of all gradients, once all ranks agree on them."""
        if self._shards:
            return self._shards.gradient_norm()
        return nn.utils.get_total_norm([matrix.grad for matrix in self.injector.get_trainable_params()])

    def whole_layers(self) -> dict[str, TrainableLoRALinear]:
        """Return the adapters, as they would be on one rank."""
        return self._shards.whole_layers() if self._shards else self.injector.lora_layers

    def take(self, whole: Mapping[str, TrainableLoRALinear]) -> None:
        """Use the values of what `whole_layers` returned."""
        if self._shards:
            self._shards.take(whole)

    def weights_changed(self) -> None:
        """Forget what was computed with other weights.

        Raises:
            LabError: vLLM still uses it for requests.
        """
        if not self.llm.reset_prefix_cache():
            raise LabError(
                "TrainableEngine: vLLM has requests that are not finished, and would go on with what it computed with "
                "the weights before: let engine.llm finish them, or call save_lora, and load_lora of a new engine"
            )

    def close(self) -> None:
        """End vLLM."""
        shutdown = getattr(self.llm.llm_engine, "shutdown", None)
        if shutdown is not None:
            shutdown()


@contextmanager
def _in_this_process() -> Iterator[None]:
    """Let vLLM start no process of its own: memory is shared in one process only."""
    before = os.environ.get(IN_PROCESS)
    os.environ[IN_PROCESS] = "0"
    try:
        yield
    finally:
        del os.environ[IN_PROCESS]
        if before is not None:
            os.environ[IN_PROCESS] = before
