"""However training is started, the runner's launch or its guard is there; what is not training is left alone."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from runner.tests.integration.jobs import LocalJob
from runner.tests.submit.kep_classes import FIRST_TEXT, SECOND_RUNS, SECOND_TEXT

from stoker.entry.launchers import VALUELESS

TRAINER_ARGS = ("--max_steps", "2", "--per_device_train_batch_size", "8", "--logging_steps", "1")


@pytest.mark.full
def test_a_launcher_past_the_path_becomes_the_runners_launch(job: LocalJob) -> None:
    command = ["python", "-m", "torch.distributed.run", "--nproc_per_node=2", "-m", "trl.scripts.sft"]
    ended = job.run(*TRAINER_ARGS, command=command)
    assert ended.code == 0, ended.output
    assert "trl.scripts.sft on node 0 of 1 × 2 processes, world size 2, attempt 0" in ended.output
    assert job.manifest()["world_size"] == 2


@pytest.mark.full
@pytest.mark.parametrize(
    "command",
    [
        *(["torchrun", "-m", "trl.scripts.sft"], ["trl", "sft"], ["python", "-m", "trl", "sft"]),
        ["accelerate", "launch", "-m", "trl.scripts.sft"],
    ],
    ids=" ".join,
)
def test_launchers_become_the_runners_launch(job: LocalJob, command: list[str]) -> None:
    ended = job.run(*TRAINER_ARGS, command=command, nodes=2)
    assert ended.code == 0, ended.output
    assert job.manifest()["world_size"] == 2


# Instances of the classes that KEP-2839 prints, with lengths that the tiny model has. On a CPU TRL computes in float32.
FIRST_RUNS = """
sft = TRLConfig(peft_config=TRLPeftConfig(), sft_config=TRLSFTConfig(max_seq_length=64), bf16=False, _num_nodes=2)
dpo_config = TRLDPOConfig(max_length=64, max_prompt_length=32)
dpo = TRLConfig(trainer_type=TRLTrainerType.DPO, dpo_config=dpo_config, bf16=False, _num_nodes=2)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("text", "name", "dataset"),
    [
        (FIRST_TEXT + FIRST_RUNS, "sft", "dataset"),
        (FIRST_TEXT + FIRST_RUNS, "dpo", "preferences"),
        (SECOND_TEXT + SECOND_RUNS, "sft", "dataset"),
    ],
    ids=["first text, sft", "first text, dpo", "second text, sft"],
)
def test_a_trainjob_of_a_class_that_kep_2839_prints_trains(job: LocalJob, text: str, name: str, dataset: str) -> None:
    (job.folder / "run.py").write_text(text)
    # The text's default is a model in the workspace.
    shutil.copytree(job.inputs / "model", job.workspace / "model")
    asked = [f"{job.folder}/run.py:{name}", "--name", name, "--runtime", job.runtime_name]
    printed = subprocess.check_output([job.python, "-m", "stoker", "trainjob", *asked], env=job.environ, text=True)
    trainer = yaml.safe_load(printed)["spec"]["trainer"]
    env = {"STOKER_ARG_DATASET_NAME": f"{job.inputs}/{dataset}"}
    ended = job.run(*trainer["args"], *TRAINER_ARGS, command=trainer["command"], nodes=trainer["numNodes"], env=env)
    assert ended.code == 0, ended.output
    assert job.manifest()["world_size"] == 2
    if "--max_seq_length" in trainer["args"]:
        assert "--max_seq_length is read as --max_length" in ended.output
        assert json.loads((job.output / "adapter_config.json").read_text())["r"] == 16


def test_a_bare_trainer_does_not_train_alone_in_a_job_of_two_nodes(job: LocalJob) -> None:
    flags = [
        *("--model_name_or_path", f"{job.inputs}/model", "--dataset_name", f"{job.inputs}/dataset"),
        *("--output_dir", str(job.output), "--report_to", "none", "--use_cpu", "true", "--bf16", "false"),
    ]
    log = job.folder / "termination-log"
    told = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": "127.0.0.1",
        "STOKER_ACCELERATOR": "cpu",
        "STOKER_TERMINATION_LOG": str(log),
    }
    done = subprocess.run(
        [job.python, "-m", "trl.scripts.sft", *flags, *TRAINER_ARGS],
        env={**job.environ, **told},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 78, done.stderr
    assert "the world size is 1, but 2 was requested: this process would train alone" in done.stderr
    assert log.read_text().startswith("wrong configuration: the world size is 1, but 2 was requested")
    assert not list(job.workspace.rglob("*.safetensors"))


def test_a_users_own_script_is_left_alone(job: LocalJob, monkeypatch: pytest.MonkeyPatch) -> None:
    script = job.folder / "train.py"
    script.write_text(
        "import json, os, sys\n"
        "keys = ('RANK', 'WORLD_SIZE', 'STOKER_PLAN')\n"
        "told = {key: os.environ.get(key) for key in keys}\n"
        # In one piece: print writes several, which those of the other rank may come between.
        "sys.stdout.write(f'told {json.dumps([sys.argv[1:], told])}\\n')\n"
    )
    # The trainers' own commands lie in the environment under the runner's.
    stack = (job.python.parents[1] / "lib").glob("python*/site-packages/_stack.pth")
    packages = Path(next(stack).read_text().split("'")[1])
    monkeypatch.setenv("PATH", f"{packages.parents[2] / 'bin'}:/usr/bin:/bin")
    ended = job.run("trl.scripts.sft", "--any", command=["torchrun", "--nproc_per_node=2", str(script)], processes=2)
    assert ended.code == 0, ended.output
    told = [json.loads(line.partition("told ")[2]) for line in ended.output.splitlines() if "told [" in line]
    assert sorted(told, key=str) == [
        [["trl.scripts.sft", "--any"], {"RANK": rank, "WORLD_SIZE": "2", "STOKER_PLAN": None}] for rank in ("0", "1")
    ]
    assert "[stoker] exit" not in ended.output
    assert not job.output.exists()


def test_options_without_a_value_are_those_of_the_installed_launchers(trainer_python: Path) -> None:
    program = """
import json
from accelerate.commands.launch import launch_command_parser
from torch.distributed.run import get_args_parser
parsers = {"torchrun": get_args_parser(), "accelerate launch": launch_command_parser()}
print(json.dumps({
    name: sorted({
        option.lstrip("-").replace("-", "_")
        for action in parser._actions if action.nargs == 0 for option in action.option_strings
    })
    for name, parser in parsers.items()
}))
"""
    done = subprocess.run([trainer_python, "-c", program], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout.splitlines()[-1]) == {name: sorted(options) for name, options in VALUELESS.items()}
