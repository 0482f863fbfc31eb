"""The sides of benchmarks/lab.py, each in a process of its own: `python lab_sides.py SIDE FOLDER` measures when asked.

FOLDER gets a model with random weights where it has none. Runs in the environment with the trainers and vLLM.
"""

from __future__ import annotations

import itertools
import random
import string
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.children import answer
from runner.tests.lab.peak import Peak

# About 25 million parameters.
SIZE = {
    "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64,
}  # fmt: skip
LENGTH, PROMPTS, ANSWER = 128, 128, 256
BATCHES = (1, 4, 16, 64, 128)
# Prompts to try a batch with that is smaller: enough for lengths of all kinds.
FEWEST = 32
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]
# The same for both sides. Both log every tenth update and save at the end, as `Policy.train` does.
SHARED: dict[str, Any] = {
    "learning_rate": 1e-4, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_train_epochs": 1,
    "warmup_steps": 0.1, "max_grad_norm": 1.0, "seed": 42, "max_length": LENGTH,
}  # fmt: skip


def lengths(count: int, longest: int, seed: int) -> list[int]:
    """Return lengths as prompts have them: most are short, few are long."""
    chance = random.Random(seed)
    return [min(longest, max(8, round(chance.lognormvariate(3.5, 0.9)))) for _ in range(count)]


def texts(sizes: Sequence[int], seed: int) -> list[str]:
    """Return texts of random letters; each letter is a token."""
    chance = random.Random(seed)
    return ["".join(chance.choices(string.ascii_letters, k=size)) for size in sizes]


def rows() -> list[dict[str, str]]:
    """Return what both sides train on."""
    return [{"text": text} for text in texts([LENGTH - 1] * 256, 0)]


def trained(train: Callable[[], object]) -> dict[str, float]:
    """Return how fast a side trained, and the most memory that its process held.

    Args:
        train: goes from rows, and a model that is not loaded yet, to the end of the training.
    """
    with Peak() as peak:
        began = time.monotonic()
        train()
        seconds = time.monotonic() - began
    return {"speed": len(rows()) * LENGTH / seconds, "peak": peak.bytes / 2**20}


def ours(model: str, folder: Path) -> dict[str, float]:
    """Train with `stoker.lab`."""
    # No side imports its packages while the clock runs.
    from peft import LoraConfig  # noqa: F401
    from trl import SFTTrainer  # noqa: F401

    from stoker.lab import LoRATrainConfig, Policy

    config = LoRATrainConfig(
        learning_rate=SHARED["learning_rate"], batch_size=SHARED["per_device_train_batch_size"],
        gradient_accumulation_steps=1, num_epochs=1, max_length=LENGTH, output_dir=str(folder / "ours"),
    )  # fmt: skip
    return trained(lambda: Policy(model, config).train(rows()))


def plain(model: str, folder: Path) -> dict[str, float]:
    """Train the same with TRL alone."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    def train() -> None:
        trainer = SFTTrainer(
            model=model,
            args=SFTConfig(
                **SHARED, output_dir=str(folder / "plain"), bf16=False, use_cpu=True, report_to="none",
                disable_tqdm=True, dataloader_pin_memory=False, logging_steps=10, save_strategy="epoch",
            ),
            train_dataset=Dataset.from_list(rows()),
            peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=TARGETS, task_type="CAUSAL_LM"),
        )  # fmt: skip
        trainer.train()

    return trained(train)


def rlhf(model: str, folder: Path) -> dict[str, float]:
    """Train with rewards, on answers that are as long as the rows of the other sides with their prompts."""
    from stoker.lab import RLHF, Policy, RLHFConfig

    config = RLHFConfig(
        sampler="transformers", max_new_tokens=LENGTH // 2, batch_size=16, mini_batch_size=8, ppo_epochs=1,
        save_steps=0, output_dir=str(folder / "rlhf"),
    )  # fmt: skip
    prompts = texts([LENGTH // 2] * 16, 0)

    def train() -> None:
        RLHF(Policy(model), lambda completions, **_: [1.0] * len(completions), config).train(prompts, 2)

    return trained(train)


def rollouts(model: str) -> Generator[dict[str, float], None, None]:
    """Yield the speed of both samplers with the same prompts, pair by pair, with the batch that transformers has.

    That batch is looked for once, because this takes as long as some pairs.
    """
    from stoker.lab import Policy, RLHFConfig
    from stoker.lab.ppo.rollouts import TransformersSampler, VllmSampler

    policy = Policy(model, engine={"max_num_seqs": max(BATCHES)})
    policy.changed()  # its new adapter answers on both sides
    config = RLHFConfig(max_new_tokens=ANSWER)

    def prompts(number: int) -> list[list[int]]:
        # Others in each pair: vLLM would remember what it has read.
        return [policy.tokenizer(text)["input_ids"] for text in texts(lengths(PROMPTS, ANSWER, number), number)]

    def theirs(size: int) -> TransformersSampler:
        return TransformersSampler(policy, config, size)

    try:
        vllm = VllmSampler(policy, config)
        speed(vllm, prompts(-1)[:8])
        speed(theirs(8), prompts(-1)[:8])
        batch = best(theirs, prompts(-2))
        for number in itertools.count():
            yield {**sampled(vllm, theirs(batch), prompts(number), number), "batch": batch}
    finally:
        policy.close()


def speed(sampler: Any, asked: Sequence[list[int]]) -> float:
    """Return the tokens per second of a sampler's answers."""
    began = time.monotonic()
    tokens = sum(len(one.ids) for one in sampler.sample(asked))
    return tokens / (time.monotonic() - began)


