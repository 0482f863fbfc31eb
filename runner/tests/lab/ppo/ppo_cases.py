"""PPO beside plain formulas, and on a tiny model: `python ppo_cases.py FOLDER [CASE…]` prints what fails, as JSON.

Runs in an environment with the trainers. FOLDER is empty. Without a CASE, all run that are short.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from runner.tests.lab.cases import refused, report
from runner.tests.lab.engine.tiny import write

from stoker.contract.exits import ExitCode
from stoker.contract.manifest import MANIFEST
from stoker.lab import RLHF, LoRATrainConfig, Policy, RLHFConfig, RLHFTrainer
from stoker.lab.ppo.advantages import gae, token_rewards, whiten
from stoker.lab.ppo.loss import policy_loss, value_loss
from stoker.lab.ppo.rollouts import RolloutBatch
from stoker.lab.ppo.value_head import ValueHead, scored

torch.set_num_threads(1)
FOLDER = Path(sys.argv[1])
# Weights large enough for a model that is sure of something.
SIZE: dict[str, Any] = {
    "num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "initializer_range": 0.5,
}  # fmt: skip
MODEL = str(write(FOLDER / "model", "llama", **SIZE))
LORA = LoRATrainConfig(target_modules="all-linear")
CONFIG = RLHFConfig(
    sampler="transformers", max_new_tokens=3, batch_size=8, mini_batch_size=4, ppo_epochs=2, learning_rate=5e-3,
    value_learning_rate=1e-2, save_steps=0, output_dir=str(FOLDER / "output"),
)  # fmt: skip
PROMPTS = [f"{a}{b}" for a in "abcd" for b in "xyz"]


def digits(completions: Sequence[str], **_: Any) -> list[float]:
    """Reward each digit of an answer; an answer of three of them is right."""
    return [sum(letter.isdigit() for letter in text) / 3 for text in completions]


def run(seed: int = 42, reward: Any = digits, **changes: Any) -> RLHF:
    """Return a training of a new policy."""
    policy = Policy(MODEL, replace(LORA, seed=seed))
    return RLHF(policy, reward, replace(CONFIG, seed=seed, **changes))


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    """Fail unless two tensors are the same to 1e-6."""
    assert one.shape == other.shape
    assert torch.allclose(one, other, rtol=0, atol=1e-6), (one - other).abs().max()


def answers(rows: int = 5, width: int = 7) -> tuple[list[int], torch.Tensor]:
    """Return lengths of answers and their mask."""
    lengths = [1 + number * (width - 1) // (rows - 1) for number in range(rows)]
    return lengths, torch.tensor([[1.0] * length + [0.0] * (width - length) for length in lengths])


def gae_is_a_plain_loop() -> None:
    """Each advantage is the discounted sum of the errors of the values, as the definition has it."""
    torch.manual_seed(0)
    lengths, mask = answers()
    for gamma, lam in ((1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.5, 0.0)):
        rewards, values = torch.randn(2, *mask.shape)
        found, returns = gae(rewards * mask, values, mask, gamma, lam)
        wanted = torch.zeros_like(mask)
        for row, length in enumerate(lengths):
            value = [float(one) for one in values[row, :length]] + [0.0]
            errors = [float(rewards[row, at]) + gamma * value[at + 1] - value[at] for at in range(length)]
            for at in range(length):
                wanted[row, at] = sum((gamma * lam) ** (to - at) * errors[to] for to in range(at, length))
        close(found, wanted)
        close(returns, wanted + values * mask)
    # With lam 1 a return is the sum of the rewards to come.
    rewards = torch.randn(mask.shape) * mask
    close(gae(rewards, torch.randn(mask.shape), mask, 1.0, 1.0)[1], rewards.flip(1).cumsum(1).flip(1) * mask)


def rewards_are_at_the_last_token() -> None:
    """The score comes with the last token, the price of leaving the reference with each."""
    torch.manual_seed(0)
    lengths, mask = answers()
    scores, (logprobs, reference) = torch.randn(len(lengths)), torch.randn(2, *mask.shape)
    found = token_rewards(scores, logprobs, reference, mask, 0.1)
    for row, length in enumerate(lengths):
        for at in range(mask.shape[1]):
            wanted = -0.1 * float(logprobs[row, at] - reference[row, at]) if at < length else 0.0
            wanted += float(scores[row]) if at == length - 1 else 0.0
            assert abs(float(found[row, at]) - wanted) <= 1e-6
    numbers = torch.cat([found[row, :length] for row, length in enumerate(lengths)])
    flat = torch.cat([whiten(found, mask)[row, :length] for row, length in enumerate(lengths)])
    close(flat, (numbers - numbers.mean()) / numbers.std(unbiased=False))
    kept = torch.cat([whiten(found, mask, shift=False)[row, :length] for row, length in enumerate(lengths)])
    close(kept, numbers / numbers.std(unbiased=False))


def losses_are_those_of_the_paper() -> None:
    """Both clipped losses are means over tokens of what the definitions say, token by token."""
    torch.manual_seed(0)
    lengths, mask = answers()
    logprobs, old, advantages, values, before, returns = torch.randn(6, *mask.shape)
    logprobs[mask == 0] = 300.0  # what pads must not matter, whatever it is
    terms, clipped, errors = [], 0, []
    for row, length in enumerate(lengths):
        for at in range(length):
            ratio, advantage = math.exp(float(logprobs[row, at] - old[row, at])), float(advantages[row, at])
            near = min(max(ratio, 0.8), 1.2)
            terms.append(-min(ratio * advantage, near * advantage))
            clipped += near * advantage < ratio * advantage
            value, was, wanted = float(values[row, at]), float(before[row, at]), float(returns[row, at])
            held = min(max(value, was - 0.3), was + 0.3)
            errors.append(0.5 * max((value - wanted) ** 2, (held - wanted) ** 2))
    loss, part = policy_loss(logprobs, old, advantages, mask, 0.2)
    close(loss, torch.tensor(fmean(terms)))
    close(part, torch.tensor(clipped / len(terms)))
    close(value_loss(values, before, returns, mask, 0.3), torch.tensor(fmean(errors)))


def a_batch_scores_as_each_answer_alone() -> None:
    """Padding on both sides changes no log-probability and no value, and temperature is that of sampling."""
    policy = Policy(MODEL, LORA)
    head = ValueHead(32)
    torch.nn.init.normal_(head.weight)
    pairs = [((40, 41, 42, 43), (50, 51)), ((44,), (52, 53, 54)), ((45, 46), (55,))]
    whole = RolloutBatch.of(pairs, 0)
    for temperature in (1.0, 0.7):
        with torch.no_grad():
            together = scored(policy.model, head, whole, temperature)
            for row, (prompt, answer) in enumerate(pairs):
                states = policy.model(torch.tensor([[*prompt, *answer]]), output_hidden_states=True)
                said = (states.logits[0, len(prompt) - 1 : -1] / temperature).log_softmax(-1)
                wanted = said.gather(1, torch.tensor(answer)[:, None]).squeeze(1)
                values = head(states.hidden_states[-1][0, len(prompt) - 1 : -1]).squeeze(1)
                for found, one in ((together.logprobs, wanted), (together.values, values)):
                    assert torch.allclose(found[row, : len(answer)], one, atol=1e-4), (found[row], one)
    part = whole[[2, 1]]
    assert part.ids.shape == (2, 5)
    assert part.ids.tolist() == [[45, 46, 55, 0, 0], [0, 44, 52, 53, 54]]
    assert part.mask.tolist() == [[1, 0, 0], [1, 1, 1]]


def a_resumed_run_is_an_uninterrupted_one() -> None:
    """From a checkpoint, a new process would go on as if nothing had happened: bit by bit."""
    changes: dict[str, Any] = {"reference": "start", "batch_size": 5}

    def noisy(completions: Sequence[str], **_: Any) -> list[float]:
        """Draw from Python's random numbers, as a reward function may."""
        return [score + random.random() for score in digits(completions)]

    whole = run(reward=noisy, **changes)
    done = whole.train(PROMPTS, 4)
    first = run(reward=noisy, **changes, save_steps=2, output_dir=str(FOLDER / "resumed"))
    first.train(PROMPTS, 2)
    (FOLDER / "resumed" / "step_9").mkdir()  # a checkpoint that was not finished
    again = run(reward=noisy, **changes, save_steps=2, output_dir=str(FOLDER / "resumed"))
    random.seed(1)
    torch.manual_seed(1)
    rest = again.train(PROMPTS, 4, resume=True)
    assert [seen["step"] for seen in rest.history] == [3, 4]
    for one, other in zip(done.history[2:], rest.history, strict=True):
        assert {key: value for key, value in one.items() if "seconds" not in key} == {
            key: value for key, value in other.items() if "seconds" not in key
        }
    for mine, theirs in zip(weights(whole), weights(again), strict=True):
        assert torch.equal(mine, theirs)
    # The adapter of a checkpoint is one for PEFT and vLLM.
    Policy(MODEL, LORA, adapter=FOLDER / "resumed/step_4")
    assert (FOLDER / "resumed/step_2").is_dir()
    refused(lambda: run().train(PROMPTS, 4, resume=FOLDER / "resumed/step_4"), "batch_size=5 (config), not 8")
    refused(lambda: again.train(PROMPTS[1:], 4, resume=True), "other prompts")
    refused(lambda: run(**changes).train(PROMPTS, 4, resume=FOLDER / "resumed/step_4"), "with the rewards of noisy")
    refused(lambda: again.train(PROMPTS, 3, resume=True), "has 4 steps, more than num_steps=3")
    refused(lambda: again.train(PROMPTS, 3, resume=FOLDER), "has no checkpoint of RLHF", ExitCode.NO_INPUT)

    # A run that began anew in the folder, and ended before its first checkpoint, is not the run before it.
    def stop(_: Mapping[str, float]) -> None:
        raise KeyboardInterrupt

    same: dict[str, Any] = {**changes, "save_steps": 2, "output_dir": str(FOLDER / "resumed")}
    stopped = run(reward=noisy, **same)
    with suppress(KeyboardInterrupt):
        stopped.train(PROMPTS, 4, on_step=stop)
    told_to_those_who_publish(stopped, 1)
    assert [seen["step"] for seen in run(reward=noisy, **same).train(PROMPTS, 1, resume=True).history] == [1]


