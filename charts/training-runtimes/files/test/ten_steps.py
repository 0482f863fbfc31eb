"""Trains ten steps where there is nothing to fetch: makes a model of random weights and a few rows, and hands over.

Runs in the TrainJob that `helm test` makes, in place of the runtime's command.
"""

import json
import os
import shutil
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

WORKSPACE = Path(os.environ["STOKER_WORKSPACE"])
MODEL, DATASET = WORKSPACE / "model", WORKSPACE / "dataset"
ROWS = [{"prompt": f"{number} and one is", "completion": f" {number + 1}."} for number in range(64)]

# A claim that is shared may hold what an earlier test has left.
for folder in (MODEL, DATASET, WORKSPACE / "output"):
    shutil.rmtree(folder, ignore_errors=True)

bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
alphabet = pre_tokenizers.ByteLevel.alphabet()
bpe.train_from_iterator([], trainers.BpeTrainer(initial_alphabet=alphabet, special_tokens=["<end>"]))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<end>", pad_token="<end>")
model = Qwen2ForCausalLM(
    Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
)
tokenizer.save_pretrained(MODEL)
model.save_pretrained(MODEL)
DATASET.mkdir()
(DATASET / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))

flags = {
    "model_name_or_path": MODEL,
    "dataset_name": DATASET,
    "max_steps": 10,
    "per_device_train_batch_size": 2,
    "max_length": 64,
    "logging_steps": 1,
    "report_to": "none",
}
command = ["stoker", "run", *(f"--{name}={value}" for name, value in flags.items())]
os.execvp(command[0], command)
