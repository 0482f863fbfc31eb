"""Mends vLLM 0.31 in the environment it runs in.

- LoRA on CPUs: a batch numbers the adapter of each token, with -1 for none. The kernels for GPUs leave such tokens
  out; the CPU's take -1 for an index, which is the last slot's adapter: once `max-loras` adapters were loaded, the base
  model answers as another adapter would whenever the batch holds a request for any.
- `/server_info`, which TRL's asynchronous trainer asks before it starts, lists pip's packages, and answers 500 where
  there is no pip. No image of ours has one.
- Seeds on CPUs: a request whose prompt takes several steps draws a token in each, and only the last counts. vLLM winds
  the request's generator back by its offset, which a CPU's does not have: one such request with a seed ends the engine.

Ends with 70 where the text to replace is not there: then another vLLM is installed, and this file may not be needed.
"""

from __future__ import annotations

import importlib.util
import py_compile
import sys
from pathlib import Path

_SHRUNK = "    output_tensor[:, : outputs.shape[1]] = scaling * outputs[:]\n"
_NO_PIP = """            raise RuntimeError(
                "Could not collect pip list output (pip or uv module not available)"
            )
"""
_REWOUND = """            if gen is not None:
                gen.set_offset(gen.get_offset() - 4)
"""
# Module, wrong text, right text.
_MENDS = (
    (
        "lora/ops/torch_ops/lora_ops.py",
        _SHRUNK,
        "    # -1 is a token without an adapter, not the last one's.\n"
        "    outputs *= (lora_indices_tensor >= 0).unsqueeze(1)\n" + _SHRUNK,
    ),
    (
        "v1/worker/gpu_model_runner.py",
        _REWOUND,
        """            if gen is not None and gen.device.type != "cpu":
                gen.set_offset(gen.get_offset() - 4)
            elif gen is not None and not self.input_batch.req_output_token_ids[i]:
                gen.manual_seed(gen.initial_seed())  # nothing it has drawn so far counts
""",
    ),
    ("collect_env.py", _NO_PIP, '            return ""  # there is neither pip nor uv\n'),
)


def main() -> None:
    """Replace the texts, and compile the modules anew."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        sys.exit("no vllm in this environment")
    for name, wrong, right in _MENDS:
        module = Path(spec.origin).parent / name
        text = module.read_text(encoding="utf-8")
        if right in text:
            continue
        if text.count(wrong) != 1:
            print(f"{module} is not what it was in vLLM 0.31: look whether it still needs mending", file=sys.stderr)
            sys.exit(70)
        module.write_text(text.replace(wrong, right), encoding="utf-8")
        py_compile.compile(str(module), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


if __name__ == "__main__":
    main()
