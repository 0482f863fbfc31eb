"""Sharding by one value: the flags it becomes, what wins over them, and what it cannot go with."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from runner.tests.samples import alone, plan_of, pod, resolve

from stoker.contract.exits import ExitCode, RunError
from stoker.plan.plan import Plan

FULL = {"STOKER_SHARDING": "full"}
GPU = {"STOKER_ACCELERATOR": "nvidia"}
QLORA = ("--use_peft", "--load_in_4bit")


def sharded(*args: str, env: Mapping[str, str] | None = None) -> Plan:
    """Return the plan of a sharded run on two nodes with a GPU each."""
    return resolve(pod({**GPU, **FULL, **(env or {})}, devices=("nvidia0",)), args)


def flags_of(plan: Plan) -> dict[str, object]:
    """Return the flags of a plan."""
    return {setting.name: setting.value for setting in plan.settings}


def config_of(plan: Plan) -> dict[str, object]:
    """Return what a plan says of FSDP."""
    found: dict[str, object] = json.loads(str(flags_of(plan)["fsdp_config"]))
    return found


def test_one_value_becomes_the_trainers_own_flags() -> None:
    plan = sharded()
    assert config_of(plan) == {
        "version": 2,
        "reshard_after_forward": True,
        "activation_checkpointing": True,
        "state_dict_type": "SHARDED_STATE_DICT",
        "cpu_ram_efficient_loading": True,
    }
    assert flags_of(plan)["activation_checkpointing"] == "false"
    assert "--fsdp" in plan.trainer_argv
    (setting,) = [setting for setting in plan.settings if setting.name == "fsdp"]
    assert (setting.source, setting.reason.partition(":")[0]) == ("recipe", "STOKER_SHARDING=full")


@pytest.mark.parametrize("env", [{}, {"STOKER_SHARDING": ""}, {"STOKER_SHARDING": "none"}])
def test_every_process_holds_the_whole_model_by_default(env: Mapping[str, str]) -> None:
    plan = resolve(pod({**GPU, **env}, devices=("nvidia0",)))
    assert not {"fsdp", "fsdp_config"} & flags_of(plan).keys()
    assert "sharding" not in plan.fingerprint


def test_a_single_process_has_nobody_to_share_with() -> None:
    plan = resolve(alone({**GPU, **FULL}, devices=("nvidia0",)))
    assert "fsdp" not in flags_of(plan)
    assert "sharding" not in plan.fingerprint
    assert [notice for notice in plan.notices if "STOKER_SHARDING" in notice]


def test_an_adapters_layers_are_recomputed_by_the_trainer() -> None:
    # With FSDP's own recomputing, PEFT finds no weight by its name and saves an empty adapter.
    plan = sharded("--use_peft")
    assert config_of(plan)["activation_checkpointing"] is False
    assert "activation_checkpointing" not in flags_of(plan)
    for name in ("activation_checkpointing", "fsdp_activation_checkpointing"):
        with pytest.raises(RunError, match="leaves an empty adapter"):
            sharded("--use_peft", "--fsdp_config", json.dumps({name: True}))


def test_a_configuration_of_the_users_decides_what_is_recomputed() -> None:
    both = sharded("--fsdp_config", '{"activation_checkpointing": true}')
    assert config_of(both)["activation_checkpointing"]
    assert flags_of(both)["activation_checkpointing"] == "false"  # transformers refuses both at once
    assert "activation_checkpointing" not in flags_of(sharded("--fsdp_config", '{"version": 2}'))


@pytest.mark.parametrize("flag", ["activation_checkpointing", "gradient_checkpointing"])
@pytest.mark.parametrize("value", ["true", "false"])
def test_recomputing_is_the_users_if_the_user_says_so(flag: str, value: str) -> None:
    # transformers refuses its own recomputing and FSDP's at once.
    plan = sharded(f"--{flag}", value)
    assert config_of(plan)["activation_checkpointing"] is False
    assert flags_of(plan)[flag] == value


def test_how_the_user_recomputes_is_not_lost_to_fsdps() -> None:
    plan = sharded("--activation_checkpointing_kwargs", '{"every_n_layers": 2}')
    assert config_of(plan)["activation_checkpointing"] is False
    assert "activation_checkpointing" not in flags_of(plan)


def test_the_users_configuration_wins() -> None:
    plan = sharded("--fsdp_config", '{"cpu_offload": true}', env={"STOKER_ARG_ACTIVATION_CHECKPOINTING": "true"})
    assert config_of(plan) == {"cpu_offload": True}
    assert flags_of(plan)["activation_checkpointing"] == "true"


def test_quantized_weights_are_stored_so_that_they_can_be_sharded() -> None:
    plan = sharded(*QLORA)
    assert flags_of(plan)["bnb_4bit_quant_storage"] == "bfloat16"
    assert config_of(plan)["cpu_ram_efficient_loading"] is False
    assert "bnb_4bit_quant_storage" not in flags_of(sharded("--use_peft"))


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--use_peft", "--load_in_8bit"), "--load_in_4bit"),
        (("--deepspeed", "zero3.json"), "--deepspeed"),
        (("--fsdp", "false"), "STOKER_SHARDING=none"),
    ],
)
def test_what_cannot_be_sharded_is_refused(args: tuple[str, ...], told: str) -> None:
    with pytest.raises(RunError, match="STOKER_SHARDING=full") as refused:
        sharded(*args)
    assert refused.value.code is ExitCode.USAGE
    assert told in refused.value.message


def test_an_unknown_value_is_refused_with_the_known_ones() -> None:
    with pytest.raises(RunError, match="STOKER_SHARDING is 'fully': it must be one of none, full") as refused:
        sharded(env={"STOKER_SHARDING": "fully"})
    assert refused.value.code is ExitCode.CONFIG


def test_torchtune_shards_whatever_is_said() -> None:
    tune = {"STOKER_FRAMEWORK": "torchtune", "STOKER_METHOD": "full", "STOKER_ARG_CONFIG": "llama3_2/1B"}
    tune |= {"STOKER_ARG_MODEL_NAME_OR_PATH": "", "STOKER_ARG_DATASET_NAME": ""}
    assert "sharding" not in sharded(env=tune).fingerprint
    with pytest.raises(RunError, match="torchtune can only do full"):
        sharded(env={**tune, "STOKER_SHARDING": "none"})


def test_a_sharded_checkpoint_is_of_another_run_than_a_whole_one() -> None:
    assert sharded().fingerprint["sharding"] == "full"


@pytest.mark.parametrize("off", [[], ["--fsdp", "false"]], ids=["unset", "off"])
def test_a_config_of_sharding_that_nobody_reads_is_let_be(off: list[str]) -> None:
    recomputing = ("--fsdp_config", '{"activation_checkpointing": true}', "--use_peft")
    assert "fsdp_config" in {setting.name for setting in plan_of(*recomputing, *off).settings}
    with pytest.raises(RunError, match="leaves an empty adapter"):
        plan_of(*recomputing, "--fsdp")


@pytest.mark.parametrize(
    ("args", "env", "told"),
    [
        (["--fsdp"], {}, "--fsdp (args) shards a model over several processes, but this run has one: request more"),
        (["--fsdp", "full_shard auto_wrap"], {}, "request more devices, or leave out --fsdp"),
        ([], {"STOKER_ARG_FSDP": "true"}, "--fsdp (TrainJob env) shards a model"),
        (
            [],
            {"STOKER_ARG_FSDP": "true", "STOKER_RUNTIME_DEFAULTS": '{"STOKER_ARG_FSDP": "true"}'},
            "request more devices, or write --fsdp false",
        ),
    ],
)
def test_a_single_process_that_is_to_shard_is_refused(args: list[str], env: Mapping[str, str], told: str) -> None:
    with pytest.raises(RunError) as refused:
        plan_of(*args, env=env, single=True)
    assert refused.value.code is ExitCode.USAGE
    assert told in refused.value.message


@pytest.mark.parametrize(
    ("args", "env", "devices"),
    [
        (["--fsdp", "false"], {"STOKER_ARG_FSDP": "true"}, []),
        (["--fsdp", "--fsdp_config", '{"xla": true}'], {}, []),
        (["--fsdp"], {"STOKER_ACCELERATOR": "tpu"}, ["accel0"]),
    ],
    ids=["off", "XLA", "TPU"],
)
def test_a_single_process_may_leave_sharding_to_xla(
    args: list[str], env: Mapping[str, str], devices: list[str]
) -> None:
    assert resolve(alone(env, devices), args).world.size == 1


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"auto_wrap_policy": "X"}, "--fsdp_config (args) has auto_wrap_policy X: write one of TRANSFORMER_BASED_WRAP"),
        ({"auto_wrap_policy": "transformer_based_wrap"}, "did you mean TRANSFORMER_BASED_WRAP?"),
        ({"reshard_after_forward": "full_shard"}, "has reshard_after_forward full_shard: write true or false"),
        ({"fsdp_reshard_after_forward": None}, "has reshard_after_forward None: write true or false"),
        (
            {"state_dict_type": "LOCAL_STATE_DICT"},
            "has state_dict_type LOCAL_STATE_DICT: did you mean FULL_STATE_DICT?",
        ),
        ({"version": 3}, "has version 3: write 2, or 1"),
        ({"version": 1, "reshard_after_forward": True}, "has reshard_after_forward True: write one of FULL_SHARD"),
        ({"version": 1, "backward_prefetch": "pre"}, "has backward_prefetch pre: write one of BACKWARD_PRE"),
        ({"cpu_offload": "false"}, "has cpu_offload false: write true or false, without quotes"),
        ({"min_num_params": "1e6"}, "has min_num_params 1e6: write a whole number"),
        ({"transformer_layer_cls_to_wrap": {"a": 1}}, "write a list of class names"),
    ],
)
def test_an_option_that_sharding_does_not_have_is_refused(config: Mapping[str, object], told: str) -> None:
    with pytest.raises(RunError) as refused:
        sharded("--fsdp_config", json.dumps(config))
    assert refused.value.code is ExitCode.USAGE
    assert told in refused.value.message


@pytest.mark.parametrize(
    "config",
    [
        {"reshard_after_forward": "False", "state_dict_type": "full_state_dict", "auto_wrap_policy": "NO_WRAP"},
        {"version": 1, "reshard_after_forward": "hybrid_shard", "forward_prefetch": "yes"},
        {"transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"], "min_num_params": 1000, "forward_prefetch": "unread"},
        {"xla": True, "auto_wrap_policy": "unread"},
    ],
)
def test_an_option_that_sharding_has_is_taken(config: Mapping[str, object]) -> None:
    assert config_of(sharded("--fsdp_config", json.dumps(config))) == config


def checked(*args: str) -> list[str]:
    """Return the configurations that must be there before the start."""
    return [check.path for check in plan_of(*args).checks if check.what == "configuration"]


def test_a_file_that_the_trainer_reads_must_be_there() -> None:
    assert checked("--fsdp", "--fsdp_config", "/workspace/fsdp.json") == ["/workspace/fsdp.json"]
    assert checked("--accelerator_config", "/workspace/a.json") == ["/workspace/a.json"]
    assert checked("--fsdp_config", "/workspace/unread.json") == []
    assert checked("--fsdp", "--fsdp_config", "{}") == []
    assert "the configuration fsdp.json" in plan_of("--fsdp", "--fsdp_config", "fsdp.json").unseen


def test_a_version_of_fsdp_has_its_own_words_and_machines() -> None:
    with pytest.raises(RunError, match="--fsdp hybrid_shard is for version 1 of FSDP, and this is 2"):
        sharded("--fsdp", "hybrid_shard auto_wrap", "--fsdp_config", "{}")
    sharded("--fsdp", "hybrid_shard", "--fsdp_config", '{"version": 1}')
    sharded("--fsdp", "hybrid_shard", "--fsdp_config", "/workspace/fsdp.json")
    with pytest.raises(RunError, match=r"version 1 of FSDP .* needs GPUs"):
        plan_of("--fsdp", "--fsdp_config", '{"version": 1}')
