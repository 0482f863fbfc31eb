"""llama.cpp's converter on a whole model: `python gguf_cases.py FOLDER`; `… write FOLDER` only writes the model."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from click.testing import CliRunner
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stoker.commands.main import main
from stoker.contract.manifest import write_manifest

TEXTS = ["the symbol of iron is Fe", "the symbol of gold is Au", "1+2=3 and 4+5=9"]


def model(folder: Path) -> None:
    """Write a Llama whose tokenizer is of a kind that llama.cpp knows: words with U+2581, and bytes for the rest."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, special_tokens=special))
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names)
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(fast), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(folder)
    write_manifest(folder, {"method": "sft", "base_model": {"name_or_path": "org/base", "revision": None}})


def run(folder: Path) -> None:
    """Convert it, and read what was written with llama.cpp's own reader."""
    output = folder / "output"
    model(output)
    written = folder / "model.gguf"
    done = CliRunner().invoke(main, ["export", str(output), "--gguf", str(written)])
    assert done.exit_code == 0, done.output
    (cache,) = (Path(os.environ["XDG_CACHE_HOME"]) / "stoker").iterdir()
    sys.path.insert(0, str(cache / "gguf-py"))
    import gguf

    read = gguf.GGUFReader(written)
    assert read.get_field("general.architecture").contents() == "llama"
    names = {tensor.name: tuple(int(size) for size in tensor.shape) for tensor in read.tensors}
    assert names["blk.1.ffn_up.weight"] == (32, 64)
    again = CliRunner().invoke(main, ["export", str(output), "--gguf", str(folder / "again.gguf")])
    assert (again.exit_code, "fetching" in again.output) == (0, False), again.output
    assert (folder / "again.gguf").read_bytes() == written.read_bytes()


if __name__ == "__main__":
    (model if sys.argv[1] == "write" else run)(Path(sys.argv[-1]))
