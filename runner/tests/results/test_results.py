"""Each command on a result refuses what it cannot do with one message, before it loads anything heavy."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from kubernetes_validate import validate
from runner.tests.samples import check

from stoker.commands.chat import _questions
from stoker.commands.main import main
from stoker.contract.evaluation import EVALUATION, read_evaluations
from stoker.contract.exits import ExitCode, RunError
from stoker.contract.manifest import MANIFEST, changed_files, write_manifest
from stoker.report.page import report_page
from stoker.report.runs import RecordedRun
from stoker.results import record as results_record
from stoker.results.ask import Asking, Talk
from stoker.results.evaluate import perplexity
from stoker.results.folder import read_result
from stoker.results.harness import numbers_of
from stoker.results.packages import needing
from stoker.results.record import record


def stoker(*words: object) -> Result:
    """Run a command."""
    return CliRunner().invoke(main, [str(word) for word in words])


def result_in(folder: Path, *, adapter: bool = False, base: str = "org/base", **told: Any) -> Path:
    """Return a folder with a run's result, which is no real model."""
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    if adapter:
        (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
        (folder / "adapter_model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    else:
        (folder / "config.json").write_text("{}")
    write_manifest(folder, {"method": "sft", "base_model": {"name_or_path": base, "revision": None}, **told})
    return folder


@pytest.mark.parametrize("command", [("export", "--push", "hf://a/b"), ("evaluate", "--data", "x"), ("chat",)])
def test_what_is_no_result_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    name, *words = command
    (tmp_path / "empty").mkdir()
    refused = stoker(name, tmp_path / "empty", *words)
    assert (refused.exit_code, "stoker.json is missing" in refused.output) == (66, True), refused.output
    output = result_in(tmp_path / "output")
    (output / "config.json").write_text('{"changed": 1}')
    refused = stoker(name, output, *words)
    assert (refused.exit_code, "config.json has" in refused.output) == (65, True), refused.output
    (output / MANIFEST).write_text("[]")
    refused = stoker(name, output, *words)
    assert (refused.exit_code, "not a JSON object" in refused.output) == (65, True), refused.output


def test_the_workspace_stands_for_its_output(tmp_path: Path) -> None:
    output = result_in(tmp_path / "output")
    assert read_result(tmp_path).path == output
    assert read_result(output).files == ["config.json", "metrics.jsonl", MANIFEST]


@pytest.mark.parametrize(
    ("adapter", "words", "code", "told"),
    [
        (False, ["--to", "{new}"], 64, "so there is nothing to merge: drop --to, or make the Job with --as-it-is"),
        (False, [], 64, "nothing to do: add --push URI or --gguf FILE"),
        (
            True,
            ["--push", "hf://a/b"],
            64,
            "is an adapter: name a folder to merge it into with --to, or add --as-it-is",
        ),
        (True, ["--to", "{new}", "--as-it-is"], 64, "--as-it-is merges nothing"),
        (True, ["--as-it-is", "--gguf", "{new}"], 64, "--gguf needs a whole model"),
        (False, ["--push", "ftp://a/b"], 64, "is not an address that this command writes to: write hf://ORG/NAME"),
        (False, ["--push", "hf://a"], 64, "is not an address that this command writes to"),
        (False, ["--push", "hf://me/my--model"], 64, "is not an address that this command writes to"),
        (False, ["--push", "oci://reg/a"], 64, "gs://BUCKET/PREFIX or oci://REGISTRY/NAME:TAG"),
        (False, ["--push", "oci://reg/Upper:1"], 64, "is not an address that this command writes to"),
        (True, ["--to", "{new}", "--base", "org/other"], 78, "was trained on org/base, not on org/other"),
        (True, ["--to", "{new}", "--base", "/no/where"], 66, "the base model /no/where is not on this machine"),
        (False, ["--push", "hf://a/b", "--pull-secret", "s"], 64, "--pull-secret is for a Job: add --job RUN"),
        (False, ["--push", "hf://a/b", "--gpu"], 64, "export merges on the CPU, so drop it"),
        (False, ["--gguf", "{new}"], 78, "package sentencepiece, which is not installed"),
    ],
)
def test_an_export_that_cannot_be_is_refused(
    tmp_path: Path, adapter: bool, words: list[str], code: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    output = result_in(tmp_path / "output", adapter=adapter)
    names = {"new": tmp_path / "new", "output": output}
    refused = stoker("export", output, *(word.format(**names) for word in words))
    assert (refused.exit_code, told.format(**names) in refused.output) == (code, True), refused.output
    assert not (tmp_path / "new").exists()


def test_a_converter_on_the_path_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On the PATH is a link; what the converter imports lies beside the file.
    folder = tmp_path / "llama.cpp"
    folder.mkdir()
    (folder / "beside.py").write_text("WHAT = 'GGUF'\n")
    converter = folder / "convert_hf_to_gguf.py"
    converter.write_text("import sys\nfrom pathlib import Path\nsys.path.insert(1, str(Path(__file__).parent))\n")
    with converter.open("a") as script:
        script.write("from beside import WHAT\nPath(sys.argv[3]).write_text(WHAT)\n")
    converter.chmod(0o755)
    (tmp_path / converter.name).symlink_to(converter)
    monkeypatch.setenv("PATH", str(tmp_path))
    written = tmp_path / "gguf" / "model.gguf"
    done = stoker("export", result_in(tmp_path / "output"), "--gguf", written)
    assert done.exit_code == 0, done.output
    assert written.read_text() == "GGUF"
    again = stoker("export", tmp_path / "output", "--gguf", written, "--output", "json")
    assert json.loads(again.stdout) == {"written": str(written)}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "nothing to measure: add --data DATA, --tasks NAMES"),
        (["--tasks", "a", "--server", "http://x"], "--server and --model belong together"),
    ],
)
def test_an_evaluation_of_nothing_is_refused(tmp_path: Path, words: list[str], told: str) -> None:
    refused = stoker("evaluate", result_in(tmp_path / "output"), *words)
    assert (refused.exit_code, told in refused.output) == (64, True), refused.output


