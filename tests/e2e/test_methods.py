"""Every method beside SFT, two pods each, to Complete: preference pairs, labels, rewards and generated samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from e2e.conftest import EXAMPLE, asked_for
from e2e.trainjobs import INPUTS_CLAIM, Reader, Run, trainjob

STEPS = 2
COMMON = (
    "--model_name_or_path=/inputs/model",
    "--per_device_train_batch_size=2",
    f"--max_steps={STEPS}",
    "--logging_steps=1",
)
LORA = ("--use_peft", "--lora_target_modules=all-linear")
METHODS: Mapping[str, Sequence[str]] = {
    "dpo": ("--dataset_name=/inputs/pairs", *LORA),
    "kto": ("--dataset_name=/inputs/labels", *LORA),
    "orpo": ("--dataset_name=/inputs/pairs", *LORA),
    "reward": ("--dataset_name=/inputs/pairs",),
    "grpo": (
        "--dataset_name=/inputs/prompts",
        "--reward_funcs=rewards.is_short",
        "--num_generations=2",
        "--max_completion_length=8",
        *LORA,
    ),
}
REWARDS = "def is_short(completions, **_):\n    return [-float(len(c[-1]['content'])) for c in completions]\n"


def rows_of(data: str) -> list[dict[str, Any]]:
    """Return rows of the example's data in the shape a kind of method reads (TRL 1.16, docs/dataset_formats)."""
    given = [json.loads(line) for line in (EXAMPLE / "data/elements.jsonl").read_text().splitlines()[:8]]
    wrong = [row["completion"] for row in given[1:] + given[:1]]
    if data == "prompts":
        return [{"prompt": row["prompt"]} for row in given]
    if data == "pairs":
        return [
            {"prompt": row["prompt"], "chosen": row["completion"], "rejected": other}
            for row, other in zip(given, wrong, strict=True)
        ]
    return [{**row, "label": True} for row in given] + [
        {"prompt": row["prompt"], "completion": other, "label": False} for row, other in zip(given, wrong, strict=True)
    ]


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest,
    submit_together: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Run]],
    reader: Reader,
) -> Mapping[str, Run]:
    """One TrainJob per method that is asked for."""
    asked = asked_for(request, test_the_method_trains_on_two_pods_to_complete, "method")
    for data in ("pairs", "labels", "prompts"):
        lines = "\n".join(json.dumps(row) for row in rows_of(data))
        reader.write(INPUTS_CLAIM, f"{data}/train.jsonl", lines)
    reader.write(INPUTS_CLAIM, "rewards.py", REWARDS)
    return submit_together(
        [
            trainjob(
                f"method-{method}",
                [f"trl.scripts.{method}", *COMMON, *args],
                env={"PYTHONPATH": "/inputs"} if method == "grpo" else {},
            )
            for method, args in METHODS.items()
            if method in asked
        ]
    )


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
def test_the_method_trains_on_two_pods_to_complete(runs: Mapping[str, Run], reader: Reader, method: str) -> None:
    run = runs[f"method-{method}"]
    run.wait_complete(seconds=600)
    manifest = run.manifest(reader)
    found = (manifest["method"], manifest["steps"], manifest["world_size"], manifest["nodes"])
    assert found == (method, STEPS, 2, 2)
    assert run.restarts().total == 0
