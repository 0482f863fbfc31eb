"""TorchTune's command line, configs, keys and paths, without TorchTune."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner.tests.samples import pod, resolve, value_of

from stoker.commands.describe import flags
from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks.torchtune.keys import RECIPES, choose_config, configs_of, data, key_table, unknown_keys
from stoker.plan.plan import Plan

TUNE = {
    "STOKER_FRAMEWORK": "torchtune",
    "STOKER_METHOD": "",
    "STOKER_ARG_MODEL_NAME_OR_PATH": "",
    "STOKER_ARG_DATASET_NAME": "",
}


def plan_of(
    *args: str, env: Mapping[str, str] | None = None, nodes: int = 2, config: Mapping[str, object] | None = None
) -> Plan:
    """Return the plan of a TorchTune run with these arguments."""
    return resolve(pod({**TUNE, "PET_NNODES": str(nodes), **(env or {})}), args, config=config)


def refusal(*args: str, **options: object) -> str:
    """Return why such a run is refused as wrong arguments."""
    with pytest.raises(RunError) as refused:
        plan_of(*args, **options)  # type: ignore[arg-type]  # passed on
    assert refused.value.code is ExitCode.USAGE
    return refused.value.message


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config as its file has it: the dotted keys taken apart."""
    content: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        place = content
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return content


LORA = ("lora_finetune_distributed", "--config", "llama3_2/1B_lora")


@pytest.mark.parametrize(
    ("method", "config", "nodes", "recipe", "chosen"),
    [
        ("full", "llama3_2/1B", 1, "full_finetune_single_device", "llama3_2/1B_full_single_device"),
        ("full", "llama3_2/1B", 2, "full_finetune_distributed", "llama3_2/1B_full"),
        ("full", "phi3/mini", 1, "full_finetune_single_device", "phi3/mini_full_low_memory"),
        ("lora", "qwen2_5/1.5B", 2, "lora_finetune_distributed", "qwen2_5/1.5B_lora"),
        ("qlora", "llama3_2/1B", 1, "lora_finetune_single_device", "llama3_2/1B_qlora_single_device"),
        ("qlora", "llama3_2/1B", 2, "lora_finetune_distributed", "llama3_2/1B_lora"),
        ("lora_dpo", "llama3_1/8B", 2, "lora_dpo_distributed", "llama3_1/8B_lora_dpo"),
        ("full_dpo", "llama3_1/8B", 1, "full_dpo_distributed", "llama3_1/8B_full_dpo"),
        ("kd", "llama3_2/8B_to_1B", 2, "knowledge_distillation_distributed", "llama3_2/8B_to_1B_KD_lora_distributed"),
    ],
)
def test_recipe_and_config_follow_from_method_and_world(
    method: str, config: str, nodes: int, recipe: str, chosen: str
) -> None:
    teacher = ("teacher_checkpointer.checkpoint_dir=/workspace/teacher",) if method == "kd" else ()
    plan = plan_of("--config", config, *teacher, env={"STOKER_METHOD": method}, nodes=nodes)
    assert (plan.module, plan.config) == (recipe, chosen)
    assert [*plan.trainer_argv[:2]] == ["--config", chosen]


def test_every_method_has_configs_and_every_config_its_values() -> None:
    for method in RECIPES:
        assert configs_of(method)
        for name in configs_of(method):
            assert choose_config(method, name, 1) == name
            assert "epochs" in data("configs")[name]


def test_every_config_of_a_method_can_be_planned_on_one_node_and_on_two() -> None:
    for method in RECIPES:
        # LoRA and QLoRA share their recipes: configs that quantize are those of QLoRA alone.
        for name in (
            name for name in configs_of(method) if method != "lora" or not {"qlora", "qdora"} & {*name.split("_")}
        ):
            for nodes in (1, 2):
                plan = plan_of("--config", name, env={"STOKER_METHOD": method}, nodes=nodes)
                assert plan.budget["epochs"] >= 1
                paths = [setting.value for setting in plan.settings if setting.name == "checkpointer.checkpoint_dir"]
                assert str(paths[0]).startswith("/workspace/model"), name


