"""The load format `trainable`: vLLM's own loader, with weights that can be shared and adapters that train.

Importing this module imports vLLM and registers the format.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn
from vllm.model_executor.model_loader import DefaultModelLoader, register_model_loader

from stoker.lab.config import LoRATrainConfig
from stoker.lab.engine.plain import keep_weights
from stoker.lab.lora.injector import LoRAInjector

LOAD_FORMAT = "trainable"


@register_model_loader(LOAD_FORMAT)
class TrainableModelLoader(DefaultModelLoader):
    """Loads a model whose weights another model may share, with adapters of ours in its layers.

    Args:
        load_config: of vLLM. Its `model_loader_extra_config` may have `lora`, the fields of a `LoRATrainConfig`.
        lora_train_config: the adapters; without it, those of `load_config`, or none.
    """

    def __init__(self, load_config: Any, lora_train_config: LoRATrainConfig | None = None) -> None:
        extra = dict(load_config.model_loader_extra_config)
        fields = extra.pop("lora", None)
        self.lora_train_config = LoRATrainConfig(**fields) if fields and not lora_train_config else lora_train_config
        # The files are those of any model.
        super().__init__(dataclasses.replace(load_config, load_format="auto", model_loader_extra_config=extra))

    def load_weights(self, model: nn.Module, model_config: Any) -> None:
        """Load the weights, and keep vLLM from packing them."""
        super().load_weights(model, model_config)
        keep_weights(model)

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> nn.Module:
        """Load a model and put adapters into it.

        Returns:
            The model. Its `lora_injector` knows its adapters, if it has any.
        """
        model = super().load_model(vllm_config, model_config, prefix)
        if self.lora_train_config:
            model.lora_injector = LoRAInjector(self.lora_train_config)
            model.lora_injector.inject(model)
        return model
