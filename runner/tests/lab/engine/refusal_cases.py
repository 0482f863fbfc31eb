"""What an engine refuses before it loads a model: `python refusal_cases.py FOLDER`; prints it as JSON.

Runs in an environment with transformers and without vLLM.
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from runner.tests.lab.engine import tiny
from transformers import AutoModelForCausalLM

from stoker.lab.config import LoRATrainConfig
from stoker.lab.engine.engine import TrainableEngine
from stoker.lab.errors import LabError


def main(folder: Path) -> None:
    """Try everything."""
    model = tiny.write(folder / "model", "llama")
    quantized = folder / "quantized"
    quantized.mkdir()
    config = json.loads((model / "config.json").read_text())
    (quantized / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))

    half = Path(shutil.copytree(model, folder / "half"))
    (half / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))

    unknown = folder / "unknown"
    unknown.mkdir()
    (unknown / "config.json").write_text("{}")

    def start(path: Path, config: LoRATrainConfig | None = None, **arguments: Any) -> TrainableEngine:
        adapters = config or LoRATrainConfig(rank=4, alpha=8)
        return TrainableEngine(str(path), adapters, **{"backend": "transformers", **arguments})

    engine = start(model)
    ids = torch.tensor([[5, 6, 7]])
    long = torch.full((1, tiny.SIZE["max_position_embeddings"] + 1), 5)
    engine.model_name = "org/another"
    engine.save_lora(folder / "adapter")
    engine.model_name = "org/one"
    before = [matrix.clone() for matrix in engine.injector.get_trainable_params()]
    attempts: dict[str, Callable[[], object]] = {
        "backend": lambda: start(model, backend="sglang"),
        "no vLLM": lambda: start(model, backend="vllm"),
        "own argument": lambda: start(model, backend="vllm", load_format="dummy"),
        "ranks": lambda: start(model, backend="vllm", tensor_parallel_size=2),
        "stages": lambda: start(model, backend="vllm", pipeline_parallel_size=2),
        "fp8": lambda: start(model, quantization="fp8"),
        "fp8 files": lambda: start(quantized),
        "fp8 type": lambda: start(model, dtype=torch.float8_e4m3fn),
        "bfloat16": lambda: start(model, config=LoRATrainConfig(dtype="bfloat16")),
        "bfloat16 argument": lambda: start(model, dtype=torch.bfloat16),
        "no model": lambda: start(folder / "nothing"),
        "no files": lambda: start(folder),
        "no kind": lambda: start(unknown),
        "no labels": lambda: engine.train_step({"input_ids": ids, "labels": torch.full_like(ids, -100)}),
        "no batch": lambda: engine.train_step([]),
        "no column": lambda: engine.train_step({"input_ids": ids}),
        "lists": lambda: engine.train_step({"input_ids": ids.tolist(), "labels": ids.tolist()}),
        "one row": lambda: engine.train_step({"input_ids": ids[0], "labels": ids[0]}, loss=lambda model, _: model(ids)),
        "long row": lambda: engine.train_step({"input_ids": long, "labels": long}),
        "long prompt": lambda: engine.generate(["2+3=", long[0].tolist()], max_tokens=4),
        "sampling": lambda: engine.generate(["2+3="], max_tokens=0, temperature=-1.0),
        "other sampling": lambda: engine.generate(["2+3="], stop=["5"], n=2),
        "not a number": lambda: engine.train_step(
            {"input_ids": ids, "labels": ids}, loss=lambda model, batch: model(**batch).loss * float("nan")
        ),
        "one text": lambda: engine.generate("2+3="),
        "other base": lambda: engine.load_lora(folder / "adapter"),
        "vLLM itself": lambda: engine.llm,
    }
    with mock.patch.object(AutoModelForCausalLM, "from_pretrained") as loading:
        said = told(attempts)
    unchanged = all(torch.equal(a, b) for a, b in zip(before, engine.injector.get_trainable_params(), strict=True))
    auto = str(start(half, dtype="auto").model.dtype)
    closed = after_its_end(engine, folder)
    found = {"said": said, "loaded": loading.call_count, "unchanged": unchanged, "auto": auto, "closed": closed}
    print(json.dumps(found))


def told(attempts: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    """Return what is said of each attempt that is refused."""
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except LabError as error:
            said[name] = str(error)
    return said


def after_its_end(engine: TrainableEngine, folder: Path) -> dict[str, Any]:
    """Close an engine, and return whether its model is gone, and what is said of each use."""
    ids = torch.tensor([[5, 6, 7]])
    model = weakref.ref(engine.model)
    engine.close()
    engine.close()
    gc.collect()
    uses: dict[str, Callable[[], object]] = {
        "train_step": lambda: engine.train_step({"input_ids": ids, "labels": ids}),
        "generate": lambda: engine.generate(["2+3="]),
        "save_lora": lambda: engine.save_lora(folder / "closed"),
        "load_lora": lambda: engine.load_lora(folder / "adapter"),
        **{name: lambda name=name: getattr(engine, name) for name in ("llm", "model", "tokenizer", "injector")},  # type: ignore[misc]
    }
    said = told(uses)
    return {"gone": model() is None, "uses": len(uses), "said": [*said.values()]}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
