"""Prints what PEFT answers greedily, in a pod of the trainer's image: token ids by question, with and without adapter.

Args on the command line: folder of the base model, folder of the adapter, a JSON list of questions.
"""

from __future__ import annotations

import json
import sys

TOKENS = 8


def main(base: str, adapter: str, questions: str) -> None:
    """Answer each question alone, in float32."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tuned = PeftModel.from_pretrained(model, adapter)
    found: dict[str, dict[str, list[int]]] = {"base": {}, "tuned": {}}
    for question in json.loads(questions):
        chat = [{"role": "user", "content": question}]
        inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True, return_tensors="pt")
        start = inputs["input_ids"].shape[1]
        greedy = {"max_new_tokens": TOKENS, "do_sample": False}
        found["tuned"][question] = tuned.generate(**inputs, **greedy)[0, start:].tolist()
        with tuned.disable_adapter():
            found["base"][question] = tuned.generate(**inputs, **greedy)[0, start:].tolist()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
