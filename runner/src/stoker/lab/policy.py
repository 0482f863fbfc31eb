"""A policy: a base model and its adapter, to train, to ask and to publish."""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode
from stoker.contract.files import read_json
from stoker.contract.manifest import ADAPTER_CONFIG, write_manifest
from stoker.lab import job
from stoker.lab.config import LoRATrainConfig
from stoker.lab.endpoint import EndpointClient, no_answer
from stoker.lab.errors import LabError, closed, refuse
from stoker.lab.generation import Completion, Prompt, completions
from stoker.lab.machine import TRAINING, need
from stoker.lab.remote import Served
from stoker.lab.session import RemoteSession
from stoker.lab.trainer import LoRATrainer, Trained
from stoker.plan.facts import read_facts
from stoker.serve.adapters import versions

# What the manifest calls rows that have no name.
_ROWS = "in-memory rows"
_NEEDS_MODEL = "this policy is at {url}, not in this process: write Policy(model) to {what}"
_SAVED = "; the session has what it trained in {saved}: `stoker get SESSION FOLDER --path {saved}` downloads it"


@dataclass(frozen=True, slots=True)
class _Run:
    """A training that changed the adapter.

    Attributes:
        done: what it did.
        config: the adapter and its training, as they were then.
        dataset: folder or Hub id of the data; None for rows of this process.
    """

    done: Trained
    config: LoRATrainConfig
    dataset: str | None


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
        LabError: neither or both of model and url are given, one of them is wrong, or an argument is not for it.
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
        if url is not None:
            local = {"adapter": adapter is not None, "engine": engine is not None, "share_weights": share_weights}
            refuse(
                f"Policy: {what} is for a model in this process: leave it out, or write Policy(model) instead of a url"
                for what, given in local.items()
                if given
            )
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
        # What was trained here; the adapter before that; and the folder with the adapter after it.
        self._runs: list[_Run] = []
        self._begins_with = adapter
        self._changed = False
        self._saved: tempfile.TemporaryDirectory[str] | None = None
        self._closed = False

    @property
    def session(self) -> RemoteSession | None:
        """The session that trains and answers; None if the policy is in this process, or at a server that only answers.

        Raises:
            LabError: the session has no such adapters, or refuses the key, or the policy is closed.
        """
        self._refuse_closed()
        if self._url is not None and self._trains is None:
            endpoint = EndpointClient(self._url)
            trains = endpoint.is_there()
            if trains:
                self._session = RemoteSession(endpoint, self.config, self._name)
            self._trains = trains
        return self._session

    @property
    def trainer(self) -> LoRATrainer:
        """What trains and generates in this process.

        Raises:
            LabError: the policy is served elsewhere, or closed.
        """
        return self._local("train")

    @property
    def model_name(self) -> str:
        """The base model's folder or Hub id.

        Raises:
            LabError: as `trainer`.
        """
        return self.trainer.model_name

    @property
    def positions(self) -> int | None:
        """The longest sequence that the model takes; None if it is not known."""
        session = self._there()
        return self._local("look at its model").positions if session is None else session.positions

    @property
    def model(self) -> Any:
        """The model with its adapter, as PEFT has it; loaded when it is first asked for."""
        return self._local("look at its model").model

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        session = self._there()
        return self._local("look at its tokenizer").tokenizer if session is None else session.tokenizer

    def train(self, rows: Any) -> Trained:
        """Train the adapter; the next `generate` answers with it. A second call goes on from the first one's.

        Args:
            rows: `text`, `prompt` and `completion`, or `messages` for supervised training; `chosen` and `rejected` for
                DPO. A list of rows, a Hugging Face data set, or the id of one on the Hub.

        Raises:
            LabError: the rows are wrong, or this machine cannot train.
        """
        if (session := self._there()) is not None:
            return session.train(_loaded(rows) if isinstance(rows, str) else rows)
        trainer = self.trainer
        dataset = rows if isinstance(rows, str) else None
        given = rows if dataset is None else _loaded(dataset)
        try:
            done = trainer.train(given)
        except BaseException:
            if trainer.interrupted is not None:
                self.changed(trainer.interrupted)  # what was learned until then stays, and answers
            raise
        self.changed(done, dataset)
        return done

    def changed(self, done: Trained | None = None, dataset: str | None = None) -> None:
        """Say that the adapter of `model` was changed: the next `generate` answers with it.

        Args:
            done: the training that changed it, for those who publish the adapter, also if it did not come to its end;
                None within one.
            dataset: folder or Hub id of its data, if it has one.
        """
        if done is not None:
            run = _Run(done, copy.deepcopy(self.config), dataset)
            before = self._runs[-1] if self._runs else None
            together = before.done.followed_by(done) if before and before.config == run.config else None
            self._runs = [*self._runs, run] if together is None else [*self._runs[:-1], replace(run, done=together)]
        self._changed = True
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
        trainer.check_request(prompts, sampling)  # to save the adapter may load the model
        return completions(trainer.generate(prompts, self._current(), **sampling), list(prompts))

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
            dataset: folder or Hub id of the data; that of the training by default, if it had one.
            method: `sft` or `dpo`; that of the training by default, else `sft`.
            runtime: the ClusterTrainingRuntime's name; None takes the default one.
            namespace: the TrainJob's namespace; None leaves that to kubectl.
            env: variables of the trainer container.
            num_nodes: number of pods.
            resources_per_node: resources of each pod, e.g. `{"gpu": 1}`.

        Raises:
            LabError: no data set is named, the policy goes on from an adapter, was trained with rewards, more than once
                or not to the end, or the cluster would refuse the TrainJob.
        """
        made = self._job(dataset, method, num_nodes=num_nodes, resources_per_node=resources_per_node)
        return job.made(made, name, runtime=runtime, namespace=namespace, env=env)

    def close(self) -> None:
        """Forget the model, end the engine and give their memory back. A closed policy refuses what is asked of it."""
        self._closed = True
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

    def _refuse_closed(self) -> None:
        if self._closed:
            raise closed("policy", again="" if self._url is not None else "adapter=FOLDER")

    def _there(self) -> RemoteSession | None:
        """Return the session; None if there is none.

        Raises:
            LabError: the address does not answer, so it is not known.
        """
        session = self.session
        if self._url is not None and self._trains is None:
            raise no_answer(self._url)
        return session

    def _local(self, what: str) -> LoRATrainer:
        self._refuse_closed()
        if self._trainer is None:
            saved = self._session.saved if self._session else ""
            raise LabError(
                _NEEDS_MODEL.format(url=self._url, what=what) + (_SAVED.format(saved=saved) if saved else "")
            )
        return self._trainer

    def _current(self) -> str | None:
        """Return a folder with the adapter as it is now; None before there is one."""
        if not self._changed:
            return None if self._begins_with is None else str(self._begins_with)
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
        methods = [run.done.method for run in self._runs]
        if len(methods) > 1 or not {*methods} <= {*job.METHODS}:
            raise LabError(
                f"a TrainJob is one whole training on rows, but this policy had {', then '.join(methods)}: to train on "
                "rows, write Policy(model, config).to_trainjob(name, dataset=…, method=…); with rewards, use the "
                "method grpo_async on the cluster (docs/guides/rewards.md)"
            )
        run = self._runs[0] if self._runs else None
        data = dataset or (run.dataset if run else None)
        if data is None:
            raise LabError(
                "a TrainJob cannot take rows of this process along: write them to a volume or the Hub, and name it: "
                "to_trainjob(name, dataset='/workspace/dataset')"
            )
        chosen = method or (run.done.method if run else "sft")
        return job.trl_config(trainer.model_name, run.config if run else self.config, chosen, data, **placement)

    def _write_output(self, output: Path) -> None:
        """Write what a finished run leaves: the adapter and the manifest."""
        if not self._runs:
            raise LabError(
                "there is nothing to publish: call train first; `stoker adapters publish` takes a run's output"
            )
        self.save_lora(output)
        run = self._runs[-1]
        last, on_rows = run.done, run.done.method in job.METHODS
        write_manifest(
            output,
            {
                **self._record(output),
                "framework": "trl" if on_rows else "lab",
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
                "budget": {"epochs": float(run.config.num_epochs)} if on_rows else {"steps": float(last.steps)},
                "base_model": {"name_or_path": self.model_name, "revision": None},
            },
        )

    def _record(self, output: Path) -> dict[str, Any]:
        """Return the record of the last training; its fingerprint has what shaped the adapter before it.

        Args:
            output: the adapter's folder.
        """
        own = None if self._begins_with is None else _shape_of(output)
        *others, last = (_record_of(run, self.model_name, own) for run in self._runs)
        before = {
            "began_with": None if self._begins_with is None else str(self._begins_with),
            "trained_before": [other["fingerprint"] for other in others],
        }
        fingerprint = {**last["fingerprint"], **{name: value for name, value in before.items() if value}}
        return {**last, "fingerprint": fingerprint}


def _shape_of(adapter: Path) -> dict[str, Any]:
    """Return what PEFT says of an adapter, with its layers in the order of their names."""
    found: Any = read_json(adapter / ADAPTER_CONFIG)
    targets = found["target_modules"]
    return {**found, "target_modules": sorted(targets) if isinstance(targets, list) else targets}


def _record_of(run: _Run, model: str, own: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return what tells a training from others.

    Args:
        run: the training.
        model: the base model's folder or Hub id.
        own: what PEFT says of the adapter that it went on from; None for a new one.
    """
    method = run.done.method
    if method in job.METHODS:
        return job.plan(job.trl_config(model, run.config, method, run.dataset or _ROWS, own)).record
    adapter = own or run.config.lora_arguments()
    names = {"rank": "r", "alpha": "lora_alpha", "dropout": "lora_dropout", "target_modules": "target_modules"}
    shape = {ours: adapter[theirs] for ours, theirs in names.items()}
    return {"fingerprint": {"method": method, "model": model, **asdict(run.config), **shape}}


def _loaded(name: str) -> Any:
    """Return the data set of a name: rows of its training part."""
    try:
        from datasets import load_dataset
        from datasets.exceptions import DatasetGenerationError
    except ModuleNotFoundError as error:
        need(error.name)
        raise

    try:
        return load_dataset(name, split="train")
    except (OSError, ValueError, DatasetGenerationError) as error:
        why = " ".join(str(error).split())
        raise LabError(
            f"the data set {name!r} cannot be loaded ({why}): write a folder with JSON or Parquet files, an id on the "
            "Hub, or a list of rows",
            ExitCode.NO_INPUT,
        ) from error