def test_the_workspaces_paths_take_the_place_of_the_configs_own() -> None:
    plan = plan_of("full_finetune_distributed", "--config", "qwen2_5/1.5B_full")
    assert value_of(plan, "checkpointer.checkpoint_dir") == ("/workspace/model", "recipe")
    assert value_of(plan, "tokenizer.path") == ("/workspace/model/vocab.json", "recipe")
    assert value_of(plan, "tokenizer.merges_file") == ("/workspace/model/merges.txt", "recipe")
    assert value_of(plan, "output_dir") == ("/workspace/output", "recipe")
    assert {"/workspace/model", "/workspace/model/vocab.json"} <= {check.path for check in plan.checks}


def test_what_the_command_says_of_paths_wins() -> None:
    plan = plan_of(*LORA, "checkpointer.checkpoint_dir=/models/llama", "output_dir=/workspace/out")
    assert value_of(plan, "checkpointer.checkpoint_dir") == ("/models/llama", "args")
    assert plan.output_dir == "/workspace/out"
    assert plan.base_model == ("/models/llama", None)


def test_a_variable_sets_a_key_and_its_first_double_underscore_is_a_dot() -> None:
    env = {
        "STOKER_ARG_MODEL__LORA_RANK": "16",
        "STOKER_ARG_MODEL___COMPONENT_": "torchtune.models.llama3_2.lora_llama3_2",
        "STOKER_ARG_MODEL__EMBED_DIM": "64",
        "STOKER_ARG_CONFIG": "llama3_2/1B",
        "STOKER_METHOD": "lora",
    }
    plan = plan_of("model.lora_rank=8", env=env)
    assert plan.config == "llama3_2/1B_lora"
    assert value_of(plan, "model.lora_rank") == ("8", "args")
    assert value_of(plan, "model.embed_dim") == ("64", "TrainJob env")
    assert value_of(plan, "model._component_")[0] == "torchtune.models.llama3_2.lora_llama3_2"


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("model.lora_rnak=8", "did you mean model.lora_rank?"),
        ("bach_size=2", "did you mean batch_size?"),
        ("dataset.sourse=json", "did you mean dataset.source?"),
        ("optimizer.learning_rate=1", "optimizer.learning_rate is not a key"),
        ("model.embed_dim=64", "model.embed_dim is not a key"),
        ("+seed=1", "write seed=<value>"),
        ("~dataset", "~dataset names a component, but TorchTune removes only single keys"),
        ("~dataset.pack", "did you mean dataset.packed?"),
        ("compile=maybe", "compile must be true or false, not 'maybe'"),
        ("batch_size=two", "batch_size must be a whole number, 1 or more, not 'two'"),
        ("batch_size=null", "batch_size must be a whole number, 1 or more"),
        ("batch_size=", "must be a whole number, 1 or more, not ''"),
        ("epochs=0", "epochs must be a whole number, 1 or more, not '0'"),
        ("epochs=${batch_size}", "epochs is '${batch_size}': write a number"),
        ("max_steps_per_epoch=" + 33 * "3", "and at most 18 digits, not '333"),
        ("seed=abc", "seed must be a whole number, 0 or more"),
        ("tokenizer.max_seq_len=2.5", "must be a whole number, 1 or more"),
        ("model.lora_rank=0", "must be a whole number, 1 or more"),
        ("model.lora_dropout=2", "must be 1 or less, not 2"),
        ("optimizer.lr=-1", "must be 0 or more, not -1"),
        ("optimizer.lr=nan", "must be a number as in the config (0.0003), not 'nan'"),
        ("loss=nope", "loss must be the dotted path of a component such as torchtune.modules.loss.CEWith"),
        ("optimizer=torch.optim.AdamX", "did you mean torch.optim.Adam"),
        ("dataset._component_=torchtune.datasets.alpaka_dataset", "did you mean torchtune.datasets.alpaca_dataset?"),
        ("model.lora_attn_modules=q_proj,v_proj", "must be a list, not 'q_proj,v_proj': write [q_proj,v_proj]"),
        ("model.lora_attn_modules=[q_proj,o_proj]", "a list of q_proj, k_proj, v_proj, output_proj"),
        ("checkpointer.checkpoint_files=model.safetensors", "must be a list, not 'model.safetensors': write [model.sa"),
        ("dtype=fp16", "dtype must be one of fp32, bf16, not 'fp16'"),
        ("device=cuda:0", "device is 'cuda:0', but the runtime has no accelerator"),
        ("metric_logger.log_dir=${output_dri}/logs", "did you mean ${output_dir}?"),
        ("metric_logger.log_dir=${output_dir", "write a reference as ${key}"),
        ("~epochs", "~epochs removes a key that lora_finetune_distributed needs"),
        ("epochs", "'epochs' is not a setting: write key=value"),
        ("--epochs=2", "'--epochs=2' is not a setting: write key=value"),
        ("dataset.filter=a=b", "has a second '='"),
        ("resume_from_checkpoint=True", "set STOKER_RESUME"),
        ("enable_async_checkpointing=True", "stoker seals only complete checkpoints"),
        ("dataset.packed=True", "write tokenizer.max_seq_len=<tokens>"),
    ],
)
def test_what_torchtune_would_take_in_silence_is_refused(word: str, advice: str) -> None:
    assert advice in refusal(*LORA, word)


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("lora_finetune_distribute", "did you mean lora_finetune_distributed?"),
        ("lora_dpo", "did you mean lora_dpo_distributed?"),
        ("ppo_full_finetune_single_device", "is not a recipe that stoker launches: choose one of full_finetune_sing"),
    ],
)
@pytest.mark.parametrize("method", ["", "lora"])
def test_a_misnamed_recipe_is_told_what_was_meant(word: str, advice: str, method: str) -> None:
    assert advice in refusal(word, "--config", "llama3_2/1B", env={"STOKER_METHOD": method})


