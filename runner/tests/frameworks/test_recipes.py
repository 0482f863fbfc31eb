"""What Stoker sets where the trainer's defaults surprise, by accelerator, kind of tuning and method."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from click.testing import CliRunner
from runner.tests.samples import pod, resolve

from stoker.commands.main import main
from stoker.frameworks.trl.framework import TRL
from stoker.frameworks.trl.recipes import DEFAULTS, TUNINGS, recipe_for
from stoker.plan.world import ACCELERATORS

LORA = ("--use_peft",)
QLORA = (*LORA, "--load_in_4bit")


def recipe_of(*args: str, accelerator: str = "nvidia", env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what the recipe set in a plan."""
    devices = () if accelerator == "cpu" else ("device0",)
    facts = pod({"STOKER_ACCELERATOR": accelerator, **(env or {})}, devices=devices)
    return {s.name: str(s.value) for s in resolve(facts, args).settings if s.source == "recipe"}


@pytest.mark.parametrize("accelerator", [name for name in ACCELERATORS if name != "cpu"])
@pytest.mark.parametrize(("args", "dtype"), [((), "float32"), (LORA, "bfloat16"), (QLORA, "bfloat16")])
def test_trained_weights_keep_float32_and_frozen_ones_do_not(
    accelerator: str, args: tuple[str, ...], dtype: str
) -> None:
    recipe = recipe_of(*args, accelerator=accelerator)
    assert (recipe["dtype"], recipe["bf16"]) == (dtype, "true")
    assert not {"use_cpu", "ddp_backend"} & recipe.keys()


@pytest.mark.parametrize("off", ["--no_use_peft", "--no-use-peft", "--use_peft=false"])
def test_weights_are_all_trained_in_float32_however_a_runtimes_adapter_is_switched_off(off: str) -> None:
    recipe = recipe_of(off, env={"STOKER_ARG_USE_PEFT": "true"})
    assert recipe["dtype"] == "float32"
    assert "lora_target_modules" not in recipe
    assert recipe_of(off, "--use_peft")["dtype"] == "bfloat16"


@pytest.mark.parametrize("args", [(), LORA])
def test_a_cpu_computes_in_float32_and_meets_by_gloo(args: tuple[str, ...]) -> None:
    recipe = recipe_of(*args, accelerator="cpu")
    assert (recipe["use_cpu"], recipe["bf16"], recipe["ddp_backend"]) == ("true", "false", "gloo")
    assert "dtype" not in recipe


def test_fp16_takes_the_place_of_bf16() -> None:
    assert "bf16" not in recipe_of("--fp16")
    assert "bf16" not in recipe_of(env={"STOKER_ARG_FP16": "true"})
    assert recipe_of("--fp16", "false")["bf16"] == "true"


def test_an_adapter_of_a_reward_model_classifies() -> None:
    assert recipe_of("trl.scripts.reward", *LORA)["lora_task_type"] == "SEQ_CLS"
    assert "lora_task_type" not in recipe_of("trl.scripts.dpo", *LORA)
    assert "lora_task_type" not in recipe_of("trl.scripts.reward")


@pytest.mark.parametrize("args", [LORA, QLORA])
def test_an_adapter_is_on_every_linear_layer_unless_somebody_chose(args: tuple[str, ...]) -> None:
    assert recipe_of(*args)["lora_target_modules"] == str(("all-linear",))
    assert "lora_target_modules" not in recipe_of(*args, "--lora_target_modules", "q_proj", "v_proj")
    assert "lora_target_modules" not in recipe_of(*args, env={"STOKER_ARG_LORA_TARGET_MODULES": "q_proj"})
    assert "lora_target_modules" not in recipe_of(*args, "--lora_target_parameters", "experts.gate_up_proj")
    assert "lora_target_modules" not in recipe_of()


@pytest.mark.parametrize("accelerator", ACCELERATORS)
@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("method", TRL.methods)
def test_no_recipe_says_two_things_of_a_flag(accelerator: str, tuning: str, method: str) -> None:
    recipe = recipe_for(accelerator, tuning, method)
    assert len({default.flag for default in recipe}) == len(recipe)
    assert {default.flag for default in recipe} <= TRL().flag_table(method).flags.keys()


def test_every_default_is_somebodys() -> None:
    used = {d for a in ACCELERATORS for t in TUNINGS for m in TRL.methods for d in recipe_for(a, t, m)}
    assert used == {*DEFAULTS}


def test_recipes_are_shown_with_their_reasons() -> None:
    everything = CliRunner().invoke(main, ["recipe", "list"])
    assert everything.exit_code == 0
    assert len(everything.stdout.splitlines()) == len(DEFAULTS)
    shown = CliRunner().invoke(main, ["recipe", "show", "--tuning", "lora"]).stdout
    assert "dtype                   bfloat16    frozen base weights do not need TRL's default, float32" in shown
    assert "use_cpu" not in shown
    assert CliRunner().invoke(main, ["recipe", "show", "--tuning", "x"]).exit_code == 64
