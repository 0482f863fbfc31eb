"""Stoker's replacements for surprising defaults of TRL, by accelerator, kind of tuning and method."""

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
        value: the default, unless a stronger layer sets the flag.
        reason: why.
        accelerators: the accelerator profiles it applies to; empty for all.
        tunings: the kinds of tuning it applies to; empty for all.
        methods: the methods it applies to; empty for all.
        unless: a flag that disables it if set; None without one.
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
        """The runs it applies to, in a few words."""
        parts = [" ".join(names) for names in (self.accelerators, self.tunings, self.methods) if names]
        return ", ".join(parts) + (f", unless --{self.unless}" if self.unless else "") or "every run"


DEFAULTS = (
    Default("report_to", "none", "trackers get data only if you ask for it"),
    Default("disable_tqdm", "true", "progress bars fill a pod's log; each logging step writes one line instead"),
    Default("logging_nan_inf_filter", "false", "a NaN loss must stop the run, not vanish in an average"),
    Default("save_total_limit", "3", "without a limit, checkpoints fill the volume"),
    Default("use_cpu", "true", "the runtime has no accelerator", accelerators=("cpu",)),
    Default("bf16", "false", "CPUs compute bf16 slowly, and TRL turns it on by default", accelerators=("cpu",)),
    Default("ddp_backend", "gloo", "NCCL needs GPUs", accelerators=("cpu",)),
    Default("dataloader_pin_memory", "false", "there is no device memory to copy to", accelerators=("cpu",)),
    Default(
        "dtype",
        "float32",
        "trained weights need float32: bfloat16 loses small updates",
        accelerators=_DEVICES,
        tunings=("full",),
    ),
    Default(
        "dtype",
        "bfloat16",
        "frozen base weights do not need TRL's default, float32, which takes twice the memory",
        accelerators=_DEVICES,
        tunings=("lora",),
    ),
    Default(
        "dtype",
        "bfloat16",
        "quantized weights are computed in this type; TRL's default, float32, is several times slower",
        accelerators=_DEVICES,
        tunings=("qlora",),
    ),
    Default(
        "bf16",
        "true",
        "autocast computes in bfloat16, whatever type the weights have",
        accelerators=_DEVICES,
        unless="fp16",
    ),
    Default(
        "lora_task_type",
        "SEQ_CLS",
        "a reward model classifies; TRL's default, CAUSAL_LM, would not train its head",
        tunings=("lora", "qlora"),
        methods=("reward",),
    ),
    Default(
        "num_generations_eval",
        "1",
        "an evaluation takes the likeliest answer to each row",
        methods=("grpo_async",),
    ),
    Default(
        "lora_dropout",
        "0",
        "with TRL's default, 0.05, trainer and samplers would not compute the same probabilities",
        tunings=("lora", "qlora"),
        methods=("grpo_async",),
    ),
    Default(
        "lora_target_modules",
        "all-linear",
        "PEFT's default is two attention layers in models it knows, and an error in others",
        tunings=("lora", "qlora"),
        unless="lora_target_parameters",
    ),
)


def recipe_for(accelerator: str, tuning: str, method: str) -> tuple[Default, ...]:
    """Return the recipe of a run.

    Args:
        accelerator: the runtime's accelerator profile, for example `cpu` or `nvidia`.
        tuning: `full`, `lora` (an adapter) or `qlora` (an adapter on quantized weights).
        method: the training method.
    """
    return tuple(
        default
        for default in DEFAULTS
        if (not default.accelerators or accelerator in default.accelerators)
        and (not default.tunings or tuning in default.tunings)
        and (not default.methods or method in default.methods)
    )
