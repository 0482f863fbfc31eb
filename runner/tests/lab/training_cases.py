"""Training, data and losses beside those of TRL: `python training_cases.py MODEL FOLDER` prints what fails, as JSON.

Runs in an environment with TRL. MODEL is a tiny model, FOLDER is empty. HF_HOME is FOLDER/hub.
"""

from __future__ import annotations

import functools
import json
import math
import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest import mock

import torch
from datasets import Dataset
from peft import LoraConfig
from runner.tests.lab.cases import refused, report
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GPT2Config, TrainingArguments, set_seed
from transformers.loss.loss_utils import ForCausalLMLoss
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from stoker.contract.exits import ExitCode
from stoker.contract.manifest import MANIFEST
from stoker.lab import (
    CausalLMCollator,
    CausalLMDataset,
    CausalLMLoss,
    DPOLoss,
    LoRATrainConfig,
    LoRATrainer,
    Policy,
    PreferenceCollator,
    PreferenceDataset,
    evaluate,
    job,
)

MODEL, FOLDER = sys.argv[1], Path(sys.argv[2])
SUMS = [(a, b) for a in range(10) for b in range(10)]
TEXTS = [{"text": f"{a}+{b}={a + b}"} for a, b in SUMS[:24]]
PAIRS = [{"prompt": f"{a}+{b}=", "chosen": f"{a + b}", "rejected": f"{a + b + 1}"} for a, b in SUMS[:24]]
QUICK = LoRATrainConfig(
    batch_size=4, gradient_accumulation_steps=2, num_epochs=2, learning_rate=2e-2, max_length=64,
    output_dir=str(FOLDER / "output"), logging_steps=1,
)  # fmt: skip
# What SFTConfig and DPOConfig need on CPU, as in the recipes; nothing of it changes what is learned.
PLAIN = {
    "use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True, "save_strategy": "no",
    "dataloader_pin_memory": False,
}  # fmt: skip


def said(role: str, text: str) -> dict[str, str]:
    """Return a message."""
    return {"role": role, "content": text}


FORMATS: dict[str, list[dict[str, Any]]] = {
    "text": TEXTS,
    "text that ends itself": [{"text": f"{row['text']}<eos>"} for row in TEXTS],
    "completion": [{"prompt": row["prompt"], "completion": row["chosen"]} for row in PAIRS],
    "messages": [{"messages": [said("user", row["prompt"]), said("assistant", row["chosen"])]} for row in PAIRS],
    "conversation with completion": [
        {"prompt": [said("user", row["prompt"])], "completion": [said("assistant", row["chosen"])]} for row in PAIRS
    ],
    "tokens across the border": [{"prompt": "12", "completion": "+3=15"}, {"prompt": "1", "completion": "1+1=12"}],
}
# A template as instruction-tuned models have: it tells roles apart, shows tools, and takes a setting.
TEMPLATE = (
    "{% if tools %}{{ tools | length }}+{% endif %}{% if brief %}={% endif %}"
    "{% for message in messages %}"
    "{{ {'system': '0=', 'user': '1=', 'assistant': '2='}[message['role']] }}{{ message['content'] }}<eos>"
    "{% endfor %}{% if add_generation_prompt %}2={% endif %}"
)
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
TURNS = [said("system", "9"), said("user", "1+1="), said("assistant", "2"), said("user", "2+2=")]
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "several turns": [{"messages": [*TURNS, said("assistant", "4")]}, {"messages": TURNS[1:3]}],
    "several turns with completion": [{"prompt": TURNS, "completion": [said("assistant", "4")]}],
    "tools": [{"messages": TURNS[:3], "tools": [TOOL]}],
    "tools as text": [{"prompt": TURNS, "completion": [said("assistant", "4")], "tools": json.dumps([TOOL, TOOL])}],
    "a setting of the template": [{"messages": TURNS[:3], "chat_template_kwargs": {"brief": True}}],
}
PREFERENCES: dict[str, list[dict[str, Any]]] = {
    "text": PAIRS,
    "conversation": [
        {
            "prompt": [said("user", row["prompt"])],
            "chosen": [said("assistant", row["chosen"])],
            "rejected": [said("assistant", row["rejected"])],
        }
        for row in PAIRS
    ],
    "without its prompt": [
        {
            name: [said("user", row["prompt"]), said("assistant", row[name])]
            for name in ("chosen", "rejected")
        }
        for row in PAIRS
    ],
    "text without its prompt": [{"chosen": f"{a}+{b}={a + b}", "rejected": f"{a}+{b}=no"} for a, b in SUMS[:24]],
    "tokens across the border": [{"prompt": "1", "chosen": "2+3=15", "rejected": "9"}],
}  # fmt: skip