def told_to_those_who_publish(training: RLHF, steps: int) -> None:
    """A run that was interrupted, and steps that were made by hand, are one unfinished training."""
    name = f"unfinished-{steps}"
    refused(lambda: training.policy.to_trainjob("a", "a/dataset"), "but this policy had unfinished: ")
    training.policy.publish(FOLDER / "adapters", name)
    manifest = json.loads((FOLDER / "adapters" / name / "1" / MANIFEST).read_text())
    assert (manifest["method"], manifest["steps"]) == ("unfinished", steps), manifest
    if steps == 1:
        training.ppo_step(PROMPTS[:5])
        training.ppo_step(PROMPTS[:5])
        told_to_those_who_publish(training, 3)


def weights(training: RLHF) -> list[torch.Tensor]:
    """Return adapter and value head."""
    learner = training._learning()
    return [value.detach() for value in (*learner.adapter.values(), *learner.head.parameters())]


def a_new_policy_is_its_reference() -> None:
    """The distance to the reference is zero at first, with both references, and grows."""
    for reference in ("base", "start"):
        done = run(reference=reference).train(PROMPTS, 2)
        assert done.history[0]["kl"] == 0.0, done.history[0]
        assert abs(done.history[1]["kl"]) > 1e-4, done.history[1]
        assert done.method == "ppo"
        assert done.steps == 2
    # Of a policy that was trained before, the base is far, and what training began with is not.
    training = run()
    training.train(PROMPTS, 2)
    far = RLHF(training.policy, digits, replace(CONFIG, seed=7)).train(PROMPTS, 1)
    near = RLHF(training.policy, digits, replace(CONFIG, seed=7, reference="start")).train(PROMPTS, 1)
    assert abs(far.history[0]["kl"]) > 1e-4
    assert near.history[0]["kl"] == 0.0


