"""Data and model are held against the method before a GPU is touched; what cannot be told for sure is left alone."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner.tests.samples import alone, resolve

from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks.torchtune.framework import TorchTune
from stoker.frameworks.trl.framework import TRL
from stoker.node.preflight import check_start, input_problems
from stoker.node.read_inputs import _json_columns, read_data, read_model
from stoker.plan.inputs import DatasetColumns
from stoker.plan.plan import Plan

TALK = [{"role": "user", "content": "a"}]
PAIR = {"chosen": "a", "rejected": "b"}
SAMPLERS = ("--samplers", "http://samplers:8000", "--use_peft")
REWARDED = ("--reward_funcs", "get_soft_overlong_punishment")


def write(folder: Path, files: Mapping[str, Any]) -> Path:
    """Write files: text as it is, a list of rows as JSON lines."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content))
    return folder


def plan_on(folder: Path, method: str, *args: str) -> Plan:
    """Return the plan of a run on `model` and `dataset` in a folder."""
    (folder / "model").mkdir(exist_ok=True)
    env = {
        "STOKER_WORKSPACE": str(folder),
        "STOKER_ARG_MODEL_NAME_OR_PATH": str(folder / "model"),
        "STOKER_ARG_DATASET_NAME": str(folder / "dataset"),
    }
    return resolve(alone(env), (f"trl.scripts.{method}", *args))


def refusal(folder: Path, method: str, *args: str) -> tuple[ExitCode, str]:
    with pytest.raises(RunError) as refused:
        check_start(plan_on(folder, method, *args))
    return refused.value.code, refused.value.message


FITTING: Sequence[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("sft", {"text": "a"}, ()),
    ("sft", {"messages": TALK}, ()),
    ("sft", {"prompt": "a", "completion": "b"}, ()),
    ("sft", {"body": "a"}, ("--dataset_text_field", "body")),
    ("sft", {"input_ids": [1]}, ()),
    ("dpo", PAIR, ()),
    ("dpo", {**PAIR, "prompt": "a"}, ()),
    ("orpo", PAIR, ()),
    ("kto", {"prompt": "a", "completion": "b", "label": True}, ()),
    ("kto", PAIR, ()),
    ("reward", PAIR, ()),
    ("grpo", {"prompt": "a"}, REWARDED),
    ("rloo", {"prompt": TALK}, REWARDED),
    ("grpo_async", {"prompt": "a"}, (*REWARDED, *SAMPLERS)),
    ("grpo_async", {"prompt": TALK}, (*REWARDED, *SAMPLERS, "--tools", "mine:add")),
    ("distillation", {"prompt": "a"}, ("--teacher_model_name_or_path", "a/b")),
    ("sft", {"instruction": "a", "output": "b"}, ("--dataset_format", "alpaca")),
    ("sft", {"conversations": TALK}, ("--dataset_format", "chatml")),
    ("dpo", {"conversations": TALK, **PAIR}, ("--dataset_format", "sharegpt")),
]


@pytest.mark.parametrize(("method", "row", "args"), FITTING)
def test_data_of_a_methods_shape_is_taken(
    tmp_path: Path, method: str, row: dict[str, Any], args: tuple[str, ...]
) -> None:
    write(tmp_path / "dataset", {"train.jsonl": [row]})
    check_start(plan_on(tmp_path, method, *args))


def test_a_line_of_json_ends_where_json_says(tmp_path: Path) -> None:
    line = json.dumps({"text": "a\u2028b\x85c"}, ensure_ascii=False)
    write(tmp_path / "dataset", {"train.jsonl": f"{line}\n{line}\n"})
    code, message = refusal(tmp_path, "dpo")
    assert (code, "has the columns text, but dpo needs" in message) == (ExitCode.BAD_DATA, True)


def test_every_method_has_a_shape() -> None:
    assert {method for method, _, _ in FITTING} == {*TRL.methods}