@functools.cache
def tokenizer() -> Any:
    """Return the model's tokenizer."""
    return AutoTokenizer.from_pretrained(MODEL)


@functools.cache
def chatty() -> Any:
    """Return the tokenizer with a template as instruction-tuned models have."""
    found = AutoTokenizer.from_pretrained(MODEL)
    found.chat_template = TEMPLATE
    return found


def sft(rows: list[dict[str, Any]], words: Any, **more: Any) -> Any:
    """Return TRL's own trainer of these rows, with a tokenizer."""
    args = SFTConfig(**PLAIN, output_dir=str(FOLDER / "plain"), **more)
    return SFTTrainer(model=MODEL, args=args, train_dataset=Dataset.from_list(rows), processing_class=words)


def tokens_and_masks_are_those_of_trl() -> None:
    """Each format has TRL's token ids and labels, whole and cut."""
    plain = [(each, tokenizer(), length) for each in FORMATS.items() for length in (64, 4)]
    for (name, rows), words, length in [*plain, *((each, chatty(), 64) for each in CONVERSATIONS.items())]:
        theirs = sft(rows, words, max_length=length).train_dataset
        mine = [CausalLMDataset(rows, words, length)[index] for index in range(len(rows))]
        # TRL leaves out rows that were cut before the first token to learn.
        mine = [row for row in mine if (row["labels"] != -100).any()]
        assert [row["input_ids"].tolist() for row in mine] == list(theirs["input_ids"]), (name, length)
        assert [row["labels"].tolist() for row in mine] == list(theirs["labels"]), (name, length)


