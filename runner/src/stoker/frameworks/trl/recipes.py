"""TRL's defaults that surprise, set by us, visibly: data by accelerator, kind of tuning and method."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.plan.world import ACCELERATORS

TUNINGS = ("full", "lora", "qlora")
_DEVICES = tuple(name for name in ACCELERATORS if name != "cpu")


@dataclass(frozen=True, slots=True)
class Default:
    """One value of a recipe.

    Attributes:
        flag: the trainer's flag.
        value: what it is set to where nobody says otherwise.
        reason: why.
        accelerators: the accelerator profiles it is for; empty for all.
        tunings: the kinds of tuning it is for; empty for all.
        methods: the methods it is for; empty for all.
        unless: a flag that stands against it once it is switched on or given a value.
    """

    flag: str
    value: str
    reason: str
    accelerators: tuple[str, ...] = ()
    tunings: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    unless: str | None = None

    @property
    def where(self) -> str:
        """Which runs it is for, in a few words."""
        parts = [" ".join(names) for names in (self.accelerators, self.tunings, self.methods) if names]
        return ", ".join(parts) + (f", unless --{self.unless}" if self.unless else "") or "every run"


DEFAULTS = (
    Default("report_to", "none", "nothing is sent to a tracker unless asked for"),
    Default("disable_tqdm", "true", "progress bars fill a pod's log; each logging step is one line there"),
    Default("logging_nan_inf_filter", "false", "a loss that is no number must be seen, not averaged away"),
    Default("save_total_limit", "3", "an unbounded number of checkpoints fills the claim"),
    Default("use_cpu", "true", "the runtime has no accelerator", accelerators=("cpu",)),
    Default(
        "bf16", "false", "TRL turns bf16 on unless told otherwise, which CPUs compute slowly", accelerators=("cpu",)
    ),
    Default("ddp_backend", "gloo", "NCCL needs GPUs", accelerators=("cpu",)),
    Default("dataloader_pin_memory", "false", "there is no device memory to copy to", accelerators=("cpu",)),
    Default(
        "dtype",
        "float32",
        "weights that are trained keep float32: in bfloat16 small updates are rounded away",
        accelerators=_DEVICES,
        tunings=("full",),
    ),
    Default(
        "dtype",
        "bfloat16",
        "frozen base weights need no float32, TRL's default: half the memory",
        accelerators=_DEVICES,
        tunings=("lora",),
    ),
    Default(
        "dtype",
        "bfloat16",
        "the type that quantized weights are computed in; TRL's default, float32, is several times slower",
        accelerators=_DEVICES,
        tunings=("qlora",),
    ),
    Default(
        "bf16",
        "true",
        "computed in bfloat16 by autocast, whatever the weights are kept in",
        accelerators=_DEVICES,
        unless="fp16",
    ),
    Default(
        "lora_task_type",
        "SEQ_CLS",
        "a reward model classifies; with TRL's default, CAUSAL_LM, its head would not be trained",
        tunings=("lora", "qlora"),
        methods=("reward",),
    ),
    Default(
        "lora_target_modules",
        "all-linear",
        "PEFT's own choice is two layers of attention in models it knows, and an error in any other",
        tunings=("lora", "qlora"),
        unless="lora_target_parameters",
    ),
)


def recipe_for(accelerator: str, tuning: str, method: str) -> tuple[Default, ...]:
    """Return the recipe of a run.

    Args:
        accelerator: the runtime's accelerator profile, e.g. `cpu` or `nvidia`.
        tuning: `full`, `lora` (an adapter is trained), or `qlora` (on quantized weights).
        method: the training method.
    """
    return tuple(
        default
        for default in DEFAULTS
        if (not default.accelerators or accelerator in default.accelerators)
        and (not default.tunings or tuning in default.tunings)
        and (not default.methods or method in default.methods)
    )
