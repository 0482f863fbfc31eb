"""Whole runs with torchrun and TorchTune: they finish, stop, resume, survive kills, and end as documented."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import yaml
from runner.tests.integration.disks import kept_full, small_disk
from runner.tests.integration.jobs import leftovers
from runner.tests.integration.tune_jobs import FULL, LORA, SIZE, TuneJob, make_tiny_llama
from runner.tests.report.hostile import read_page, titles
from runner.tests.status_server import StatusServer

ROOT = Path(__file__).parents[3]
TWO_EPOCHS = (
    "lora_finetune_distributed",
    f"model={LORA}",
    "model.lora_rank=4",
    "model.lora_alpha=8",
    "model.lora_dropout=0.2",
    "optimizer.lr=1e-2",
    "lr_scheduler.num_warmup_steps=2",
    "seed=7",
    "epochs=2",
)


@pytest.fixture(scope="module")
def finished(
    tune_python: Path, tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory, status_server: StatusServer
) -> tuple[TuneJob, str]:
    """A LoRA run of two epochs on two nodes that has finished, and its output."""
    job = TuneJob(tune_python, tiny_llama, tmp_path_factory.mktemp("tune"))
    url = f"http://127.0.0.1:{status_server.server_port}/"
    ended = job.run(*TWO_EPOCHS, nodes=2, env={"KUBEFLOW_TRAINER_SERVER_URL": url})
    assert ended.code == 0, ended.output
    assert leftovers(job.folder) == []
    return job, ended.output


def test_lora_trains_on_two_nodes_as_one_world(finished: tuple[TuneJob, str]) -> None:
    job, output = finished
    manifest = job.manifest()
    assert (manifest["framework"], manifest["method"]) == ("torchtune", "lora")
    assert (manifest["status"], manifest["world_size"], manifest["nodes"]) == ("finished", 2, 2)
    assert (manifest["steps"], manifest["max_steps"]) == (8, 8)
    assert manifest["versions"].keys() >= {"torch", "torchtune", "torchao", "torchdata"}
    assert manifest["base_model"]["name_or_path"] == f"{job.inputs}/model"
    losses = job.losses(output)
    assert sorted(losses) == list(range(1, 9))
    assert losses[8] < losses[1]
    assert manifest["metrics"].keys() >= {"loss", "learning_rate", "tokens_per_second"}


def test_a_tune_run_keeps_the_metrics_of_its_steps_as_trl_does(finished: tuple[TuneJob, str]) -> None:
    job, output = finished
    lines = job.metrics()
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert all({"learning_rate", "tokens_per_second", "peak_memory_gib"} <= line.keys() for line in lines)
    assert {line["step"]: line["loss"] for line in lines} == pytest.approx(job.losses(output), rel=1e-4)
    assert "report.html" in {file["path"] for file in job.manifest()["files"]}
    page, _ = read_page((job.output / "report.html").read_text())
    assert titles(page)[:4] == ["Loss", "Learning rate", "Tokens per second", "Peak memory (GiB)"]


def test_progress_of_a_tune_run_is_posted_with_speed_and_remaining_time(
    finished: tuple[TuneJob, str], status_server: StatusServer
) -> None:
    posts = [body["trainerStatus"] for _, body in status_server.posts]
    assert posts[0]["progressPercentage"] == 0
    assert (posts[-1]["progressPercentage"], posts[-1]["estimatedRemainingSeconds"]) == (100, 0)
    last = {metric["name"]: float(metric["value"]) for metric in posts[-1]["metrics"]}
    assert (last["step"], last["world_size"]) == (8, 2)
    assert last["loss"] == pytest.approx(finished[0].losses(finished[1])[8], rel=1e-4)
    assert "learning_rate" in last
    assert last["tokens_per_second"] > 0


def test_progress_of_a_tune_run_is_a_line_outside_a_cluster(finished: tuple[TuneJob, str]) -> None:
    line = r"step 8 of 8 \(100 %\), loss [\d.]+, learning rate [\d.e-]+, [\d.e+]+ tokens/s"
    assert re.search(line, finished[1]), finished[1]


def test_the_adapter_lies_at_the_root_in_pefts_layout(finished: tuple[TuneJob, str]) -> None:
    job, _ = finished
    config = json.loads((job.output / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"], config["task_type"]) == (4, 8, "LORA", "CAUSAL_LM")
    assert config["base_model_name_or_path"] == f"{job.inputs}/model"
    assert {"q_proj", "v_proj", "o_proj"} <= set(config["target_modules"])
    assert job.manifest()["adapter"]["rank"] == 4
    header = (job.output / "adapter_model.safetensors").read_bytes()
    names = set(json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")]))
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in names
    files = {path.name for path in job.output.iterdir() if path.is_file()}
    assert not {name for name in files if name.startswith("model")}, "the base model is not published again"


def test_a_finished_tune_run_started_again_is_done_at_once(finished: tuple[TuneJob, str]) -> None:
    job, _ = finished
    ended = job.run(*TWO_EPOCHS, nodes=2)
    assert ended.code == 0
    assert ended.output.count("this run has already finished, at step 8") == 2


@pytest.mark.full
def test_a_killed_rank_of_a_full_run_restarts_the_job_from_the_newest_epoch(tune: TuneJob) -> None:
    args = ("full_finetune_distributed", f"model={FULL}", "epochs=10", "max_steps_per_epoch=16", "optimizer.lr=1e-3")
    process = tune.start(*args, processes=2)
    tune.wait_for(tune.sealed, process)
    os.kill(tune.ranks()[1], signal.SIGKILL)
    ended = tune.end(process)
    assert ended.code == 0, ended.output
    assert "attempt 0: 1 nodes ended with 70" in ended.output
    manifest = tune.manifest()
    assert (manifest["steps"], manifest["world_size"], manifest["attempt"]) == (160, 2, 1)
    assert manifest["resumed_from"].startswith("checkpoint-")
    assert len(tune.sealed()) == 3, "older checkpoints are removed"
    assert {"config.json", "model-00001-of-00001.safetensors"} <= {file["path"] for file in manifest["files"]}


@pytest.mark.full
def test_a_stop_says_what_is_lost_and_the_next_start_goes_on_after_the_newest_epoch(tune: TuneJob) -> None:
    args = ("full_finetune_distributed", f"model={FULL}", "max_steps_per_epoch=16")
    process = tune.start(*args, "epochs=40", nodes=2)
    tune.wait_for(tune.sealed, process)
    process.send_signal(signal.SIGTERM)
    stopped = tune.end(process)
    assert stopped.code == 75, stopped.output
    (step, *_) = tune.sealed()
    assert f"the newest checkpoint is checkpoint-{step}" in stopped.output or "checkpoint saved" in stopped.output
    assert not (tune.output / "stoker.json").exists()

    epochs = step // 16 + 1
    ended = tune.run(*args, f"epochs={epochs}", nodes=2)
    assert ended.code == 0, ended.output
    assert f"resuming after step {step} of {epochs * 16}" in ended.output
    assert tune.manifest()["resumed_from"] == f"checkpoint-{step}"


def cut_short(job: TuneJob, folder: Path, step: int) -> TuneJob:
    """Return a copy of a finished job that was lost after a step."""
    shutil.copytree(job.workspace, folder / "workspace")
    copy = TuneJob(job.python, job.inputs, folder)
    (copy.output / "stoker.json").unlink()
    for later in copy.sealed():
        if later > step:
            shutil.rmtree(copy.output / f"checkpoint-{later}")
    return copy


@pytest.mark.full
def test_a_resumed_and_an_uninterrupted_run_agree_step_by_step(finished: tuple[TuneJob, str], tmp_path: Path) -> None:
    """With dropout, so that the random states of both ranks count."""
    job, output = finished
    ended = cut_short(job, tmp_path, 4).run(*TWO_EPOCHS, nodes=2)
    assert ended.code == 0, ended.output
    whole, resumed = job.losses(output), job.losses(ended.output)
    assert sorted(resumed) == [5, 6, 7, 8]
    assert resumed == pytest.approx({step: whole[step] for step in resumed}, rel=1e-6)
    metrics = TuneJob(job.python, job.inputs, tmp_path).metrics()
    assert [line["step"] for line in metrics] == list(range(1, 9)), "each step once"


@pytest.mark.full
@pytest.mark.parametrize("processes", [1, 2])
def test_a_resumed_full_run_agrees_too(tune: TuneJob, tmp_path: Path, processes: int) -> None:
    """With two processes the model and the optimizer's state are shards that a checkpoint puts together."""
    args = ("full_finetune_distributed", f"model={FULL}", "seed=7", "optimizer.lr=1e-3", "epochs=3")
    whole = tune.run(*args, processes=processes)
    assert whole.code == 0, whole.output
    (tmp_path / "copy").mkdir()
    ended = cut_short(tune, tmp_path / "copy", 4).run(*args, processes=processes)
    assert ended.code == 0, ended.output
    expected, resumed = tune.losses(whole.output), tune.losses(ended.output)
    assert sorted(resumed) == list(range(5, 13))
    assert resumed == pytest.approx({step: expected[step] for step in resumed}, rel=1e-6)


