"""Whatever a user hands in ends well or with one of our exit codes and a message, never with a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runner.tests.samples import pod, resolve

from builders import RUNTIME, kept, paths, trainjob, variables, with_initializers
from stoker.cluster.resources import read_resources, runtime_of, trainjobs_of
from stoker.cluster.validate import validate_one
from stoker.contract.exits import ExitCode, RunError
from stoker.fetch.request import request_of
from stoker.frameworks import get_framework, known_frameworks
from stoker.frameworks.trl.dataset_formats import COLUMNS, METHODS, BadRowError, converted
from stoker.node.planning import read_config
from stoker.node.read_inputs import read_data, read_model

# `make test` has a thousand inputs in all, `make test-full` a hundred thousand.
SHARES = [pytest.param(1, id="some"), pytest.param(100, marks=pytest.mark.full, id="all")]
_FRAMEWORKS = known_frameworks()
_RUNTIMES = (kept(RUNTIME), with_initializers(["stoker", "fetch", "model"]))
_FULL = trainjob(
    spec={"initializer": {"model": {"storageUri": "hf://a/b", "env": variables({"A": "1"})}}, "suspend": False},
    numNodes=2,
    numProcPerNode=1,
    image="mine:1",
    command=["stoker", "run"],
    args=["--max_steps", "3"],
    env=[*variables({"A": "1"}), {"name": "B", "valueFrom": {"secretKeyRef": {"name": "b", "key": "b"}}}],
    resourcesPerNode={"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2"}},
)
_WORDS = (
    *("", "-", "--", "=", "0", "-1", "1e309", "nan", "٣", "9" * 40, "true", "null", "[", "{}", "{", "%", "$(A)", "$$"),
    *("/workspace/model", "../..", "~", "\u202e", "a b", "--max_steps", "--no-bf16", "--config", "stoker", "torchrun"),
    *("-m", "trl.scripts.sft", "trl", "tune", "run", "python", "accelerate", "launch", "--nnodes=x", "hf://", "s3://a"),
)
# Text as a terminal, a file or the API server can hand it on.
_TEXT = st.sampled_from(_WORDS) | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | _TEXT
_JSON = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3), max_leaves=6
)
_FLAGS = sorted({flag for one in _FRAMEWORKS.values() for name in one.methods for flag in one.flag_table(name).flags})
_FLAG = st.sampled_from(_FLAGS)
_NAMES = ("STOKER_METHOD", "STOKER_RESUME", "STOKER_SHARDING", "STOKER_NPROC_PER_NODE", "STOKER_RUNTIME_DEFAULTS")
_VARIABLES = st.dictionaries(
    st.sampled_from([*_NAMES, "STOKER_WORKSPACE", "STOKER_HANG_TIMEOUT_SECONDS", "CUDA_VISIBLE_DEVICES"])
    | _FLAG.map(lambda flag: f"STOKER_ARG_{flag.upper().replace('.', '__')}")
    | _TEXT.filter(bool),
    _TEXT,
    max_size=4,
)
_ARGS = st.lists(
    _TEXT
    | _FLAG.map("--{}".format)
    | st.builds("--{}={}".format, _FLAG, _TEXT)
    | st.builds("{}={}".format, _FLAG, _TEXT),
    max_size=6,
)


def fuzz(count: int, check: Callable[..., None], *inputs: st.SearchStrategy[Any]) -> None:
    """Run a check with so many inputs, which follow from its name."""
    chosen = settings(
        max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=[*HealthCheck]
    )
    chosen(given(*inputs)(check))()


def ends_well(act: Callable[[], object]) -> None:
    """Let something happen, which may be refused with a code that no retry can help, and a message."""
    refused = None
    try:
        act()
    except RunError as error:
        refused = error
    assert refused is None or (refused.code.is_final and refused.message.strip())


@st.composite
def changed_trainjobs(draw: st.DrawFn) -> Any:
    """Return a TrainJob in which values are others, are gone, or have another key."""
    made = deepcopy(_FULL)
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from([*paths(made)]))
        parent: Any = made
        for key in way:
            parent = parent[key]
        match draw(st.sampled_from(("replace", "replace", "drop", "rename", "double"))):
            case "replace":
                parent[last] = draw(_JSON)
            case "drop":
                del parent[last]
            case "rename" if isinstance(parent, dict):
                parent[draw(_TEXT)] = parent.pop(last)
            case _ if isinstance(parent, list):
                parent.append(parent[last])
        if not [*paths(made)]:
            break
    return made


@pytest.mark.parametrize("share", SHARES)
def test_trainjobs(share: int) -> None:
    def check(job: Any, runtime: int) -> None:
        def judged() -> None:
            verdict = validate_one(job, _RUNTIMES[runtime])
            assert (verdict.code is ExitCode.FINISHED) == (not verdict.problems)
            assert all(code.is_final and text.strip() for code, text in verdict.problems)
            assert str(verdict).strip()

        ends_well(judged)

    fuzz(250 * share, check, changed_trainjobs(), st.integers(0, 1))


@pytest.mark.parametrize("share", SHARES)
def test_files_of_trainjobs(share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no cluster is asked for a runtime
    path = tmp_path / "trainjob.yaml"
    whole = yaml.safe_dump(_FULL)

    def check(start: int, length: int, text: str, job: Any) -> None:
        shown = yaml.safe_dump(job) if length > 30 else whole
        path.write_text(shown[:start] + text + shown[start + length :], encoding="utf-8", errors="replace")

        def read() -> None:
            for found in trainjobs_of(read_resources(path), path):
                verdict = validate_one(found, runtime_of(found, _RUNTIMES))
                assert all(code.is_final for code, _ in verdict.problems)

        ends_well(read)

    text = (
        st.sampled_from(("\t", ": ", "- ", "&a ", "*a", "!!int ", "!!bool ", "? ", "|\n", "---\n", "'", "{", "<<: "))
        | _TEXT
    )
    fuzz(100 * share, check, st.integers(0, len(whole)), st.integers(0, 40), text, changed_trainjobs())


@pytest.mark.parametrize("share", SHARES)
def test_arguments_and_variables(share: int) -> None:
    def check(args: list[str], env: dict[str, str], framework: str, command: list[str]) -> None:
        ends_well(lambda: resolve(pod({"STOKER_FRAMEWORK": framework, **env}), args))
        job = trainjob(command=command, args=args, env=variables(env))
        ends_well(lambda: validate_one(job, _RUNTIMES[0]))

    starts: tuple[list[str], ...] = (
        [],
        ["stoker"],
        ["torchrun", "-m"],
        ["trl"],
        ["tune", "run"],
        ["python", "-m"],
        ["accelerate", "launch"],
    )
    frameworks = st.sampled_from(("trl", "torchtune"))
    fuzz(250 * share, check, _ARGS, _VARIABLES, frameworks, st.sampled_from(starts))


@pytest.mark.parametrize("share", SHARES)
def test_config_files(share: int, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"

    def check(content: dict[str, Any], framework: str) -> None:
        path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
        ends_well(
            lambda: resolve(pod({"STOKER_FRAMEWORK": framework}), ["--config", str(path)], config=read_config(path))
        )

    content = st.dictionaries(_FLAG | st.sampled_from(("env", "datasets")) | _TEXT, _JSON, max_size=4)
    fuzz(150 * share, check, content, st.sampled_from(("trl", "torchtune")))


@pytest.mark.parametrize("share", SHARES)
def test_models_and_data_sets(share: int, tmp_path: Path) -> None:
    model, data = tmp_path / "model", tmp_path / "data"
    model.mkdir()
    data.mkdir()

    def check(config: Any, rows: list[Any], text: str, name: str) -> None:
        (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (model / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (data / name).write_text(lines + text if name != "README.md" else f"---\n{text}\n---\n", encoding="utf-8")
        columns, folder = read_data(data, None, "train"), read_model(model)
        for framework, methods in (("trl", ("sft", "dpo", "grpo")), ("torchtune", ("lora",))):
            for method in methods:
                [*get_framework(framework).check_inputs(method, {}, columns, folder)]
        (data / name).unlink()

    config = st.dictionaries(
        st.sampled_from(
            ("max_position_embeddings", "rope_scaling", "text_config", "chat_template", "num_hidden_layers")
        )
        | st.sampled_from(("hidden_size", "vocab_size", "model_type", "num_attention_heads", "intermediate_size")),
        _JSON,
        max_size=6,
    )
    names = st.sampled_from(("train.jsonl", "train.json", "train.csv", "test.tsv", "train.jsonl.gz", "README.md", "x"))
    fuzz(100 * share, check, config | _JSON, st.lists(_JSON, max_size=3), _TEXT, names)


@pytest.mark.parametrize("share", SHARES)
def test_rows_of_other_formats(share: int) -> None:
    def check(row: dict[str, Any], name: str, method: str) -> None:
        made: object = None
        try:
            made = converted(name, method, row)
        except BadRowError as error:
            made = str(error).strip()
        assert made

    turn = st.dictionaries(st.sampled_from(("role", "content", "from", "value")), _JSON, max_size=4)
    cell = _JSON | turn | st.lists(turn, max_size=3)
    columns = st.sampled_from(
        ("instruction", "input", "output", "system", "history", "conversations", "messages", "chosen", "rejected")
    )
    rows = st.dictionaries(columns, cell, max_size=5)
    fuzz(100 * share, check, rows, st.sampled_from(sorted(COLUMNS)), st.sampled_from(METHODS))


@pytest.mark.parametrize("share", SHARES)
def test_what_initializers_are_told(share: int, tmp_path: Path) -> None:
    def check(kind: str, scheme: str, rest: str, env: dict[str, str]) -> None:
        ends_well(lambda: request_of(kind, {**env, "STORAGE_URI": f"{scheme}{rest}"}, tmp_path))

    schemes = st.sampled_from(("hf://", "s3://", "gs://", "file://", "pvc://", "HF://", "hf:", "://", ""))
    told = st.dictionaries(st.sampled_from(("STOKER_FETCH_REPLACE", "ENDPOINT", "REGION", "IGNORE_PATTERNS")), _TEXT)
    fuzz(50 * share, check, st.sampled_from(("model", "dataset")), schemes, _TEXT, told)