@pytest.mark.parametrize("words", [("evaluate", "--data", "x"), ("chat", "--prompt", "x")])
def test_a_reward_model_writes_nothing(tmp_path: Path, words: tuple[str, ...]) -> None:
    name, *rest = words
    refused = stoker(name, result_in(tmp_path / "output", method="reward"), *rest)
    assert (refused.exit_code, "is a reward model" in refused.output) == (64, True), refused.output


class OutOfMemoryError(RuntimeError):
    """As torch raises it."""


@pytest.mark.parametrize(
    ("words", "loads", "told"),
    [
        (("evaluate", "--data", "x"), False, "end what else uses it, or hide the device (CUDA_VISIBLE_DEVICES=)"),
        (("evaluate", "--data", "x"), True, "lower --batch-size"),
        (("chat", "--prompt", "x"), False, "end what else uses it"),
        (("chat", "--prompt", "x"), True, "lower --max-tokens"),
    ],
)
def test_a_device_without_room_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], loads: bool, told: str
) -> None:
    def full(*_: object, **__: object) -> Any:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("stoker.results.load.load", (lambda *_: (None, None)) if loads else full)
    monkeypatch.setattr("stoker.results.evaluate.read_rows", lambda _: SimpleNamespace(column_names=[]))
    monkeypatch.setattr("stoker.results.evaluate.held_out", full)
    monkeypatch.setattr("stoker.results.ask.Talk.ask", full)
    name, *rest = words
    refused = stoker(name, result_in(tmp_path / "output"), *rest)
    assert (refused.exit_code, f"out of device memory: {told}" in refused.stderr) == (78, True), refused.output


