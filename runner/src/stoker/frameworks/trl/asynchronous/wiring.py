"""Puts the rollouts of a run together on rank 0: samplers, rewards, engine and publisher, from its flags.

Only training processes import this module: what asks the samplers needs a package of the image.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from stoker.contract.samplers import ADDRESSES, OF_THE_JOB, api_key
from stoker.contract.variables import PLAN_FILE, workspace_of
from stoker.frameworks.trl.asynchronous.collector import Collector, Prompts, Waiting
from stoker.frameworks.trl.asynchronous.handout import Ranks
from stoker.frameworks.trl.asynchronous.metrics import Lengths
from stoker.frameworks.trl.asynchronous.probes import asked, rows_from
from stoker.frameworks.trl.asynchronous.prompts import TRAINED, longest_prompt
from stoker.frameworks.trl.asynchronous.request import seconds_to_wait, steps_between_evaluations, versions_needed
from stoker.frameworks.trl.asynchronous.rows import Row
from stoker.frameworks.trl.asynchronous.trainer import RolloutStart
from stoker.plan.plan import Plan
from stoker.rollouts.addresses import addresses_in
from stoker.rollouts.chat import Chat, chat_of
from stoker.rollouts.engine import Engine
from stoker.rollouts.episodes import EMPTY, Episodes, Sampling
from stoker.rollouts.fleet import Fleet
from stoker.rollouts.names import environments_among
from stoker.rollouts.publish import Publisher
from stoker.rollouts.records import Bounds, Group, Sample, Seeds, Writer
from stoker.rollouts.replicas import Needs
from stoker.rollouts.rewards import Judges, functions_among
from stoker.rollouts.stores import Adapters, Store, WholeWeights
from stoker.rollouts.tooling import Tooling
from stoker.rollouts.user_code import Functions, Limits, Loaded, UserCode
from stoker.serve.adapters import live
from stoker.serve.adapters.files import read_base_model


class Rollouts:
    """The rollouts of a run, from the flags to a collector. Every rank enters it; only rank 0 does something.

    Args:
        settings: `GRPOAsyncConfig`.
        model: `trl.ModelConfig`.
        rewards: as the user named them.
        columns: of the data to train on (`TRAINED`) and to evaluate, by what messages call it.

    Attributes:
        reward_names: for metrics and weights, the same on every rank.
    """

    def __init__(self, settings: Any, model: Any, rewards: Sequence[str], columns: Mapping[str, Sequence[str]]) -> None:
        self._settings, self._model = settings, model
        self._rewards, self._columns = tuple(rewards), columns
        self._code: UserCode | None = None
        self._judges: Judges | None = None
        self._loaded: Loaded | None = None
        self.reward_names: tuple[str, ...] = ()

    def __enter__(self) -> Rollouts:
        """Start what judges, on rank 0, and tell the other ranks the names of the rewards.

        Raises:
            RunError: something that the user named cannot be used (64, 65, 66, 78).
        """
        self.reward_names = Ranks().share(lambda _: self._start_judges(), lambda _: False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process of the user's code."""
        if self._code is not None:
            self._code.stop()

    def _start_judges(self) -> tuple[str, ...]:
        settings = self._settings
        functions = Functions(
            functions_among(self._rewards),
            tuple(settings.tools or ()),
            environments_among(settings.environment_factory or ()),
        )
        limits = {} if settings.episode_seconds is None else {"episode_seconds": settings.episode_seconds}
        names: Sequence[str] = ()
        if functions:
            self._code = UserCode(functions, self._columns, Limits(**limits))
            self._loaded = self._code.start()
            names = self._loaded.rewards
        self._judges = Judges(self._rewards, self._code, names, settings.reward_seconds)
        return tuple(self._judges.names)

    def collect(self, start: RolloutStart, waiting: Waiting) -> Collector:
        """Begin the rollouts on rank 0.

        Raises:
            RunError: no sampler is ready (75), or one does not fit the run (78).
        """
        settings = self._settings
        assert self._judges is not None, "only rank 0 collects"
        has_tools = self._loaded is not None and self._loaded.has_tools
        chat = chat_of(start.tokenizer, tools=has_tools, template_kwargs=settings.chat_template_kwargs)
        self._judges.check(start.rows[0].get("prompt", EMPTY), waiting)
        plan = Plan.read(Path(os.environ.get(PLAN_FILE, "")))
        workspace = Path(plan.workspace) if plan else workspace_of(os.environ)
        folder = Path(settings.adapters or workspace / "adapters")
        run = os.environ.get("JOBSET_NAME") or "run"
        named = os.environ.get(ADDRESSES) if settings.samplers == OF_THE_JOB else settings.samplers
        addresses, key = addresses_in(named or ""), api_key(os.environ)
        name = live.claim(folder, run, (plan.job_id or plan.run_id) if plan else run)
        fleet = Fleet(
            addresses,
            name,
            self._needs(start, chat),
            wait_seconds=seconds_to_wait(settings.samplers, settings.fleet_wait_seconds),
            key=key,
        )
        try:
            fleet.check(waiting)
        except BaseException:
            fleet.close()
            raise
        lengths = Lengths()
        engine = Engine(
            start.rows,
            Bounds(
                settings.groups_per_step,
                settings.max_staleness,
                None if settings.depth == "auto" else int(settings.depth),
                settings.publish_every,
            ),
            Counted(self._episodes(fleet, chat), lengths),
            seed=settings.seed,
            steps=start.total,
            state=start.state,
            wait_seconds=settings.rollout_wait_seconds,
            order=None if settings.shuffle_dataset else lambda epoch: range(len(start.rows)),
        )
        base = {"name_or_path": self._model.model_name_or_path, "revision": self._model.model_revision}
        adapted = self._model.use_peft
        store: Store[Any] = (
            Adapters(folder, name, base) if adapted else WholeWeights(folder, name, settings.publish_whole_every)
        )
        sampling, context = self._sampling(), fleet.context()
        publishers: list[Publisher[Any]] = []

        def publisher(usable: Callable[[int], None]) -> Publisher[Any]:
            publishers.append(Publisher(store, fleet, usable, engine.in_use, seconds=settings.publish_seconds))
            return publishers[0]

        def probe(version: int, prompts: Prompts, stop: Callable[[], bool]) -> list[Row]:
            requests = asked(version, prompts, sampling, context)
            return rows_from(fleet.probe(requests, settings.publish_seconds, stop))

        return Collector(
            engine,
            publisher,
            lambda: figures(fleet, publishers[0]),
            fleet.close,
            lengths,
            based=adapted,
            probe=None if adapted else probe,
        )

    def _needs(self, start: RolloutStart, chat: Chat) -> Needs:
        settings = self._settings
        tooling = self._tooling()

        def encode(row: Mapping[str, Any]) -> Sequence[int]:
            offered = () if tooling is None else tooling.tools.get(tooling.environment_of(row), ())
            return chat.encode(row["prompt"], offered)

        # Without the column an environment makes the prompt, whose length nobody knows.
        prompt, row = 0, ""
        if "prompt" in self._columns[TRAINED]:
            filled = tooling is not None and bool(tooling.environments)
            prompt, row = max(
                longest_prompt(rows, encode, data, may_be_empty=filled)
                for data, rows in {TRAINED: start.rows, **start.evaluation}.items()
            )
        folder = Path(self._model.model_name_or_path)
        evaluate_every = steps_between_evaluations(settings.eval_strategy, settings.eval_steps or 0, start.total)
        loras = versions_needed(settings.max_staleness, settings.publish_every, evaluate_every)
        return Needs(
            source="" if folder.is_dir() else self._model.model_name_or_path,
            revision=self._model.model_revision if not folder.is_dir() else "",
            fingerprint=read_base_model(folder).fingerprint if folder.is_dir() else "",
            prompt=prompt,
            row=row,
            answer=settings.max_completion_length,
            loras=loras if self._model.use_peft else 0,
            rank=self._model.lora_r if self._model.use_peft else 0,
            weights=not self._model.use_peft,
        )

    def _sampling(self) -> Sampling:
        """Return how samples are drawn that are trained."""
        settings = self._settings
        return Sampling(
            settings.num_generations,
            settings.max_completion_length,
            settings.temperature,
            top_p=settings.top_p,
            top_k=max(0, settings.top_k or 0),
            min_p=settings.min_p or 0.0,
            repetition_penalty=settings.repetition_penalty,
        )

    def _episodes(self, fleet: Fleet, chat: Chat) -> Episodes:
        settings = self._settings
        assert self._judges is not None
        training = self._sampling()
        judged = settings.num_generations_eval or settings.num_generations
        # One answer to each row is the likeliest one; several are drawn as in training.
        evaluation = replace(training, samples=judged) if judged > 1 else Sampling(1, training.max_tokens, 0.0)
        return Episodes(
            fleet,
            self._judges,
            chat,
            training,
            evaluation=evaluation,
            tooling=self._tooling(),
            context=fleet.context(),
        )

    def _tooling(self) -> Tooling | None:
        return None if self._code is None or self._loaded is None else Tooling(self._code, self._loaded.tools)


class Counted:
    """A writer whose answers are counted by their length.

    Args:
        writer: writes.
        lengths: counts.
    """

    def __init__(self, writer: Writer, lengths: Lengths) -> None:
        self._writer = writer
        self._lengths = lengths

    async def write(self, group: Group, seeds: Seeds) -> tuple[Sample, ...]:
        """Return all samples of the group."""
        samples = await self._writer.write(group, seeds)
        if not group.evaluation:
            self._lengths.written([(group, samples)])
        return samples


def figures(fleet: Fleet, publisher: Publisher[Any]) -> dict[str, float]:
    """Return numbers about the samplers, and about the versions published since the last call."""
    found = {
        "samplers/ready": float(len(fleet.ready())),
        "samplers/known": float(fleet.size()),
        "samplers/requests": float(sum(fleet.under_way().values())),
    }
    published = publisher.published()
    if published:
        found["publish/version"] = float(published[-1].version)
        found["publish/write_seconds"] = sum(one.write_seconds for one in published) / len(published)
        found["publish/spread_seconds"] = sum(one.spread_seconds for one in published) / len(published)
        found |= {f"publish/{name}": value for name, value in published[-1].numbers.items()}
    return found