@pytest.mark.parametrize(
    "words",
    [
        ("dataset.data_files=/workspace/dataset/train.jsonl",),
        ("dataset=torchtune.datasets.instruct_dataset", "dataset.new_system_prompt=hi", "dataset.delimiter=;"),
        ("model=torchtune.models.llama3_2.lora_llama3_2", "model.embed_dim=64", "model.use_dora=True"),
        ("clip_grad_norm=1.0", "fsdp_cpu_offload=True", "seed=7"),
        ("max_steps_per_epoch=null", "lr_scheduler.num_warmup_steps=None"),
        ("optimizer=my_package.Lion", "optimizer.betas=[0.9,0.99]"),
        ("~clip_grad_norm", "~dataset.packed"),
        ("metric_logger.log_dir=${output_dir}/logs", "model.lora_alpha=${model.lora_rank}", "seed=null"),
        ("model.lora_attn_modules=[q_proj,k_proj]", "optimizer=bitsandbytes.optim.AdamW8bit", "dtype=bf16"),
    ],
)
def test_keys_of_components_and_of_the_recipe_are_taken(words: tuple[str, ...]) -> None:
    argv = plan_of(*LORA, *words).trainer_argv
    for word in words:
        key, _, value = word.partition("=")
        assert f"{key}={value.replace('True', 'true')}" in argv or word in argv


@pytest.mark.parametrize(
    ("named", "advice"),
    [("llama3_2/1C", "did you mean llama3_2/1B"), ("llama3_2/1B_full", "is not a config of torchtune 0.6.1 (lora)")],
)
def test_a_config_that_the_method_has_not_is_refused(named: str, advice: str) -> None:
    assert advice in refusal("lora_finetune_distributed", "--config", named)


def test_a_run_without_a_config_is_told_which_there_are() -> None:
    message = refusal("full_finetune_distributed")
    assert "STOKER_ARG_CONFIG" in message
    assert "qwen2_5/7B_full" in message


