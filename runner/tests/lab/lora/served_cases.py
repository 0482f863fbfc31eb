"""A stock vLLM serves the files of our LoRA layers: `python served_cases.py FAMILY FOLDER`; prints what it saw as JSON.

Runs in an environment with vLLM and transformers.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from runner.tests.lab.engine import tiny
from torch import nn
from transformers import AutoModelForCausalLM

from stoker.lab.config import LoRATrainConfig
from stoker.lab.lora import files
from stoker.lab.lora.injector import LoRAInjector

PROMPT = [5, 6, 7, 8]


def main(family: str, folder: Path) -> None:
    """Compare vLLM's answer with what our layers say of it."""
    model_path = tiny.write(folder / "model", family)
    injector = LoRAInjector(LoRATrainConfig(rank=8, alpha=16, target_modules=tiny.FAMILIES[family][1]))
    model = injector.inject(AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32))
    for lora in injector.lora_layers.values():
        nn.init.normal_(lora.lora_b, std=0.2)
    files.write(folder / "adapter", injector.lora_layers, injector.config, str(model_path))

    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # one process starts sooner than two
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    llm = LLM(
        model=str(model_path), enable_lora=True, max_lora_rank=8, dtype="float32", enforce_eager=True,
        max_model_len=64, kv_cache_memory_bytes=2**26,
    )  # fmt: skip
    answer = llm.generate(
        [{"prompt_token_ids": PROMPT}], SamplingParams(max_tokens=8, temperature=0.0, logprobs=0),
        lora_request=LoRARequest("ours", 1, str(folder / "adapter")),
    )[0].outputs[0]  # fmt: skip
    tokens = list(answer.token_ids)
    served = torch.tensor([found[token].logprob for token, found in zip(tokens, answer.logprobs, strict=True)])

    def scores() -> torch.Tensor:
        with torch.no_grad():
            likely = model(input_ids=torch.tensor([PROMPT + tokens])).logits[0].log_softmax(-1)
        return likely[len(PROMPT) - 1 : -1].gather(-1, torch.tensor(tokens)[:, None])[:, 0]

    own = scores()
    with injector.disabled():
        base = scores()
    seen = {"distance": (served - own).abs().max().item(), "from the base": (served - base).abs().max().item()}
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
