"""What makes a run on an NVIDIA GPU faster: chosen with a reason, only where it works, and any flag wins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runner.tests.plan.models import QWEN_8B
from runner.tests.samples import pod

from stoker.contract.exits import RunError
from stoker.frameworks import TRL
from stoker.frameworks.trl.flags import METHODS, flag_table
from stoker.node.read_inputs import read_model
from stoker.plan.plan import Plan
from stoker.plan.resolve import read_request, resolve_plan
from stoker.rank.same_run import refuse_other_run

GIB = 2**30
LORA = ("--use_peft", "--per_device_train_batch_size", "2")
IMAGE = ("liger-kernel",)
OLD_TORCH = (2, 12)
WITH_FLASH = ("flash-attn", "liger-kernel")
SPEED = (
    *("tf32", "use_liger_kernel", "attn_implementation", "packing", "dataset_num_proc", "dataloader_num_workers"),
    "activation_checkpointing",
)


def planned(
    folder: Path,
    *args: str,
    env: Mapping[str, str] | None = None,
    method: str = "sft",
    model: Mapping[str, Any] = QWEN_8B,
    former: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    **machine: Any,
) -> Plan:
    """Return the plan of two nodes with two H200 each, or with another machine."""
    (folder / "config.json").write_text(json.dumps(model))
    told = {
        "STOKER_ACCELERATOR": "nvidia",
        "PET_NPROC_PER_NODE": "2",
        "STOKER_METHOD": method,
        "STOKER_CPU_REQUEST": "16",
        **(env or {}),
    }
    known = {"cuda_generation": 9, "device_bytes": 141 * GIB, "kernel_packages": IMAGE, "torch": (2, 13), **machine}
    facts = replace(pod(told, devices=("nvidia0", "nvidia1")), **known)
    return resolve_plan(read_request(facts, TRL(), args), config, model=read_model(folder), former=former)


def chosen(plan: Plan) -> dict[str, str]:
    """Return what the recipe of speed chose, whose reasons must not be empty."""
    found = [setting for setting in plan.settings if setting.name in SPEED and setting.source == "recipe"]
    assert all(setting.reason for setting in found)
    return {setting.name: str(setting.value) for setting in found}


def test_a_gpu_gets_kernels_workers_and_no_recomputing(tmp_path: Path) -> None:
    assert chosen(planned(tmp_path, *LORA)) == {
        "tf32": "true",
        "use_liger_kernel": "true",
        "attn_implementation": "varlen_attention",
        "packing": "true",
        "dataset_num_proc": "16",
        "dataloader_num_workers": "2",
        "activation_checkpointing": "false",
    }


def test_samples_are_packed_where_attention_keeps_them_apart(tmp_path: Path) -> None:
    found = chosen(planned(tmp_path, *LORA, kernel_packages=WITH_FLASH))
    assert (found["attn_implementation"], found["packing"]) == ("flash_attention_2", "true")
    named = planned(tmp_path, *LORA, "--attn_implementation", "kernels-community/flash-attn2")
    assert chosen(named)["packing"] == "true"
    in_options = planned(tmp_path, *LORA, "--model_init_kwargs", '{"attn_implementation": "flash_attention_3"}')
    assert chosen(in_options)["packing"] == "true"


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--eval_strategy", "steps"),
        ("--per_device_train_batch_size", "64", "--max_length", "8192"),
        ("--packing",),
        ("--padding_free", "--max_length", "none"),
        ("--bf16", "false", "--fp16"),
    ],
)
def test_packed_rows_are_computed_by_torchs_flash_attention(tmp_path: Path, args: tuple[str, ...]) -> None:
    found = chosen(planned(tmp_path, *LORA, *args))
    assert found["attn_implementation"] == "varlen_attention"
    assert ("packing" in found) is not ({"--packing", "--padding_free"} & {*args} != set())


@pytest.mark.parametrize(
    "args",
    [("--packing", "false"), ("--max_length", "none"), ("--eval_packing", "false")],
)
def test_no_other_rows_are(tmp_path: Path, args: tuple[str, ...]) -> None:
    assert "attn_implementation" not in chosen(planned(tmp_path, *LORA, *args))


@pytest.mark.parametrize(
    ("model", "machine", "problem"),
    [
        ({}, {"torch": OLD_TORCH}, "needs torch 2.13 or newer"),
        ({}, {"cuda_generation": 7}, "needs an NVIDIA GPU of Ampere or newer"),
        ({}, {"env": {"STOKER_ACCELERATOR": "amd"}}, "needs an NVIDIA GPU of Ampere or newer"),
        ({"model_type": "gemma2"}, {}, "cannot cap the scores of gemma2"),
        ({"attention_dropout": 0.1}, {}, "cannot drop scores (attention_dropout in the model's config.json)"),
        ({"head_dim": 20}, {}, "takes heads of up to 256 numbers, a multiple of 8, and the model's have 20"),
        ({"head_dim": 512}, {}, "takes heads of up to 256 numbers, a multiple of 8, and the model's have 512"),
    ],
)
def test_it_is_chosen_only_where_it_works_and_refused_elsewhere(
    tmp_path: Path, model: dict[str, Any], machine: dict[str, Any], problem: str
) -> None:
    assert "attn_implementation" not in chosen(planned(tmp_path, *LORA, model={**QWEN_8B, **model}, **machine))
    with pytest.raises(RunError) as caught:
        planned(tmp_path, *LORA, "--attn_implementation", "varlen_attention", model={**QWEN_8B, **model}, **machine)
    assert f"attn_implementation varlen_attention {problem}: leave it out" in caught.value.message


def test_a_flag_says_more_of_dropped_scores_than_the_model(tmp_path: Path) -> None:
    dropping = {**QWEN_8B, "attention_dropout": 0.1}
    more, none = (("--model_init_kwargs", json.dumps({"attention_dropout": rate})) for rate in (0.1, 0.0))
    assert "attn_implementation" not in chosen(planned(tmp_path, *LORA, *more))
    named = ("--attn_implementation", "varlen_attention")
    with pytest.raises(
        RunError, match=r"cannot drop scores \(attention_dropout in --model_init_kwargs\): leave it out"
    ):
        planned(tmp_path, *LORA, *more, *named)
    assert chosen(planned(tmp_path, *LORA, *none, model=dropping))["attn_implementation"] == "varlen_attention"


@pytest.mark.parametrize(
    "named",
    [
        ("--attn_implementation", "varlen_attention"),
        ("--model_init_kwargs", '{"attn_implementation": "varlen_attention"}'),
    ],
)
def test_it_computes_no_float32(tmp_path: Path, named: tuple[str, ...]) -> None:
    with pytest.raises(RunError, match="computes in bfloat16 or float16 only, and --bf16 is false: leave it out"):
        planned(tmp_path, *LORA, *named, "--bf16", "false")


def test_rows_that_nothing_cuts_are_refused_as_trl_refuses_them(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="--padding_free without packing cuts no sample to max_length: add --packing"):
        planned(tmp_path, *LORA, "--padding_free")
    planned(tmp_path, *LORA, "--padding_free", "--packing")


@pytest.mark.parametrize(
    ("args", "machine"),
    [
        ((), {"torch": OLD_TORCH}),
        ((), {"torch": ()}),
        (("--attn_implementation", "sdpa"), {}),
        (("--model_init_kwargs", '{"attn_implementation": "sdpa"}'), {}),
        (("--bf16", "false"), {}),
    ],
)
def test_torchs_attention_packs_where_its_mask_costs_little(
    tmp_path: Path, args: tuple[str, ...], machine: dict[str, Any]
) -> None:
    plan = planned(tmp_path, *LORA, *args, **machine)
    (packing,) = [setting for setting in plan.settings if setting.name == "packing"]
    assert (packing.value, packing.source) == ("true", "recipe")
    assert packing.reason == "sdpa masks the other samples of a row, for 9% more arithmetic at most"


@pytest.mark.parametrize(
    "args",
    [
        ("--per_device_train_batch_size", "4"),
        ("--max_length", "2048"),
        # Rows are evaluated eight at a time.
        ("--eval_strategy", "steps"),
    ],
)
def test_longer_rows_are_packed_by_flash_attention_alone(tmp_path: Path, args: tuple[str, ...]) -> None:
    assert "packing" not in chosen(planned(tmp_path, *LORA, *args, torch=OLD_TORCH))
    for packages in (IMAGE, WITH_FLASH):
        assert chosen(planned(tmp_path, *LORA, *args, kernel_packages=packages))["packing"] == "true"


@pytest.mark.parametrize(
    "args",
    [
        ("--eval_strategy", "no"),
        ("--do_eval", "false"),
        # TRL's scripts load nothing to evaluate on without a strategy.
        ("--do_eval", "true"),
        ("--eval_strategy", "steps", "--per_device_eval_batch_size", "2"),
    ],
)
def test_rows_that_nobody_evaluates_do_not_count(tmp_path: Path, args: tuple[str, ...]) -> None:
    assert chosen(planned(tmp_path, *LORA, *args, torch=OLD_TORCH))["packing"] == "true"


def test_a_mask_costs_a_small_model_more(tmp_path: Path) -> None:
    small = {**QWEN_8B, "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16}
    assert "packing" not in chosen(planned(tmp_path, *LORA, model=small, torch=OLD_TORCH))


def test_a_family_without_torchs_attention_is_not_packed(tmp_path: Path) -> None:
    assert "packing" not in chosen(planned(tmp_path, *LORA, model={**QWEN_8B, "model_type": "gemma2"}))


def test_a_run_that_began_without_packing_goes_on_without_it(tmp_path: Path) -> None:
    for packages in (IMAGE, WITH_FLASH):
        for former in ({"packing": False}, {}):
            plan = planned(tmp_path, *LORA, former=former, kernel_packages=packages)
            assert "packing" not in chosen(plan)
            assert plan.fixed["packing"] is False
        assert chosen(planned(tmp_path, *LORA, former={"packing": True}, kernel_packages=packages))["packing"] == "true"


@pytest.mark.parametrize(
    "args",
    [
        ("--eval_strategy", "steps"),
        ("--eval_packing", "false"),
        ("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "4"),
    ],
)
def test_a_run_that_began_packed_stays_packed_whatever_may_change(tmp_path: Path, args: tuple[str, ...]) -> None:
    former = ("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "8")
    before = planned(tmp_path, *LORA[:1], *former)
    assert before.fixed["packing"] is True
    changed = dict(zip(former[::2], former[1::2], strict=True)) | dict(zip(args[::2], args[1::2], strict=True))
    words = [word for pair in changed.items() for word in pair]
    # Begun like this, it would not be packed.
    assert "packing" not in chosen(planned(tmp_path, *LORA[:1], *words, torch=OLD_TORCH))
    after = planned(tmp_path, *LORA[:1], *words, former=before.fixed, torch=OLD_TORCH)
    assert chosen(after)["packing"] == "true"
    refuse_other_run("the checkpoint", before.record, after.record)


@pytest.mark.parametrize("args", [("--packing", "false"), ("--max_length", "none"), ("--padding_free", "false")])
def test_what_says_how_rows_are_made_wins_over_what_was(tmp_path: Path, args: tuple[str, ...]) -> None:
    assert "packing" not in chosen(planned(tmp_path, *LORA, *args, former={"packing": True}))


@pytest.mark.parametrize("packages", [IMAGE, WITH_FLASH])
@pytest.mark.parametrize(
    "args",
    [
        ("--attn_implementation", "eager"),
        ("--attn_implementation", "flex_attention"),
        ("--packing", "false"),
        ("--no_packing",),
        ("--padding_free", "false"),
        ("--packing_strategy", "wrapped"),
        ("--max_length", "none"),
        ("--truncation_mode", "keep_end"),
        ("--dataset_streaming",),
        ("--streaming", "true"),
    ],
)
def test_nothing_else_packs_samples(tmp_path: Path, args: tuple[str, ...], packages: tuple[str, ...]) -> None:
    assert "packing" not in chosen(planned(tmp_path, *LORA, *args, kernel_packages=packages))


def test_the_end_of_a_long_sample_cannot_be_kept_in_packed_rows(tmp_path: Path) -> None:
    ends = (*LORA, "--truncation_mode", "keep_end", "--packing")
    with pytest.raises(RunError, match="keep_end has no effect with --packing, which keeps the start"):
        planned(tmp_path, *ends)
    # Nothing is cut off, so nothing is lost.
    planned(tmp_path, *ends, "--packing_strategy", "wrapped")


@pytest.mark.parametrize("flag", ["--dataset_streaming", "--streaming"])
def test_a_data_set_that_is_not_streamed_gets_workers_and_packing(tmp_path: Path, flag: str) -> None:
    workers = {"dataset_num_proc", "dataloader_num_workers"}
    assert {"packing", *workers} <= {*chosen(planned(tmp_path, *LORA, flag, "false"))}
    assert not workers & {*chosen(planned(tmp_path, *LORA, flag))}


@pytest.mark.parametrize("packages", [IMAGE, WITH_FLASH])
def test_rows_without_a_limit_in_the_config_file_are_neither_packed_nor_counted(
    tmp_path: Path, packages: tuple[str, ...]
) -> None:
    found = chosen(
        planned(tmp_path, *LORA, "--config", "/c.yaml", config={"max_length": None}, kernel_packages=packages)
    )
    assert not {"packing", "activation_checkpointing"} & {*found}


def test_other_methods_pack_nothing(tmp_path: Path) -> None:
    found = chosen(planned(tmp_path, *LORA, method="dpo", kernel_packages=WITH_FLASH))
    assert found["attn_implementation"] == "flash_attention_2"
    assert not {"packing", "use_liger_kernel", "activation_checkpointing"} & {*found}


@pytest.mark.parametrize("machine", [{"cuda_generation": 7}, {"cuda_generation": None}])
def test_an_old_or_unknown_gpu_keeps_the_trainers_own_defaults(tmp_path: Path, machine: dict[str, Any]) -> None:
    assert chosen(planned(tmp_path, *LORA, kernel_packages=WITH_FLASH, **machine)) == {}


@pytest.mark.parametrize("accelerator", ["cpu", "amd"])
def test_other_accelerators_keep_the_trainers_own_defaults(tmp_path: Path, accelerator: str) -> None:
    assert chosen(planned(tmp_path, *LORA, env={"STOKER_ACCELERATOR": accelerator}, kernel_packages=WITH_FLASH)) == {}


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("tf32", ("--tf32", "false")),
        ("tf32", ("--fp16",)),
        ("use_liger_kernel", ("--use_liger_kernel", "false")),
        ("use_liger_kernel", ("--torch_compile",)),
        ("use_liger_kernel", ("--model_init_kwargs", '{"use_kernels": true}')),
        ("dataset_num_proc", ("--dataset_num_proc", "3")),
        ("dataloader_num_workers", ("--dataloader_num_workers", "0")),
        ("activation_checkpointing", ("--activation_checkpointing",)),
        ("activation_checkpointing", ("--gradient_checkpointing",)),
        ("activation_checkpointing", ("--activation_checkpointing_kwargs", '{"use_reentrant": false}')),
        ("activation_checkpointing", ("--gradient_checkpointing_kwargs", '{"every_n_layers": 2}')),
        ("activation_checkpointing", ("--auto_find_batch_size",)),
    ],
)
def test_a_flag_of_the_user_wins(tmp_path: Path, name: str, args: tuple[str, ...]) -> None:
    assert name not in chosen(planned(tmp_path, *LORA, *args))


def test_workers_fit_the_pods_cpus_and_its_shared_memory(tmp_path: Path) -> None:
    few = chosen(planned(tmp_path, *LORA, env={"STOKER_CPU_REQUEST": "4"}))
    assert (few["dataset_num_proc"], few["dataloader_num_workers"]) == ("4", "1")
    one = chosen(planned(tmp_path, *LORA, env={"STOKER_CPU_REQUEST": "1"}))
    unknown = chosen(planned(tmp_path, *LORA, env={"STOKER_CPU_REQUEST": ""}))
    assert not {"dataset_num_proc", "dataloader_num_workers"} & {*one, *unknown}
    # What two processes exchange fits; more does not.
    assert "dataloader_num_workers" not in chosen(planned(tmp_path, *LORA, shm_bytes=128 * 2**20))


def test_activations_are_recomputed_where_they_do_not_fit(tmp_path: Path) -> None:
    assert "activation_checkpointing" not in chosen(planned(tmp_path, *LORA, device_bytes=40 * GIB))
    longer = planned(tmp_path, *LORA, "--max_length", "16384")
    assert "activation_checkpointing" not in chosen(longer)
    assert "activation_checkpointing" not in chosen(planned(tmp_path, *LORA, device_bytes=None))


def test_fused_layers_keep_less_and_dropout_keeps_more(tmp_path: Path) -> None:
    def recomputes(*args: str, gib: int, **machine: Any) -> bool:
        plan = planned(tmp_path, *LORA, *args, device_bytes=gib * GIB, **machine)
        return "activation_checkpointing" not in chosen(plan)

    # TRL's default for lora_dropout is 0.05.
    assert (recomputes(gib=40), recomputes("--lora_dropout", "0", gib=40)) == (True, False)
    assert (recomputes(gib=48), recomputes(gib=48, kernel_packages=())) == (False, True)
    # Where PEFT makes its copies.
    assert recomputes("--lora_dropout", "0", "--bf16", "false", gib=48)
    assert recomputes("--lora_dropout", "0", "--use_dora", gib=48)


@pytest.mark.parametrize(
    ("args", "model"), [(("--attn_implementation", "eager"), {}), ((), {"model_type": "gemma2", "head_dim": 128})]
)
def test_scores_that_are_kept_are_recomputed(tmp_path: Path, args: tuple[str, ...], model: dict[str, str]) -> None:
    found = chosen(planned(tmp_path, *LORA, *args, model={**QWEN_8B, **model}))
    assert "activation_checkpointing" not in found


def test_a_sharded_run_recomputes_by_its_own_rule(tmp_path: Path) -> None:
    plan = planned(tmp_path, env={"STOKER_SHARDING": "full"})
    (setting,) = [setting for setting in plan.settings if setting.name == "activation_checkpointing"]
    assert "fsdp_config" in setting.reason


def test_nodes_with_other_gpus_still_train_together(tmp_path: Path) -> None:
    large, small = planned(tmp_path, *LORA), planned(tmp_path, *LORA, device_bytes=40 * GIB)
    assert chosen(large) != chosen(small)
    assert large.hash == small.hash
    assert large.hash != planned(tmp_path, *LORA, "--activation_checkpointing").hash


def test_trl_fuses_its_optimizer_itself() -> None:
    assert {flag_table(method).flags["optim"].default for method in METHODS} == {"adamw_torch_fused"}