@pytest.mark.parametrize(
    ("method", "row", "args", "message"),
    [
        ("dpo", {"text": "a", "id": 1}, (), "has the columns text, id, but dpo needs chosen and rejected: rename the"),
        ("dpo", {"text": "a"}, (), "or choose a method that uses these (sft)"),
        ("sft", PAIR, (), "sft needs text, or messages, or prompt and completion, or conversations"),
        ("sft", {"text": "a"}, ("--dataset_text_field", "body"), "sft needs body, or messages"),
        ("sft", {"instruction": "a", "output": "b"}, (), "rename the columns, or write --dataset_format alpaca"),
        (
            "sft",
            {"text": "a"},
            ("--dataset_format", "alpaca"),
            "sft with --dataset_format alpaca needs instruction and",
        ),
        ("kto", {"prompt": "a", "completion": "b"}, (), "kto needs prompt and completion and label, or chosen"),
        ("grpo", {"text": "a"}, REWARDED, "grpo needs prompt"),
        (
            "grpo",
            {"prompt": "a"},
            ("--reward_funcs", "think_format_reward"),
            "reads messages, but the column prompt of",
        ),
        (
            "grpo_async",
            {"prompt": "a"},
            (*REWARDED, *SAMPLERS, "--tools", "mine:add"),
            "holds text, which cannot show tools: write prompts as",
        ),
    ],
)
def test_other_data_is_65_with_what_is_there_and_what_is_needed(
    tmp_path: Path, method: str, row: dict[str, Any], args: tuple[str, ...], message: str
) -> None:
    write(tmp_path / "dataset", {"train.jsonl": [row]})
    code, text = refusal(tmp_path, method, *args)
    assert code is ExitCode.BAD_DATA
    assert message in text


def test_a_reward_that_compares_needs_something_to_compare_with(tmp_path: Path) -> None:
    write(tmp_path / "dataset", {"train.jsonl": [{"prompt": TALK}]})
    _, text = refusal(tmp_path, "grpo", "--reward_funcs", "accuracy_reward")
    assert "needs the column solution" in text
    for reward in ("math_answer", "get_math_answer(wrong=0.0)"):
        code, text = refusal(tmp_path, "grpo_async", *SAMPLERS, "--reward_funcs", reward)
        assert code is ExitCode.BAD_DATA
        assert "needs the right answer in the column answer or solution or ground_truth" in text


@pytest.mark.parametrize(
    "args",
    [
        ("--reward_funcs", "accuracy_reward"),
        ("--report_to", "swanlab", *REWARDED),
        ("--optim", "lion_8bit", *REWARDED),
        ("--deepspeed", "/workspace/zero3.json", *REWARDED),
    ],
)
def test_a_package_the_image_lacks_is_78(tmp_path: Path, args: tuple[str, ...]) -> None:
    write(tmp_path / "dataset", {"train.jsonl": [{"prompt": TALK, "solution": "a"}]})
    code, text = refusal(tmp_path, "grpo", *args)
    assert code is ExitCode.CONFIG
    assert "which is not installed: drop the setting, or use an image that has the package" in text


@pytest.mark.parametrize(
    ("name", "content", "damage"),
    [
        ("config.json", "{", "Expecting property name"),
        ("model.safetensors", "version https://git-lfs.github.com/spec/v1", "its header has an impossible length"),
        ("model-00001-of-00002.safetensors", "", "it ends inside its header"),
        ("pytorch_model.bin", "", "it is empty"),
    ],
)
def test_a_damaged_model_is_66_with_the_file(tmp_path: Path, name: str, content: str, damage: str) -> None:
    files = {"dataset/train.jsonl": [{"text": "a"}], "model/weights.pt": "whole"}
    write(tmp_path, {**files, f"model/{name}": content})
    code, text = refusal(tmp_path, "sft")
    assert code is ExitCode.NO_INPUT
    assert text.startswith(f"{name} of the model {tmp_path}/model is damaged: {damage}")
    assert "Fetch or copy it again" in text


TOKENIZER = {"model/tokenizer_config.json": "{}", "dataset/train.jsonl": [{"messages": TALK}]}


def test_messages_need_a_chat_template(tmp_path: Path) -> None:
    write(tmp_path, TOKENIZER)
    code, text = refusal(tmp_path, "sft")
    assert code is ExitCode.BAD_DATA
    assert "has no chat template" in text
    write(tmp_path, {"dataset/train.jsonl": [{"instruction": "a", "output": "b"}]})
    _, text = refusal(tmp_path, "sft", "--dataset_format", "alpaca")
    assert "the column instruction of" in text
    assert "becomes messages" in text
    write(tmp_path, TOKENIZER)
    check_start(plan_on(tmp_path, "sft", "--chat_template_path", "/a.jinja"))


