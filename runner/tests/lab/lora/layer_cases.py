"""LoRA layers beside PEFT's, on tiny random models: `python layer_cases.py FOLDER`; prints what it saw as JSON.

Runs in an environment with torch, transformers and PEFT.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from stoker.lab.config import LoRATrainConfig
from stoker.lab.errors import LabError
from stoker.lab.lora import files
from stoker.lab.lora.fused import FusedLoRA, Part
from stoker.lab.lora.injector import LoRAInjector
from stoker.lab.lora.layers import LoRALinear, TrainableLoRALinear

SIZE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
TARGETS: dict[str, list[str]] = {
    "qwen2": ATTENTION,
    "qwen3": ATTENTION,
    "llama": [*ATTENTION, "gate_proj", "up_proj", "down_proj"],
    "gemma2": ATTENTION,
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj"],
}


def base(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """Return a tiny model with random weights."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZE), dtype=dtype)


def tokens() -> torch.Tensor:
    """Return a batch of random tokens."""
    return torch.randint(1, SIZE["vocab_size"], (2, 12), generator=torch.Generator().manual_seed(1))


def of_peft(model: nn.Module, targets: list[str] | str, dropout: float = 0.0) -> Any:
    """Return PEFT's model with a random adapter."""
    torch.manual_seed(2)
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=targets, lora_dropout=dropout, task_type="CAUSAL_LM", init_lora_weights=False
    )
    return get_peft_model(copy.deepcopy(model), config)


def injected(model: nn.Module, targets: list[str] | str, dropout: float = 0.0) -> tuple[LoRAInjector, Any]:
    """Return ours, with an adapter that adds nothing yet."""
    injector = LoRAInjector(LoRATrainConfig(rank=4, alpha=8, target_modules=targets, dropout=dropout))
    return injector, injector.inject(copy.deepcopy(model))


