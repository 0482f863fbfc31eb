"""The optional Python packages that settings of TRL need. Pure.

The rules are those of TRL 1.16 and transformers 5, which look for a package only in the processes of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stoker.frameworks.trl.mappings import mapping_in
from stoker.plan.arguments import Setting
from stoker.plan.interfaces import Account

# Package → its optimizers (transformers/trainer_optimizer.py). A test compares them.
_OPTIMIZERS = {
    "bitsandbytes": (
        *("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit", "ademamix", "ademamix_8bit"),
        *("paged_ademamix_32bit", "paged_ademamix_8bit", "lion_32bit", "lion_8bit", "paged_lion_32bit"),
        *("paged_lion_8bit", "rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit"),
    ),
    "galore_torch": (
        *("galore_adamw", "galore_adamw_8bit", "galore_adafactor", "galore_adamw_layerwise"),
        *("galore_adamw_8bit_layerwise", "galore_adafactor_layerwise"),
    ),
    "apollo_torch": ("apollo_adamw", "apollo_adamw_layerwise"),
    "torch_npu": ("adamw_torch_npu_fused",),
    "torch_xla": ("adamw_torch_xla",),
    "torchao": ("adamw_torch_4bit", "adamw_torch_8bit"),
    "torchdistx": ("adamw_anyprecision",),
    "schedulefree": ("schedule_free_radam", "schedule_free_adamw", "schedule_free_sgd"),
    "lomo_optim": ("lomo", "adalomo"),
    "grokadamw": ("grokadamw",),
    "optimi": ("stable_adamw",),
}
# Tracker → its package (transformers/integrations/integration_utils.py).
_TRACKERS = {
    **{name: name for name in ("clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "neptune")},
    **{name: name for name in ("swanlab", "trackio", "wandb")},
    "azure_ml": "azureml",
    "flyte": "flytekit",
    # Both are imported as `mlflow`; an image's lock names the distribution.
    "mlflow": "mlflow or mlflow_skinny",
    "tensorboard": "tensorboard or tensorboardX",
}
# Tracker → the variables that tell it whom to report to, or that it need not (wandb/sdk/lib/wbauth, wandb_settings.py).
_ACCOUNTS = {
    "wandb": (
        *("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "NETRC"),
        *(f"WANDB_MODE={mode}" for mode in ("offline", "disabled", "dryrun")),
    )
}
TRACKERS = tuple(sorted({*_TRACKERS, "kubeflow"}))
# transformers takes a kernel from the Hub instead, if it can fetch one (PreTrainedModel, hub_kernels.py).
_KERNELS = "kernels"
_ATTENTION = {
    "flash_attention_2": f"flash_attn or {_KERNELS}",
    "flash_attention_3": f"flash_attn_interface or {_KERNELS}",
    "flash_attention_4": f"flash_attn or {_KERNELS}",
}
_ATTENTION_FLAG = "attn_implementation"
# Flag → its value → the package that the value needs and that an image may lack.
PACKAGES: Mapping[str, Mapping[str, str]] = {
    "reward_funcs": {"accuracy_reward": "math_verify", "reasoning_accuracy_reward": "math_verify"},
    "report_to": _TRACKERS,
    "load_in_4bit": {"true": "bitsandbytes"},
    "load_in_8bit": {"true": "bitsandbytes"},
    "use_liger_kernel": {"true": "liger_kernel"},
    "use_vllm": {"true": "vllm"},
    "optim": {name: package for package, names in _OPTIMIZERS.items() for name in names},
    _ATTENTION_FLAG: _ATTENTION,
}
# Flags that need a package whatever their value is.
_WITH_ANY_VALUE = {"deepspeed": "deepspeed"}
# Every package that a setting may need.
ALL_PACKAGES = frozenset(
    {_KERNELS, *_WITH_ANY_VALUE.values(), *(name for names in PACKAGES.values() for name in names.values())}
)
# Flags whose keys are handed to the model.
_OF_MODELS = ("model_init_kwargs", "teacher_model_init_kwargs")


def needed_packages(settings: Mapping[str, Setting]) -> dict[str, str]:
    """Return the packages that settings need: package → the setting, as written.

    Where one of several packages will do, they are joined by ` or `.
    """
    needed = {}
    for flag, word in _words(settings):
        package = _package_of(flag, word.lower())
        if package is not None:
            needed[package] = f"--{flag} {word}"
    for flag in _OF_MODELS:
        attention = str(mapping_in(settings, flag).get(_ATTENTION_FLAG) or "")
        package = _package_of(_ATTENTION_FLAG, attention)
        if package is not None:
            needed[package] = f"--{flag} with {_ATTENTION_FLAG} {attention}"
    return needed


def needed_accounts(settings: Mapping[str, Setting]) -> tuple[Account, ...]:
    """Return the accounts that settings need. With `all`, transformers reports to each tracker that it finds."""
    words = [word for flag, word in _words(settings) if flag == "report_to"]
    return tuple(
        Account(f"--report_to {word}", variables, only_with=_TRACKERS[tracker] if word == "all" else "")
        for word in words
        for tracker, variables in _ACCOUNTS.items()
        if word in (tracker, "all")
    )


def _words(settings: Mapping[str, Setting]) -> Iterator[tuple[str, str]]:
    for flag in (*PACKAGES, *_WITH_ANY_VALUE):
        if flag in settings:
            value = settings[flag].value
            yield from ((flag, word) for word in (value if isinstance(value, tuple) else (value,)) if word)


def _package_of(flag: str, word: str) -> str | None:
    if flag == _ATTENTION_FLAG:
        word = word.removeprefix("paged|")
        if "/" in word:  # a repository on the Hub
            return _KERNELS
    return _WITH_ANY_VALUE.get(flag) or PACKAGES[flag].get(word)