def test_the_end_of_the_input_ends_a_chat_whose_answers_go_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["what?\n", "\n", ""])
    terminal = SimpleNamespace(isatty=lambda: True, readline=lambda: next(typed))
    monkeypatch.setattr("sys.stdin", terminal)
    assert [*_questions(None)] == ["what?"]


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_questions_that_are_not_utf8_are_refused(monkeypatch: pytest.MonkeyPatch, errors: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Gr\xfc\xdfe?\n"), "utf-8", errors))
    with pytest.raises(RunError, match="the questions are not UTF-8: convert them, such as with iconv") as raised:
        next(_questions(None))
    assert raised.value.code == ExitCode.BAD_DATA


@pytest.mark.parametrize("option", ["--prompt", "--system"])
def test_an_argument_that_is_not_utf8_is_refused(tmp_path: Path, option: str) -> None:
    refused = stoker("chat", result_in(tmp_path / "output"), option, "Gr\udcfc\udcdfe")
    assert (refused.exit_code, "are not UTF-8" in refused.stderr) == (ExitCode.BAD_DATA, True), refused.output


class FullOnce:
    """A model whose device has no room for the first answer."""

    device = "cpu"
    config = SimpleNamespace(max_position_embeddings=100)
    full = True

    def generate(self, **_: object) -> None:
        self.full, was = False, self.full
        if was:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_a_question_without_an_answer_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def template(messages: Any, **_: object) -> Any:
        asked.append([message["content"] for message in messages])
        made = {"input_ids": SimpleNamespace(shape=(1, 3))}
        return type("Inputs", (dict,), {"to": lambda self, device: self})(made)

    streamer = SimpleNamespace(TextStreamer=type("TextStreamer", (), {"__init__": lambda self, *_, **__: None}))
    monkeypatch.setitem(sys.modules, "transformers", streamer)
    monkeypatch.setitem(sys.modules, "jinja2", SimpleNamespace(TemplateError=ValueError))
    tokenizer = SimpleNamespace(chat_template="x", apply_chat_template=template, pad_token_id=1, eos_token_id=1)
    talk = Talk(FullOnce(), tokenizer, Asking())
    with pytest.raises(OutOfMemoryError):
        talk.ask("a", print)
    talk.ask("b", print)
    talk.ask("c", print)
    assert asked == [["a"], ["b"], ["b", "", "c"]]


def test_a_missing_package_is_named_with_its_extra() -> None:
    with (
        pytest.raises(RunError, match=r"no_such_package, which is not installed.*'./runner\[evaluate\]'"),
        needing("evaluate"),
    ):
        __import__("no_such_package")


@pytest.mark.parametrize(
    ("words", "containers"),
    [
        (("export", "--push", "s3://b/p"), ["merge", "push"]),
        (("export", "--as-it-is", "--push", "hf://a/b"), ["push"]),
        (("export",), ["merge"]),
        (("evaluate", "--data", "/workspace/dataset", "--limit", "5", "--gpu", "--secret", "hub"), ["evaluate"]),
    ],
)
def test_a_job_is_as_restricted_as_a_namespace_may_ask(words: tuple[str, ...], containers: list[str]) -> None:
    name, *rest = words
    done = stoker(name, "--job", "first-run", *rest)
    assert done.exit_code == 0, done.output
    job = yaml.safe_load(done.stdout)
    validate(job, "1.31", strict=True)
    pod = job["spec"]["template"]["spec"]
    made = [*pod.get("initContainers", ()), *pod["containers"]]
    assert [container["name"] for container in made] == containers
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in made:
        assert container["command"][:2] == ["stoker", name]
        # The command in the pod is one that this runner takes: with a folder that is missing, it says so.
        assert stoker(*container["command"][1:]).exit_code == 66
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "initializer-first-run"}
    assert ("nvidia.com/gpu" in made[-1]["resources"]["limits"]) is ("--gpu" in words)
    tolerated = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert pod.get("tolerations", []) == ([tolerated] if "--gpu" in words else [])
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert "imagePullSecrets" not in pod


def test_no_two_jobs_have_one_name_and_all_go_by_themselves() -> None:
    words = ("export", "--job", "x" * 49, "--gguf")
    jobs = [yaml.safe_load(stoker(*words, file).stdout) for file in ("a.gguf", "b.gguf", "b.gguf")]
    assert len({job["metadata"]["name"] for job in jobs}) == 3
    for job in jobs:
        assert len(job["metadata"]["name"]) <= 63
        assert job["spec"]["ttlSecondsAfterFinished"] > 0


def test_a_job_in_export_takes_no_gpu() -> None:
    refused = stoker("export", "--job", "first-run", "--push", "s3://b/p", "--gpu")
    assert (refused.exit_code, refused.stdout) == (64, "")
    assert "--gpu is for `stoker evaluate`: export merges on the CPU, so drop it" in refused.stderr


TASKS = ("evaluate", "--job", "first-run", "--tasks", "arc_easy")


@pytest.mark.parametrize(("words", "variant"), [((), "cpu"), (("--gpu",), "cuda")])
def test_a_job_with_tasks_has_the_image_with_the_harness(words: tuple[str, ...], variant: str) -> None:
    done = stoker(*TASKS, *words)
    assert done.exit_code == 0, done.output
    (container,) = yaml.safe_load(done.stdout)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"ghcr.io/stoker-dev/lab:0.1.0-{variant}"


SERVED = ("--data", "/workspace/dataset", "--model", "support", "--secret", "key")


@pytest.mark.parametrize(("words", "variant"), [((), "cpu"), (("--gpu",), "cuda")])
def test_a_job_asks_a_server_for_rows_with_the_image_that_reads_them(words: tuple[str, ...], variant: str) -> None:
    done = stoker("evaluate", "--job", "first-run", *SERVED, "--server", "http://tuned.team-a:8000", *words)
    assert done.exit_code == 0, done.output
    job = yaml.safe_load(done.stdout)
    validate(job, "1.31", strict=True)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    # TRL reads the rows; only tasks need the harness.
    assert container["image"] == f"ghcr.io/stoker-dev/trl:0.1.0-{variant}"
    program, command, output, *flags = container["command"]
    assert (program, command, output) == ("stoker", "evaluate", "/workspace/output")
    assert dict(zip(flags[::2], flags[1::2], strict=True)) == {
        "--data": "/workspace/dataset",
        "--split": "test",
        "--batch-size": "4",
        "--server": "http://tuned.team-a:8000",
        "--model": "support",
    }
    # The server's key is OPENAI_API_KEY of the Secret.
    assert container["envFrom"] == [{"secretRef": {"name": "key"}}]
    # This runner takes the command: with a folder that is missing, it says so.
    assert stoker(*container["command"][1:]).exit_code == 66


def test_a_job_merges_and_converts_in_the_image_that_has_the_converter() -> None:
    printed = stoker("export", "--job", "first-run", "--gguf", "gguf/model.gguf")
    assert printed.exit_code == 0, printed.output
    pod = yaml.safe_load(printed.stdout)["spec"]["template"]["spec"]
    (merge,), (convert,) = pod["initContainers"], pod["containers"]
    assert merge["command"] == ["stoker", "export", "/workspace/output", "--to", "/workspace/exported"]
    assert convert["command"] == ["stoker", "export", "/workspace/exported", "--gguf", "/workspace/gguf/model.gguf"]
    assert convert["image"].startswith("ghcr.io/stoker-dev/lab:")
    # A model that was trained whole is not merged.
    printed = stoker("export", "--job", "first-run", "--gguf", "gguf/model.gguf", "--as-it-is")
    pod = yaml.safe_load(printed.stdout)["spec"]["template"]["spec"]
    assert "initContainers" not in pod
    flags = ["--as-it-is", "--gguf", "/workspace/gguf/model.gguf"]
    assert pod["containers"][0]["command"] == ["stoker", "export", "/workspace/output", *flags]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--gguf", "/tmp/model.gguf"], 64, "--gguf /tmp/model.gguf is not on the run's claim"),
        (["--gguf", "../model.gguf"], 64, "name a file in its workspace, such as gguf/model.gguf"),
        (
            ["--gguf", "a/b.gguf", "--image", "mirror.example.com/stoker-dev/trl:0.1.0-cpu"],
            78,
            "llama.cpp's converter, which mirror.example.com/stoker-dev/trl:0.1.0-cpu does not have",
        ),
    ],
)
def test_a_job_that_could_not_convert_is_refused_before_a_pod(words: list[str], code: int, told: str) -> None:
    refused = stoker("export", "--job", "first-run", *words)
    assert (refused.exit_code, refused.stdout, told in refused.stderr) == (code, "", True), refused.output


@pytest.mark.parametrize("address", ["http://localhost:8000", "http://127.0.0.1:8000", "http://[::1]:8000/"])
def test_a_job_has_no_server_of_its_own(address: str) -> None:
    refused = stoker("evaluate", "--job", "first-run", *SERVED, "--server", address)
    assert refused.exit_code == 64, refused.output
    assert refused.stdout == ""
    assert f"--server {address} is the Job's own pod, where no server runs: write an address inside" in refused.stderr