def no_prompt_and_no_padding_is_learned() -> None:
    """The prompt and what pads have no label, and an answer ends."""
    rows = [{"prompt": "1+1=", "completion": "2"}, {"prompt": "10+10=", "completion": "20"}]
    data = CausalLMDataset(rows, tokenizer(), 64)
    batch = CausalLMCollator(tokenizer())([data[0], data[1]])
    for row, ids, labels, mask in zip(rows, batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
        learned = ids[labels != -100]
        assert tokenizer().decode(learned) == f"{row['completion']}<eos>"
        assert (labels[mask == 0] == -100).all()
        assert (labels[labels != -100] == learned).all()


def preferences_are_those_of_trl() -> None:
    """Each format of preferences has TRL's tokens, and a batch is TRL's."""
    for (name, rows), length in [(each, length) for each in PREFERENCES.items() for length in (64, 5)]:
        args = DPOConfig(**PLAIN, output_dir=str(FOLDER / "plain"), max_length=length)
        trainer = DPOTrainer(
            model=MODEL, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer(),
            peft_config=LoraConfig(task_type="CAUSAL_LM"),
        )  # fmt: skip
        theirs = [
            {key: list(row[key]) for key in ("prompt_ids", "chosen_ids", "rejected_ids")}
            for row in trainer.train_dataset
        ]
        data = PreferenceDataset(rows, tokenizer(), length)
        mine = [data.tokens(index) for index in range(len(rows))]
        kept = [index for index, row in enumerate(mine) if len(row["prompt_ids"]) < length]
        assert [mine[index] for index in kept] == theirs, (name, length)
        if theirs:
            batch = trainer.data_collator(theirs)
            ours = PreferenceCollator(tokenizer())([data[index] for index in kept])
            width = ours["input_ids"].shape[1]
            for key, value in ours.items():
                assert torch.equal(value, batch[key][:, :width]), (name, key)
                assert (batch["attention_mask"][:, width:] == 0).all()


def close(one: torch.Tensor, other: torch.Tensor, tolerance: float = 1e-6) -> None:
    """Fail unless two tensors are equal but for rounding."""
    assert one.shape == other.shape, (one.shape, other.shape)
    assert (one - other).abs().max() <= tolerance, (one - other).abs().max()


def the_causal_loss_is_that_of_transformers() -> None:
    """Loss and gradients are equal, alone and accumulated over parts of a step."""
    torch.manual_seed(0)
    logits = torch.randn(6, 9, 17, requires_grad=True)
    labels = torch.randint(0, 17, (6, 9)).masked_fill(torch.rand(6, 9) < 0.4, -100)
    mask = torch.ones(6, 9, dtype=torch.long)
    mask[:, 7:] = 0
    masked = labels.masked_fill(mask == 0, -100)
    counted = (masked[:, 1:] != -100).sum()
    for count in (None, counted):
        ours = [CausalLMLoss()(logits, labels, mask, count)]
        theirs = [ForCausalLMLoss(logits, masked, 17, num_items_in_batch=count)]
        if count is not None:
            parts = [slice(0, 2), slice(2, 6)]
            ours.append(sum(CausalLMLoss()(logits[part], labels[part], mask[part], count) for part in parts))
            close(ours[1], ours[0])
        close(ours[0], theirs[0])
        gradients = [torch.autograd.grad(loss, logits)[0] for loss in (*ours, *theirs)]
        for gradient in gradients[1:]:
            close(gradient, gradients[0])
    nothing = CausalLMLoss()(logits, torch.full((6, 9), -100))
    assert nothing.item() == 0.0


def the_dpo_loss_is_that_of_trl() -> None:
    """Loss and gradients of the adapter are those of TRL's trainer on the same batch."""
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    args = DPOConfig(**PLAIN, output_dir=str(FOLDER / "plain"), beta=0.3, gradient_checkpointing=False)
    trainer = DPOTrainer(
        model=MODEL, args=args, train_dataset=Dataset.from_list(PAIRS), processing_class=tokenizer(), peft_config=config
    )
    data = PreferenceDataset(PAIRS, tokenizer())
    batch = PreferenceCollator(tokenizer())([data[index] for index in range(8)])
    model = trainer.model
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    theirs = trainer.compute_loss(model, dict(batch))
    wanted = torch.autograd.grad(theirs, weights)

    def scores() -> tuple[torch.Tensor, torch.Tensor]:
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        chosen = logits.log_softmax(-1).gather(2, batch["input_ids"][:, 1:, None]).squeeze(2)
        one, other = (chosen * batch["completion_mask"][:, 1:]).sum(1).chunk(2)
        return one, other

    with torch.no_grad(), model.disable_adapter():
        reference = scores()
    ours = DPOLoss(0.3)(*scores(), *reference)
    close(ours, theirs)
    for mine, other in zip(torch.autograd.grad(ours, weights), wanted, strict=True):
        close(mine, other)
    # Accumulated over the parts of a step, as TRL does it.
    parts = [slice(0, 4), slice(4, 8)]
    halves = [PreferenceCollator(tokenizer())([data[index] for index in range(8)[part]]) for part in parts]
    theirs = sum(trainer.compute_loss(model, dict(half)) for half in halves) / 2
    wanted = torch.autograd.grad(theirs, weights)
    found = [*scores(), *reference]
    ours = sum(DPOLoss(0.3)(*(one[part] for one in found)) for part in parts) / 2
    close(ours, theirs)
    for mine, other in zip(torch.autograd.grad(ours, weights), wanted, strict=True):
        close(mine, other)


def losses_of(history: Any) -> list[float]:
    """Return the losses that a trainer logged."""
    return [entry["loss"] for entry in history if "loss" in entry]


def training_is_that_of_plain_trl() -> None:
    """The same seed gives the same losses as TRL's trainers alone, step by step."""
    logged = {"logging_steps": 1, "output_dir": str(FOLDER / "plain"), "max_length": 64}
    shared = {
        **PLAIN, **logged, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_train_epochs": 2,
        "learning_rate": 2e-2, "warmup_steps": 0.1, "max_grad_norm": 1.0, "seed": 42,
    }  # fmt: skip
    peft = LoraConfig(
        r=8, lora_alpha=16, lora_dropout=0.0, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        task_type="CAUSAL_LM",
    )  # fmt: skip
    for rows, trainer, config in ((TEXTS, SFTTrainer, SFTConfig), (PAIRS, DPOTrainer, DPOConfig)):
        plain = trainer(
            model=MODEL, args=config(**shared), train_dataset=Dataset.from_list(rows), processing_class=tokenizer(),
            peft_config=peft,
        )  # fmt: skip
        plain.train()
        wanted = losses_of(plain.state.log_history)
        set_seed(7)  # whatever happened before must not matter
        found = losses_of(LoRATrainer(MODEL, QUICK).train(rows).history)
        assert len(wanted) == 6, wanted
        assert max(abs(a - b) for a, b in zip(wanted, found, strict=True)) <= 1e-6, (wanted, found)


def a_policy_learns_and_goes_on() -> None:
    """Training lowers the loss, a second training goes on from the first, and preferences move the margin."""
    policy = Policy(MODEL, QUICK)
    before = evaluate(policy, TEXTS)
    first = policy.train(TEXTS)
    between = evaluate(policy, TEXTS)
    policy.train(TEXTS)
    after = evaluate(policy, TEXTS)
    assert first.method == "sft"
    assert first.steps == 6
    # The steps are large, so a second training need not come lower than the first.
    assert max(between["loss"], after["loss"]) < before["loss"] - 0.3, (before, between, after)
    assert after["loss"] != between["loss"]
    assert after["token_accuracy"] > before["token_accuracy"]
    assert math.isclose(after["perplexity"], math.exp(after["loss"]))
    assert after["n"] == sum(len(CausalLMDataset(TEXTS, tokenizer())[row]["labels"]) - 1 for row in range(len(TEXTS)))
    # The wanted answers and the others have no token in common.
    pairs = [{"prompt": row["prompt"], "chosen": row["chosen"], "rejected": "no"} for row in PAIRS]
    policy.config.num_epochs = 6
    done = policy.train(pairs)
    policy.train(pairs)
    margins = [entry["rewards/margins"] for entry in done.history if "rewards/margins" in entry]
    assert done.method == "dpo"
    # The model's weights are other random ones on each machine: 0.16 and more were seen.
    assert margins[0] == 0.0
    assert fmean(margins[-3:]) > 0.1, margins
    # What TRL hung on the model is gone: no second adapter is saved, and no forward is wrapped twice.
    assert set(policy.model.peft_config) == {"default"}
    assert not {"forward", "_original_forward"} & {*vars(policy.model), *vars(policy.model.get_base_model())}


def an_adapter_is_loaded_and_trained_on() -> None:
    """A saved adapter predicts as the policy did, and another base is refused before anything is loaded."""
    policy = Policy(MODEL, QUICK)
    policy.train(TEXTS)
    policy.save_lora(FOLDER / "saved")
    # Small steps, so that each goes down.
    again = Policy(MODEL, replace(QUICK, learning_rate=2e-3), adapter=FOLDER / "saved")
    assert evaluate(again, TEXTS) == evaluate(policy, TEXTS)
    refused(lambda: again.to_trainjob("sums", "a/dataset"), "merge it into its base model, and make the TrainJob of")
    again.train(TEXTS)
    before, after = evaluate(policy, TEXTS)["loss"], evaluate(again, TEXTS)["loss"]
    assert after < before, (before, after)
    other = str(smaller(FOLDER / "other"))
    refused(lambda: Policy(other, QUICK, adapter=FOLDER / "saved"), "matrices do not fit")
    refused(lambda: Policy(MODEL, LoRATrainConfig(rank=1), adapter=FOLDER / "saved"), "has rank 8, but there is room")
    refused(lambda: Policy(MODEL, QUICK, adapter=FOLDER / "nothing"), "cannot be read")


def an_adapter_of_another_base_is_refused_when_its_base_is_known() -> None:
    """One message, whether names, a download after the policy was made, or PEFT tell that the two do not fit."""
    Policy(MODEL, QUICK).save_lora(FOLDER / "adapter")
    small = smaller(FOLDER / "small")
    policy = Policy("org/small", QUICK, adapter=FOLDER / "adapter")
    downloaded("org/small", small)
    refused(lambda: policy.model, "does not fit org/small: its matrices do not fit", ExitCode.BAD_DATA)
    # Only safetensors tell the shapes before the model is loaded.
    torch.save(AutoModelForCausalLM.from_pretrained(small).state_dict(), small / "pytorch_model.bin")
    (small / "model.safetensors").unlink()
    late = Policy(str(small), QUICK, adapter=FOLDER / "adapter")
    refused(lambda: late.model, "write the folder of one that was trained on this model", ExitCode.BAD_DATA)
    file = FOLDER / "adapter" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": "org/another"}))
    refused(lambda: Policy("org/one", QUICK, adapter=FOLDER / "adapter"), "it was trained on org/another")


def smaller(folder: Path) -> Path:
    """Write a model with smaller matrices, and return its folder."""
    config = AutoConfig.from_pretrained(MODEL)
    config.hidden_size, config.intermediate_size = 32, 64
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def downloaded(name: str, model: Path) -> None:
    """Put a model where one of the Hub is once it is downloaded."""
    folder = FOLDER / "hub" / "hub" / f"models--{name.replace('/', '--')}"
    shutil.copytree(model, folder / "snapshots" / "1")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("1")


def evaluation_is_that_of_transformers() -> None:
    """The loss over rows of unequal length is the mean over all tokens, as the model's own of one row at a time."""
    trainer = LoRATrainer(MODEL, QUICK)
    rows = [{"prompt": f"{a}+{b}=", "completion": str(a + b) * (1 + b)} for a, b in SUMS[:9]]
    data = CausalLMDataset(rows, tokenizer())
    total = count = right = 0.0
    for row in range(len(rows)):
        labels = data[row]["labels"]
        learned = int((labels[1:] != -100).sum())
        with torch.no_grad():
            output = trainer.model(input_ids=data[row]["input_ids"][None], labels=labels[None])
        total, count = total + learned * output.loss.item(), count + learned
        right += int((output.logits[0, :-1].argmax(-1) == labels[1:]).sum())  # which never is -100
    found = evaluate(trainer, rows)
    assert found["n"] == count
    assert math.isclose(found["loss"], total / count, rel_tol=1e-5), (found, total / count)
    assert found["token_accuracy"] == right / count
    sizes = [evaluate(trainer, rows, batch_size=size)["loss"] for size in (1, 2, 9)]
    assert max(sizes) - min(sizes) <= 1e-6, sizes


def bad_input_is_refused_before_the_model_is_loaded() -> None:
    """One message with the fix; the model is not there yet."""
    long = [{"text": "7" * 300}, {"text": "1"}]
    trainer = LoRATrainer(MODEL, LoRATrainConfig(output_dir=str(FOLDER / "output")))
    refused(
        lambda: trainer.train(long), "row 0 has 301 tokens, but the model takes 128: shorten them", ExitCode.BAD_DATA
    )
    refused(lambda: trainer.train([{"question": "a"}]), "rename the columns", ExitCode.BAD_DATA)
    refused(lambda: trainer.train([]), "there are no rows", ExitCode.BAD_DATA)
    refused(lambda: LoRATrainer(MODEL, LoRATrainConfig(dtype="bfloat16")).setup_training(), "it has no GPU")
    refused(lambda: evaluate(trainer, [{"chosen": "a", "rejected": "b"}]), "need text")
    refused(lambda: evaluate(trainer, long), "row 0 has 301 tokens, but the model takes 128", ExitCode.BAD_DATA)
    assert trainer._hf_model is None
    if find_spec("vllm") is None:
        shared = LoRATrainer(MODEL, QUICK, share_weights=True)
        refused(lambda: shared.train(TEXTS), "generating needs the Python package vllm, which is not installed")
        assert shared._hf_model is None
    rows: list[dict[str, Any]]
    for rows in ([{"prompt": "1", "completion": "7" * 300}], [{"prompt": "1", "chosen": "2", "rejected": "7" * 300}]):
        # A cut to less would lose most of a row, and say nothing.
        train = functools.partial(LoRATrainer(MODEL, QUICK).train, rows)
        refused(train, "row 0 has 302 tokens, but the model takes 128")
    fp8 = FOLDER / "fp8"
    shutil.copytree(MODEL, fp8)
    told = json.loads((fp8 / "config.json").read_text())
    (fp8 / "config.json").write_text(json.dumps({**told, "quantization_config": {"quant_method": "fp8"}}))
    eight = LoRATrainer(str(fp8), QUICK)
    refused(lambda: eight.train(TEXTS), "weights in fp8, which cannot be trained: take the model in bfloat16")
    assert eight._hf_model is None
    nowhere = Policy("org/nowhere", QUICK)
    for use in (lambda: nowhere.train(TEXTS), lambda: nowhere.model, lambda: evaluate(nowhere, TEXTS)):
        refused(use, "the model org/nowhere cannot be loaded (", ExitCode.NO_INPUT)
    wrong = LoRATrainer(MODEL, LoRATrainConfig(target_modules=["nothing"]))
    refused(wrong.setup_training, "target_modules is ['nothing']")
    strict = LoRATrainer(MODEL, QUICK)
    strict.tokenizer.chat_template = "{{ raise_exception('no system here') }}"
    for attempt in (
        functools.partial(strict.train, FORMATS["messages"]),
        functools.partial(strict.train, PREFERENCES["conversation"]),
        functools.partial(evaluate, strict, FORMATS["messages"]),
    ):
        told = "the chat template of the model refuses a conversation (no system here): change its roles or their order"
        refused(attempt, told, ExitCode.BAD_DATA)
    # Rows that are cut need no refusal.
    cut = LoRATrainConfig(max_length=8, num_epochs=1, output_dir=str(FOLDER / "output"))
    assert LoRATrainer(MODEL, cut).train([{"text": "7" * 100}, {"text": "1"}]).steps == 1


def a_model_says_how_long_rows_may_be_by_any_name() -> None:
    """Models whose config has another name for it, and such as are downloaded after the policy was made."""
    long = [{"text": "7" * 40}]
    GPT2Config(n_positions=32, n_embd=64, n_layer=1, n_head=2).save_pretrained(FOLDER / "gpt")
    tokenizer().save_pretrained(FOLDER / "gpt")
    policy = Policy("org/gpt", QUICK)
    downloaded("org/gpt", FOLDER / "gpt")
    for one in (Policy(str(FOLDER / "gpt"), QUICK), policy):
        for what in (functools.partial(one.train, long), functools.partial(evaluate, one, long)):
            refused(what, "row 0 has 41 tokens, but the model takes 32", ExitCode.BAD_DATA)


def what_is_published_is_what_the_trainjob_trains() -> None:
    """A published version has the record of the run that the TrainJob would be."""
    new = Policy(MODEL, QUICK)
    refused(lambda: new.publish(FOLDER / "adapters", "sft"), "call train first")
    refused(lambda: new.to_trainjob("sft"), "to_trainjob(name, dataset=")
    for method, lines in (("sft", TEXTS), ("dpo", PAIRS)):
        data = FOLDER / f"data-{method}"
        data.mkdir()
        (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
        policy = Policy(MODEL, QUICK)
        policy.train(str(data))
        # What was not trained on is not what the adapter is of.
        refused(functools.partial(policy.train, str(FOLDER / "nothing")), "cannot be loaded")
        refused(functools.partial(policy.train, [{"question": "a"}]), "rename the columns")
        assert [policy.publish(FOLDER / "adapters", method) for _ in range(2)] == [f"{method}:1", f"{method}:2"]
        manifest = json.loads((FOLDER / "adapters" / method / "2" / MANIFEST).read_text())
        (FOLDER / f"manifest-{method}.json").write_text(json.dumps(manifest))
        (FOLDER / f"trainjob-{method}.json").write_text(json.dumps(policy.to_trainjob(method)))
        assert manifest["base_model"]["name_or_path"] == MODEL
        assert manifest["fingerprint"]["data"] == {"dataset_name": str(data)}
    assert job.METHODS == ("sft", "dpo")


def a_published_version_tells_all_that_shaped_it() -> None:
    """What an adapter was before its last training, and its own shape; a closed policy publishes nothing."""
    shape = replace(QUICK, rank=4, alpha=12, target_modules=["v_proj", "q_proj"])
    Policy(MODEL, shape).save_lora(FOLDER / "begin")
    with Policy(MODEL, QUICK, adapter=FOLDER / "begin") as policy:
        policy.train(TEXTS)
        policy.config.num_epochs = 1
        policy.train(PAIRS)
        assert policy.publish(FOLDER / "adapters", "both") == "both:1"
    refused(lambda: policy.publish(FOLDER / "adapters", "both"), "this policy is closed: make a new one")
    refused(lambda: policy.save_lora(FOLDER / "closed"), "this policy is closed")
    assert not (FOLDER / "adapters/both/2").exists()
    assert not (FOLDER / "closed").exists()
    manifest = json.loads((FOLDER / "adapters/both/1" / MANIFEST).read_text())
    assert manifest["budget"] == {"epochs": 1.0}
    last = manifest["fingerprint"]
    (first,) = last["trained_before"]
    assert (first["method"], last["method"]) == ("sft", "dpo")
    assert last["began_with"] == str(FOLDER / "begin")
    for found in (first, last):
        own = {name: found["peft"][name] for name in ("lora_r", "lora_alpha", "lora_target_modules")}
        assert own == {"lora_r": "4", "lora_alpha": "12", "lora_target_modules": ["q_proj", "v_proj"]}, own
    (FOLDER / "manifest-both.json").write_text(json.dumps(manifest))


def handed_to(kind: Any, trainer: LoRATrainer, data: Any) -> dict[str, Any]:
    """Return what a trainer of TRL is made with for rows."""
    with mock.patch.object(kind, "__init__", side_effect=KeyboardInterrupt) as made, suppress(KeyboardInterrupt):
        trainer.train(data)
    return dict(made.call_args.kwargs)


def a_dataset_is_trained_with_its_own_tokenizer() -> None:
    """What `CausalLMDataset` and `PreferenceDataset` show is what is learned."""
    kinds = (
        (SFTTrainer, CausalLMDataset(FORMATS["messages"], chatty())),
        (DPOTrainer, PreferenceDataset(PAIRS, chatty())),
    )
    for kind, data in kinds:
        assert handed_to(kind, LoRATrainer(MODEL, QUICK), data)["processing_class"] is chatty()


def columns_of_other_kinds_do_not_reach_trl() -> None:
    """Rows may have more than is trained on: TRL would take them for another kind, or refuse the types of others."""
    others: list[dict[str, Any]] = [{"input_ids": [1], "labels": [1], "image": "a", "id": 1}, {"id": "b"}]
    kinds: tuple[tuple[Any, dict[str, Any], list[str]], ...] = (
        (SFTTrainer, {"text": "1+1=2", "label": "2"}, ["text"]),
        (SFTTrainer, {"prompt": "1+1=", "completion": "2", "text": "1+1=2"}, ["prompt", "completion"]),
        (SFTTrainer, {"messages": TURNS, "prompt": "9"}, ["messages"]),
        (SFTTrainer, {"messages": TURNS, "tools": [TOOL], "text": ""}, ["messages", "tools"]),
        (DPOTrainer, {**PAIRS[0], "completion": "2", "messages": TURNS}, ["prompt", "chosen", "rejected"]),
        (DPOTrainer, {**PREFERENCES["text without its prompt"][0], "text": "2"}, ["chosen", "rejected"]),
    )
    trainer = LoRATrainer(MODEL, QUICK)
    for kind, row, names in kinds:
        data = handed_to(kind, trainer, [{**row, **more} for more in others])["train_dataset"]
        assert data.column_names == names, (row, data)


def a_row_keeps_its_own_tools_and_settings() -> None:
    """A table of rows with other tools would give each the fields of all, without values: another prompt."""
    other = {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {"a": 1}}}}}
    for more in ({"tools": [TOOL]}, {"chat_template_kwargs": {"brief": True}}):
        rows: list[dict[str, Any]] = [{"messages": TURNS}, {"messages": TURNS, **more}]
        rows.append({"messages": TURNS, "tools": [other], "chat_template_kwargs": {"other": 1}})
        found = handed_to(SFTTrainer, LoRATrainer(MODEL, QUICK), rows)["train_dataset"]
        nothing: dict[str, Any] = {"tools": None, "chat_template_kwargs": {}}
        assert [*found] == [{**nothing, **row} for row in rows], more


