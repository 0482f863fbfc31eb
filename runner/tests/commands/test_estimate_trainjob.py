"""`stoker estimate trainjob.yaml`: what the job would need, and how long by the measure of an earlier run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from runner.tests.command_line import invoke
from runner.tests.plan.models import QWEN_8B

from builders import RUNTIME, gpu_runtime, trainjob
from stoker.cluster.forecast import plan_of


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A file with a TrainJob of one node with two GPUs, and its runtime; the model's configuration is beside it."""
    env = {"STOKER_ARG_MODEL_NAME_OR_PATH": "Qwen/Qwen3-8B", "STOKER_ARG_DATASET_NAME": "org/data"}
    env |= {"STOKER_ARG_USE_PEFT": "true", "STOKER_ARG_MAX_STEPS": "1000"}
    made = trainjob(numNodes=1, env=[{"name": name, "value": value} for name, value in env.items()])
    (tmp_path / "job.yaml").write_text(yaml.safe_dump_all([made, gpu_runtime()]))
    (tmp_path / "config.json").write_text(json.dumps(QWEN_8B))
    return tmp_path / "job.yaml"


def earlier(folder: Path, **told: Any) -> Path:
    """Return the output of a finished run on one process: a start of 300 s, 100 steps in 200 s, 1,000 tokens/s."""
    folder.mkdir()
    lines = [{"step": step, "tokens_per_second": speed} for step, speed in ((1, 1.0), (50, 1000.0), (100, 1000.0))]
    lines[-1]["peak_memory_gib"] = 30.5
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    measured = {"steps": 100, "seconds": 500.0, "training_seconds": 200.0, "world_size": 1}
    manifest = {**measured, "budget": {"steps": 100}, "settings": {}, **told}
    (folder / "stoker.json").write_text(json.dumps(manifest))
    return folder


def test_memory_tokens_and_time(job: Path, tmp_path: Path) -> None:
    asked = ("--model", str(tmp_path), "--device-memory", "80Gi", "--measured", str(earlier(tmp_path / "output")))
    result = invoke("estimate", *asked, str(job))
    assert result.exit_code == 0, result.output
    assert "lora, not sharded" in result.stdout
    assert "measured there: 30.5 GiB at most" in result.stdout
    told = json.loads(invoke("estimate", "--output", "json", *asked, str(job)).stdout)
    # Ten times the steps on twice the processes: each step has twice the rows, and takes as long.
    assert (told["processes"], told["tokens"], told["seconds"]) == (2, 4_000_000, 2000)
    assert told["fits"] is True


def test_tokens_that_the_trainer_counted_are_the_measure(job: Path, tmp_path: Path) -> None:
    """They hold without the time of evaluations and checkpoints."""
    output = earlier(tmp_path / "output")
    metrics = output / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"step": 50,', '"step": 50, "num_tokens": 25000,'))
    asked = ("--output", "json", "--model", str(tmp_path), "--measured", str(output))
    told = json.loads(invoke("estimate", *asked, str(job)).stdout)
    assert (told["tokens"], told["seconds"]) == (1_000_000, 500)


def test_a_trainjob_may_be_json(job: Path, tmp_path: Path) -> None:
    made, runtime = yaml.safe_load_all(job.read_text())
    (tmp_path / "trainjob.json").write_text(json.dumps(made))
    (tmp_path / "runtime.yaml").write_text(yaml.safe_dump(runtime))
    asked = ("--model", str(tmp_path), "--runtime", str(tmp_path / "runtime.yaml"), str(tmp_path / "trainjob.json"))
    assert "lora, not sharded" in invoke("estimate", *asked).stdout


