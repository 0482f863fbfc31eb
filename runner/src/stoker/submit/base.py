"""What a user writes in Python to describe a run: a config with its framework's label, command and arguments."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from stoker.submit.compat import ConfigMethods
from stoker.submit.initializer import Initialized
from stoker.submit.variables import unable_to_shard, variable_problems


@dataclass
class LLMBackend(ConfigMethods):
    """A run of one training framework, as plain data (KEP-2839).

    Attributes:
        command: the command that takes the arguments; one word or more.
        generic_runtime: the default runtime, which fits any run of the framework; None if there is none.
        num_nodes: number of pods; None leaves that to the runtime.
        resources_per_node: resources of each pod, e.g. `{"gpu": 1}`; None leaves that to the runtime.
    """

    command: ClassVar[tuple[str, ...]]
    generic_runtime: ClassVar[str | None] = None

    # Keyword-only, so that a config's own fields keep their positions in the KEP's text.
    _: KW_ONLY
    num_nodes: int | None = None
    resources_per_node: dict[str, Any] | None = None

    @abstractmethod
    def to_args(self, initializer: Initialized | None = None) -> list[str]:
        """Return the arguments of the trainer container.

        Args:
            initializer: the TrainJob's initializer; its model and data replace the config's.

        Raises:
            ValueError: the config names something that the framework no longer has.
        """

    def command_on(self, runtime: str) -> tuple[str, ...] | None:
        """Return the command for the TrainJob; None for the runtime's own, which is `stoker run` in our runtimes.

        A class after the KEP's first two texts writes its arguments for its command; otherwise a declared `command` is
        not sent.

        Args:
            runtime: the runtime's name.
        """
        return tuple(self.to_command()) if self.sends_command else None

    def own_variables(self) -> dict[str, str]:
        """Return the variables of the trainer container that the config stands for, beside its arguments."""
        return {}

    def validate(self) -> None:
        """Check the config; a subclass calls this and adds its own checks.

        Raises:
            ValueError: one line for each contradiction, and for each thing that the framework does not have.
        """
        problems = placement_problems(self.num_nodes, self.resources_per_node)
        if problems:
            raise ValueError("\n".join(problems))

    def refused_variables(self, env: Mapping[str, str]) -> list[str]:
        """Return a problem for each variable of the trainer container that is wrong on every runtime."""
        return [*variable_problems(env), *unable_to_shard(self.framework, env)]

    def sdk(self, client: Any = None, **more: Any) -> dict[str, Any]:
        """Return the arguments of the Kubeflow SDK's `TrainerClient.train` for this run.

        Args:
            client: the `TrainerClient` to look for a runtime with; one of the SDK's defaults if None.
            more: see :func:`stoker.submit.sdk.train_arguments`.

        Raises:
            ValueError: the config is wrong, no runtime fits, or several do.
        """
        from stoker.submit import sdk

        return sdk.train_arguments(self, client, **more)


def placement_problems(num_nodes: object, resources: object) -> list[str]:
    """Return what is wrong with a number of nodes and the resources of each."""
    problems = count_problems(num_nodes=num_nodes)
    if resources is not None and (
        not isinstance(resources, Mapping) or not all(isinstance(name, str) for name in resources)
    ):
        problems.append(
            f'resources_per_node is {resources!r}: it must map resource names to amounts, such as {{"gpu": 1}}'
        )
    return problems


def count_problems(**values: object) -> list[str]:
    """Return a problem for each value that is not a whole number of 1 or more. None means not given."""
    return [
        f"{name} is {value!r}: it must be a whole number, 1 or more"
        for name, value in values.items()
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1)
    ]


def dropout_problems(value: object) -> list[str]:
    """Return what is wrong with an adapter's dropout. None means not given."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1):
        return []
    return [f"lora_dropout is {value!r}: it must be a number, 0 or more and less than 1"]
