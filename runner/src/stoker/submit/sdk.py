"""The bridge to the Kubeflow SDK (kubeflow 0.5, extra `stoker[sdk]`): a config as `TrainerClient.train` takes it.

The runtime's framework label decides how: TorchTune becomes the SDK's `BuiltinTrainer`. Any other backend becomes
`CustomTrainerContainer` with `TrainerArgs`, the SDK's way for frameworks that it does not know.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Protocol

from stoker.cluster.grace import grace_problem, patched_grace
from stoker.contract.packages import from_checkout
from stoker.contract.variables import GRACE_PERIOD
from stoker.frameworks.torchtune.admission import problems_of
from stoker.plan.facts import whole_number
from stoker.submit.variables import with_own


class Submittable(Protocol):
    """What the bridge needs of a config (see :class:`stoker.submit.base.LLMBackend`)."""

    num_nodes: int | None
    resources_per_node: dict[str, Any] | None

    @property
    def framework(self) -> str:
        """Value of the label `trainer.kubeflow.org/framework`."""

    @property
    def generic_runtime(self) -> str | None:
        """The runtime that fits any run of the framework."""

    def validate(self) -> None:
        """Raise ValueError if the config contradicts itself."""

    def args_for(self, initializer: Any = None) -> list[str]:
        """Return the arguments of the trainer container."""

    def command_on(self, runtime: str) -> tuple[str, ...] | None:
        """Return the command for the TrainJob; None for the runtime's own."""

    def own_variables(self) -> dict[str, str]:
        """Return the variables of the trainer container that the config stands for."""


def train(config: Submittable, client: Any = None, **more: Any) -> str:
    """Submit a run and return the TrainJob's name.

    Args:
        config: the run.
        client: the SDK's `TrainerClient`; None makes one with its defaults.
        more: see :func:`train_arguments`.

    Raises:
        ValueError: the config is wrong, no runtime fits, or several do.
        ImportError: the SDK is not installed.
    """
    client = client or _trainer().TrainerClient()
    name: str = client.train(**train_arguments(config, client, **more))
    return name


def train_arguments(
    config: Submittable,
    client: Any = None,
    *,
    runtime: Any = None,
    initializer: Any = None,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    options: Sequence[Any] = (),
) -> dict[str, Any]:
    """Return the arguments of `TrainerClient.train` for a run.

    Args:
        config: the run.
        client: the SDK's `TrainerClient` to find the runtime with; None makes one with its defaults.
        runtime: the runtime or its name; None finds the one for the config's framework.
        initializer: the SDK's `Initializer`, which brings model and data.
        name: the TrainJob's name; None lets the SDK make one up.
        env: variables of the trainer container. Of a grace period that a `RuntimePatch` sets, the runner is told.
        options: further options of the SDK, e.g. `Labels`.

    Raises:
        ValueError: the config is wrong, no runtime fits, or several do.
        ImportError: the SDK is not installed.
    """
    trainer = _trainer()
    config.validate()
    if runtime is None or isinstance(runtime, str):
        client = client or trainer.TrainerClient()
        runtime = client.get_runtime(runtime) if runtime else find_runtime(config, _listed(client))
    _expect_framework(config, runtime)
    patched = patched_grace({"spec": {"runtimePatches": [*_patches(options)]}})
    chosen = [trainer.options.Name(name)] if name else []
    if runtime.trainer.trainer_type is trainer.TrainerType.BUILTIN_TRAINER:
        if env:
            raise ValueError(
                f"env cannot be set: the SDK's BuiltinTrainer, which runs {config.framework}, has no such field; "
                "set it in the runtime, or submit what `stoker trainjob` prints"
            )
        if patched is not None:
            raise ValueError(
                "a RuntimePatch sets terminationGracePeriodSeconds, but the SDK's BuiltinTrainer, which runs "
                f"{config.framework}, has no env to tell the runner in ({GRACE_PERIOD}): set it in the runtime, or "
                "submit what `stoker trainjob` prints with `stoker submit`"
            )
        refused = list(problems_of(runtime.name, config.args_for(initializer), config.num_nodes or 1, None, None))
        if refused:
            always = "the SDK's BuiltinTrainer always sends `tune run`; `stoker trainjob` does only where a name spells"
            raise ValueError("\n".join([*refused, f"{always} a model"]))
        submitted = trainer.BuiltinTrainer(config=_builtin_config(config, trainer))
    else:
        variables = with_own(config.own_variables(), env)
        if patched:
            # A pod cannot read its own grace period.
            variables.setdefault(GRACE_PERIOD, str(patched))
            told = whole_number(variables[GRACE_PERIOD])
            if told is not None and (problem := grace_problem(patched, told)):
                raise ValueError(problem)
        # For the SDK, an empty image means the runtime's own.
        submitted = trainer.CustomTrainerContainer(
            image="",
            num_nodes=config.num_nodes,
            resources_per_node=config.resources_per_node,
            env=variables or None,
        )
        command = config.command_on(runtime.name)
        if command:
            chosen.append(trainer.options.TrainerCommand(list(command)))
        chosen.append(trainer.options.TrainerArgs(config.args_for(initializer)))
    return {
        "runtime": runtime,
        "initializer": initializer,
        "trainer": submitted,
        "options": [*chosen, *options] or None,
    }


