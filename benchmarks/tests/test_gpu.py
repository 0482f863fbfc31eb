"""What the GPU benchmark decides and prints; on a machine without a GPU it says so and measures nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from benchmarks import gpu
from benchmarks.gpu import GpuError, Speed, Work, flags_of, job_flags, report, speed_of
from benchmarks.gpu_inputs import sample_lengths
from benchmarks.jobs import Run, environment, run_job

WORK = Work(tokens=1000, flops=2e9)
COMMAND = (
    "--bf16 true --dataset_name /d --lora_target_modules q_proj v_proj --max_length 512 --packing true "
    "--output_dir /o --per_device_train_batch_size 4 --use_peft true"
)
RECIPE = flags_of(COMMAND.split())


def line(tokens: float, at: float) -> tuple[float, str]:
    return at, f"{{'loss': '1.0', 'num_tokens': '{tokens:.4g}', 'epoch': '1'}}"


def speed(tokens_per_second: float | None, tokens: float = 1000) -> Speed:
    return Speed(tokens, tokens_per_second, Run(1, 9, 10, 9))


def test_flags_keep_their_values() -> None:
    assert RECIPE["lora_target_modules"] == ["q_proj", "v_proj"]
    assert RECIPE["packing"] == ["true"]


def test_both_sides_share_the_work_and_the_adapter_and_nothing_else() -> None:
    assert job_flags(RECIPE).keys() == {"bf16", "dataset_name", "lora_target_modules", "max_length", "use_peft"}


def test_the_first_steps_do_not_count() -> None:
    """They compile and take memory: ten seconds for the first five, then a second each."""
    steps = [line(100 * number, 10 + max(0, number - 5)) for number in range(1, 10)]
    measured = speed_of(Run(10, 15, 16, 9, steps=tuple(steps)))
    assert measured.tokens == 900
    assert measured.tokens_per_second == 100
    assert str(measured) == "100 tokens/s, 16.0 s, first step after 10.0 s"


def test_a_step_in_a_line_with_more_is_read() -> None:
    assert speed_of(Run(1, 2, 3, 1, steps=((1, "  0%|  {'loss': '1', 'num_tokens': '7'}\r"),))).tokens == 7


def test_too_few_steps_have_no_speed() -> None:
    assert speed_of(Run(1, 2, 3, 1, steps=(line(10, 1),))).tokens_per_second is None
    assert speed_of(Run(None, None, None, None)) == Speed(None, None, Run(None, None, None, None))


def test_the_report_has_ratio_and_mfu() -> None:
    ratio, mfu = report([(speed(400), speed(100)), (speed(600), speed(200))], WORK, peak=4e12)
    assert "ratio 3.500 (3.000 to 4.000) of 2 pairs" in ratio
    assert " ".join(mfu.split()) == (
        "MFU recipe 25.0 %, TRL's defaults 7.5 % of 1000 tokens in each run, padding not counted"
    )


def test_a_lost_run_is_said_and_its_pair_left_out() -> None:
    hung = Speed(300, 100, Run(1, None, None, None, waited=600, steps=(line(300, 1),) * 7))
    lost, ratio, _ = report([(speed(400), hung), (speed(400), speed(100))], WORK, peak=4e12)
    assert lost == "lost: pair 1, TRL's defaults: hung in training, killed after 600 s of silence, 7 steps"
    assert "of 1 pairs" in ratio
    assert list(report([(speed(400), hung)], WORK, peak=4e12))[1:] == ["not measured: no pair has both sides"]


def test_other_tokens_are_no_comparison() -> None:
    with pytest.raises(GpuError, match="recipe trained on 900 tokens in pair 1, but the samples have 1000"):
        list(report([(speed(400, tokens=900), speed(100))], WORK, peak=4e12))


def test_samples_are_the_same_each_time_and_fit() -> None:
    lengths = sample_lengths(500, 512)
    assert lengths == sample_lengths(500, 512)
    assert 16 <= min(lengths) < max(lengths) == 512
    assert sum(lengths) / len(lengths) < 0.7 * 512, "padding must be worth avoiding"


def test_without_a_gpu_it_says_so_and_ends_with_its_code(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, gpu.__file__], env={**os.environ, "PATH": str(tmp_path)}, check=False, capture_output=True
    )
    assert ended.returncode == 77
    assert ended.stdout == b""
    assert ended.stderr.decode().splitlines() == [
        "gpu.py: error: this machine has no NVIDIA GPU, so nothing was measured: run it where nvidia-smi lists one"
    ]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--runtime", "trl-none"], "argument --runtime: the catalogue has no 'trl-none'"),
        (["--model", "none"], "argument --model: 'none' must be the folder of a model, or qwen3-1.7b or qwen3-8b"),
        (["--runtime", "trl-gemma3-1b"], "argument --model: 'gemma3-1b' must be the folder of a model"),
        (["--arg", "packing"], "argument --arg: must be FLAG=VALUE: 'packing'"),
        (["--pairs", "0"], "argument --pairs: must be a whole number, 1 or more: '0'"),
        (["--length", "8"], "argument --length: must be a whole number, 32 or more: '8'"),
    ],
)
def test_wrong_arguments_are_refused_at_once(words: Sequence[str], problem: str, refusal: Callable[..., str]) -> None:
    assert problem in refusal(gpu.main, *words)


def test_an_unknown_gpu_needs_its_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA T1000'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 2
    assert "no peak is known for 'NVIDIA T1000'" in capsys.readouterr().err


TINY = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from benchmarks import gpu_inputs
gpu_inputs.SHAPES["tiny"] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
                             "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 300}
gpu_inputs.main(Path(sys.argv[2]), "tiny", 60, 128)
"""


@pytest.mark.full
def test_packed_and_padded_runs_train_on_the_same_tokens(tmp_path: Path) -> None:
    """The whole way on a CPU, with a tiny model: what TRL logs is what the samples have, padding not counted."""
    python = environment()
    subprocess.run([python, "-c", TINY, gpu.ROOT, tmp_path], check=True)
    work = Work.read(tmp_path, trains_all=True)
    assert work.tokens == sum(sample_lengths(60, 128))
    common = (
        f"--model_name_or_path {tmp_path}/model --dataset_name {tmp_path}/dataset --max_length 128 --use_cpu true "
        "--bf16 false --num_train_epochs 1 --logging_steps 1 --save_strategy no --report_to none --disable_tqdm true"
    ).split()
    speeds = []
    for name, recipe in (("packed", ["--packing", "true", "--per_device_train_batch_size", "2"]), ("padded", [])):
        output = ["--output_dir", str(tmp_path / name)]
        run = run_job([str(python), "-m", "trl.scripts.sft", *common, *recipe, *output], {"HF_HUB_OFFLINE": "1"}, 300)
        speeds.append(speed_of(run))
    packed, padded = speeds
    ratio, mfu = report([(packed, padded)], work, peak=1e12)
    assert "of 1 pairs" in ratio
    assert json.dumps(work.tokens) in mfu
