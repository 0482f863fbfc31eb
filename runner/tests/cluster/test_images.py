"""`stoker validate` knows which packages an image has, and says of a setting what its pod would say."""

from __future__ import annotations

from typing import Any

import pytest

from builders import RUNTIME, container, kept, renamed, trainjob, variables
from stoker.cluster.images import has_package, packages_of
from stoker.cluster.validate import Validation, validate_one
from stoker.contract.exits import ExitCode
from stoker.node import preflight
from stoker.node.preflight import account_problems, package_problems

CPU = "ghcr.io/stoker-dev/trl:0.1.0-cpu"
NEEDY = [
    (["--report_to", "clearml"], "--report_to clearml needs the Python package clearml"),
    (["--report_to", "codecarbon"], "needs the Python package codecarbon"),
    (["--report_to", "azure_ml"], "needs the Python package azureml"),
    (["--attn_implementation", "flash_attention_2"], "needs the Python package flash_attn or kernels"),
    (["--attn_implementation", "flash_attention_3"], "needs the Python package flash_attn_interface or kernels"),
    (["--attn_implementation", "paged|flash_attention_2"], "needs the Python package flash_attn or kernels"),
    (["--attn_implementation", "kernels-community/flash-attn2"], "needs the Python package kernels"),
    (
        ["--model_init_kwargs", '{"attn_implementation": "flash_attention_2"}'],
        "--model_init_kwargs with attn_implementation flash_attention_2 needs the Python package flash_attn or kernels",
    ),
    (["--deepspeed", "/workspace/zero3.json"], "needs the Python package deepspeed"),
    (["--use_liger_kernel"], "needs the Python package liger_kernel"),
    (["--optim", "paged_adamw_8bit"], "needs the Python package bitsandbytes"),
    (["trl.scripts.grpo", "--reward_funcs", "accuracy_reward", "--num_generations", "8"], "math_verify"),
]


def on(image: str, *args: str, **env: str) -> Validation:
    runtime = kept(RUNTIME)
    container(runtime)["image"] = image
    return validate_one(trainjob(args=[*args], env=variables(env)), runtime)


@pytest.mark.parametrize(
    ("image", "known"),
    [
        (CPU, True),
        ("registry.example.com/mirror/stoker-dev/trl:0.1.0-cuda", True),
        ("localhost:5000/stoker-dev/torchtune:0.1.0-cpu", True),
        (f"{CPU}@sha256:{'0' * 64}", True),
        ("ghcr.io/stoker-dev/trl:0.0.9-cpu", False),
        ("ghcr.io/stoker-dev/trl", False),
        (f"ghcr.io/stoker-dev/trl@sha256:{'0' * 64}", False),
        ("ghcr.io/other-stoker-dev/trl:0.1.0-cpu", False),
        ("trl:0.1.0-cpu", False),
        ("", False),
    ],
)
def test_an_image_is_known_by_its_path_and_tag_in_any_registry(image: str, known: bool) -> None:
    assert (packages_of(image) is not None) == known


def test_a_package_is_found_by_the_name_that_python_imports() -> None:
    assert has_package(packages_of(CPU) or frozenset(), "huggingface_hub")
    assert not has_package(packages_of(CPU) or frozenset(), "clearml")


def test_packages_that_a_volume_may_have_are_not_judged() -> None:
    args = ("trl.scripts.grpo", "--reward_funcs", "accuracy_reward", "--num_generations", "8")
    verdict = on(CPU, *args, PYTHONPATH="/workspace/packages")
    assert verdict.problems == ()
    assert "the package math_verify for --reward_funcs accuracy_reward" in str(verdict)
    held = on(CPU, "--report_to", "wandb", WANDB_API_KEY="key", PYTHONPATH="/workspace/packages")
    assert "the package" not in str(held)
    other = on("ghcr.io/stoker-dev/torchtune:0.1.0-cpu", *args, PYTHONPATH="/workspace/packages")
    assert "torchtune:0.1.0-cpu lacks " in str(other), other


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb", "mlflow", "trackio"])
def test_the_image_has_the_clients_of_the_trackers_that_the_chart_names(tracker: str) -> None:
    verdict = on(CPU, "--report_to", tracker, WANDB_API_KEY="key")
    assert verdict.code is ExitCode.FINISHED, verdict


