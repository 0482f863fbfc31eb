"""What TRL's flags say of memory, and that a run which cannot fit is refused with what would fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from runner.tests.plan.models import QWEN_8B
from runner.tests.samples import pod

from stoker.commands.describe import plan_text
from stoker.contract.exits import ExitCode, RunError
from stoker.contract.samplers import SamplerRequest
from stoker.frameworks import TRL
from stoker.node import planning
from stoker.node.read_inputs import read_model
from stoker.plan.plan import Plan
from stoker.plan.resolve import read_request, resolve_plan

GIB = 2**30


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with the configuration of Qwen3 8B."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN_8B))
    return tmp_path


def planned(
    model: Path, *args: str, env: Mapping[str, str] | None = None, device: int | None = None, method: str = "sft"
) -> Plan:
    """Return the plan of two nodes with four GPUs each."""
    told = {"STOKER_ACCELERATOR": "nvidia", "PET_NPROC_PER_NODE": "4", "STOKER_METHOD": method, **(env or {})}
    facts = pod(told, devices=[f"nvidia{index}" for index in range(4)])
    facts = replace(facts, device_bytes=device)
    return resolve_plan(read_request(facts, TRL(), args), model=read_model(model))


@pytest.mark.parametrize(
    ("args", "bytes_per_weight"),
    [
        ((), 16),
        (("--dtype", "bfloat16"), 8),
        (("--dtype", "auto"), 8),
        (("--optim", "adamw_bnb_8bit"), 10),
        (("--optim", "sgd"), 8),
    ],
)
def test_flags_decide_how_many_bytes_a_trained_weight_takes(
    model: Path, args: tuple[str, ...], bytes_per_weight: int
) -> None:
    memory = planned(model, *args).memory
    assert memory is not None
    assert memory.total == bytes_per_weight * 8_190_735_360


def test_a_sharded_run_trains_in_float32_and_shares(model: Path) -> None:
    for args in ((), ("--dtype", "bfloat16")):
        memory = planned(model, *args, env={"STOKER_SHARDING": "full"}).memory
        assert memory is not None
        assert (memory.sharers, memory.total) == (8, 16 * 8_190_735_360 // 8)


def test_a_preference_method_keeps_a_reference_unless_it_is_computed_before(model: Path) -> None:
    def total(*args: str) -> int:
        memory = planned(model, *args, method="dpo").memory
        assert memory is not None
        return memory.total

    assert total() - total("--precompute_ref_log_probs") == 4 * 8_190_735_360
    assert total("--use_peft") == total("--use_peft", "--precompute_ref_log_probs")


@pytest.mark.parametrize(
    ("method", "args", "without"),
    [("rloo", (), ("--beta", "0")), ("grpo", ("--beta", "0.04"), ()), ("grpo_async", ("--beta", "0.04"), ())],
)
def test_a_penalty_needs_a_reference(model: Path, method: str, args: tuple[str, ...], without: tuple[str, ...]) -> None:
    def total(*args: str) -> int:
        samplers = ("--samplers", "http://a:8000") if method == "grpo_async" else ()
        memory = planned(model, "--reward_funcs", "think_format_reward", *samplers, *args, method=method).memory
        assert memory is not None
        return memory.total

    assert total(*args) - total(*without) == 4 * 8_190_735_360
    if method != "grpo_async":
        assert total("--use_peft", *args) == total("--use_peft", *without)


def test_a_reference_keeps_its_type_in_a_sharded_run(model: Path) -> None:
    memory = planned(model, "--dtype", "bfloat16", env={"STOKER_SHARDING": "full"}, method="dpo").memory
    assert memory is not None
    assert memory.total == (16 + 2) * 8_190_735_360 // 8


def test_an_adapters_bytes_depend_on_what_it_is_on(model: Path) -> None:
    lora, qlora = planned(model, "--use_peft").memory, planned(model, "--use_peft", "--load_in_4bit").memory
    assert lora is not None
    assert qlora is not None
    assert (lora.tuning, qlora.tuning) == ("lora", "qlora")
    assert lora.trained_weights == qlora.trained_weights
    assert (lora.gradients, qlora.gradients) == (4 * lora.trained_weights, 2 * lora.trained_weights)


@pytest.mark.parametrize(
    "args",
    [
        ("--deepspeed", "zero3.json"),
        ("--model_init_kwargs", '{"device_map": "auto"}'),
        ("--fsdp", "true", "--fsdp_config", '{"cpu_offload": true}'),
        ("--fsdp", "full_shard offload"),
        ("--fsdp", "true", "--fsdp_config", "fsdp.json"),
    ],
)
def test_what_moves_weights_elsewhere_is_not_counted(model: Path, args: tuple[str, ...]) -> None:
    assert planned(model, *args, device=GIB).memory is None


def test_a_run_that_cannot_fit_is_refused_with_what_would(model: Path) -> None:
    with pytest.raises(RunError) as refused:
        planned(model, device=80 * GIB)
    assert refused.value.code is ExitCode.CONFIG
    told = refused.value.message
    assert "the model does not fit: it needs 122.1 GiB per device (full, not sharded)" in told
    for write in ("STOKER_SHARDING=full (15.3 GiB)", "--use_peft (15.9 GiB)", "--use_peft --load_in_4bit (6.3 GiB)"):
        assert write in told
    plan = planned(model, env={"STOKER_SHARDING": "full"}, device=80 * GIB)
    assert plan.memory is not None
    assert plan.device_bytes == 80 * GIB


def test_a_plan_goes_whole_to_the_processes(model: Path, tmp_path: Path) -> None:
    plan = planned(model, "--use_peft", device=80 * GIB)
    plan.write(tmp_path / "plan.json")
    read = Plan.read(tmp_path / "plan.json")
    assert read is not None
    assert (read.ways, read.device_bytes) == (plan.ways, plan.device_bytes)
    shown = plan.to_json()["memory"]
    assert (shown["tuning"], shown["device"]) == ("lora", 80 * GIB)


def test_a_plan_with_samplers_says_what_those_that_sleep_need(model: Path) -> None:
    plan = planned(model, "--use_peft", device=80 * GIB)
    assert "parked" not in plan_text(plan)
    request = SamplerRequest(str(model), "base", "/adapters", None, 16, 4, "bfloat16")
    shown = plan_text(replace(plan, samplers=request))
    assert "parked    a sampler that sleeps" in shown
    assert "keeps 15.3 GiB of host memory (8,190,735,360 weights × 2 bytes)" in shown
    assert "requests.memory of 17.3 GiB or more" in shown
    assert "requests.memory of 47.8 GiB" in plan_text(replace(plan, samplers=replace(request, rank=None)))


def test_a_pod_reads_the_model_that_its_plan_names(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"STOKER_ACCELERATOR": "nvidia", "STOKER_ARG_MODEL_NAME_OR_PATH": str(model)}
    facts = replace(pod(told, devices=["nvidia0"]), device_bytes=80 * GIB)
    monkeypatch.setattr(planning, "read_facts", lambda: facts)
    shown = plan_text(planning.plan_here(["--use_peft"]))
    assert "memory    15.9 GiB per device (lora, not sharded): weights 15.4 GiB, gradients 0.2 GiB" in shown
    assert "and a device has 80.0 GiB. Not counted: activations" in shown
    with pytest.raises(RunError, match="the model does not fit"):
        planning.plan_here([])


def test_the_plan_of_a_cpu_says_nothing_of_devices(model: Path) -> None:
    plan = resolve_plan(read_request(pod({"STOKER_ACCELERATOR": "cpu"}), TRL(), ()), model=read_model(model))
    assert plan.memory is None
    assert "memory" not in plan.to_json()
