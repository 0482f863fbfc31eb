"""Words that TRL's parser takes and its trainers refuse, some at the first step, are refused before the start."""

from __future__ import annotations

from typing import Any

import pytest
from runner.tests.samples import plan_of, value_of

from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks.trl.known_words import ATTENTION, KNOWN

REWARDED = ("--reward_funcs", "think_format_reward")


def refusal_of(*args: str, config: dict[str, Any] | None = None) -> str:
    with pytest.raises(RunError) as refused:
        plan_of(*args, config=config)
    assert refused.value.code is ExitCode.USAGE
    return refused.value.message


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["dpo", "--loss_type=a b"], "--loss_type a b (args) is unknown: write one of sigmoid, hinge, ipo"),
        (["dpo", "--loss_type=sigmoid sft"], "is unknown: write 2 words, sigmoid sft, without quotes around all"),
        (["dpo", "--loss_type", "sigmoid", "ippo"], "--loss_type ippo (args) is unknown: did you mean ipo?"),
        (["dpo", "--f_divergence_type", "js"], "--f_divergence_type js (args) is unknown: write one of reverse_kl"),
        (["grpo", *REWARDED, "--loss_type", "drgrpo"], "--loss_type drgrpo (args) is unknown: did you mean dr_grpo?"),
        (
            ["grpo", *REWARDED, "--scale_rewards", "False"],
            "--scale_rewards False (args) is unknown: write one of group",
        ),
        (["grpo", *REWARDED, "--importance_sampling_level", "word"], "is unknown: write one of token, sequence"),
        (["sft", "--attn_implementation", "spda"], "--attn_implementation spda (args) is unknown: did you mean sdpa?"),
        (["sft", "--attn_implementation", "paged|flex"], "--attn_implementation flex (args) is unknown: write one of"),
        (["sft", "--pad_to_multiple_of", "x"], "--pad_to_multiple_of is x (args): write a whole number, 1 or more"),
        (["sft", "--pad_to_multiple_of", "0"], "--pad_to_multiple_of is 0 (args): write a whole number, 1 or more"),
    ],
)
def test_a_word_that_the_trainer_does_not_know_is_refused(args: list[str], why: str) -> None:
    assert why in refusal_of(f"trl.scripts.{args[0]}", *args[1:])


@pytest.mark.parametrize(("flag", "words"), [*KNOWN["dpo"].items()])
def test_every_word_of_the_trainer_is_taken(flag: str, words: tuple[str, ...]) -> None:
    for word in words:
        assert value_of(plan_of("trl.scripts.dpo", f"--{flag}", word), flag)[0] in (word, (word,))


@pytest.mark.parametrize("word", [*ATTENTION, "paged|eager", "kernels-community/flash-attn2"])
def test_every_attention_of_the_trainer_is_taken(word: str) -> None:
    assert value_of(plan_of("--attn_implementation", word), "attn_implementation")[0] == word


@pytest.mark.parametrize("padding", ["8", "auto", "none", "None"])
def test_padding_has_a_length_or_none(padding: str) -> None:
    assert value_of(plan_of("--pad_to_multiple_of", padding), "pad_to_multiple_of")[0] == padding


def test_a_file_may_say_true_or_false_of_scaled_rewards() -> None:
    grpo = ("trl.scripts.grpo", *REWARDED, "--config", "/c")
    assert value_of(plan_of(*grpo, config={"scale_rewards": False}), "scale_rewards") == ("False", "config file")
    assert "--scale_rewards no (config file) is unknown" in refusal_of(*grpo, config={"scale_rewards": "no"})


