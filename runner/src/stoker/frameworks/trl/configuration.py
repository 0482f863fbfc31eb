"""Builds TRL's configuration as its script will, but without a device and without the other ranks.

What TRL's classes, or those of transformers, accelerate and PEFT, refuse here they would refuse in every attempt. Only
training processes import this module, because it imports transformers.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from transformers import Trainer, TrainingArguments
from transformers.optimization import get_scheduler
from transformers.trainer_optimizer import _parse_optim_args
from transformers.utils import logging

from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks.trl.lists import read_lists
from stoker.frameworks.trl.mappings import unknown_keys
from stoker.frameworks.trl.optimizers import LOW_RANK

# What a class raises that does not like its values; anything else, such as a driver's error, may be gone next time.
REFUSALS = (
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    AttributeError,
    NotImplementedError,
    AssertionError,
    ImportError,
    OSError,
)
# Beginnings of optimizers that look at the model.
_OF_MODELS = (*LOW_RANK, "lomo", "adalomo")
# Stands for the number of steps, which may depend on the data.
_SOME_STEPS = 100
# transformers (TrainingArguments, trainer_optimizer.py), about what this machine has.
_OF_THIS_MACHINE = re.compile(r"doesn't support bf16|requires Ampere|failed to import|Please install")


def build(module: str, argv: Sequence[str], world_size: int) -> tuple[Any, ...]:
    """Parse a command line with the parser of TRL's script, and build everything that is configured by it.

    Args:
        module: the script.
        argv: its arguments.
        world_size: the number of processes of the run.

    Returns:
        The script's configuration objects.

    Raises:
        RunError: TRL refuses the arguments (64), or this image or machine lacks what they need (78).
    """
    said = io.StringIO()
    try:
        # The script warns again.
        with _without_devices(world_size), _silence(), contextlib.redirect_stderr(said):
            parser = importlib.import_module(module).make_parser()
            read_lists(parser)
            found: tuple[Any, ...] = parser.parse_args_and_config([*argv], fail_with_unknown_args=False)
            _build_what_trainers_build(found[1], found[2], world_size)
    except SystemExit as error:
        text = said.getvalue().strip().rpartition("error: ")[2] or str(error)
        raise RunError(ExitCode.USAGE, f"the trainer refuses its arguments: {' '.join(text.split())}") from error
    except REFUSALS as error:
        raise refusal(error) from error
    finally:
        # runpy warns of a module that is there before it runs.
        sys.modules.pop(module, None)
    return found


def refusal(error: BaseException) -> RunError:
    """Return the end of a run whose configuration a class has refused with this exception."""
    text = " ".join(str(error).split())[:600]
    what = text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"
    if isinstance(error, ImportError | OSError) or _OF_THIS_MACHINE.search(text):
        return RunError(ExitCode.CONFIG, f"the trainer cannot use its configuration here: {what}")
    return RunError(ExitCode.USAGE, f"the trainer refuses its configuration: {what}")


def _build_what_trainers_build(training: Any, model: Any, world_size: int) -> None:
    """Build what TRL's scripts and transformers' `Trainer` make of the arguments alone, once they have a device."""
    from accelerate.utils import FullyShardedDataParallelPlugin, GradientAccumulationPlugin, TorchDynamoPlugin
    from trl import get_peft_config, get_quantization_config

    get_peft_config(model)
    get_quantization_config(model)
    GradientAccumulationPlugin(**(training.accelerator_config.gradient_accumulation_kwargs or {}))
    TorchDynamoPlugin(backend=training.torch_compile_backend, mode=training.torch_compile_mode)
    if training.fsdp_plugin_args is not None:
        if world_size == 1:
            raise ValueError(
                "fsdp shards a model over several processes, but this run has one: request more devices, or leave out "
                "--fsdp"
            )
        FullyShardedDataParallelPlugin(**training.fsdp_plugin_args)
    if training.fsdp:
        # It may come from a file, which planning does not read. transformers ignores the keys that it does not know.
        for problem in unknown_keys("--fsdp_config", "fsdp_config", training.fsdp_config):
            raise ValueError(problem)
    _build_optimizer(training)
    _build_schedule(training)


def _build_optimizer(training: Any) -> None:
    _parse_optim_args(training.optim_args)
    if training.optim.startswith(_OF_MODELS):
        return
    kind, options = Trainer.get_optimizer_cls_and_kwargs(training)
    # Another package's may need a device.
    if kind.__module__.startswith("torch."):
        kind([_weight()], **options)


def _build_schedule(training: Any) -> None:
    steps = training.max_steps if training.max_steps > 0 else _SOME_STEPS
    get_scheduler(
        training.lr_scheduler_type,
        torch.optim.SGD([_weight()], lr=training.learning_rate),
        num_warmup_steps=training.get_warmup_steps(steps),
        num_training_steps=steps,
        scheduler_specific_kwargs=training.lr_scheduler_kwargs,
    )


def _weight() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(1))


@contextlib.contextmanager
def _without_devices(world_size: int) -> Iterator[None]:
    """Let training arguments know the size of the world, but neither start a process group nor take a device."""

    def pretend(arguments: TrainingArguments) -> torch.device:
        arguments.distributed_state = SimpleNamespace(
            num_processes=world_size, process_index=0, local_process_index=0, distributed_type="MULTI_CPU"
        )
        arguments._n_gpu = 1
        return torch.device("cpu")

    real = TrainingArguments.__dict__["_setup_devices"]
    TrainingArguments._setup_devices = property(pretend)
    try:
        yield
    finally:
        TrainingArguments._setup_devices = real


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    level = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
