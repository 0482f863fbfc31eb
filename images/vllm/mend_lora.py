"""Mends vLLM 0.31's LoRA on CPUs in the environment it runs in: requests without an adapter must get none.

A batch numbers the adapter of each token, with -1 for none. The kernels for GPUs leave such tokens out; the CPU's take
-1 for an index, which is the last slot's adapter: once `max-loras` adapters were loaded, the base model answers as
another adapter would whenever the batch holds a request for any (`vllm/lora/ops/torch_ops/lora_ops.py`, bgmv_shrink).

Ends with 70 where the text to replace is not there: then another vLLM is installed, and this file may not be needed.
"""

from __future__ import annotations

import importlib.util
import py_compile
import sys
from pathlib import Path

_WRONG = "    output_tensor[:, : outputs.shape[1]] = scaling * outputs[:]\n"
_RIGHT = (
    "    # -1 is a token without an adapter, not the last one's.\n"
    "    outputs *= (lora_indices_tensor >= 0).unsqueeze(1)\n" + _WRONG
)


def main() -> None:
    """Replace the line and compile the module anew."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        sys.exit("no vllm in this environment")
    module = Path(spec.origin).parent / "lora/ops/torch_ops/lora_ops.py"
    text = module.read_text(encoding="utf-8")
    if _RIGHT in text:
        return
    if text.count(_WRONG) != 1:
        print(f"{module} is not what it was in vLLM 0.31: look whether it still needs mending", file=sys.stderr)
        sys.exit(70)
    module.write_text(text.replace(_WRONG, _RIGHT), encoding="utf-8")
    py_compile.compile(str(module), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


if __name__ == "__main__":
    main()