def best(theirs: Callable[[int], Any], asked: Sequence[list[int]]) -> int:
    """Return how many prompts at a time are fastest for transformers.

    Args:
        theirs: makes what samples with transformers, so many prompts at a time.
        asked: the prompts; a small batch is tried with some of them.
    """
    return max(BATCHES, key=lambda size: speed(theirs(size), asked[: max(size, FEWEST)]))


def sampled(vllm: Any, transformers: Any, asked: Sequence[list[int]], number: int) -> dict[str, float]:
    """Return the speed of both samplers with all prompts.

    Args:
        vllm: samples with vLLM.
        transformers: samples with transformers.
        asked: the prompts.
        number: of the pair; who goes first alternates.
    """
    sides = [("vllm", vllm), ("transformers", transformers)]
    return {name: speed(one, asked) for name, one in (reversed(sides) if number % 2 else sides)}


def latency(model: str) -> Generator[dict[str, float], None, None]:
    """Yield the milliseconds of a short answer with an adapter, by a policy and by its engine alone, pair by pair."""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    from stoker.lab import Policy

    policy = Policy(model)
    policy.changed()  # its new adapter answers, though nothing was trained
    sampling: dict[str, Any] = {"max_tokens": 16, "temperature": 0.0, "ignore_eos": True}

    def milliseconds(ask: Callable[[], object]) -> float:
        began = time.perf_counter()
        ask()
        return 1000 * (time.perf_counter() - began)

    def ours(text: str) -> float:
        return milliseconds(lambda: policy.generate([text], **sampling))

    try:
        ours(texts([32], -1)[0])
        engine, folder = policy.trainer._vllm, policy._current()
        assert folder is not None
        llm = engine._started()
        # The same name and number: vLLM has room for one adapter, and would load another one each time.
        request = LoRARequest(*engine._names.of(Path(folder)), folder)
        parameters = SamplingParams(**sampling)

        def plain(text: str) -> float:
            return milliseconds(lambda: llm.generate([text], parameters, lora_request=request, use_tqdm=False))

        plain(texts([32], -2)[0])
        for number in itertools.count():
            one, other = texts([32, 32], number)
            theirs = plain(other) if number % 2 else 0.0
            mine = ours(one)
            yield {"ours": mine, "plain": theirs or plain(other)}
    finally:
        policy.close()


def main(side: str, folder: Path) -> None:
    """Measure a side each time that it is asked for."""
    from runner.tests.lab.engine.tiny import write

    model = folder / "model"
    if not model.exists():
        write(model, "llama", **SIZE)
    if pairs := {"latency": latency, "rollouts": rollouts}.get(side):
        with closing(pairs(str(model))) as measured:
            answer({"measure": lambda: next(measured)})
    else:
        train = {"ours": ours, "plain": plain, "rlhf": rlhf}[side]
        answer({"measure": lambda: train(str(model), folder)})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
