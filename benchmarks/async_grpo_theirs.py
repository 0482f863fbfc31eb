"""Train with TRL's own asynchronous trainer, for benchmarks/async_grpo.py: `… ORDER`, as JSON.

It is made for GPUs. On a CPU it needs three stand-ins: attention along the paths of its packed rows, which it downloads
as a kernel for CUDA; the arithmetic that a device can do, which it asks CUDA for; and vLLM and aiohttp beside it, of
which it uses the latter alone. Aiohttp is borrowed from vLLM's environment, and nothing else: with vLLM in sight TRL
imports it, into a process with other versions of what it stands on.
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# A child that it starts reads this module again, with the same arguments.
ORDER: dict[str, Any] = json.loads(sys.argv[1])
sys.path.append(str(ROOT))
# Aiohttp, and what it imports.
_BORROWED = (
    "aiohappyeyeballs", "aiohttp", "aiosignal", "attr", "attrs", "frozenlist", "idna", "multidict", "propcache", "yarl",
)  # fmt: skip


class Borrowed:
    """Finds the packages that are borrowed, where this environment has none of that name."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return where a package is; None if it is not to be borrowed."""
        return PathFinder.find_spec(name, [ORDER["packages"]]) if path is None and name in _BORROWED else None


sys.meta_path.append(Borrowed)

import torch  # noqa: E402
from benchmarks.async_grpo_rewards import right_sum  # noqa: E402
from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from transformers import AutoTokenizer, TrainerCallback  # noqa: E402
from trl.experimental.async_grpo import (  # noqa: E402
    AsyncGRPOConfig,
    AsyncGRPOTrainer,
    async_grpo_trainer,
    async_rollout_worker,
    packing,
)

# Prompts and answers are as in the example: what follows the sum's equals sign.
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
_ANSWER = {
    "defaults": {"role": "assistant"},
    "start_anchor": "=",
    "fields": {"content": {"close": "<end>", "content": "text"}},
}


def tree_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    *,
    tree_kv_index: torch.Tensor,
    tree_cu_seqlens_q: torch.Tensor,
    tree_cu_seqlens_k: torch.Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend from each segment of a packed row to the tokens on its path, the last of which are its own."""
    asked, known = tree_cu_seqlens_q.diff(), tree_cu_seqlens_k.diff()
    segments = torch.arange(len(asked))
    rows, columns = torch.repeat_interleave(segments, asked), torch.repeat_interleave(segments, known)
    place = torch.arange(len(rows)) - tree_cu_seqlens_q[rows] + (known - asked)[rows]
    seen = torch.arange(len(columns)) - tree_cu_seqlens_k[columns]
    allowed = (rows[:, None] == columns[None]) & (seen[None] <= place[:, None])
    found = torch.nn.functional.scaled_dot_product_attention(
        query,
        key.index_select(2, tree_kv_index),
        value.index_select(2, tree_kv_index),
        attn_mask=allowed,
        scale=scaling,
        enable_gqa=True,
    )
    return found.transpose(1, 2).contiguous(), None


packing.tree_attention = tree_attention
async_grpo_trainer.get_peak_flops_per_device = lambda *_: None
async_rollout_worker.is_vllm_available = lambda *_: True


class Lines(TrainerCallback):
    """Keeps what each step logged."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Keep the numbers of a step."""
        if logs and "loss" in logs:
            self.lines.append({name: value for name, value in logs.items() if isinstance(value, int | float)})


def main() -> None:
    """Train, and write what each step logged."""
    rows = [json.loads(line) for line in Path(ORDER["dataset"]).read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(ORDER["model"])
    tokenizer.chat_template, tokenizer.response_template = _TEMPLATE, _ANSWER
    output, lines = Path(ORDER["output"]), Lines()
    trainer = AsyncGRPOTrainer(
        ORDER["model"],
        reward_funcs=right_sum,
        args=AsyncGRPOConfig(
            str(output),
            max_steps=ORDER["steps"],
            per_device_train_batch_size=ORDER["groups"] * ORDER["samples"],
            num_generations=ORDER["samples"],
            max_staleness=ORDER["staleness"],
            max_completion_length=ORDER["tokens"],
            learning_rate=float(ORDER["learning_rate"]),
            lr_scheduler_type="cosine",
            vllm_server_base_url=ORDER["address"],
            token_budget=0,  # the same samples in each step
            seed=ORDER["seed"],
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(
            [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
        ),
        processing_class=tokenizer,
        callbacks=[lines],
        peft_config=LoraConfig(r=ORDER["rank"], lora_alpha=2 * ORDER["rank"], target_modules="all-linear"),
    )
    # One vLLM serves all runs. It must not know a name of this one: neither refuse it, nor answer from its cache.
    name = trainer._lora_name = output.name
    trainer.rollout_worker._loop_kwargs["lora_name"] = name
    trainer.train()
    for version in range(max(1, trainer.model_version - ORDER["staleness"] - 1), trainer.model_version + 1):
        trainer.vllm_client.unload_lora_adapter(f"{name}-v{version}")
    (output / "lines.json").write_text(json.dumps(lines.lines))


if __name__ == "__main__":
    main()
