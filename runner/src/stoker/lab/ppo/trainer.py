"""Trains a policy with rewards: it answers prompts, the answers are judged, and PPO makes good ones more likely."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.contract.exits import ExitCode
from stoker.lab.errors import LabError
from stoker.lab.machine import dtype_of, need_training, need_vllm
from stoker.lab.policy import Policy
from stoker.lab.ppo import checkpoint
from stoker.lab.ppo.config import RLHFConfig
from stoker.lab.ppo.prompts import as_prompts, columns_of, digest, next_prompts
from stoker.lab.ppo.rewards import Answers, Reward, judges_of, rewards_of
from stoker.lab.rows import Row, some
from stoker.lab.trainer import LoRATrainer, Trained

if TYPE_CHECKING:
    import torch

    from stoker.lab.ppo.learner import Learner
    from stoker.lab.ppo.rollouts import AnswerSampler, Rollout

METHOD = "ppo"


class RLHFTrainer:
    """Trains a new policy with rewards. Nothing is loaded before it is needed.

    Args:
        model_name: the base model's folder or Hub id.
        reward_model_name: a reward model's folder or Hub id, the address of one that vLLM serves, a function, or a list
            of these, whose rewards are added.
        config: how to train.
        policy: the policy to train instead of a new one.

    Attributes:
        policy: the policy.
        config: how it is trained.

    Raises:
        LabError: a model, the reward or the config is wrong.
    """

    def __init__(
        self,
        model_name: str,
        reward_model_name: Reward | Sequence[Reward],
        config: RLHFConfig,
        *,
        policy: Policy | None = None,
    ) -> None:
        config.validate()
        self.config = config
        self.policy = policy if policy is not None else Policy(model_name, config.lora_config)
        self._judges = judges_of(reward_model_name, self.policy.config, config.reward_seconds)
        self._learner: Learner | None = None
        self._sampler: AnswerSampler | None = None
        # Where the run is: its steps, the prompts that it took, and a digest of all of them.
        self._step = self._position = 0
        self._digest = self._run = ""
        # Steps, with those of a checkpoint, that may have changed the policy since it was told of a training.
        self._learned = 0

    @property
    def model_name(self) -> str:
        """The base model's folder or Hub id."""
        return self.policy.model_name

    @property
    def policy_trainer(self) -> LoRATrainer:
        """What the policy trains with."""
        return self.policy.trainer

    def generate_rollouts(self, prompts: Sequence[Any]) -> list[str]:
        """Return an answer to each prompt, or as many as `samples` says, by the policy as it is now.

        Args:
            prompts: texts, conversations, or rows with the column `prompt`.

        Raises:
            LabError: the prompts are wrong, or the sampler is not there.
        """
        return [one.text for one in self._rollouts(self._repeated(as_prompts(prompts)))]

    def compute_rewards(self, prompts: Sequence[Any], responses: Sequence[str]) -> torch.Tensor:
        """Return the reward of each answer.

        Args:
            prompts: of the answers, one for each; in the forms of `generate_rollouts`.
            responses: the answers.

        Raises:
            LabError: the prompts are wrong, or a reward is not a number.
        """
        import torch

        rows = as_prompts(prompts)
        if len(rows) != len(responses):
            raise LabError(f"{len(rows)} prompts have {len(responses)} answers: give one prompt for each answer")
        ids = [list(self.policy.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in responses]
        _, total = self._judged(rows, responses, ids)
        return torch.tensor(total)

    def ppo_step(self, prompts: Sequence[Any]) -> dict[str, float]:
        """Answer prompts, have the answers judged, and learn from them; return what was seen.

        To those who publish the policy, steps that no `train` has made are an unfinished training.

        Args:
            prompts: in the forms of `generate_rollouts`.

        Raises:
            LabError: as `train`.
        """
        started, self._learned = time.monotonic(), 0
        try:
            return self._ppo_step(prompts)
        finally:
            self._tell(started)

    def _ppo_step(self, prompts: Sequence[Any]) -> dict[str, float]:
        started = time.monotonic()
        rows = self._repeated(as_prompts(prompts))
        learner = self._learning()
        rollouts = self._rollouts(rows)
        sampled = time.monotonic()
        by_judge, total = self._judged(rows, [one.text for one in rollouts], [list(one.ids) for one in rollouts])
        judged = time.monotonic()
        experience = learner.experience(rollouts, total)
        self._learned += 1
        try:
            updated = learner.update(experience)
        finally:
            self.policy.changed()
        return {
            **experience.metrics,
            **(by_judge if len(by_judge) > 1 else {}),
            **updated,
            "seconds_sampling": sampled - started,
            "seconds_rewards": judged - sampled,
            "seconds_learning": time.monotonic() - judged,
        }

    def train(
        self,
        prompt_dataset: Any,
        num_steps: int,
        *,
        resume: bool | str | Path = False,
        on_step: Callable[[Mapping[str, float]], object] | None = None,
    ) -> Trained:
        """Train for a number of steps; each takes the next prompts, in an order that the seed decides.

        Args:
            prompt_dataset: texts, conversations, rows with the column `prompt`, or a Hugging Face data set. Reward
                functions get the other columns.
            num_steps: steps of the whole run.
            resume: a checkpoint's folder to go on from; True takes the newest in `output_dir`, if there is one.
            on_step: called after each step with what was seen.

        Raises:
            LabError: something is wrong, and what to write instead; where it can be known, before a model is loaded.
        """
        rows = as_prompts(prompt_dataset)
        if not _is_count(num_steps):
            raise LabError(f"num_steps is {num_steps!r}: write a whole number, 1 or more")
        self._check(rows)
        self._step, self._position, self._digest = 0, 0, digest(rows)
        begin = self._found(resume, num_steps)
        if begin is None:
            self._run = uuid.uuid4().hex
        if self.config.save_steps:
            checkpoint.begin_run(Path(self.config.output_dir), self._run)
        self._learned = 0
        history: list[Mapping[str, float]] = []
        started = time.monotonic()
        try:
            self._begin(begin)
            while self._step < num_steps:
                chosen = next_prompts(len(rows), self.config.batch_size, self._position, self.config.seed)
                seen = self._ppo_step([rows[number] for number in chosen])
                self._step, self._position = self._step + 1, self._position + len(chosen)
                history.append({"step": self._step, **seen})
                if self.config.save_steps and self._step % self.config.save_steps == 0:
                    self.save_checkpoint(f"step_{self._step}")
                if on_step is not None:
                    on_step(history[-1])
        except BaseException:
            self._tell(started)
            raise
        loss = sum(seen["loss"] for seen in history) / len(history) if history else float("nan")
        done = Trained(METHOD, self._step, loss, time.monotonic() - started, 1, tuple(history))
        self.policy.changed(done)
        return done

    def save_checkpoint(self, name: str) -> Path:
        """Save what a run goes on with, and return its folder: adapter, value head, optimizer, random numbers, place.

        Args:
            name: of the folder in `output_dir`; `resume=True` finds those of `train`, such as `step_100`.
        """
        folder = Path(self.config.output_dir) / name
        checkpoint.write(folder, self._learning(), self._state())
        return folder

    def _check(self, rows: list[Row]) -> None:
        """Refuse what can be refused before a model is loaded."""
        self.config.validate()
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise LabError("RLHF trains in one process, but WORLD_SIZE tells of more: start it without torchrun")
        need_training()
        if self.config.sampler == "vllm":
            need_vllm()
        dtype_of(self.policy.config)
        first = Answers.of([rows[0]["prompt"]], ["."], [[0]], columns_of(rows[:1]))
        self._refuse_long(rows)
        for judge in self._judges:
            judge.check(first)

    def _refuse_long(self, rows: Sequence[Row]) -> None:
        positions, room = self.policy.positions, self.config.max_new_tokens
        if positions is None:
            return
        lengths = [len(ids) for ids in self._tokens(rows)]
        long = [f"row {row} has {length}" for row, length in enumerate(lengths) if length + room > positions]
        if long:
            raise LabError(
                f"the model takes {positions} tokens, of which max_new_tokens={room} are for the answer, but the "
                f"prompt of {some(long)}: shorten the prompts, or lower max_new_tokens",
                ExitCode.BAD_DATA,
            )

    def _found(self, resume: bool | str | Path, num_steps: int) -> Path | None:
        """Return the checkpoint to go on from, and go to its place."""
        folder = Path(self.config.output_dir)
        begin = (checkpoint.newest(folder) if resume else None) if isinstance(resume, bool) else Path(resume)
        if begin is None:
            return None
        state = checkpoint.read_state(begin)
        checkpoint.refuse_other(begin, state, self._state())
        if state.step > num_steps:
            raise LabError(f"the checkpoint {begin} has {state.step} steps, more than num_steps={num_steps}: raise it")
        self._step, self._position, self._run = state.step, state.position, state.run
        return begin

    def _begin(self, begin: Path | None) -> None:
        """Load what trains, and begin a run: anew, or where a checkpoint has it."""
        from transformers import set_seed

        before, self._learner = self._learner, None
        learner = self._learning(None if before is None else before.head)
        if begin is None:
            set_seed(self.config.seed)
            return
        self._learned = self._step
        try:
            checkpoint.read(begin, learner)
        finally:
            self.policy.changed()

    def _tell(self, started: float) -> None:
        """Tell the policy of a training that did not come to its end, if it may have changed the adapter."""
        if self._learned:
            self.policy.changed(Trained.unfinished(self._learned, time.monotonic() - started))

    def _learning(self, head: Any = None) -> Learner:
        if self._learner is None:
            import torch

            from stoker.lab.ppo.learner import Learner

            model = self.policy.model.to("cuda" if torch.cuda.is_available() else "cpu")
            mixed = dtype_of(self.policy.config) == "bfloat16"
            self._learner = Learner(model, self.policy.tokenizer, self.config, mixed, head)
        return self._learner

    def _repeated(self, rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows for _ in range(self.config.samples)]

    def _rollouts(self, rows: Sequence[Row]) -> list[Rollout]:
        if self._sampler is None:
            from stoker.lab.ppo.rollouts import sampler_of

            self._sampler = sampler_of(self.policy, self.config)
        return self._sampler.sample(self._tokens(rows))

    def _tokens(self, rows: Sequence[Row]) -> list[list[int]]:
        from stoker.lab.data import token_ids

        return [token_ids(self.policy.tokenizer, row["prompt"], add_generation_prompt=True) for row in rows]

    def _judged(
        self, rows: Sequence[Row], texts: Sequence[str], ids: list[list[int]]
    ) -> tuple[dict[str, float], list[float]]:
        """Return the mean reward by each judge, and the sum of the rewards of each answer."""
        answers = Answers.of([row["prompt"] for row in rows], texts, ids, columns_of(rows))
        found = rewards_of(self._judges, answers)
        total = [sum(score for score in scores if score is not None) for scores in zip(*found, strict=True)]
        means = {}
        for judge, scores in zip(self._judges, found, strict=True):
            given = [score for score in scores if score is not None]
            means[f"rewards/{judge.name}"] = sum(given) / len(given) if given else float("nan")
        return means, total

    def _state(self) -> checkpoint.CheckpointState:
        lora = self.policy.config
        return checkpoint.CheckpointState(
            self._step, self._position, self.policy.model_name, {**lora.lora_arguments(), "dtype": lora.dtype},
            self._digest, self.config.decides(), tuple(judge.name for judge in self._judges), self._run,
        )  # fmt: skip


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


class RLHF(RLHFTrainer):
    """Trains a policy with rewards, as it is now.

    Args:
        policy: the policy.
        reward: a reward model's folder or Hub id, the address of one that vLLM serves, a function such as TRL's
            `reward_funcs`, or a list of these, whose rewards are added.
        config: how to train.

    Raises:
        LabError: the policy is served elsewhere, or the reward or the config is wrong.
    """

    def __init__(self, policy: Policy, reward: Reward | Sequence[Reward], config: RLHFConfig | None = None) -> None:
        super().__init__(policy.model_name, reward, config if config is not None else RLHFConfig(), policy=policy)
