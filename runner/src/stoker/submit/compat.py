"""What exists only so that code written for any of KEP-2839's three texts works here.

The first and the second text are those of kubeflow/trainer#3263, the newest is kubeflow/trainer#3930. One class serves
all three. Two things stay outside this file, because Python needs them in the class bodies: fields with older names,
and the older names of the classes (`__init__.py`).
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol

from stoker.frameworks.registry import Backend
from stoker.plan.arguments import split_args
from stoker.submit.initializer import Initialized
from stoker.submit.trl_flags import without

# Flags of the first text that TRL has renamed (huggingface/trl: max_seq_length became max_length).
RENAMED = {"max_seq_length": "max_length"}
# Flags of the first text that TRL no longer has. The fields stay, but are not sent.
GONE = {"max_prompt_length": "max_length cuts prompts; filter longer ones out of the data set"}
# A method of the first text that TRL no longer has.
PPO_GONE = "TRL 1.16 has no PPO: write TRLTrainerType.GRPO or TRLTrainerType.RLOO"


class _Unset:
    """The default of a field that was not given."""

    def __repr__(self) -> str:
        return "unset"


_UNSET = _Unset()


def default(value: Any, **options: Any) -> Any:
    """Declare a dataclass field that can tell its default from the same value given by the user."""
    return field(default=_UNSET, metadata={"default": value}, **options)


@dataclass
class Remembering:
    """A dataclass that remembers which of its fields were given, if they are declared with :func:`default`.

    The first text sends defaults to the trainer. The newest text has no defaults and sends only what was given.
    """

    def __post_init__(self) -> None:
        """Note what was given, and fill in the defaults."""
        self._given = frozenset(item.name for item in fields(self) if getattr(self, item.name) is not _UNSET)
        for item in fields(self):
            if item.name not in self._given:
                setattr(self, item.name, item.metadata["default"])

    def was_given(self, name: str) -> bool:
        """Return whether a field was given when this object was made, or has been changed since."""
        (declared,) = (item for item in fields(self) if item.name == name)
        return name in self._given or getattr(self, name) != declared.metadata.get("default")

    def drop_defaults(self, keep: str) -> None:
        """Set every field that was not given to None, as the newest text has it.

        Args:
            keep: name of the field that keeps its value.
        """
        for item in fields(self):
            if item.name not in self._given and item.name != keep:
                setattr(self, item.name, None)


@dataclass
class MethodFlags(Remembering):
    """The flags of one method, under the field names of every text."""

    def sent(self, with_defaults: bool) -> Iterator[tuple[str, Any]]:
        """Yield the flags to send, by TRL's names.

        Args:
            with_defaults: True to send the defaults of the first text too.
        """
        for item in fields(self):
            value, given = getattr(self, item.name), self.was_given(item.name)
            if value is None or not (given or with_defaults):
                continue
            if item.name in GONE:
                if value != item.metadata["default"]:
                    _warn_gone(item.name)
                continue
            name = RENAMED.get(item.name, item.name)
            # Today's name wins over the default of the older one.
            if name != item.name and not given and getattr(self, name) is not None:
                continue
            # The first text writes a boolean only if it is on.
            if value is not False or given:
                yield name, value


def _warn_gone(name: str) -> None:
    warnings.warn(f"TRL 1.16 has no --{name}, so it is not sent: {GONE[name]}", stacklevel=4)


def _without_gone(args: list[str]) -> list[str]:
    """Return the arguments without the flags that TRL no longer has, and warn of each."""
    for name in GONE:
        if name in split_args(args)[0]:
            _warn_gone(name)
    return without(args, GONE)


class _Placed(Protocol):
    num_nodes: int | None
    resources_per_node: dict[str, Any] | None


def take_placement(config: _Placed, num_nodes: int | None, resources_per_node: dict[str, Any] | None) -> None:
    """Set a config's placement to what was given by position, or by the names of the first text."""
    if num_nodes is not None:
        config.num_nodes = num_nodes
    if resources_per_node is not None:
        config.resources_per_node = resources_per_node