def a_message_keeps_its_text() -> None:
    """Beside messages with lists of parts, text that looks like JSON is text: `5` is no number, and `{}` not empty."""
    asked = {"role": "user", "content": [{"type": "text", "text": "2+3="}]}
    for said in ("5", "null", '{"a": 1}', "naïve 🙂"):
        row = {"messages": [asked, {"role": "assistant", "content": said}]}
        found = handed_to(SFTTrainer, LoRATrainer(MODEL, QUICK), [row, {"messages": TURNS}])["train_dataset"]
        assert [*found] == [row, {"messages": TURNS}], said


def one_process_trains_on_one_gpu() -> None:
    """Where more are visible, TRL would refuse to train."""
    devices = TrainingArguments._setup_devices.func

    def with_two_gpus(args: Any) -> Any:
        found = devices(args)
        args._n_gpu = 2
        return found

    changed = functools.cached_property(with_two_gpus)
    changed.__set_name__(TrainingArguments, "_setup_devices")
    with mock.patch.object(TrainingArguments, "_setup_devices", changed):
        assert SFTConfig(**PLAIN, output_dir=str(FOLDER / "plain")).n_gpu == 2
        for kind, rows in ((SFTTrainer, TEXTS), (DPOTrainer, PAIRS)):
            args = handed_to(kind, LoRATrainer(MODEL, QUICK), rows)["args"]
            assert (args.n_gpu, args.train_batch_size) == (1, QUICK.batch_size)