def test_quantized_lora_is_another_method() -> None:
    plan = plan_of(*LORA, "model.quantize_base=True")
    assert plan.method == plan.fingerprint["method"] == "qlora"
    assert value_of(plan_of("--config", "llama3_2/1B", env={"STOKER_METHOD": "qlora"}), "model.quantize_base")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), False),
        (("model=torchtune.models.llama3_2.qlora_llama3_2_1b",), False),
        (("model=torchtune.models.llama3_2.lora_llama3_2",), True),
        (("model._component_=torchtune.models.llama3_2.lora_llama3_2",), True),
    ],
)
def test_qlora_quantizes_whichever_builder_makes_the_model(words: tuple[str, ...], told: bool) -> None:
    env = {"STOKER_METHOD": "qlora"}
    plan = plan_of("--config", "llama3_2/1B_qlora_single_device", *words, nodes=1, env=env)
    assert ("model.quantize_base=True" in plan.trainer_argv) == told


def test_qlora_without_quantization_is_refused() -> None:
    message = refusal("--config", "llama3_2/1B", "model.quantize_base=False", env={"STOKER_METHOD": "qlora"})
    assert "model.quantize_base=False, but the method is qlora: leave it out" in message


ON_ONE = ("lora_finetune_single_device", "--config", "llama3_2/1B")


@pytest.mark.parametrize(
    ("words", "env"),
    [
        ((*ON_ONE, "model=torchtune.models.llama3_2.qlora_llama3_2_1b"), {}),
        (ON_ONE, {"STOKER_ARG_MODEL__QUANTIZE_BASE": "true"}),
        (("lora_finetune_single_device",), {"STOKER_ARG_CONFIG": "llama3_2/1B_qlora_single_device"}),
        (("lora_finetune_single_device", "--config", "llama3/8B_qdora_single_device"), {}),
    ],
)
def test_a_recipe_of_lora_on_quantized_weights_is_qlora_whatever_quantizes_them(
    words: tuple[str, ...], env: Mapping[str, str]
) -> None:
    assert plan_of(*words, nodes=1, env=env).method == "qlora"


@pytest.mark.parametrize(
    ("model", "words", "method"),
    [
        ({"quantize_base": True}, (), "qlora"),
        ({"quantize_base": True}, ("model.quantize_base=False",), "lora"),
        ({"quantize_base": True}, ("~model.quantize_base",), "lora"),
        ({"_component_": "torchtune.models.llama3_2.qlora_llama3_2_1b"}, (), "qlora"),
        ({"_component_": "torchtune.models.llama3_2.qlora_llama3_2_1b", "quantize_base": False}, (), "lora"),
        ({}, (), "lora"),
    ],
)
def test_of_an_own_config_the_content_tells_lora_from_qlora_and_not_its_path(
    model: Mapping[str, object], words: tuple[str, ...], method: str
) -> None:
    config = {**nested(data("configs")["llama3_2/1B_lora_single_device"])}
    config["model"] = {**config["model"], **model}
    plan = plan_of(
        "lora_finetune_single_device", "--config", "/workspace/qlora-or-lora/my.yaml", *words, nodes=1, config=config
    )
    assert plan.method == method
    assert not any("quantize_base=true" in word.lower() for word in plan.trainer_argv)


@pytest.mark.parametrize(
    "words",
    [
        ("--config", "llama3_2/1B", "model.quantize_base=True"),
        ("--config", "llama3_2/1B", "model=torchtune.models.llama3_2.qlora_llama3_2_1b"),
        ("--config", "llama3_2/1B_qlora_single_device"),
    ],
)
def test_lora_on_quantized_weights_is_refused(words: tuple[str, ...]) -> None:
    assert "but the method is lora: set STOKER_METHOD=qlora" in refusal(*words, nodes=1, env={"STOKER_METHOD": "lora"})


def test_whether_weights_are_quantized_is_said_in_a_word_that_cannot_be_misread() -> None:
    assert "model.quantize_base is '1': write True or False" in refusal(*LORA, "model.quantize_base=1")


def test_qlora_quantizes_where_the_configs_own_word_for_it_is_taken_out() -> None:
    config = {**nested(data("configs")["llama3_2/1B_lora_single_device"])}
    config["model"] = {**config["model"], "quantize_base": True}
    words = ("--config", "/workspace/my.yaml", "~model.quantize_base")
    plan = plan_of(*words, nodes=1, env={"STOKER_METHOD": "qlora"}, config=config)
    assert "model.quantize_base=true" in plan.trainer_argv


