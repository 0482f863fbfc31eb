"""TRL as a backend: one config for every method, in the forms of all texts of KEP-2839."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Any, ClassVar, Literal

from stoker.frameworks.registry import register_backend
from stoker.frameworks.trl.check import own_problems
from stoker.frameworks.trl.framework import TRL
from stoker.frameworks.trl.sharding import sharding_problems
from stoker.plan.arguments import FlagTable, Layer, Resolution, Setting, is_true, resolve, split_args
from stoker.plan.interfaces import Asked
from stoker.submit import initializer as staged
from stoker.submit.base import LLMBackend
from stoker.submit.compat import PPO_GONE, Remembering, default, take_placement
from stoker.submit.initializer import Initialized
from stoker.submit.trl_adapter import TRLPeftConfig
from stoker.submit.trl_flags import FlagValue, flag_words, without
from stoker.submit.trl_methods import (
    METHOD_CONFIGS,
    TRLDistillationConfig,
    TRLDPOConfig,
    TRLGRPOAsyncConfig,
    TRLGRPOConfig,
    TRLKTOConfig,
    TRLMethodConfig,
    TRLORPOConfig,
    TRLRewardConfig,
    TRLRLOOConfig,
    TRLSFTConfig,
    TRLTrainerType,
)
from stoker.submit.variables import SHARDING, flag_settings

_SLOTS = ("sft", "dpo", "kto", "orpo", "grpo", "rloo", "reward", "distillation", "grpo_async")
_FLAT_ADAPTER = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules")


@register_backend("trl")
@dataclass
class TRLConfig(Remembering, LLMBackend):
    """A run of TRL 1.16.

    There are two ways to write it. With `trainer_type` (KEP-2839's first text) the defaults below are sent. With
    `method` (its newest text) only given fields are sent; the runtime and TRL decide the others.

    Attributes:
        trainer_type: the method; its flags are in `sft_config`, `dpo_config` and so on.
        model_name_or_path: folder or Hub id of the model; an initializer's model replaces the default.
        learning_rate: learning rate at its peak.
        num_train_epochs: passes over the data.
        per_device_train_batch_size: examples in each process and step.
        gradient_accumulation_steps: steps to sum gradients over before an update.
        bf16: compute in bfloat16, TRL's default; False turns it off.
        fp16: compute in float16.
        peft_config: the adapter to train; None trains the model's own weights, or with `method` what the runtime sets.
        output_dir: folder for checkpoints and the model.
        method: the method with its flags in one object, or its name alone.
        dataset_name: folder or Hub id of the data; an initializer's data set replaces the default.
        gradient_checkpointing: recompute activations instead of keeping them.
        use_peft: train an adapter, described by the next four fields instead of `peft_config`.
        lora_r: its rank.
        lora_alpha: its scale.
        lora_dropout: its dropout.
        lora_target_modules: the layers that get an adapter: a list, or names separated by commas.
        sharding: `full` if all processes share weights, gradients and optimizer (FSDP2), `none` if each holds the whole
            model; None leaves that to the runtime.
        extra_args: further flags of TRL by name; they come last, and replace a field that sets the same flag.
    """

    framework: ClassVar[str] = "trl"
    command: ClassVar[tuple[str, ...]] = ("torchrun", "-m")
    runner: ClassVar[type[TRL]] = TRL
    generic_runtime: ClassVar[str | None] = "trl-distributed"

    # In the order of the KEP's first text, with the older names of the two placement fields.
    trainer_type: TRLTrainerType = default(TRLTrainerType.SFT)
    model_name_or_path: str | None = default(staged.MODEL)
    learning_rate: float | None = default(2e-5)
    num_train_epochs: float | None = default(3)
    per_device_train_batch_size: int | None = default(4)
    gradient_accumulation_steps: int | None = default(1)
    bf16: bool | None = default(True)
    fp16: bool | None = default(False)
    peft_config: TRLPeftConfig | None = None
    sft_config: TRLSFTConfig | None = None
    dpo_config: TRLDPOConfig | None = None
    _num_nodes: InitVar[int | None] = None
    _resources_per_node: InitVar[dict[str, Any] | None] = None
    output_dir: str | None = default("/workspace/output")
    _: KW_ONLY
    kto_config: TRLKTOConfig | None = None
    orpo_config: TRLORPOConfig | None = None
    grpo_config: TRLGRPOConfig | None = None
    rloo_config: TRLRLOOConfig | None = None
    reward_config: TRLRewardConfig | None = None
    distillation_config: TRLDistillationConfig | None = None
    grpo_async_config: TRLGRPOAsyncConfig | None = None
    method: TRLMethodConfig | TRLTrainerType | str | None = None
    dataset_name: str | None = default(staged.DATASET)
    gradient_checkpointing: bool | None = None
    use_peft: bool | None = None
    lora_r: int | None = None
    lora_alpha: int | None = None
    lora_dropout: float | None = None
    lora_target_modules: list[str] | str | None = None
    sharding: Literal["none", "full"] | None = None
    extra_args: Mapping[str, FlagValue] | None = None

    def __post_init__(self, _num_nodes: int | None, _resources_per_node: dict[str, Any] | None) -> None:
        """Fill in the defaults of the text that the config follows."""
        super().__post_init__()
        take_placement(self, _num_nodes, _resources_per_node)
        self.trainer_type = TRLTrainerType(self.trainer_type)
        if self.method is None:
            return
        if not isinstance(self.method, TRLMethodConfig):
            chosen = TRLTrainerType(self.method)
            self.method = METHOD_CONFIGS[chosen]() if chosen in METHOD_CONFIGS else None
        else:
            chosen = self.method.trainer_type
        if "trainer_type" not in self._given:
            self.trainer_type = chosen
        self.drop_defaults(keep="trainer_type")

    @property
    def _method_config(self) -> TRLMethodConfig | None:
        """The flags of the method, from the field that has them."""
        if isinstance(self.method, TRLMethodConfig):
            return self.method
        found: TRLMethodConfig | None = getattr(self, f"{self.trainer_type.value}_config", None)
        return found

    def to_args(self, initializer: Initialized | None = None) -> list[str]:
        """Return the module of the method and its flags, in the names of TRL 1.16.

        Raises:
            ValueError: TRL no longer has the method, or model or data are named twice.
        """
        if self.trainer_type is TRLTrainerType.PPO:
            raise ValueError(PPO_GONE)
        words = [TRL().trainer_module(self.trainer_type.value)]
        for name, value in self._shared(initializer):
            words += flag_words(name, value)
        words += self._adapter_words()
        own = self._method_config
        if own is not None:
            words += own.to_args(with_defaults=self.method is None)
        extra = {name.replace("-", "_"): value for name, value in (self.extra_args or {}).items()}
        words = without(words, extra)
        for name, value in extra.items():
            words += flag_words(name, value)
        return words

    def _shared(self, initializer: Initialized | None) -> Iterator[tuple[str, FlagValue]]:
        """Return the flags that every method has."""
        model = self._place("model_name_or_path", staged.MODEL if initializer and initializer.model else None)
        dataset = initializer.dataset if initializer else None
        data = self._place("dataset_name", staged.dataset_folder(dataset) if dataset else None)
        values: dict[str, FlagValue | None] = {"model_name_or_path": model, "dataset_name": data}
        for name in (
            *("output_dir", "learning_rate", "num_train_epochs", "per_device_train_batch_size"),
            *("gradient_accumulation_steps", "gradient_checkpointing"),
        ):
            values[name] = getattr(self, name)
        # TRL's default is bfloat16, so False must be sent. float16 is off, unless a runtime turns it on.
        values["bf16"] = self.bf16
        values["fp16"] = self.fp16 if self.fp16 or self.was_given("fp16") else None
        yield from ((name, value) for name, value in values.items() if value is not None)

    def _place(self, name: str, fetched: str | None) -> str | None:
        """Return where the trainer finds the model or the data: the initializer's folder, if there is one."""
        own: str | None = getattr(self, name)
        if fetched is None:
            return own
        if not self.was_given(name) or own is None:
            return fetched
        if own == fetched or own.startswith(f"{fetched}/"):
            return own
        raise ValueError(
            f"{name} is {own!r}, but the initializer puts it at {fetched}: drop {name}, or the initializer"
        )

    def _adapter_words(self) -> list[str]:
        if self.peft_config is not None:
            words = self.peft_config.to_args()
        elif self.use_peft is not None:
            words = flag_words("use_peft", self.use_peft)
            for name in _FLAT_ADAPTER:
                value = getattr(self, name)
                if name == "lora_target_modules" and isinstance(value, str):
                    value = [part.strip() for part in value.split(",")]
                if value is not None:
                    words += flag_words(name, value)
        else:
            # A runtime may train an adapter by default.
            return flag_words("use_peft", False) if self.method is None else []
        if self.trainer_type is TRLTrainerType.REWARD and self.use_peft is not False:
            words += ["--lora_task_type", "SEQ_CLS"]
        return words

    def own_variables(self) -> dict[str, str]:
        """Return the variable that shards the run; no flag does."""
        return {} if self.sharding is None else {SHARDING: self.sharding}

    def validate(self) -> None:
        """Check the config against itself and against TRL 1.16's own flags.

        Raises:
            ValueError: names every problem.
        """
        problems = list(self._contradictions())
        try:
            super().validate()
        except ValueError as error:
            problems.append(str(error))
        if not problems:
            problems += self._refused_flags()
        if problems:
            raise ValueError("\n".join(problems))

    def _contradictions(self) -> Iterator[str]:
        if self.trainer_type is TRLTrainerType.PPO:
            yield PPO_GONE
            return
        own = METHOD_CONFIGS[self.trainer_type]
        chosen = self.trainer_type.value
        if chosen not in TRL.methods:
            yield f"{chosen} is not a method of this release: choose one of {', '.join(TRL.methods)}"
            return
        if isinstance(self.method, TRLMethodConfig) and self.method.trainer_type is not self.trainer_type:
            yield f"trainer_type is {chosen} and method is {self.method.trainer_type.value}: write one of them"
        for name in (f"{slot}_config" for slot in _SLOTS if getattr(self, f"{slot}_config") is not None):
            if isinstance(self.method, TRLMethodConfig):
                yield f"{name} and method are both set: write only method={type(getattr(self, name)).__name__}(…)"
            elif name != f"{chosen}_config":
                yield f"{name} should not be set when the method is {chosen}: write {chosen}_config, or drop it"
        config = self._method_config
        given = {name for name in own.needs if getattr(config, name, None)} | set(self.extra_args or ())
        if own.needs and not given & set(own.needs):
            yield f"{chosen} needs {' or '.join(own.needs)}: set one in a {own.__name__}, or by --set {own.needs[0]}=…"
        if config is not None and not isinstance(config, own):
            yield f"{chosen}_config is a {type(config).__name__}: write a {own.__name__}"
        elif config is not None:
            yield from config.problems()
        if self.sharding not in (None, *TRL.shardings):
            yield f"sharding is {self.sharding!r}: write {' or '.join(TRL.shardings)}"
        if self.bf16 and self.fp16:
            yield "bf16 and fp16 exclude each other, and bf16 is on by default: write bf16=False with fp16=True"
        extra: Mapping[str, object] = self.extra_args or {}
        yield from (f"extra_args has {name}=None: drop it" for name, value in extra.items() if value is None)
        yield from self._adapter_contradictions()

    def _adapter_contradictions(self) -> Iterator[str]:
        flat = [name for name in ("use_peft", *_FLAT_ADAPTER) if getattr(self, name) is not None]
        if self.peft_config is not None:
            if flat:
                yield f"{', '.join(flat)} and peft_config both describe the adapter: write only peft_config"
            adapter: object = self.peft_config
            if isinstance(adapter, TRLPeftConfig):
                yield from adapter.problems()
            else:
                yield f"peft_config is a {type(adapter).__name__}: write a TRLPeftConfig"
        elif not self.use_peft and flat not in ([], ["use_peft"]):
            names = ", ".join(name for name in flat if name != "use_peft")
            yield f"{names} needs an adapter: write use_peft=True, or drop it"

    def refused_variables(self, env: Mapping[str, str]) -> list[str]:
        """Return a problem for each variable that is wrong on every runtime."""
        return [*super().refused_variables(env), *self._refused(flag_settings(env, self._table))]

    def _refused_flags(self) -> list[str]:
        """Return what is wrong by TRL 1.16's own table of flags."""
        given, problems = split_args(self.to_args()[1:])
        return [*problems, *self._refused(resolve(self._table, [Layer("config", given)]))]

    def _refused(self, resolution: Resolution) -> list[str]:
        named = {setting.name: setting for setting in resolution.settings}
        return [
            *resolution.problems,
            *own_problems(self.trainer_type.value, self._table, named),
            *self._unshardable(named),
        ]

    def _unshardable(self, named: Mapping[str, Setting]) -> Iterator[str]:
        """Yield a problem for each flag that a sharded run cannot have."""

        def on(flag: str) -> bool:
            return flag in named and is_true(named[flag].value)

        # A single process shares with nobody, but who asks for sharding has several.
        asked = Asked(self.trainer_type.value, world_size=2, sharding=self.sharding or "")
        yield from sharding_problems(asked, self._table, named, on)

    @property
    def _table(self) -> FlagTable:
        return TRL().flag_table(self.trainer_type.value)
