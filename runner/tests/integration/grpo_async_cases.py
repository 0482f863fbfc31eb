"""Trains `grpo_async` with samplers that are no servers, and prints what came out as JSON: `… CASE MODEL FOLDER`.

Runs in an environment with the trainers, in one process or in a group.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from datasets import Dataset
from peft import LoraConfig
from runner.tests.integration.rollout_fakes import InOrder, TinyFleet, Versions, scripted
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import read_json
from stoker.frameworks.command_line import FLAG_NAMES
from stoker.frameworks.trl.asynchronous import guard
from stoker.frameworks.trl.asynchronous.collector import Collector, Probe, Prompts
from stoker.frameworks.trl.asynchronous.config import GRPOAsyncConfig
from stoker.frameworks.trl.asynchronous.handout import Ranks
from stoker.frameworks.trl.asynchronous.identity import Judge, Mismatch, Scored
from stoker.frameworks.trl.asynchronous.probes import rows_from
from stoker.frameworks.trl.asynchronous.rows import Row
from stoker.frameworks.trl.asynchronous.trainer import GRPOAsyncTrainer, RolloutStart
from stoker.frameworks.trl.asynchronous.weights import Plausible, TensorSnapshot
from stoker.frameworks.trl.asynchronous.weights import weights_of as published_weights
from stoker.frameworks.trl.callback import RunCallback
from stoker.frameworks.trl.sharded import prepare_sharding
from stoker.frameworks.trl.sharding import FULL, sharding_recipe
from stoker.plan.interfaces import Asked
from stoker.rank.checkpoints import SEAL, read_checkpoints
from stoker.rank.endings import ending_of
from stoker.rank.job import Outcome, StopRequested
from stoker.rank.pulse import Pulse
from stoker.rollouts.engine import Engine
from stoker.rollouts.records import Bounds, Group, Sample, Turn, Writer
from stoker.rollouts.replicas import weight
from stoker.rollouts.schedule import Shuffle

GENERATIONS = 4
ROWS = [{"prompt": f"{a}+{b}=", "solution": str(a + b)} for a in range(10) for b in range(10)]
Answer = Callable[[Group], tuple[Sample, ...]]


def settings(kind: type[GRPOConfig], folder: Path, **more: Any) -> Any:
    """Return the settings of a short run."""
    usual: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 3,
        "per_device_train_batch_size": 8,
        "num_generations": GENERATIONS,
        "max_completion_length": 8,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "shuffle_dataset": False,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "lr_scheduler_type": "constant",
    }
    return kind(**{**usual, **more})


ADAPTER = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")


class Ours:
    """A trainer of ours with a fake fleet.

    Args:
        model: folder of the model.
        args: the settings.
        answer: writes samples.
        take: loads a published version.
        lag: how stale the samples are.
        writer: writes the samples ahead of the trainer, in an engine as real runs have it, instead of `answer`.
        peft_config: the adapter; None trains all weights.
        probe: answers what the guard asks for.
        names: of the reward functions.
        order: the rows of an epoch in the order of training; by default the engine shuffles them.
    """

    def __init__(
        self,
        model: str,
        args: GRPOAsyncConfig,
        answer: Answer,
        take: Callable[[int, Any], None] = lambda version, given: None,
        lag: int = 0,
        writer: Writer | None = None,
        peft_config: LoraConfig | None = ADAPTER,
        probe: Probe | None = None,
        names: Sequence[str] = ("even",),
        order: Shuffle | None = None,
    ) -> None:
        self.engine: InOrder | None = None

        def collect(start: RolloutStart, waiting: Callable[[str], None]) -> Collector:
            if writer is not None:
                bounds = Bounds(args.groups_per_step, args.max_staleness, publish_every=args.publish_every)
                more: dict[str, Any] = {"steps": start.total, "state": start.state, "wait_seconds": 60, "order": order}
                ahead = Engine(ROWS, bounds, writer, seed=0, **more)
                return Collector(ahead, lambda usable: Versions(usable, take), based=peft_config is not None)
            self.engine = InOrder(ROWS, args.groups_per_step, answer, lag, start.step)
            based = peft_config is not None
            return Collector(self.engine, lambda usable: Versions(usable, take), based=based, probe=probe)

        self.trainer = GRPOAsyncTrainer(
            model=model,
            args=args,
            reward_names=[*names],
            collect=collect,
            train_dataset=Dataset.from_list(ROWS),
            eval_dataset=None if args.eval_strategy == "no" else Dataset.from_list(ROWS[:3]),
            peft_config=peft_config,
        )


class Scripted:
    """Writes the same samples through an engine.

    Args:
        answer: writes samples.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def write(self, group: Group, seeds: Callable[[int, int], int]) -> tuple[Sample, ...]:
        """Return the samples."""
        return self._answer(group)


