"""`stoker validate` says on a laptop what the cluster and each pod would say."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import (
    RUNTIME,
    RUNTIME_FILE,
    as_step,
    container,
    gpu_runtime,
    kept,
    paths,
    pod_of,
    replicated_jobs,
    trainjob,
    with_initializer,
    with_initializers,
)
from stoker.cluster.pods import job_of
from stoker.cluster.validate import Validation, validate_one
from stoker.commands.main import main
from stoker.contract.exits import ExitCode
from stoker.plan.facts import Facts
from stoker.plan.world import resolve_world

ROOT = Path(__file__).parents[3]


def invoke(*arguments: str | Path, stdin: str | None = None, env: Mapping[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["validate", *map(str, arguments)], input=stdin, env=env)


# A runtime with a workspace that may hold model and data.
KEPT = kept(RUNTIME)


def of(spec: Mapping[str, Any] | None = None, runtime: Mapping[str, Any] = KEPT, **trainer: Any) -> Validation:
    return validate_one(trainjob(spec=spec, **trainer), runtime)


def said(verdict: Validation) -> list[str]:
    """Return what a verdict says besides what was not checked."""
    return [line for line in str(verdict).splitlines() if "note: not checked: " not in line]


@pytest.fixture
def kept_file(tmp_path: Path) -> Path:
    path = tmp_path / "kept.yaml"
    path.write_text(yaml.safe_dump(KEPT))
    return path


def write(folder: Path, *manifests: Any) -> Path:
    path = folder / "trainjob.yaml"
    path.write_text(yaml.safe_dump_all(manifests))
    return path


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("1e-4", 'is 0.0001: it must be text, write "0.0001"'),
        ("2e5", "is 200000.0: it must be text"),
        ("0o17", 'is 15: it must be text, write "15"'),
        ("y", 'is true: it must be text, write "true"'),
        ("1:30", None),
        ("2026-11-21", None),
        ("2026-11-21T10:00:00Z", None),
        ("=", None),
        ('"1e-4"', None),
    ],
)
def test_a_value_without_quotes_is_what_kubernetes_takes_it_for(
    tmp_path: Path, kept_file: Path, word: str, problem: str | None
) -> None:
    path = tmp_path / "trainjob.yaml"
    path.write_text(yaml.safe_dump(trainjob(env=[{"name": "NOTE", "value": "WORD"}])).replace("WORD", word))
    result = invoke(path, "--runtime", kept_file)
    if problem is None:
        assert result.exit_code == 0, result.output
    else:
        assert (result.exit_code, f"spec.trainer.env[0].value {problem}" in result.output) == (64, True), result.output


def test_a_valid_trainjob_is_said_to_be_so(tmp_path: Path, kept_file: Path) -> None:
    result = invoke(write(tmp_path, trainjob(numNodes=2)), "--runtime", kept_file)
    unchecked = "the model /workspace/model, in the volume initializer; the data set /workspace/dataset, in the volume"
    assert (result.exit_code, result.output) == (
        0,
        f"sft: valid: trl sft on 2 nodes × 1 processes\nsft: note: not checked: {unchecked} initializer\n",
    )


def test_a_program_reads_every_verdict_as_json(tmp_path: Path, kept_file: Path) -> None:
    path = tmp_path / "trainjobs.yaml"
    path.write_text(yaml.safe_dump_all([trainjob("good", numNodes=2), trainjob("bad", args=["--max_step", "3"])]))
    result = invoke(path, "--runtime", kept_file, "--output", "json")
    good, bad = json.loads(result.output)
    assert result.exit_code == bad["code"] == ExitCode.USAGE
    size: dict[str, Any] = {"nodes": 2, "processes_per_node": 1, "samplers": 0, "serves": None}
    about = {"name": "good", "code": 0, "problems": [], "framework": "trl", "method": "sft"}
    assert good == {**about, **size, "notices": good["notices"]}
    assert "not checked: " in good["notices"][0]
    (problem,) = bad["problems"]
    assert problem["code"] == ExitCode.USAGE
    assert "--max_step " in problem["message"]
    assert (bad["method"], bad["nodes"]) == (None, None)


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*/trainjob*.yaml")))
def test_the_examples_are_valid(name: str) -> None:
    for path in (ROOT / "examples").glob(f"*/{name}"):
        runtime = yaml.safe_load(path.read_text())["spec"]["runtimeRef"]["name"]
        result = invoke(path, "--runtime", ROOT / f"examples/runtimes/{runtime}-cpu.yaml")
        assert result.exit_code == 0, result.output


ASYNC = yaml.safe_load((ROOT / "examples/runtimes/trl-grpo-async-cpu.yaml").read_text())


def with_samplers(**changes: Any) -> Validation:
    """Return the verdict on a run with samplers, whose container of vLLM has other resources."""
    runtime = deepcopy(ASYNC)
    (sampler,) = (job for job in replicated_jobs(runtime) if job["name"] == "sampler")
    (vllm,) = sampler["template"]["spec"]["template"]["spec"]["containers"]
    for kind, amounts in changes.items():
        vllm["resources"][kind] |= amounts
    args = ["--model_name_or_path=/opt/tiny", "--dataset_name=org/data", "--reward_funcs=math_answer"]
    return validate_one(trainjob(runtime="trl-grpo-async", args=args, numNodes=2), runtime)


def test_samplers_are_told_and_their_resources_are_checked() -> None:
    assert said(with_samplers())[0].endswith(": valid: trl grpo_async on 2 nodes × 1 processes, beside 2 samplers")
    verdict = with_samplers(requests={"memory": "8Gi"})
    assert verdict.code is ExitCode.USAGE
    (line,) = verdict.errors.splitlines()
    assert line.endswith(
        "the pods of the job sampler (container vllm) request memory 8Gi, which is more than their limit 6Gi, so none "
        "can start: correct them in the runtime"
    )
    (line,) = with_samplers(requests={"nvidia.com/gpu": 1}).errors.splitlines()
    assert "(container vllm) request nvidia.com/gpu, but have no limit of it" in line


def test_a_run_with_samplers_of_its_own_needs_a_runtime_that_has_them() -> None:
    args = ["trl.scripts.grpo_async", "--samplers=role", "--use_peft", "--reward_funcs=math_answer"]
    verdict = of(args=args)
    assert verdict.code is ExitCode.CONFIG
    assert "--samplers role is for a runtime with samplers, and this one sets no STOKER_SAMPLERS" in verdict.errors


@pytest.mark.parametrize(
    ("trainer", "code", "message"),
    [
        ({"args": ["--max_stps", "1"]}, ExitCode.USAGE, "did you mean --max_steps?"),
        ({"args": ["--max_steps", 1]}, ExitCode.USAGE, 'write "1"'),
        ({"env": [{"name": "STOKER_RESUME", "value": "x"}]}, ExitCode.CONFIG, "STOKER_RESUME is 'x'"),
        ({"env": [{"name": "PET_NNODES", "value": "x"}]}, ExitCode.USAGE, "env PET_NNODES is set by Trainer"),
        ({"numNodes": 0}, ExitCode.USAGE, "numNodes of the TrainJob is 0"),
        ({"args": ["trl.scripts.ppo"]}, ExitCode.USAGE, "'ppo' is not a method of trl"),
        (
            {"command": ["torchrun", "--no-python", "-m", "trl.scripts.sft"]},
            ExitCode.USAGE,
            "not support --no-python: drop",
        ),
        (
            {"command": ["torchrun", "--nnodes=3", "-m", "trl.scripts.sft"]},
            ExitCode.CONFIG,
            "the command says --nnodes=3 but the TrainJob says 1",
        ),
    ],
)
def test_what_would_end_the_run_ends_it_here(trainer: Mapping[str, Any], code: ExitCode, message: str) -> None:
    verdict = of(**trainer)
    assert verdict.code is code
    assert message in str(verdict)


def test_a_problem_is_one_line_whatever_it_quotes() -> None:
    verdict = of(env=[{"name": "B", "valueFrom": {"\x1e\x85": {"name": "b"}}}])
    assert verdict.code is ExitCode.USAGE
    assert all(text.strip() for _, text in verdict.problems)


def test_what_ends_the_run_first_says_how_it_ends() -> None:
    unknown = {"name": "STOKER_RESUME", "value": "x"}
    assert of(env=[unknown]).code is ExitCode.CONFIG
    # The cluster takes no such TrainJob, so no pod comes to look at its variable.
    assert of(env=[unknown, {"name": "PET_NNODES", "value": "2"}]).code is ExitCode.USAGE
    # An initializer runs before the nodes, and ends the run.
    fetched = with_initializers(["stoker", "fetch", "model"])
    asked = {"initializer": {"model": {"storageUri": "ftp://host/model"}}}
    verdict = validate_one(trainjob(spec=asked, env=[unknown]), fetched)
    assert [code for code, _ in verdict.problems] == [ExitCode.USAGE, ExitCode.CONFIG]
    assert verdict.code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("command", "args", "method"),
    [
        ((), ["--max_steps", "3"], "sft"),
        (("torchrun", "-m"), ["trl.scripts.dpo", "--max_steps", "3"], "dpo"),
        (("accelerate", "launch", "--num_processes", "2", "-m"), ["trl.scripts.kto"], "kto"),
        (("python", "-m", "torch.distributed.run", "-m"), ["trl.scripts.sft"], "sft"),
        (("trl", "reward"), ["--max_steps", "3"], "reward"),
    ],
)
def test_every_way_to_start_is_planned(command: Sequence[str], args: list[str], method: str) -> None:
    trainer: dict[str, Any] = {"command": [*command]} if command else {}
    verdict = of(numNodes=2, args=args, **trainer)
    assert verdict.plan is not None, verdict
    assert (verdict.code, verdict.plan.method, verdict.plan.world.size) == (ExitCode.FINISHED, method, 2)


def test_a_command_that_is_not_stokers_is_said_to_be_unjudged() -> None:
    verdict = of(command=["python", "train.py"])
    assert (verdict.code, verdict.plan) == (ExitCode.FINISHED, None)
    assert "stoker does not launch the command 'python'" in str(verdict)


def test_devices_are_those_asked_for() -> None:
    verdict = of(runtime=gpu_runtime())
    assert verdict.plan is not None, verdict
    assert verdict.plan.world.nproc_per_node == 2
    assert of(runtime=gpu_runtime(), numProcPerNode=3).code is ExitCode.CONFIG
    assert of(runtime=gpu_runtime(STOKER_ACCELERATOR="amd")).code is ExitCode.CONFIG


@pytest.mark.parametrize("claimed_by", ["runtime", "TrainJob"])
def test_claimed_devices_are_counted_as_the_runtime_does(claimed_by: str) -> None:
    runtime = gpu_runtime(STOKER_NPROC_PER_NODE="2")
    claims = {"claims": [{"name": "gpus"}]}
    container(runtime)["resources"] = claims if claimed_by == "runtime" else {}
    verdict = of(runtime=runtime, **({} if claimed_by == "runtime" else {"resourcesPerNode": claims}))
    assert verdict.plan is not None, verdict
    assert verdict.plan.world.nproc_per_node == 2


def test_a_number_that_nobody_asked_for_is_no_notice() -> None:
    runtime = kept(RUNTIME)
    container(runtime)["resources"] = {"requests": {"cpu": 4}}
    assert said(of(runtime=runtime)) == ["sft: valid: trl sft on 1 nodes × 1 processes"]
    asked = of(runtime=runtime, numProcPerNode=4)
    assert "using 1 process per node (STOKER_NPROC_PER_NODE), not 4" in str(asked)


CPU = {"requests": {"cpu": "8"}, "limits": {"cpu": "16"}}
# What a TrainJob may change of its pods without a word about devices.
OTHER_RESOURCES: tuple[Mapping[str, Any], ...] = (
    {"limits": {"memory": "32Gi"}},
    {"requests": {"cpu": "1"}},
    {"requests": {"cpu": "4"}},
    {"requests": {"cpu": "16"}, "limits": {"cpu": "16"}},
    {"limits": {"cpu": "12"}},
    {},
)


@pytest.mark.parametrize("resources", OTHER_RESOURCES, ids=str)
def test_other_resources_change_no_number_of_processes(resources: Mapping[str, Any]) -> None:
    runtime = gpu_runtime()
    container(runtime)["resources"] = {kind: {**CPU[kind], "nvidia.com/gpu": 2} for kind in CPU}
    verdict = of(runtime=runtime, numNodes=2, resourcesPerNode=resources)
    assert said(verdict) == ["sft: valid: trl sft on 2 nodes × 2 processes"]


@pytest.mark.parametrize("resources", OTHER_RESOURCES, ids=str)
def test_the_pod_starts_as_many_processes_as_validate_says(resources: Mapping[str, Any]) -> None:
    for runtime in (gpu_runtime(), gpu_runtime(STOKER_NPROC_PER_NODE="2"), deepcopy(RUNTIME)):
        container(runtime)["resources"] = {kind: {**CPU[kind], "nvidia.com/gpu": 2} for kind in CPU}
        manifest = trainjob(resourcesPerNode=resources)
        plan = validate_one(manifest, runtime).plan
        assert plan is not None
        env = job_of(manifest, runtime).environment(0, 0, "job", "run", "sft-node-0-0.sft", 29500)
        devices = ("nvidia0", "nvidia1") if env["STOKER_ACCELERATOR"] == "nvidia" else ()
        assert resolve_world(Facts(env=env, devices=devices)).nproc_per_node == plan.world.nproc_per_node


def runtime_without_devices() -> dict[str, Any]:
    """Return a runtime for GPUs whose TrainJobs say which."""
    runtime = gpu_runtime()
    container(runtime)["resources"] = deepcopy(CPU)
    return runtime


@pytest.mark.parametrize(
    ("partitions", "count"),
    [({"nvidia.com/mig-3g.40gb": 2}, 2), ({"nvidia.com/mig-1g.10gb": "1", "nvidia.com/mig-2g.20gb": "2"}, 3)],
)
def test_several_partitions_of_a_gpu_are_78(partitions: Mapping[str, Any], count: int) -> None:
    verdict = of(runtime=runtime_without_devices(), resourcesPerNode={"limits": partitions})
    assert verdict.code is ExitCode.CONFIG
    assert verdict.errors == (
        f"sft: the pods ask for {count} partitions of a GPU, and a process can use only one: request one, or whole "
        "devices (nvidia.com/gpu)"
    )


def test_one_partition_of_a_gpu_is_a_device() -> None:
    verdict = of(runtime=runtime_without_devices(), resourcesPerNode={"limits": {"nvidia.com/mig-3g.40gb": 1}})
    assert said(verdict) == ["sft: valid: trl sft on 1 nodes × 1 processes"]


@pytest.mark.parametrize(
    ("accelerator", "limits"),
    [
        ("nvidia", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8000, "nvidia.com/gpucores": 30}),
        ("nvidia", {"nvidia.com/gpu.shared": 1}),
        ("amd", {"amd.com/cpx_nps4": 1}),
        ("intel", {"gpu.intel.com/i915": 1, "gpu.intel.com/i915_monitoring": 1}),
    ],
)
def test_only_devices_are_counted(accelerator: str, limits: Mapping[str, int]) -> None:
    runtime = gpu_runtime(STOKER_ACCELERATOR=accelerator)
    container(runtime)["resources"] = {"limits": limits}
    verdict = of(runtime=runtime)
    assert verdict.plan is not None, verdict
    assert verdict.plan.world.nproc_per_node == 1


GOLDENS = sorted((ROOT / "tests/charts/golden/training-runtimes").glob("*.yaml"))


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.stem)
def test_a_plain_trainjob_is_valid_on_every_runtime_of_the_catalogue(golden: Path) -> None:
    for runtime in yaml.load_all(golden.read_text(), Loader=yaml.CSafeLoader):
        if not str((runtime or {}).get("kind")).endswith("TrainingRuntime"):
            continue
        reference = {"name": runtime["metadata"]["name"], "kind": runtime["kind"]}
        fetched = {"storageUri": "hf://org/name"}
        fetches = any(job["name"] == "model-initializer" for job in replicated_jobs(runtime))
        spec = {"runtimeRef": reference, **({"initializer": {"model": fetched, "dataset": fetched}} if fetches else {})}
        # This runtime is for any model, so the TrainJob names recipe and config.
        named = ["full_finetune_distributed", "--config", "llama3_2/1B_full"]
        rewarded = ["--reward_funcs=think_format_reward"]
        needed = {"torchtune-distributed": named, "trl-grpo-async": rewarded}
        args = needed.get(reference["name"], [])
        verdict = validate_one(trainjob(spec=spec, numNodes=2, args=args), runtime if fetches else kept(runtime))
        assert verdict.problems == (), verdict
        assert verdict.plan is not None
        # Its config, which the TrainJob names, has a data set of the Hub.
        unread = "spec.initializer.dataset is fetched to /workspace/dataset, and no setting reads it" in str(verdict)
        assert unread == (fetches and reference["name"].startswith("torchtune-distributed")), verdict
        if unread:
            told = trainjob(spec=spec, numNodes=2, args=[*args, "dataset.source=/workspace/dataset"])
            assert "no setting reads it" not in str(validate_one(told, runtime))


def test_a_run_without_spec_trainer_trains_on_the_nodes_the_runtime_says() -> None:
    runtime = deepcopy(RUNTIME)
    runtime["spec"]["mlPolicy"]["numNodes"] = 2
    verdict = validate_one(trainjob(with_trainer=False), runtime)
    assert verdict.code is ExitCode.CONFIG, "the runtime's own PET_NNODES says 1, and there are two pods"


def test_what_only_the_cluster_knows_is_a_notice() -> None:
    secret = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    verdict = of(env=[secret])
    assert verdict.code is ExitCode.FINISHED
    assert said(verdict)[1:] == ["sft: note: env HF_TOKEN comes from the cluster and was not checked"]


@pytest.mark.parametrize("field", ["metadata.name", "status.podIP", "spec.nodeName"])
def test_fields_of_a_pod_that_only_a_cluster_has_are_a_notice(field: str) -> None:
    verdict = of(env=[{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": field}}}])
    assert said(verdict)[1:] == ["sft: note: env POD comes from the cluster and was not checked"]
    assert verdict.code is ExitCode.FINISHED


def test_a_config_file_in_a_volume_is_read_where_the_volume_is_given(tmp_path: Path, kept_file: Path) -> None:
    job = write(tmp_path, trainjob(args=["--config", "/workspace/sft.yaml"]))
    unread = invoke(job, "--runtime", kept_file)
    assert unread.exit_code == 0
    assert "--config /workspace/sft.yaml is in the pods and was not read" in unread.output

    # What is missing may be in it: an adapter for these settings, rewards, a teacher.
    args = ["--config", "/workspace/c.yaml", "--lora_r", "8", "--load_in_4bit"]
    for method in ("sft", "grpo", "distillation"):
        # An image that may have what quantization needs.
        assert of(image="mine:1", args=[f"trl.scripts.{method}", *args]).code == 0
        assert of(image="mine:1", args=[f"trl.scripts.{method}", *args, "--lora_r", "0"]).code == ExitCode.USAGE

    volume = tmp_path / "volume"
    volume.mkdir()
    options = (job, "--runtime", RUNTIME_FILE, "--volume", f"initializer={volume}")
    assert invoke(*options).exit_code == ExitCode.NO_INPUT
    (volume / "sft.yaml").write_text("max_stps: 3\n")
    read = invoke(*options)
    assert read.exit_code == ExitCode.USAGE
    assert "did you mean --max_steps?" in read.output
    (volume / "sft.yaml").write_text("max_steps: 3\n")
    empty = invoke(*options)
    assert empty.exit_code == ExitCode.NO_INPUT
    assert "the model /workspace/model does not exist" in empty.output
    (volume / "model").mkdir()
    (volume / "dataset").mkdir()
    unfit = invoke(*options)
    assert unfit.exit_code == ExitCode.BAD_DATA
    assert "has no files" in unfit.output
    (volume / "dataset" / "train.jsonl").write_text('{"text": "a"}\n')
    assert invoke(*options).exit_code == 0


def test_a_volume_is_read_at_each_of_its_paths(tmp_path: Path) -> None:
    runtime = deepcopy(RUNTIME)
    (node,) = replicated_jobs(runtime)
    mounts = pod_of(node)["containers"][0].setdefault("volumeMounts", [])
    mounts.append({"name": "initializer", "mountPath": "/mnt/ws"})
    file, volume = tmp_path / "runtime.yaml", tmp_path / "volume"
    file.write_text(yaml.safe_dump(runtime))
    (volume / "model").mkdir(parents=True)
    (volume / "dataset").mkdir()
    (volume / "dataset" / "train.jsonl").write_text('{"text": "a"}\n')
    told = invoke(write(tmp_path, trainjob()), "--runtime", file, "--volume", f"initializer={volume}")
    assert told.exit_code == 0, told.output


@pytest.mark.parametrize("volume", ["initializer", "initializer=", "other=/tmp", "initializer=/no/such/folder"])
def test_a_volume_that_is_none_is_refused(tmp_path: Path, volume: str) -> None:
    result = invoke(write(tmp_path, trainjob()), "--runtime", RUNTIME_FILE, "--volume", volume)
    assert result.exit_code in (ExitCode.USAGE, ExitCode.NO_INPUT)
    assert f"--volume {volume}" in result.output


def test_a_file_may_hold_everything_and_come_by_standard_input(tmp_path: Path) -> None:
    second = trainjob("dpo", args=["trl.scripts.dpo", "--packing"])
    result = invoke("-", stdin=yaml.safe_dump_all([trainjob(), second, {"kind": "List", "items": [KEPT]}, None]))
    assert result.exit_code == ExitCode.USAGE
    assert "sft: valid" in result.stdout
    assert "stoker: error: dpo: --packing is a flag of sft" in result.stderr


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("kind: !!int x", 64),
        ("kind: !!int", 64),
        ("kind: !!bool x", 64),
        ("kind: !!timestamp x", 64),
        pytest.param("[" * 3000, 64, id="nested too deeply"),
        ("a: [", 64),
        ("kind: Pod", 64),
        ("", 64),
        ("- 1", 64),
        ("kind: TrainJob\nkind: TrainJob", 64),
        ("kind: TrainJob", 64),
        ("2026-13-45", 64),
        ("&a {kind: TrainJob, spec: *a}", 64),
        ("\0", 64),
    ],
)
def test_a_file_without_a_trainjob_is_refused(tmp_path: Path, text: str, code: int) -> None:
    path = tmp_path / "trainjob.yaml"
    path.write_text(text)
    result = invoke(path, "--runtime", RUNTIME_FILE)
    assert result.exit_code == code
    assert result.stderr.startswith("stoker: error: ")
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({"kind": "Trainjob"}, "trainjob.yaml has kind 'Trainjob', which does not exist: write `kind: TrainJob`"),
        ({"kind": "trainJobs"}, "write `kind: TrainJob`"),
        ({"kind": "Pod"}, "trainjob.yaml has no TrainJob: give a file"),
        ({"Spec": {}, "spec": None}, "the TrainJob names no runtime: write spec.runtimeRef.name"),
        ({"spec": {"runtimeref": {"name": "a"}}}, "write spec.runtimeRef instead of spec.runtimeref"),
        ({"spec": {"runtimeRefs": {"name": "a"}}}, "write spec.runtimeRef instead of spec.runtimeRefs"),
        ({"spec": {"runtimeRef": {"Name": "a"}}}, "write spec.runtimeRef.name instead of spec.runtimeRef.Name"),
        ({"spec": {"runtimeRef": "a"}}, "the TrainJob names no runtime: write spec.runtimeRef.name"),
    ],
    ids=str,
)
def test_a_kind_or_field_in_another_spelling_is_named(tmp_path: Path, change: Any, advice: str) -> None:
    result = invoke(write(tmp_path, {**trainjob(), **change}), "--runtime", RUNTIME_FILE)
    assert (result.exit_code, advice in result.output) == (64, True), result.output


def test_a_name_that_the_api_server_makes_up_is_as_good_as_one_given(tmp_path: Path, kept_file: Path) -> None:
    unnamed = trainjob()
    unnamed["metadata"] = {"generateName": "sft-", "name": None}
    result = invoke(write(tmp_path, unnamed), "--runtime", kept_file)
    assert (result.exit_code, result.output.splitlines()[0]) == (
        0,
        "TrainJob: valid: trl sft on 1 nodes × 1 processes",
    )
    unnamed["metadata"] = {"generateName": f"{'a' * 50}-"}
    result = invoke(write(tmp_path, unnamed), "--runtime", kept_file)
    assert (result.exit_code, "is too long" in result.output) == (64, True), result.output
    unnamed["metadata"] = {"generateName": "SFT-"}
    assert "Trainer refuses the name 'SFT-abcde'" in invoke(write(tmp_path, unnamed), "--runtime", kept_file).output


def fetching_runtime(command: Sequence[str]) -> dict[str, Any]:
    """Return a runtime that fetches the model by a command; without one, by what its image does."""
    workspace = {"name": "initializer", "mountPath": "/workspace"}
    runtime = with_initializer("model-initializer", [workspace], command=[*command])
    as_step(replicated_jobs(runtime)[-1])
    return kept(runtime)


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"storageUri": "hf://org/name"}, None),
        (
            {"storageUri": "s3://b/x", "env": [{"name": "ACCESS_KEY_ID", "value": "k"}], "secretRef": {"name": "s"}},
            None,
        ),
        ({"storageUri": "ftp://host/x"}, "has an unknown scheme"),
        ({"storageUri": "hf://datasets/org/name"}, "is not a model: write hf://ORG/NAME of a model"),
        ({"env": [{"name": "STOKER_FETCH_REPLCE", "value": "true"}]}, "STOKER_FETCH_REPLACE"),
    ],
)
def test_what_an_initializer_would_refuse_is_told_before(asked: Mapping[str, Any], problem: str | None) -> None:
    verdict = of({"initializer": {"model": asked}}, fetching_runtime(["stoker", "fetch", "model"]))
    if problem is None:
        assert verdict.problems == ()
    else:
        ((code, text),) = verdict.problems
        assert code is ExitCode.USAGE
        assert text.startswith("spec.initializer.model: ")
        assert problem in text


def test_what_the_image_of_another_may_fetch_from_is_not_judged() -> None:
    assert of({"initializer": {"model": {"storageUri": "cache://a/b"}}}, fetching_runtime([])).problems == ()


def test_missing_files_are_66(tmp_path: Path) -> None:
    assert invoke(tmp_path / "no.yaml").exit_code == ExitCode.NO_INPUT
    assert invoke(write(tmp_path, trainjob()), "--runtime", tmp_path / "no").exit_code == ExitCode.NO_INPUT


def test_a_file_of_somebody_else_is_66(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    job = write(tmp_path, trainjob())
    # Root, which tests may run as, can read everything.
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(Path, "read_text", refuse)
    result = invoke(job)
    assert result.exit_code == ExitCode.NO_INPUT
    assert "cannot be read (Permission denied)" in result.output


def kubectl(folder: Path, script: str) -> Mapping[str, str]:
    """Return a PATH with a command named kubectl that runs a script."""
    path = folder / "bin" / "kubectl"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{path.parent}{os.pathsep}/usr/bin{os.pathsep}/bin"}


def test_the_runtime_is_read_from_the_cluster(tmp_path: Path) -> None:
    env = kubectl(tmp_path, f'echo "$@" > {tmp_path}/asked; exec cat {tmp_path}/runtime.json')
    (tmp_path / "runtime.json").write_text(json.dumps(RUNTIME))
    result = invoke(write(tmp_path, trainjob(args=["--max_stps"])), env=env)
    assert result.exit_code == ExitCode.USAGE
    assert "did you mean --max_steps?" in result.output
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("get clustertrainingruntime.trainer.kubeflow.org trl-distributed --output=json")


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        ("echo 'Error from server (NotFound): x not found' >&2; exit 1", 64, "correct spec.runtimeRef"),
        ("echo 'Unable to connect to the server' >&2; exit 1", 69, "Unable to connect"),
        ("echo nonsense", 69, "did not answer with JSON"),
        ("echo '[]'", 64, "give a ClusterTrainingRuntime"),
    ],
)
def test_a_cluster_that_has_no_such_runtime_is_told(tmp_path: Path, script: str, code: int, message: str) -> None:
    result = invoke(write(tmp_path, trainjob()), env=kubectl(tmp_path, script))
    assert result.exit_code == code
    assert message in result.output


@pytest.mark.parametrize(
    ("reference", "advice"),
    [
        ({"name": "trl-distribute"}, "The files have trl-distributed: to use that one, correct spec.runtimeRef.name"),
        ({"name": "trl-distributed", "kind": "TrainingRuntime"}, "is a ClusterTrainingRuntime: to use that one"),
        ({"name": "other"}, "give its file with --runtime FILE"),
    ],
)
def test_the_nearest_runtime_of_the_files_is_named(tmp_path: Path, reference: Any, advice: str) -> None:
    job = write(tmp_path, trainjob(spec={"runtimeRef": reference}))
    result = invoke(job, "--runtime", RUNTIME_FILE, env={"PATH": str(tmp_path)})
    assert result.exit_code == ExitCode.USAGE
    assert advice in result.output


def test_without_kubectl_the_file_is_asked_for(tmp_path: Path) -> None:
    result = invoke(write(tmp_path, trainjob()), env={"PATH": str(tmp_path)})
    assert result.exit_code == ExitCode.USAGE
    assert "give its file with --runtime FILE" in result.output


def test_a_runtime_of_a_namespace_is_asked_for_there(tmp_path: Path) -> None:
    job = trainjob(spec={"runtimeRef": {"name": "own", "kind": "TrainingRuntime"}})
    job["metadata"]["namespace"] = "team"
    invoke(write(tmp_path, job), env=kubectl(tmp_path, f'echo "$@" > {tmp_path}/asked; exit 1'))
    assert (tmp_path / "asked").read_text().endswith("--namespace team\n")


FULL = trainjob(
    numNodes=2, numProcPerNode=1, args=["--packing"], env=[{"name": "A", "value": "1"}], resourcesPerNode={}
)


@pytest.mark.parametrize("odd", [None, 7, "word", True, [], ["word"], {}, {"a": 1}, -1, 1.5], ids=repr)
def test_no_manifest_ends_in_a_traceback(odd: Any) -> None:
    for which, whole in ((0, FULL), (1, RUNTIME)):
        for *way, last in paths(whole):
            manifests = [deepcopy(FULL), deepcopy(RUNTIME)]
            parent: Any = manifests[which]
            for key in way:
                parent = parent[key]
            parent[last] = odd
            try:
                verdict = validate_one(manifests[0], manifests[1])
            except Exception as error:  # noqa: BLE001 - any of them is what this test is about
                pytest.fail(f"{odd!r} at {[*way, last]} of the {('TrainJob', 'runtime')[which]}: {error!r}")
            assert verdict.code in ExitCode
            assert (verdict.code is ExitCode.FINISHED) == (not verdict.problems)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.text(max_size=12), max_size=4), st.dictionaries(st.text(max_size=12), st.text(max_size=8), max_size=3)
)
def test_no_command_or_variable_ends_in_a_traceback(words: list[str], env: dict[str, str]) -> None:
    entries = [{"name": name, "value": value} for name, value in env.items()]
    assert of(args=words, env=entries).code in ExitCode
    assert of(command=words, env=entries).code in ExitCode


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["stoker", "run", "--", "--max_steps", "3"], "valid: trl sft"),
        (["stoker", "plan", "--output", "json", "--max_steps", "3"], "valid: trl sft"),
        (["stoker", "run", "--max_steps", "3", "--", "--bf16"], "'--' is not a flag"),
        (["stoker", "run", "trl.scripts.sft", "--help"], "--help is not a flag"),
        (
            ["stoker", "run", "--help"],
            "stoker does not launch the command 'stoker': only the fields of the TrainJob were",
        ),
        (["stoker", "run", "--bf16", "-h"], "stoker does not launch the command 'stoker': only the fields"),
    ],
)
def test_the_runners_own_options_are_read_as_it_reads_them(command: list[str], said: str) -> None:
    assert said in str(of(command=command, args=[]))
