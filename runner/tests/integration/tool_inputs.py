"""Write a tiny model that calls a tool and then stops, its data, and the tools' module: `python tool_inputs.py FOLDER`.

FOLDER gets `model`, `dataset` and `mine.py`. The model is trained on conversations as an episode makes them, with the
chat template of Qwen 3. Runs in an environment with the trainers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import get_json_schema
from trl.chat_template_utils import qwen3_chat_template

from stoker.rollouts.chat import chat_of

STEPS, BATCH = 250, 8
MODULE = '''
class Counter:
    """Counts up."""

    def reset(self, start, **row):
        self.count = start
        return f" Start at {self.count}."

    def up(self, by: int) -> str:
        """Count up.

        Args:
            by: How far.
        """
        self.count += by
        return f"Now {self.count}."

    def get_reward(self):
        return float(self.count)


async def twice(number: int) -> int:
    """Double a number.

    Args:
        number: It.
    """
    return 2 * number
'''
CALL = '<tool_call>\n{"name": "up", "arguments": {"by": 5}}\n</tool_call><|im_end|>'
DOUBLE = '<tool_call>\n{"name": "twice", "arguments": {"number": 5}}\n</tool_call><|im_end|>'
LAST = "Done.<|im_end|>"


def tokenizer_of(texts: list[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer in whose tokens such texts are short."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<|im_start|>", "<|im_end|>"]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=800, special_tokens=special, initial_alphabet=alphabet)
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<|im_end|>")
    fast.chat_template = qwen3_chat_template
    return fast


def main(folder: Path) -> None:
    """Write everything."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    (folder / "dataset").mkdir(parents=True)
    (folder / "mine.py").write_text(MODULE)
    rows = [{"prompt": [{"role": "user", "content": "Count."}], "start": start} for start in range(10)]
    (folder / "dataset" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sys.path.insert(0, str(folder))
    import mine  # type: ignore[import-not-found]

    tools = [get_json_schema(tool) for tool in (mine.twice, mine.Counter().up)]
    told = [json.dumps(tool) for tool in tools] + [f"Start at {n}. Now {n}.\n" for n in range(30)]
    tokenizer = tokenizer_of([qwen3_chat_template, CALL, DOUBLE, LAST, *told])
    chat = chat_of(tokenizer, tools=True)
    assert chat.suffix is not None
    examples = []
    for start in range(10):
        for counts in (1, 2):
            prompt = chat.encode([{"role": "user", "content": f"Count. Start at {start}."}], tools)
            ids, labels = [*prompt], [-100] * len(prompt)
            said = [(CALL, "up", f"Now {start + 5 * turn}.") for turn in range(1, counts + 1)]
            for answer, name, result in [*said, (DOUBLE, "twice", "10"), (LAST, "", "")]:
                wrote = tokenizer.encode(answer, add_special_tokens=False)
                after = chat.suffix([{"role": "tool", "name": name, "content": result}]) if name else []
                ids += [*wrote, *after]
                labels += [*wrote, *[-100] * len(after)]
            examples.append((ids, labels))
    longest = max(len(ids) for ids, _ in examples)
    padding = tokenizer.pad_token_id
    ids = torch.tensor([one + [padding] * (longest - len(one)) for one, _ in examples])
    labels = torch.tensor([one + [-100] * (longest - len(one)) for _, one in examples])
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            pad_token_id=padding,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        chosen = torch.randint(len(examples), (BATCH,))
        loss = model(input_ids=ids[chosen], attention_mask=ids[chosen] != padding, labels=labels[chosen]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 49:
            print(f"step {step + 1}: loss {loss.item():.3f}, {longest} tokens", flush=True)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
