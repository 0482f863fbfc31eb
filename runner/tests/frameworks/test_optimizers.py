"""What an optimizer of TRL lacks is refused before the start, not once the model is loaded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from runner.tests.samples import plan_of

from stoker.contract.exits import ExitCode, RunError


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--optim_args", "lr"], "--optim_args (args) has 'lr', which is not a key=value: separate them by commas"),
        (["--optim_args", "momentum=0.9,"], "has '', which is not a key=value"),
        (["--optim_args", "a=b=c"], "has 'a=b=c', which is not a key=value"),
        (
            ["--optim_args", "momentum=0.9"],
            "has momentum, which the optimizer adamw_torch_fused does not take: leave it",
        ),
        (
            ["--optim", "sgd", "--optim_args", "momentm=0.9"],
            "which the optimizer sgd does not take: did you mean momen",
        ),
        (["--optim", "adagrad", "--optim_args", "lr=1"], "choose from lr_decay, weight_decay, eps"),
        (["--optim", "sgd", "--optim_args", "momentum=x"], "--optim_args (args) has momentum=x: write a number"),
        (
            ["--optim", "galore_adamw"],
            "--optim galore_adamw (args) needs the layers to project: write --optim_target_m",
        ),
        (["--optim", "apollo_adamw"], "write --optim_target_modules all-linear, or their names"),
        (
            ["--optim", "galore_adamw_layerwise", "--optim_target_modules", "all-linear"],
            "--optim galore_adamw_layerwise (args) trains only without a launcher: write --optim galore_adamw",
        ),
    ],
)
@pytest.mark.parametrize("single", [True, False], ids=["one process", "two processes"])
def test_what_an_optimizer_cannot_have_is_refused(args: Sequence[str], why: str, single: bool) -> None:
    with pytest.raises(RunError) as refused:
        plan_of(*args, single=single)
    assert refused.value.code is ExitCode.USAGE
    assert why in refused.value.message


@pytest.mark.parametrize(
    "args",
    [
        ["--optim", "sgd", "--optim_args", "momentum=0.9, nesterov=true"],
        ["--optim_args", ""],
        ["--optim", "lion_32bit", "--optim_args", "unknown=here"],
        ["--optim", "galore_adamw", "--optim_target_modules", "all-linear"],
        ["--optim", "apollo_adamw", "--optim_target_modules", "q_proj", "v_proj"],
    ],
)
def test_what_an_optimizer_takes_is_taken(args: Sequence[str]) -> None:
    plan_of(*args)


def test_of_an_unknown_optimizer_no_arguments_are_known() -> None:
    with pytest.raises(RunError) as refused:
        plan_of("--optim", "sgdd", "--optim_args", "momentum=0.9")
    assert "--optim_args" not in refused.value.message


@pytest.mark.parametrize(
    ("optimizer", "package"), [("adamw_torch_xla", "torch_xla"), ("adamw_torch_npu_fused", "torch_npu")]
)
def test_an_optimizer_of_other_devices_needs_their_package(optimizer: str, package: str) -> None:
    assert plan_of("--optim", optimizer).packages_needed == {package: f"--optim {optimizer}"}
