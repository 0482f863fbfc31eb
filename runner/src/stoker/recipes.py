"""Trainer defaults that surprise, set by us, visibly: data by accelerator and kind of tuning."""

from __future__ import annotations

from collections.abc import Mapping

# flag → (value, why)
Recipe = Mapping[str, tuple[str, str]]

_EVERYWHERE: Recipe = {
    "report_to": ("none", "nothing is sent to a tracker unless asked for"),
    "disable_tqdm": ("true", "progress bars fill a pod's log; each logging step is one line there"),
    "logging_nan_inf_filter": ("false", "a loss that is no number must be seen, not averaged away"),
    "save_total_limit": ("3", "an unbounded number of checkpoints fills the claim"),
}
_CPU: Recipe = {
    "use_cpu": ("true", "the runtime has no accelerator"),
    "bf16": ("false", "TRL turns bf16 on unless told otherwise, which CPUs compute slowly"),
    "ddp_backend": ("gloo", "NCCL needs GPUs"),
    "dataloader_pin_memory": ("false", "there is no device memory to copy to"),
}
_PEFT_ON_DEVICE: Recipe = {
    "dtype": ("bfloat16", "frozen base weights need no float32; TRL's default is float32"),
}


def recipe_for(accelerator: str, uses_peft: bool) -> dict[str, tuple[str, str]]:
    """Return the recipe of a run.

    Args:
        accelerator: the runtime's accelerator profile, e.g. `cpu` or `nvidia`.
        uses_peft: True if an adapter is trained, not the model's own weights.
    """
    if accelerator == "cpu":
        return {**_EVERYWHERE, **_CPU}
    return {**_EVERYWHERE, **(_PEFT_ON_DEVICE if uses_peft else {})}