class ClipsAgainstSamplers(GRPOTrainer):
    """TRL's trainer, whose loss takes the samplers' probabilities for those of the policy before the step."""

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        return {**output, "old_per_token_logps": output["sampling_per_token_logps"]}


def theirs(
    model: str,
    args: GRPOConfig,
    answer: Answer,
    vllm: bool,
    names: Sequence[str] = ("even",),
    kind: type[GRPOTrainer] = GRPOTrainer,
) -> GRPOTrainer:
    """Return TRL's own trainer with the same samples; with vLLM it believes that they come from there."""

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        samples: list[Sample] = []
        for place in range(0, len(prompts), GENERATIONS):
            row = next(number for number, row in enumerate(ROWS) if row["prompt"] == prompts[place])
            samples += answer(Group(0, 0, row, ROWS[row], 0, 0))
        return {
            "prompt_ids": [list(s.prompt_ids) for s in samples],
            "completion_ids": [list(s.completion_ids) for s in samples],
            "logprobs": [list(s.logprobs) for s in samples],
            "given": [list(s.rewards) for s in samples],
        }

    def handed_over(name: str, index: int) -> Callable[..., list[float | None]]:
        def reward(given: list[list[float | None]], **_: Any) -> list[float | None]:
            return [rewards[index] for rewards in given]

        reward.__name__ = name
        return reward

    trainer = kind(
        model=model,
        reward_funcs=[handed_over(name, index) for index, name in enumerate(names)],
        args=args,
        train_dataset=Dataset.from_list(ROWS),
        peft_config=ADAPTER,
        rollout_func=rollout,
    )
    if vllm:
        trainer.use_vllm, trainer._last_loaded_step = True, -1
        trainer.vllm_generation = type("Server", (), {"sync_weights": lambda self: None})()
    return trainer


