"""Packed samples do not see each other: the loss is that of the samples one by one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def printed(python: Path, script: str, *arguments: str | Path) -> Any:
    """Return what a script beside this file prints at its end."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    command = [python, Path(__file__).with_name(script), *arguments]
    return json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout.splitlines()[-1]
    )


def losses(python: Path, attention: str) -> list[float]:
    """Return the loss of samples one by one, and packed."""
    found: list[float] = printed(python, "packed_losses.py", attention)
    return found


@pytest.mark.full
def test_trls_packing_keeps_samples_apart_unless_it_wraps_them(
    trainer_python: Path, inputs: Path, tmp_path: Path
) -> None:
    found = printed(trainer_python, "trl_packing_losses.py", inputs / "model", tmp_path)
    assert abs(found["alone"] - found["bfd"]) < 1e-3
    # Here each sample sees those before it in its row: this comparison would show it.
    assert abs(found["alone"] - found["wrapped"]) > 1e-2


@pytest.mark.parametrize("attention", ["sdpa", pytest.param("eager", marks=pytest.mark.full)])
def test_attention_with_masks_keeps_samples_apart(trainer_python: Path, attention: str) -> None:
    """No recipe packs for these, because a mask is slow, but a user who writes --packing may."""
    alone, packed = losses(trainer_python, attention)
    assert abs(alone - packed) < 1e-3


@pytest.mark.gpu
def test_flash_attention_keeps_samples_apart(cuda_python: Path) -> None:
    if subprocess.run([cuda_python, "-c", "import flash_attn"], check=False, capture_output=True).returncode:
        pytest.skip("flash-attn is not in the image's environment")
    alone, packed = losses(cuda_python, "flash_attention_2")
    assert abs(alone - packed) < 1e-3
