"""The recipe packs SFT of every model of the catalogue on a known NVIDIA GPU, as UPGRADING.md says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from charts.entries import ENTRIES, facts_of, model_of
from stoker.frameworks import TRL
from stoker.plan.resolve import read_request, resolve_plan


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize(
    ("machine", "attention"),
    [
        ({"kernel_packages": ("liger-kernel",), "torch": (2, 13)}, "varlen_attention"),
        ({"kernel_packages": ("flash-attn",)}, "flash_attention_2"),
    ],
)
def test_the_recipe_packs_every_model(name: str, machine: dict[str, Any], attention: str) -> None:
    entry = ENTRIES[name]
    facts = replace(facts_of(entry, "nvidia"), cuda_generation=9, device_bytes=80 * 2**30, **machine)
    plan = resolve_plan(read_request(facts, TRL(), ()), model=model_of(entry))
    found = {setting.name: setting.value for setting in plan.settings}
    assert (found["packing"], found["attn_implementation"]) == ("true", attention)
