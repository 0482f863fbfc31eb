"""Loads a result with transformers and PEFT. Imports them when it is called."""

from __future__ import annotations

import json
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.manifest import ADAPTER_CONFIG
from stoker.results.folder import AdapterBase, Result
from stoker.results.packages import needing

_TOKENIZER = "tokenizer_config.json"
# Seldom more than a line is of use.
_CHARACTERS = 300


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
    name, where = (str(result.path), {}) if base is None else (base.name, {"revision": base.revision or "main"})
    try:
        model = kind.from_pretrained(name, **options, **where)
        tokens = (str(result.path), {}) if (result.path / _TOKENIZER).is_file() else (name, where)
        tokenizer = transformers.AutoTokenizer.from_pretrained(tokens[0], **tokens[1])
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


def device() -> str:
    """Return where models compute."""
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if accelerator is None else accelerator.type


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:_CHARACTERS]
