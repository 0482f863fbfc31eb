"""Train and ask in one process: `python generation_cases.py MODEL FOLDER [shared]` prints what fails, as JSON.

Runs in an environment with TRL and vLLM. MODEL is a tiny model, FOLDER is empty. With `shared`,
the policy trains on the engine's weights.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from runner.tests.lab.cases import drawn, interrupted, refused
from runner.tests.lab.engine.storage import outside
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed

from stoker.contract.exits import ExitCode
from stoker.lab import CausalLMDataset, Completion, LabError, LoRATrainConfig, LoRATrainer, Policy, evaluate

MODEL, FOLDER = sys.argv[1], Path(sys.argv[2])
SHARED = sys.argv[3:] == ["shared"]
PROMPTS = [f"{a}+{b}=" for a in range(4) for b in range(4)]
CONFIG = LoRATrainConfig(
    alpha=32, target_modules="all-linear", batch_size=16, gradient_accumulation_steps=1, num_epochs=5,
    learning_rate=5e-3, max_length=64, output_dir=str(FOLDER / "output"),
)  # fmt: skip
GREEDY = {"max_tokens": 4, "temperature": 0.0, "logprobs": 0}
TOKENIZER: Any = AutoTokenizer.from_pretrained(MODEL)


def rows(answer: str) -> list[dict[str, str]]:
    """Return rows that all have one answer, several times: an epoch ends with a checkpoint, which costs more."""
    return [{"prompt": prompt, "completion": answer} for prompt in PROMPTS] * 4


def scores(answers: Sequence[Completion], adapter: Path | None) -> list[float]:
    """Return the log-probability of each token of answers, by transformers and PEFT."""
    model: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter))
    found: list[float] = []
    for answer in answers:
        prompt = TOKENIZER(answer.prompt)["input_ids"]
        ids = torch.tensor([prompt + list(answer.token_ids)])
        with torch.no_grad():
            logits = model(ids).logits[0, len(prompt) - 1 : -1]
        chosen = torch.tensor(answer.token_ids)[:, None]
        found += logits.log_softmax(-1).gather(1, chosen).squeeze(1).tolist()
    return found


def distances(answers: Sequence[Completion], adapter: Path | None) -> list[float]:
    """Return how far vLLM's log-probabilities are from transformers', token by token."""
    ours = [score for answer in answers for score in answer.logprobs or ()]
    return [abs(one - other) for one, other in zip(ours, scores(answers, adapter), strict=True)]


def main() -> None:
    """Train twice and ask twice, with one engine."""
    base = LoRATrainer(MODEL, CONFIG)
    # A start leaves the process's random numbers as they are, which decide what a training does next.
    set_seed(7)
    expected = drawn()
    set_seed(7)
    base.check_request(["1+1="], {})
    base._vllm._started()
    assert drawn() == expected
    # Nothing was saved: the plan's own class answers with the base model, and with what it is told.
    (plain,) = base.generate(["1+1="], max_tokens=4, temperature=0.0)
    assert base._hf_model is None
    base.close()

    policy = Policy(MODEL, CONFIG, share_weights=SHARED)
    untrained = policy.generate(PROMPTS, **GREEDY)
    assert untrained[5].token_ids == tuple(plain.outputs[0].token_ids)
    assert max(distances(untrained, None)) <= 0.05
    answers, folders = [], []
    # The longer text first: what has learned one token well takes long to learn others.
    for number, text in enumerate(("21", "7")):
        policy.train(rows(text))
        answers.append(policy.generate(PROMPTS, **GREEDY))
        policy.save_lora(FOLDER / str(number))
        folders.append(FOLDER / str(number))
        assert [answer.text for answer in answers[-1]] == [text] * len(PROMPTS), answers[-1]
        assert max(distances(answers[-1], folders[-1])) <= 0.05
        # The base model says something else: it is the adapter that answers.
        assert min(distances(answers[-1], None)) >= 0.5
    # The second answer is the second model's, by far.
    assert max(distances(answers[1], folders[0])) >= 0.5

    # What was interrupted is not answered later.
    llm = policy.trainer._vllm._started()
    interrupted(llm, lambda: policy.generate(PROMPTS, n=2, max_tokens=4))
    assert llm.llm_engine.get_num_unfinished_requests() == 0
    assert [answer.text for answer in policy.generate(PROMPTS, **GREEDY)] == [text] * len(PROMPTS)

    # A folder that is written anew is read anew, and two folders are two adapters.
    trainer = policy.trainer
    for folder, text in ((folders[0], "21"), (folders[1], "7"), (folders[0], "21")):
        (output,) = trainer.generate(["1+1="], lora_path=str(folder), max_tokens=4, temperature=0.0)
        assert output.outputs[0].text == text
    trainer.save_lora(str(folders[0]))
    (output,) = trainer.generate(["1+1="], str(folders[0]), max_tokens=4, temperature=0.0)
    assert output.outputs[0].text == "7"
    (output,) = trainer.generate(["1+1="], max_tokens=4, temperature=0.0)
    assert tuple(output.outputs[0].token_ids) == tuple(plain.outputs[0].token_ids)

    # An adapter that nothing has changed answers from its own folder, and mistakes are told before a model is loaded.
    again = Policy(MODEL, CONFIG, adapter=folders[0], share_weights=SHARED)
    assert again._current() == str(folders[0])
    again.changed()
    assert "there are no prompts" in refusal(again, {"prompts": []})
    assert "max_words" in refusal(again, {"prompts": ["1"], "max_words": 1})
    assert again.trainer._hf_model is None

    # An adapter of a smaller model would be copied into a part of its room.
    small = AutoConfig.from_pretrained(MODEL)
    small.hidden_size, small.intermediate_size = 32, 64
    other = get_peft_model(AutoModelForCausalLM.from_config(small), LoraConfig(**CONFIG.lora_arguments()))
    other.save_pretrained(str(FOLDER / "other"))
    refused(lambda: trainer.generate(["1"], str(FOLDER / "other")), "its matrices do not fit", ExitCode.BAD_DATA)
    nowhere = Policy("org/nowhere", LoRATrainConfig())
    refused(lambda: nowhere.generate(["1"]), "vLLM does not start with org/nowhere (")
    misspelt = Policy(MODEL, LoRATrainConfig(), engine={"gpu_memory_utilisation": 0.5})
    refused(lambda: misspelt.generate(["1"]), "the engine's arguments (gpu_memory_utilisation)")

    if SHARED:
        (engine_model,) = trainer._vllm._started().apply_model(lambda model: model)
        copied = outside(policy.model, engine_model)
        # The adapter alone is the trainer's own.
        assert copied
        assert all(".lora_" in name for name in copied), copied
        prefer = [{"prompt": prompt, "chosen": "no", "rejected": "7"} for prompt in PROMPTS] * 4
        margins = [entry["rewards/margins"] for entry in policy.train(prefer).history if "rewards/margins" in entry]
        assert margins[-1] > margins[0], margins
        trainer.save_lora(str(folders[1]))
        # As with a download, the files come after the policy.
        shutil.copytree(MODEL, FOLDER / "quantized")
        quantized = Policy(str(FOLDER / "quantized"), CONFIG, share_weights=True)
        small.quantization_config = {"quant_method": "fp8"}
        small.save_pretrained(FOLDER / "quantized")
        refused(lambda: quantized.model, "weights in fp8, which cannot be trained: take the model in bfloat16")

    several = policy.generate(PROMPTS[:2], n=3, max_tokens=2, temperature=1.0)
    assert [answer.prompt for answer in several] == [PROMPTS[0]] * 3 + [PROMPTS[1]] * 3
    assert several[0].logprobs is None

    # vLLM's own log-probabilities of held-out rows give the same perplexity.
    held_out = [{"text": f"{a}+{b}={a + b}"} for a in range(5, 8) for b in range(5)]
    data = CausalLMDataset(held_out, TOKENIZER)
    tokens = [data[row]["input_ids"].tolist() for row in range(len(held_out))]
    outputs = trainer.generate(tokens, str(folders[1]), max_tokens=1, prompt_logprobs=0)
    told = [
        at[token].logprob
        for output, ids in zip(outputs, tokens, strict=True)
        for at, token in zip(output.prompt_logprobs[1:], ids[1:], strict=True)
    ]
    theirs, ours = math.exp(-sum(told) / len(told)), evaluate(policy, held_out)
    assert ours["n"] == len(told)
    assert abs(ours["perplexity"] / theirs - 1) <= 0.01, (ours, theirs)

    wrong: dict[str, Any]
    for wrong, words in (
        ({"prompts": "1+1="}, "write a list"),
        ({"prompts": []}, "there are no prompts"),
        ({"prompts": [""]}, "prompts 0 are empty"),
        ({"prompts": ["1"], "max_tokens": -1}, "max_tokens"),
        ({"prompts": ["1"], "max_words": 1}, "max_words"),
        ({"prompts": ["1" * 500]}, ": shorten the prompt"),
        ({"prompts": ["1"], "logprobs": 50}, ": ask for fewer, or raise the engine's max_logprobs"),
    ):
        assert words in refusal(policy, wrong)
    policy.close()


def refusal(policy: Policy, wrong: dict[str, Any]) -> str:
    """Return what a policy says to wrong arguments of `generate`."""
    try:
        policy.generate(**wrong)
    except LabError as error:
        return str(error)
    return "not refused"


if __name__ == "__main__":
    try:
        main()
    except Exception:  # noqa: BLE001 - whatever it is, the case fails
        print(json.dumps({"main": traceback.format_exc()}), flush=True)
    else:
        print(json.dumps({}), flush=True)
