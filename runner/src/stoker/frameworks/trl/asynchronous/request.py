"""What a run of `grpo_async` asks of the samplers of its TrainJob. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.contract.samplers import OF_THE_JOB, SamplerRequest
from stoker.frameworks.trl.asynchronous.refusals import METHOD
from stoker.plan.arguments import FlagTable, Setting, is_true
from stoker.plan.interfaces import Asked

# What requests call version 0.
_BASE = "base"
_TYPES = ("float32", "bfloat16", "float16")


def versions_needed(staleness: int, publish_every: int) -> int:
    """Return how many versions a sampler must hold: those that groups under way may name, and one to load."""
    return staleness // publish_every + 2


def sampler_request(asked: Asked, table: FlagTable, settings: Mapping[str, Setting]) -> SamplerRequest | None:
    """Return what the samplers must serve; None if the run has none of its own."""

    def text(name: str) -> str:
        if name in settings:
            return str(settings[name].value)
        return table.flags[name].default or ""

    if asked.method != METHOD or text("samplers") != OF_THE_JOB:
        return None
    dtype = text("dtype")
    adapted = is_true(text("use_peft"))
    return SamplerRequest(
        model=text("model_name_or_path"),
        name=_BASE,
        adapters=text("adapters") or f"{asked.workspace}/adapters",
        # The data decides the length of the prompts, so the model's own limit holds.
        length=None,
        rank=int(text("lora_r")) if adapted else None,
        versions=versions_needed(int(text("max_staleness")), int(text("publish_every"))) if adapted else 1,
        dtype=dtype if dtype in _TYPES else "auto",
        revision=text("model_revision"),
    )
