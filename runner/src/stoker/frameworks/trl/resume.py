"""Which of TRL's flags a resumed run may change, beside model, data and adapter (`decide`). Pure.

docs/reference/resume.md lists them; a test compares.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from contextlib import suppress

from stoker.plan.arguments import NONE, Flag, FlagTable, Setting, is_true
from stoker.plan.interfaces import Asked

# Flags that decide what is learnt. transformers takes optimizer and schedule from the checkpoint, so that another
# learning rate would have no effect; another seed or length would feed other data than the rest of the run.
FIXED: Mapping[str, tuple[str, ...]] = {
    "optimizer": (
        *("learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "optim", "optim_args"),
        *("optim_target_modules", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm"),
    ),
    "order and length": (
        *("seed", "data_seed", "train_sampling_strategy", "shuffle_dataset", "test_split_size", "dataset_streaming"),
        *("dataset_text_field", "dataset_kwargs", "max_length", "max_completion_length", "truncation_mode", "packing"),
        *("packing_strategy", "completion_only_loss", "assistant_only_loss", "chat_template_path", "eos_token"),
        *("chat_template_kwargs", "dataloader_drop_last"),
    ),
    "loss": (
        *("loss_type", "loss_weights", "beta", "label_smoothing", "label_smoothing_factor", "neftune_noise_alpha"),
        *("disable_dropout", "router_aux_loss_coef", "f_divergence_type", "f_alpha_divergence_coef", "discopop_tau"),
        *("use_weighting", "ld_alpha", "desirable_weight", "undesirable_weight", "center_rewards_coefficient"),
        *("sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps"),
    ),
    "rewards": (
        *("reward_funcs", "reward_weights", "reward_clip_range", "scale_rewards", "multi_objective_aggregation"),
        *("normalize_advantages", "num_generations", "num_iterations", "temperature", "top_p", "top_k", "min_p"),
        *("repetition_penalty", "generation_kwargs", "mask_truncated_completions", "epsilon", "epsilon_high", "delta"),
        *("importance_sampling_level", "off_policy_mask_threshold", "use_bias_correction_kl"),
        *("top_entropy_quantile", "use_adaptive_entropy", "entropy_coef", "entropy_coef_delta", "entropy_coef_max"),
        *("entropy_coef_min", "entropy_target", "sapo_temperature_neg", "sapo_temperature_pos", "vespo_k_neg"),
        *("vespo_k_pos", "vespo_lambda_neg", "vespo_lambda_pos"),
    ),
    "rollouts": (*("correction", "allow_incomparable_logprobs", "skip_flat_groups", "tools", "environment_factory"),),
}
# A smaller batch that is accumulated more often is the same batch.
ROWS = "per_device_train_batch_size × gradient_accumulation_steps"
GENERATED = "generation_batch_size"
# What is logged, evaluated, saved and published, and how long the run is.
FREE = (
    *("max_steps", "num_train_epochs", "output_dir", "disable_tqdm", "report_to", "run_name", "project", "trackio_*"),
    *("log_*", "logging_*", "num_completions_to_print", "skip_memory_metrics", "include_num_input_tokens_seen"),
    *("do_eval", "do_predict", "do_train", "eval_*", "*_full_eval", "per_device_eval_batch_size", "batch_eval_metrics"),
    *("num_generations_eval", "generate_during_eval", "dataset_test_split", "prediction_loss_only"),
    *("include_for_metrics", "save_*", "push_to_hub", "hub_*", "samplers", "adapters", "depth", "publish_seconds"),
    *("guard_every", "episode_seconds", "reward_seconds", "fleet_wait_seconds", "rollout_wait_seconds"),
)


def fixed_settings(asked: Asked, table: FlagTable, settings: Mapping[str, Setting]) -> dict[str, object]:
    """Return every setting that must stay as it is on resume, with its value or TRL's default."""
    found: dict[str, object] = {
        name: _value(asked, table.flags[name], settings.get(name))
        for names in FIXED.values()
        for name in names
        if name in table.flags
    }

    def number(name: str) -> float | None:
        value = _value(asked, table.flags[name], settings.get(name))
        return value if isinstance(value, int | float) else None

    rows, accumulated = number("per_device_train_batch_size"), number("gradient_accumulation_steps")
    if rows and accumulated:
        found[ROWS] = rows * accumulated
        if GENERATED in table.flags:
            steps = number("steps_per_generation") or accumulated
            found[GENERATED] = number(GENERATED) or rows * steps * asked.world_size
    return found


def _value(asked: Asked, flag: Flag, setting: Setting | None) -> object:
    """Return what TRL reads for a flag, so that two spellings of one value are equal."""
    if setting is not None:
        values = [
            _typed(flag, word) for word in ((setting.value,) if isinstance(setting.value, str) else setting.value)
        ]
        return values if flag.many or len(values) > 1 else (values or [None])[0]
    # A null in the file overrides TRL's default.
    if flag.default is None or (asked.content or {}).get(flag.name, flag.default) is None:
        return None
    return ast.literal_eval(flag.default) if flag.many else _typed(flag, flag.default)


def _typed(flag: Flag, word: str) -> object:
    if flag.none and word == NONE:
        return None
    if flag.type == "bool":
        return is_true(word)
    if flag.type in ("int", "float"):
        return int(word) if flag.type == "int" else float(word)
    if flag.type == "json":
        # Other text is the name of a file.
        with suppress(ValueError, RecursionError):
            return json.dumps(json.loads(word), sort_keys=True)
    return word