def weights_of(trainer: Any) -> str:
    """Return a digest of the trained weights, bit for bit."""
    digest = hashlib.sha256()
    for name, parameter in sorted(trainer.accelerator.unwrap_model(trainer.model).named_parameters()):
        if parameter.requires_grad:
            digest.update(name.encode() + parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def same(model: str, folder: Path) -> dict[str, Any]:
    """Train the same samples in TRL's trainer and in ours, with and without a correction."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    # The samples are made up, and no policy wrote them.
    guard.IdentityGuard.look = lambda self, step, rows: None  # type: ignore[method-assign]
    found: dict[str, Any] = {}
    cases: dict[str, tuple[dict[str, Any], bool, Callable[[int, int], int]]] = {
        # Lengths differ: the whole batch of a rank is one micro-batch, so nothing can be trimmed.
        "uncorrected": ({"correction": "none"}, False, lambda row, index: 3 + (row + index) % 5),
        "decoupled": ({"gradient_accumulation_steps": 2}, True, lambda row, index: 5),
        "behaviour": (
            {"correction": "behaviour", "loss_type": "cispo", "epsilon_high": 5.0},
            False,
            lambda row, index: 5,
        ),
        # Micro-batches of different lengths: what is cut from them changes nothing but the order of sums.
        "trimmed": (
            {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 2},
            True,
            lambda row, index: 2 + 3 * index,
        ),
        "dr_grpo": ({"loss_type": "dr_grpo", "scale_rewards": "none"}, True, lambda row, index: 3 + index),
        "two rewards": ({"reward_weights": [0.25, 1.5]}, True, lambda row, index: 5),
        "through the engine": ({"publish_every": 1}, True, lambda row, index: 5),
    }
    for name, (ours, vllm, length) in cases.items():
        answer = scripted(tokenizer, GENERATIONS, length)
        more: dict[str, Any] = {}
        if name == "two rewards":
            answer, more = with_a_second_reward(answer), {"names": ["even", "short"]}
        own = {"correction", "max_staleness", "guard_every", "publish_every"}
        shared = {key: value for key, value in ours.items() if key not in own}
        if vllm:
            shared |= {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 2.0}
        kind = ClipsAgainstSamplers if name == "behaviour" else GRPOTrainer
        reference = theirs(model, settings(GRPOConfig, folder, **shared), answer, vllm, kind=kind, **more)
        reference.train()
        args = settings(
            GRPOAsyncConfig, folder, samplers="none", max_staleness=0, guard_every=1000, **{**shared, **ours}
        )
        if name == "through the engine":
            more = {"writer": Scripted(answer), "order": lambda epoch: range(len(ROWS))}
        run = Ours(model, args, answer, **more)
        run.trainer.train()
        losses = [[line["loss"] for line in t.state.log_history if "loss" in line] for t in (reference, run.trainer)]
        found[name] = {"theirs": weights_of(reference), "ours": weights_of(run.trainer), "losses": losses}
    return found


def with_a_second_reward(answer: Answer) -> Answer:
    """Return what writes the same samples with another reward, which every third one does not have."""

    def twice(group: Group) -> tuple[Sample, ...]:
        seconds = [None if index % 3 == 2 else float(index % 2) for index in range(GENERATIONS)]
        samples = zip(answer(group), seconds, strict=True)
        return tuple(replace(sample, rewards=(*sample.rewards, second)) for sample, second in samples)

    return twice


FAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "no effect": {"served": lambda version: 0},
    "stale": {"served": lambda version: version - 1},
    "swapped": {"served": lambda version: version + (1 if version % 2 else -1) if version > 1 else version},
    "other base": {"shaken": 0.02},
    "temperature": {"temperature": 0.7},
}


def home(ordinal: int) -> str:
    """Return the sampler of a group, as a fleet of four chooses it."""
    return max((f"sampler-{number}" for number in range(4)), key=lambda name: weight(ordinal, name))


# One of four samplers is faulty, and a step has two groups.
ONE_OF_FOUR: dict[str, dict[str, Any]] = {
    "none": {"home": home},
    **{f"sampler-{number}": {"home": home, "faulty": f"sampler-{number}", **FAULTS["stale"]} for number in range(4)},
    "sampler-1, unrewarded": {"home": home, "faulty": "sampler-1", "unrewarded": True, **FAULTS["stale"]},
}


def faults(
    model: str, folder: Path, kinds: Mapping[str, dict[str, Any]], steps: int = 20, every: int = 6
) -> dict[str, Any]:
    """Train with samplers that do not serve what they name, and note how each run ends."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    found = {}
    for name, kind in kinds.items():
        fleet = TinyFleet(model, tokenizer, GENERATIONS, **kind)
        args = settings(
            GRPOAsyncConfig,
            folder / name.replace(" ", "-"),
            samplers="none",
            max_steps=steps,
            guard_every=every,
            logging_steps=100,
            skip_flat_groups=kind.get("unrewarded", False),
        )
        run = Ours(model, args, fleet.answer, fleet.take, lag=2)
        ended = None
        try:
            run.trainer.train()
        except RunError as error:
            ended = [int(error.code), error.message]
        lines = [json.loads(line) for line in (Path(args.output_dir) / "metrics.jsonl").read_text().splitlines()]
        found[name] = {
            "step": run.trainer.state.global_step,
            "ended": ended,
            "differences": fleet.differences,
            "noise": [line["guard/noise"] for line in lines],
            "error": [line["guard/error"] for line in lines],
            "reward": [line["reward"] for line in lines],
            "staleness": [line["staleness/max"] for line in lines],
            "stopped": run.engine is not None and run.engine.stopped,
        }
    return found


# Measured over 1,536 tokens; in float32 it was 5e-8.
VLLM_IN_BF16 = 5e-4


def clean(model: str, folder: Path) -> dict[str, Any]:
    """Train 200 steps with faultless samplers, the guard in each, and judge 2,000 rounds drawn from theirs.

    Their log-probabilities are as far off as those of vLLM 0.31 in bfloat16 were, of the same model.
    """
    rounds: list[list[Scored]] = []

    class Recording(Judge):
        def judge(self, scored: Iterable[Scored]) -> list[Mismatch]:
            rounds.append([*scored])
            return super().judge(rounds[-1])

    guard.Judge = Recording  # type: ignore[attr-defined]
    fleet = TinyFleet(model, AutoTokenizer.from_pretrained(model), GENERATIONS, noise=VLLM_IN_BF16)
    own = {"samplers": "none", "max_steps": 200, "guard_every": 1, "learning_rate": 1e-3}
    run = Ours(model, settings(GRPOAsyncConfig, folder, **own), fleet.answer, fleet.take, lag=2)
    run.trainer.train()
    draw = random.Random(0)
    replayed = Judge(run.trainer._guard.noise)
    found = []
    for _ in range(2000):
        parts = draw.choice(rounds)
        found += replayed.judge(draw.choices(parts, k=len(parts)))
    return {
        "step": run.trainer.state.global_step,
        "rounds": len(rounds),
        "error": run.trainer._guard.error,
        "found": [str(finding) for finding in found],
    }


def pair(model: str, folder: Path) -> dict[str, Any]:
    """Train on two ranks: as TRL does, then with an evaluation, a stop during a wait, and a resume."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    rank = int(os.environ["RANK"])
    look, guard.IdentityGuard.look = guard.IdentityGuard.look, lambda self, step, rows: None  # type: ignore[method-assign]
    answer = scripted(tokenizer, GENERATIONS, lambda row, index: 5)
    reference = theirs(model, settings(GRPOConfig, folder, max_steps=2), answer, vllm=False)
    reference.train()
    args = settings(GRPOAsyncConfig, folder, samplers="none", max_staleness=0, correction="none", max_steps=2)
    run = Ours(model, args, answer)
    run.trainer.train()
    found: dict[str, Any] = {"theirs": weights_of(reference), "ours": weights_of(run.trainer)}
    guard.IdentityGuard.look = look  # type: ignore[method-assign]

    output = folder / "output"
    usual: dict[str, Any] = {"samplers": "none", "max_steps": 5, "guard_every": 2, "per_device_train_batch_size": 4}
    usual |= {"num_generations_eval": GENERATIONS, "eval_strategy": "steps", "eval_steps": 2}
    flag = folder / f"stop-{rank}"
    for attempt in range(2):
        fleet = TinyFleet(model, tokenizer, GENERATIONS)
        args = settings(GRPOAsyncConfig, output, save_strategy="steps", save_steps=100, **usual)
        run = Ours(model, args, fleet.answer, fleet.take, lag=1)
        follow = RunCallback(flag, {"fingerprint": {}}, Outcome(), Pulse(folder / "ranks", rank), lambda: None)
        run.trainer.add_callback(follow)
        if attempt == 0:
            run.trainer.add_callback(StopsWhileWaiting(run, flag, at=3))
        try:
            run.trainer.train(resume_from_checkpoint=str(output / "checkpoint-3") if attempt else None)
        except StopRequested as stop:
            found["stopped"] = str(stop)
        flag.unlink(missing_ok=True)
    found["lost"] = guard_ranks(lost(model, folder / "lost", rank))
    # No checkpoint can be written to what is no folder.
    (folder / "broken").mkdir(exist_ok=True)
    (folder / "broken/checkpoint-3").touch()
    found["lost with the volume"] = guard_ranks(lost(model, folder / "broken", rank))
    found["full disk"] = guard_ranks(code_of(OSError(errno.ENOSPC, "No space left on device")))
    found["step"] = run.trainer.state.global_step
    found["kept"] = [one.step for one in read_checkpoints(folder / "lost") if not one.flaw]
    found["seal"] = sorted(json.loads((output / "checkpoint-3" / SEAL).read_text())["files"])
    found["state"] = read_json(output / "checkpoint-3" / "rollouts.json")
    found["metrics"] = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    found["samples"] = [json.loads(line) for line in (output / "samples.jsonl").read_text().splitlines()]
    found["evaluated"] = [line for line in run.trainer.state.log_history if "eval_reward" in line]
    found["weights"] = guard_ranks(weights_of(run.trainer))
    return found


def lost(model: str, output: Path, rank: int) -> str:
    """Return what ends a rank whose samplers are gone for good after three steps."""
    fleet = TinyFleet(model, AutoTokenizer.from_pretrained(model), GENERATIONS)
    own = {"samplers": "none", "max_steps": 5, "guard_every": 2, "per_device_train_batch_size": 4}
    args = settings(GRPOAsyncConfig, output, save_strategy="steps", save_steps=2, **own)
    run = Ours(model, args, fleet.answer, fleet.take, lag=1)
    pulse = Pulse(output / "ranks", rank)
    run.trainer.add_callback(RunCallback(output / "stop", {"fingerprint": {}}, Outcome(), pulse, lambda: None))
    run.trainer.add_callback(LosesSamplers(run, after=3))
    try:
        run.trainer.train()
    except RunError as error:
        return f"{error.code.name}: {error.message}"
    return "none"


def code_of(failure: Exception) -> str:
    """Return the code with which this rank ends when rank 0 fails while all ranks wait."""

    def fail(waiting: Callable[[str], None]) -> None:
        raise failure

    try:
        Ranks().share(fail, lambda reason: False)
    except Exception as error:  # noqa: BLE001 - as in a rank's worker
        return ending_of(error, FLAG_NAMES).code.name
    return "none"


def kubetorch(model: str, folder: Path) -> dict[str, Any]:
    """Train one step with the flags that give the arithmetic of Kubetorch's example, and compute it as that does."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    guard.IdentityGuard.look = lambda self, step, rows: None  # type: ignore[method-assign]
    answer = scripted(tokenizer, GENERATIONS, lambda row, index: 3 + index)
    args = settings(
        GRPOAsyncConfig,
        folder,
        samplers="none",
        allow_incomparable_logprobs=True,
        top_p=0.95,
        loss_type="bnpo",
        scale_rewards="group",
        max_grad_norm=1.0,
        max_steps=1,
        optim="sgd",
        learning_rate=1.0,
    )
    trainer = Ours(model, args, answer).trainer
    trained = {name: value for name, value in trainer.model.named_parameters() if value.requires_grad}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in trained.items():
            if "lora_B" in name:  # else only these would learn in the first step
                value.copy_(0.1 * torch.randn(value.shape, generator=generator))
    before = {name: value.detach().clone() for name, value in trained.items()}
    samples = [sample for row in range(2) for sample in answer(Group(0, 0, row, ROWS[row], 0, 0))]
    wanted = gradients_of_the_example(trainer.model, samples, tokenizer.pad_token_id, [*trained.values()])
    trainer.train()
    differences = [
        float((value.detach() - (before[name] - gradient)).abs().max())
        for (name, value), gradient in zip(trained.items(), wanted, strict=True)
    ]
    moved = [float(gradient.abs().max()) for gradient in wanted]
    return {"difference": max(differences), "moved": max(moved), "correction": args.correction}


def ahead(model: str, folder: Path) -> dict[str, Any]:
    """Train with an engine that has samples written ahead, in all modes of the correction."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    modes: dict[str, dict[str, Any]] = {
        "decoupled": {"gradient_accumulation_steps": 2, "publish_every": 2},
        "behaviour": {"loss_type": "cispo", "epsilon_high": 5.0},
        "flat groups": {"skip_flat_groups": True},
    }
    found = {}
    for name, more in modes.items():
        fleet = TinyFleet(model, tokenizer, GENERATIONS)
        given = {"correction": name} if name == "behaviour" else {}
        own = {"samplers": "none", "max_steps": 6, "max_staleness": 3, "guard_every": 2, **given, **more}
        args = settings(GRPOAsyncConfig, folder / name.replace(" ", "-"), **own)
        Ours(model, args, fleet.answer, fleet.take, writer=fleet).trainer.train()
        lines = [json.loads(line) for line in (Path(args.output_dir) / "metrics.jsonl").read_text().splitlines()]
        shown = [json.loads(line) for line in (Path(args.output_dir) / "samples.jsonl").read_text().splitlines()]
        found[name] = {"metrics": lines, "rows": [(line["epoch"], line["row"]) for line in shown]}
    return found


def gradients_of_the_example(model: Any, samples: list[Sample], pad: int, weights: list[Any]) -> list[torch.Tensor]:
    """Return the clipped gradients of its loss: mean over tokens of the advantage times -log p, without a ratio."""
    longest = max(len(sample.completion_ids) for sample in samples)
    completions = torch.tensor([[*s.completion_ids, *[pad] * (longest - len(s.completion_ids))] for s in samples])
    mask = torch.tensor([[1.0] * len(s.completion_ids) + [0.0] * (longest - len(s.completion_ids)) for s in samples])
    prompts = torch.tensor([sample.prompt_ids for sample in samples])
    rewards = torch.tensor([sample.rewards[0] for sample in samples]).view(-1, GENERATIONS)
    deviation = rewards.std(dim=1, keepdim=True) + 1e-8
    advantages = ((rewards - rewards.mean(dim=1, keepdim=True)) / deviation).view(-1, 1)
    logits = model(input_ids=torch.cat([prompts, completions], dim=1)).logits[:, prompts.size(1) - 1 : -1]
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), completions, reduction="none")
    found = torch.autograd.grad((losses * advantages * mask).sum() / mask.sum(), weights)
    norm = torch.stack([gradient.norm() for gradient in found]).norm()
    return [gradient * min(1.0, 1.0 / (float(norm) + 1e-6)) for gradient in found]


class StopsWhileWaiting(TrainerCallback):
    """Tells rank 1 to stop while all ranks wait for a batch."""

    def __init__(self, run: Ours, flag: Path, at: int) -> None:
        self._run, self._flag, self._at = run, flag, at

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Let the next batch be waited for, and the wait be ended."""
        if state.global_step != self._at - 1:
            return
        if self._run.engine is not None:
            self._run.engine.waits = 3

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ask rank 1 to stop, too late for this step."""
        if state.global_step == self._at and self._flag.name == "stop-1":
            self._flag.touch()


class LosesSamplers(TrainerCallback):
    """Takes the samplers away after a step."""

    def __init__(self, run: Ours, after: int) -> None:
        self._run, self._after = run, after

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Let the next batch never come."""
        if state.global_step == self._after and self._run.engine is not None:
            self._run.engine.failure = RunError(ExitCode.STOPPED, "no sampler is there")


def guarded(run: Ours) -> dict[str, Any]:
    """Train, and return how it ended and what the guard measured."""
    ended = None
    try:
        run.trainer.train()
    except RunError as error:
        ended = [int(error.code), error.message]
    lines = (Path(run.trainer.args.output_dir) / "metrics.jsonl").read_text().splitlines()
    errors = [json.loads(line)["guard/error"] for line in lines]
    return {"step": run.trainer.state.global_step, "ended": ended, "errors": errors}


def whole(model: str, folder: Path) -> dict[str, Any]:
    """Train all weights: with an engine, and with samplers that do not serve what they name."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    own = {"samplers": "none", "learning_rate": 1e-3, "logging_steps": 100, "guard_every": 6}
    fleet = TinyFleet(model, tokenizer, GENERATIONS)
    args = settings(GRPOAsyncConfig, folder / "ahead", max_steps=8, max_staleness=3, **own)
    ways: dict[int, float] = {}

    def take(version: int, snapshot: TensorSnapshot, fleet: TinyFleet = fleet) -> None:
        ways[version] = snapshot.way
        fleet.take_all(version, snapshot)

    Ours(model, args, fleet.answer, take, writer=fleet, peft_config=None).trainer.train()
    lines = [json.loads(line) for line in (Path(args.output_dir) / "metrics.jsonl").read_text().splitlines()]
    found: dict[str, Any] = {"metrics": lines, "ways": [way for _, way in sorted(ways.items())]}
    kinds: dict[str, dict[str, Any]] = {
        "none": {},
        "no change": {"served": lambda version: 0},
        "stale": {"served": lambda version: version - 1},
        "temperature": {"temperature": 0.7},
    }
    for name, kind in kinds.items():
        fleet = TinyFleet(model, tokenizer, GENERATIONS, **kind)
        args = settings(GRPOAsyncConfig, folder / name.replace(" ", "-"), max_steps=16, **own)
        run = Ours(model, args, fleet.answer, fleet.take_all, lag=2, peft_config=None)
        found[name] = guarded(run)
    return found


def shared(model: str, folder: Path) -> dict[str, Any]:
    """Train all weights on two ranks that share them, as STOKER_SHARDING=full has it."""
    prepare_sharding()
    asked = Asked("grpo_async", "cpu", world_size=2, sharding=FULL)
    recipe = {flag: json.loads(text) for flag, (text, _) in sharding_recipe(asked, "full").items()}
    fleet = TinyFleet(model, AutoTokenizer.from_pretrained(model), GENERATIONS)
    own = {"samplers": "none", "learning_rate": 1e-3, "max_steps": 6, "max_staleness": 2, "guard_every": 2}
    args = settings(GRPOAsyncConfig, folder, **recipe, **own)
    names: list[str] = []

    def take(version: int, snapshot: TensorSnapshot) -> None:
        names[:] = snapshot.tensors
        fleet.take_all(version, snapshot)

    trainer = Ours(model, args, fleet.answer, take, writer=fleet, peft_config=None).trainer
    trainer.train()
    assert all(isinstance(parameter, DTensor) for parameter in trainer.model.parameters())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    args = settings(GRPOAsyncConfig, folder / "bf16", **{**recipe, **own, "bf16": True, "max_steps": 1})
    rounded = Ours(model, args, fleet.answer, peft_config=None).trainer
    rounded.train()
    ids = torch.tensor([[5, 6, 7, 8]])
    score, _, _ = rounded._get_per_token_logps_and_entropies(rounded.model, ids, torch.ones_like(ids), 2)
    alone = [name for name, _ in AutoModelForCausalLM.from_pretrained(model).named_parameters()]
    return {"metrics": lines, "names": names, "of the model": alone, "type in bf16": str(score.dtype)}


def names(model: str, folder: Path) -> dict[str, Any]:
    """Return the names by which the weights of tiny models are published, and those in their checkpoints."""
    found = {}
    experts = {"num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    for family in ("llama", "mixtral", "qwen3_moe"):
        config = AutoConfig.for_model(family, **size, **experts, num_key_value_heads=2, vocab_size=32, head_dim=8)
        made = AutoModelForCausalLM.from_config(config)
        made.save_pretrained(folder / family)
        snapshot = published_weights(made, 0.0, Plausible(), keep=True)
        assert snapshot is not None
        saved = [name for file in (folder / family).glob("*.safetensors") for name in load_file(file)]
        found[family] = {"published": sorted(snapshot.tensors), "saved": sorted(saved)}
    return found


def fast(model: str, folder: Path) -> dict[str, Any]:
    """Train all weights where no answer is one version's alone, so that the guard sees only what it asks for."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    own = {"samplers": "none", "learning_rate": 1e-3, "logging_steps": 100, "guard_every": 6, "max_steps": 16}
    found: dict[str, Any] = {}
    for name, temperature in (("none", 1.0), ("temperature", 0.7)):
        fleet = TinyFleet(model, tokenizer, GENERATIONS, temperature=temperature)
        asked: list[int] = []

        def answer(group: Group, fleet: TinyFleet = fleet) -> tuple[Sample, ...]:
            return tuple(replace(sample, newest=group.version + 1) for sample in fleet.answer(group))

        def probe(
            version: int,
            prompts: Prompts,
            stop: Callable[[], bool],
            fleet: TinyFleet = fleet,
            asked: list[int] = asked,
        ) -> Sequence[Row]:
            asked.append(version)
            turns = []
            for prompt in [*prompts] * 4:
                ids, logprobs = fleet.complete(version, [*prompt], 6, 1.0)
                turns.append(Turn(prompt, tuple(ids), tuple(logprobs), version, "length", "tiny", 0.0, version))
            return rows_from(turns)

        args = settings(GRPOAsyncConfig, folder / name, **own)
        run = Ours(model, args, answer, fleet.take_all, lag=2, peft_config=None, probe=probe)
        found[name] = {**guarded(run), "asked": asked}
    return found


def guard_ranks(value: str) -> list[str]:
    """Return a value of every rank."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


CASES: dict[str, Callable[[str, Path], dict[str, Any]]] = {
    "same": same,
    "faults": partial(faults, kinds=FAULTS),
    "faults, as rarely as runs look": partial(faults, kinds=FAULTS, steps=40, every=16),
    "one of four": partial(faults, kinds=ONE_OF_FOUR, steps=40, every=16),
    "clean": clean,
    "pair": pair,
    "kubetorch": kubetorch,
    "ahead": ahead,
    "whole": whole,
    "shared": shared,
    "names": names,
    "fast": fast,
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    made = CASES[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
    if os.environ.get("RANK", "0") == "0":
        print("\n" + json.dumps(made))
