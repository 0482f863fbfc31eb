"""The adapter that a run of TRL trains, as a typed config."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field

from stoker.submit.base import count_problems, dropout_problems
from stoker.submit.trl_flags import flag_words


@dataclass
class TRLPeftConfig:
    """An adapter to train instead of the model's own weights (LoRA, QLoRA, DoRA).

    Attributes:
        r: rank.
        lora_alpha: scale.
        lora_dropout: dropout in the adapter, 0 to 1.
        target_modules: names of the layers that get an adapter, or `all-linear`.
        use_rslora: scale by the root of the rank.
        use_dora: learn magnitude and direction separately.
        load_in_4bit: load the base model in 4 bits (QLoRA).
        load_in_8bit: load the base model in 8 bits.
        bnb_4bit_quant_type: type of the 4-bit numbers.
        use_bnb_nested_quant: quantize the constants of the quantization too.
        modules_to_save: layers to train whole and to save with the adapter.
    """

    r: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.05
    target_modules: list[str] | str | None = field(default_factory=lambda: ["q_proj", "v_proj"])
    use_rslora: bool = False
    use_dora: bool = False
    _: KW_ONLY
    load_in_4bit: bool = False
    load_in_8bit: bool = False
    bnb_4bit_quant_type: str | None = None
    use_bnb_nested_quant: bool = False
    modules_to_save: list[str] | None = None

    def to_args(self) -> list[str]:
        """Return the adapter's flags."""
        words = ["--use_peft"]
        named = {
            "lora_r": self.r,
            "lora_alpha": self.lora_alpha,
            "lora_dropout": self.lora_dropout,
            "lora_target_modules": self.target_modules or None,
            "lora_modules_to_save": self.modules_to_save or None,
            "bnb_4bit_quant_type": self.bnb_4bit_quant_type,
            **{
                name: getattr(self, name) or None
                for name in ("use_rslora", "use_dora", "load_in_4bit", "load_in_8bit", "use_bnb_nested_quant")
            },
        }
        for name, value in named.items():
            if value is not None:
                words += flag_words(name, value)
        return words

    def problems(self) -> Iterator[str]:
        """Yield contradictions."""
        yield from count_problems(r=self.r, lora_alpha=self.lora_alpha)
        yield from dropout_problems(self.lora_dropout)
        if self.load_in_4bit and self.load_in_8bit:
            yield "load_in_4bit and load_in_8bit exclude each other: write one of them"
        if not self.load_in_4bit and (self.bnb_4bit_quant_type is not None or self.use_bnb_nested_quant):
            yield "bnb_4bit_quant_type and use_bnb_nested_quant need 4 bits: write load_in_4bit=True"