def an_interrupted_training_is_told_to_those_who_publish() -> None:
    """It refuses the TrainJob, and stands before what followed it; one that had no step yet leaves no trace."""
    steps = iter(range(10))
    one_step = SFTTrainer.training_step

    def stops(*words: Any, **more: Any) -> Any:
        if next(steps) == 4:  # of two batches each
            raise KeyboardInterrupt
        return one_step(*words, **more)

    policy = Policy(MODEL, QUICK)
    with mock.patch.object(SFTTrainer, "__init__", side_effect=KeyboardInterrupt), suppress(KeyboardInterrupt):
        policy.train(TEXTS)
    refused(lambda: policy.publish(FOLDER / "adapters", "stopped"), "call train first")
    with mock.patch.object(SFTTrainer, "training_step", side_effect=KeyboardInterrupt), suppress(KeyboardInterrupt):
        policy.train(TEXTS)
    refused(lambda: policy.publish(FOLDER / "adapters", "stopped"), "call train first")
    with mock.patch.object(SFTTrainer, "training_step", stops), suppress(KeyboardInterrupt):
        policy.train(TEXTS)
    refused(lambda: policy.to_trainjob("a", "a/dataset"), "but this policy had unfinished: ")
    policy.publish(FOLDER / "adapters", "stopped")
    manifest = json.loads((FOLDER / "adapters/stopped/1" / MANIFEST).read_text())
    assert (manifest["method"], manifest["steps"]) == ("unfinished", 2), manifest
    policy.train(TEXTS)
    refused(lambda: policy.to_trainjob("a", "a/dataset"), "but this policy had unfinished, then sft: ")
    policy.publish(FOLDER / "adapters", "stopped")
    found = json.loads((FOLDER / "adapters/stopped/2" / MANIFEST).read_text())["fingerprint"]
    assert [one["method"] for one in (*found["trained_before"], found)] == ["unfinished", "sft"]
    (FOLDER / "manifest-stopped.json").write_text(json.dumps(manifest))