@pytest.mark.parametrize(
    "files",
    [
        {"model/chat_template.jinja": "x"},
        {"model/tokenizer_config.json": '{"chat_template": "x"}'},
        {"dataset/train.jsonl": [{"text": "a"}]},
    ],
)
def test_a_template_or_plain_text_will_do(tmp_path: Path, files: Mapping[str, Any]) -> None:
    write(tmp_path, {**TOKENIZER, **files})
    check_start(plan_on(tmp_path, "sft"))


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({"max_position_embeddings": 128}, 128),
        ({"max_position_embeddings": 128, "rope_scaling": {"factor": 4.0}}, 512),
        ({"max_position_embeddings": 128, "rope_parameters": {"rope_theta": 1}}, 128),
        ({"text_config": {"max_position_embeddings": 64}}, 64),
        ({"max_position_embeddings": "many"}, None),
        ({"n_positions": None}, None),
        ({"max_position_embeddings": 128, "rope_scaling": {"factor": float("inf")}}, None),
        ({"max_position_embeddings": 128, "rope_scaling": {"factor": float("nan")}}, None),
        ([], None),
    ],
)
def test_the_models_longest_sequence(tmp_path: Path, config: Any, positions: int | None) -> None:
    assert read_model(write(tmp_path, {"config.json": json.dumps(config)})).positions == positions


def test_a_sequence_longer_than_the_model_is_78(tmp_path: Path) -> None:
    files = {"model/config.json": '{"max_position_embeddings": 128}', "dataset/train.jsonl": [{"text": "a"}]}
    write(tmp_path, {**files, "model/weights.pt": "whole"})
    check_start(plan_on(tmp_path, "sft"))
    check_start(plan_on(tmp_path, "sft", "--max_length", "128"))
    code, text = refusal(tmp_path, "sft", "--max_length", "129")
    assert code is ExitCode.CONFIG
    assert "write 128 or less" in text


@pytest.mark.parametrize(
    ("options", "is_longer"),
    [
        ({"max_position_embeddings": 256}, True),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e6}}, True),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, True),
        ({"attention_dropout": 0.1}, False),
    ],
)
def test_a_flag_may_give_the_model_more_positions(tmp_path: Path, options: dict[str, Any], is_longer: bool) -> None:
    files = {"model/config.json": '{"max_position_embeddings": 128}', "dataset/train.jsonl": [{"text": "a"}]}
    write(tmp_path, {**files, "model/weights.pt": "whole"})
    args = ("sft", "--max_length", "256", "--model_init_kwargs", json.dumps(options))
    if is_longer:
        check_start(plan_on(tmp_path, *args))
    else:
        assert "write 128 or less" in refusal(tmp_path, *args)[1]


CARD = """---
configs:
- config_name: one
  data_files: [{split: train, path: a/*.jsonl}, {split: test, path: b/*.jsonl}]
- config_name: two
  data_files: [{split: train, path: [b/*.jsonl]}]
---
"""
CARD_OF_ANOTHER_PLACE = """---
configs:
- config_name: one
  data_files: [{split: train, path: /data/x.jsonl}]
---
"""


@pytest.mark.parametrize(
    ("files", "config", "expected"),
    [
        ({"x.jsonl": [{"a": 1}]}, None, {"a": "other"}),
        ({"data/train.json": '[{"a": "x"}, {"b": [{"c": 1}]}]'}, None, {"a": "text", "b": "messages"}),
        ({"train.csv": "a,b\n1,2\n"}, None, {"a": "text", "b": "text"}),
        ({"train.tsv": "a\tb\n1\t2\n"}, None, {"a": "text", "b": "text"}),
        ({"test.jsonl": [{"b": 1}], "train.jsonl": [{"a": 1}]}, None, {"a": "other"}),
        ({"test/x.jsonl": [{"b": 1}], "train/x.jsonl": [{"a": 1}]}, None, {"a": "other"}),
        ({"README.md": CARD, "a/x.jsonl": [{"a": 1}], "b/x.jsonl": [{"b": 1}]}, "one", {"a": "other"}),
        ({"README.md": CARD, "a/x.jsonl": [{"a": 1}], "b/x.jsonl": [{"b": 1}]}, "two", {"b": "other"}),
        ({"README.md": "# Title", ".git/x": "", "x.jsonl": [{"a": 1}]}, None, {"a": "other"}),
        ({"x.jsonl": [{"a": None}, {"a": "x", "b": "y"}, {}]}, None, {"a": "text", "b": "text"}),
    ],
)
def test_columns_are_read_as_the_library_finds_them(
    tmp_path: Path, files: Mapping[str, Any], config: str | None, expected: Mapping[str, str]
) -> None:
    data = read_data(write(tmp_path, files), config, "train")
    assert data is not None
    assert data.columns == expected


