"""Settings of `grpo_async` that cannot work, and what to write instead. Pure: `stoker plan` prints them.

The schedule's own bounds are checked here in the words of flags; `stoker.rollouts.records.Bounds` has the last word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from stoker.contract.exits import RunError
from stoker.contract.samplers import OF_THE_JOB
from stoker.frameworks.trl.schedules import BY_METRICS
from stoker.frameworks.trl.sharding import fsdp_version, uses_fsdp
from stoker.plan.arguments import NONE, FlagTable, Setting
from stoker.plan.interfaces import Asked
from stoker.rollouts.addresses import addresses_in
from stoker.rollouts.names import unreadable
from stoker.serve.adapters.check import ALLOWED_RANKS

METHOD = "grpo_async"
DECOUPLED, BEHAVIOUR, UNCORRECTED = "decoupled", "behaviour", "none"
# What TRL calls vLLM's in the correction is the samplers' here.
_KEPT = tuple(f"vllm_importance_sampling_{part}" for part in ("mode", "clip_max", "clip_min", "correction"))
SWITCH = "allow_incomparable_logprobs"
# Flag → the values with which the sampler's distribution is the trainer's.
_NEUTRAL: Mapping[str, tuple[float | None, ...]] = {
    "top_p": (1.0,),
    "top_k": (0.0, -1.0),
    "min_p": (0.0, None),
    "repetition_penalty": (1.0,),
    "lora_dropout": (0.0,),
}
# Flag → what to do instead.
_ELSEWHERE: Mapping[str, str] = {
    "use_vllm": "leave it out and name the samplers with --samplers",
    "use_transformers_continuous_batching": "leave it out, the samplers write the answers",
    "use_transformers_paged": "leave it out, the samplers write the answers",
    "cache_implementation": "leave it out, the samplers write the answers",
    "generation_kwargs": "leave it out and write --temperature and --max_completion_length",
    "dataset_streaming": "leave it out, each row has its number in the schedule",
    "deepspeed": "leave it out; to share the model between processes, write --fsdp full_shard",
    "reward_model_name_or_path": "serve the reward model with vLLM, and write its address into --reward_funcs",
    "max_tool_calling_iterations": "leave it out, --max_completion_length and --episode_seconds end an episode",
}
# A sampler serves adapters of plain LoRA on the weights of the base model.
_UNSERVED: Mapping[str, str] = {
    "use_dora": "vLLM serves no DoRA: leave it out",
    "lora_modules_to_save": "vLLM takes these modules from the base model: leave it out",
    "lora_target_parameters": "vLLM serves adapters of modules only: write --lora_target_modules",
    "load_in_4bit": "the samplers' base model is not quantized the same way: leave it out",
    "load_in_8bit": "the samplers' base model is not quantized the same way: leave it out",
}

# What FSDP1 flattens has no names or shapes that a sampler knows.
FSDP_1 = f'version 1 of FSDP has no place in {METHOD}: write "version": 2 in --fsdp_config'
# Flags of quantized weights.
_QUANTIZED = ("bnb_4bit_", "use_bnb_nested_quant")

Number = Callable[[str], float | None]


def refusals(
    asked: Asked,
    table: FlagTable,
    settings: Mapping[str, Setting],
    number: Number,
    on: Callable[[str], bool],
) -> Iterator[str]:
    """Yield one problem for each setting that `grpo_async` cannot have.

    Args:
        asked: what the user asks for.
        table: the method's flags.
        settings: the merged settings.
        number: returns a flag's number, set or TRL's default.
        on: returns whether a switch is on.
    """
    yield from _missing(settings, on)
    yield from others(settings, on)
    yield from schedule(settings, number)
    yield from steps(settings, number)
    yield from _batch(asked.world_size, settings, number)
    yield from _correction(settings, number, on)
    if on("streaming") and (asked.content or {}).get("datasets"):
        source = settings["streaming"].source
        yield f"--streaming ({source}) has no place in {METHOD}: {_ELSEWHERE['dataset_streaming']}"
    if number("temperature") == 0:
        yield "--temperature 0 samples without probabilities: write a number above 0"
    if on("skip_flat_groups") and (number("beta") or 0) > 0:
        yield "--skip_flat_groups also leaves out the KL term of these groups: leave it out, or write --beta 0"
    rewards, weights = _words(settings, "reward_funcs"), _words(settings, "reward_weights")
    if rewards and weights and len(weights) != len(rewards):
        yield (
            f"--reward_weights ({settings['reward_weights'].source}) has {len(weights)} numbers for {len(rewards)} "
            "--reward_funcs: write one for each"
        )


def _missing(settings: Mapping[str, Setting], on: Callable[[str], bool]) -> Iterator[str]:
    if not _text(settings, "samplers"):
        yield (
            "the samplers are missing: write --samplers with their addresses, such as http://sampler-0:8000, or "
            "--samplers role for those of this TrainJob"
        )
    if _text(settings, "samplers") == OF_THE_JOB and _text(settings, "model_name_or_path")[:1] not in ("/", ""):
        yield (
            f"--model_name_or_path {settings['model_name_or_path'].value} is not a folder, and the samplers of a "
            "TrainJob load what lies in the workspace: let spec.initializer.model fetch it"
        )
    whole = settings.get("publish_whole_every")
    if on("use_peft") and whole is not None and whole.source != "runtime":
        yield (
            f"--publish_whole_every ({whole.source}) is for runs that train all weights: leave it out, or leave out "
            "--use_peft"
        )
    if not any(name in settings and settings[name].value for name in ("reward_funcs", "environment_factory")):
        yield (
            "the reward is missing: write --reward_funcs with the name of one of TRL's or `module:function`, or an "
            "--environment_factory with get_reward"
        )


def _unreadable_addresses(samplers: str) -> str:
    """Return what is wrong with the addresses of samplers; empty if nothing is."""
    if samplers in ("", OF_THE_JOB):
        return ""
    try:
        addresses_in(samplers)
    except RunError as error:
        return error.message
    return ""


def others(settings: Mapping[str, Setting], on: Callable[[str], bool]) -> Iterator[str]:
    """Yield one problem for each name that cannot be read, and each setting of GRPO that has no place here."""
    yield from unreadable(*(_words(settings, name) for name in ("reward_funcs", "tools", "environment_factory")))
    yield from _settled(settings)
    yield from _by_loss(settings, on)
    rank = _text(settings, "lora_r")
    if on("use_peft") and rank.isdecimal() and int(rank) > ALLOWED_RANKS[-1]:
        yield f"--lora_r {rank} ({settings['lora_r'].source}) is too large: vLLM serves ranks up to {ALLOWED_RANKS[-1]}"
    if uses_fsdp(settings) and fsdp_version(settings) == "1":
        yield FSDP_1
    for name, setting in settings.items():
        given = f"--{name} ({setting.source})"
        if name == "vllm_importance_sampling_correction" and setting.source != "runtime":
            yield f"{given} has no place in {METHOD}: write --correction"
        if setting.value in (NONE, "", "false", ()):
            continue
        if name in _ELSEWHERE:
            yield f"{given} has no place in {METHOD}: {_ELSEWHERE[name]}"
        elif name in _UNSERVED and (setting.value != "true" or on(name)):
            yield f"{given}: {_UNSERVED[name]}"
        elif name.startswith("vllm_") and name not in _KEPT and setting.source != "runtime":
            yield f"{given} has no place in {METHOD}: leave it out, the samplers have settings of their own"
        elif name.startswith(_QUANTIZED) and setting.source != "runtime":
            yield f"{given} has no place in {METHOD}: leave it out, the base model must be that of the samplers"


def _settled(settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each value that no other setting makes right."""
    depth, iterations = _text(settings, "depth"), _text(settings, "num_iterations")
    if problem := _unreadable_addresses(_text(settings, "samplers")):
        yield problem
    if depth not in ("", "auto") and not depth.isdecimal():
        yield f"--depth is {depth} ({settings['depth'].source}): write auto or a whole number"
    if iterations not in ("", NONE) and float(iterations) != 1:
        yield (
            f"--num_iterations is {iterations} ({settings['num_iterations'].source}): write 1, because {METHOD} counts "
            "staleness in optimizer steps and trains each sample once"
        )