def loss_of(model: Any, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a model's logits and loss."""
    torch.manual_seed(seed)
    output = model(input_ids=tokens(), labels=tokens())
    return output.logits, output.loss


def distances(family: str, folder: Path, dropout: float = 0.0, dtype: torch.dtype = torch.float32) -> dict[str, float]:
    """Return how far ours is from PEFT's, with the adapter that PEFT wrote."""
    model, targets = base(family, dtype), TARGETS[family]
    theirs = of_peft(model, targets, dropout).train()
    theirs.save_pretrained(folder)
    injector, ours = injected(model, targets, dropout)
    files.read(folder, injector.lora_layers)
    logits, loss = loss_of(ours.train())
    their_logits, their_loss = loss_of(theirs)
    loss.backward()
    their_loss.backward()
    grads = {name: parameter.grad for name, parameter in theirs.named_parameters() if parameter.grad is not None}
    own = {}
    for name, lora in injector.lora_layers.items():
        for kind, matrix in (("lora_A", lora.lora_a), ("lora_B", lora.lora_b)):
            own[f"base_model.model.{name}.{kind}.default.weight"] = matrix.grad
    plain, _ = loss_of(model)
    return {
        "logits": (logits - their_logits).abs().max().item(),
        "gradients": max((own[name] - grads[name]).abs().max().item() for name in grads),
        "largest gradient": max(grad.abs().max().item() for grad in grads.values()),
        "same parameters": float(own.keys() == grads.keys()),
        "effect": (logits - plain).abs().max().item(),
        "frozen": float(all(p.grad is None for n, p in ours.named_parameters() if "lora_" not in n)),
        "trainable": float(
            sum(p.numel() for p in ours.parameters() if p.requires_grad)
            == sum(p.numel() for p in theirs.parameters() if p.requires_grad)
        ),
    }


def round_trip(family: str, folder: Path) -> dict[str, bool]:
    """Go from PEFT's files to ours, from there to PEFT, and from there to ours."""
    model, targets = base(family), TARGETS[family]
    of_peft(model, targets).save_pretrained(folder / "theirs")
    injector, ours = injected(model, targets)
    injector.load_lora(folder / "theirs")
    injector.save_lora(folder / "ours")
    loaded = PeftModel.from_pretrained(copy.deepcopy(model), folder / "ours")
    loaded.save_pretrained(folder / "again")
    again, _ = injected(model, targets)
    files.read(folder / "again", again.lora_layers)
    saved = [load_file(folder / name / files.WEIGHTS) for name in ("theirs", "ours", "again")]
    return {
        "files": all(
            one.keys() == saved[0].keys() and all(torch.equal(one[key], saved[0][key]) for key in one) for one in saved
        ),
        "tensors": all(
            torch.equal(a, b)
            for a, b in zip(injector.get_trainable_params(), again.get_trainable_params(), strict=True)
        ),
        "logits": torch.equal(loss_of(loaded.eval())[0], loss_of(ours.eval())[0]),
    }


def gradcheck() -> dict[str, bool]:
    """Compare gradients with finite differences, in float64."""
    torch.manual_seed(0)
    lora = TrainableLoRALinear(5, 4, rank=3, alpha=6).double()
    parts = [Part("q", TrainableLoRALinear(5, 3, rank=2).double(), 0), Part("v", lora, 4)]
    for part in parts:
        nn.init.normal_(part.lora.lora_b)
    fused = FusedLoRA(parts)
    x, output = (torch.randn(2, size, dtype=torch.float64, requires_grad=True) for size in (5, 8))

    def alone(x: torch.Tensor, base_output: torch.Tensor, *_: torch.Tensor) -> Any:
        return lora(x, base_output[:, :4])

    def together(x: torch.Tensor, base_output: torch.Tensor, *_: torch.Tensor) -> Any:
        return fused(x, base_output.clone())

    expected = output.detach().clone()
    expected[:, :3] = parts[0].lora(x, expected[:, :3].clone())
    expected[:, 4:] = lora(x, expected[:, 4:].clone())
    with torch.no_grad():
        without = fused(x, output.clone())
    dropped = FusedLoRA([Part("q", TrainableLoRALinear(5, 3, rank=2, dropout=1.0).double(), 0)])
    nn.init.normal_(dropped.adapters[0].lora_b)
    kept = output.detach()
    with torch.no_grad():
        generated = dropped(x, kept.clone())
    return {
        "dropout": torch.equal(dropped(x, kept.clone()), kept) and not torch.equal(generated, kept),
        "layer": torch.autograd.gradcheck(alone, (x, output, lora.lora_a, lora.lora_b)),
        "fused": torch.autograd.gradcheck(together, (x, output, *fused.parameters())),
        "fused is its parts": torch.allclose(together(x, output), expected, atol=1e-14, rtol=0)
        and torch.allclose(without, expected, atol=1e-14, rtol=0),
    }


def fused_answers() -> dict[str, bool]:
    """Look at a fused layer that answers: two products serve all parts, with what an optimizer has changed in place."""
    torch.manual_seed(0)
    found = {}
    for name, alphas in {"one scale": (4, 8), "two scales": (4, 4)}.items():
        loras = [TrainableLoRALinear(5, 3, 2, alphas[0]), TrainableLoRALinear(5, 4, 4, alphas[1])]
        nn.init.normal_(loras[1].lora_b)  # is kept
        fused = FusedLoRA([Part("q", loras[0], 1), Part("v", loras[1], 6)])
        optimizer = torch.optim.AdamW(fused.parameters(), lr=0.1)
        x, plain = torch.randn(7, 5), torch.randn(7, 12)
        fused(x, plain.clone()).square().sum().backward()
        optimizer.step()
        expected = fused(x, plain.clone()).detach()
        with torch.no_grad(), torch.profiler.profile() as profile:
            answered = fused(x, plain.clone())
        names = [event.name for event in profile.events()]
        with torch.no_grad():
            row = fused(x[None], plain[None].clone())
            half = fused(x, plain.bfloat16())
        found[name] = (
            torch.allclose(answered, expected, atol=1e-6, rtol=0)
            and torch.allclose(row[0], expected, atol=1e-6, rtol=0)
            and torch.allclose(half.float(), expected, atol=0.1, rtol=0)
            and not torch.allclose(expected[:, 1:4], plain[:, 1:4], atol=1e-2, rtol=0)
            and torch.equal(answered[:, 4:6], plain[:, 4:6])
            and sum(name in ("aten::mm", "aten::addmm", "aten::addmm_") for name in names) == 2
        )
    return found


def first_steps() -> dict[str, bool]:
    """Look at gradients of a new adapter: it adds nothing, so only its second matrix learns at first."""
    injector, model = injected(base("qwen3"), ATTENTION)
    unchanged = torch.equal(loss_of(model)[0], loss_of(base("qwen3"))[0])
    optimizer = torch.optim.AdamW(injector.get_trainable_params(), lr=1e-2)
    seen = []
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model)[1].backward()
        seen.append([bool(matrix.grad.abs().max() > 0) for matrix in injector.get_trainable_params()])
        optimizer.step()
    with injector.disabled():
        off = torch.equal(loss_of(model)[0], loss_of(base("qwen3"))[0])
    torch.manual_seed(99)
    again = injected(base("qwen3"), ATTENTION)[0].get_trainable_params()
    first = injected(base("qwen3"), ATTENTION)[0].get_trainable_params()
    return {
        "the config's seed": all(torch.equal(a, b) for a, b in zip(first, again, strict=True)),
        "adds nothing": unchanged,
        "first": not any(seen[0][::2]) and all(seen[0][1::2]),
        "second": all(seen[1]),
        "disabled is the base": off,
        "enabled again": not torch.equal(loss_of(model)[0], loss_of(base("qwen3"))[0]),
    }