@pytest.mark.parametrize("tracker", ["wandb", "all"])
def test_a_tracker_without_an_account_is_78_as_in_its_pod(tracker: str) -> None:
    args = ["--report_to", tracker]
    verdict = on(CPU, *args)
    assert verdict.code is ExitCode.CONFIG
    assert f"--report_to {tracker} needs an account: set WANDB_API_KEY in spec.trainer.env" in str(verdict)
    assert verdict.plan is not None
    held = packages_of(CPU) or frozenset()
    in_its_pod = [*account_problems(verdict.plan, {}, lambda name: has_package(held, name))]
    assert in_its_pod == [*verdict.problems]
    # What a Secret holds is not seen here, but it is there.
    runtime = kept(RUNTIME)
    container(runtime)["image"] = CPU
    key = {"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "key"}}}
    assert validate_one(trainjob(args=args, env=[key]), runtime).code is ExitCode.FINISHED
    container(runtime)["envFrom"] = [{"secretRef": {"name": "wandb"}}]
    verdict = validate_one(trainjob(args=args), runtime)
    assert verdict.code is ExitCode.FINISHED
    assert f"the account for --report_to {tracker}" in str(verdict)


@pytest.mark.parametrize("mode", ["offline", "disabled", "dryrun"])
def test_a_tracker_that_reports_to_nobody_needs_no_account(mode: str) -> None:
    assert on(CPU, "--report_to", "wandb", WANDB_MODE=mode).problems == ()


@pytest.mark.parametrize(
    "env",
    [
        {"WANDB_MODE": "online"},
        {"WANDB_MODE": ""},
        {"WANDB_API_KEY": ""},
        {"WANDB_API_KEY": "", "WANDB_MODE": "run"},
        {"WANDB_DISABLED": "true"},
        {"WANDB_DISABLED": "false"},
    ],
)
def test_what_names_no_account_is_none(env: dict[str, str]) -> None:
    verdict = on(CPU, "--report_to", "wandb", **env)
    assert verdict.code is ExitCode.CONFIG
    assert "or one of WANDB_IDENTITY_TOKEN_FILE, NETRC, WANDB_MODE=offline, WANDB_MODE=dis" in verdict.errors
    assert verdict.plan is not None
    assert [*account_problems(verdict.plan, env, lambda name: True)] == [*verdict.problems]


def test_all_trackers_need_no_account_where_none_that_needs_one_is_installed() -> None:
    verdict = on("mine:1", "--report_to", "all")
    assert verdict.problems == ()
    assert "the account for --report_to all" in str(verdict)
    assert verdict.plan is not None
    assert [*account_problems(verdict.plan, {}, lambda name: name == "tensorboard")] == []


@pytest.mark.parametrize(("args", "message"), NEEDY)
def test_a_package_that_the_image_lacks_is_78_as_in_its_pod(
    args: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = on(CPU, *args)
    assert verdict.code is ExitCode.CONFIG, verdict
    assert message in verdict.errors
    assert verdict.plan is not None
    held = packages_of(CPU) or frozenset()
    monkeypatch.setattr(preflight, "find_spec", lambda name: name if has_package(held, name) else None)
    in_its_pod = [text for _, text in package_problems(verdict.plan, preflight._is_installed)]
    assert [text for _, text in verdict.problems if "Python package" in text] == in_its_pod


@pytest.mark.parametrize("args", [["--report_to", "none"], ["--attn_implementation", "sdpa"]])
def test_a_setting_that_needs_no_package_is_valid(args: list[str]) -> None:
    assert on(CPU, *args).problems == ()


def test_one_of_several_packages_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = on("mine:1", "--attn_implementation", "flash_attention_2")
    assert verdict.plan is not None
    assert [*package_problems(verdict.plan, lambda name: name == "kernels")] == []
    assert [*package_problems(verdict.plan, lambda name: name == "flash_attn")] == []
    assert len([*package_problems(verdict.plan, lambda name: False)]) == 1


def test_the_packages_of_an_unknown_image_are_said_to_be_unchecked() -> None:
    verdict = on("mine:1", "--report_to", "wandb", WANDB_MODE="offline")
    assert verdict.problems == ()
    assert "the image mine:1 is not known here, so its packages were not checked" in str(verdict)
    assert "the package wandb for --report_to wandb" in str(verdict)
    assert "package" not in str(on(CPU))


def test_the_trainjobs_own_image_is_the_one_that_counts() -> None:
    chosen = validate_one(
        trainjob(image="ghcr.io/stoker-dev/trl:0.1.0-cuda", args=["--optim", "lion_8bit"]), kept(RUNTIME)
    )
    assert chosen.problems == ()
    other = validate_one(trainjob(image="ghcr.io/stoker-dev/torchtune:0.1.0-cpu"), kept(RUNTIME))
    assert other.code is ExitCode.CONFIG
    assert "the image ghcr.io/stoker-dev/torchtune:0.1.0-cpu lacks transformers, trl, peft, accelerate" in other.errors


@pytest.mark.parametrize(
    ("component", "problem"),
    [
        ("metric_logger._component_=torchtune.training.metric_logging.WandBLogger", "wandb"),
        ("optimizer._component_=bitsandbytes.optim.PagedAdamW8bit", "bitsandbytes"),
        ("metric_logger._component_=torchtune.training.metric_logging.DiskLogger", None),
        ("metric_logger._component_=mine.Logger", None),
    ],
)
def test_torchtunes_components_need_packages_too(component: str, problem: str | None) -> None:
    runtime: dict[str, Any] = renamed("torchtune-distributed", "torchtune")
    node = container(runtime)
    node["image"] = "ghcr.io/stoker-dev/torchtune:0.1.0-cpu"
    node["env"] = [e for e in node["env"] if not e["name"].startswith(("STOKER_ARG", "STOKER_FRAMEWORK"))]
    args = ["full_finetune_single_device", "--config", "llama3_2/1B", component]
    job = trainjob(runtime="torchtune-distributed", args=args, env=variables({"STOKER_FRAMEWORK": "torchtune"}))
    job["spec"]["trainer"]["env"] += variables({"STOKER_RUNTIME_DEFAULTS": "{}"})
    verdict = validate_one(job, runtime)
    said = [text for _, text in verdict.problems if "Python package" in text]
    assert len(said) == (problem is not None), verdict
    assert problem is None or f"needs the Python package {problem}, which is not installed" in said[0]