@pytest.mark.parametrize("word", ["epochs=010", "batch_size=010", "model.lora_alpha=010", "seed=+07"])
def test_a_number_that_yaml_takes_for_another_is_refused(word: str) -> None:
    assert "but YAML reads it as the octal number" in refusal(*LORA, word)


def test_a_variable_with_a_value_that_torchtune_cannot_read_is_refused() -> None:
    env = {"STOKER_ARG_DATASET__NEW_SYSTEM_PROMPT": "a=b"}
    message = refusal(*LORA, "dataset=torchtune.datasets.instruct_dataset", env=env)
    assert "the value of dataset.new_system_prompt (TrainJob env) contains '='" in message


def test_what_a_launch_alone_may_say_is_refused_in_an_own_config_too() -> None:
    config = nested(data("configs")["llama3_2/1B_lora_single_device"])
    words = ("lora_finetune_single_device", "--config", "/workspace/my.yaml")
    assert plan_of(*words, nodes=1, config=config).method == "lora"
    for changed, key in (
        ({"resume_from_checkpoint": True}, "resume_from_checkpoint"),
        ({"enable_async_checkpointing": True}, "enable_async_checkpointing"),
        ({"checkpointer": {**config["checkpointer"], "recipe_checkpoint": "r.pt"}}, "checkpointer.recipe_checkpoint"),
    ):
        message = refusal(*words, nodes=1, config={**config, **changed})
        assert f"{key} in --config /workspace/my.yaml is reserved for stoker: leave it out" in message


def test_the_base_model_of_an_own_config_is_known() -> None:
    config = nested(data("configs")["llama3_2/1B_lora_single_device"])
    for folder, known in (("/workspace/llama", "/workspace/llama"), ("${model_dir}", None)):
        config["checkpointer"]["checkpoint_dir"] = folder
        own = {**config, **({"model_dir": "/workspace/llama"} if known is None else {})}
        words = ("lora_finetune_single_device", "--config", "/workspace/my.yaml")
        assert plan_of(*words, nodes=1, config=own).base_model == (known, None)


def test_a_component_that_two_layers_name_in_two_ways_is_refused_unless_they_agree() -> None:
    env = {"STOKER_ARG_DATASET___COMPONENT_": "torchtune.datasets.alpaca_dataset"}
    message = refusal(*LORA, "dataset=torchtune.datasets.instruct_dataset", env=env)
    assert "dataset=torchtune.datasets.instruct_dataset (args) and dataset._component_=" in message
    assert plan_of(*LORA, "dataset=torchtune.datasets.alpaca_dataset", env=env).method == "lora"


@pytest.mark.parametrize(
    ("method", "config", "key"),
    [
        ("kd", "llama3_2/8B_to_1B", "teacher_checkpointer.checkpoint_dir"),
        ("full_dpo", "llama3_1/8B", "ref_checkpointer.checkpoint_dir"),
    ],
)
def test_another_teacher_or_reference_is_another_run(method: str, config: str, key: str) -> None:
    plans = [plan_of("--config", config, f"{key}=/m/{name}", env={"STOKER_METHOD": method}) for name in "ab"]
    assert plans[0].fingerprint != plans[1].fingerprint


def test_the_fingerprint_has_what_the_recipe_reads() -> None:
    data_of = plan_of(*LORA, "~dataset.packed", "dataset=torchtune.datasets.chat_dataset").fingerprint["data"]
    assert isinstance(data_of, dict)
    assert "dataset.packed" not in data_of
    assert "dataset" not in data_of
    assert data_of["dataset._component_"] == "torchtune.datasets.chat_dataset"


def test_on_a_cpu_the_config_is_made_to_fit() -> None:
    plan = plan_of("full_finetune_single_device", "--config", "llama2/7B_full_low_memory", nodes=1)
    assert value_of(plan, "device")[0] == "cpu"
    assert value_of(plan, "dtype")[0] == "fp32"
    assert value_of(plan, "optimizer._component_") == ("torch.optim.AdamW", "recipe")


