"""Whole runs with torchrun and TRL: they finish, stop, resume, survive kills, and end with the documented codes."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from runner.tests.integration.jobs import LocalJob, leftovers
from runner.tests.report.hostile import read_page, titles
from runner.tests.status_server import StatusServer
from runner.tests.webhook_receiver import Receiver, receiving

LONG = ("--max_steps", "150", "--save_steps", "20")
STOPPED_EARLY = ("--max_steps", "80", "--save_steps", "10")
# The most memory `stoker run` may take while others train.
RUNNER_BYTES = 40 * 2**20


def own_bytes(pid: int) -> int:
    """Return the memory of a process, its share of what it shares with others included (PSS)."""
    (kibibytes,) = re.findall(r"^Pss:\s*(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return 1024 * int(kibibytes)


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    """Whom the finished run told that it ended."""
    with receiving() as server:
        yield server


@pytest.fixture(scope="module")
def finished(
    trainer_python: Path,
    inputs: Path,
    tmp_path_factory: pytest.TempPathFactory,
    status_server: StatusServer,
    receiver: Receiver,
) -> LocalJob:
    """A LoRA run on two nodes that has finished."""
    job = LocalJob(trainer_python, inputs, tmp_path_factory.mktemp("finished"))
    url = f"http://127.0.0.1:{status_server.server_port}/"
    ended = job.run(nodes=2, env={"KUBEFLOW_TRAINER_SERVER_URL": url, "STOKER_WEBHOOK": receiver.address})
    assert ended.code == 0, ended.output
    assert "trl.scripts.sft on node 1 of 2 × 1 processes, world size 2, attempt 0" in ended.output
    assert leftovers(job.folder) == []
    return job


def test_two_nodes_train_as_one_world(finished: LocalJob) -> None:
    manifest = finished.manifest()
    assert (manifest["status"], manifest["world_size"], manifest["nodes"]) == ("finished", 2, 2)
    assert (manifest["steps"], manifest["max_steps"], manifest["resumed_from"]) == (20, 20, None)
    assert manifest["adapter"]["rank"] == 8
    assert manifest["versions"].keys() >= {"torch", "transformers", "trl", "peft"}
    assert "adapter_model.safetensors" in {file["path"] for file in manifest["files"]}
    assert manifest["metrics"]["loss"] > 0


def test_a_run_keeps_the_metrics_of_its_steps(finished: LocalJob) -> None:
    lines = finished.metrics()
    assert [line["step"] for line in lines] == [5, 10, 15, 20]
    shared = {"loss", "learning_rate", "grad_norm", "tokens_per_second", "peak_memory_gib"}
    assert all(shared <= line.keys() for line in lines)
    assert all(line["loss"] > 0 and line["tokens_per_second"] > 0 and line["peak_memory_gib"] > 0 for line in lines)
    assert {"metrics.jsonl", "report.html"} <= {file["path"] for file in finished.manifest()["files"]}
    page, _ = read_page((finished.output / "report.html").read_text())
    assert titles(page)[:5] == ["Loss", "Learning rate", "Gradient norm", "Tokens per second", "Peak memory (GiB)"]


def test_progress_of_a_run_comes_from_one_writer(finished: LocalJob, status_server: StatusServer) -> None:
    posts = [body["trainerStatus"] for _, body in status_server.posts]
    assert posts[-1]["progressPercentage"] == 100
    for post in posts:
        assert {"step", "world_size"} <= {metric["name"] for metric in post["metrics"]}
    last = {metric["name"]: metric["value"] for metric in posts[-1]["metrics"]}
    assert (last["world_size"], last["step"]) == ("2", "20")
    assert "loss" in last


def test_one_node_tells_the_webhook_once_how_a_run_ended(finished: LocalJob, receiver: Receiver) -> None:
    (told,) = receiver.told
    assert (told["event"], told["code"], told["final"]) == ("finished", 0, True)
    assert told["output"] == str(finished.output)


def test_a_finished_run_started_again_is_done_at_once(finished: LocalJob) -> None:
    before = finished.manifest()
    ended = finished.run(nodes=2)
    assert ended.code == 0
    assert ended.output.count("this run has already finished, at step 20") == 2
    assert finished.manifest() == before


def test_another_run_in_the_same_folder_is_refused_with_each_difference(finished: LocalJob) -> None:
    ended = finished.run("--lora_r", "4", nodes=1)
    assert ended.code == 78
    assert "peft.lora_r was 8, now 4 (args); world_size was 2, now 1" in ended.output
    assert "STOKER_RESUME=never" in ended.output
    ended = finished.run("--seed", "7", nodes=2)
    assert ended.code == 78
    assert "belongs to another run: seed was 42, now 7 (args). To resume it, write the former value" in ended.output


@pytest.mark.full
def test_more_steps_go_on_from_where_the_run_had_ended(finished: LocalJob) -> None:
    ended = finished.run("--max_steps", "30", nodes=2)
    assert ended.code == 0, ended.output
    manifest = finished.manifest()
    assert (manifest["steps"], manifest["resumed_from"]) == (30, "checkpoint-20")


def test_a_stop_saves_a_checkpoint_and_the_next_start_goes_on_there(job: LocalJob) -> None:
    process = job.start(*STOPPED_EARLY, nodes=2)
    job.wait_for(job.sealed, process)
    took = {node: own_bytes(pid) for node, pid in job.runners().items()}
    process.send_signal(signal.SIGTERM)
    stopped = job.end(process)
    assert len(took) == 2
    assert all(size < RUNNER_BYTES for size in took.values()), "what the runner takes, the trainer cannot have"
    assert stopped.code == 75, stopped.output
    (step, *_) = job.sealed()
    assert f"stopped at step {step}, checkpoint saved" in stopped.output
    assert "Traceback" not in stopped.output
    assert not (job.output / "stoker.json").exists()
    assert not (job.output / "adapter_model.safetensors").exists(), "nothing is published as final"
    assert json.loads((job.output / "last-error.json").read_text())["checkpoint_step"] == step

    ended = job.run(*STOPPED_EARLY, nodes=2)
    assert ended.code == 0, ended.output
    assert f"resuming from {job.output}/checkpoint-{step}" in ended.output
    manifest = job.manifest()
    assert (manifest["steps"], manifest["resumed_from"]) == (80, f"checkpoint-{step}")


@pytest.mark.full
def test_a_killed_rank_restarts_the_job_which_finishes(job: LocalJob) -> None:
    process = job.start(*LONG, processes=2)
    job.wait_for(job.sealed, process)
    os.kill(job.ranks()[1], signal.SIGKILL)
    ended = job.end(process)
    assert ended.code == 0, ended.output
    assert "rank 1 was killed (SIGKILL)" in ended.output
    assert "attempt 0: 1 nodes ended with 70" in ended.output
    manifest = job.manifest()
    assert (manifest["steps"], manifest["world_size"], manifest["attempt"]) == (150, 2, 1)
    assert manifest["resumed_from"] is not None


@pytest.mark.full
def test_a_killed_node_restarts_the_job_which_finishes(job: LocalJob) -> None:
    process = job.start(*LONG, nodes=2)
    job.wait_for(job.sealed, process)
    os.kill(job.runners()[1], signal.SIGKILL)
    ended = job.end(process)
    assert ended.code == 0, ended.output
    manifest = job.manifest()
    assert (manifest["steps"], manifest["attempt"]) == (150, 1)
    assert manifest["resumed_from"] is not None


@pytest.mark.full
def test_a_rank_that_hangs_is_named_and_the_job_restarted(job: LocalJob) -> None:
    process = job.start(*LONG, nodes=2, env={"STOKER_HANG_TIMEOUT_SECONDS": "8"})
    job.wait_for(job.sealed, process)
    os.kill(job.ranks()[1], signal.SIGSTOP)
    ended = job.end(process)
    assert ended.code == 0, ended.output
    hangs = re.findall(
        r"\[node-\d\] \[stoker\] exit 70: .*no sign of life from (?:rank|ranks 0,) 1 after step \d+ ", ended.output
    )
    assert len(hangs) == 2, ended.output
    # The rank that could answer shows that it waited for the other, in a collective or in backward, whose hooks reduce.
    stacks = ended.output.partition("[node-0] [stoker] stacks of rank 0 (")[2]
    waits = r"distributed_c10d\.py|_distributed_broadcast_coalesced|_engine_run_backward"
    assert re.search(rf"\[node-0\]   File .*({waits})", stacks), ended.output
    assert job.manifest()["attempt"] == 1


@pytest.mark.full
def test_layers_that_the_model_lacks_are_refused_at_once(job: LocalJob) -> None:
    ended = job.run("--lora_target_modules", "nowhere")
    assert ended.code == 64, ended.output
    assert "nowhere" in ended.output
    assert "attempt 1" not in ended.output
    assert "Traceback" not in ended.output


@pytest.mark.full
def test_a_crash_that_repeats_itself_is_not_tried_a_third_time(job: LocalJob) -> None:
    # Rows of tokens that the model does not have.
    data = job.folder / "tokens"
    data.mkdir()
    (data / "train.jsonl").write_text('{"input_ids": [1, 2, 9999999]}\n' * 16)
    ended = job.run(env={"STOKER_ARG_DATASET_NAME": str(data)})
    assert ended.code == 78, ended.output
    assert "attempt 0: 1 nodes ended with 70 (the trainer crashed)" in ended.output
    assert "crashed twice without a new checkpoint between the crashes (newest: step 0)" in ended.output
    assert "attempt 2" not in ended.output


@pytest.mark.full
def test_a_loss_that_is_no_number_ends_the_run(job: LocalJob) -> None:
    ended = job.run("--learning_rate", "1e18", "--max_grad_norm", "0", "--logging_steps", "50", "--max_steps", "4")
    assert ended.code == 78, ended.output
    assert re.search(r"the loss is (nan|inf) at step \d+: lower the learning rate", ended.output)
    assert not (job.output / "stoker.json").exists()


@pytest.mark.parametrize(
    ("args", "env", "code", "message"),
    [
        (["--max_stps", "3"], {}, 64, "did you mean --max_steps?"),
        ([], {"STOKER_ARG_MODEL_NAME_OR_PATH": "/missing"}, 66, "the model /missing does not exist: put it there"),
        ([], {"STOKER_ARG_DATASET_NAME": "/missing"}, 66, "the data set /missing does not exist: put it there"),
    ],
    ids=["an unknown flag", "a missing model", "missing data"],
)
def test_a_users_error_ends_the_job_at_once(
    job: LocalJob, args: list[str], env: dict[str, str], code: int, message: str
) -> None:
    ended = job.run(*args, nodes=2, env=env)
    assert ended.code == code, ended.output
    assert message in ended.output
    assert "attempt 1" not in ended.output
    assert "Traceback" not in ended.output


def test_what_only_the_trainers_classes_refuse_ends_before_any_rank_waits(job: LocalJob) -> None:
    # Planning does not read the file, and transformers would ignore the key.
    config = job.folder / "fsdp.json"
    config.write_text('{"reshard_after_foward": false}')
    ended = job.run("--fsdp", "--fsdp_config", str(config), nodes=2)
    assert ended.code == 64, ended.output
    assert "--fsdp_config has the unknown key reshard_after_foward: did you mean reshard_after_forward?" in ended.output
    assert "attempt 1" not in ended.output
    assert "starting at step 0" not in ended.output
    assert "Traceback" not in ended.output


@pytest.mark.full
@pytest.mark.parametrize(
    ("args", "env", "code", "message"),
    [
        (
            ["--optim", "sgd", "--optim_args", "momentum=-1"],
            {},
            64,
            "refuses its configuration: Invalid momentum value",
        ),
        (["--model_init_kwargs", '{"no_such_option": 1}'], {}, 64, "no_such_option"),
        (["--tf32", "true"], {}, 78, "cannot use its configuration here: --tf32 requires Ampere"),
        ([], {"STOKER_ARG_MODEL_NAME_OR_PATH": "nobody/nothing"}, 66, "model or data not found"),
        (["--dataset_train_split", "nowhere"], {}, 65, "the data has no split 'nowhere'"),
    ],
    ids=[
        "an optimizer",
        "an option that the model has not",
        "a GPU",
        "a model that no Hub has",
        "a split that the data has not",
    ],
)
def test_what_only_the_trainer_finds_is_told_apart_too(
    job: LocalJob, args: list[str], env: dict[str, str], code: int, message: str
) -> None:
    ended = job.run(*args, env=env)
    assert ended.code == code, ended.output
    assert message in ended.output
    assert "attempt 1" not in ended.output
