"""What a sharded run needs in its processes, beyond accelerate 1.15 and transformers 5.

Only training processes import this module, because it imports accelerate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as recomputing
from torch.distributed.fsdp import MixedPrecisionPolicy


def prepare_sharding() -> None:
    """Mend what goes wrong in silence when accelerate shards a run."""
    _shard_on_cpus()
    _give_outputs_in_float32()
    _recompute_with_the_same_dropout()


def save_whole_model() -> None:
    """Make the final save write the whole model or adapter.

    With sharded checkpoints, transformers saves no final model, although it says so. Call it after the last checkpoint.
    """
    plugin = getattr(AcceleratorState(), "fsdp_plugin", None)
    if plugin is not None:
        plugin.set_state_dict_type("FULL_STATE_DICT")


def _shard_on_cpus() -> None:
    """Make accelerate shard runs on CPUs too, where it ignores the request."""
    make_state = AcceleratorState.__init__

    def make_sharding_state(self: AcceleratorState, *args: Any, fsdp_plugin: Any = None, **options: Any) -> None:
        make_state(self, *args, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is None or self.distributed_type is not DistributedType.MULTI_CPU:
            return
        if self.mixed_precision != "no":
            fsdp_plugin.set_mixed_precision(self.mixed_precision)
        self.fsdp_plugin = fsdp_plugin
        self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = make_sharding_state


def _give_outputs_in_float32() -> None:
    """Make a sharded model give its outputs in float32, as one that is not sharded does.

    accelerate has FSDP2 round them to the type that it computes in: in bf16, log-probabilities of whole answers are
    then off by more than what DPO compares, and ratios of policies by more than GRPO clips.
    """
    choose = FullyShardedDataParallelPlugin.set_mixed_precision

    def choose_with_outputs(self: Any, *args: Any, **options: Any) -> None:
        choose(self, *args, **options)
        if isinstance(self.mixed_precision_policy, MixedPrecisionPolicy):
            self.mixed_precision_policy = replace(self.mixed_precision_policy, output_dtype=torch.float32)

    FullyShardedDataParallelPlugin.set_mixed_precision = choose_with_outputs


def _recompute_with_the_same_dropout() -> None:
    """Make a recomputed layer drop what it dropped before: accelerate lets it draw anew, for wrong gradients."""
    wrap = recomputing.checkpoint_wrapper

    def wrap_keeping_random_numbers(module: Any, *args: Any, **options: Any) -> Any:
        return wrap(module, *args, **{**options, "preserve_rng_state": True})

    recomputing.checkpoint_wrapper = wrap_keeping_random_numbers