@pytest.mark.parametrize(
    ("files", "config"),
    [
        ({"x.txt": "a"}, None),
        ({"x.jsonl": "no json"}, None),
        ({"x.jsonl": "[]"}, None),
        ({"x.jsonl": "1\n2\n3\n"}, None),
        ({"x.json": "["}, None),
        ({"a.jsonl": [{"a": 1}], "b.csv": "a"}, None),
        ({"test.jsonl": [{"a": 1}]}, None),
        ({"README.md": CARD, "a/x.jsonl": [{"a": 1}]}, None),
        ({"README.md": CARD, "a/x.jsonl": [{"a": 1}]}, "three"),
        ({"README.md": "---\n: [\n---\n", "x.jsonl": [{"a": 1}]}, None),
        ({"x.jsonl": [{"a": 1}]}, "some"),
        ({"x.parquet": "not parquet"}, None),
        ({"x.csv": "a" * 200_000}, None),
        ({"README.md": CARD_OF_ANOTHER_PLACE, "x.jsonl": [{"a": 1}]}, None),
        ({"README.md": CARD_OF_ANOTHER_PLACE.replace("/data/x.jsonl", "."), "x.jsonl": [{"a": 1}]}, None),
    ],
)
def test_what_cannot_be_told_for_sure_is_left_to_the_library(
    tmp_path: Path, files: Mapping[str, Any], config: str | None
) -> None:
    assert read_data(write(tmp_path, files), config, "train") is None


def test_a_compressed_file_that_is_cut_or_damaged_is_left_to_the_library(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"a": "x"}\n' * 100_000, compresslevel=0)
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 10])
    assert read_data(tmp_path, None, "train") is None
    path.write_bytes(whole[:10] + b"\xff" * 20 + whole[30:])
    assert read_data(tmp_path, None, "train") is None


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "train.jsonl.gz", "wt") as stream:
        stream.write('{"a": "x"}\n')
    assert read_data(tmp_path, None, "train") == DatasetColumns(str(tmp_path / "train.jsonl.gz"), {"a": "text"})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"state.json": "{}", "data-0.arrow": ""}, "was written by save_to_disk"),
        ({"dataset_dict.json": "{}", "train/state.json": "{}"}, "was written by save_to_disk"),
        ({".keep": ""}, "has no files"),
    ],
)
def test_a_folder_the_library_would_refuse_is_65(tmp_path: Path, files: Mapping[str, Any], message: str) -> None:
    write(tmp_path / "dataset", files)
    code, text = refusal(tmp_path, "sft")
    assert code is ExitCode.BAD_DATA
    assert message in text


def test_a_split_that_no_file_has_is_65(tmp_path: Path) -> None:
    write(tmp_path / "dataset", {"train.jsonl": [{"text": "a"}]})
    code, text = refusal(tmp_path, "sft", "--dataset_train_split", "validation")
    assert code is ExitCode.BAD_DATA
    assert "has no split validation: name an existing split in --dataset_train_split" in text


@pytest.mark.parametrize(
    ("files", "args", "message"),
    [
        (("train.jsonl",), (), None),
        (("train.jsonl",), ("--eval_strategy", "no"), None),
        (("train.jsonl",), ("--eval_strategy", "steps"), "has no split test to evaluate on"),
        (("rows.jsonl",), ("--eval_strategy", "epoch"), "has no split test to evaluate on"),
        (("train.jsonl", "test.jsonl"), ("--eval_strategy", "steps"), None),
        (("train.jsonl", "eval.jsonl"), ("--eval_strategy", "steps"), None),
        (
            ("train.jsonl", "test.jsonl"),
            ("--eval_strategy", "steps", "--dataset_test_split", "validation"),
            "has no split validation to evaluate on",
        ),
        # Only the library knows of other names.
        (("train.jsonl",), ("--eval_strategy", "steps", "--dataset_test_split", "other"), None),
    ],
)
def test_a_split_to_evaluate_on_is_there(
    tmp_path: Path, files: Sequence[str], args: Sequence[str], message: str | None
) -> None:
    write(tmp_path / "dataset", {name: [{"text": "a"}] for name in files})
    if message is None:
        check_start(plan_on(tmp_path, "sft", *args))
        return
    code, text = refusal(tmp_path, "sft", *args)
    assert code is ExitCode.BAD_DATA
    assert message in text
    assert "--dataset_test_split, or leave out --eval_strategy" in text


