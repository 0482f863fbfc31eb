"""The table of runtimes whose SFT the recipe packs is the truth about the catalogue on a known NVIDIA GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from charts.entries import ENTRIES, facts_of, model_of
from charts.helm import ROOT
from stoker.frameworks import TRL
from stoker.plan.resolve import read_request, resolve_plan

PAGE = (ROOT / "docs" / "reference" / "trainer-flags.md").read_text()
(ROW,) = re.findall(r"^\| (`trl-.*) \| yes \|$", PAGE, re.MULTILINE)
PACKED = {*re.findall(r"`(trl-[^`]+)`", ROW)}


def test_the_page_names_runtimes_of_the_catalogue() -> None:
    assert {*ENTRIES} >= PACKED


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("packages", [("liger-kernel",), ("flash-attn",)])
def test_the_recipe_packs_what_the_page_says(name: str, packages: tuple[str, ...]) -> None:
    entry = ENTRIES[name]
    unknown = facts_of(entry, "nvidia")
    facts = replace(unknown, cuda_generation=9, device_bytes=80 * 2**30, kernel_packages=packages)
    plan = resolve_plan(read_request(facts, TRL(), ()), model=model_of(entry))
    packed = [setting.value for setting in plan.settings if setting.name == "packing"]
    assert packed == (["true"] if name in PACKED or "flash-attn" in packages else [])
