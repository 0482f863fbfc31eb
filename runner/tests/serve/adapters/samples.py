"""Models and adapters as their libraries leave them, of a few bytes: real safetensors files, without the library."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HIDDEN, RANK = 8, 2
BASE = "acme/tiny"
PREFIX = "base_model.model.model.layers.0.self_attn"


def write_tensors(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Write a safetensors file of zeros in float32."""
    entries, end = {}, 0
    for name, shape in shapes.items():
        size = 4
        for length in shape:
            size *= length
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(end))


def write_tokenizer(folder: Path, tokens: int, added: int = 0) -> None:
    """Write a tokenizer.json of so many pieces and added tokens."""
    data = {
        "model": {"vocab": {f"t{number}": number for number in range(tokens)}},
        "added_tokens": [{"id": tokens + number, "content": f"<{number}>"} for number in range(added)],
    }
    (folder / "tokenizer.json").write_text(json.dumps(data))


def make_model(folder: Path, hidden: int = HIDDEN) -> Path:
    """Return the folder of a model with one layer."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    write_tensors(
        folder / "model.safetensors",
        {
            "model.layers.0.self_attn.q_proj.weight": (hidden, hidden),
            "model.layers.0.self_attn.v_proj.weight": (hidden // 2, hidden),
        },
    )
    write_tokenizer(folder, 10)
    return folder


def make_adapter(
    folder: Path,
    *,
    config: Mapping[str, Any] | None = None,
    manifest: Mapping[str, Any] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    added_tokens: int = 0,
) -> Path:
    """Return the folder of a finished run's adapter for that model.

    Args:
        folder: where.
        config: what differs in its adapter_config.json.
        manifest: what differs in its stoker.json.
        shapes: its tensors, if they are not to fit the model.
        added_tokens: how many tokens its tokenizer knows besides the model's.
    """
    folder.mkdir(parents=True)
    settings = {
        "peft_type": "LORA", "r": RANK, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"], "bias": "none",
        "base_model_name_or_path": "/workspace/model", "use_dora": False, "modules_to_save": None, "rank_pattern": {},
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps({**settings, **(config or {})}))
    default = {
        f"{PREFIX}.{module}.lora_{half}.weight": shape
        for module, out in (("q_proj", HIDDEN), ("v_proj", HIDDEN // 2))
        for half, shape in (("A", (RANK, HIDDEN)), ("B", (out, RANK)))
    }
    write_tensors(folder / "adapter_model.safetensors", default if shapes is None else shapes)
    write_tokenizer(folder, 10, added_tokens)
    files = [
        {"path": path.name, "bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(folder.iterdir())
    ]
    written = {
        "schemaVersion": 1, "status": "finished", "base_model": {"name_or_path": BASE, "revision": None},
        "adapter": {"type": "LORA", "rank": RANK}, "files": files,
    }  # fmt: skip
    (folder / "stoker.json").write_text(json.dumps({**written, **(manifest or {})}))
    return folder