def a_dpo_that_ends_before_its_first_step_leaves_no_adapter() -> None:
    """TRL adds the one that it compares with before it reads the rows, and refuses a model that has it already."""
    trainer = LoRATrainer(MODEL, replace(QUICK, num_epochs=1))
    with mock.patch.object(DPOTrainer, "_prepare_dataset", side_effect=KeyboardInterrupt), suppress(KeyboardInterrupt):
        trainer.train(PAIRS)
    assert set(trainer.model.peft_config) == {"default"}
    assert trainer.train(PAIRS[:8]).steps == 1


def rows_without_a_token_to_learn_are_left_out_or_refused() -> None:
    """A prompt that fills `max_length` leaves no room for its answer; a refusal leaves nothing to publish."""
    filled: dict[str, Any] = {"prompt": "7" * 20, "completion": "1", "chosen": "1", "rejected": "2"}
    kept = {**PAIRS[0], "completion": "2"}
    for names in (("prompt", "completion"), ("prompt", "chosen", "rejected")):
        rows = [{name: row[name] for name in names} for row in (filled, kept)]
        policy = Policy(MODEL, replace(QUICK, max_length=8, num_epochs=1))
        told = "no row has a token to learn after it was cut: raise max_length"
        refused(functools.partial(policy.train, rows[:1]), told, ExitCode.BAD_DATA)
        refused(functools.partial(policy.publish, FOLDER / "adapters", "filled"), "call train first")
        assert policy.train(rows).steps == 1


CASES = (
    tokens_and_masks_are_those_of_trl,
    no_prompt_and_no_padding_is_learned,
    preferences_are_those_of_trl,
    the_causal_loss_is_that_of_transformers,
    the_dpo_loss_is_that_of_trl,
    training_is_that_of_plain_trl,
    a_policy_learns_and_goes_on,
    an_adapter_is_loaded_and_trained_on,
    an_adapter_of_another_base_is_refused_when_its_base_is_known,
    evaluation_is_that_of_transformers,
    bad_input_is_refused_before_the_model_is_loaded,
    a_model_says_how_long_rows_may_be_by_any_name,
    what_is_published_is_what_the_trainjob_trains,
    a_published_version_tells_all_that_shaped_it,
    a_dataset_is_trained_with_its_own_tokenizer,
    columns_of_other_kinds_do_not_reach_trl,
    a_row_keeps_its_own_tools_and_settings,
    a_message_keeps_its_text,
    one_process_trains_on_one_gpu,
    an_interrupted_training_is_told_to_those_who_publish,
    a_dpo_that_ends_before_its_first_step_leaves_no_adapter,
    rows_without_a_token_to_learn_are_left_out_or_refused,
)


if __name__ == "__main__":
    report(CASES)
