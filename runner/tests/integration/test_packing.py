"""Packed samples do not see each other: the loss is that of the samples one by one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("packed_losses.py")


def losses(python: Path, attention: str) -> list[float]:
    """Return the loss of samples one by one, and packed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([python, SCRIPT, attention], check=True, stdout=subprocess.PIPE, text=True, env=env)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
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
