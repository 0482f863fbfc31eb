"""vLLM in this process, and a model of transformers that trains on its weights."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from stoker.lab.config import LoRATrainConfig
from stoker.lab.engine.sampling import Sampling
from stoker.lab.engine.views import model_of_views
from stoker.lab.generation import Completion, Prompt, completions
from stoker.lab.lora.injector import LoRAInjector

IN_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"
# vLLM would take nearly all memory, and leave nothing for gradients.
_GPU_SHARE = 0.6
_CPU_CACHE = 2**30


class VllmBackend:
    """vLLM generates, transformers trains; both use the weights and the adapters of vLLM's model.

    Args:
        model_name: name or path of the base model.
        config: the adapters.
        arguments: of `vllm.LLM`.

    Attributes:
        llm: vLLM.
        model: the model that trains.
        injector: knows the adapters.
        tokenizer: the model's.
    """

    def __init__(self, model_name: str, config: LoRATrainConfig, arguments: dict[str, Any]) -> None:
        import torch
        from transformers import AutoConfig
        from vllm import LLM

        from stoker.lab.engine.loader import LOAD_FORMAT

        if not arguments.keys() & {"gpu_memory_utilization", "kv_cache_memory_bytes"}:
            gpu = torch.cuda.is_available()
            room = {"gpu_memory_utilization": _GPU_SHARE} if gpu else {"kv_cache_memory_bytes": _CPU_CACHE}
            arguments = {**arguments, **room}
        with _in_this_process():
            self.llm = LLM(
                model=model_name,
                load_format=LOAD_FORMAT,
                model_loader_extra_config={"lora": asdict(config)},
                # The adapters are switched on and off in Python.
                enforce_eager=True,
                logprobs_mode="processed_logprobs",
                **arguments,
            )
        (self.engine_model,) = self.llm.apply_model(lambda model: model)
        trust = arguments.get("trust_remote_code", False)
        described = AutoConfig.from_pretrained(model_name, revision=arguments.get("revision"), trust_remote_code=trust)
        model = model_of_views(self.engine_model, described, self.llm.model_config.dtype)
        self.injector = LoRAInjector(config, shared=self.engine_model.lora_injector.lora_layers)
        self.model = self.injector.inject(model)
        self.tokenizer = self.llm.get_tokenizer()

    def generate(self, prompts: Sequence[Prompt], tokens: Sequence[list[int]], sampling: Sampling) -> list[Completion]:
        """Answer each prompt once."""
        from vllm import SamplingParams

        parameters = SamplingParams(**asdict(sampling), logprobs=0)
        outputs = self.llm.generate([{"prompt_token_ids": ids} for ids in tokens], parameters, use_tqdm=False)
        return completions(outputs, prompts)

    def weights_changed(self) -> None:
        """Forget what was computed with other weights."""
        self.llm.reset_prefix_cache()

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
