"""Classes as KEP-2839's first two texts print them register and work as ours do."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from runner.tests.submit.kep_classes import FIRST_RUNS, FIRST_TEXT, SECOND_RUNS, SECOND_TEXT

from builders import RUNTIME, kept, trainjob
from stoker.backends import LLMBackend, TRLConfig, get_backend, register_backend, register_framework
from stoker.cluster.validate import validate_one
from stoker.commands.main import main
from stoker.frameworks import registry
from stoker.submit import sdk

_SHARED = [
    *("--model_name_or_path", "/workspace/model", "--output_dir", "/workspace/output", "--learning_rate", "2e-05"),
    *("--num_train_epochs", "3", "--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "1"),
]
_LORA = [
    *("--use_peft", "--lora_r", "16", "--lora_alpha", "32", "--lora_dropout", "0.05"),
    *("--lora_target_modules", "q_proj", "v_proj"),
]
_SFT = ["sft", *_SHARED, "--bf16", *_LORA, "--max_seq_length", "2048"]
_DPO = ["dpo", *_SHARED, "--beta", "0.1", "--max_length", "1024"]


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


@pytest.fixture
def run_py(tmp_path: Path) -> Path:
    """A user's file with the first text's classes and three runs."""
    path = tmp_path / "run.py"
    path.write_text(FIRST_TEXT + FIRST_RUNS)
    return path


def printed(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["trainjob", *words])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = yaml.safe_load(result.stdout)
    return found


def test_the_texts_classes_register_under_the_names_of_ours(run_py: Path) -> None:
    found = runpy.run_path(str(run_py))
    assert (get_backend("trl"), get_backend("torchtune")) == (found["TRLConfig"], found["TorchTuneConfig"])
    sft = found["sft"]
    assert (sft.framework(), sft.framework, type(sft).framework) == ("trl", "trl", "trl")
    assert (sft.num_nodes, sft._num_nodes, sft.resources_per_node) == (2, 2, None)
    assert TRLConfig().framework() == "trl"  # type: ignore[operator]


def test_the_texts_classes_write_the_texts_flags(run_py: Path) -> None:
    found = runpy.run_path(str(run_py))
    assert found["sft"].to_args() == _SFT
    assert found["dpo"].to_args() == [*_DPO, "--max_prompt_length", "512", "--loss_type", "sigmoid"]
    both = found["TRLConfig"](fp16=True)
    with pytest.raises(ValueError, match="bf16 and fp16"):
        both.validate()


def test_a_trainjob_of_the_texts_class_has_its_command_and_is_valid(run_py: Path) -> None:
    job = printed(f"{run_py}:sft", "--name", "sft", "--runtime", "trl-distributed")
    trainer = job["spec"]["trainer"]
    assert (trainer["command"], trainer["args"], trainer["numNodes"]) == (["python", "-m", "trl"], _SFT, 2)
    verdict = validate_one(job, kept(RUNTIME))
    assert verdict.problems == ()
    plan = verdict.plan
    assert plan is not None
    assert (plan.module, plan.world.size) == ("trl.scripts.sft", 2)
    argv = [*plan.trainer_argv]
    assert argv[argv.index("--max_length") + 1] == "2048"
    assert "--max_seq_length" not in argv
    assert {"--lora_r", "--num_train_epochs"} <= {*argv}
    assert "--max_seq_length is read as --max_length, its name in trl 1.16.0" in plan.notices


def test_a_flag_of_the_text_that_trl_no_longer_has_is_not_sent_and_named(run_py: Path) -> None:
    with pytest.warns(UserWarning, match="no --max_prompt_length, so it is not sent: .*filter"):
        job = printed(f"{run_py}:dpo", "--name", "dpo", "--runtime", "trl-distributed")
    assert job["spec"]["trainer"]["args"] == [*_DPO, "--loss_type", "sigmoid"]
    verdict = validate_one(job, kept(RUNTIME))
    assert (verdict.problems, verdict.plan and verdict.plan.module) == ((), "trl.scripts.dpo")


def test_a_flag_of_the_same_name_in_another_framework_is_sent() -> None:
    class Own(LLMBackend):
        framework = "own"
        command = ("own",)

        def to_args(self, initializer: object = None) -> list[str]:
            return ["--max_prompt_length=3"]

    assert Own().args_for() == ["--max_prompt_length=3"]
    with warnings.catch_warnings(record=True):
        assert type("OfTrl", (Own,), {"framework": "trl"})().args_for() == []


def test_a_class_after_the_second_text_has_its_command_and_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "run.py"
    path.write_text(SECOND_TEXT + SECOND_RUNS)
    job = printed(f"{path}:sft", "--name", "sft", "--runtime", "trl-distributed")
    args = ["sft", "--learning_rate", "2e-05"]
    assert job["spec"]["trainer"] == {"numNodes": 2, "command": ["trl"], "args": args}
    verdict = validate_one(job, kept(RUNTIME))
    assert (verdict.problems, verdict.plan and verdict.plan.module) == ((), "trl.scripts.sft")
    # Its text has no registry; a class may have a name all the same.
    own = runpy.run_path(str(path))["TRLTrainer"]
    assert register_backend("trl")(own) is own


def test_the_command_line_may_set_the_texts_placement(run_py: Path) -> None:
    job = printed(
        f"{run_py}:tune", "--name", "tune", "--runtime", "torchtune-llama3.2-1b", "--nodes", "1", "--resources", "gpu=2"
    )
    assert job["spec"]["trainer"] == {
        "numNodes": 1,
        "resourcesPerNode": {"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}},
        "command": ["tune", "run"],
        "args": ["epochs=2"],
    }


def test_the_sdk_gets_the_command_of_the_texts_class(run_py: Path, client: Any, api: Any) -> None:
    config = runpy.run_path(str(run_py))["sft"]
    client.train(**sdk.train_arguments(config, client, runtime="trl-distributed"))
    (submitted,) = api.submitted
    trainer = submitted["spec"]["trainer"]
    assert (trainer["command"], trainer["args"]) == (["python", "-m", "trl"], config.to_args())


def test_a_method_that_needs_a_configs_fields_cannot_be_registered() -> None:
    class Own(LLMBackend):
        command = ("own",)

        def framework(self) -> str:  # type: ignore[override]
            return self.label  # type: ignore[attr-defined, no-any-return]

        def to_args(self, initializer: object = None) -> list[str]:
            return []

    with pytest.raises(ValueError, match=r"or define framework\(\) and to_command\(\), the former without the fields"):
        register_framework(Own)
    with pytest.raises(ValueError, match="must declare a framework and a command"):
        register_backend("own")(Own)


def test_python_m_trl_starts_what_trl_starts() -> None:
    runtime = kept(RUNTIME)
    words = ["sft", "--max_steps", "3"]
    plans = [
        validate_one(trainjob(command=command, args=words), runtime).plan
        for command in (["trl"], ["python", "-m", "trl"], ["/opt/venv/bin/python3.12", "-um", "trl"])
    ]
    assert plans[0] is not None
    assert {plan.hash for plan in plans if plan is not None} == {plans[0].hash}
    assert None not in plans