@pytest.mark.full
@pytest.mark.parametrize(("method", "processes"), [("lora", 1), ("kd", 2)])
def test_a_run_of_whole_epochs_resumes_where_it_was(tune: TuneJob, tmp_path: Path, method: str, processes: int) -> None:
    """Recipes of LoRA on one device and of distillation do not count the steps before, unless epochs are shortened."""
    args, env = words_of(tune, method)
    args += ["seed=7", "epochs=2", "batch_size=8"]
    env["STOKER_ARG_MAX_STEPS_PER_EPOCH"] = ""
    whole = tune.run(*args, env=env, processes=processes)
    assert whole.code == 0, whole.output
    steps = tune.manifest()["steps"] // 2
    (tmp_path / "copy").mkdir()
    resumed = cut_short(tune, tmp_path / "copy", steps)
    ended = resumed.run(*args, env=env, processes=processes)
    assert ended.code == 0, ended.output
    expected, found = tune.losses(whole.output), resumed.losses(ended.output)
    assert sorted(found) == list(range(steps + 1, 2 * steps + 1))
    assert found == pytest.approx({step: expected[step] for step in found}, rel=1e-6)


def test_a_model_of_an_earlier_run_brings_nothing_of_that_run(tune: TuneJob) -> None:
    earlier = tune.folder / "earlier"
    shutil.copytree(f"{tune.inputs}/model", earlier)
    (earlier / "stoker.json").write_text("{}")
    (earlier / "metrics.jsonl").write_text('{"step": 999, "loss": 1}\n')
    (earlier / "checkpoint-4").mkdir()
    (earlier / "checkpoint-4/stoker-checkpoint.json").write_text("{}")
    ended = tune.run("full_finetune_distributed", f"model={FULL}", "epochs=1", f"checkpointer.checkpoint_dir={earlier}")
    assert ended.code == 0, ended.output
    assert [line["step"] for line in tune.metrics()] == [1, 2, 3, 4]
    assert tune.sealed() == [4]
    assert tune.manifest()["steps"] == 4


