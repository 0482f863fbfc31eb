"""Print the evaluation loss of some samples in TRL's SFTTrainer, one by one and packed in its ways, as JSON.

argv is a folder with a tokenizer and a folder to write to. Runs in an environment with the trainers.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from datasets import Dataset
from runner.tests.integration.packed_losses import LENGTHS, VOCABULARY, tiny_model
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

WAYS: dict[str, dict[str, Any]] = {
    "alone": {"packing": False},
    "bfd": {"packing": True, "packing_strategy": "bfd"},
    "wrapped": {"packing": True, "packing_strategy": "wrapped"},
}


def main(tokenizer: str, folder: str) -> None:
    """Print the loss of each way."""
    # Weights of the usual size make all tokens nearly as likely, whatever a sample sees.
    model = tiny_model("sdpa", initializer_range=0.3)
    rows = Dataset.from_list([{"input_ids": torch.randint(VOCABULARY, (length,)).tolist()} for length in LENGTHS])
    found = {}
    for name, way in WAYS.items():
        config = SFTConfig(
            output_dir=folder,
            max_length=sum(LENGTHS),
            per_device_eval_batch_size=len(LENGTHS),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            **way,
        )
        processing = AutoTokenizer.from_pretrained(tokenizer)
        trainer = SFTTrainer(model, config, train_dataset=rows, eval_dataset=rows, processing_class=processing)
        found[name] = trainer.evaluate()["eval_loss"]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