@pytest.mark.parametrize(
    ("words", "adapter_only"),
    [
        (("--config", "llama3_2/1B"), True),
        (("--config", "llama3/8B"), False),
        (("--config", "llama3/8B", "checkpointer=torchtune.training.FullModelHFCheckpointer"), True),
        (("--config", "phi4/14B"), False),
    ],
)
def test_the_merged_model_is_saved_where_no_server_reads_the_adapter(
    words: tuple[str, ...], adapter_only: bool
) -> None:
    plan = plan_of("lora_finetune_distributed", *words)
    assert ("save_adapter_weights_only" in {setting.name for setting in plan.settings}) is adapter_only


def test_on_a_cpu_nothing_is_compiled_unless_asked_for() -> None:
    args = ("full_finetune_distributed", "--config", "llama3_3/70B_full_multinode")
    assert value_of(plan_of(*args), "compile")[0] in ("False", "false")
    assert value_of(plan_of(*args, "compile=True"), "compile")[1] == "args"


def test_data_given_as_the_sdk_gives_it_gets_a_source() -> None:
    files = plan_of(*LORA, "dataset.data_files=/workspace/dataset/train.jsonl")
    folder = plan_of(*LORA, "dataset.data_dir=/workspace/dataset/.")
    assert value_of(files, "dataset.source")[0] == "json"
    assert value_of(folder, "dataset.source")[0] == "/workspace/dataset/."
    assert "dataset.source=/workspace/dataset/." in folder.trainer_argv
    assert "dataset.data_dir=/workspace/dataset/." not in folder.trainer_argv, "`datasets` refuses both"


@pytest.mark.parametrize(
    ("files", "checked"),
    [
        ("/workspace/dataset/train.jsonl", "/workspace/dataset/train.jsonl"),
        ("/workspace/dataset/*.jsonl", "/workspace/dataset"),
        ("/workspace/dataset/**/part-?.jsonl", "/workspace/dataset"),
    ],
)
def test_files_given_by_a_pattern_are_looked_for_where_it_begins(files: str, checked: str) -> None:
    plan = plan_of(*LORA, f"dataset.data_files={files}")
    assert checked in [check.path for check in plan.checks]
    assert not [check.path for check in plan.checks if "*" in check.path]
    assert f"dataset.data_files={files}" in plan.trainer_argv


def test_a_run_is_another_one_once_model_data_or_epoch_differ_but_not_with_more_epochs() -> None:
    base = plan_of(*LORA)
    for word in ("model.lora_rank=8", "dataset.split=test", "max_steps_per_epoch=3", "batch_size=1"):
        assert plan_of(*LORA, word).fingerprint != base.fingerprint, word
    for word in ("epochs=3", "log_every_n_steps=5"):
        assert plan_of(*LORA, word).fingerprint == base.fingerprint, word
    assert plan_of(*LORA, "epochs=3").budget == {"epochs": 3.0}


def test_a_users_own_config_is_checked_at_its_top_and_may_hold_names_of_its_own() -> None:
    own = {
        "folder": "/models/own",
        "model": {"_component_": "torchtune.models.llama3_2.llama3_2_1b"},
        "checkpointer": {"_component_": "torchtune.training.FullModelHFCheckpointer", "checkpoint_dir": "${folder}"},
        "epochs": 1,
        "bach_size": 2,
    }
    args = ("full_finetune_distributed", "--config", "/workspace/own.yaml")
    assert refusal(*args, config=own) == (
        "bach_size in --config /workspace/own.yaml is not a key of full_finetune_distributed: did you mean batch_size?"
    )
    del own["bach_size"]
    for wrong, advice in (
        ({"epochs": None}, "epochs must be a whole number, 1 or more"),
        ({"epochs": "two"}, "epochs must be a whole number"),
        ({"seed": "x"}, "seed must be a whole number"),
        ({"model": {"_component_": "torchtune.models.llama3_2.llama"}}, "but torchtune 0.6.1 has no such component"),
        (
            {"optimizer": {"_component_": "torch.optim.AdamW", "weight_decy": 0.1}},
            "is not a key of torch.optim.AdamW: did you mean optimizer.weight_decay?",
        ),
    ):
        assert advice in refusal(*args, config={**own, **wrong})
    unread = plan_of(*args, "batch_size=2")
    assert unread.config == "/workspace/own.yaml", "what is missing may be in it"
    nothing: list[dict[str, object]] = [{}, {"batch_size": {"": {}}}]
    for empty in nothing:
        assert "write epochs=<whole number>" in refusal(*args, config=empty)
    theirs: list[dict[str, object]] = [
        {"loss": {"_component_": "my.package.Loss", "anything": 1}},
        {"dataset": {"_component_": "torchtune.datasets.instruct_dataset", "data_files": "/data/x.json"}},
    ]
    for taken in theirs:
        plan_of(*args, config={**own, **taken})
    wrong = {"model": {"_component_": "torchtune.models.llama3_2.llama3_2_1b", "lora_rank": 8}}
    assert "model.lora_rank in --config" in refusal(*args, config={**own, **wrong})
    plan_of(*args, "~model.lora_rank", config={**own, **wrong})
    del own["epochs"]
    assert "write epochs=<whole number>" in refusal(*args, config=own)
    own["epochs"] = 1
    plan = plan_of(*args, config=own)
    assert [*plan.trainer_argv[:2]] == ["--config", "/workspace/own.yaml"]
    assert "/workspace/own.yaml" in {check.path for check in plan.checks}