@pytest.mark.full
def test_a_config_that_numbers_its_files_takes_a_list_of_them_and_resumes(tune: TuneJob, tmp_path: Path) -> None:
    args = ("full_finetune_distributed", "--config", "llama3_3/70B_full_multinode", f"model={FULL}", "epochs=2",
            "checkpointer.checkpoint_files=[model.safetensors]", "checkpointer.model_type=LLAMA3_2",
            "tokenizer.max_seq_len=128", "dataset.packed=False", "custom_sharded_layers=[]")  # fmt: skip
    whole = tune.run(*args, processes=2)
    assert whole.code == 0, whole.output
    (tmp_path / "copy").mkdir()
    ended = cut_short(tune, tmp_path / "copy", 4).run(*args, processes=2)
    assert ended.code == 0, ended.output
    assert sorted(tune.losses(ended.output)) == [5, 6, 7, 8]


@pytest.mark.full
def test_tune_run_as_trainer_rewrites_it_is_the_same_launch(tune: TuneJob) -> None:
    command = [
        *("tune", "run", "full_finetune_single_device", "--config", "llama3_2/1B_full_single_device"),
        f"output_dir={tune.output}",
        f"tokenizer.path={tune.inputs}/model/original/tokenizer.model",
        f"checkpointer.checkpoint_dir={tune.inputs}/model",
    ]
    # What Kubeflow's SDK sends for a BuiltinTrainer with an initializer for the data.
    sdk = ["dtype=fp32", "batch_size=4", "epochs=1", f"dataset.data_dir={tune.inputs}/dataset/."]
    env = {"STOKER_ARG_MODEL___COMPONENT_": FULL, "STOKER_ARG_DATASET__SOURCE": ""}
    ended = tune.run(*sdk, command=command, env=env)
    assert ended.code == 0, ended.output
    assert "full_finetune_single_device on node 0 of 1 × 1 processes" in ended.output
    assert tune.manifest()["steps"] == 4


