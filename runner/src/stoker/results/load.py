"""Loads a result with transformers and PEFT. Imports them when it is called."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.manifest import ADAPTER_CONFIG
from stoker.results.folder import AdapterBase, Result
from stoker.results.packages import needing

_TOKENIZER = "tokenizer_config.json"
_TOKENIZER_FILES = ("token*", "vocab*", "*.model")
_NEWEST = "main"
# Seldom more than a line is of use.
_CHARACTERS = 300


@contextmanager
def device_memory(advice: str) -> Iterator[None]:
    """Say what to do if the body needs more memory than the device has.

    Args:
        advice: what to change.

    Raises:
        RunError: it does (78).
    """
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's: by its name, because torch may not be installed
            raise
        raise RunError(
            ExitCode.CONFIG,
            f"out of device memory: {advice}, or hide the device (CUDA_VISIBLE_DEVICES=) to compute on the CPU",
        ) from error


def load(result: Result, base: AdapterBase | None, *, on_device: bool = True) -> tuple[Any, Any]:
    """Return a result as a model, and its tokenizer.

    Args:
        result: the result.
        base: the base model of an adapter.
        on_device: True to put the model on the accelerator, if there is one.

    Raises:
        RunError: a package is missing (78), or the files cannot be loaded (65, 78).
    """
    with needing("local"):
        import peft
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
    kind = transformers.AutoModelForCausalLM
    options: dict[str, Any] = {"dtype": "auto"}
    if result.is_classifier:
        kind, options = transformers.AutoModelForSequenceClassification, {**options, "num_labels": 1}
    name, where = (str(result.path), {}) if base is None else (base.name, {"revision": base.revision or _NEWEST})
    try:
        model = kind.from_pretrained(name, **options, **where)
        tokenizer = tokenizer_of(result, base)
        if base is not None:
            # Training may have added tokens.
            if len(tokenizer) > model.get_input_embeddings().num_embeddings:
                model.resize_token_embeddings(len(tokenizer))
            model = peft.PeftModel.from_pretrained(model, str(result.path))
    except (OSError, ValueError, KeyError, json.JSONDecodeError) as error:
        raise RunError(ExitCode.BAD_DATA, f"{name} cannot be loaded: {_line(error)}; fetch it again") from error
    except RuntimeError as error:
        # PEFT's answer to matrices of other sizes.
        if base is None or "size mismatch" not in str(error):
            raise
        raise RunError(
            ExitCode.CONFIG,
            f"{result.path / ADAPTER_CONFIG} is not of an adapter of {name}: name its base model with --base",
        ) from error
    if on_device:
        model.to(device())
    return model.eval(), tokenizer


def has_tokenizer(result: Result) -> bool:
    """Return whether a result has a tokenizer of its own."""
    return (result.path / _TOKENIZER).is_file()


def tokenizer_source(result: Result, base: AdapterBase | None) -> tuple[str, str]:
    """Return where a result's tokenizer is, folder or name on the Hub, and its revision there.

    Args:
        result: the result.
        base: the base model of an adapter, which has the tokenizer if the adapter has none.
    """
    if base is None or has_tokenizer(result):
        return str(result.path), _NEWEST
    return base.name, base.revision or _NEWEST


def tokenizer_of(result: Result, base: AdapterBase | None) -> Any:
    """Return a result's tokenizer.

    Args:
        result: the result.
        base: as for `tokenizer_source`.

    Raises:
        RunError: a package is missing (78), or there is none, or it cannot be loaded (65).
    """
    with needing("local"):
        import transformers

        transformers.utils.logging.set_verbosity_error()
    name, revision = tokenizer_source(result, base)
    # For a model without any of its files, transformers makes a tokenizer without words.
    if name == str(result.path) and not any(any(result.path.glob(pattern)) for pattern in _TOKENIZER_FILES):
        raise RunError(
            ExitCode.BAD_DATA,
            f"{result.path} has no tokenizer: fetch the result again, or copy its base model's tokenizer there",
        )
    try:
        return transformers.AutoTokenizer.from_pretrained(name, revision=revision)
    except (OSError, ValueError, KeyError) as error:
        raise RunError(
            ExitCode.BAD_DATA, f"the tokenizer of {name} cannot be loaded: {_line(error)}; fetch it again"
        ) from error


def device() -> str:
    """Return where models compute."""
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if accelerator is None else accelerator.type


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:_CHARACTERS]