def _by_loss(settings: Mapping[str, Setting], on: Callable[[str], bool]) -> Iterator[str]:
    """Yield one problem for each setting that compares evaluations by their loss, which tells nothing of rewards."""
    if on("load_best_model_at_end"):
        yield (
            f"--load_best_model_at_end compares losses, which tell nothing of rewards in {METHOD}: leave it out, and "
            "choose a checkpoint by eval_reward in metrics.jsonl"
        )
    schedule = _text(settings, "lr_scheduler_type")
    if schedule in BY_METRICS:
        yield f"--lr_scheduler_type {schedule} looks at losses, which tell nothing of rewards: choose another"


def _words(settings: Mapping[str, Setting], name: str) -> tuple[str, ...]:
    value = settings[name].value if name in settings else ()
    return value if isinstance(value, tuple) else () if value in (NONE, "") else (value,)


def schedule(settings: Mapping[str, Setting], number: Number) -> Iterator[str]:
    """Yield a problem if samples become older than they may be."""
    staleness, every = number("max_staleness"), number("publish_every")
    text = _text(settings, "depth") or "auto"
    if staleness is None or every is None or staleness < 0 or every < 1 or not (text == "auto" or text.isdecimal()):
        return  # which another check says
    depth = 0 if text == "auto" else int(text)
    needed = depth + int(every) - 1
    if staleness < needed:
        with_depth = f"--depth {text} and " if depth else ""
        yield (
            f"--max_staleness {staleness:g} is too small for {with_depth}--publish_every {every:g}: write "
            f"--max_staleness {needed} or more"
        )


