"""A user's file with two classes as KEP-2839's first text shapes them, and a run of each.

The placement is private fields behind properties without setters.
"""

CLASSES = """
from dataclasses import dataclass
from stoker.backends import LLMBackend, register_backend
from stoker.frameworks import registry

registry._registered.clear()  # these classes have the names of ours


class Placed(LLMBackend):
    @property
    def num_nodes(self) -> int | None:
        return self._num_nodes

    @property
    def resources_per_node(self) -> dict | None:
        return self._resources_per_node


@register_backend("torchtune")
@dataclass
class TorchTuneConfig(Placed):
    epochs: int | None = None
    _num_nodes: int | None = None
    _resources_per_node: dict | None = None

    def framework(self) -> str:
        return "torchtune"

    def to_command(self) -> tuple[str, ...]:
        return ("tune", "run")

    def to_args(self) -> list[str]:
        return [] if self.epochs is None else [f"epochs={self.epochs}"]


@dataclass
class Peft:
    r: int = 16


@register_backend("trl")
@dataclass
class TRLConfig(Placed):
    method: str = "sft"
    epochs: int = 3
    bf16: bool = True
    peft_config: Peft | None = None
    _num_nodes: int | None = None
    _resources_per_node: dict | None = None

    def framework(self) -> str:
        return "trl"

    def to_command(self) -> tuple[str, ...]:
        return ("python", "-m", "trl")

    def to_args(self) -> list[str]:
        args = [self.method, "--num_train_epochs", str(self.epochs)]
        if self.bf16:
            args.append("--bf16")
        if self.peft_config:
            args += ["--use_peft", "--lora_r", str(self.peft_config.r)]
        return args

    def validate(self) -> None:
        if self.epochs < 1:
            raise ValueError("epochs must be 1 or more")


sft = TRLConfig(bf16=False, _num_nodes=2, peft_config=Peft())
tune = TorchTuneConfig(epochs=2)
"""