def test_a_missing_split_is_told_in_the_words_of_the_framework(tmp_path: Path) -> None:
    write(tmp_path / "dataset", {"train.jsonl": [{"text": "a"}]})
    evaluating = plan_on(tmp_path, "sft", "--eval_strategy", "steps")
    told = [text for _, text in input_problems(replace(evaluating, flag_names=TorchTune.flag_names), lambda path: path)]
    missing = f"the data set {tmp_path / 'dataset'} has no split test to evaluate on"
    assert told == [f"{missing}: name an existing split, or do not evaluate"]
    found = read_data(tmp_path / "dataset", None, "validation", TorchTune.flag_names.split)
    assert found is not None
    assert found.problem == "has no split validation: name an existing split in dataset.split"


def test_ids_on_the_hub_are_left_to_the_library(tmp_path: Path) -> None:
    named = {"STOKER_ARG_MODEL_NAME_OR_PATH": "a/b", "STOKER_ARG_DATASET_NAME": "c/d"}
    check_start(resolve(alone({**named, "STOKER_WORKSPACE": str(tmp_path)})))


def test_a_mixture_stands_in_the_place_of_the_data_set(tmp_path: Path) -> None:
    write(tmp_path, {"dataset/train.jsonl": [{"nothing": 1}], "c.yaml": ""})
    env = {"STOKER_WORKSPACE": str(tmp_path), "STOKER_ARG_DATASET_NAME": str(tmp_path / "dataset")}
    env["STOKER_ARG_MODEL_NAME_OR_PATH"] = str(tmp_path)
    config = {"datasets": [{"path": "a/b"}]}
    check_start(resolve(alone(env), ("--config", str(tmp_path / "c.yaml")), config=config))


def test_a_byte_order_mark_is_no_part_of_a_column(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_bytes(b"\xef\xbb\xbftext,label\na,b\n")
    data = read_data(tmp_path, None, "train")
    assert data is not None
    assert [*data.columns] == ["text", "label"]


def test_data_without_a_row_is_refused(tmp_path: Path) -> None:
    code, message = refusal(write(tmp_path, {"dataset/train.jsonl": ""}), "sft")
    assert code is ExitCode.BAD_DATA
    assert "is empty: put rows into it" in message


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"config.json": "{}"}, "is incomplete: it has no weights. Fetch or copy it again"),
        (
            {
                "config.json": "{}",
                "model-1.safetensors": "",
                "model.safetensors.index.json": json.dumps(
                    {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
                ),
            },
            "model.safetensors.index.json lists model-2.safetensors, which is not there",
        ),
    ],
)
def test_a_model_without_all_its_weights_is_refused(tmp_path: Path, files: dict[str, str], says: str) -> None:
    write(tmp_path, {"dataset/train.jsonl": [{"text": "a"}], **{f"model/{name}": text for name, text in files.items()}})
    code, message = refusal(tmp_path, "sft")
    assert code is ExitCode.NO_INPUT
    assert says in message


@given(st.text(max_size=200), st.sampled_from(["x.jsonl", "x.json", "x.csv", "README.md", "config.json"]))
def test_no_content_ends_in_a_traceback(tmp_path_factory: pytest.TempPathFactory, content: str, name: str) -> None:
    folder = tmp_path_factory.mktemp("odd")
    (folder / name).write_bytes(content.encode("utf-8", "surrogatepass"))
    read_data(folder, None, "train")
    read_model(folder)


def test_rows_cut_off_by_the_limit_are_no_problem() -> None:
    import io

    assert _json_columns(io.StringIO('{"a": "x"}\n{"a": "y", "b": ')) == {"a": "text"}
    assert _json_columns(io.StringIO('[{"a": "x"}, {"b": ')) == {"a": "text"}