def rewards_rise() -> None:
    """In few steps, answers have more of what is rewarded."""
    history = run(batch_size=32, mini_batch_size=16, ppo_epochs=4, kl_coef=0.0).train(PROMPTS, 12).history
    first, last = (fmean(seen["reward"] for seen in part) for part in (history[:3], history[-3:]))
    assert last > first + 0.15, [seen["reward"] for seen in history]


def three_seeds_reach_the_bar() -> None:
    """Whatever the seed, in the last five steps nearly all that could be rewarded is; the value head learns too."""
    config = {"batch_size": 32, "mini_batch_size": 16, "ppo_epochs": 4, "kl_coef": 0.001, "learning_rate": 1e-2}
    for seed in (1, 2, 3):
        history = run(seed, **config).train(PROMPTS, 60).history
        reached = fmean(seen["reward"] for seen in history[-5:])
        assert reached >= 0.95, (seed, [round(seen["reward"], 2) for seen in history])
        assert history[-1]["value_loss"] < history[0]["value_loss"]


def the_plans_class_trains() -> None:
    """The plan's own class works as the plan calls it: answers, rewards, one step."""
    trainer = RLHFTrainer(MODEL, digits, replace(CONFIG, lora_config=LORA, samples=2))
    assert trainer.model_name == trainer.policy_trainer.model_name == MODEL
    answers = trainer.generate_rollouts(PROMPTS[:2])
    assert len(answers) == 4
    assert all(isinstance(answer, str) for answer in answers)
    assert trainer.compute_rewards(["a", "b"], ["12x", "x"]).tolist() == torch.tensor([2 / 3, 0.0]).tolist()
    assert math.isfinite(trainer.ppo_step(PROMPTS[:2])["loss"])
    assert trainer.save_checkpoint("step_0") == FOLDER / "output/step_0"
    trainer.train(PROMPTS, 1)
    assert trainer.policy.publish(FOLDER / "adapters", "digits") == "digits:1"
    manifest = json.loads((FOLDER / "adapters/digits/1" / MANIFEST).read_text())
    assert (manifest["method"], manifest["steps"]) == ("ppo", 1)
    (FOLDER / "manifest.json").write_text(json.dumps(manifest))


