"""Prints, as JSON, which words and keys TRL and what it is made of know, by flag.

Run with the trainer's Python: `python known_words.py`. `words`: what a method's source compares flags of text with, but
for flags whose parser knows their words. `everywhere`: the same for flags that every method has. `keys`: of a method's
mappings. `schedules`: the keys of each. `optimizers`: those that need a package which this Python lacks.
`arguments`: what each optimizer of torch reads.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import json
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stoker.frameworks.trl.flags import METHODS, flag_table


def words_of(method: str) -> dict[str, list[str]]:
    """Return the words of each flag that are compared in trainer and configuration of a method."""
    texts = {name for name, flag in flag_table(method).flags.items() if flag.type == "str" and not flag.choices}
    found: dict[str, set[str]] = defaultdict(set)
    for node in (node for tree in _sources(method) for node in ast.walk(tree)):
        if isinstance(node, ast.Compare):
            name = getattr(node.left, "attr", getattr(node.left, "id", ""))
            if name in texts:
                found[name].update(word for side in node.comparators for word in _texts(side))
    # A flag that is compared with one word takes any other too.
    return {name: sorted(words) for name, words in found.items() if len(words) > 1}


def _sources(method: str, package: str = "trl.trainer") -> Iterator[ast.Module]:
    for part in ("trainer", "config"):
        spec = importlib.util.find_spec(f"{package}.{method}_{part}")
        if spec is not None and spec.origin is not None:
            yield ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def _texts(node: ast.expr) -> Iterator[str]:
    for item in node.elts if isinstance(node, ast.List | ast.Tuple | ast.Set) else [node]:
        if isinstance(item, ast.Constant) and isinstance(item.value, str):
            yield item.value


def everywhere() -> dict[str, list[str]]:
    """Return the words of flags that every method has, from the classes that know them."""
    from accelerate.utils import DynamoBackend
    from peft import TaskType
    from transformers.trainer_utils import FSDPOption

    backends = [backend.value.lower() for backend in DynamoBackend]
    words = {"torch_compile_backend": backends, "lora_task_type": [*TaskType], "fsdp": [*FSDPOption]}
    return {name: sorted(getattr(word, "value", word) for word in known) for name, known in words.items()}


def keys(method: str) -> dict[str, list[str]]:
    """Return the keys of a method's flags that hold a mapping, from what takes them."""
    import torch.utils.checkpoint
    from transformers import TrainingArguments
    from transformers.trainer_pt_utils import AcceleratorConfig

    source = textwrap.dedent(inspect.getsource(TrainingArguments._process_fsdp_args))
    fsdp = {word for node in ast.walk(ast.parse(source)) for word in _keys_of(node)}
    checkpoint = inspect.signature(torch.utils.checkpoint.checkpoint).parameters.values()
    named = {parameter.name for parameter in checkpoint if parameter.kind is parameter.KEYWORD_ONLY}
    # Taken from `**kwargs`.
    named |= {"use_reentrant", "context_fn", "determinism_check", "debug", "preserve_rng_state"}
    named |= _recomputing(method)
    return {
        "fsdp_config": sorted(fsdp),
        "accelerator_config": sorted(field.name for field in dataclasses.fields(AcceleratorConfig)),
        "activation_checkpointing_kwargs": sorted(named),
        "gradient_checkpointing_kwargs": sorted(named),
    }


def _recomputing(method: str) -> set[str]:
    """Return the keys of recomputing that torch does not have: of transformers, if a trainer keeps them, and of TRL."""
    from transformers import Trainer

    tree = ast.parse(textwrap.dedent(inspect.getsource(Trainer)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    taken = {word for call in calls if ast.unparse(call.func) == "gc_kwargs.pop" for word in _texts(call.args[0])}
    assert taken, "transformers takes keys out of another name"
    sources = [*_sources(method, "trl.experimental.orpo" if method == "orpo" else "trl.trainer")]
    assert sources, method
    of_trl = [node for tree in sources for node in ast.walk(tree) if isinstance(node, ast.Call)]
    # They hand the whole mapping to torch when they turn recomputing on again.
    again = {"disable_gradient_checkpointing", "unwrap_model_for_generation"}
    if any(isinstance(call.func, ast.Name) and call.func.id in again for call in of_trl):
        taken = set()
    own = [call for call in of_trl if ast.unparse(call.func) == "(args.gradient_checkpointing_kwargs or {}).get"]
    return taken | {word for call in own for word in _texts(call.args[0])}


def schedules() -> dict[str, list[str]]:
    """Return the keys of each schedule, but for what the trainer gives it and for the step to begin at."""
    from torch.optim.lr_scheduler import ReduceLROnPlateau
    from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION, GreedyLR

    given = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch"}
    # Their functions pass on what they get.
    functions = {**TYPE_TO_SCHEDULER_FUNCTION, "reduce_lr_on_plateau": ReduceLROnPlateau, "greedy": GreedyLR}
    return {
        str(getattr(name, "value", name)): sorted({*inspect.signature(function).parameters} - given)
        for name, function in functions.items()
    }


def optimizers() -> list[str]:
    """Return the optimizers that transformers does not find here."""
    from transformers import Trainer, TrainingArguments
    from transformers.training_args import OptimizerNames

    found = []
    for optimizer in OptimizerNames:
        made = TrainingArguments(output_dir="/tmp", optim=optimizer.value, use_cpu=True)
        try:
            Trainer.get_optimizer_cls_and_kwargs(made)
        except (ImportError, ValueError):
            found.append(optimizer.value)
    return sorted(found)


def arguments() -> dict[str, list[str]]:
    """Return the arguments that transformers reads for its own optimizers and for those of torch."""
    from transformers.trainer_optimizer import _OPTIMIZER_HANDLERS, OptimizerContext
    from transformers.training_args import OptimizerNames

    class Read(dict[str, str]):
        """Arguments that have every key, and remember which ones were looked for."""

        def __contains__(self, key: object) -> bool:
            self[str(key)] = "1"
            return True

    found = {}
    for optimizer in ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop"):
        read = Read({"": ""})
        made: Any = SimpleNamespace(optim=OptimizerNames(optimizer))
        _OPTIMIZER_HANDLERS[optimizer](OptimizerContext(made, None, {}, {}, read))
        found[optimizer] = sorted({*read} - {""})
    return found


def _keys_of(node: ast.AST) -> Iterator[str]:
    """Yield the keys of `self.fsdp_config` that an expression reads."""
    if isinstance(node, ast.Subscript) and _is_config(node.value):
        yield from _texts(node.slice)
    if isinstance(node, ast.Compare) and _is_config(node.comparators[0]):
        yield from _texts(node.left)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_config(node.func.value):
        yield from _texts(node.args[0])


def _is_config(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "fsdp_config"


if __name__ == "__main__":
    found = {method: words_of(method) for method in METHODS}
    mappings = {
        "everywhere": everywhere(),
        "keys": {method: keys(method) for method in METHODS if method != "grpo_async"},
        "schedules": schedules(),
    }
    print(json.dumps({"words": found, **mappings, "optimizers": optimizers(), "arguments": arguments()}))