class _Label(str):
    """A framework's label, which the first text gets by a call."""

    __slots__ = ()

    def __call__(self) -> str:
        return str(self)


class _LabelMethod:
    """A method `framework()` after the first text, read as the label that it returns."""

    def __init__(self, method: Callable[[Any], str]) -> None:
        self._method = method

    def __get__(self, config: Any, owner: type) -> _Label:
        # All configs of a class have one label, so the class itself can answer.
        return _Label(self._method(owner if config is None else config))


def _settable(name: str, own: property) -> property:
    """Return a property of the first text, such as `num_nodes`, that the command line may set too."""

    def read(config: Any) -> Any:
        given = vars(config).get(name)
        return own.__get__(config) if given is None else given

    def write(config: Any, value: Any) -> None:
        vars(config)[name] = value

    return property(read, write, doc=own.__doc__)


def _read_as(own: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what replaces a class's own attributes, so that each can be read as in every text."""
    label = own.get("framework")
    if isinstance(label, str):
        yield "framework", _Label(label)
    elif inspect.isfunction(label):
        yield "framework", _LabelMethod(label)
    for name in _Placed.__annotations__:
        if isinstance(own.get(name), property) and own[name].fset is None:
            yield name, _settable(name, own[name])


def _labelled(own: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the label of a class under the name that it did not declare, and whether its command is sent."""
    label, labels = own.get("framework"), own.get("supported_frameworks")
    if isinstance(label, str):
        yield "supported_frameworks", [label]
    elif labels:
        yield "framework", labels[0]
    if "to_command" in own or inspect.isfunction(label) or (labels and not isinstance(label, str)):
        yield "sends_command", True


class ConfigMethods(Backend):
    """What only one of the texts has.

    Attributes:
        supported_frameworks: the label, as the second text names it; a class declares either.
        sends_command: True if TrainJobs get the class's command, as in the first two texts; otherwise the runtime keeps
            its own.
    """

    supported_frameworks: ClassVar[list[str]]
    sends_command: ClassVar[bool] = False

    def __init_subclass__(cls, **more: Any) -> None:
        """Read what a class after the first two texts declares, or defines as methods and properties."""
        super().__init_subclass__(**more)
        for read in (_labelled, _read_as):
            for name, value in [*read(vars(cls))]:
                setattr(cls, name, value)

    @classmethod
    def undeclared(cls) -> str:
        """Return how each text declares a framework and a command; empty if the class has both."""
        label, command = getattr(cls, "framework", ""), getattr(cls, "command", ())
        has_command = cls.to_command is not ConfigMethods.to_command or (isinstance(command, tuple) and command)
        if isinstance(label, str) and label and has_command:
            return ""
        return (
            'a framework and a command: framework: ClassVar[str] = "…"; command: ClassVar[tuple[str, ...]] = ("…",); '
            "or define framework() and to_command(), the former without the fields of a config"
        )

    def to_command(self: Any) -> tuple[str, ...]:
        """Return the command for the arguments; a class defines this (first text) or declares `command`."""
        command: tuple[str, ...] = self.command
        return command

    def args_for(self: Any, initializer: Initialized | None = None) -> list[str]:
        """Return the arguments. A class after the second or the newest text has a `to_args` without parameters."""
        takes_one = bool(inspect.signature(self.to_args).parameters)
        args: list[str] = self.to_args(initializer) if takes_one and initializer is not None else self.to_args()
        # Our own config knows TRL's flags. A user's class may print those of the text that it follows.
        return _without_gone(args) if self.framework == "trl" else args

    def get_train_func(self) -> Callable[..., Any] | None:
        """Return None: a config has no function (second text)."""
        return None

    def get_train_func_args(self) -> dict[str, Any] | None:
        """Return None, as there is no function (second text)."""
        return None

    def get_framework_args(self: Any) -> dict[str, Any]:
        """Return the arguments as the second text wraps them."""
        return {"_config_args": self.to_args()}
