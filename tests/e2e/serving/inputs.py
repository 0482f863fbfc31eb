"""Makes, in a pod of the trainer's image, what the server's tests serve: a base model, a run's adapter, and wrong ones.

The adapter is what `stoker run` leaves after a few steps of LoRA SFT. The wrong ones are that adapter with one thing
changed, and with a manifest that says what is there, so that only that one thing can be what is found.

Args on the command line: folder of the example's program and data, folder to write `model`, `output`, `wrong/*` into.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

CONFIG, WEIGHTS, MANIFEST = "adapter_config.json", "adapter_model.safetensors", "stoker.json"
TRAIN = (
    "stoker", "run", "trl.scripts.sft", "--use_peft", "--lora_target_modules=all-linear", "--lora_r=8",
    "--per_device_train_batch_size=8", "--max_steps=60", "--learning_rate=8e-3", "--logging_steps=1", "--max_length=64",
    "--use_cpu", "--ddp_backend=gloo", "--bf16=False",
)  # fmt: skip


def main(source: Path, target: Path) -> None:
    """Make everything."""
    data = source / "elements.jsonl"
    subprocess.run([sys.executable, source / "base_model.py", "--data", data, "--output", target], check=True)
    given = [f"--model_name_or_path={target / 'model'}", f"--dataset_name={target / 'dataset'}"]
    environment = {**os.environ, "STOKER_WORKSPACE": str(target), "STOKER_FRAMEWORK": "trl"}
    subprocess.run([*TRAIN, *given], check=True, env=environment)
    spoil(target / "output", target / "wrong")
    for path in target.rglob("*"):
        path.chmod(0o775 if path.is_dir() else 0o664)


def spoil(output: Path, target: Path) -> None:
    """Write adapters that cannot be served, a folder each."""
    changed(output, target / "no-effect", lambda name, tensor: tensor * 0 if "lora_B" in name else tensor)
    changed(output, target / "other-base", _wider)
    larger = changed(output, target / "too-large", _larger)
    config = json.loads((larger / CONFIG).read_text())
    (larger / CONFIG).write_text(json.dumps({**config, "r": config["r"] * 4}))
    described(larger)
    corrupt = target / "corrupt"
    shutil.copytree(output, corrupt, ignore=shutil.ignore_patterns("checkpoint-*"))
    weights = bytearray((corrupt / WEIGHTS).read_bytes())
    weights[-1] ^= 1
    (corrupt / WEIGHTS).write_bytes(bytes(weights))


def changed(output: Path, folder: Path, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Path:
    """Return a copy of an adapter with every tensor changed, and a manifest that fits it."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(output, folder, ignore=shutil.ignore_patterns("checkpoint-*"))
    tensors = load_file(folder / WEIGHTS)
    save_file({name: change(name, tensor).contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
    described(folder)
    return folder


def described(folder: Path) -> None:
    """Let a manifest say what its files are."""
    manifest = json.loads((folder / MANIFEST).read_text())
    for entry in manifest["files"]:
        content = (folder / entry["path"]).read_bytes()
        entry["bytes"] = len(content)
        if "sha256" in entry:
            entry["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest))


def _wider(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a matrix as a base model of twice the hidden size would have it."""
    return tensor.repeat(1, 2) if "lora_A" in name else tensor.repeat(2, 1)


def _larger(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a matrix of four times the rank."""
    return tensor.repeat(4, 1) if "lora_A" in name else tensor.repeat(1, 4)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