@pytest.mark.parametrize(("batch", "code"), [("8", 78), ("4", 0)], ids=["the same run", "another batch"])
def test_the_measured_peak_of_the_same_run_decides(job: Path, tmp_path: Path, batch: str, code: int) -> None:
    made, runtime = yaml.safe_load_all(job.read_text())
    fingerprint = plan_of(made, runtime, tmp_path).record["fingerprint"]
    same = {"fingerprint": fingerprint, "world_size": 2, "settings": {"per_device_train_batch_size": batch}}
    measured = earlier(tmp_path / "output", **same)
    # The weights of 15.3 GiB would fit. What was measured, 30.5 GiB, does not.
    asked = ("--model", str(tmp_path), "--device-memory", "24Gi", "--measured", str(measured))
    result = invoke("estimate", *asked, str(job))
    assert result.exit_code == code, result.output
    assert ("30.5 GiB at most, with activations. This does not fit: write" in result.stdout) is bool(code)
    assert json.loads(invoke("estimate", "--output", "json", *asked, str(job)).stdout)["fits"] is not bool(code)


def test_more_rows_in_a_step_are_more_tokens(job: Path, tmp_path: Path) -> None:
    measured = earlier(tmp_path / "output", settings={"gradient_accumulation_steps": "4"})
    asked = ("--output", "json", "--model", str(tmp_path), "--measured", str(measured))
    told = json.loads(invoke("estimate", *asked, str(job)).stdout)
    assert told["tokens"] == 1_000_000, "the job accumulates one row where the other accumulated four"


def test_what_stands_after_the_file_and_cpus_are_told(job: Path, tmp_path: Path) -> None:
    late = invoke("estimate", str(job), "--model", str(tmp_path))
    assert (late.exit_code, "write options before the file" in late.output) == (64, True), late.output
    job.write_text(yaml.safe_dump_all([trainjob(), RUNTIME]))
    cpus = invoke("estimate", "--model", str(tmp_path), str(job))
    assert (cpus.exit_code, "trains on CPUs" in cpus.output) == (64, True), cpus.output


def test_a_job_that_does_not_fit_ends_with_78(job: Path, tmp_path: Path) -> None:
    result = invoke("estimate", "--model", str(tmp_path), "--device-memory", "8Gi", str(job))
    assert result.exit_code == 78
    assert "does not fit" in result.stdout
    assert "tokens" not in result.stdout


def test_steps_say_nothing_of_epochs(job: Path, tmp_path: Path) -> None:
    job.write_text(job.read_text().replace("STOKER_ARG_MAX_STEPS", "STOKER_ARG_NUM_TRAIN_EPOCHS"))
    asked = ("--model", str(tmp_path), "--measured", str(earlier(tmp_path / "output")))
    assert "tokens and time: unknown; both runs need a number of steps" in invoke("estimate", *asked, str(job)).stdout


@pytest.mark.parametrize(
    ("words", "told", "code", "message"),
    [
        ([], {}, 64, "name a folder with its config.json by --model"),
        (["--model", "nowhere"], {}, 66, "nowhere has no config.json"),
        (["--model", "{here}", "--measured", "{here}/nowhere"], {}, 66, "has no metrics.jsonl"),
        (
            ["--model", "{here}", "--measured", "{here}/output"],
            {"training_seconds": None},
            65,
            "does not tell tokens per second",
        ),
        (["--model", "{here}", "--measured", "{here}/output"], {"resumed_from": 5}, 65, "is a resumed run"),
    ],
)
def test_what_it_cannot_answer_is_said(
    job: Path, tmp_path: Path, words: list[str], told: dict[str, Any], code: int, message: str
) -> None:
    earlier(tmp_path / "output", **told)
    result = invoke("estimate", *(word.format(here=tmp_path) for word in words), str(job))
    assert (result.exit_code, message in result.output) == (code, True), result.output


def test_options_of_a_trainjob_need_one(tmp_path: Path, job: Path) -> None:
    result = invoke("estimate", "--measured", "x", str(tmp_path))
    assert (result.exit_code, "are for a TrainJob" in result.output) == (64, True)
    result = invoke("estimate", "--devices", "8", "--sharding", "none", "--model", str(tmp_path), str(job))
    assert (result.exit_code, "--devices and --sharding: " in result.output) == (64, True), result.output
    result = invoke("estimate", "--model", str(tmp_path), str(job), "--use_peft")
    assert (result.exit_code, "into the TrainJob" in result.output) == (64, True)