@pytest.mark.parametrize("method", RECIPES)
def test_every_config_of_torchtune_would_be_taken_as_a_users_own(method: str) -> None:
    for name in configs_of(method):
        keys = key_table(method, 2, "/workspace/own.yaml", data("configs")[name], {})
        assert [problem for problem in unknown_keys(keys) if "." in problem.split()[0]] == [], name


@given(st.lists(st.text(max_size=20), max_size=5))
def test_no_command_line_ends_in_a_traceback(words: list[str]) -> None:
    with suppress(RunError):
        plan_of(*LORA, *words)


RECIPE_CONFIGS = sorted((method, config) for method in RECIPES for config in configs_of(method))
VALUES = st.one_of(
    st.text(max_size=10),
    st.one_of(st.integers(), st.floats(), st.booleans(), st.none()).map(str),
    st.sampled_from(["null", "[q_proj]", "[]", "[", "${epochs}", "${", "torch.optim.SGD", "cpu", "bf16", "/tmp/x"]),
)


@given(st.data(), st.sampled_from(RECIPE_CONFIGS), st.integers(1, 3))
def test_a_value_that_is_taken_reaches_torchtune_as_it_was_written(
    draw: st.DataObject, chosen: tuple[str, str], nodes: int
) -> None:
    method, config = chosen
    recipe = next(name for name in RECIPES[method] if name and config in data("recipes")[name]["configs"])
    told = draw.draw(st.dictionaries(st.sampled_from(sorted(data("configs")[config])), VALUES, max_size=3))
    try:
        plan = plan_of(recipe, "--config", config, *(f"{key}={value}" for key, value in told.items()), nodes=nodes)
    except RunError:
        return
    assert plan.budget["epochs"] >= 1
    assert plan.output_dir.startswith("/")
    assert [*plan.trainer_argv[:2]] == ["--config", plan.config]
    words = dict(word.partition("=")[::2] for word in plan.trainer_argv[2:])
    assert len(words) == len(plan.trainer_argv) - 2
    for key, value in told.items():
        if key in words:
            assert words[key].lower() in (value.lower(), "true", "false")
    json.dumps(plan.to_json())


@given(
    st.dictionaries(
        st.sampled_from(sorted({key.partition(".")[0] for key in data("configs")["llama3_2/1B_full"]})),
        st.recursive(
            VALUES | st.integers() | st.none() | st.dates(),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
            max_leaves=4,
        ),
        max_size=5,
    )
)
def test_no_config_of_a_user_ends_in_a_traceback(content: dict[str, object]) -> None:
    with suppress(RunError):
        plan = plan_of("full_finetune_distributed", "--config", "/workspace/own.yaml", config=content)
        assert plan.budget["epochs"] >= 1
        json.dumps(plan.to_json())


def test_the_keys_of_a_method_are_listed_without_dashes() -> None:
    assert "model.lora_rank <str> (default 64)" in flags("lora", "lora_rank").splitlines()