def other_outputs() -> bool:
    """Wrap a layer that returns a tuple, as vLLM's do."""

    class Paired(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x), None

    layer = LoRALinear(Paired(4, 6), TrainableLoRALinear(4, 6, rank=2))
    nn.init.normal_(layer.lora.lora_b)
    x = torch.randn(3, 4)
    output, bias = layer(x)
    return bias is None and torch.equal(output, layer.lora(x, layer.base_layer(x)[0]))


def all_linear() -> dict[str, bool]:
    """Return whether `all-linear` means the layers that it means to PEFT."""
    same = {}
    for family in TARGETS:
        injector, _ = injected(base(family), "all-linear")
        theirs = of_peft(base(family), "all-linear").state_dict()
        found = {name.removeprefix("base_model.model.").partition(".lora_")[0] for name in theirs if "lora_A" in name}
        same[family] = found == injector.lora_layers.keys()
    return same


def refusals(folder: Path) -> dict[str, str]:
    """Return what is said of wrong input."""
    model = base("llama")
    injector, _ = injected(model, ATTENTION)
    layers = injector.lora_layers

    def adapter(**other: Any) -> Path:
        name = folder / "-".join(map(str, other))
        config = LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": ATTENTION, "task_type": "CAUSAL_LM", **other})
        get_peft_model(copy.deepcopy(model), config).save_pretrained(name)
        return name

    wider = injected(AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZE | {"hidden_size": 64})),
                     ATTENTION)[0]  # fmt: skip
    files.write(folder / "wider", wider.lora_layers, wider.config, "other")
    files.write(folder / "another", layers, injector.config, "org/another")
    for name in ("cut", "no JSON"):
        files.write(folder / name, layers, injector.config, "")
    weights = folder / "cut" / files.WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-100])
    (folder / "no JSON" / files.CONFIG).write_text("{")
    named = copy.deepcopy(model)
    named.name_or_path = "org/one"
    attempts: dict[str, Callable[[], object]] = {
        "no files": lambda: files.read(folder / "none", layers),
        "cut": lambda: files.read(folder / "cut", layers),
        "no JSON": lambda: files.read(folder / "no JSON", layers),
        "dora": lambda: files.read(adapter(use_dora=True), layers),
        "rslora": lambda: files.read(adapter(use_rslora=True), layers),
        "scale": lambda: files.read(adapter(lora_alpha=16), layers),
        "rank": lambda: files.read(adapter(r=8, lora_alpha=16), layers),
        "targets": lambda: files.read(adapter(target_modules=["q_proj"]), layers),
        "other base": lambda: files.read(folder / "wider", layers),
        "named base": lambda: injected(named, ATTENTION)[0].load_lora(folder / "another"),
        "no such layer": lambda: injected(model, ["query"]),
        "not linear": lambda: injected(model, ["embed_tokens"]),
    }
    before = [matrix.clone() for matrix in injector.get_trainable_params()]
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except LabError as error:
            said[name] = str(error)
    assert all(torch.equal(a, b) for a, b in zip(before, injector.get_trainable_params(), strict=True))
    return said


def main(folder: Path) -> None:
    """Look at everything."""
    torch.set_num_threads(1)
    seen = {
        "distances": {family: distances(family, folder / family) for family in TARGETS},
        "dropout": distances("llama", folder / "dropout", dropout=0.3),
        "half": distances("llama", folder / "half", dtype=torch.bfloat16),
        "round trip": {family: round_trip(family, folder / f"{family}-files") for family in TARGETS},
        "gradcheck": gradcheck(),
        "fused answers": fused_answers(),
        "first steps": first_steps(),
        "tuple": other_outputs(),
        "all-linear": all_linear(),
        "refusals": refusals(folder),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
