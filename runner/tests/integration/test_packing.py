"""Packed samples do not see each other: the loss is that of the samples one by one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from runner.tests.integration.scripts import printed

from stoker.frameworks.trl.known_words import VARLEN
from stoker.plan.model_shape import FAMILIES

# How packed_families.py lays samples out.
APART = ("packed", "by positions", "padded")
# flex_attention is compiled first, which takes a minute.
OTHERS = ("eager", "flex_attention")


def families(python: Path, device: str, attention: str) -> dict[str, dict[str, Any]]:
    """Return the loss of samples one by one and packed, of each family, but those whose scores torch cannot cap."""
    named = [name for name in FAMILIES if attention == "default" or name != "gemma2"]
    found = {line["family"]: line for line in printed(python, "packed_families.py", device, attention, *named)}
    assert {*found} == {*named}
    for line in found.values():
        # This comparison would show samples that see each other.
        assert abs(line["alone"] - line["mixed"]) > 5e-3, line
    return found


def losses(python: Path, attention: str) -> list[float]:
    """Return the loss of samples one by one, and packed."""
    (found,) = printed(python, "packed_losses.py", attention)
    return list(found)


@pytest.mark.full
def test_trls_packing_keeps_samples_apart_unless_it_wraps_them(
    trainer_python: Path, inputs: Path, tmp_path: Path
) -> None:
    (found,) = printed(trainer_python, "trl_packing_losses.py", inputs / "model", tmp_path)
    assert abs(found["alone"] - found["bfd"]) < 1e-3
    # Here each sample sees those before it in its row: this comparison would show it.
    assert abs(found["alone"] - found["wrapped"]) > 1e-2


@pytest.mark.parametrize("attention", ["sdpa", *(pytest.param(n, marks=pytest.mark.full) for n in OTHERS)])
def test_attention_with_masks_keeps_samples_apart(trainer_python: Path, attention: str) -> None:
    """The recipe packs for sdpa; with the others a user who writes --packing may."""
    alone, packed = losses(trainer_python, attention)
    assert abs(alone - packed) < 1e-3


@pytest.mark.full
def test_every_family_keeps_packed_samples_apart_by_default(trainer_python: Path) -> None:
    """The recipe packs every family that it knows, but the one that torch's attention does not serve."""
    found = families(trainer_python, "cpu", "default")
    assert {name for name, line in found.items() if line["attention"] != "sdpa"} == {"gemma2"}
    assert {name for name, line in found.items() if abs(line["alone"] - line["packed"]) >= 1e-3} == set()


def test_torchs_flash_attention_is_told_where_each_sample_begins(trainer_python: Path) -> None:
    """The kernel itself needs a GPU; here a slow one stands for it."""
    for line in families(trainer_python, "cpu", VARLEN).values():
        assert {abs(line["alone"] - line[how]) < 1e-5 for how in APART} == {True}, line
        assert line["gradients"] < 1e-5, line


@pytest.mark.gpu
def test_torchs_flash_attention_keeps_samples_apart(cuda_python: Path) -> None:
    for line in families(cuda_python, "cuda", VARLEN).values():
        assert max(abs(line["alone"] - line[how]) for how in ("packed", "by positions")) < 1e-3, line
        # bfloat16 has eight bits, and the products of padded rows are summed in another order.
        assert line["padded"] == pytest.approx(line["alone"], rel=5e-4), line
        assert line["gradients"] < 2e-2, line


@pytest.mark.gpu
def test_flash_attention_keeps_samples_apart(cuda_python: Path) -> None:
    if subprocess.run([cuda_python, "-c", "import flash_attn"], check=False, capture_output=True).returncode:
        pytest.skip("flash-attn is not in the image's environment")
    alone, packed = losses(cuda_python, "flash_attention_2")
    assert abs(alone - packed) < 1e-3
