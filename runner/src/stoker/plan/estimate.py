"""How much memory the weights, gradients and optimizer of a run need on each device. Pure arithmetic.

It counts no activations, no gathered layers, no buffers for communication, and nothing that the libraries take for
themselves. A run that fits may therefore still run out of memory; a run that does not fit cannot work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.plan.model_shape import ModelShape

NOT_COUNTED = (
    "activations and logits, which grow with batch size and length; layers that a sharded run gathers; buffers for "
    "communication; teacher and reward models; modules that are trained whole beside an adapter; vLLM; what CUDA and "
    "fragmentation take"
)
_GIB = 2**30
# What vLLM needs of its host's memory beside weights that it has parked there.
_BESIDE_WEIGHTS = 2 * _GIB
# Copies of the weights in host memory for each device of a sampler whose weights change in place.
_COPIES = 2


@dataclass(frozen=True, slots=True)
class Training:
    """What decides about the memory of a run.

    Attributes:
        tuning: `full`, `lora` (an adapter) or `qlora` (an adapter on quantized weights).
        weight_bytes: bytes of a weight that is not quantized.
        linear_bytes: bytes of a weight of a linear layer; less than `weight_bytes` if it is quantized.
        optimizer: bytes of the optimizer for each trained weight, given the bytes of that weight; None if unknown.
        rank: the adapter's rank.
        adapter_bytes: bytes of an adapter's weight.
        targets: the linear layers with an adapter; empty for all.
        reference_bytes: bytes of a weight of the frozen copy that a reference model is; 0 without one.
        sharers: how many processes share the model's state; 1 if each holds all of it.
    """

    tuning: str
    weight_bytes: float
    linear_bytes: float
    optimizer: float | None
    rank: int = 0
    adapter_bytes: float = 4
    targets: Sequence[str] = ()
    reference_bytes: float = 0
    sharers: int = 1


@dataclass(frozen=True, slots=True)
class Way:
    """A way to train a model.

    Attributes:
        training: what decides about its memory.
        write: what to write for it; empty for the way that was asked for.
    """

    training: Training
    write: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a run keeps on each device, in bytes.

    Attributes:
        model_weights: the number of the model's weights.
        trained_weights: the number of weights that are trained.
        tuning: `full`, `lora` or `qlora`.
        sharers: how many processes share all this.
        weights: bytes of weights, with a reference model's.
        gradients: bytes of gradients.
        optimizer: bytes of the optimizer; None if unknown, and then not in the sum.
    """

    model_weights: int
    trained_weights: int
    tuning: str
    sharers: int
    weights: int
    gradients: int
    optimizer: int | None

    @property
    def total(self) -> int:
        """All that is counted."""
        return self.weights + self.gradients + (self.optimizer or 0)

    @property
    def how(self) -> str:
        """How the model is trained, in a few words."""
        return f"{self.tuning}, {f'shared by {self.sharers} processes' if self.sharers > 1 else 'not sharded'}"

    def __str__(self) -> str:
        optimizer = "optimizer unknown" if self.optimizer is None else f"optimizer {gib(self.optimizer)}"
        return (
            f"{gib(self.total)} per device ({self.how}): weights {gib(self.weights)}, gradients {gib(self.gradients)}, "
            f"{optimizer}"
        )


def misfit(ways: Sequence[tuple[str, Memory]], device_bytes: int | None) -> str:
    """Return why a run does not fit on its devices, with what would; empty if it may fit, or nobody knows.

    Args:
        ways: what was asked for, and then the other ways, each with what to write.
        device_bytes: memory of a device; None if unknown.
    """
    if not ways or device_bytes is None or ways[0][1].total <= device_bytes:
        return ""
    fitting = [f"{write} ({gib(memory.total)})" for write, memory in ways[1:] if memory.total <= device_bytes]
    remedy = (
        f"write {', or '.join(fitting)}" if fitting else "use more devices and STOKER_SHARDING=full, or larger ones"
    )
    return f"the model does not fit: it needs {ways[0][1]}; a device has {gib(device_bytes)}: {remedy}"


def parked(model_weights: int, dtype: str, *, whole: bool) -> str:
    """Return what a sampler that sleeps keeps in the memory of its host, and what to ask for, in one line.

    Args:
        model_weights: the number of the model's weights.
        dtype: their type in vLLM.
        whole: the run trains all weights.
    """
    each = 4 if dtype == "float32" else 2
    size = model_weights * each
    copies = _COPIES * size if whole else 0
    kept = f"{model_weights:,} weights × {each} bytes{f', once, and {_COPIES} copies for its device' if whole else ''}"
    more = f"; {gib(copies)} more for each further device of the sampler" if whole else ""
    return (
        f"a sampler that sleeps (samplers.slice, sleep level 1) keeps {gib(size + copies)} of host memory ({kept}): "
        f"samplers.resources.requests.memory of {gib(size + copies + _BESIDE_WEIGHTS)} or more{more}"
    )


def gib(size: float) -> str:
    """Return a number of bytes in GiB, for people."""
    return f"{size / _GIB:.1f} GiB"


def estimate(shape: ModelShape, training: Training) -> Memory:
    """Return what a run keeps on each device.

    Args:
        shape: the model's weights.
        training: how they are trained.
    """
    linear = sum(layer.weights for layer in shape.linears)
    frozen = linear * training.linear_bytes + (shape.weights - linear) * training.weight_bytes
    if training.tuning == "full":
        trained, width = shape.weights, training.weight_bytes
        weights = frozen
    else:
        trained, width = _adapter(shape, training), training.adapter_bytes
        weights = frozen + trained * width
    weights += shape.weights * training.reference_bytes
    optimizer = None if training.optimizer is None else trained * training.optimizer
    return Memory(
        shape.weights,
        trained,
        training.tuning,
        training.sharers,
        round(weights / training.sharers),
        round(trained * width / training.sharers),
        None if optimizer is None else round(optimizer / training.sharers),
    )


def _adapter(shape: ModelShape, training: Training) -> int:
    """Return the weights of an adapter: two matrices of its rank on each layer."""
    layers = [layer for layer in shape.linears if not training.targets or layer.name in training.targets]
    width = sum((layer.inputs + layer.outputs) * layer.count for layer in layers)
    return training.rank * (width + (0 if training.targets else shape.expert_width))
