"""A policy: a base model and its adapter, to train, to ask and to publish."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode
from stoker.contract.manifest import write_manifest
from stoker.lab import job
from stoker.lab.config import LoRATrainConfig
from stoker.lab.endpoint import EndpointClient
from stoker.lab.errors import LabError
from stoker.lab.generation import Completion, Prompt, completions
from stoker.lab.machine import TRAINING
from stoker.lab.remote import Served
from stoker.lab.session import RemoteSession
from stoker.lab.trainer import LoRATrainer, Trained
from stoker.plan.facts import read_facts
from stoker.serve.adapters import versions

# What the manifest calls rows that have no name.
_ROWS = "in-memory rows"
_NEEDS_MODEL = "this policy is at {url}, not in this process: write Policy(model) to {what}"


class Policy:
    """A base model and its adapter. Nothing is loaded before it is needed.

    Args:
        model: the base model's folder or Hub id; or an address, which is the same as `url`.
        config: the adapter and its training.
        url: address of a server to ask instead, such as a serving release's; or of a session's endpoint, which trains
            and answers.
        name: with `url`, the name in requests, such as `support:3`; the server's base model by default. For a session's
            endpoint, where the tokenizer is; its model by default.
        adapter: folder of an adapter to go on from.
        engine: further arguments of `vllm.LLM`.
        share_weights: train on the weights of vLLM's engine, not on a copy of them. It saves the memory of the model,
            and needs vLLM to train. On CPUs answers take longer, because vLLM cannot pack weights that are shared.

    Raises:
        LabError: neither or both of model and url are given, or one of them is wrong.
    """

    def __init__(
        self,
        model: str | None = None,
        config: LoRATrainConfig | None = None,
        *,
        url: str | None = None,
        name: str | None = None,
        adapter: str | Path | None = None,
        engine: Mapping[str, Any] | None = None,
        share_weights: bool = False,
    ) -> None:
        if url is None and isinstance(model, str) and model.startswith(("http://", "https://")):
            model, url = None, model
        if (model is None) == (url is None):
            raise LabError("write one of them: Policy(model) to train and generate here, Policy(url=…) to ask a server")
        if url is None and name is not None:
            raise LabError("name is that of a served adapter: write it with url, or drop it")
        self.config = config if config is not None else LoRATrainConfig()
        self._url = url
        self._served = None if url is None else Served(url, name)
        self._name = name
        self._session: RemoteSession | None = None
        # Whether the address is one that trains; None until it answers.
        self._trains: bool | None = None
        self._trainer = (
            None
            if model is None
            else LoRATrainer(model, self.config, adapter=adapter, engine=engine, share_weights=share_weights)
        )
        # What was trained here, and the folder with the adapter as it is now.
        self._runs: list[Trained] = []
        self._saved: tempfile.TemporaryDirectory[str] | None = None
        self._begins_with = adapter
        self._has_adapter = adapter is not None
        self._dataset: str | None = None

    @property
    def session(self) -> RemoteSession | None:
        """The session that trains and answers; None if the policy is in this process, or at a server that only answers.

        Raises:
            LabError: the session has no such adapters, or refuses the key.
        """
        if self._url is not None and self._trains is None:
            endpoint = EndpointClient(self._url)
            trains = endpoint.is_there()
            if trains:
                self._session = RemoteSession(endpoint, self.config, self._name)
            self._trains = trains
        return self._session

    @property
    def model_name(self) -> str:
        """The base model's folder or Hub id.

        Raises:
            LabError: the policy is served elsewhere.
        """
        return self._local("train").model_name

    @property
    def positions(self) -> int | None:
        """The longest sequence that the model takes; None if it is not known."""
        session = self.session
        return self._local("look at its model").positions if session is None else session.positions

    @property
    def model(self) -> Any:
        """The model with its adapter, as PEFT has it; loaded when it is first asked for."""
        return self._local("look at its model").model

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        session = self.session
        return self._local("look at its tokenizer").tokenizer if session is None else session.tokenizer

    def train(self, rows: Any) -> Trained:
        """Train the adapter; the next `generate` answers with it. A second call goes on from the first one's.

        Args:
            rows: `text`, `prompt` and `completion`, or `messages` for supervised training; `chosen` and `rejected` for
                DPO. A list of rows, a Hugging Face data set, or the id of one on the Hub.

        Raises:
            LabError: the rows are wrong, or this machine cannot train.
        """
        if (session := self.session) is not None:
            return session.train(_loaded(rows) if isinstance(rows, str) else rows)
        trainer = self._local("train")
        self._dataset = rows if isinstance(rows, str) else None
        given = _loaded(rows) if isinstance(rows, str) else rows
        try:
            done = trainer.train(given)
        except LabError:
            raise  # nothing was trained
        except BaseException:
            self.changed()  # what was learned until then stays, and answers
            raise
        self.changed(done)
        return done

    def changed(self, done: Trained | None = None) -> None:
        """Say that the adapter of `model` was changed: the next `generate` answers with it.

        Args:
            done: the training that changed it, for those who publish the adapter.
        """
        if done is not None:
            self._runs.append(done)
        self._has_adapter = True
        self._forget_saved()

    def generate(self, prompts: Sequence[Prompt], **sampling: Any) -> list[Completion]:
        """Return answers by the policy as it is now: all of the first prompt, then all of the next.

        Args:
            prompts: texts, or lists of token ids.
            sampling: arguments of `vllm.SamplingParams`, such as `max_tokens`, where `seed` may be a list with one for
                each prompt; fields of the request with a url.

        Raises:
            LabError: vLLM is missing, or it refuses an argument or a prompt.
        """
        if (session := self.session) is not None:
            return session.generate(prompts, sampling)
        if self._served is not None:
            return self._served.generate(prompts, sampling)
        trainer = self._local("generate")
        adapter = self._current() if self._has_adapter else None
        return completions(trainer.generate(prompts, adapter, **sampling), list(prompts))

    def save_lora(self, path: str | Path) -> None:
        """Save the adapter as PEFT does.

        Args:
            path: the folder.
        """
        self._local("save an adapter").save_lora(str(path))

    def publish(self, folder: str | Path, name: str) -> str:
        """Publish the adapter as a new version, as `stoker adapters publish` does; return the name in requests.

        Args:
            folder: the servers' folder of published versions.
            name: the adapter's name.

        Raises:
            LabError: nothing was trained yet.
            RunError: the name is wrong, or the folder cannot be written to.
        """
        self._local("publish an adapter")
        with tempfile.TemporaryDirectory() as output:
            self._write_output(Path(output))
            return versions.publish(Path(output), Path(folder), name).name

    def to_trainjob(
        self,
        name: str,
        dataset: str | None = None,
        *,
        method: str | None = None,
        runtime: str | None = None,
        namespace: str | None = None,
        env: Mapping[str, str] | None = None,
        num_nodes: int | None = None,
        resources_per_node: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the TrainJob of the same training: the same model, data and settings, with a new adapter.

        Args:
            name: the TrainJob's name.
            dataset: folder or Hub id of the data; that of the last training by default, if it had one.
            method: `sft` or `dpo`; the last training's of these by default, else `sft`.
            runtime: the ClusterTrainingRuntime's name; None takes the default one.
            namespace: the TrainJob's namespace; None leaves that to kubectl.
            env: variables of the trainer container.
            num_nodes: number of pods.
            resources_per_node: resources of each pod, e.g. `{"gpu": 1}`.

        Raises:
            LabError: no data set is named, the policy goes on from an adapter or was trained with rewards alone, or the
                cluster would refuse the TrainJob.
        """
        made = self._job(dataset, method, num_nodes=num_nodes, resources_per_node=resources_per_node)
        return job.made(made, name, runtime=runtime, namespace=namespace, env=env)

    def close(self) -> None:
        """Forget the model, end the engine and give their memory back."""
        if self._trainer is not None:
            self._trainer.close()
        if self._session is not None:
            self._session.close()
        self._forget_saved()

    def __enter__(self) -> Policy:
        """Return the policy."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close it."""
        self.close()

    def _local(self, what: str) -> LoRATrainer:
        if self._trainer is None:
            raise LabError(_NEEDS_MODEL.format(url=self._url, what=what))
        return self._trainer

    def _current(self) -> str:
        """Return a folder with the adapter as it is now."""
        if self._saved is None:
            self._saved = tempfile.TemporaryDirectory(prefix="stoker-lab-")
            self._local("generate").save_lora(self._saved.name)
        return self._saved.name

    def _forget_saved(self) -> None:
        if self._saved is not None:
            self._saved.cleanup()
            self._saved = None

    def _job(self, dataset: str | None, method: str | None, **placement: Any) -> Any:
        trainer = self._local("make a TrainJob")
        if self._begins_with is not None:
            raise LabError(
                f"TrainJobs begin with new adapters, but this policy goes on from {self._begins_with}: merge it into "
                "its base model, and make the TrainJob of Policy(the merged model)"
            )
        if method is None and self._runs and not any(run.method in job.METHODS for run in self._runs):
            raise LabError(
                "this policy was trained only with rewards, and to_trainjob cannot express that: train with rewards by "
                "the method grpo_async on the cluster (docs/guides/rewards.md), or write method='sft' or 'dpo' to "
                "train on rows"
            )
        data = dataset or self._dataset
        if data is None:
            raise LabError(
                "a TrainJob cannot take rows of this process along: write them to a volume or the Hub, and name it: "
                "to_trainjob(name, dataset='/workspace/dataset')"
            )
        chosen = method or next((run.method for run in reversed(self._runs) if run.method in job.METHODS), "sft")
        return job.trl_config(trainer.model_name, self.config, chosen, data, **placement)

    def _write_output(self, output: Path) -> None:
        """Write what a finished run leaves: the adapter and the manifest."""
        if not self._runs:
            raise LabError(
                "there is nothing to publish: call train first; `stoker adapters publish` takes a run's output"
            )
        last = self._runs[-1]
        model = self._local("publish an adapter").model_name
        self.save_lora(output)
        record: Mapping[str, Any] = {"fingerprint": {"method": last.method, "model": model, **asdict(self.config)}}
        budget = {"steps": float(last.steps)}
        if last.method in job.METHODS:  # there is no TrainJob of the others
            record = job.plan(job.trl_config(model, self.config, last.method, self._dataset or _ROWS)).record
            budget = {"epochs": float(self.config.num_epochs)}
        write_manifest(
            output,
            {
                **record,
                "framework": "trl" if last.method in job.METHODS else "lab",
                "method": last.method,
                "run_id": "lab",
                "attempt": 0,
                "image_version": read_facts().image_version,
                "steps": last.steps,
                "max_steps": last.steps,
                "seconds": round(last.seconds, 3),
                "resumed_from": None,
                "metrics": {"train_loss": last.loss} if math.isfinite(last.loss) else {},
                "world_size": last.world_size,
                "nodes": 1,
                "processes_per_node": last.world_size,
                "versions": {name: metadata.version(name) for name in TRAINING},
                "budget": budget,
                "base_model": {"name_or_path": model, "revision": None},
            },
        )


def _loaded(name: str) -> Any:
    """Return the data set of a name: rows of its training part."""
    from datasets import load_dataset

    try:
        return load_dataset(name, split="train")
    except (OSError, ValueError) as error:
        raise LabError(
            f"the data set {name!r} cannot be loaded ({error}): write a folder with JSON or Parquet files, an id on "
            "the Hub, or a list of rows",
            ExitCode.NO_INPUT,
        ) from error
