"""Configs refuse what cannot be meant, and what they say, every trainer's own table of flags takes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runner.tests.samples import pod, resolve

import stoker
from builders import container, gpu_runtime
from stoker.backends import (
    Initializer,
    Source,
    TorchTuneConfig,
    TorchTuneInstructDataset,
    TRLConfig,
    TRLPeftConfig,
    TRLTrainerType,
)
from stoker.backends import LoraConfig as TorchTuneLora
from stoker.cluster.validate import validate_one
from stoker.frameworks import TRL
from stoker.submit import trainjob as manifests
from stoker.submit.trl_methods import (
    METHOD_CONFIGS,
    TRLDistillationConfig,
    TRLDPOConfig,
    TRLGRPOAsyncConfig,
    TRLGRPOConfig,
    TRLKTOConfig,
    TRLMethodConfig,
    TRLSFTConfig,
)

# With an image that may have every package.
GPUS = gpu_runtime()
container(GPUS)["image"] = "registry.example.com/own/trl:1"
METHODS = [TRLTrainerType(name) for name in TRL.methods]
# It needs an adapter and samplers; a test of its own writes them.
_WITH_MORE = TRLTrainerType.GRPO_ASYNC
# Flags whose values their type does not tell.
_WORDS = {
    "loss_type": st.sampled_from(["sigmoid", "hinge", "ipo"]),
    "reward_funcs": st.just(["think_format_reward"]),
    "num_generations": st.sampled_from([2, 4, 8]),
    "f_divergence_type": st.sampled_from(["reverse_kl", "js_divergence"]),
}
# Fields that may contradict others.
_CONTRADICTING = (
    *("reward_weights", "loss_weights", "reward_model_name_or_path", "vllm_server_base_url", "vllm_mode"),
    *("vllm_gpu_memory_utilization", "sync_ref_model", "packing_strategy", "padding_free"),
    *("completion_only_loss", "max_seq_length"),
)


def values_of(name: str, hint: Any) -> st.SearchStrategy[Any]:
    """Return values that a field's type allows, None among them where it does."""
    if name in _WORDS and Literal not in {get_origin(part) for part in get_args(hint)}:
        return st.none() | _WORDS[name]
    made: list[st.SearchStrategy[Any]] = []
    for part in get_args(hint) or (hint,):
        if get_origin(part) is Literal:
            made.append(st.sampled_from(get_args(part)))
        elif part in SIMPLE:
            made.append(SIMPLE[part])
    return st.one_of(made)


SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    type(None): st.none(),
    bool: st.booleans(),
    int: st.integers(2, 64),
    float: st.floats(0.01, 0.99),
    str: st.sampled_from(["text", "some/name"]),
    list[str]: st.just(["a", "b"]),
    list[float]: st.just([0.5, 0.5]),
}


@st.composite
def method_configs(draw: st.DrawFn, kind: type[TRLMethodConfig]) -> TRLMethodConfig:
    """Return a method's flags, any of them given, without a contradiction."""
    hints = get_type_hints(kind)
    names = [item.name for item in dataclasses.fields(kind)]
    # The size of a generation's batch must suit the number of processes, which a config does not know.
    given = draw(st.sets(st.sampled_from(names))) - {"max_prompt_length", "generation_batch_size"}
    values = {name: draw(values_of(name, hints[name])) for name in given}
    needed = {"reward_funcs": ["think_format_reward"], "teacher_model_name_or_path": "/workspace/teacher"}
    values.update({name: value for name, value in needed.items() if name in names})
    # What contradicts itself is for another test.
    for name in _CONTRADICTING:
        if kind(**values).problems():
            values.pop(name, None)
    return kind(**values)


@st.composite
def configs(draw: st.DrawFn) -> TRLConfig:
    """Return a config of any method in any of the shapes."""
    method = draw(st.sampled_from([method for method in METHODS if method is not _WITH_MORE]))
    flags = draw(method_configs(METHOD_CONFIGS[method]))
    shape: dict[str, Any] = (
        {"method": flags} if draw(st.booleans()) else {"trainer_type": method, f"{method.value}_config": flags}
    )
    shared: dict[str, Any] = {
        "learning_rate": draw(st.none() | st.floats(1e-7, 1.0)),
        "num_train_epochs": draw(st.none() | st.integers(1, 5) | st.floats(0.1, 5)),
        "per_device_train_batch_size": draw(st.none() | st.sampled_from([8, 16, 64])),
        "gradient_checkpointing": draw(st.none() | st.booleans()),
        "bf16": draw(st.sampled_from([None, False])),
        "fp16": draw(st.booleans()),
        "num_nodes": draw(st.none() | st.integers(1, 4)),
        "peft_config": draw(st.none() | adapters()),
    }
    return TRLConfig(**shape, **shared)