USERS_ERRORS = {
    "an unknown key": ("model.lora_rnak=8", 64, "did you mean model.lora_rank?"),
    "a missing model": ("checkpointer.checkpoint_dir=/missing", 66, "the model /missing does not exist"),
    "missing weights": (
        "checkpointer.checkpoint_files=[a.bin]", 66, "lacks a.bin: write checkpointer.checkpoint_files=[model",
    ),
    "too few rows": ("batch_size=100", 65, "the data has fewer rows than one step needs"),
}  # fmt: skip
CHEAPEST = ("an unknown key", "a missing model")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in CHEAPEST else pytest.mark.full) for name in USERS_ERRORS]
)
def test_a_users_error_ends_a_tune_run_at_once(tune: TuneJob, name: str) -> None:
    arg, code, message = USERS_ERRORS[name]
    ended = tune.run("lora_finetune_distributed", f"model={LORA}", arg, nodes=2)
    assert ended.code == code, ended.output
    assert message in ended.output
    assert "attempt 1" not in ended.output
    assert "Traceback" not in ended.output


@pytest.mark.full
def test_a_full_disk_ends_a_tune_run_and_costs_no_checkpoint(tune: TuneJob) -> None:
    args = ("full_finetune_distributed", f"model={FULL}", "epochs=8", "max_steps_per_epoch=16")
    with small_disk(tune.workspace) as disk:
        process = tune.start(*args)
        tune.wait_for(tune.sealed, process, every=0.005)
        with kept_full(disk):  # an old checkpoint that goes leaves no room for a new one
            ended = tune.end(process)
        assert ended.code == 78, ended.output
        assert "exit 78: wrong configuration: the disk is full: enlarge the volume" in ended.output
        (newest, *_) = tune.sealed()
        ended = tune.run(*args)
        assert ended.code == 0, ended.output
        manifest = tune.manifest()
        assert (manifest["steps"], manifest["resumed_from"]) == (128, f"checkpoint-{newest}")


@pytest.mark.full
def test_a_loss_that_is_no_number_ends_a_tune_run(tune: TuneJob) -> None:
    ended = tune.run(
        "full_finetune_distributed", f"model={FULL}", "optimizer.lr=1e38", "log_every_n_steps=1000", processes=2
    )
    assert ended.code == 78, ended.output
    assert tune.sealed() == [], "it would be gone on from"
    assert re.search(r"the loss is (nan|inf) at step \d+: lower optimizer.lr", ended.output)
    assert not (tune.output / "stoker.json").exists()


def words_of(tune: TuneJob, method: str) -> tuple[list[str], dict[str, str]]:
    """Return arguments and environment of a method, on the same tiny model, which is its own teacher and reference."""
    env = {"STOKER_METHOD": method}
    args = [f"model={FULL if method == 'full_dpo' else LORA}"]
    if method != "full_dpo":
        args += ["model.lora_rank=4", "lr_scheduler.num_warmup_steps=2"]
    if method.endswith("dpo"):
        env |= {"STOKER_ARG_CONFIG": "llama3_1/8B", "STOKER_ARG_DATASET__SOURCE": f"{tune.inputs}/preferences"}
        args += ["checkpointer.checkpoint_files=[model.safetensors]", "checkpointer.model_type=LLAMA3_2",
                 "dataset=torchtune.datasets.preference_dataset"]  # fmt: skip
        if method == "full_dpo":
            args += ["ref_checkpointer.checkpoint_files=[model.safetensors]", "ref_checkpointer.model_type=LLAMA3_2",
                     f"ref_checkpointer.checkpoint_dir={tune.inputs}/model"]  # fmt: skip
    if method == "kd":
        env |= {"STOKER_ARG_CONFIG": "llama3_2/8B_to_1B"}
        env |= {f"STOKER_ARG_TEACHER_MODEL__{name}": value for name, value in SIZE.items()}
        args += [f"teacher_model={FULL}", f"teacher_checkpointer.checkpoint_dir={tune.inputs}/model",
                 "teacher_checkpointer.checkpoint_files=[model.safetensors]",
                 "teacher_checkpointer.model_type=LLAMA3_2"]  # fmt: skip
    return args, env


@pytest.mark.full
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("method", ["lora_dpo", "full_dpo", "kd"])
def test_every_other_method_trains_too(tune: TuneJob, method: str, processes: int) -> None:
    args, env = words_of(tune, method)
    ended = tune.run(*args, "epochs=2", processes=processes, env=env)
    assert ended.code == 0, ended.output
    manifest = tune.manifest()
    if method.endswith("dpo"):
        assert tune.losses(ended.output)[1] == pytest.approx(math.log(2), abs=1e-3), (
            "policy and reference are one model"
        )
    assert (manifest["method"], manifest["world_size"], manifest["steps"]) == (method, processes, 8)
    assert (manifest["adapter"] is None) == (method == "full_dpo")