@pytest.mark.parametrize("value", [[1], [0, 1, 2], [True, 1], ["0", "1"], [1, 0], [None, 1], []])
def test_a_range_is_two_numbers(value: list[Any]) -> None:
    rloo = ("trl.scripts.rloo", *REWARDED, "--config", "/c")
    found = refusal_of(*rloo, config={"reward_clip_range": value})
    assert f"reward_clip_range of --config /c must be two numbers, the smaller first, not {value!r}" in found
    assert value_of(plan_of(*rloo, config={"reward_clip_range": [-1, 0.5]}), "reward_clip_range")[0] == ("-1", "0.5")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (
            ["--fsdp_config", '{"reshard_after_foward": true}'],
            "the unknown key reshard_after_foward: did you mean resh",
        ),
        (["--fsdp_config", '{"fsdp_versio": 2}'], "has the unknown key fsdp_versio: did you mean version?"),
        (
            ["--accelerator_config", '{"a": 1}'],
            "--accelerator_config (args) has the unknown key a: choose from split_ba",
        ),
        (["--activation_checkpointing_kwargs", '{"reentrant": true}'], "unknown key reentrant: did you mean use_reent"),
        (
            ["--activation_checkpointing_kwargs", '{"every_n_layers": 0}'],
            "every_n_layers 0: write a whole number",
        ),
        (
            ["trl.scripts.dpo", "--activation_checkpointing_kwargs", '{"every_n_layers": 2}'],
            "(args) has the key every_n_layers, which dpo does not have: leave it out",
        ),
        (
            ["trl.scripts.reward", "--gradient_checkpointing_kwargs", '{"selective": true}'],
            "reward does not have",
        ),
        (["--activation_checkpointing_kwargs", '{"offload": true}'], "needs a device to move from: leave it out"),
        (
            ["--activation_checkpointing", "false", "--activation_checkpointing_kwargs", '{"selective": true}'],
            "selective in --activation_checkpointing_kwargs needs recomputing, which --activation_checkpointing (args)",
        ),
        (["--activation_checkpointing_kwargs", '{"selective": 1, "use_reentrant": 1}'], "not work with use_reentrant"),
        (["--model_init_kwargs", "{"], "--model_init_kwargs (args) is not valid JSON: Expecting property name"),
        (["--lr_scheduler_kwargs", "x.json"], "--lr_scheduler_kwargs (args) must be a mapping, not 'x.json': write"),
        (["--fsdp", "full_shad"], "--fsdp full_shad (args) is unknown: did you mean full_shard?"),
        (["--torch_compile_backend", "inductr"], "--torch_compile_backend inductr (args) is unknown: did you mean ind"),
        (["--lora_task_type", "1"], "--lora_task_type 1 (args) is unknown: write one of SEQ_CLS"),
        (["--torch_empty_cache_steps", "0"], "--torch_empty_cache_steps is 0 (args): write 1 or more"),
        (["--lr_scheduler_type", "reduce_lr_on_plateau"], "needs evaluations to look at: add --eval_strategy steps"),
    ],
)
def test_what_configuration_classes_refuse_or_ignore_is_refused_before(args: list[str], why: str) -> None:
    assert why in refusal_of(*args)


@pytest.mark.parametrize(
    "args",
    [
        ["--fsdp_config", '{"fsdp_version": 2, "reshard_after_forward": true}'],
        ["--fsdp_config", "/workspace/fsdp.json"],
        ["--activation_checkpointing_kwargs", '{"every_n_layers": 2, "offload": false}'],
        ["trl.scripts.reward", "--gradient_checkpointing_kwargs", '{"every_n_layers": 2}'],
        ["--gradient_checkpointing_kwargs", '{"selective": true, "use_reentrant": false}'],
        ["--fsdp", "full_shard auto_wrap"],
        ["--fsdp"],
        ["--fsdp", "false"],
        ["--torch_compile_backend", "Inductor"],
        ["--model_init_kwargs", '{"anything": 1}'],
    ],
)
def test_what_they_take_is_taken(args: list[str]) -> None:
    plan_of(*args)


def test_a_mapping_in_a_file_has_known_keys_too() -> None:
    found = refusal_of("--config", "/c", config={"accelerator_config": {"split_batch": True}})
    assert "--accelerator_config (config file) has the unknown key split_batch: did you mean split_batches?" in found
