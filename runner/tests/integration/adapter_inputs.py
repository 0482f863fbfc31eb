"""Print what two layers with an adapter compute of the same rows under autocast, as PEFT does and as runs do, as JSON.

For both: outputs and gradients, the bytes that are kept for the backward pass, and how many products of single numbers
were computed. Runs in an environment with the trainers.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from stoker.frameworks.trl.lora_layers import leave_inputs_to_autocast, scale_small


def main() -> None:
    """Print both for several adapters, and whether one still computes where there is no autocast."""
    theirs = {name: computed(name, **options) for name, options in CASES.items()}
    leave_inputs_to_autocast()
    scale_small()
    ours = {name: computed(name, **options) for name, options in CASES.items()}
    layer = adapted()
    without = layer(torch.ones(2, 64, dtype=torch.bfloat16))
    print(json.dumps({"theirs": theirs, "ours": ours, "without autocast": str(without.dtype)}))


# Options of adapters; those that are merged or switched off have the usual ones.
CASES: dict[str, dict[str, Any]] = {
    "scale 2": {},
    "scale 2.5": {"lora_alpha": 10},
    "bias": {"lora_bias": True},
    "merged": {},
    "off": {},
}


class Layers(nn.Module):
    """Two layers with the same input, as those of queries and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.v_proj = (nn.Linear(64, 32, dtype=torch.bfloat16) for _ in range(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the sum of both outputs."""
        return self.q_proj(inputs) + self.v_proj(inputs)


class Products(TorchDispatchMode):
    """Counts the products of single numbers.

    Attributes:
        count: of products.
    """

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        """Count what a function multiplies."""
        found = function(*args, **(options or {}))
        if function.overloadpacket is torch.ops.aten.mul:
            self.count += found.numel()
        return found


def adapted(**options: Any) -> Any:
    """Return frozen layers of bfloat16 with a trained adapter of float32, the same each time."""
    torch.manual_seed(0)
    told = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
    return get_peft_model(Layers(), LoraConfig(**told | options))


def computed(name: str, **options: Any) -> dict[str, Any]:
    """Return what the layer computes, and what it keeps."""
    model = adapted(**options)
    if name == "merged":
        model.merge_adapter()
    if name == "off":
        model.base_model.disable_adapter_layers()
    inputs = torch.randn(16, 64, dtype=torch.bfloat16, requires_grad=True)
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor  # which is not freed, so that no other gets its address
        return tensor

    keeping = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with Products() as products:
        with torch.autocast("cpu", torch.bfloat16), keeping:
            outputs = model(inputs)
        outputs.float().square().sum().backward()
    gradients = [inputs.grad, *(each.grad for each in model.parameters() if each.requires_grad)]
    return {
        "outputs": outputs.tolist(),
        "gradients": [each.tolist() for each in gradients if each is not None],
        "products": products.count,
        "kept": sum(tensor.nbytes for tensor in kept.values()),
    }


if __name__ == "__main__":
    main()