def columns_and_conversations_reach_the_rewards() -> None:
    """A reward function gets TRL's arguments, and several rewards are added."""
    seen: list[dict[str, Any]] = []

    async def judge(completions: Any, answer: list[str], **rest: Any) -> list[float | None]:
        """Look at what comes, and have an opinion on the first answer alone."""
        seen.append({"completions": completions, "answer": answer, **rest})
        return [1.0, *[None] * (len(completions) - 1)]

    turn = [{"role": "user", "content": "a"}]
    training = run(reward=[judge, lambda completions, **_: [0.5] * len(completions)], batch_size=2)
    training.policy.tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    done = training.train([{"prompt": turn, "answer": "1"}], 1)
    (given,) = seen
    assert given["answer"] == ["1", "1"]
    assert given["prompts"] == [turn, turn]
    assert [message["role"] for (message,) in given["completions"]] == ["assistant", "assistant"]
    assert len(given["completion_ids"]) == 2
    assert done.history[0]["rewards/judge"] == 1.0
    assert done.history[0]["reward"] == 1.0


def a_reward_model_judges() -> None:
    """A model of transformers scores texts of unequal length together as each alone; other models are refused."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(0)
    judge = AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=1)
    judge.save_pretrained(FOLDER / "judge")
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.chat_template = "{{ raise_exception('no user here') }}"
    tokenizer.save_pretrained(FOLDER / "judge")
    training = run(reward=str(FOLDER / "judge"))
    prompts, said = ["a", "abcd", "abc"], ["1", "23", "x" * 9]
    found = training.compute_rewards(prompts, said).tolist()
    turn = [{"role": "user", "content": "a"}]
    told = f"the chat template of the reward model {FOLDER / 'judge'} refuses a conversation (no user here): "
    refused(lambda: training.compute_rewards([turn], ["1"]), told, ExitCode.BAD_DATA)
    tokenizer = training.policy.tokenizer
    for prompt, answer, score in zip(prompts, said, found, strict=True):
        with torch.no_grad():
            alone = float(judge(**tokenizer(prompt + answer, return_tensors="pt")).logits[0, 0])
        assert abs(alone - score) <= 1e-4, (alone, score)
    assert len({round(score, 3) for score in found}) == 3
    (step,) = training.train(PROMPTS, 1).history
    assert math.isfinite(step["reward"])
    refused(lambda: run(reward=MODEL), "is a LlamaForCausalLM, not a model ForSequenceClassification")
    refused(lambda: run(reward="./nothing"), "is not there")
    AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=2).save_pretrained(FOLDER / "two")
    refused(lambda: run(reward=str(FOLDER / "two")), "has 2 labels")
    # Of a name on the Hub nothing is known before it is asked for: before the policy is loaded.
    unknown = run(reward="org/nowhere")
    refused(lambda: unknown.train(PROMPTS, 1), "the model org/nowhere cannot be loaded (", ExitCode.NO_INPUT)


def bad_input_is_refused_before_the_model_is_loaded() -> None:
    """One message with the fix."""
    training = run()
    refused(lambda: training.train([], 1), "there are no prompts", ExitCode.BAD_DATA)
    refused(lambda: training.train(["a" * 600, "b"], 1), "the prompt of row 0 has 600", ExitCode.BAD_DATA)
    refused(lambda: training.train(PROMPTS, 0), "num_steps is 0")
    refused(lambda: run(reward=lambda completions: []).train(PROMPTS, 1), "give it **kwargs")
    assert training.policy._trainer is not None
    assert training.policy._trainer._hf_model is None
    if find_spec("vllm") is None:
        served = run(sampler="vllm")
        refused(lambda: served.train(PROMPTS, 1), "generating needs the Python package vllm, which is not installed")
        assert getattr(served.policy._trainer, "_hf_model", None) is None
    refused(lambda: run(reward=lambda **_: [1.0]).train(PROMPTS, 1), "returned 1 rewards for 8 completions")
    refused(lambda: run(reward=lambda prompts, **_: [math.nan] * len(prompts)).train(PROMPTS, 1), "returned nan")
    silent = run(reward=lambda prompts, **_: [None] * len(prompts))
    refused(lambda: silent.train(PROMPTS, 1), "every reward returned None")
    wild = run(reward=lambda prompts, **_: [1e30] * len(prompts), whiten_advantages=False)
    refused(lambda: wild.train(PROMPTS, 1), "RLHF: the loss is")
    assert all(torch.isfinite(one).all() for one in weights(wild))


SHORT = (
    gae_is_a_plain_loop,
    rewards_are_at_the_last_token,
    losses_are_those_of_the_paper,
    a_batch_scores_as_each_answer_alone,
    a_resumed_run_is_an_uninterrupted_one,
    a_new_policy_is_its_reference,
    rewards_rise,
    the_plans_class_trains,
    columns_and_conversations_reach_the_rewards,
    a_reward_model_judges,
    bad_input_is_refused_before_the_model_is_loaded,
)
CASES = {case.__name__: case for case in (*SHORT, three_seeds_reach_the_bar)}


if __name__ == "__main__":
    report([CASES[name] for name in sys.argv[2:]] or SHORT)
