"""A plan decides everything, names where every value came from, and refuses with all problems at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from runner.tests.samples import POD, plan_of, pod, resolve, value_of

from stoker.commands import describe
from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks import TRL
from stoker.plan.arguments import Setting
from stoker.plan.plan import Plan
from stoker.plan.resolve import flag_of_variable, read_request
from stoker.rank.same_run import refuse_other_run
from stoker.submit import TRLConfig

RUNTIME_DEFAULTS = {"STOKER_ARG_LEARNING_RATE": "1e-5", "STOKER_METHOD": "sft"}
RUNTIME = {"STOKER_RUNTIME_DEFAULTS": json.dumps(RUNTIME_DEFAULTS), **RUNTIME_DEFAULTS}

# Settings of a run that keeps its best model.
_BEST = ("--load_best_model_at_end",)
NO_MODEL = {"STOKER_ARG_MODEL_NAME_OR_PATH": ""}


def refusal_of(
    *args: str, env: Mapping[str, str] | None = None, config: Mapping[str, Any] | None = None
) -> tuple[ExitCode, str]:
    with pytest.raises(RunError) as refused:
        plan_of(*args, env=env, config=config)
    return refused.value.code, refused.value.message


@pytest.mark.parametrize(
    ("env", "config", "args", "expected"),
    [
        (RUNTIME, None, [], ("1e-5", "runtime")),
        ({**RUNTIME, "STOKER_ARG_LEARNING_RATE": "1e-4"}, None, [], ("1e-4", "TrainJob env")),
        ({**RUNTIME, "STOKER_ARG_LEARNING_RATE": "1e-4"}, {"learning_rate": "1e-3"}, [], ("1e-3", "config file")),
        (RUNTIME, {"learning_rate": "1e-3"}, ["--learning_rate", "1e-2"], ("1e-2", "args")),
        (RUNTIME, {"learning_rate": None}, [], ("1e-5", "runtime")),
    ],
    ids=["runtime", "TrainJob over runtime", "config over env", "args over config", "null in the config is unset"],
)
def test_layers_win_in_their_order(
    env: Mapping[str, str], config: Mapping[str, Any] | None, args: list[str], expected: tuple[str, str]
) -> None:
    words = [*(["--config", "/workspace/sft.yaml"] if config else []), *args]
    assert value_of(plan_of(*words, env=env, config=config), "learning_rate") == expected


@pytest.mark.parametrize(("seconds", "is_too_short"), [("15", True), ("16", False)])
def test_a_grace_period_without_time_for_a_checkpoint_is_noted(seconds: str, is_too_short: bool) -> None:
    notice = (
        "STOKER_GRACE_PERIOD_SECONDS is 15, and ending the processes takes 15 s of it, so a stop saves no checkpoint: "
        "give the pods 30 s or more (terminationGracePeriodSeconds)"
    )
    assert plan_of(env={"STOKER_GRACE_PERIOD_SECONDS": seconds}).notices == ((notice,) if is_too_short else ())


def test_the_recipe_is_the_weakest_layer() -> None:
    assert value_of(plan_of(), "report_to") == ("none", "recipe")
    assert value_of(plan_of(env={"STOKER_ARG_REPORT_TO": "wandb"}), "report_to") == ("wandb", "TrainJob env")


def test_a_trainjob_that_repeats_the_runtimes_value_is_not_mistaken_for_a_stranger() -> None:
    env = {**RUNTIME, "STOKER_ARG_LEARNING_RATE": "1e-5"}
    assert value_of(plan_of(env=env), "learning_rate")[1] == "runtime"


def test_values_of_the_config_file_are_checked_but_left_for_the_trainer_to_read() -> None:
    plan = plan_of("--config", "/workspace/sft.yaml", config={"max_steps": 7, "output_dir": "/workspace/here"})
    assert [*plan.trainer_argv[:2]] == ["--config", "/workspace/sft.yaml"]
    assert not {"--max_steps", "--output_dir"} & {*plan.trainer_argv}
    assert plan.budget == {"steps": 7.0}
    assert plan.output_dir == "/workspace/here"


@pytest.mark.parametrize("config", [{"use_peft": True}, {"use_peft": False}])
def test_peft_in_the_config_file_counts(config: Mapping[str, Any]) -> None:
    facts = pod({"STOKER_ACCELERATOR": "nvidia", "STOKER_ARG_USE_PEFT": "true"}, devices=("nvidia0",))
    plan = resolve(facts, ("--config", "/c.yaml"), config=config)
    assert value_of(plan, "dtype")[0] == ("bfloat16" if config["use_peft"] else "float32")


@pytest.mark.parametrize(
    ("flag", "message"), [("model_name_or_path", "the model is missing"), ("dataset_name", "the data set is missing")]
)
def test_an_empty_name_is_none(flag: str, message: str) -> None:
    with pytest.raises(RunError, match=message) as refused:
        plan_of(f"--{flag}", "")
    assert refused.value.code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("flag", "address", "fix"),
    [
        (
            "model_name_or_path",
            "hf://a/b",
            "write the Hub id a/b, or the address into spec.initializer.model.storageUri",
        ),
        ("dataset_name", "s3://a/b", "write the address into spec.initializer.dataset.storageUri"),
    ],
)
def test_an_address_where_the_trainer_takes_none_is_refused_with_its_place(flag: str, address: str, fix: str) -> None:
    with pytest.raises(RunError, match=fix) as refused:
        plan_of(f"--{flag}", address)
    assert refused.value.code is ExitCode.USAGE


def test_an_empty_variable_is_an_unset_one() -> None:
    assert plan_of(env={"STOKER_NONSENSE": ""}).settings == plan_of().settings


def test_gloo_is_for_several_processes_only() -> None:
    assert "ddp_backend" in {setting.name for setting in plan_of().settings}
    assert "ddp_backend" not in {setting.name for setting in plan_of(single=True).settings}


def test_the_method_of_the_command_wins_over_the_runtimes() -> None:
    plan = plan_of("trl.scripts.dpo", "--beta", "0.1")
    assert (plan.method, plan.module) == ("dpo", "trl.scripts.dpo")


def test_a_runtime_default_foreign_to_the_method_is_dropped_with_a_notice() -> None:
    defaults = {"STOKER_ARG_PACKING": "true"}
    plan = plan_of("trl.scripts.dpo", env={**defaults, "STOKER_RUNTIME_DEFAULTS": json.dumps(defaults)})
    assert "--packing" not in plan.trainer_argv
    assert plan.notices == ("dropped the runtime default STOKER_ARG_PACKING: dpo has no such flag",)


@pytest.mark.parametrize(
    ("args", "env", "learning_rate"),
    [
        (["trl.scripts.sft"], {}, ("1e-5", "runtime")),
        (["trl.scripts.dpo"], {}, None),
        ([], {"STOKER_METHOD": "dpo"}, None),
        (["trl.scripts.dpo", "--learning_rate", "3e-6"], {}, ("3e-6", "args")),
        (["trl.scripts.dpo"], {"STOKER_ARG_LEARNING_RATE": "3e-6"}, ("3e-6", "TrainJob env")),
        # In the pod it is one variable, whoever set it; docs/reference/trainer-flags.md says so.
        (["trl.scripts.dpo"], {"STOKER_ARG_LEARNING_RATE": "1e-5"}, None),
        (["trl.scripts.dpo", "--learning_rate", "1e-5"], {}, ("1e-5", "args")),
    ],
    ids=[
        *("its own method", "another by argument", "another by variable", "set by argument", "set by variable"),
        *("the runtime's value by variable", "the runtime's value by argument"),
    ],
)
def test_the_runtimes_learning_rate_is_not_for_another_method(
    args: list[str], env: Mapping[str, str], learning_rate: tuple[str, str] | None
) -> None:
    plan = plan_of(*args, env={**RUNTIME, **env})
    found = {setting.name: (setting.value, setting.source) for setting in plan.settings}
    assert found.get("learning_rate") == learning_rate
    notice = (
        "dropped the runtime default STOKER_ARG_LEARNING_RATE=1e-5, which is for sft: dpo gets its own default, "
        "1e-06, unless you write --learning_rate in args"
    )
    assert plan.notices == ((notice,) if learning_rate is None else ())


def test_a_runtimes_choice_that_another_method_does_not_have_is_dropped_not_refused() -> None:
    defaults = {"STOKER_ARG_LOSS_TYPE": "dft", "STOKER_ARG_MAX_LENGTH": "512", "STOKER_METHOD": "sft"}
    plan = plan_of("trl.scripts.dpo", env={**defaults, "STOKER_RUNTIME_DEFAULTS": json.dumps(defaults)})
    assert value_of(plan, "max_length") == ("512", "runtime")
    assert [notice.partition(",")[0] for notice in plan.notices] == [
        "dropped the runtime default STOKER_ARG_LOSS_TYPE=dft"
    ]


@pytest.mark.parametrize(
    ("variable", "flag"),
    [
        ("STOKER_ARG_LEARNING_RATE", "learning_rate"),
        ("STOKER_ARG_OPTIMIZER__LR", "optimizer.lr"),
        ("STOKER_ARG_A__B__C", "a.b__c"),
    ],
)
def test_variables_name_flags(variable: str, flag: str) -> None:
    assert flag_of_variable(variable) == flag


def test_a_runtime_may_have_an_adapters_settings_ready_for_those_who_train_one() -> None:
    ready = {"STOKER_ARG_LORA_R": "64", "STOKER_RUNTIME_DEFAULTS": json.dumps({"STOKER_ARG_LORA_R": "64"})}
    assert value_of(plan_of(env=ready), "lora_r") == ("64", "runtime")
    assert value_of(plan_of("--use_dora", "false"), "use_dora") == ("false", "args")


def test_an_empty_variable_is_unset() -> None:
    assert "max_steps" not in {setting.name for setting in plan_of(env={"STOKER_ARG_MAX_STEPS": ""}).settings}


@pytest.mark.parametrize(
    ("env", "args", "config", "code", "message"),
    [
        (
            {},
            ["--max_steps 3"],
            None,
            ExitCode.USAGE,
            "is one word: write the flag and its value as two words, --max_steps and '3'",
        ),
        ({}, ["--max_stps", "1"], None, ExitCode.USAGE, "did you mean --max_steps?"),
        ({}, ["--config"], None, ExitCode.USAGE, "--config takes one file"),
        ({}, ["--config", "/c"], {"learning_rat": 1}, ExitCode.USAGE, "is an abbreviation"),
        ({}, ["--config", "/c"], {"max_steps": "many"}, ExitCode.USAGE, "key max_steps of /c must be a whole number"),
        (
            {},
            ["--config", "/c"],
            {"run_name": date(2026, 1, 1)},
            ExitCode.USAGE,
            "YAML reads key run_name of --config /c as a date",
        ),
        ({}, ["--config", "/c"], {"save_strategy": False}, ExitCode.USAGE, "put them in quotes"),
        ({}, ["--config", "/c"], {"env": {"RANK": 1}}, ExitCode.USAGE, "a config file may not set RANK (env of --con"),
        ({}, ["--config", "/c"], {"env": {"STOKER_RESUME": "never"}}, ExitCode.USAGE, "set it in spec.trainer.env"),
        ({}, ["--config", "/c"], {"env": {"A": None}}, ExitCode.USAGE, "A under env of --config /c must be text"),
        ({}, ["--config", "/c"], {"env": ["A"]}, ExitCode.USAGE, "must be a mapping of variables"),
        ({}, ["--config", "/c"], {"dataset_name": ""}, ExitCode.USAGE, "the data set is missing"),
        (NO_MODEL, ["--config", "/c"], {"model_name_or_path": None}, ExitCode.USAGE, "the model is missing"),
        (
            {"STOKER_ARG_MAX_STEPS": "100"},
            ["--num_train_epochs", "3"],
            None,
            ExitCode.USAGE,
            "--max_steps 100 (TrainJob env) overrides --num_train_epochs 3 (args): add --max_steps -1",
        ),
        ({}, ["--model_init_kwargs", '{"revision": "v2"}'], None, ExitCode.USAGE, "write --model_revision"),
        ({}, ["--config", "/c"], {"model_init_kwargs": {"dtype": "bfloat16"}}, ExitCode.USAGE, "write --dtype"),
        (
            {},
            ["--config", "/c"],
            {"use_peft": [False]},
            ExitCode.USAGE,
            "key use_peft of --config /c must be one value",
        ),
        ({}, ["--config", "/c"], {"datasets": "a"}, ExitCode.USAGE, "datasets of --config /c must be a list of data"),
        ({}, ["--config", "/c"], {"datasets": []}, ExitCode.USAGE, "must be a list of data sets"),
        (
            {},
            ["--config", "/c"],
            {"fsdp": "true"},
            ExitCode.USAGE,
            "key fsdp of --config /c is text, which TRL does not",
        ),
        (
            {},
            ["--config", "/c"],
            {"fsdp": 2},
            ExitCode.USAGE,
            "key fsdp of --config /c must be true, false or text, not 2",
        ),
        (
            {},
            ["--config", "/c"],
            {"run_name": ["a"]},
            ExitCode.USAGE,
            "run_name of --config /c must be one value, not a l",
        ),
        (
            {},
            ["--config", "/c"],
            {"run_name": 7},
            ExitCode.USAGE,
            "YAML reads 7 in key run_name of --config /c as a number",
        ),
        ({}, ["--config", "/c"], {"report_to": False}, ExitCode.USAGE, "as true or false: put it in quotes"),
        (
            {},
            ["--config", "/c"],
            {"label_names": "a"},
            ExitCode.USAGE,
            "label_names of --config /c must be a list: write [a]",
        ),
        ({}, ["--config", "/c"], {"label_names": [1]}, ExitCode.USAGE, "YAML reads 1 in key label_names"),
        (
            {},
            ["--config", "/c"],
            {"fsdp_config": [1]},
            ExitCode.USAGE,
            "fsdp_config of --config /c must be a mapping, not [1]",
        ),
        (
            {},
            ["--config", "/c"],
            {"liger_kernel_config": "x"},
            ExitCode.USAGE,
            "of --config /c must be a mapping, not 'x'",
        ),
        ({"STOKER_ARG_LIGER_KERNEL_CONFIG": '{"rope": true}'}, [], None, ExitCode.USAGE, "write it in a --config file"),
        ({}, ["--config", "/c"], {"datasets": ["a"]}, ExitCode.USAGE, "has no path: write path:"),
        ({}, ["--config", "/c"], {"datasets": [{"path": "a", "spilt": "b"}]}, ExitCode.USAGE, "did you mean split?"),
        (
            {},
            ["--datasets", "a"],
            None,
            ExitCode.USAGE,
            "--datasets takes a list, which no argument or variable can hold: write it in a --config file",
        ),
        ({"STOKER_ARG_CONFIG": "/c"}, [], None, ExitCode.USAGE, "write --config <file> there (given as STOKER_ARG_CON"),
        (
            {"STOKER_ARG_max_steps": "3", "STOKER_ARG_MAX_STEPS": "4"},
            [],
            None,
            ExitCode.USAGE,
            "and another variable both set max_steps: keep one",
        ),
        ({"STOKER_RESTART_ATTEMPT": "x"}, [], None, ExitCode.CONFIG, "STOKER_RESTART_ATTEMPT must be a whole number"),
        ({"STOKER_ARG_": "3"}, [], None, ExitCode.USAGE, "a flag needs a name: write --<flag>"),
        ({"PET_NODE": "2"}, [], None, ExitCode.USAGE, "did you mean PET_NNODES?"),
        ({"PET_STANDALONE": "1"}, [], None, ExitCode.USAGE, "stoker sets torchrun's options"),
        ({}, ["--max_steps", "9" * 33], None, ExitCode.USAGE, "must be a whole number below 2^63, not '999"),
        ({}, ["--learning_rate", "9" * 500], None, ExitCode.USAGE, "must be a number below 2^63, not '999"),
        ({}, ["--num_train_epochs", "0"], None, ExitCode.USAGE, "which trains nothing: write a number above 0"),
        (
            {},
            ["--lora_r", "8"],
            None,
            ExitCode.USAGE,
            "--lora_r (args) has no effect without --use_peft: add --use_peft",
        ),
        ({"STOKER_ARG_USE_DORA": "yes"}, [], None, ExitCode.USAGE, "--use_dora (TrainJob env) has no effect without"),
        ({}, ["--config", "/c"], {"lora_alpha": 8}, ExitCode.USAGE, "--lora_alpha (config file) has no effect without"),
        ({}, ["--bnb_4bit_quant_type", "fp4"], None, ExitCode.USAGE, "has no effect without --load_in_4bit"),
        ({"STOKER_ACCELERATOR": "cpu"}, ["--ddp_backend", "nccl"], None, ExitCode.USAGE, "nccl needs GPUs: leave it"),
        (
            {"STOKER_ACCELERATOR": "nvidia"},
            ["--use_cpu"],
            None,
            ExitCode.USAGE,
            "--use_cpu (args) trains on the CPU, but the runtime is for nvidia: leave it out, or choose a runtime",
        ),
        (
            {"STOKER_ACCELERATOR": "amd"},
            ["--config", "/c"],
            {"use_cpu": True},
            ExitCode.USAGE,
            "--use_cpu (config file) trains on the CPU, but the runtime is for amd",
        ),
        ({}, ["--max_steps", "0"], None, ExitCode.USAGE, "leave it out to use --num_train_epochs"),
        ({}, ["--per_device_train_batch_size", "0"], None, ExitCode.USAGE, "write 1 or more"),
        ({}, ["--lora_dropout", "5"], None, ExitCode.USAGE, "write 1 or less"),
        ({}, ["--save_steps", "2.5"], None, ExitCode.USAGE, "a fraction of all steps below 1"),
        ({}, ["--bf16", "--fp16"], None, ExitCode.USAGE, "--bf16 and --fp16 are both on"),
        ({}, ["--load_in_4bit", "--load_in_8bit"], None, ExitCode.USAGE, "both on: choose one"),
        ({}, ["--load_in_4bit"], None, ExitCode.USAGE, "add --use_peft"),
        ({}, ["--load_in_4bit", "--use_peft"], None, ExitCode.USAGE, "needs a GPU"),
        ({}, ["--load_best_model_at_end"], None, ExitCode.USAGE, "add --eval_strategy"),
        ({}, ["--eval_on_start"], None, ExitCode.USAGE, "--eval_on_start needs evaluations: add --eval_strategy steps"),
        (
            {},
            [*_BEST, "--eval_strategy", "epoch", "--save_strategy", "steps"],
            None,
            ExitCode.USAGE,
            "but --eval_strategy is epoch and --save_strategy is steps: add --save_strategy epoch",
        ),
        (
            {},
            [*_BEST, "--eval_strategy", "steps", "--save_steps", "5", "--eval_steps", "2"],
            None,
            ExitCode.USAGE,
            "but --save_steps is 5 and --eval_steps is 2: make --save_steps a multiple of --eval_steps",
        ),
        (
            {},
            [*_BEST, "--eval_strategy", "steps", "--save_steps", "5", "--eval_steps", "0.5"],
            None,
            ExitCode.USAGE,
            "but --save_steps is 5 and --eval_steps is 0.5",
        ),
        (
            {},
            ["trl.scripts.grpo", "--reward_funcs", "think_format_reward", "--auto_find_batch_size"],
            None,
            ExitCode.USAGE,
            "--auto_find_batch_size (args) could split the groups of grpo: leave it out, and lower --per_device",
        ),
        ({}, ["--overwrite_output_dir"], None, ExitCode.USAGE, "set STOKER_RESUME=never"),
        ({}, ["--warmup_ratio", "0.1"], None, ExitCode.USAGE, "write --warmup_steps with a fraction below 1"),
        (
            {},
            ["--beta", "1"],
            None,
            ExitCode.USAGE,
            "--beta is a flag of dpo, kto, orpo, grpo, rloo, distillation, grpo_async, not",
        ),
        ({}, ["trl.scripts.xyz"], None, ExitCode.USAGE, "'xyz' is not a method of trl: choose one of sft"),
        ({}, ["trl.scripts.rlo"], None, ExitCode.USAGE, "'rlo' is not a method of trl: did you mean rloo?"),
        ({}, ["trl.scripts.ppo"], None, ExitCode.USAGE, "TRL no longer has PPO, choose grpo or rloo"),
        ({"STOKER_METHOD": "DPO"}, [], None, ExitCode.USAGE, "did you mean dpo?"),
        ({"STOKER_METHOD": "gkd"}, [], None, ExitCode.USAGE, "choose distillation"),
        (
            {},
            ["dpo", "--beta", "1"],
            None,
            ExitCode.USAGE,
            "'dpo' does not name the method: begin the arguments with t",
        ),
        ({}, ["trl", "orpo"], None, ExitCode.USAGE, "begin the arguments with stoker.scripts.orpo"),
        ({}, ["torchrun", "-m", "trl.scripts.kto"], None, ExitCode.USAGE, "begin the arguments with trl.scripts.kto"),
        ({"STOKER_METHOD": ""}, ["sft"], None, ExitCode.USAGE, "begin the arguments with trl.scripts.sft"),
        ({"STOKER_METHOD": ""}, [], None, ExitCode.USAGE, "the method is missing: set STOKER_METHOD"),
        ({"STOKER_METHD": "sft"}, [], None, ExitCode.USAGE, "did you mean STOKER_METHOD?"),
        (NO_MODEL, [], None, ExitCode.USAGE, "the model is missing"),
        ({"STOKER_ARG_DATASET_NAME": ""}, [], None, ExitCode.USAGE, "the data set is missing"),
        ({"STOKER_FRAMEWORK": "keras"}, [], None, ExitCode.CONFIG, "framework 'keras' is unknown"),
        ({"STOKER_RESUME": "maybe"}, [], None, ExitCode.CONFIG, "must be one of auto, never, require"),
        ({"STOKER_RUN_ID": ""}, [], None, ExitCode.CONFIG, "STOKER_RUN_ID is not set, but this run has several"),
        ({"STOKER_RUN_ID": "../../x"}, [], None, ExitCode.CONFIG, "STOKER_RUN_ID is '../../x'"),
        ({"STOKER_GRACE_PERIOD_SECONDS": "soon"}, [], None, ExitCode.CONFIG, "whole number of seconds"),
        ({"STOKER_RUNTIME_DEFAULTS": "{"}, [], None, ExitCode.CONFIG, "STOKER_RUNTIME_DEFAULTS must be a JSON obj"),
        ({"STOKER_RUNTIME_DEFAULTS": "[]"}, [], None, ExitCode.CONFIG, "STOKER_RUNTIME_DEFAULTS must be a JSON obj"),
        ({}, ["--save_total_limit", "1"], None, ExitCode.USAGE, "--save_total_limit 1 deletes the last checkpoint"),
        (
            {},
            ["--save_total_limit", "2", *_BEST, "--eval_strategy", "steps"],
            None,
            ExitCode.USAGE,
            "--save_total_limit 2 with --load_best_model_at_end deletes",
        ),
        (
            {"STOKER_ARG_DATASET_NAME": "/workspace/dataset/train.jsonl"},
            [],
            None,
            ExitCode.USAGE,
            "dataset_name is the file /workspace/dataset/train.jsonl: write its folder, /workspace/dataset",
        ),
        ({}, ["--save_only_model"], None, ExitCode.USAGE, "--save_only_model (args): without the state of opt"),
        ({}, ["--config", "/c.yaml"], {"save_on_each_node": True}, ExitCode.USAGE, "all nodes share one output folder"),
        ({}, ["--output_dir", "out"], None, ExitCode.CONFIG, "write an absolute path"),
        (
            {},
            ["--output_dir", "/workspace/model/"],
            None,
            ExitCode.CONFIG,
            "the model /workspace/model is inside output",
        ),
        ({}, ["--output_dir", "/"], None, ExitCode.CONFIG, "the data set /workspace/dataset is inside output_dir /,"),
        (
            {"STOKER_ARG_MODEL_NAME_OR_PATH": "/workspace/output/checkpoint-9"},
            ["--output_dir", "/workspace/x/../output"],
            None,
            ExitCode.CONFIG,
            "the model /workspace/output/checkpoint-9 is inside output_dir",
        ),
        ({"PET_NODE_RANK": "7"}, [], None, ExitCode.CONFIG, "write a number from 0 to 1"),
    ],
)
def test_what_cannot_work_is_refused_with_code_and_fix(
    env: Mapping[str, str], args: list[str], config: Mapping[str, Any] | None, code: ExitCode, message: str
) -> None:
    found, text = refusal_of(*args, env=env, config=config)
    assert found is code
    assert message in text


GRPO = ("trl.scripts.grpo", "--reward_funcs", "think_format_reward")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), None),
        (
            ("--num_generations", "3"),
            "a generation batch of 16 (per_device_train_batch_size 8 × 2 processes × 1 steps)",
        ),
        (("--num_generations", "3", "--per_device_train_batch_size", "3"), None),
        (("--num_generations", "1"), "--num_generations is 1 (args): write 2 or more"),
        (("--num_generations", "5", "--gradient_accumulation_steps", "5"), None),
        (("--generation_batch_size", "40"), "--generation_batch_size is 40: write a multiple of 16"),
        (
            ("--generation_batch_size", "32", "--steps_per_generation", "2"),
            "--generation_batch_size and --steps_per_generation set the same thing",
        ),
        (("--eval_strategy", "steps", "--per_device_eval_batch_size", "3"), "an evaluation batch of 6"),
    ],
)
def test_a_generation_batch_holds_whole_groups(args: tuple[str, ...], message: str | None) -> None:
    if message is None:
        assert plan_of(*GRPO, *args).method == "grpo"
    else:
        code, text = refusal_of(*GRPO, *args)
        assert code is ExitCode.USAGE
        assert message in text


def test_variables_of_the_config_file_are_there_before_the_trainer_starts() -> None:
    plan = plan_of("--config", "/c", config={"env": {"OMP_NUM_THREADS": 3, "NCCL_DEBUG": "INFO"}})
    assert (plan.env["OMP_NUM_THREADS"], plan.env["NCCL_DEBUG"]) == ("3", "INFO")
    assert "env       NCCL_DEBUG=INFO  config file" in describe.plan_text(plan)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WANDB_API_KEY", "hunter2"),
        ("SIGNING_PRIVATE_KEY", "hunter2"),
        ("DB_PASSWD", "hunter2"),
        ("GITHUB_PAT", "hunter2"),
        ("HTTPS_PROXY", "http://me:hunter2@proxy:3128"),
    ],
)
def test_a_secret_in_the_config_file_reaches_the_trainer_and_nobody_else(name: str, value: str) -> None:
    plan = plan_of("--config", "/c", config={"env": {name: value}})
    assert plan.env[name] == value
    assert "hunter2" not in describe.plan_text(plan) + json.dumps(plan.to_json())


@pytest.mark.parametrize("args", [[], ["--hub_token", "hunter2"]], ids=["a variable", "an argument"])
def test_a_token_reaches_the_trainer_and_nobody_else(args: list[str]) -> None:
    plan = plan_of(*args, env={} if args else {"STOKER_ARG_HUB_TOKEN": "hunter2"})
    assert plan.trainer_argv[plan.trainer_argv.index("--hub_token") + 1] == "hunter2"
    shown = plan.to_json()["trainer_argv"]
    assert shown[shown.index("--hub_token") + 1] == "(not shown)"
    assert "hunter2" not in describe.plan_text(plan) + json.dumps(plan.to_json())


def test_a_mixture_needs_no_data_set_of_the_runtime() -> None:
    mixture = {"datasets": [{"path": "trl-lib/Capybara"}]}
    env = {"STOKER_ARG_DATASET_NAME": "/workspace/dataset"}
    assert "/workspace/dataset" in [check.path for check in plan_of(env=env).checks]
    plan = plan_of("--config", "/workspace/c.yaml", env=env, config=mixture)
    assert "/workspace/dataset" not in [check.path for check in plan.checks]


def test_no_secret_is_in_what_a_run_records() -> None:
    signed = "https://a.example/x.jsonl?X-Amz-Signature=hunter2"
    mixture = {"datasets": [{"path": "json", "data_files": [signed]}]}
    plan = plan_of("--config", "/workspace/c.yaml", config=mixture)
    assert "hunter2" in repr(plan.fingerprint)
    assert "hunter2" not in json.dumps(plan.record) + json.dumps(plan.to_json())
    # What an older runner sealed is compared as if it had hidden it too.
    refuse_other_run("x", {"fingerprint": plan.fingerprint, "fixed": plan.fixed}, plan.record)


@pytest.mark.parametrize(
    ("value", "argv", "shown"),
    [
        ("-hunter2", ("--hub_token=-hunter2",), ["--hub_token=(not shown)"]),
        ("hunter2", ("hub_token=hunter2",), ["hub_token=(not shown)"]),
        (("hunter2", "b"), ("--hub_token", "hunter2", "b"), ["--hub_token", "(not shown)", "(not shown)"]),
        (("hunter2", "b"), ("hub_token=hunter2 b",), ["hub_token=(not shown)"]),
    ],
)
def test_a_secret_is_hidden_however_it_is_written(
    value: str | tuple[str, ...], argv: tuple[str, ...], shown: list[str]
) -> None:
    plan = replace(plan_of(), settings=(Setting("hub_token", value, "args"),), trainer_argv=argv)
    assert plan.to_json()["trainer_argv"] == shown


@pytest.mark.parametrize(
    ("args", "env", "argv"),
    [
        (["--fsdp"], {}, ["--fsdp"]),
        (["--fsdp", "true"], {}, ["--fsdp"]),
        ([], {"STOKER_ARG_FSDP": "true"}, ["--fsdp"]),
        (["--fsdp", "false"], {"STOKER_ARG_FSDP": "true"}, ["--fsdp", ""]),
        ([], {"STOKER_ARG_FSDP": "full_shard auto_wrap"}, ["--fsdp", "full_shard auto_wrap"]),
        ([], {"STOKER_ARG_MAX_LENGTH": "none"}, ["--max_length", "none"]),
    ],
)
def test_what_may_stand_alone_or_be_nothing_reaches_the_trainer(
    args: list[str], env: dict[str, str], argv: list[str]
) -> None:
    found = plan_of(*args, env=env).trainer_argv
    at = found.index(argv[0])
    assert [*found[at : at + len(argv)]] == argv
    assert found[at + len(argv)].startswith("--")


TRACKERS = ("tensorboard", "wandb")


@pytest.mark.parametrize(
    ("args", "env"),
    [
        (["--report_to", *TRACKERS], {}),
        (["--report_to", "tensorboard,wandb"], {}),
        (["--report_to", '["tensorboard", "wandb"]'], {}),
        ([], {"STOKER_ARG_REPORT_TO": "tensorboard wandb"}),
        ([], {"STOKER_ARG_REPORT_TO": "tensorboard, wandb"}),
        ([], {"STOKER_ARG_REPORT_TO": '["tensorboard", "wandb"]'}),
        (TRLConfig(method="sft", extra_args={"report_to": [*TRACKERS]}).to_args()[1:], {}),
    ],
    ids=["words", "commas", "JSON", "variable", "variable with commas", "variable with JSON", "SDK"],
)
def test_several_trackers_are_the_same_however_they_are_written(args: list[str], env: dict[str, str]) -> None:
    plan = plan_of(*args, env=env)
    assert value_of(plan, "report_to")[0] == TRACKERS
    assert plan.trainer_argv[plan.trainer_argv.index("--report_to") + 1] == '["tensorboard", "wandb"]'
    assert plan.packages_needed == {
        "tensorboard or tensorboardX": "--report_to tensorboard",
        "wandb": "--report_to wandb",
    }


def test_several_trackers_in_a_file_are_read_by_the_trainer_itself() -> None:
    plan = plan_of("--config", "/c", config={"report_to": [*TRACKERS]})
    assert (value_of(plan, "report_to")[0], "--report_to" in plan.trainer_argv) == (TRACKERS, False)
    assert {"wandb", "tensorboard or tensorboardX"} == {*plan.packages_needed}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["wanbd"], "--report_to wanbd (args) is not a tracker: did you mean wandb?"),
        (["x"], "--report_to x (args) is not a tracker: write none, all, azure_ml, clearml, "),
        (["none", "wandb"], "--report_to none stands alone: leave it out, or the other names"),
    ],
)
def test_what_is_no_tracker_is_refused(words: list[str], why: str) -> None:
    code, text = refusal_of("--report_to", *words)
    assert (code, why in text) == (ExitCode.USAGE, True)


def test_what_a_file_may_hold_and_no_argument_can() -> None:
    config = {
        "fsdp": True,
        "report_to": ["wandb", "mlflow"],
        "liger_kernel_config": {"rope": True},
        "max_length": "null",
    }
    settings = {setting.name: setting.value for setting in plan_of("--config", "/c", config=config).settings}
    assert {name: settings[name] for name in config} == {
        "fsdp": "true",
        "report_to": ("wandb", "mlflow"),
        "liger_kernel_config": '{"rope": true}',
        "max_length": "none",
    }


def test_a_flag_that_will_be_gone_is_a_notice() -> None:
    (notice,) = plan_of("--gradient_checkpointing", "false").notices
    assert notice == "a later trl will drop --gradient_checkpointing: write --activation_checkpointing"


def test_an_output_folder_outside_the_workspace_is_a_notice() -> None:
    assert len(plan_of("--output_dir", "/workspace/../results").notices) == 1
    (notice,) = plan_of("--output_dir", "/results").notices
    assert "is outside the workspace /workspace" in notice
    assert plan_of("--output_dir", "/results", single=True).notices == ()


def test_all_problems_come_at_once() -> None:
    _, text = refusal_of("--max_stps", "1", "--packing", "maybe", env={"STOKER_METHD": "x", "STOKER_ARG_OPTM": "sgd"})
    assert len(text.splitlines()) == 4


def test_another_revision_of_the_teacher_is_another_run() -> None:
    teacher = ("trl.scripts.distillation", "--teacher_model_name_or_path", "a/b", "--teacher_model_revision")
    assert plan_of(*teacher, "v1").fingerprint != plan_of(*teacher, "v2").fingerprint


def test_another_mixture_is_other_data() -> None:
    mixture = {"datasets": [{"path": "a"}]}
    env = {"STOKER_ARG_DATASET_NAME": ""}
    first = plan_of("--config", "/c", env=env, config=mixture)
    other = plan_of("--config", "/c", env=env, config={"datasets": [{"path": "b"}]})
    assert first.fingerprint != other.fingerprint
    none = plan_of("--config", "/c", config={"datasets": None})
    assert "datasets" not in none.fingerprint["data"]


def test_all_nodes_of_a_run_share_one_hash() -> None:
    assert plan_of().hash == plan_of(env={"PET_NODE_RANK": "1"}).hash


@pytest.mark.parametrize(
    ("args", "env"),
    [
        (["--max_steps", "3"], {}),
        (["trl.scripts.dpo"], {}),
        ([], {"PET_NNODES": "3"}),
        ([], {"PET_NPROC_PER_NODE": "2"}),
        ([], {"STOKER_RUN_ID": "another"}),
        ([], {"STOKER_RESUME": "never"}),
    ],
)
def test_another_run_has_another_hash(args: list[str], env: Mapping[str, str]) -> None:
    assert plan_of(*args, env=env).hash != plan_of().hash


def test_nodes_may_differ_in_what_the_framework_lets_each_choose() -> None:
    plan = plan_of()
    chosen = replace(plan, settings=(*plan.settings, Setting("tf32", "true", "recipe")))
    assert chosen.hash == plan.hash
    assert replace(chosen, per_node=()).hash != plan.hash


def test_another_config_file_content_is_another_hash() -> None:
    hashes = {plan_of("--config", "/c", config={"max_steps": steps}).hash for steps in (1, 2)}
    assert len(hashes) == 2


def test_restarts_and_more_steps_keep_the_fingerprint() -> None:
    first = plan_of("--max_steps", "10")
    again = plan_of("--max_steps", "20", env={"STOKER_RESTART_ATTEMPT": "2", "STOKER_RUN_ID": "b"})
    assert first.fingerprint == again.fingerprint


@pytest.mark.parametrize(
    "args",
    [
        ["--use_peft", "--lora_r", "4"],
        ["--use_peft", "--lora_target_parameters", "experts.down_proj"],
        ["--model_revision", "v2"],
        ["--dataset_config", "b"],
    ],
)
def test_another_model_data_or_adapter_is_another_fingerprint(args: list[str]) -> None:
    assert plan_of(*args).fingerprint != plan_of(*[word for word in args if word == "--use_peft"]).fingerprint


@pytest.mark.parametrize(
    ("args", "budget"),
    [
        ([], {"epochs": 3.0}),
        (["--num_train_epochs", "0.5"], {"epochs": 0.5}),
        (["--max_steps", "10", "--num_train_epochs", "5"], {"steps": 10.0}),
        (["--max_steps", "-1", "--num_train_epochs", "5"], {"epochs": 5.0}),
    ],
    ids=["the trainer's default", "epochs", "steps rule", "no limit of steps"],
)
def test_the_budget_has_one_unit(args: list[str], budget: dict[str, float]) -> None:
    assert plan_of(*args).budget == budget


def test_only_local_paths_are_checked_before_the_start() -> None:
    local = plan_of()
    hub = plan_of(env={"STOKER_ARG_MODEL_NAME_OR_PATH": "org/model", "STOKER_ARG_DATASET_NAME": "org/data"})
    assert [check.what for check in local.checks] == ["workspace", "output folder", "model", "data set"]
    assert [check.what for check in hub.checks] == ["workspace", "output folder"]


def test_a_teacher_and_a_reward_model_are_checked_and_make_the_run_another_one() -> None:
    def taught(teacher: str) -> Plan:
        return plan_of("trl.scripts.distillation", "--teacher_model_name_or_path", teacher)

    (check,) = [check for check in taught("/models/big").checks if check.path == "/models/big"]
    assert (check.what, check.code, check.fix) == (
        "teacher's model",
        ExitCode.NO_INPUT,
        "put it there, mount it, or set another one with --teacher_model_name_or_path",
    )
    assert taught("/models/big").fingerprint != taught("/models/bigger").fingerprint
    rewarded = plan_of("trl.scripts.grpo", "--reward_model_name_or_path", "/models/judge")
    assert "/models/judge" in {check.path for check in rewarded.checks}


def test_a_model_of_the_config_file_is_checked_too() -> None:
    plan = plan_of("--config", "/c.yaml", config={"model_name_or_path": "/models/a"})
    assert [(check.what, check.path) for check in plan.checks[2:]] == [
        ("model", "/models/a"),
        ("data set", "/workspace/dataset"),
        ("config file", "/c.yaml"),
    ]


def test_torchrun_is_told_all_it_would_otherwise_guess() -> None:
    argv = plan_of(env={"PET_NODE_RANK": "1", "STOKER_RENDEZVOUS_TIMEOUT_SECONDS": "60"}).torchrun_argv
    assert argv == [
        "--nnodes=2",
        "--nproc-per-node=1",
        "--node-rank=1",
        "--master-addr=sft-node-0-0.sft",
        "--master-port=29500",
        "--rdzv-backend=static",
        "--rdzv-conf=timeout=60",
        "--max-restarts=0",
        "--module",
        "stoker.rank.worker",
    ]


def test_progress_has_one_writer() -> None:
    assert plan_of().env["DISABLE_KUBEFLOW_INTEGRATION"] == "TRUE"


def test_a_plan_as_json_reads_back() -> None:
    plan: Plan = plan_of()
    data = json.loads(json.dumps(plan.to_json()))
    assert data["world"]["size"] == 2
    assert data["hash"] == plan.hash
    assert {"name": "output_dir", "value": "/workspace/output", "source": "recipe"}.items() <= next(
        setting for setting in data["settings"] if setting["name"] == "output_dir"
    ).items()


@pytest.mark.parametrize(
    ("args", "path"),
    [
        ([], None),
        (["--config", "/a.yaml"], "/a.yaml"),
        (["trl.scripts.sft", "--packing", "--config=/a.yaml"], "/a.yaml"),
        (["--config"], None),
    ],
)
def test_the_config_file_is_found_before_the_plan_is_made(args: list[str], path: str | None) -> None:
    assert read_request(pod(), TRL(), args).config_file == path


HEAVY = ("torch", "transformers", "trl", "accelerate", "datasets", "peft", "numpy")


@pytest.mark.parametrize("arguments", [["plan"], ["--help"], ["flags", "sft", "lora"]], ids=" ".join)
def test_planning_imports_nothing_heavy(arguments: list[str]) -> None:
    # A finder that refuses stands in for packages that this environment may not even have.
    program = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            print("imported", name, file=sys.stderr); raise SystemExit(9)
sys.meta_path.insert(0, Refuse())
sys.argv = ["stoker", *{arguments!r}]
from stoker.commands.main import main
main()
"""
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **POD}
    done = subprocess.run([sys.executable, "-c", program], env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout
