"""What an initializer was asked for, which files that is, and how they come to be where the trainer looks."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.contract.exits import ExitCode, RunError
from stoker.fetch import command, objects, transfer
from stoker.fetch.fields import fields_of
from stoker.fetch.folder import Folder
from stoker.fetch.hub import Hub
from stoker.fetch.request import KINDS, FetchRequest, kind_of, request_of
from stoker.fetch.selection import RECORD, File, Selection, select
from stoker.fetch.source import FileSource, Unavailable
from stoker.fetch.target import Staging, Target, mismatch


def asked(uri: str, kind: str = "model", workspace: Path = Path("/workspace"), **env: str) -> FetchRequest:
    request = request_of(kind, {"STORAGE_URI": uri, **env}, workspace)
    assert request is not None
    return request


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("hf://org/name", ("hf", "org/name", "", None)),
        ("hf://gpt2", ("hf", "gpt2", "", None)),
        ("hf://gpt2@main/onnx", ("hf", "gpt2", "onnx", "main")),
        ("hf://org/name@v1.0/sub/dir", ("hf", "org/name", "sub/dir", "v1.0")),
        ("hf://org/name@refs/pr/7/x", ("hf", "org/name", "x", "refs/pr/7")),
        ("hf://org/name@feature%2Fa", ("hf", "org/name", "", "feature/a")),
        ("hf://models/org/name", ("hf", "org/name", "", None)),
        ("s3://bucket/a/b/", ("s3", "bucket", "a/b", None)),
        ("s3://bucket", ("s3", "bucket", "", None)),
        ("gs://my_bucket/a%20b", ("gs", "my_bucket", "a b", None)),
        ("file:///inputs/model", ("file", "/inputs/model", "", None)),
        ("pvc://claim/models/a", ("file", "/mnt/pvc/claim/models/a", "", None)),
    ],
)
def test_uris_are_understood(uri: str, expected: tuple[Any, ...]) -> None:
    request = asked(uri)
    assert (request.scheme, request.place, request.path, request.revision) == expected
    assert request.target == Path("/workspace/model")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("org/name", "has an unknown scheme: write hf://ORG/NAME"),
        ("ftp://host/x", "has an unknown scheme"),
        ("cache://schema/table", "data cache, which is not a source"),
        ("hf://", "is not a repository"),
        ("hf:org/name", "is not a repository"),
        ("hf://org/name@", "is not a repository"),
        ("hf://org/na me", "is not a repository"),
        ("hf://Qwen/Qwen3--0.6B", "is not a repository"),
        ("hf://Qwen/Qwen3-0.6B.", "is not a repository"),
        ("hf://Qwen/-Qwen3", "is not a repository"),
        ("hf://Qwen/Qwen3.git", "is not a repository"),
        (f"hf://Qwen/{'a' * 97}", "is not a repository"),
        ("hf://org/../name", "contains `..`: write the path without it"),
        ("hf://org/name/%2e%2e/x", "contains `..`: write the path without it"),
        ("hf://datasets/org/name", "is not a model: write hf://ORG/NAME of a model"),
        ("s3://", "has no bucket"),
        ("s3://key:secret@bucket/x", "has more than a place and a path"),
        ("s3://bucket/x?versionId=1", "has more than a place and a path"),
        ("file://inputs/model", "has no folder: write file:///FOLDER, with three slashes"),
        ("pvc:///x", "has no claim"),
        ("s3://[x", "is not a URI"),
    ],
)
def test_a_wrong_uri_is_refused_with_what_to_write(uri: str, message: str) -> None:
    with pytest.raises(RunError) as refused:
        asked(uri)
    assert refused.value.code is ExitCode.USAGE
    assert message in refused.value.message


@pytest.mark.parametrize("uri", ["s3://key:hush@bucket/x", "https://me:hush@host/x", "s3://bucket/x?token=hush\n"])
def test_credentials_in_a_uri_are_not_repeated_in_the_log(uri: str) -> None:
    with pytest.raises(RunError, match="put credentials into a secret") as refused:
        asked(uri)
    assert "hush" not in refused.value.message


@given(st.text(), st.sampled_from(KINDS))
def test_no_uri_ends_in_a_traceback_or_leads_out_of_the_workspace(uri: str, kind: str) -> None:
    for text in (uri, f"hf://{uri}", f"s3://{uri}", f"pvc://{uri}"):
        with suppress(RunError):
            request = request_of(kind, {"STORAGE_URI": text}, Path("/workspace"))
            assert request is None or ".." not in (*request.path.split("/"), *request.place.split("/"))


@pytest.mark.parametrize("env", [{}, {"STORAGE_URI": ""}, {"STORAGE_URI": " "}])
def test_without_a_uri_there_is_nothing_to_do(env: Mapping[str, str]) -> None:
    assert request_of("model", env, Path("/workspace")) is None


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"ACCESS_KEY_ID": "a"}, "only one of ACCESS_KEY_ID and SECRET_ACCESS_KEY is set"),
        ({"ENDPOINT": "host:9000"}, "write an address such as https://host:port"),
        ({"STOKER_FETCH_REPLACE": "yes"}, "write true or false"),
    ],
)
def test_wrong_options_are_refused(env: Mapping[str, str], message: str) -> None:
    with pytest.raises(RunError, match=message):
        request_of("model", {"STORAGE_URI": "s3://bucket/x", **env}, Path("/workspace"))


@pytest.mark.parametrize(
    ("uri", "env", "endpoint"),
    [
        ("hf://org/name", {"ENDPOINT": "https://mirror"}, ""),
        ("file:///inputs", {"ENDPOINT": "https://store"}, ""),
        ("s3://bucket", {}, "default"),
        ("s3://bucket", {"ENDPOINT": "https://store ", "AWS_ENDPOINT_URL": "https://other"}, "https://store"),
        ("s3://bucket", {"AWS_ENDPOINT_URL": "https://store"}, "https://store"),
        ("s3://bucket", {"ENDPOINT": "https://me:hush@store"}, "https://…@store"),
        ("gs://bucket", {"STORAGE_EMULATOR_HOST": "http://store"}, "http://store"),
    ],
)
def test_a_bucket_is_in_the_store_that_its_client_asks(uri: str, env: Mapping[str, str], endpoint: str) -> None:
    assert asked(uri, "model", Path("/workspace"), **env).endpoint == endpoint


def told(uri: str, **env: str) -> str:
    """Return what a server's container says of a wrong environment."""
    with pytest.raises(RunError) as refused:
        asked(uri, "model", Path("/workspace"), STOKER_FETCH_FOR="serving", **env)
    return refused.value.message


def test_a_servers_container_names_the_values_of_its_chart() -> None:
    assert told("hf://org/../name").startswith("model.uri 'hf://org/../name' contains")
    assert told("hf://").startswith("model.uri 'hf://' is not a repository")
    assert "put both into the secret of model.secretName" in told("s3://bucket/x", ACCESS_KEY_ID="a")
    request = asked("hf://org/name", STOKER_FETCH_FOR="serving")
    with pytest.raises(RunError, match=r"hf://org/name has no files: correct the path in model\.uri$"):
        select(request, [])
    with pytest.raises(RunError, match=r"set IGNORE_PATTERNS in model\.env, or the secret of model\.secretName"):
        select(replace(request, ignore=("*.safetensors",)), files("config.json", "model.safetensors"))


def test_no_message_of_a_server_speaks_of_a_trainjob() -> None:
    """Whatever fails: all messages take their advice from the same fields."""
    for text in astuple(fields_of("model", "serving")):
        assert re.search("(?i)trainjob|initializer|workspace|storage_?uri", text) is None
        assert text in ("", "model.uri") or "model." in text
    assert "spec.initializer.dataset.secretRef" in fields_of("dataset", "").secret
    with pytest.raises(RunError, match="STOKER_FETCH_FOR is 'chart': write trainjob or serving"):
        fields_of("model", "chart")


def test_what_to_fetch_is_said_by_the_command_or_by_the_pods_name() -> None:
    assert kind_of("dataset", "sft-model-initializer-0-0") == "dataset"
    assert kind_of(None, "sft-model-initializer-0-0") == "model"
    assert kind_of(None, "my-dataset-initializer-model-initializer-0-0") == "model"
    with pytest.raises(RunError, match="stoker fetch model"):
        kind_of(None, "sft-node-0-0")


LLAMA = [
    *("config.json", "chat_template.jinja", "tokenizer.model", "tokenizer.json", "vocab.txt", "merges.tiktoken"),
    *("modeling_custom.py", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "README.md"),
    *(".gitattributes", "pytorch_model.bin", "original/consolidated.00.pth", "original/tokenizer.model"),
    *("consolidated.safetensors", "flax_model.msgpack", "tf_model.h5", "onnx/model.onnx", "model-q4.gguf"),
]


def files(*paths: str) -> list[File]:
    return [File(path, path, 1, "tag") for path in paths]


def chosen(request: FetchRequest, *paths: str) -> list[str]:
    return [file.path for file in select(request, files(*paths)).files]


def test_of_a_model_all_is_kept_but_copies_of_the_weights() -> None:
    assert chosen(asked("hf://org/name"), *LLAMA) == sorted(
        [*LLAMA[:10], "original/tokenizer.model"],
    )


def test_pickled_weights_are_kept_where_there_are_no_others() -> None:
    assert chosen(asked("hf://org/name"), "config.json", "pytorch_model.bin") == ["config.json", "pytorch_model.bin"]


def test_everything_left_out_has_a_reason() -> None:
    ignored = select(asked("hf://org/name"), files(*LLAMA)).ignored
    assert ignored["pytorch_model.bin"] == "pickled weights beside safetensors (*.bin)"
    assert ignored["tf_model.h5"] == "weights for TensorFlow (*.h5)"
    assert len(ignored) == 8


def test_patterns_of_the_trainjob_replace_the_defaults() -> None:
    request = asked("hf://org/name", IGNORE_PATTERNS="*.md, onnx/")
    assert chosen(request, "README.md", "onnx/x", "a.h5", "b.safetensors") == ["a.h5", "b.safetensors"]
    assert chosen(asked("hf://org/name", IGNORE_PATTERNS=""), "a.h5") == ["a.h5"]


def test_a_model_without_weights_is_refused() -> None:
    # What SDK 0.5.0 sends unless told otherwise.
    request = asked("hf://org/name", IGNORE_PATTERNS="*.msgpack,*.h5,*.bin,.pt,.pth")
    with pytest.raises(RunError, match=r"skips all weights .*: pytorch_model\.bin matches") as refused:
        select(request, files("config.json", "pytorch_model.bin"))
    assert refused.value.code is ExitCode.NO_INPUT


@pytest.mark.parametrize("weights", ["flax_model.msgpack", "tf_model.h5", "onnx/model.onnx", "openvino_model.bin"])
def test_a_model_for_other_frameworks_alone_is_refused(weights: str) -> None:
    with pytest.raises(RunError, match=rf"only has weights for other frameworks \({weights}\).* in storageUri$") as no:
        select(asked("hf://org/name"), files("config.json", weights))
    assert no.value.code is ExitCode.NO_INPUT
    for beside in ("model.safetensors", "pytorch_model.bin", "model.gguf"):
        assert chosen(asked("hf://org/name"), "config.json", weights, beside) == ["config.json", beside]
    assert weights in chosen(asked("hf://org/name", kind="dataset"), "config.json", weights)
    assert weights in chosen(asked("hf://org/name", IGNORE_PATTERNS="*.md"), "config.json", weights)


def test_a_tokenizer_alone_is_fetched() -> None:
    paths = ["tokenizer.json", "tokenizer_config.json"]
    assert chosen(asked("hf://org/name"), "README.md", *paths) == ["README.md", *paths]


def test_a_model_in_a_folder_becomes_the_target_and_a_data_set_of_the_hub_keeps_its_layout() -> None:
    paths = ("a/x.json", "a/b/y.json", "ab/z.json", "top.json")
    assert chosen(asked("hf://org/name/a"), *paths) == ["b/y.json", "x.json"]
    assert chosen(asked("s3://bucket/a", kind="dataset"), *paths) == ["b/y.json", "x.json"]
    # The SDK's trainers are told /workspace/dataset/<folder>.
    assert chosen(asked("hf://org/name/a", kind="dataset"), *paths) == ["a/b/y.json", "a/x.json"]
    assert chosen(asked("s3://bucket/a/x.json", kind="dataset"), *paths) == ["x.json"]
    with pytest.raises(RunError, match="has no files"):
        chosen(asked("hf://org/name/missing"), *paths)


@pytest.mark.parametrize("path", ["a/../../../x.json", "a//etc/x.json", "a/..", "a/b/../x.json"])
def test_no_name_in_a_source_leads_out_of_the_target(path: str) -> None:
    with pytest.raises(RunError, match="points outside the target folder: rename it in the source") as refused:
        chosen(asked("s3://bucket/a", kind="dataset"), path, "a/y.json")
    assert refused.value.code is ExitCode.BAD_DATA
    assert chosen(asked("s3://bucket/a", kind="dataset", IGNORE_PATTERNS=path), path, "a/y.json") == ["y.json"]


CONTENT = {"config.json": b"{}", "model.safetensors": b"weights" * 1000}


class Shelf(FileSource):
    """A source in memory that fails as told."""

    def __init__(self, request: FetchRequest, failures: list[Exception] | None = None) -> None:
        super().__init__(request)
        self.failures = failures or []
        self.doubts: list[Exception] = []
        self.wrong = 0
        self.checksums = True
        self.seconds = 0.0

    def files(self) -> list[File]:
        return [
            File(name, name, len(data), "1", f"sha256:{hashlib.sha256(data).hexdigest()}")
            for name, data in CONTENT.items()
        ]

    def is_digest(self, file: File) -> bool:
        if self.doubts:
            raise self.doubts.pop()
        return self.checksums

    def fetch(self, file: File, folder: Path) -> Path:
        if file.path == "model.safetensors" and self.failures:
            raise self.failures.pop()
        time.sleep(self.seconds)
        data = CONTENT[file.path]
        if file.path == "model.safetensors" and self.wrong:
            self.wrong -= 1
            data = data[::-1]
        (folder / file.path).write_bytes(data)
        return folder / file.path


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    monkeypatch.setattr(transfer, "WAITS_SECONDS", (0.0, 0.0))
    return Shelf(asked("hf://org/name"))


def bring(shelf: Shelf, folder: Path, files: Sequence[File] | None = None) -> Staging:
    staging = Staging(folder)
    transfer.Transfer(shelf, Selection(tuple(shelf.files() if files is None else files), {}), staging).run()
    return staging


def test_a_source_that_fails_for_a_while_is_asked_again(shelf: Shelf, tmp_path: Path) -> None:
    shelf.failures = [Unavailable("503"), Unavailable("reset")]
    assert (bring(shelf, tmp_path).whole / "model.safetensors").read_bytes() == CONTENT["model.safetensors"]


def test_a_source_that_keeps_failing_is_given_up(shelf: Shelf, tmp_path: Path) -> None:
    shelf.failures = [Unavailable("503")] * 10
    # Alone: another file that comes in the meantime would start the count anew.
    with pytest.raises(RunError, match=r"model.safetensors: 503 \(gave up after 3 tries\)") as given_up:
        bring(shelf, tmp_path, shelf.files()[1:])
    assert given_up.value.code is ExitCode.UNAVAILABLE
    assert len(shelf.failures) == 7


def test_progress_is_told_now_and_then(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(transfer, "_PROGRESS_SECONDS", 0.02)
    shelf.seconds = 0.2
    bring(shelf, tmp_path)
    assert "[stoker] 0 B of 7.0 kB (0 %), 0 B/s\n" in capsys.readouterr().err


def test_what_no_try_mends_is_tried_once(shelf: Shelf, tmp_path: Path) -> None:
    shelf.failures = [RunError(ExitCode.NO_INPUT, "gated")] * 2
    with pytest.raises(RunError, match="gated"):
        bring(shelf, tmp_path)
    assert len(shelf.failures) == 1


def test_a_broken_file_is_fetched_again_and_in_the_end_refused(shelf: Shelf, tmp_path: Path) -> None:
    shelf.wrong = 2
    assert (bring(shelf, tmp_path / "a").whole / "model.safetensors").read_bytes() == CONTENT["model.safetensors"]
    shelf.wrong = 3
    with pytest.raises(RunError, match=r"its sha256 checksum is not .*, 3 times in a row") as refused:
        bring(shelf, tmp_path / "b")
    assert refused.value.code is ExitCode.BAD_DATA


def test_a_tag_that_is_no_checksum_breaks_nothing(shelf: Shelf, tmp_path: Path) -> None:
    shelf.wrong, shelf.checksums = 1, False
    assert bring(shelf, tmp_path).has(shelf.files()[1])


def test_a_store_that_fails_while_it_is_asked_about_a_checksum_is_asked_again(shelf: Shelf, tmp_path: Path) -> None:
    shelf.wrong, shelf.checksums, shelf.doubts = 1, False, [Unavailable("503")]
    assert bring(shelf, tmp_path).has(shelf.files()[1])


def test_a_store_that_does_not_answer_when_a_role_is_taken_is_asked_again_and_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unanswered(request: FetchRequest) -> None:
        raise Unavailable("EndpointConnectionError")

    monkeypatch.setattr(transfer, "WAITS_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(objects, "Objects", unanswered)
    with pytest.raises(RunError, match="EndpointConnectionError") as given_up:
        command.source_of(asked("s3://bucket/prefix"))
    assert given_up.value.code is ExitCode.UNAVAILABLE


def test_checksums_of_every_kind_are_computed_as_their_sources_do(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"hello\n")
    # `printf 'hello\n' | git hash-object --stdin`, md5sum
    for digest in ("git:ce013625030ba8dba906f756967f9e9ca394464a", "md5:b1946ac92492d2347c6235b4d2611184", ""):
        assert mismatch(File("x", "x", 6, "", digest), path) is None
    assert mismatch(File("x", "x", 6, "", "md5:00"), path) == "its md5 checksum is not 00"
    assert mismatch(File("x", "x", 7, ""), path) == "it has 6 of 7 bytes"


class Container:
    """Runs `stoker fetch` as a process."""

    def __init__(self, folder: Path) -> None:
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        self.source = folder / "source"
        self.source.mkdir()
        for name, data in CONTENT.items():
            (self.source / name).write_bytes(data)
        self.log = folder / "termination-log"

    def start(self, *argv: str, **env: str) -> subprocess.Popen[str]:
        told = {"STORAGE_URI": f"file://{self.source}", **env}
        return subprocess.Popen(
            [sys.executable, "-m", "stoker", "fetch", *(argv or ("model",))],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join(sys.path),
                "STOKER_WORKSPACE": str(self.workspace),
                "STOKER_TERMINATION_LOG": str(self.log),
                **told,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *argv: str, **env: str) -> tuple[int, str]:
        process = self.start(*argv, **env)
        output, _ = process.communicate(timeout=120)
        assert "Traceback" not in output
        return process.returncode, output

    def content(self, kind: str = "model") -> dict[str, bytes]:
        folder = self.workspace / kind
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


def test_a_mounted_folder_is_copied_once_readable_for_the_group(container: Container) -> None:
    code, output = container.run()
    assert code == 0, output
    content = container.content()
    record = json.loads(content.pop(RECORD))
    assert content == CONTENT
    assert [file["path"] for file in record["files"]] == sorted(CONTENT)
    for path in (container.workspace / "model").rglob("*"):
        assert path.stat().st_mode & stat.S_IRGRP, path
    before = (container.workspace / "model" / "config.json").stat()
    code, output = container.run()
    assert (code, "nothing to fetch" in output) == (0, True)
    assert (container.workspace / "model" / "config.json").stat() == before
    assert [path.name for path in (container.workspace / ".stoker" / "fetch").iterdir()] == ["model.lock"]


def test_an_empty_uri_is_a_success_that_says_so(container: Container) -> None:
    assert container.run(STORAGE_URI="") == (0, "[stoker] STORAGE_URI is empty: no model to fetch\n")


def test_a_refusal_is_the_pods_termination_message(container: Container) -> None:
    code, output = container.run(STORAGE_URI="nowhere")
    assert code == 64
    assert container.log.read_text().startswith("wrong arguments: STORAGE_URI 'nowhere' has an unknown scheme")
    assert output.startswith("stoker: error: STORAGE_URI 'nowhere'")


def test_another_source_is_refused_by_name_and_replaced_where_that_is_asked_for(container: Container) -> None:
    container.run()
    (container.source / "sub").mkdir()
    (container.source / "sub" / "new.safetensors").write_bytes(b"new")
    other = f"file://{container.source}/sub"
    code, output = container.run(STORAGE_URI=other)
    assert code == 78
    assert f"but has file://{container.source}." in output
    assert set(container.content()) == {*CONTENT, RECORD}
    assert container.run(STORAGE_URI=other, STOKER_FETCH_REPLACE="true")[0] == 0
    assert set(container.content()) == {"new.safetensors", RECORD}


def test_files_that_nobody_fetched_are_not_overwritten(container: Container) -> None:
    (container.workspace / "model").mkdir()
    (container.workspace / "model" / "mine").touch()
    code, output = container.run()
    assert (code, "has files that this command did not fetch" in output) == (78, True)


def test_a_restart_keeps_what_the_job_began_with_and_needs_no_source(container: Container) -> None:
    container.run(STOKER_JOB_ID="a")
    for path in container.source.iterdir():
        path.unlink()
    code, output = container.run(STOKER_JOB_ID="a")
    assert (code, "fetched for this job" in output) == (0, True)
    assert container.run(STOKER_JOB_ID="b")[0] == 66


def test_a_bucket_of_another_store_is_not_taken_for_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetch(endpoint: str) -> str:
        request = asked("s3://bucket", workspace=tmp_path, STOKER_JOB_ID="of the URI", ENDPOINT=endpoint)
        monkeypatch.setattr(command, "source_of", Shelf)
        command._fetch(request)
        return capsys.readouterr().err

    fetch("http://one")
    assert "fetched for this job" in fetch("http://one")
    # Its content is the same, and from now on it counts as this store's.
    assert "nothing to fetch" in fetch("http://two")
    assert "fetched for this job" in fetch("http://two")
    monkeypatch.setitem(CONTENT, "config.json", b"of another store")
    with pytest.raises(RunError, match="other files of it: ENDPOINT was http://two and is now http://one") as refused:
        fetch("http://one")
    assert refused.value.code is ExitCode.CONFIG


def test_a_record_without_a_store_has_the_store_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "source_of", Shelf)
    for uri, told in (("s3://bucket", "nothing to fetch"), ("hf://org/name", "fetched for this job")):
        request = asked(uri, workspace=tmp_path / uri[:2], STOKER_JOB_ID="a")
        command._fetch(request)
        record = json.loads((request.target / RECORD).read_text())
        del record["endpoint"]
        (request.target / RECORD).write_text(json.dumps(record))
        command._fetch(request)
        assert told in capsys.readouterr().err


def test_what_xet_left_behind_takes_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = asked("hf://org/name", workspace=tmp_path)
    shelf, target = Shelf(request), Target(request)
    with target.locked():
        staging = target.staging(target.described(select(request, shelf.files()), None))
    left = staging.unfinished / ".xet" / ".cache" / "huggingface" / "download" / "a.1234abcd.incomplete"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    monkeypatch.setitem(sys.modules, "huggingface_hub", Mock())
    monkeypatch.setitem(sys.modules, "huggingface_hub.utils", Mock())
    hub = Hub(request)
    for name in ("files", "fetch"):
        monkeypatch.setattr(hub, name, getattr(shelf, name))
    monkeypatch.setattr(command, "source_of", lambda request: hub)
    there: list[int] = []
    monkeypatch.setattr(command, "_check_space", lambda request, selection, found: there.append(found))
    command._fetch(request)
    assert there == [0]


def test_another_job_keeps_what_it_found_too(container: Container) -> None:
    container.run(STOKER_JOB_ID="a")
    assert "nothing to fetch" in container.run(STOKER_JOB_ID="b")[1]
    (container.source / "config.json").write_bytes(b"moved on")
    code, output = container.run(STOKER_JOB_ID="b")
    assert (code, "fetched for this job" in output) == (0, True), output


def test_a_folder_that_was_itself_fetched_is_fetched_as_any_other(container: Container) -> None:
    container.run(STOKER_JOB_ID="a")
    (container.workspace / "model").rename(container.source.parent / "fetched")
    told = {"STORAGE_URI": f"file://{container.source.parent}/fetched", "STOKER_JOB_ID": "b"}
    assert container.run(**told)[0] == 0
    assert set(container.content()) == {*CONTENT, RECORD}
    code, output = container.run(**told)
    assert (code, "fetched for this job" in output) == (0, True), output


def test_what_only_root_reads_at_the_root_of_a_volume_is_left_alone(container: Container) -> None:
    (container.source / "lost+found").mkdir()
    (container.source / "lost+found" / "#12").write_text("of a file system")
    assert container.run()[0] == 0
    assert set(container.content()) == {*CONTENT, RECORD}


def test_a_link_that_leads_nowhere_is_refused_and_not_left_out_in_silence(container: Container) -> None:
    (container.source / "model-2.safetensors").symlink_to("../blobs/gone")
    code, output = container.run()
    assert (code, "model-2.safetensors" in output) == (66, True), output
    assert "is a broken link" in output
    assert container.run(IGNORE_PATTERNS="model-2*")[0] == 0


def test_a_file_that_was_lost_since_is_not_taken_for_whole(container: Container) -> None:
    container.run(STOKER_JOB_ID="a")
    (container.workspace / "model" / "config.json").unlink()
    assert container.run(STOKER_JOB_ID="a")[0] == 78
    assert container.run(STOKER_JOB_ID="a", STOKER_FETCH_REPLACE="true")[0] == 0
    assert set(container.content()) == {*CONTENT, RECORD}


def test_a_missing_claim_is_answered_with_where_to_mount_it(container: Container) -> None:
    code, output = container.run("dataset", STORAGE_URI="pvc://inputs/data")
    assert code == 66
    assert "mount the claim inputs at /mnt/pvc/inputs into the container dataset-initializer" in output


def test_a_dry_run_says_all_and_writes_nothing(container: Container) -> None:
    (container.source / "pytorch_model.bin").touch()
    code, output = container.run("model", "--dry-run")
    assert code == 0
    assert "model.safetensors" in output
    assert "pytorch_model.bin: pickled weights beside safetensors (*.bin)" in output
    assert list(container.workspace.iterdir()) == []


def test_a_pod_that_finds_another_at_work_waits_and_can_be_stopped(container: Container) -> None:
    lock = container.workspace / ".stoker" / "fetch" / "model.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting, stopped = container.start(), container.start()
        for process in (waiting, stopped):
            assert process.stdout is not None
            assert "another pod is fetching" in process.stdout.readline()
        stopped.send_signal(signal.SIGTERM)
        output, _ = stopped.communicate(timeout=120)
        assert (stopped.returncode, "stopped by a signal" in output) == (75, True)
        assert waiting.poll() is None
    output, _ = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, output


def test_a_second_stop_does_not_break_off_the_first(container: Container) -> None:
    # Nobody reads it yet, so writing the termination message takes until somebody does.
    os.mkfifo(container.log)
    lock = container.workspace / ".stoker" / "fetch" / "model.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        stopped = container.start()
        assert stopped.stdout is not None
        assert "another pod is fetching" in stopped.stdout.readline()
        for _ in range(2):
            stopped.send_signal(signal.SIGTERM)
            time.sleep(0.3)
        if stopped.poll() is None:
            assert "stopped by a signal" in container.log.read_text()
    output, _ = stopped.communicate(timeout=120)
    assert (stopped.returncode, "Traceback" in output) == (75, False), output


def test_a_file_that_changes_after_it_was_listed_is_not_mixed_with_the_others(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "data.txt").write_bytes(b"old")
    folder = Folder(asked(f"file://{source}"))
    (listed,) = folder.files()
    (source / "data.txt").write_bytes(b"new")
    os.utime(source / "data.txt", ns=(0, int(listed.tag) + 1))
    with pytest.raises(Unavailable, match=r"data\.txt of .* changed while it was copied"):
        folder.fetch(listed, tmp_path / "unfinished")


def test_links_are_followed_and_never_in_a_circle(container: Container) -> None:
    (container.source / "blob").mkdir()
    (container.source / "blob" / "data").write_bytes(b"x")
    (container.source / "link.json").symlink_to(container.source / "blob" / "data")
    (container.source / "loop").symlink_to(container.source)
    (container.source / "a-link-to-blob").symlink_to("blob")
    assert container.run()[0] == 0
    content = container.content()
    # A folder stays beside a link to it, whichever is listed first.
    assert content["link.json"] == content["a-link-to-blob/data"] == content["blob/data"] == b"x"
    assert not [name for name in content if name.startswith("loop/")]


def test_more_than_the_volume_holds_is_refused_before_it_begins(container: Container) -> None:
    with (container.source / "huge.safetensors").open("wb") as stream:
        stream.truncate(2**43)
    code, output = container.run()
    assert code == 78
    assert "enlarge the workspace's claim" in output
