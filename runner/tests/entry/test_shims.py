"""The launchers people type end in the one launch, or are left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.contract.exits import ExitCode, RunError
from stoker.entry.launchers import Launch, translate
from stoker.entry.shims import real_command

SFT = ("trl.scripts.sft", "--max_steps", "3")
PATH_TO_SFT = "/opt/venv/lib/python3.12/site-packages/trl/scripts/sft.py"


@pytest.mark.parametrize(
    ("command", "words", "world"),
    [
        ("torchrun", "-m trl.scripts.sft --max_steps 3", {}),
        ("torchrun", "--module trl.scripts.sft --max_steps 3", {}),
        (
            "torchrun",
            "--nnodes=2 --nproc-per-node 4 --node_rank 1 -m trl.scripts.sft --max_steps 3",
            {"nnodes": "2", "nproc_per_node": "4", "node_rank": "1"},
        ),
        (
            "torchrun",
            "--master_addr host --master-port=1234 -m trl.scripts.sft --max_steps 3",
            {"master_addr": "host", "master_port": "1234"},
        ),
        ("torchrun", f"--nnodes 2 {PATH_TO_SFT} --max_steps 3", {"nnodes": "2"}),
        ("trl", "sft --max_steps 3", {}),
        ("trl", "sft --max_steps 3 --num_processes 4", {"nproc_per_node": "4"}),
        ("trl", "sft --num-processes=4 --num_machines 2 --max_steps 3", {"nnodes": "2", "nproc_per_node": "2"}),
        ("accelerate", "launch -m trl.scripts.sft --max_steps 3", {}),
        (
            "accelerate",
            "launch --multi_gpu --num_machines 2 --num_processes 8 -m trl.scripts.sft --max_steps 3",
            {"nnodes": "2", "nproc_per_node": "4"},
        ),
        (
            "accelerate",
            "launch --machine_rank 1 --main_process_ip h --main_process_port 5 -m trl.scripts.sft --max_steps 3",
            {"node_rank": "1", "master_addr": "h", "master_port": "5"},
        ),
    ],
)
def test_command_lines_that_train_with_trl_are_taken_over(command: str, words: str, world: dict[str, str]) -> None:
    assert translate(command, words.split()) == Launch(SFT, world)


def test_processes_are_spread_over_the_trainjobs_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NNODES", "2")
    launch = translate("accelerate", ["launch", "--num_processes", "8", "-m", "trl.scripts.sft"])
    assert launch is not None
    assert launch.world == {"nproc_per_node": "4"}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("torchrun", "train.py --max_steps 3"),
        ("torchrun", "--nnodes 2 train.py trl.scripts.sft"),
        ("torchrun", "--log-dir trl.scripts.sft train.py"),
        ("torchrun", "--standalone train.py --model -m trl.scripts.sft"),
        ("torchrun", "-m my.package --method trl.scripts.sft"),
        ("torchrun", "--help"),
        ("torchrun", "-m trl.scripts.sft --help"),
        ("torchrun", ""),
        ("torchrun", "--nnodes"),
        ("trl", ""),
        ("trl", "--help"),
        ("trl", "sft --help"),
        ("trl", "env"),
        ("trl", "vllm-serve --model m"),
        ("accelerate", "config"),
        ("accelerate", "env"),
        ("accelerate", "launch train.py"),
        ("accelerate", "launch --config_file c.yaml train.py"),
        ("tune", "ls"),
        ("tune", "run lora_finetune_distributed --help"),
        ("tune", "run generate --config generation"),
        ("tune", "run my_recipe.py --config my.yaml"),
    ],
)
def test_everything_else_is_left_to_the_real_command(command: str, words: str) -> None:
    assert translate(command, words.split()) is None


@pytest.mark.parametrize(
    ("command", "words", "names"),
    [
        ("torchrun", "--standalone -m trl.scripts.sft", "torchrun: stoker does not support --standalone: drop it"),
        (
            "torchrun",
            "--rdzv-backend c10d --max-restarts=3 -m trl.scripts.sft",
            "not support --rdzv-backend, --max-restarts: drop them",
        ),
        (
            "accelerate",
            "launch --use_fsdp -m trl.scripts.sft",
            "accelerate launch: stoker does not support --use_fsdp: drop it",
        ),
        ("accelerate", "launch --config_file a.yaml -m trl.scripts.sft", "not support --config_file: drop it"),
        ("accelerate", "launch --num_machines 2 --num_processes 3 -m trl.scripts.sft", "write a multiple of 2"),
        ("accelerate", "launch --num_processes four -m trl.scripts.sft", "--num_processes four cannot be split"),
        ("trl", "sft --accelerate_config zero3", "trl: stoker does not support --accelerate_config: drop it"),
        ("trl", "sft --accelerate_config=zero3", "trl: stoker does not support --accelerate_config: drop it"),
        ("trl", "sft --config_file a.yaml", "trl: stoker does not support --config_file: drop it"),
        ("trl", "sft --num_processes four", "trl: --num_processes four cannot be split"),
        ("trl", "cpo --max_steps 3", "trl: this version has no command 'cpo': TRL has only an experimental trainer"),
        ("trl", "online-dpo", "no command 'online-dpo': TRL has only an experimental trainer without a script, choose"),
        (
            "tune",
            "run --max-restarts 3 full_finetune_distributed --config llama3_2/1B_full",
            "tune run: stoker does not support --max-restarts: drop it",
        ),
    ],
)
def test_options_with_no_equivalent_are_refused_by_name(command: str, words: str, names: str) -> None:
    with pytest.raises(RunError) as refused:
        translate(command, words.split())
    assert refused.value.code is ExitCode.USAGE
    assert names in refused.value.message


@pytest.mark.parametrize(
    ("options", "world"),
    [
        ("", {}),
        ("--rdzv_endpoint=tune-node-0-0.tune:29500", {"master_addr": "tune-node-0-0.tune", "master_port": "29500"}),
        ("--rdzv_endpoint=localhost:29500", {}),
        ("--nnodes 2 --nproc_per_node=4", {"nnodes": "2", "nproc_per_node": "4"}),
    ],
    ids=["one process", "as Trainer rewrites it", "as upstream's runtimes have it", "by hand"],
)
def test_tune_run_is_the_same_launch(options: str, world: dict[str, str]) -> None:
    words = ["full_finetune_distributed", "--config", "llama3_2/1B_full", "output_dir=/workspace/output", "epochs=2"]
    assert translate("tune", ["run", *options.split(), *words]) == Launch(tuple(words), world)


def test_the_real_command_is_the_next_on_the_path(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "shims", tmp_path / "bin"
    for folder in (ours, theirs):
        folder.mkdir()
        (folder / "torchrun").write_text("#!/bin/sh\n")
        (folder / "torchrun").chmod(0o755)
    path = os.pathsep.join(["", str(ours), str(theirs)])
    assert real_command("torchrun", path, ours) == str(theirs / "torchrun")
    assert real_command("trl", path, ours) is None
    (theirs / "torchrun").chmod(0o644)
    assert real_command("torchrun", path, ours) is None
