"""`stoker trainjob` prints what the cluster takes, from a method's flags or from a config in a user's file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import RUNTIME, container, gpu_runtime, kept, with_initializers
from stoker.backends import TRLConfig
from stoker.cluster.validate import validate_one
from stoker.commands.main import main
from stoker.contract.exits import ExitCode
from stoker.submit import trainjob as manifests

CATALOGUE = Path(__file__).parents[3] / "tests/charts/golden/training-runtimes/cpu.yaml"
ADDRESSES = ("--model", "hf://Qwen/Qwen3-0.6B", "--dataset", "hf://trl-lib/Capybara")


# A backend that only its own image knows how to run.
OWN = """
from stoker.backends import LLMBackend
class Own(LLMBackend):
    framework, command = "own", ("own",)
    def to_args(self, initializer=None):
        return []
config = Own()
"""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["trainjob", *arguments])


def printed(*arguments: str) -> dict[str, Any]:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = yaml.safe_load(result.stdout)
    return found


def test_a_method_with_flags() -> None:
    job = printed(
        *("sft", "--name", "capybara", *ADDRESSES, "--secret", "hub", "--nodes", "2", "--lora", "--namespace", "ml"),
        *("--set", "learning_rate=2e-4", "--set", "lora-target-modules=q_proj,v_proj", "--env", "STOKER_RESUME=never"),
        *("--resources", "gpu=1", "--resources", "memory=16Gi"),
    )
    amounts = {"nvidia.com/gpu": "1", "memory": "16Gi"}
    assert job == {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "capybara", "namespace": "ml"},
        "spec": {
            "runtimeRef": {"name": "trl-distributed"},
            "initializer": {
                "dataset": {"storageUri": "hf://trl-lib/Capybara", "secretRef": {"name": "hub"}},
                "model": {"storageUri": "hf://Qwen/Qwen3-0.6B", "secretRef": {"name": "hub"}},
            },
            "trainer": {
                "numNodes": 2,
                "resourcesPerNode": {"requests": amounts, "limits": amounts},
                "args": [
                    *("trl.scripts.sft", "--model_name_or_path", "/workspace/model"),
                    *("--dataset_name", "/workspace/dataset", "--use_peft", "--learning_rate", "2e-4"),
                    *("--lora_target_modules", "q_proj", "v_proj"),
                ],
                "env": [{"name": "STOKER_RESUME", "value": "never"}],
            },
        },
    }


def test_what_is_printed_is_valid_on_our_runtime() -> None:
    job = printed("kto", "--name", "kto", "--nodes", "2", "--lora", "--set", "beta=0.2", "--set", "bf16=false")
    verdict = validate_one(job, kept(RUNTIME))
    assert verdict.problems == ()
    assert verdict.plan is not None
    assert verdict.plan.method == "kto"
    settings = {setting.name: setting.value for setting in verdict.plan.settings}
    assert (settings["use_peft"], settings["beta"], settings["bf16"]) == ("true", "0.2", "false")
    # No layers are named, so that a runtime's choice counts; without one it is the recipe's.
    assert "--lora_target_modules" not in job["spec"]["trainer"]["args"]
    assert settings["lora_target_modules"] == ("all-linear",)


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ((), ("model", "dataset")),
        (("--model", "hf://Qwen/Qwen3-0.6B"), ("dataset",)),
        (("--set", "dataset_name=/data"), ("model",)),
        (("--env", "STOKER_ARG_MODEL_NAME_OR_PATH=/m", "--env", "STOKER_ARG_DATASET_NAME=/d"), ()),
        (ADDRESSES, ()),
    ],
)
def test_what_validate_would_miss_is_said_as_the_trainjob_is_printed(
    words: tuple[str, ...], missing: tuple[str, ...]
) -> None:
    result = invoke("sft", "--name", "x", *words)
    assert result.exit_code == 0
    assert [line.rpartition(" --")[2] for line in result.stderr.splitlines()] == [
        f"{part} hf://ORG/NAME" for part in missing
    ]
    runtimes = {one["metadata"]["name"]: one for one in yaml.safe_load_all(CATALOGUE.read_text()) if one}
    verdict = validate_one(yaml.safe_load(result.stdout), runtimes["trl-distributed"])
    refused = {"model": "/workspace/model is missing", "dataset": "/workspace/dataset is missing"}
    assert [part for part, text in refused.items() if text in verdict.errors] == [*missing]


def test_a_runtime_with_a_model_of_its_own_may_lack_nothing() -> None:
    assert invoke("sft", "--name", "x", "--runtime", "trl-qwen3-8b").stderr == ""


def test_a_run_is_sharded_by_one_word() -> None:
    job = printed("sft", "--name", "x", "--sharding", "full", "--nodes", "2", *ADDRESSES)
    assert job["spec"]["trainer"]["env"] == [{"name": "STOKER_SHARDING", "value": "full"}]
    verdict = validate_one(job, with_initializers(["stoker", "fetch", "model"]))
    assert verdict.problems == ()
    assert verdict.plan is not None
    assert "--fsdp" in verdict.plan.trainer_argv
    config = TRLConfig(method="sft", sharding="full", num_nodes=2)
    assert manifests.trainjob(config, "x", env={"A": "1"})["spec"]["trainer"]["env"] == [
        {"name": "STOKER_SHARDING", "value": "full"},
        {"name": "A", "value": "1"},
    ]
    assert "env" not in printed("sft", "--name", "x")["spec"]["trainer"]


def test_qlora_is_for_gpus() -> None:
    job = printed("sft", "--name", "q", "--qlora")
    assert validate_one(job, gpu_runtime()).problems == ()
    assert "--load_in_4bit" in job["spec"]["trainer"]["args"]
    assert "needs a GPU" in str(validate_one(job, kept(RUNTIME)))


def test_a_path_or_a_hub_id_is_left_to_the_trainer() -> None:
    spec = printed("sft", "--name", "x", "--model", "Qwen/Qwen3-0.6B", "--dataset", "/data/chats")["spec"]
    assert "initializer" not in spec
    assert spec["trainer"]["args"][1:] == ["--model_name_or_path", "Qwen/Qwen3-0.6B", "--dataset_name", "/data/chats"]


def test_a_config_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.py"
    path.write_text(
        "from stoker.backends import LoraConfig, TorchTuneConfig\n"
        "config = TorchTuneConfig(epochs=1, peft_config=LoraConfig(lora_rank=8))\n"
    )
    given = (f"{path}:config", "--name", "tune", "--runtime", "torchtune-llama3.2-1b", "--nodes", "1")
    job = printed(*given, "--dataset", "hf://tatsu-lab/alpaca")
    assert job["spec"]["trainer"] == {
        "numNodes": 1,
        "command": ["tune", "run"],
        "args": [
            *("epochs=1", "dataset.data_dir=/workspace/dataset/.", "model.lora_rank=8"),
            "model.lora_attn_modules=[q_proj,v_proj,output_proj]",
        ],
    }
    result = invoke(f"{path}:config", "--name", "tune")
    assert (result.exit_code, result.output) == (
        64,
        "stoker: error: torchtune has no default runtime: name a runtime\n",
    )


def test_a_config_in_a_file_imports_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "values_beside.py").write_text("STEPS = 7\n")
    (tmp_path / "run.py").write_text(
        "from values_beside import STEPS\nfrom stoker.backends import TRLConfig\n"
        "config = TRLConfig(method='sft', extra_args={'max_steps': STEPS})\n"
    )
    job = printed(f"{tmp_path}/run.py:config", "--name", "sft")
    assert job["spec"]["trainer"]["args"][-2:] == ["--max_steps", "7"]
    assert str(tmp_path) not in sys.path


def test_torchtune_on_a_runtime_whose_name_spells_no_model_leaves_the_runtimes_command(tmp_path: Path) -> None:
    path = tmp_path / "run.py"
    path.write_text(
        "from stoker.backends import LoraConfig, TorchTuneConfig\n"
        "config = TorchTuneConfig(epochs=1, num_nodes=2, peft_config=LoraConfig(lora_rank=8))\n"
    )
    told = ("--env", "STOKER_METHOD=lora", "--env", "STOKER_ARG_CONFIG=llama3_2/1B")
    job = printed(f"{path}:config", "--name", "tune", "--runtime", "torchtune-distributed", *told)
    assert "command" not in job["spec"]["trainer"]
    runtime = kept(RUNTIME)
    runtime["metadata"]["name"] = "torchtune-distributed"
    container(runtime)["image"] = "ghcr.io/stoker-dev/torchtune:0.1.0-cpu"
    for entry in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
        entry["template"]["spec"]["template"]["metadata"]["labels"]["trainer.kubeflow.org/framework"] = "torchtune"
    verdict = validate_one(job, runtime)
    assert verdict.problems == ()
    assert verdict.plan is not None
    assert verdict.plan.method == "lora"
    # The name of a model's runtime stands for Trainer's own rules.
    result = invoke(f"{path}:config", "--name", "tune", "--runtime", "torchtune-llama3.2-1b")
    assert (result.exit_code, "on one node only" in result.output) == (64, True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("sft --name Run", 64, "Trainer refuses the name 'Run'"),
        (f"sft --name {'x' * 40}", 64, "33"),
        ("sft --name x --set learning_rat=1", 64, "write --learning_rate"),
        ("sft --name x --set learning_rate=fast", 64, "must be a number, not 'fast'"),
        ("sft --name x --set packing", 64, "--set 'packing' has no `=`: write --set NAME=VALUE"),
        ("sft --name x --lora --set use_peft=false", 64, "--lora and --set use_peft=false set the same flag"),
        ("sft --name x --qlora --set load-in-4bit=true", 64, "--qlora and --set load_in_4bit=true set the same flag"),
        ("sft --name x --qlora --set load_in_8bit=true", 64, "--load_in_4bit and --load_in_8bit are both on"),
        ("sft --name x --model hf://a/b --set model_name_or_path=/m", 64, "--model and --set model_name_or_path=/m"),
        (
            "sft --name x --dataset /d --set dataset_name=/e",
            64,
            "--dataset and --set dataset_name=/e set the same flag",
        ),
        ("sft --name x --set bf16=true --set fp16=true", 64, "--bf16 and --fp16 are both on: choose one"),
        ("sft --name x --set learning_rate=-1", 64, "--learning_rate is -1 (config): write 0 or more"),
        ("sft --name x --env PET_NNODES=2", 64, "PET_NNODES"),
        ("sft --name x --env STOKER_RESUM=never", 64, "did you mean STOKER_RESUME?"),
        ("sft --name x --env STOKER_RESUME=maybe", 64, "must be one of auto, never, require"),
        ("sft --name x --env STOKER_SHARDING=some", 64, "must be one of none, full"),
        ("sft --name x --env STOKER_ARG_LEARNING_RAT=1", 64, "write --learning_rate"),
        ("sft --name x --env STOKER_ARG_LEARNING_RATE=-1", 64, "--learning_rate is -1 (env): write 0 or more"),
        ("sft --name x --set report_to=wanbd", 64, "is not a tracker: did you mean wandb?"),
        ("sft --name x --set save_total_limit=1", 64, "write 2 or more"),
        ("sft --name x --set save_only_model=true", 64, "cannot resume where it was: leave it out"),
        ("sft --name x --set dataset_name=hf://a/b", 64, "is an address, but TRL needs a folder or Hub id"),
        ("dpo --name x --set loss_type=sigmod", 64, "--loss_type sigmod (config) is unknown: did you mean sigmoid?"),
        (
            "distillation --name x --set teacher_model_name_or_path=/t --set beta=2",
            64,
            "--beta is 2 (config): write a number from 0 to 1",
        ),
        ("sft --name x --set output_dir=out", 64, "write an absolute path such as /workspace/output"),
        ("sft --name x --set model_init_kwargs=x.json", 64, "must be a mapping, not 'x.json'"),
        (
            "grpo_async --name x --lora --set samplers=role --set reward_funcs=m:f --set vllm_mode=server",
            64,
            "has no place in grpo_async: leave it out, the samplers have settings of their own",
        ),
        ("grpo --name x --set reward_funcs=accuracy", 64, "--reward_funcs accuracy is unknown"),
        (
            "sft --name x --set optim=galore_adamw_layerwise",
            64,
            "trains only without a launcher: write --optim galore_",
        ),
        ("sft --name x --set optim=sgd --set optim_args=lr_decay=1", 64, "which the optimizer sgd does not take"),
        (
            "sft --name x --set lr_scheduler_type=cosine_with_min_lr --set lr_scheduler_kwargs={{}}",
            64,
            "needs exactly one of min_lr and min_lr_rate",
        ),
        ('sft --name x --set lr_scheduler_kwargs={{"factor":2}}', 64, "fits no schedule: add --lr_scheduler_type, and"),
        ("sft --name x --nodes 0", 64, "num_nodes is 0"),
        ("sft --name x --sharding half", 64, "'half' is not one of 'none', 'full'"),
        (
            "sft --name x --sharding full --env STOKER_SHARDING=none",
            64,
            "STOKER_SHARDING is 'none', but the config says 'full': write one of them",
        ),
        ("sft --name x --sharding full --set deepspeed=/x.json", 64, "both share the model: leave one of them out"),
        ("sft --name x --sharding full --set load_in_8bit=true --lora", 64, "8-bit weights cannot be sharded"),
        ("{folder}/other.py:config --name x --sharding full", 64, "--sharding only goes with a method: set it in"),
        (
            "{folder}/tune.py:config --name x --runtime x --env STOKER_SHARDING=none",
            64,
            "torchtune can only do full: drop it",
        ),
        ("{folder}/own.py:config --name x --runtime x --env STOKER_SHARDING=full", 64, "does not launch own: drop it"),
        ("ppo --name x", 64, "'ppo' is not a method or a config: choose one of sft, dpo"),
        ("grpo --name x", 64, "grpo needs reward_funcs or reward_model_name_or_path: set one"),
        ("sft --name x --resources gpu=1 --resources mig-1g.5gb=1", 64, "a pod gets devices of one kind"),
        ("none.py:config --name x", 66, "none.py is not a file"),
        ("none.py --name x", 64, "write FILE.py:NAME"),
        ("{folder}/broken.py:config --name x", 64, "broken.py, line 2: NameError: name 'nope' is not defined"),
        ("{folder}/other.py:config --name x", 64, "config in {folder}/other.py is a int: it must be a config"),
        ("{folder}/other.py:none --name x", 64, "none in {folder}/other.py is nothing"),
        ("{folder}/other.py:config --name x --lora", 64, "only goes with a method: set it in the config"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, arguments: str, code: int, message: str) -> None:
    (tmp_path / "broken.py").write_text("x = 1\nconfig = nope\n")
    (tmp_path / "other.py").write_text("config = 1\n")
    (tmp_path / "tune.py").write_text("from stoker.backends import TorchTuneConfig\nconfig = TorchTuneConfig()\n")
    (tmp_path / "own.py").write_text(OWN)
    result = invoke(*arguments.format(folder=tmp_path).split())
    assert result.exit_code == code, result.output
    assert message.format(folder=tmp_path) in result.output


def test_grpo_can_be_written_by_flags_alone() -> None:
    job = printed("grpo", "--name", "x", "--set", "reward_funcs=think_format_reward", "--set", "num_generations=4")
    assert validate_one(job, kept(RUNTIME)).problems == ()


# How YAML 1.1 and 1.2 parsers, the ones Kubernetes uses among them, may read plain text as something else.
ODD = st.sampled_from(
    ["1e-5", "2e-05", "1:30", "0x1f", "017", "1_000", "y", "n", "no", "on", "null", "~", ".inf", "+1"]
)


@given(value=ODD | st.text(max_size=20))
@settings(deadline=None)
def test_text_stays_text_in_yaml(value: str) -> None:
    text = manifests.to_yaml({"args": [value, "--flag"]})
    assert yaml.safe_load(text) == {"args": [value, "--flag"]}
    if value and (value[0] in "0123456789" or value in "yn"):
        assert text.splitlines()[1].lstrip("- ")[0] in "\"'"


def test_a_value_by_the_methods_flag_is_taken_by_its_type() -> None:
    words = TRLConfig(method="sft", extra_args={"packing": "true", "seed": 1}).to_args()
    assert words == ["trl.scripts.sft", "--packing", "true", "--seed", "1"]


def test_exit_codes_are_the_documented_ones() -> None:
    assert invoke("sft").exit_code == ExitCode.USAGE