@pytest.mark.full
@pytest.mark.parametrize("processes", [1, 2])
def test_qlora_trains_on_a_quantized_model(
    tune_python: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, processes: int
) -> None:
    """On a wider model: NF4 takes whole blocks of 64 × 256 numbers, in each process."""
    wide = make_tiny_llama(tune_python, tmp_path_factory.mktemp("wide-llama"), "256")
    job = TuneJob(tune_python, wide, tmp_path)
    env = {"STOKER_METHOD": "qlora", "STOKER_ARG_MODEL__EMBED_DIM": "256"}
    args = (f"model={LORA}", "model.lora_rank=4", "lr_scheduler.num_warmup_steps=2", "optimizer.lr=1e-2")
    ended = job.run(*args, "epochs=2", processes=processes, env=env)
    assert ended.code == 0, ended.output
    manifest = job.manifest()
    assert (manifest["method"], manifest["world_size"], manifest["steps"]) == ("qlora", processes, 8)
    assert manifest["adapter"]["rank"] == 4
    losses = job.losses(ended.output)
    assert losses[8] < losses[1]
    assert leftovers(tmp_path) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("llama2", "llama2/7B"),
        ("mistral", "mistral/7B"),
        ("gemma", "gemma/2B"),
        ("gemma2", "gemma2/2B"),
        ("phi3", "phi3/mini"),
        ("qwen2", "qwen2_5/1.5B"),
    ],
)
def test_models_of_every_family_train_from_where_the_workspace_has_them(
    tune: TuneJob, family: str, config: str
) -> None:
    script = Path(__file__).with_name("tiny_families.py")
    made = [str(tune.python), str(script), family, str(tune.workspace / "model")]
    size = json.loads(subprocess.run(made, check=True, capture_output=True, text=True).stdout)
    # Nothing of the usual model: its paths are the config's own.
    env = dict.fromkeys((name for name in tune.usual_env if re.search("_(MODEL|TOKENIZER|CHECKPOINTER)__", name)), "")
    env |= {"STOKER_ARG_CONFIG": config, "STOKER_METHOD": "lora"}
    words = [f"model.{name}={value}" for name, value in size.items()]
    ended = tune.run(f"model=torchtune.models.{family}.lora_{family}", *words, "model.lora_rank=4", "epochs=1",
                     "checkpointer.checkpoint_files=[model.safetensors]", processes=2, env=env)  # fmt: skip
    assert ended.code == 0, ended.output
    manifest = tune.manifest()
    assert (manifest["method"], manifest["world_size"], manifest["steps"]) == ("lora", 2, 4)
    names = {file["path"] for file in manifest["files"]}
    assert names & {"adapter_model.safetensors", "adapter_model.pt"}


@pytest.mark.full
def test_the_data_on_torchtune_is_that_of_the_installed_one(tune_python: Path) -> None:
    script = ROOT / "runner" / "scripts" / "generate_torchtune.py"
    done = subprocess.run([tune_python, script, "--check"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_every_patch_for_cpus_is_still_needed(tune_python: Path) -> None:
    script = Path(__file__).with_name("cpu_cases.py")
    done = subprocess.run([tune_python, script], check=True, capture_output=True, text=True)
    failed = json.loads(done.stdout.splitlines()[-1])
    needed = {"nccl_group", "memory_stats", "device_cache"}
    assert failed.keys() == needed, f"take out of stoker/frameworks/torchtune/cpu.py what is not needed: {failed}"


@pytest.mark.full
def test_a_run_of_the_sdks_builtin_trainer_runs_here_too(tune: TuneJob) -> None:
    runtime = yaml.safe_load(tune.runtime.read_text())
    # Trainer reads the model from the runtime's name.
    tune.runtime_name = runtime["metadata"]["name"] = "torchtune-llama3.2-1b"
    tune.runtime.write_text(yaml.safe_dump(runtime))
    adapter = ["model.lora_attn_modules=[q_proj,v_proj]", "model.lora_rank=4"]
    env = {"STOKER_ARG_MODEL___COMPONENT_": LORA}
    ended = tune.run("epochs=1", "dtype=fp32", *adapter, command=["tune", "run"], processes=2, env=env)
    assert ended.code == 0, ended.output
    manifest = tune.manifest()
    assert (manifest["framework"], manifest["method"], manifest["world_size"]) == ("torchtune", "lora", 2)
