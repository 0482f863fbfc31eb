"""What the server is started with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from runner.tests.serve.adapters.samples import BASE, make_adapter

from stoker.commands.main import main
from stoker.contract.exits import ExitCode, RunError
from stoker.fetch.request import request_of
from stoker.serve.adapters.prepare import prepare
from stoker.serve.adapters.settings import Settings, load

QWEN = "Qwen/Qwen3-0.6B"


def run(tmp_path: Path, model: Path, **settings: Any) -> dict[str, Any]:
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump({"model": {"path": str(model), "name": "tiny", "source": BASE}, **settings}))
    prepare(load(path), tmp_path / "config")
    written: dict[str, Any] = yaml.safe_load((tmp_path / "config" / "vllm.yaml").read_text())
    return written


def test_the_adapters_of_the_start_become_vllms_configuration(tmp_path: Path, model: Path, output: Path) -> None:
    config = run(tmp_path, model, adapters=[{"name": "support", "path": str(output)}], lora={"maxLoras": 3})
    (entry,) = config.pop("lora-modules")
    assert config == {"enable-lora": True, "max-lora-rank": 8, "max-loras": 3, "max-cpu-loras": 8}
    assert json.loads(entry) == {
        "name": "support", "path": str(tmp_path / "config/adapters/support"), "base_model_name": "tiny",
    }  # fmt: skip


def test_a_base_models_path_of_the_trainer_is_rewritten_beside_the_adapter(
    tmp_path: Path, model: Path, output: Path
) -> None:
    before = (output / "adapter_config.json").read_bytes()
    run(tmp_path, model, adapters=[{"name": "support", "path": str(output)}])
    view = tmp_path / "config/adapters/support"
    assert json.loads((view / "adapter_config.json").read_text())["base_model_name_or_path"] == str(model)
    assert (view / "adapter_model.safetensors").resolve() == output / "adapter_model.safetensors"
    assert (output / "adapter_config.json").read_bytes() == before


def test_an_adapter_that_names_the_servers_model_is_served_from_where_it_is(tmp_path: Path, model: Path) -> None:
    adapter = make_adapter(tmp_path / "a", config={"base_model_name_or_path": str(model)})
    (entry,) = run(tmp_path, model, adapters=[{"name": "a", "path": str(adapter)}])["lora-modules"]
    assert json.loads(entry)["path"] == str(adapter)


def test_preparing_twice_is_the_same(tmp_path: Path, model: Path, output: Path) -> None:
    settings = {"adapters": [{"name": "support", "path": str(output)}]}
    assert run(tmp_path, model, **settings) == run(tmp_path, model, **settings)


@pytest.mark.parametrize(
    ("uri", "source", "revision"),
    [
        ("hf://Qwen/Qwen3-0.6B", QWEN, ""),
        ("hf://Qwen/Qwen3-0.6B/folder", QWEN, ""),
        ("hf://Qwen/Qwen3-0.6B@main/folder", QWEN, "main"),
        ("hf://Qwen/Qwen3-0.6B@refs/pr/3", QWEN, "refs/pr/3"),
        ("hf://Qwen/Qwen3-0.6B@refs%2Fpr%2F3/folder", QWEN, "refs/pr/3"),
        ("hf://models/Qwen/Qwen3-0.6B@v1", QWEN, "v1"),
        ("hf://gpt2@v1", "gpt2", "v1"),
    ],
)
def test_the_base_model_is_what_its_address_fetches(tmp_path: Path, uri: str, source: str, revision: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump({"model": {"path": "/m", "name": "tiny", "source": "", "uri": uri}}))
    settings = load(path)
    assert (settings.source, settings.revision) == (source, revision)
    fetched = request_of("model", {"STORAGE_URI": uri}, tmp_path)
    assert fetched is not None
    assert (fetched.place, fetched.revision or "") == (source, revision)


def test_values_say_what_an_address_elsewhere_holds(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    model = {"path": "/m", "name": "tiny", "source": BASE, "uri": "s3://models/tiny@v1"}
    path.write_text(yaml.safe_dump({"model": model}))
    assert (load(path).source, load(path).revision) == (BASE, "")


def test_a_fleet_without_room_for_adapters_gets_what_loads_whole_weights(tmp_path: Path, model: Path) -> None:
    assert run(tmp_path, model, fleet={"folder": "/f"}) == {"worker-extension-cls": "stoker_in_vllm.Weights"}
    assert "class Weights" in (tmp_path / "config/python/stoker_in_vllm.py").read_text()


def test_a_server_without_adapters_gets_an_empty_configuration(tmp_path: Path, model: Path) -> None:
    assert run(tmp_path, model) == {}


def test_a_folder_for_later_versions_turns_lora_on(tmp_path: Path, model: Path) -> None:
    config = run(tmp_path, model, published={"folder": "/adapters"}, lora={"maxRank": 20})
    assert config == {"enable-lora": True, "max-lora-rank": 32, "max-loras": 4, "max-cpu-loras": 8}


def test_adapters_that_others_load_turn_lora_on_where_their_rank_has_a_bound(tmp_path: Path, model: Path) -> None:
    assert run(tmp_path, model, lora={"others": True}) == {}
    assert run(tmp_path, model, lora={"others": True, "maxRank": 8})["enable-lora"] is True


def test_later_versions_need_a_bound_for_their_rank(tmp_path: Path, model: Path) -> None:
    with pytest.raises(RunError, match=r"lora\.maxRank is missing") as ending:
        run(tmp_path, model, published={"folder": "/adapters"})
    assert ending.value.code is ExitCode.CONFIG


def test_every_wrong_adapter_is_named_with_what_is_wrong(tmp_path: Path, model: Path, output: Path) -> None:
    other = make_adapter(tmp_path / "b", manifest={"base_model": {"name_or_path": "acme/other"}})
    large = make_adapter(tmp_path / "c", config={"r": 64})
    named = [{"name": n, "path": str(p)} for n, p in (("good", output), ("other", other), ("large", large))]
    with pytest.raises(RunError) as ending:
        run(tmp_path, model, adapters=named, lora={"maxRank": 16})
    assert ending.value.code is ExitCode.CONFIG
    base = f"it was trained on acme/other, but the server has {BASE}: serve it with its base model"
    assert ending.value.message.splitlines() == [
        f"adapter other ({other}): {base}",
        f"adapter large ({large}): its rank is 64, but the server takes at most 16: raise lora.maxRank",
    ]
    assert not (tmp_path / "config").exists()


def test_an_adapter_that_is_not_there_is_missing_input(tmp_path: Path, model: Path) -> None:
    message = "adapter a: /none cannot be read .*: correct its claim and path in adapters$"
    with pytest.raises(RunError, match=message) as ending:
        run(tmp_path, model, adapters=[{"name": "a", "path": "/none"}])
    assert ending.value.code is ExitCode.NO_INPUT


def test_a_folder_without_a_model_names_the_values_that_give_it(tmp_path: Path) -> None:
    settings = Settings(Path("/none"), "tiny", model_value="model.claim.name and model.claim.path")
    message = "/none has no model: config.json is missing: correct model.claim.name and model.claim.path$"
    with pytest.raises(RunError, match=message) as ending:
        prepare(settings, tmp_path / "config")
    assert ending.value.code is ExitCode.NO_INPUT


@pytest.mark.parametrize(
    ("adapters", "message"),
    [
        ([{"name": "a"}], "is wrong: write {name: NAME, path: FOLDER}"),
        ([{"name": "a", "path": "/x", "rank": 8}], "is wrong: write {name: NAME, path: FOLDER}"),
        ([{"name": "a b", "path": "/x"}], "adapter name 'a b' is wrong"),
        ([{"name": "a", "path": "/x"}, {"name": "a", "path": "/y"}], "two adapters have the name a"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, model: Path, adapters: list[Any], message: str) -> None:
    with pytest.raises(RunError, match=message) as ending:
        run(tmp_path, model, adapters=adapters)
    assert ending.value.code is ExitCode.CONFIG


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "is not YAML: "),
        (b"\xff\xff\xff", "is not YAML: "),
        (b"a: 2026-13-45", "is not YAML: month must be in 1..12"),
        (b"[" * 5000, "is not YAML: "),
        (b"", "settings.yaml: model is missing: write a mapping"),
        (b"[]", "settings.yaml: model is missing: write a mapping"),
        (b"model: 7", "settings.yaml: model is 7: write a mapping"),
        (b"model: {name: tiny}", "settings.yaml: model.path is missing: write a text"),
        (b"model: {path: !!binary aGk=, name: tiny}", "model.path is b'hi': write a text, in quotes"),
        (b'model: {path: "/a\\0b", name: tiny}', "model.path is '/a\\x00b': write a text, in quotes"),
        (b"model: {path: /m, name: 2026}", "model.name is 2026: write a text, in quotes"),
        (b"model: {path: /m, name: tiny, uri: 7}", "model.uri is 7: write a text, in quotes"),
        (b"model: {path: /m, name: tiny, revision: 123}", "model.revision is 123: write a text, in quotes"),
        (b"model: {path: /m, name: tiny}\nlora: {maxRank: eight}", "lora.maxRank is 'eight': write a whole number"),
        (b"model: {path: /m, name: tiny}\nlora: {maxLoras: true}", "lora.maxLoras is True: write a whole number"),
        (b"model: {path: /m, name: tiny}\nlora: {requireManifest: 'false'}", "write true or false"),
        (
            b"model: {path: /m, name: tiny}\npublished: {keep: 0}",
            "published.keep is 0: write a whole number, 1 or more",
        ),
        (
            b"model: {path: /m, name: tiny}\nadapters: 3",
            "the list of adapters is 3: write [{name: NAME, path: FOLDER}]",
        ),
        (
            b"model: {path: /m, name: tiny}\nadapters: [{name: a, path: 3}]",
            "the path of adapter a is 3: write a folder",
        ),
    ],
)
@pytest.mark.parametrize("command", ["prepare", "watch"])
def test_settings_of_any_content_end_in_a_message(tmp_path: Path, command: str, content: bytes, message: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_bytes(content)
    options = ["--output", str(tmp_path)] if command == "prepare" else []
    result = CliRunner().invoke(main, ["adapters", command, "--settings", str(path), *options])
    assert (result.exit_code, type(result.exception)) == (ExitCode.CONFIG, SystemExit), result.exception
    assert message in result.output


def test_a_null_is_a_missing_setting(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("model: {path: /m, name: tiny, source: null}\nadapters: null\nlora: {requireManifest: null}\n")
    assert load(path) == Settings(Path("/m"), "tiny")
    assert load(path).require_manifest