def adapters() -> st.SearchStrategy[TRLPeftConfig]:
    """Return adapters without a contradiction, QLoRA among them."""
    return st.builds(
        TRLPeftConfig,
        r=st.integers(1, 256),
        lora_alpha=st.integers(1, 256),
        lora_dropout=st.floats(0, 0.5),
        target_modules=st.sampled_from([["q_proj"], "all-linear", []]),
        use_rslora=st.booleans(),
        use_dora=st.booleans(),
        load_in_4bit=st.just(True),
        bnb_4bit_quant_type=st.sampled_from([None, "nf4", "fp4"]),
        use_bnb_nested_quant=st.booleans(),
        modules_to_save=st.sampled_from([None, ["embed_tokens"]]),
    ) | st.builds(TRLPeftConfig, load_in_8bit=st.booleans())


def test_a_config_loads_the_bridge_to_the_sdk_only_to_submit() -> None:
    command = "import sys, stoker.backends; print(*sys.modules)"
    env = {"PYTHONPATH": str(Path(stoker.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", command], env=env, check=True, stdout=subprocess.PIPE, text=True)
    loaded = {*done.stdout.split()}
    assert "stoker.submit.base" in loaded
    assert not {"stoker.submit.sdk", "stoker.cluster", "kubeflow"} & loaded


@given(config=configs())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_runner_takes_whatever_a_valid_config_says(config: TRLConfig) -> None:
    config.validate()
    facts = pod({"STOKER_ACCELERATOR": "nvidia"}, devices=["nvidia0"])
    plan = resolve(facts, tuple(config.to_args()))
    assert plan.method == config.trainer_type.value
    # The TrainJob of it is one that the cluster and its pods take.
    assert validate_one(manifests.trainjob(config, "run"), GPUS).problems == ()


def test_the_runner_takes_asynchronous_grpo_with_samplers_and_an_adapter() -> None:
    flags = TRLGRPOAsyncConfig(samplers="role", reward_funcs=["tasks:right"], max_staleness=2, depth="auto")
    config = TRLConfig(method=flags, peft_config=TRLPeftConfig(lora_dropout=0.0))
    config.validate()
    plan = resolve(pod({"STOKER_SAMPLERS": "http://run-sampler-0-0.run:8080"}), tuple(config.to_args()))
    assert (plan.method, plan.samplers is not None) == ("grpo_async", True)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_config_whose_fields_are_flags_of_it(method: TRLTrainerType) -> None:
    config = METHOD_CONFIGS[method]
    older = {"max_seq_length", "max_prompt_length"}
    assert {item.name for item in dataclasses.fields(config)} - older <= set(TRL().flag_table(method.value).flags)
    assert f"{method.value}_config" in {item.name for item in dataclasses.fields(TRLConfig)}


def test_every_method_of_the_runner_can_be_written() -> None:
    assert {kind.value for kind in TRLTrainerType} >= set(TRL.methods)


REFUSED: list[tuple[Callable[[], TRLConfig | TorchTuneConfig], str]] = [
    (lambda: TRLConfig(TRLTrainerType.PPO), "TRL 1.16 has no PPO: .*GRPO or TRLTrainerType.RLOO"),
    (lambda: TRLConfig(method="ppo"), "TRL 1.16 has no PPO: .*GRPO or TRLTrainerType.RLOO"),
    (lambda: TRLConfig(fp16=True), "write bf16=False with fp16=True"),
    (
        lambda: TRLConfig(trainer_type=TRLTrainerType.DPO, method=TRLSFTConfig()),
        "trainer_type is dpo and method is sft",
    ),
    (lambda: TRLConfig(method=TRLSFTConfig(), sft_config=TRLSFTConfig()), "sft_config and method are both set"),
    (lambda: TRLConfig(method="sft", bf16=True, fp16=True), "exclude each other"),
    (lambda: TRLConfig(kto_config=TRLKTOConfig()), "kto_config should not be set when the method is sft"),
    (lambda: TRLConfig(sft_config=TRLKTOConfig()), "sft_config is a TRLKTOConfig: write a TRLSFTConfig"),  # type: ignore[arg-type]
    (lambda: TRLConfig(TRLTrainerType.GRPO), "grpo needs reward_funcs or reward_model_name_or_path: set one"),
    (lambda: TRLConfig(method="rloo"), "rloo needs reward_funcs or reward_model"),
    (
        lambda: TRLConfig(method=TRLDistillationConfig()),
        "distillation needs teacher_model_name_or_path: set one in a TRLDistillationConfig",
    ),
    (lambda: TRLConfig(method=TRLGRPOConfig(reward_funcs=["a"], num_generations=1)), "it needs 2 or more"),
    (lambda: TRLConfig(method=TRLGRPOConfig(reward_funcs=["a"], vllm_mode="server")), "write use_vllm=True"),
    (lambda: TRLConfig(method=TRLGRPOConfig(reward_funcs=["a"], reward_weights=[1, 2])), "2 entries for 1 rewards"),
    (lambda: TRLConfig(method=TRLDPOConfig(loss_weights=[1, 2])), "2 entries, but loss_type has 1"),
    (lambda: TRLConfig(method=TRLSFTConfig(loss_type="x")), "--loss_type must be one of"),  # type: ignore[arg-type]
    (lambda: TRLConfig(method=TRLSFTConfig(packing_strategy="bfd")), "write packing=True"),
    (lambda: TRLConfig(method=TRLSFTConfig(padding_free=True)), "write packing=True"),
    (lambda: TRLConfig(method=TRLSFTConfig(max_seq_length=8, max_length=9)), "the same flag"),
    (lambda: TRLConfig(peft_config=TRLPeftConfig(), use_peft=True), "both describe the adapter"),
    (lambda: TRLConfig(lora_r=8), "lora_r needs an adapter: write use_peft=True"),
    (lambda: TRLConfig(use_peft=False, lora_r=8), "write use_peft=True, or drop it"),
    (lambda: TRLConfig(peft_config=TRLPeftConfig(load_in_4bit=True, load_in_8bit=True)), "exclude each other"),
    (lambda: TRLConfig(peft_config=TRLPeftConfig(use_bnb_nested_quant=True)), "write load_in_4bit=True"),
    (lambda: TRLConfig(peft_config=TRLPeftConfig(r=0)), "r is 0: it must be a whole number, 1 or more"),
    (lambda: TRLConfig(peft_config=TRLPeftConfig(r="8")), "r is '8': it must be a whole number"),  # type: ignore[arg-type]
    (lambda: TRLConfig(peft_config=TRLPeftConfig(lora_dropout="x")), "lora_dropout is 'x'"),  # type: ignore[arg-type]
    (lambda: TRLConfig(peft_config={"r": 8}), "peft_config is a dict: write a TRLPeftConfig"),  # type: ignore[arg-type]
    (lambda: TRLConfig(method="stf"), "'stf' is not a training method: write one of sft, dpo, kto, orpo"),
    (lambda: TRLConfig(sharding="half"), "sharding is 'half': write none or full"),  # type: ignore[arg-type]
    (lambda: TRLConfig(sharding="full", extra_args={"deepspeed": "/x.json"}), "both share the model: leave one of"),
    (lambda: TRLConfig(sharding="full", extra_args={"fsdp": False}), "write STOKER_SHARDING=none"),
    (
        lambda: TRLConfig(sharding="full", peft_config=TRLPeftConfig(load_in_8bit=True)),
        "8-bit weights cannot be sharded",
    ),
    (lambda: TRLConfig(extra_args={"max_steps": None}), "max_steps=None: drop it"),  # type: ignore[dict-item]
    (lambda: TRLConfig(learning_rate="fast"), "--learning_rate must be a number"),  # type: ignore[arg-type]
    (lambda: TRLConfig(num_nodes=0), "num_nodes is 0: it must be a whole number, 1 or more"),
    (lambda: TRLConfig(resources_per_node={1: 2}), "it must map resource names to amounts"),  # type: ignore[dict-item]
    (lambda: TRLConfig(extra_args={"fp16": True}), "--bf16 and --fp16 are both on: choose one"),
    (lambda: TRLConfig(num_train_epochs=0), "which trains nothing: write a number above 0"),
    (lambda: TRLConfig(extra_args={"learning_rat": 1}), "write --learning_rate"),
    (lambda: TRLConfig(extra_args={"resume_from_checkpoint": "x"}), "STOKER_RESUME"),
    (lambda: TorchTuneConfig(batch_size=0), "batch_size is 0: it must be a whole number, 1 or more"),
    (lambda: TorchTuneConfig(dtype="bf16"), "dtype is 'bf16': write one of DataType.BF16, DataType.FP32"),  # type: ignore[arg-type]
    (lambda: TorchTuneConfig(peft_config=TorchTuneLora(lora_rank=0)), "lora_rank is 0"),
    (lambda: TorchTuneConfig(peft_config=TorchTuneLora(lora_rank="8")), "lora_rank is '8'"),  # type: ignore[arg-type]
    (lambda: TorchTuneConfig(peft_config={"lora_rank": 8}), "write a LoraConfig"),  # type: ignore[arg-type]
    (lambda: TorchTuneConfig(dataset_preprocess_config={}), "write a TorchTuneInstructDataset"),  # type: ignore[arg-type]
    (
        lambda: TorchTuneConfig(dataset_preprocess_config=TorchTuneInstructDataset(source="json")),  # type: ignore[arg-type]
        "source is 'json': write one of DataFormat.JSON",
    ),
    (lambda: TorchTuneConfig(peft_config=TorchTuneLora(lora_attn_modules=["q"])), "names q: choose from q_proj"),
    (lambda: TorchTuneConfig(peft_config=TorchTuneLora(lora_attn_modules=[])), "name a layer"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_contradiction_is_refused_with_what_to_write(
    make: Callable[[], TRLConfig | TorchTuneConfig], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make().validate()


def test_a_method_that_trl_lost_has_no_arguments() -> None:
    with pytest.raises(ValueError, match=r"TRL 1\.16 has no PPO"):
        TRLConfig(TRLTrainerType.PPO).to_args()


def test_a_mapping_goes_to_the_trainer_as_json() -> None:
    config = TRLConfig(method="sft", extra_args={"model_init_kwargs": {"attn_implementation": "sdpa"}})
    config.validate()
    assert config.to_args()[-2:] == ["--model_init_kwargs", '{"attn_implementation": "sdpa"}']


def test_a_switch_of_trl_that_also_takes_options_is_a_flag_alone() -> None:
    config = TRLConfig(method="sft", num_nodes=2, extra_args={"fsdp": True})
    config.validate()
    assert config.to_args() == ["trl.scripts.sft", "--fsdp"]
    assert validate_one(manifests.trainjob(config, "run"), GPUS).problems == ()


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"(?s)bf16 and fp16.*lora_r needs an adapter.*num_nodes is 0"):
        TRLConfig(fp16=True, lora_r=1, num_nodes=0).validate()


def test_two_models_are_refused_and_a_folder_of_the_fetched_one_is_not() -> None:
    fetched = Initializer(model=Source("hf://Qwen/Qwen3-0.6B"))
    with pytest.raises(ValueError, match="drop model_name_or_path, or the initializer"):
        TRLConfig(model_name_or_path="Qwen/Qwen3-4B").to_args(fetched)
    config = TRLConfig(method="sft", model_name_or_path="/workspace/model/inner")
    assert config.to_args(fetched)[1:3] == ["--model_name_or_path", "/workspace/model/inner"]


def test_what_a_config_turns_off_is_off_on_a_runtime_that_has_it_on() -> None:
    runtime = pod({"STOKER_ARG_USE_PEFT": "true", "STOKER_ARG_FP16": "true", "STOKER_ARG_LORA_R": "16"})
    env = {**runtime.env, "STOKER_RUNTIME_DEFAULTS": json.dumps({**runtime.env})}
    words = TRLConfig(bf16=False, fp16=False).to_args()
    plan = resolve(dataclasses.replace(runtime, env=env), tuple(words))
    values = {setting.name: setting.value for setting in plan.settings}
    assert (values["use_peft"], values["fp16"], values["bf16"]) == ("false", "false", "false")
    # By the newest text, whoever says nothing takes what the runtime has.
    assert TRLConfig(method="sft").to_args() == ["trl.scripts.sft"]


def test_a_reward_models_adapter_is_for_classification() -> None:
    words = TRLConfig(method="reward", use_peft=True).to_args()
    assert words == ["trl.scripts.reward", "--use_peft", "--lora_task_type", "SEQ_CLS"]


def test_todays_name_of_the_length_wins_over_the_older_ones_default() -> None:
    words = TRLConfig(sft_config=TRLSFTConfig(max_length=256)).to_args()
    assert [words[at + 1] for at, word in enumerate(words) if word == "--max_length"] == ["256"]


def test_a_copy_with_another_value_keeps_the_rest() -> None:
    config = TRLConfig(method=TRLSFTConfig(packing=True), num_nodes=2)
    copy = dataclasses.replace(config, num_nodes=3)
    assert (copy.num_nodes, copy.to_args()) == (3, config.to_args())
