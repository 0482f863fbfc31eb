"""One engine that trains and serves: `python engine_cases.py FAMILY BACKEND FOLDER`; prints what it saw as JSON.

Runs in an environment with vLLM, transformers and PEFT.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from runner.tests.lab.cases import drawn, interrupted
from runner.tests.lab.engine import tiny
from runner.tests.lab.engine.storage import outside
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, set_seed

from stoker.lab.config import LoRATrainConfig
from stoker.lab.engine.engine import TrainableEngine
from stoker.lab.errors import LabError
from stoker.lab.generation import Completion
from stoker.lab.lora.files import WEIGHTS

ENGINE: dict[str, Any] = {"max_model_len": 400, "max_num_seqs": 8, "kv_cache_memory_bytes": 2**26, "dtype": "float32"}
# The second is longer than blocks of the cache, which engines keep.
PROMPTS = ["2+3=", "a long prompt: " + "abcdefghij" * 30]


def scores(model: Any, engine: TrainableEngine, answers: Sequence[Completion]) -> list[list[float]]:
    """Return what a model of transformers says of answers."""
    found = []
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = engine.tokenizer(prompt).input_ids
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids + list(answer.token_ids)])).logits[0]
        likely = logits.float().log_softmax(-1)[len(ids) - 1 : -1]
        found.append(likely.gather(-1, torch.tensor(answer.token_ids)[:, None])[:, 0].tolist())
    return found


def furthest(answers: Sequence[Completion], others: list[list[float]]) -> float:
    """Return the largest distance between log-probabilities."""
    return max(abs(a - b) for answer, other in zip(answers, others, strict=True)
               for a, b in zip(answer.logprobs or (), other, strict=True))  # fmt: skip


def greedy(engine: TrainableEngine, adapter: bool = True) -> list[Completion]:
    """Return the most likely answers."""
    return engine.generate(PROMPTS, max_tokens=8, temperature=0.0, adapter=adapter)


def batch(engine: TrainableEngine, text: str) -> dict[str, torch.Tensor]:
    """Return a text as a batch."""
    ids = torch.tensor([engine.tokenizer(text).input_ids])
    return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


def fused(engine: TrainableEngine, engine_model: nn.Module) -> dict[str, Any]:
    """Compare vLLM's fused layers with the layers that they were fused from."""
    x = torch.randn(3, tiny.SIZE["hidden_size"])
    found: dict[str, Any] = {}
    for name, module in engine_model.named_modules():
        last = name.rpartition(".")[2]
        if last not in ("qkv_proj", "gate_up_proj") or ".0." not in name or not hasattr(module, "lora"):
            continue
        parts = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}[last]
        parent = engine.model.get_submodule(name.rpartition(".")[0])
        layers = [getattr(parent, part) for part in parts] if hasattr(parent, parts[0]) else [getattr(parent, last)]
        with torch.no_grad():
            output = module(x)
            expected = torch.cat([layer(x) for layer in layers], -1)
            with engine.injector.disabled():
                plain = module(x)[0]
        output, bias = output
        found[last] = {
            "pair": bias is None,
            "distance": (output - expected).abs().max().item(),
            "effect": (output - plain).abs().max().item(),
        }
        output, _ = module(x)
        output.square().sum().backward()
        grads = [lora.lora_b.grad for lora in module.lora.adapters]
        found[last]["gradients"] = all(grad is not None and grad.abs().max() > 0 for grad in grads)
        engine.optimizer.zero_grad()
    return found


def main(family: str, backend: Any, folder: Path) -> None:
    """Look at everything."""
    path = tiny.write(folder / "model", family)
    config = LoRATrainConfig(rank=4, alpha=8, target_modules=tiny.FAMILIES[family][1], learning_rate=3e-2)
    arguments = ENGINE if backend == "vllm" else {"dtype": "float32"}
    set_seed(7)
    expected = drawn()
    set_seed(7)
    engine = TrainableEngine(str(path), config, backend, **arguments)
    unchanged = drawn() == expected
    stock = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    seen: dict[str, Any] = {"random numbers": unchanged}
    ids = torch.tensor([engine.tokenizer(PROMPTS[1]).input_ids])
    with torch.no_grad():
        seen["logits"] = (engine.model(input_ids=ids).logits - stock(input_ids=ids).logits).abs().max().item()

    before = greedy(engine)
    seen["new adapter"] = furthest(before, scores(stock, engine, before))
    steps = [engine.train_step(batch(engine, "2+3=5. " * 4)) for _ in range(12)]
    seen["losses"] = [step["loss"] for step in steps]
    after = greedy(engine)
    engine.save_lora(folder / "adapter")
    with_adapter = PeftModel.from_pretrained(stock, folder / "adapter").eval()
    seen["after training"] = furthest(after, scores(with_adapter, engine, after))
    with with_adapter.disable_adapter():
        seen["from the base"] = furthest(after, scores(with_adapter, engine, after))
    base = greedy(engine, adapter=False)
    seen["base again"] = [answer.token_ids for answer in base] == [answer.token_ids for answer in before]
    seen["trained again"] = greedy(engine) == after

    # A sampled answer's log-probabilities are those of the distribution that it was sampled from.
    sampled = [engine.generate(PROMPTS, max_tokens=8, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    seen["sampled"] = furthest(sampled[0], scores(with_adapter, engine, sampled[0]))
    ids_of = [[answer.token_ids for answer in answers] for answers in sampled]
    seen["seed"] = [ids_of[0] == ids_of[1], ids_of[0] != ids_of[2]]

    saved = load_file(folder / "adapter" / WEIGHTS)
    with torch.no_grad():
        for matrix in engine.injector.get_trainable_params():
            matrix.zero_()
    engine.load_lora(folder / "adapter")
    engine.save_lora(folder / "again")
    again = load_file(folder / "again" / WEIGHTS)
    seen["files"] = all(torch.equal(saved[key], again[key]) for key in saved)
    seen["loaded"] = greedy(engine) == after

    parts = [batch(engine, "2+3=5. "), batch(engine, "1+1=2. a longer one")]
    likelihoods = [(engine.model(**one).loss.item(), one["labels"].numel() - 1) for one in parts]
    mean = sum(loss * tokens for loss, tokens in likelihoods) / sum(tokens for _, tokens in likelihoods)
    seen["accumulated"] = abs(engine.train_step(parts)["loss"] - mean)
    seen["own loss"] = engine.train_step(parts[0], loss=lambda model, one: model(**one).loss * 2)["loss"]

    if backend == "vllm":
        started: Any = engine._backend
        engine_model = started.engine_model
        try:
            engine.generate([[5] * (ENGINE["max_model_len"] + 1)])
        except LabError as error:
            seen["refused"] = str(error)
        interrupted(engine.llm, lambda: engine.generate(PROMPTS, max_tokens=8))
        engine.load_lora(folder / "adapter")
        seen["interrupted"] = greedy(engine) == after
        seen["outside"] = outside(engine.model, engine_model)
        seen["fused"] = fused(engine, engine_model)
        planted = "model.layers.1.mlp.down_proj"
        layer = engine.model.get_submodule(planted)
        layer = getattr(layer, "base_layer", layer)
        layer.weight.data = layer.weight.data.clone()
        seen["planted"] = outside(engine.model, engine_model)
        interrupted(engine.llm, lambda: engine.llm.generate([{"prompt_token_ids": [5] * 40}], use_tqdm=False))
        try:
            engine.load_lora(folder / "adapter")
        except LabError as error:
            seen["unfinished"] = str(error)
    engine.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
