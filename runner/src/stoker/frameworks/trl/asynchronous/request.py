"""What a run of `grpo_async` asks of the samplers of its TrainJob. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from stoker.contract.samplers import OF_THE_JOB, SamplerRequest
from stoker.frameworks.trl.asynchronous.refusals import METHOD
from stoker.plan.arguments import NONE, FlagTable, Setting, is_true
from stoker.plan.interfaces import Asked

# Kubernetes makes the n-th lost sampler of a Job anew after 10 s, 20 s, 40 s and so on, 10 minutes at most. Then vLLM
# may take as long as its startup probe allows.
WAIT_SECONDS, OWN_WAIT_SECONDS = 600.0, 600.0 + 1800.0
# What requests call version 0.
_BASE = "base"
_TYPES = ("float32", "bfloat16", "float16")


def versions_needed(staleness: int, publish_every: int, evaluate_every: int | None = None) -> int:
    """Return how many versions a sampler must hold: those that groups under way may name, and one to load.

    An evaluation publishes a version too, and the next ones count from there.

    Args:
        staleness: the most steps between a version and the step that trains its samples.
        publish_every: steps from one version to the next.
        evaluate_every: steps from one evaluation to the next; None without any, 0 if only the data tells.
    """
    if evaluate_every is None:
        return staleness // publish_every + 2
    # Where nobody knows: further apart than any sample is old, and as soon after another version as can be.
    every = evaluate_every or staleness * publish_every + 1
    versions = -(-every // publish_every)
    shortest = every - (versions - 1) * publish_every
    # The most lie in the steps that begin with the last version before an evaluation: this one, and with the rest of
    # the steps the evaluation's and those after it.
    whole, rest = divmod(staleness, every)
    return whole * versions + 1 + (1 + (rest - shortest) // publish_every) + 1


def steps_between_evaluations(strategy: str, steps: float, total: int) -> int | None:
    """Return the steps from one evaluation to the next; None without any, 0 if only the data tells.

    Args:
        strategy: `--eval_strategy`.
        steps: `--eval_steps`: below 1, a share of all steps.
        total: all steps; 0 or less if that is not known.
    """
    if strategy != "steps":
        return 0 if strategy == "epoch" else None
    return int(steps) if steps >= 1 else max(1, math.ceil(steps * total))


def seconds_to_wait(samplers: str | None, asked: float | None) -> float:
    """Return how long a run waits while no sampler is ready.

    Args:
        samplers: `--samplers`.
        asked: `--fleet_wait_seconds`; None for what suits these samplers.
    """
    if asked is not None:
        return asked
    return OWN_WAIT_SECONDS if samplers == OF_THE_JOB else WAIT_SECONDS


def sampler_request(asked: Asked, table: FlagTable, settings: Mapping[str, Setting]) -> SamplerRequest | None:
    """Return what the samplers must serve; None if the run has none of its own."""

    def text(name: str) -> str:
        if name in settings:
            return str(settings[name].value)
        return table.flags[name].default or ""

    if asked.method != METHOD or text("samplers") != OF_THE_JOB:
        return None

    def number(name: str) -> float:
        return float(text(name)) if text(name) not in ("", NONE) else 0.0

    dtype = text("dtype")
    adapted = is_true(text("use_peft"))
    evaluated = number("eval_steps") or number("logging_steps")
    evaluate_every = steps_between_evaluations(text("eval_strategy"), evaluated, int(number("max_steps")))
    versions = versions_needed(int(number("max_staleness")), int(number("publish_every")), evaluate_every)
    return SamplerRequest(
        model=text("model_name_or_path"),
        name=_BASE,
        adapters=text("adapters") or f"{asked.workspace}/adapters",
        # The data decides the length of the prompts. The trainer compares it with what the samplers then have.
        length=None,
        rank=int(text("lora_r")) if adapted else None,
        versions=versions if adapted else 1,
        dtype=dtype if dtype in _TYPES else "auto",
        revision=text("model_revision"),
    )