def _patches(options: Iterable[Any]) -> Iterator[Any]:
    """Yield the SDK's runtime patches as the TrainJob will have them."""
    yield from (_as_sent(option) for option in options if hasattr(option, "training_runtime_spec"))


def _as_sent(value: Any) -> Any:
    """Return a patch in the names of Kubernetes; what the user wrote as a dict has them already."""
    if isinstance(value, list | tuple):
        return [_as_sent(item) for item in value]
    if not is_dataclass(value):
        return value
    words = {item.name: item.name.split("_") for item in fields(value)}
    return {
        first + "".join(word.capitalize() for word in rest): _as_sent(getattr(value, name))
        for name, (first, *rest) in words.items()
    }


def find_runtime(config: Submittable, runtimes: Iterable[Any]) -> Any:
    """Return the runtime for a config's framework.

    If several have the framework's label, the backend's default runtime (`trl-distributed`) is used.

    Args:
        config: the run.
        runtimes: what the SDK's `list_runtimes` returned.

    Raises:
        ValueError: none has the label, or several have it and none is the default.
    """
    known = list(runtimes)
    fitting = {runtime.name: runtime for runtime in known if runtime.trainer.framework == config.framework}
    if config.generic_runtime in fitting:
        return fitting[config.generic_runtime]
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    label = f"trainer.kubeflow.org/framework={config.framework}"
    if fitting:
        raise ValueError(
            f"{len(fitting)} runtimes are labelled {label}: {', '.join(sorted(fitting))}; "
            f"name one of them: runtime={min(fitting)!r}"
        )
    others = ", ".join(sorted(f"{runtime.name} ({runtime.trainer.framework})" for runtime in known)) or "none at all"
    raise ValueError(f"no runtime is labelled {label}: install one; the cluster has {others}")


def _listed(client: Any) -> Any:
    try:
        return client.list_runtimes()
    except (RuntimeError, TimeoutError):
        raise  # no answer from the cluster
    except Exception as error:
        # A single runtime that the SDK cannot read is enough (kubeflow 0.5.0: get_container_devices).
        raise ValueError(f"the SDK cannot list the runtimes: {error}; name one: runtime='…'") from error


def _expect_framework(config: Submittable, runtime: Any) -> None:
    label = runtime.trainer.framework
    if label != config.framework:
        raise ValueError(
            f"runtime {runtime.name} is labelled trainer.kubeflow.org/framework={label}, but {type(config).__name__} "
            f"is for {config.framework}: name a runtime with that label, or drop the runtime"
        )


def _builtin_config(config: Submittable, trainer: Any) -> Any:
    """Return the SDK's own config with a config's values, in the SDK's own types."""
    known = {item.name for item in fields(trainer.TorchTuneConfig)}
    values = {name: getattr(config, name) for name in known if hasattr(config, name)}
    if missing := sorted(known - set(values)):
        raise ValueError(
            f"the SDK's BuiltinTrainer cannot run a {type(config).__name__}: it has no {', '.join(missing)}"
        )
    types = {"dtype": trainer.DataType, "loss": trainer.Loss}
    for name, kind in types.items():
        if values[name] is not None:
            values[name] = kind(values[name].value)
    if values["peft_config"] is not None:
        values["peft_config"] = trainer.LoraConfig(**_values(values["peft_config"]))
    if values["dataset_preprocess_config"] is not None:
        data = _values(values["dataset_preprocess_config"])
        if data["source"] is not None:
            data["source"] = trainer.DataFormat(data["source"].value)
        values["dataset_preprocess_config"] = trainer.TorchTuneInstructDataset(**data)
    return trainer.TorchTuneConfig(**values)


def _values(config: Any) -> dict[str, Any]:
    return {item.name: getattr(config, item.name) for item in fields(config)}


def _trainer() -> Any:
    """Return the SDK's trainer package.

    Raises:
        ImportError: it is not installed.
    """
    try:
        trainer = importlib.import_module("kubeflow.trainer")
        importlib.import_module("kubeflow.trainer.options")
    except ImportError as error:
        raise ImportError(f"the Kubeflow SDK is not installed: {from_checkout('sdk')}") from error
    return trainer
