"""Asynchronous GRPO trains what samplers wrote: as TRL trains it, on one rank and two, and never what others wrote."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from runner.tests.integration.jobs import LocalJob, leftovers
from runner.tests.report.hostile import read_page, titles
from runner.tests.samples import check
from runner.tests.status_server import StatusServer

from builders import container
from stoker.contract.variables import GRACE_PERIOD
from stoker.contract.weights import read_header

ROOT = Path(__file__).parents[3]
# How often the guard looks in these runs.
EVERY = 6


def result_of(case: str, python: Path, inputs: Path, folder: Path, ranks: int = 1) -> dict[str, Any]:
    """Return what a case found in an environment with the trainers."""
    script = Path(__file__).with_name("grpo_async_cases.py")
    group = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    done = subprocess.run(
        [str(python), *group, str(script), case, str(inputs / "model"), str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def same(trainer_python: Path, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What TRL's trainer and ours made of the same samples."""
    return result_of("same", trainer_python, inputs, tmp_path_factory.mktemp("same"))


@pytest.fixture(scope="module")
def faults(trainer_python: Path, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How runs ended whose samplers were faulty."""
    return result_of("faults", trainer_python, inputs, tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def usual_faults(trainer_python: Path, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same, with a guard that looks as often as it does by default."""
    return result_of("faults, as rarely as runs look", trainer_python, inputs, tmp_path_factory.mktemp("usual"))


@pytest.fixture(scope="module")
def pair(trainer_python: Path, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two ranks did: train, evaluate, stop while they waited, resume."""
    return result_of("pair", trainer_python, inputs, tmp_path_factory.mktemp("pair"), ranks=2)


@pytest.mark.parametrize(
    "case", ["uncorrected", "decoupled", "behaviour", "dr_grpo", "two rewards", "through the engine"]
)
def test_without_staleness_it_is_trls_trainer_bit_for_bit(same: dict[str, Any], case: str) -> None:
    theirs, ours = (same[case]["losses"][index] for index in (0, 1))
    assert theirs == ours
    assert same[case]["theirs"] == same[case]["ours"]


def test_micro_batches_are_cut_to_their_longest_row_without_changing_the_loss(same: dict[str, Any]) -> None:
    theirs, ours = same["trimmed"]["losses"]
    assert ours == pytest.approx(theirs, abs=1e-6)


@pytest.mark.full
def test_two_ranks_are_trls_trainer_bit_for_bit(pair: dict[str, Any]) -> None:
    assert pair["theirs"] == pair["ours"]


def test_two_ranks_stop_while_they_wait_and_resume_where_they_were(pair: dict[str, Any]) -> None:
    assert pair["stopped"] == "stopped at step 3, checkpoint saved"
    assert "rollouts.json" in pair["seal"]
    assert (pair["state"]["step"], pair["state"]["frontier"]) == (3, 6)
    assert pair["step"] == 5
    assert len({*pair["weights"]}) == 1
    # Each step once, in order: the resumed attempt writes no step again.
    assert [line["step"] for line in pair["metrics"]] == [1, 2, 3, 4, 5]
    assert [line["eval_version"] for line in pair["evaluated"]] == [2, 4, 5]
    # The batch of two ranks has four rows, one of them twice.
    assert {line["eval_rows"] for line in pair["evaluated"]} == {3}


def test_two_ranks_that_lose_their_samplers_keep_the_last_step(pair: dict[str, Any]) -> None:
    assert pair["lost"] == ["STOPPED: no sampler is there"] * 2
    assert pair["kept"] == [3, 2]
    assert pair["lost with the volume"] == pair["lost"]


def test_a_failure_of_rank_0_ends_every_rank_with_the_same_code(pair: dict[str, Any]) -> None:
    assert pair["full disk"] == ["CONFIG", "CONFIG"]


def test_every_metric_of_every_step_and_a_few_texts_are_kept(pair: dict[str, Any]) -> None:
    losses = {"loss", "grad_norm", "learning_rate", "entropy", "clip_ratio/region_mean"}
    seen = losses | {"reward", "guard/error", "rollout/flat_groups"}
    for line in pair["metrics"]:
        assert seen <= {*line}
        assert line["staleness/max"] <= 1
        assert sum(line["staleness/histogram"]) == 8
        assert sum(line["sampling/ratio/histogram"]) == 8 * 6
    assert {sample["step"] for sample in pair["samples"]} >= {0, 1, 2, 3, 4}


def test_flags_give_the_arithmetic_of_kubetorchs_example(trainer_python: Path, inputs: Path, tmp_path: Path) -> None:
    found = result_of("kubetorch", trainer_python, inputs, tmp_path)
    assert found["correction"] == "none"
    assert found["moved"] > 1e-3
    # TRL adds 1e-4 to the standard deviation, the example 1e-8.
    assert found["difference"] < 1e-3 * found["moved"]


def test_what_is_written_ahead_is_trained_once_within_the_bound(
    trainer_python: Path, inputs: Path, tmp_path: Path
) -> None:
    found = result_of("ahead", trainer_python, inputs, tmp_path)
    for mode, run in found.items():
        assert [line["step"] for line in run["metrics"]] == [1, 2, 3, 4, 5, 6], mode
        assert max(line["staleness/max"] for line in run["metrics"]) <= 3, mode
        assert max(line["guard/error"] for line in run["metrics"] if line["guard/error"] is not None) < 1e-4, mode
        rows = [tuple(row) for row in run["rows"]]
        assert len(rows) == len({*rows}), mode
    # One forward pass less, but the same metric of how far trainer and samplers are apart.
    assert "sampling/importance_sampling_ratio/mean" in found["decoupled"]["metrics"][-1]
    assert "sampling/importance_sampling_ratio/mean" not in found["behaviour"]["metrics"][-1]
    assert "cispo_clip_ratio" in found["behaviour"]["metrics"][-1]
    assert all(line["sampling/ratio/mean"] for line in found["behaviour"]["metrics"])


def test_samplers_that_serve_what_they_name_are_no_fault(faults: dict[str, Any]) -> None:
    clean = faults["none"]
    assert (clean["step"], clean["ended"], clean["stopped"]) == (20, None, True)
    assert max(clean["staleness"]) == 2
    assert max(error for error in clean["error"] if error is not None) < 1e-4


FAULTS = pytest.mark.parametrize(
    ("case", "code", "words"),
    [
        ("no effect", 70, "serves the base model, without an adapter"),
        ("stale", 70, "serves version"),
        ("swapped", 70, "serves version"),
        ("other base", 78, "serves no version of this run"),
        ("temperature", 78, "serves no version of this run"),
    ],
)


@FAULTS
def test_samplers_that_serve_something_else_end_the_run(
    faults: dict[str, Any], case: str, code: int, words: str
) -> None:
    _ends_in_time(faults[case], EVERY, code, words)


@pytest.mark.full
@FAULTS
def test_they_end_it_within_sixteen_steps_by_default(
    usual_faults: dict[str, Any], case: str, code: int, words: str
) -> None:
    _ends_in_time(usual_faults[case], 16, code, words)


@pytest.mark.full
def test_one_faulty_sampler_of_four_ends_the_run_within_sixteen_steps(
    trainer_python: Path, inputs: Path, tmp_path: Path
) -> None:
    found = result_of("one of four", trainer_python, inputs, tmp_path)
    clean = found.pop("none")
    assert (clean["step"], clean["ended"]) == (40, None)
    for name, run in found.items():
        _ends_in_time(run, 16, 70, f": {name.partition(',')[0]} serves version")


def _ends_in_time(found: dict[str, Any], every: int, code: int, words: str) -> None:
    assert found["ended"] is not None, found
    assert found["ended"][0] == code
    assert words in found["ended"][1]
    assert found["stopped"], "the rollouts ended with the run"
    # From the first version that differs by more than the noise, the guard needs no more steps than it promises. What
    # a version wrote is trained two steps later.
    noise = found["noise"][0] or 0.0
    apart = [int(version) for version, difference in found["differences"].items() if difference > noise]
    first = min(apart) + 2 if apart else 0
    assert found["step"] <= first + every


@pytest.mark.full
def test_two_hundred_clean_steps_and_two_thousand_replayed_ones_are_no_fault(
    trainer_python: Path, inputs: Path, tmp_path: Path
) -> None:
    found = result_of("clean", trainer_python, inputs, tmp_path)
    assert (found["step"], found["rounds"], found["found"]) == (200, 200, [])
    assert found["error"] > 1e-4, "the samplers' noise was seen"


KEY = "a-key-that-only-this-test-has"
# What a user who writes a reward puts on a volume, with its folder in PYTHONPATH.
MY_REWARDS = '''
def short(completions, **kwargs):
    return [-len(completion) / 10 for completion in completions]

def solved(completions, solution):
    return [float(text == right) for text, right in zip(completions, solution)]

def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b
'''


@dataclass(frozen=True, slots=True)
class Sampler:
    """A sampler that runs.

    Attributes:
        address: where it listens.
        process: its process.
    """

    address: str
    process: subprocess.Popen[str]


@contextmanager
def sampling(job: LocalJob) -> Iterator[Sampler]:
    """Have a sampler that serves what the job publishes."""
    script = Path(__file__).with_name("tiny_sampler.py")
    process = subprocess.Popen(
        [str(job.python), str(script), str(job.inputs / "model"), str(job.workspace / "adapters")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "STOKER_SAMPLERS_API_KEY": KEY},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield Sampler(f"http://127.0.0.1:{int(process.stdout.readline())}", process)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def sampler(job: LocalJob) -> Iterator[Sampler]:
    """A sampler that serves what the job publishes."""
    with sampling(job) as found:
        yield found


def told(job: LocalJob) -> dict[str, str]:
    """Return the variables of a job, whose reward is in a module of the user."""
    (job.folder / "my_rewards.py").write_text(MY_REWARDS)
    data = job.folder / "prompts"
    if not data.exists():
        shutil.copytree(job.inputs / "prompts", data)
        # No sampler takes the second one.
        (data / "test.jsonl").write_text("".join(json.dumps({"prompt": "1+" * size}) + "\n" for size in (1, 200)))
    return {
        "STOKER_METHOD": "grpo_async",
        "STOKER_ARG_DATASET_NAME": str(data),
        "PYTHONPATH": str(job.folder),
        "STOKER_SAMPLERS_API_KEY": KEY,
    }


def another_model(job: LocalJob) -> Path:
    """Return a model with the layers of the job's and slightly different weights."""
    folder = shutil.copytree(job.inputs / "model", job.folder / "another", dirs_exist_ok=True)
    (path,) = folder.glob("*.safetensors")
    start, content = 8 + len(read_header(path)), path.read_bytes()
    path.write_bytes(content[:start] + bytes(byte ^ 1 for byte in content[start:]))
    return folder


def args(sampler: str, *more: str) -> list[str]:
    """Return the trainer's arguments for a short run."""
    short = ("--num_generations", "4", "--max_completion_length", "6", "--max_staleness", "2", "--guard_every", "2")
    return [*short, "--samplers", sampler, "--reward_funcs", "my_rewards:short", *more]


def metrics(output: Path) -> list[dict[str, Any]]:
    """Return the metrics of every step."""
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.full
def test_a_job_trains_with_its_samplers_to_the_end_and_resumes(
    job: LocalJob, sampler: Sampler, status_server: StatusServer
) -> None:
    url = {"KUBEFLOW_TRAINER_SERVER_URL": f"http://127.0.0.1:{status_server.server_port}/"}
    ended = job.run(*args(sampler.address, "--max_steps", "3"), env={**told(job), **url})
    assert ended.code == 0, ended.output
    # The status of the TrainJob.
    (*_, last) = [body["trainerStatus"] for _, body in status_server.posts]
    shown = {metric["name"]: float(metric["value"]) for metric in last["metrics"]}
    assert (shown["step"], shown["samplers/ready"], shown["rollout/waiting"]) == (3, 1, 0)
    assert shown["reward"] < 0
    assert {"staleness/mean", "staleness/max", "rollout/wait_seconds", "rollout/idle_seconds"} <= {*shown}
    evaluating = ("--eval_strategy", "steps", "--eval_steps", "5", "--dataset_test_split", "train")
    more = ("--max_steps", "5", "--per_device_eval_batch_size", "50", *evaluating)
    ended = job.run(*args(sampler.address, *more), env=told(job))
    assert ended.code == 0, ended.output
    manifest = job.manifest()
    # One greedy answer to each of the rows, in two batches, by the version of the last step.
    assert (manifest["metrics"]["eval_version"], manifest["metrics"]["eval_rows"]) == (5, 100)
    assert manifest["metrics"]["eval_reward"] < 0
    assert (manifest["status"], manifest["steps"], manifest["fingerprint"]["method"]) == ("finished", 5, "grpo_async")
    # What the finished run of three steps left was set aside, and its metrics are gone on with.
    assert [line["step"] for line in metrics(job.output / "earlier-output-1")] == [1, 2, 3]
    lines = metrics(job.output)
    assert lines[4]["eval_reward"] < 0
    for line in lines:
        check(line, "metrics-v1")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert {line["samplers/ready"] for line in lines} == {1.0}
    assert max(line["staleness/max"] for line in lines) <= 2
    assert all(line["rewards/short/mean"] < 0 for line in lines)
    page, _ = read_page((job.output / "report.html").read_text())
    pictures = {*titles(page)}
    assert {"Reward", "Staleness of samples (steps)", "Ratio of probabilities, trainer to samplers"} <= pictures, (
        pictures
    )
    assert "Samples" in {"".join(found.itertext()) for found in page.iter("h2")}
    # What the run published is gone with it.
    assert [*(job.workspace / "adapters").glob("*/[0-9]*")] == []
    # The key is known to nobody who reads what the run says and leaves.
    assert KEY not in ended.output
    assert [path for path in job.workspace.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()] == []


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run came to.

    Attributes:
        weights: the file with them.
        steps: reward, loss and norm of the gradient of each step.
    """

    weights: bytes
    steps: list[tuple[float, ...]]


def trained(jobs: Mapping[int, LocalJob]) -> dict[int, Trained]:
    """Run jobs at once, each with a sampler of its own, without staleness; by their seeds."""
    with ExitStack() as stack:
        started = {}
        for seed, job in jobs.items():
            address = stack.enter_context(sampling(job)).address
            own = ("--max_staleness", "0", "--max_steps", "4", "--seed", str(seed))
            started[seed] = job.start(*args(address, *own), env=told(job))
        ended = {seed: jobs[seed].end(process) for seed, process in started.items()}
    assert {one.code for one in ended.values()} == {0}, "\n".join(one.output for one in ended.values())
    return {
        seed: Trained(
            (job.output / "adapter_model.safetensors").read_bytes(),
            [(line["reward"], line["loss"], line["grad_norm"]) for line in metrics(job.output)],
        )
        for seed, job in jobs.items()
    }


@pytest.mark.full
def test_two_runs_at_once_are_their_solo_runs_bit_for_bit(trainer_python: Path, inputs: Path, tmp_path: Path) -> None:
    def run(name: str, *seeds: int) -> dict[int, Trained]:
        folders = {seed: tmp_path / f"{name}-{seed}" for seed in seeds}
        for folder in folders.values():
            folder.mkdir()
        return trained({seed: LocalJob(trainer_python, inputs, folder) for seed, folder in folders.items()})

    together = run("together", 1, 2)
    for seed, one in together.items():
        assert len(one.steps) == 4
        (alone,) = run("alone", seed).values()
        assert alone.steps == one.steps
        assert alone.weights == one.weights
    # Equal bits say something only where other seeds give others.
    assert together[1].steps != together[2].steps
    assert together[1].weights != together[2].weights
    assert leftovers(tmp_path) == []


@pytest.mark.full
def test_a_wrong_key_ends_the_run_before_its_first_step(job: LocalJob, sampler: Sampler) -> None:
    ended = job.run(*args(sampler.address), env={**told(job), "STOKER_SAMPLERS_API_KEY": "another-key"})
    assert ended.code == 78, ended.output
    assert "it refuses the key in STOKER_SAMPLERS_API_KEY (401: The API key is missing or wrong.)" in ended.output
    assert "another-key" not in ended.output


@pytest.mark.full
def test_a_file_that_chooses_version_1_of_fsdp_is_refused_before_any_rank_waits(job: LocalJob) -> None:
    # Planning does not read the file.
    config = job.folder / "fsdp.json"
    config.write_text('{"version": 1}')
    ended = job.run(*args("http://127.0.0.1:9", "--fsdp", "--fsdp_config", str(config)), nodes=2, env=told(job))
    assert ended.code == 64, ended.output
    assert 'version 1 of FSDP has no place in grpo_async: write "version": 2 in --fsdp_config' in ended.output
    assert "attempt 1" not in ended.output


@pytest.mark.full
def test_two_ranks_that_share_the_model_publish_and_guard_it_whole(job: LocalJob, sampler: Sampler) -> None:
    env = {**told(job), "STOKER_SHARDING": "full"}
    ended = job.run(*args(sampler.address, "--max_steps", "4"), nodes=2, env=env)
    assert ended.code == 0, ended.output
    lines = metrics(job.output)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    # The guard scored what the samplers wrote with adapters that were put together from both ranks.
    assert max(line["guard/error"] for line in lines) < 1e-4
    assert max(line["publish/version"] for line in lines if "publish/version" in line) >= 1


def grace_seconds(job: LocalJob) -> float:
    """Return how long the runtime of a job lets a node end."""
    told = {one["name"]: one.get("value") for one in container(yaml.safe_load(job.runtime.read_text()))["env"]}
    return float(told[GRACE_PERIOD])


@pytest.mark.full
def test_a_job_whose_samplers_are_gone_says_so_stops_within_the_grace_period_and_goes_on(
    job: LocalJob, sampler: Sampler, status_server: StatusServer
) -> None:
    url = {"KUBEFLOW_TRAINER_SERVER_URL": f"http://127.0.0.1:{status_server.server_port}/"}
    process = job.start(*args(sampler.address, "--max_steps", "1000"), env={**told(job), **url})
    job.wait_for(lambda: (job.output / "metrics.jsonl").exists() and len(metrics(job.output)) > 1, process)
    sampler.process.kill()
    sampler.process.wait()
    # All that was written is trained, and then nothing comes.
    done = -1
    while done != (done := len(metrics(job.output))):
        time.sleep(3)

    def waited() -> float:
        posts = [body["trainerStatus"].get("metrics") or [] for _, body in status_server.posts]
        shown = {metric["name"]: float(metric["value"]) for metric in (posts[-1] if posts else [])}
        return shown.get("rollout/waiting", 0.0)

    job.wait_for(lambda: waited() > 5, process)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    ended = job.end(process)
    assert time.monotonic() - began < grace_seconds(job)
    assert ended.code == 75, ended.output
    step = job.sealed()[0]
    assert step == len(metrics(job.output))
    state = json.loads((job.output / f"checkpoint-{step}" / "rollouts.json").read_text())
    assert state["step"] == step


@pytest.mark.full
def test_a_job_that_loses_its_samplers_for_good_ends_with_75_and_keeps_every_step(
    job: LocalJob, sampler: Sampler
) -> None:
    asked = ("--max_steps", "1000", "--fleet_wait_seconds", "3")
    process = job.start(*args(sampler.address, *asked), env=told(job))
    job.wait_for(lambda: (job.output / "metrics.jsonl").exists() and len(metrics(job.output)) > 1, process)
    sampler.process.kill()
    sampler.process.wait()
    last = job.output / "last-error.json"
    error = job.wait_for(lambda: last.exists() and json.loads(last.read_text()), process)
    process.send_signal(signal.SIGTERM)  # the next attempt waits for samplers too
    job.end(process)
    assert (error["code"], "for 3 s: " in error["message"]) == (75, True), error
    step = job.sealed()[0]
    assert step == len(metrics(job.output)) > 1
    assert json.loads((job.output / f"checkpoint-{step}" / "rollouts.json").read_text())["step"] == step


@pytest.mark.full
@pytest.mark.parametrize(
    ("code", "asked", "said"),
    [
        # The samplers take 128 tokens, see `tiny_sampler.py`.
        (78, ("--max_completion_length", "126"), r"it takes 128 tokens, but the longest prompt \(row \d+ of the data"),
        (78, ("--eval_strategy", "steps"), r"128 tokens, but the longest prompt \(row 1 of the evaluation data\) has"),
        (78, ("--max_staleness", "8"), "it has room for 8 adapters at a time, but the run needs 10: raise lora.max"),
        (78, ("--lora_r", "32"), "it takes adapters up to rank 16, but the run's have 32: raise lora.maxRank"),
        (
            78,
            ("--model_name_or_path", "{another}"),
            "it serves another base model .base: its weights have other values.: give trainer and samplers the same",
        ),
        (65, ("--tools", "my_rewards:add"), "holds text, which cannot show tools: write prompts as"),
        (
            78,
            ("--tools", "my_rewards:add", "--dataset_name", "{inputs}/questions"),
            "the chat template of .* cannot show tool calls: use an instruction-tuned",
        ),
        (64, ("--reward_funcs", "my_rewards:long"), "my_rewards has no long"),
        (
            65,
            ("--eval_strategy", "steps", "--reward_funcs", "my_rewards:solved"),
            "my_rewards:solved needs the column solution, but the evaluation data only has values in prompt: add",
        ),
        (69, ("--reward_funcs", "http://127.0.0.1:9", "--reward_seconds", "1"), "the reward model at http://127.0.0.1"),
    ],
    ids=[
        "long prompt",
        "long prompt to evaluate",
        "max_loras",
        "rank",
        "another base model",
        "text with tools",
        "template",
        "reward",
        "column to evaluate",
        "reward model",
    ],
)
def test_what_cannot_work_is_one_message_before_the_first_step(
    job: LocalJob, sampler: Sampler, code: int, asked: tuple[str, ...], said: str
) -> None:
    asked = tuple(word.format(inputs=job.inputs, another=another_model(job)) for word in asked)
    process = job.start(*args(sampler.address, "--max_steps", "3", *asked), env=told(job))
    last = job.output / "last-error.json"
    # What is retried is tried again at once, and may end in another way.
    error = job.wait_for(lambda: last.exists() and json.loads(last.read_text()), process)
    process.send_signal(signal.SIGTERM)
    job.end(process)
    assert error["code"] == code, error
    assert re.search(said, error["message"]), error
    assert len(error["message"].splitlines()) == 1
    steps = job.output / "metrics.jsonl"
    assert not steps.exists() or not steps.read_text(), "no step was taken"


@pytest.mark.full
def test_samplers_that_never_come_end_the_attempt_with_75_and_their_names(job: LocalJob) -> None:
    process = job.start(*args("http://127.0.0.1:9", "--max_steps", "3", "--fleet_wait_seconds", "3"), env=told(job))
    # Such an attempt is followed by another, as often as it happens.
    last = job.output / "last-error.json"
    error = job.wait_for(lambda: last.exists() and json.loads(last.read_text()), process)
    process.send_signal(signal.SIGTERM)
    job.end(process)
    assert error["code"] == 75
    assert "no sampler was ready for 3 s: 127.0.0.1:9" in error["message"]


@pytest.fixture(scope="module")
def whole(trainer_python: Path, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What runs did that train all weights."""
    return result_of("whole", trainer_python, inputs, tmp_path_factory.mktemp("whole"))


def test_all_weights_are_trained_on_what_their_versions_wrote(whole: dict[str, Any]) -> None:
    lines = whole["metrics"]
    # A version that is left out takes none of the way with it.
    assert whole["ways"] == sorted(whole["ways"])
    assert whole["ways"][0] == 0
    assert whole["ways"][-1] > 2e-3, "more than one step's"
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert max(line["staleness/max"] for line in lines) <= 3
    errors = [line["guard/error"] for line in lines if line["guard/error"] is not None]
    assert errors
    assert max(errors) < 1e-4


@pytest.mark.parametrize(
    ("case", "version"),
    [("no change", 4), ("stale", 4), ("temperature", 0)],
)
def test_samplers_without_the_newest_weights_end_the_run(whole: dict[str, Any], case: str, version: int) -> None:
    assert whole["none"]["ended"] is None
    assert len({error for error in whole["none"]["errors"] if error is not None}) >= 3
    found = whole[case]
    assert found["ended"] is not None, found
    assert f"samplers do not serve version {version}: " in found["ended"][1]
    assert found["step"] <= 2 + EVERY


@pytest.mark.full
def test_two_ranks_that_share_all_weights_publish_and_guard_them_whole(
    trainer_python: Path, inputs: Path, tmp_path: Path
) -> None:
    shared = result_of("shared", trainer_python, inputs, tmp_path, ranks=2)
    lines = shared["metrics"]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    errors = [line["guard/error"] for line in lines if line["guard/error"] is not None]
    assert errors
    assert max(errors) < 1e-4
    # Samplers load them by the names of a checkpoint.
    assert sorted(shared["names"]) == sorted(shared["of the model"])
    # In bf16, what is compared is computed as finely as without sharding.
    assert shared["type in bf16"] == "torch.float32"


@pytest.mark.full
def test_all_weights_are_published_by_the_names_of_a_checkpoint(
    trainer_python: Path, inputs: Path, tmp_path: Path
) -> None:
    found = result_of("names", trainer_python, inputs, tmp_path)
    assert {*found} == {"llama", "mixtral", "qwen3_moe"}
    for family, names in found.items():
        assert names["published"] == names["saved"], family


@pytest.mark.full
def test_the_guard_asks_for_what_one_version_wrote_where_no_answer_is_of_one(
    trainer_python: Path, inputs: Path, tmp_path: Path
) -> None:
    runs = result_of("fast", trainer_python, inputs, tmp_path)
    assert runs["none"]["ended"] is None
    assert len(set(runs["none"]["asked"])) >= 3, "it looked again and again"
    assert max(error for error in runs["none"]["errors"] if error is not None) < 1e-4
    assert runs["temperature"]["ended"][0] == 78
    assert runs["temperature"]["step"] <= 2 + EVERY
