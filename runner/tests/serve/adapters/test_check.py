"""An adapter that a server cannot serve is refused by what is wrong with it, before a server starts."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from runner.tests.serve.adapters.samples import BASE, HIDDEN, PREFIX, make_adapter, make_model, write_tensors

from stoker.contract.exits import ExitCode, RunError
from stoker.serve.adapters import check
from stoker.serve.adapters.files import read_adapter, read_base_model
from stoker.serve.adapters.prepare import verdict


def problems(adapter: Path, model: Path, *, source: str = BASE, max_rank: int = 16, **options: bool) -> str:
    return "; ".join(check.problems(read_adapter(adapter), read_base_model(model, source), max_rank, **options))


def test_an_adapter_of_a_finished_run_fits_its_base_model(output: Path, model: Path) -> None:
    assert problems(output, model) == ""


def test_a_path_in_a_trainers_pod_says_nothing_of_the_base_model(tmp_path: Path, model: Path) -> None:
    adapter = make_adapter(tmp_path / "a", manifest={"base_model": {"name_or_path": "/workspace/model"}})
    assert problems(adapter, model) == ""


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "its PEFT type is 'IA3', but vLLM only serves 'LORA'"),
        ({"r": "2"}, "its rank r is '2': it must be a whole number, 1 or more"),
        ({"bias": "all"}, "it was trained with bias='all', but vLLM only serves bias='none'"),
        ({"use_dora": True}, "use_dora, but vLLM does not serve DoRA: merge it into its base model"),
        (
            {"modules_to_save": ["lm_head", "score"]},
            "it replaces whole modules (lm_head), but vLLM does not serve those",
        ),
        ({"modules_to_save": 5}, "its modules_to_save is 5, not a list of names"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern={'q_proj': 4}, but vLLM ignores that"),
        ({"trainable_token_indices": [7]}, "trainable_token_indices=[7], but vLLM ignores that"),
        ({"invented_later": 1}, "invented_later=1, but vLLM ignores that"),
        ({"init_lora_weights": "pissa_niter_4"}, "on a changed base model: convert it when you save it"),
        ({"r": 64}, "its rank is 64, but the server takes at most 16: raise lora.maxRank"),
    ],
)
def test_a_configuration_that_vllm_does_not_serve(
    tmp_path: Path, model: Path, config: dict[str, Any], message: str
) -> None:
    assert message in problems(make_adapter(tmp_path / "a", config=config), model)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"schemaVersion": 2}, "stoker.json has schemaVersion 2, but this Stoker reads 1"),
        ({"status": "stopped"}, "the run is 'stopped', not 'finished'"),
        ({"adapter": None}, "its run trained the whole model, not an adapter: serve the output as the model"),
        ({"adapter": {"changed_embeddings": ["model.embed_tokens.weight"]}}, "but vLLM ignores those: merge it into"),
        ({"base_model": "acme/tiny"}, "stoker.json: base_model is 'acme/tiny', not an object"),
        ({"adapter": "lora"}, "stoker.json: adapter is 'lora', not an object or null"),
        ({"adapter": {"changed_embeddings": 5}}, "adapter.changed_embeddings is 5, not a list of names"),
        ({"files": None}, "stoker.json: files is None, not a list"),
        ({"files": []}, "stoker.json does not list adapter_model.safetensors"),
        ({"files": [{"path": "..", "bytes": 1}]}, "stoker.json lists '..', which is not a file"),
        (
            {"base_model": {"name_or_path": "acme/other"}},
            f"it was trained on acme/other, but the server has {BASE}: serve it with its base model",
        ),
    ],
)
def test_a_manifest_that_speaks_against_it(tmp_path: Path, model: Path, manifest: dict[str, Any], message: str) -> None:
    assert message in problems(make_adapter(tmp_path / "a", manifest=manifest), model)


def test_another_revision_of_the_base_model(tmp_path: Path, model: Path) -> None:
    adapter = make_adapter(tmp_path / "a", manifest={"base_model": {"name_or_path": BASE, "revision": "one"}})
    (problem,) = check.problems(read_adapter(adapter), read_base_model(model, BASE, "two"), 16)
    assert problem == f"it was trained on revision one of {BASE}, but the server has two"


def test_an_adapter_without_a_manifest_is_served_only_where_that_is_allowed(output: Path, model: Path) -> None:
    (output / "stoker.json").unlink()
    assert "stoker.json is missing, so the run may not have finished" in problems(output, model)
    assert problems(output, model, require_manifest=False) == ""


def test_modules_that_the_base_model_does_not_have(tmp_path: Path, model: Path) -> None:
    shapes = {f"{PREFIX}.query.lora_A.weight": (2, HIDDEN), f"{PREFIX}.query.lora_B.weight": (HIDDEN, 2)}
    found = problems(make_adapter(tmp_path / "a", shapes=shapes), model)
    assert found.startswith("the base model has no layers.0.self_attn.query: the adapter is for another model")


def test_a_base_model_of_another_size(tmp_path: Path, output: Path) -> None:
    found = problems(output, make_model(tmp_path / "larger", hidden=2 * HIDDEN))
    assert "its matrices do not fit: layers.0.self_attn.q_proj is 16×16 in the base model" in found


def test_a_quantized_base_models_tensors_are_known_by_their_modules(tmp_path: Path, output: Path) -> None:
    """Names and shapes of AWQ, and of a model that was saved with bitsandbytes."""
    model = make_model(tmp_path / "quantized")
    (model / "config.json").write_text('{"quantization_config": {"quant_method": "awq"}}')
    prefix = "model.layers.0.self_attn"
    packed: dict[str, tuple[int, ...]] = {f"{prefix}.q_proj.qweight": (8, 1), f"{prefix}.q_proj.scales": (1, 8)}
    packed |= {f"{prefix}.v_proj.weight": (32, 1), f"{prefix}.v_proj.weight.absmax": (4,)}
    write_tensors(model / "model.safetensors", packed)
    assert problems(output, model) == ""
    write_tensors(model / "model.safetensors", {f"{prefix}.q_proj.qweight": (8, 1)})
    assert "the base model has no layers.0.self_attn.v_proj" in problems(output, model)


def test_weights_without_any_matrix(tmp_path: Path, model: Path) -> None:
    assert "has no LoRA matrices" in problems(make_adapter(tmp_path / "a", shapes={"x": (1,)}), model)


def test_tokens_that_the_servers_tokenizer_does_not_know(tmp_path: Path, model: Path) -> None:
    found = problems(make_adapter(tmp_path / "a", added_tokens=2), model)
    assert found.startswith("its tokenizer has 12 tokens, but the base model's has 10")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("adapter_model.safetensors", b"", "adapter_model.safetensors: it ends inside its header"),
        ("adapter_model.safetensors", None, "adapter_model.safetensors is missing"),
        ("adapter_config.json", b"[]", "adapter_config.json is not a JSON object"),
        ("adapter_config.json", None, "adapter_config.json is missing"),
        ("stoker.json", b"half", "stoker.json is not a JSON object"),
    ],
)
def test_a_broken_file(output: Path, model: Path, name: str, content: bytes | None, message: str) -> None:
    if content is None:
        (output / name).unlink()
    else:
        (output / name).write_bytes(content)
    assert message in problems(output, model)


def test_a_bit_that_changed_since_the_run_wrote_it(output: Path, model: Path) -> None:
    weights = output / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert problems(output, model) == (
        "adapter_model.safetensors has changed since the run: its checksum differs from stoker.json"
    )


@pytest.mark.parametrize("entry", [{}, {"shape": 5}, {"shape": ["8", 8]}])
def test_weights_whose_header_says_no_shapes(tmp_path: Path, model: Path, entry: dict[str, Any]) -> None:
    adapter = make_adapter(tmp_path / "a")
    (adapter / "stoker.json").unlink()
    header = json.dumps({f"{PREFIX}.q_proj.lora_A.weight": {**entry, "data_offsets": [0, 0]}}).encode()
    (adapter / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert "adapter_model.safetensors: its header " in problems(adapter, model, require_manifest=False)


def test_large_weights_without_a_header(tmp_path: Path, model: Path) -> None:
    adapter = make_adapter(tmp_path / "a")
    manifest = json.loads((adapter / "stoker.json").read_text())
    for entry in manifest["files"]:
        entry.pop("sha256")
        entry["header_sha256"] = "0" * 64
    (adapter / "stoker.json").write_text(json.dumps(manifest))
    assert "tokenizer.json has changed since the run: its header differs" in problems(adapter, model)


@pytest.mark.parametrize("name", ["stoker.json", "adapter_config.json"])
def test_a_file_that_cannot_be_read_is_not_called_broken(output: Path, model: Path, name: str) -> None:
    (output / name).unlink()
    (output / name).symlink_to(name)
    with pytest.raises(RunError, match=f"output/{name} cannot be read .Too many levels of symbolic links.") as ending:
        verdict(output, model, BASE, 16, require_manifest=True)
    assert ending.value.code is ExitCode.NO_INPUT


def test_an_index_that_names_no_files(model: Path) -> None:
    (model / "model.safetensors.index.json").write_text('{"weight_map": {"a": 5}}')
    with pytest.raises(RunError, match=r"the weights in .* cannot be read") as ending:
        read_base_model(model)
    assert ending.value.code is ExitCode.NO_INPUT


def test_a_sharded_base_model_is_read_by_its_index(model: Path, output: Path) -> None:
    (model / "model.safetensors").rename(model / "model-00001-of-00001.safetensors")
    names = ["model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.v_proj.weight"]
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert set(read_base_model(model).tensors) == set(names)
    assert problems(output, model) == ""


def test_a_folder_without_a_model_is_missing_input(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has no model") as ending:
        read_base_model(tmp_path)
    assert ending.value.code is ExitCode.NO_INPUT


@pytest.mark.parametrize(("rank", "allowed"), [(1, 1), (2, 8), (8, 8), (65, 128), (257, 320), (512, 512), (513, None)])
def test_a_rank_is_raised_to_one_that_vllm_takes(rank: int, allowed: int | None) -> None:
    assert check.snapped(rank) == allowed