def steps(settings: Mapping[str, Setting], number: Number) -> Iterator[str]:
    """Yield a problem if samples are written for another number of steps than an optimizer step has."""
    written = number("steps_per_generation") if "steps_per_generation" in settings else None
    accumulated = number("gradient_accumulation_steps")
    if written is not None and accumulated is not None and written != accumulated:
        yield (
            f"--steps_per_generation is {written:g} ({settings['steps_per_generation'].source}) and "
            f"--gradient_accumulation_steps {accumulated:g}: leave the former out, one batch is one optimizer step"
        )


def _batch(world_size: int, settings: Mapping[str, Setting], number: Number) -> Iterator[str]:
    accumulated = number("gradient_accumulation_steps") or 1
    batch = number("generation_batch_size") if "generation_batch_size" in settings else None
    step = (number("per_device_train_batch_size") or 1) * world_size * accumulated
    if batch is not None and batch != step:
        yield (
            f"--generation_batch_size is {batch:g} ({settings['generation_batch_size'].source}), but one optimizer "
            f"step trains {step:g} samples: leave it out, one batch is one optimizer step"
        )


def _correction(settings: Mapping[str, Setting], number: Number, on: Callable[[str], bool]) -> Iterator[str]:
    if on(SWITCH):
        chosen = _text(settings, "correction")
        if chosen not in ("", UNCORRECTED):
            yield (
                f"--correction {chosen} ({settings['correction'].source}) compares what --{SWITCH} makes "
                f"incomparable: leave one of them out"
            )
        return
    for flag, neutral in _NEUTRAL.items():
        if flag not in settings or number(flag) in neutral:
            continue
        if flag == "lora_dropout" and not on("use_peft"):
            continue
        instead = "leave it out" if None in neutral else f"write --{flag} {neutral[0]:g}"
        yield (
            f"--{flag} {settings[flag].value} ({settings[flag].source}) makes the probabilities of trainer and "
            f"samplers incomparable: {instead}, or add --{SWITCH}, which turns the correction off"
        )
    mode = _text(settings, "vllm_importance_sampling_mode")
    decoupled = _text(settings, "correction") in ("", DECOUPLED)
    if decoupled and mode.startswith("sequence_") and _text(settings, "loss_type") == "vespo":
        yield (
            f"--vllm_importance_sampling_mode {mode} ({settings['vllm_importance_sampling_mode'].source}) gives one "
            "ratio for a whole answer, and --loss_type vespo needs one for each token: write token_truncate or "
            "token_mask"
        )
    if _text(settings, "correction") == UNCORRECTED and (number("max_staleness") or 0) > 0:
        yield (
            f"--correction {UNCORRECTED} trains samples of older policies as if they were new: write --correction "
            f"{DECOUPLED}, or --max_staleness 0"
        )


def _text(settings: Mapping[str, Setting], name: str) -> str:
    found = settings[name].value if name in settings else ""
    return "" if isinstance(found, tuple) else str(found)