def test_tasks_in_an_image_without_the_harness_are_refused_before_a_pod() -> None:
    image = "mirror.example.com/stoker-dev/trl:0.1.0-cpu"
    refused = stoker(*TASKS, "--image", image)
    assert refused.exit_code == 78, refused.output
    assert refused.stdout == ""
    assert f"needs the Python package lm_eval, which {image} does not have: leave out --image" in refused.stderr


def test_tasks_in_an_image_of_ones_own_are_a_job() -> None:
    done = stoker(*TASKS, "--image", "registry.example.com/team/evaluate:1")
    assert done.exit_code == 0, done.output
    pod = yaml.safe_load(done.stdout)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "registry.example.com/team/evaluate:1"
    assert "nodeSelector" not in pod, "nobody here knows for which processor it is"
    assert container["command"][-2:] == ["--batch-size", "4"]
    assert container["command"][3:5] == ["--tasks", "arc_easy"]


def test_a_mirror_has_all_images_of_a_job() -> None:
    mirror = ("--registry", "mirror.example.com/hub/", "--pull-secret", "mirror")
    done = stoker("export", "--job", "first-run", "--push", "s3://b/p", *mirror)
    assert done.exit_code == 0, done.output
    job = yaml.safe_load(done.stdout)
    validate(job, "1.31", strict=True)
    pod = job["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "mirror"}]
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert [container["image"] for container in (*pod["initContainers"], *pod["containers"])] == [
        "mirror.example.com/hub/stoker-dev/trl:0.1.0-cpu",
        "mirror.example.com/hub/stoker-dev/fetch:0.1.0",
    ]


@pytest.mark.parametrize("run", ["Bad_Name", "x" * 50, ""])
def test_a_job_needs_the_name_of_a_run(run: str) -> None:
    refused = stoker("export", "--job", run)
    assert (refused.exit_code, "is not the name of a run" in refused.output) == (64, True), refused.output


def test_what_was_measured_stands_beside_the_manifest_and_in_the_report(tmp_path: Path) -> None:
    output = result_in(tmp_path / "output")
    held = {"data": "<b>.jsonl", "split": "test", "rows": 2, "tokens": 9, "loss": 1.5, "perplexity": perplexity(1.5)}
    measured = {"of": "result", "base_model": None, "held_out": {**held, "token_accuracy": float("nan")}}
    record(read_result(output), measured)
    record(read_result(output), {"of": "support", "tasks": {"sums": {"acc": 0.25}}})
    check(json.loads((output / EVALUATION).read_text()), "evaluation-v1")
    assert [one["of"] for one in read_evaluations(output)] == ["result", "support"]
    manifest = json.loads((output / MANIFEST).read_text())
    assert EVALUATION in {entry["path"] for entry in manifest["files"]}
    assert not list(changed_files(output, manifest)), "a server compares the digests"
    page = (output / "report.html").read_text()
    assert "<td>sums</td><td>acc</td><td>0.25</td><td>support</td>" in page
    assert "&lt;b&gt;.jsonl" in page


def test_a_second_measurement_that_dies_on_the_way_leaves_a_result_that_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = result_in(tmp_path / "output")
    record(read_result(output), {"of": "result"})

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(results_record, "write_report", killed)
    with pytest.raises(KeyboardInterrupt):
        record(read_result(output), {"of": "support"})
    assert not list(changed_files(output, json.loads((output / MANIFEST).read_text())))
    monkeypatch.undo()
    record(read_result(output), {"of": "third"})
    listed = {entry["path"] for entry in json.loads((output / MANIFEST).read_text())["files"]}
    assert {EVALUATION, "report.html"} <= listed


@pytest.mark.parametrize("evaluation", [{}, {"held_out": 3, "tasks": []}, {"tasks": {"a": {"b": "c"}, "d": 1}}])
def test_a_report_survives_what_others_have_written(evaluation: dict[str, Any]) -> None:
    assert "Evaluations" not in report_page(RecordedRun({}, {}, (), (evaluation,)))


def test_numbers_of_a_task_are_its_metrics() -> None:
    found = {"alias": "sums", "acc,none": 0.5, "acc_stderr,none": "N/A", "f1,strict": float("nan"), "higher": True}
    assert numbers_of(found) == {"acc": 0.5, "f1,strict": None}


def test_a_perplexity_too_large_for_a_number_is_none() -> None:
    assert perplexity(1000.0) is None
