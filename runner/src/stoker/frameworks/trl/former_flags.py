"""Flags and methods of older releases, and what replaces them in TRL 1.16 with transformers 5.

Sources: transformers' migration guide to v5, TRL's release notes, and the deprecations in both code bases. The tables
hold only names that no method has any more, and names that will go soon; a test compares them with the flag tables.
"""

from __future__ import annotations

RENAMED = {
    # Names that other trainers use.
    "lr": "learning_rate",
    "batch_size": "per_device_train_batch_size",
    "epochs": "num_train_epochs",
    "model": "model_name_or_path",
    "dataset": "dataset_name",
    "lora_rank": "lora_r",
    # TRL
    "max_seq_length": "max_length",
    "torch_dtype": "dtype",
    "use_liger": "use_liger_kernel",
    "max_new_tokens": "max_completion_length",
    "response_length": "max_completion_length",
    "vllm_max_model_len": "vllm_max_model_length",
    "vllm_guided_decoding_regex": "vllm_structured_outputs_regex",
    "wandb_log_unique_prompts": "log_unique_prompts",
    # transformers
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "push_to_hub_model_id": "hub_model_id",
    "push_to_hub_token": "hub_token",
    "include_inputs_for_metrics": "include_for_metrics",
    "include_tokens_per_second": "include_num_input_tokens_seen",
    "torchdynamo": "torch_compile_backend",
}
# Method → old name → the flag that TRL renamed without changing what it does: both names mean the same.
TRANSLATED = {"sft": {"max_seq_length": "max_length"}}
_OVERWRITE = "stoker overwrites nothing, set STOKER_RESUME=never to rename the old output and start over"
_SET_BY_TORCH = "torch does mixed precision, write --bf16 or --fp16"
# What to do instead; a method that lacks a flag named here gets `leave it out`.
REMOVED = {
    # One rule for all three: Stoker resumes from an output folder or renames it, and never overwrites it.
    "overwrite_output_dir": _OVERWRITE,
    "overwrite_cache": "leave it out, TRL prepares the data again when data or settings change",
    "overwrite_hub_revision": _OVERWRITE,
    # TRL
    "max_prompt_length": "remove longer prompts from the data set",
    "max_target_length": "write --max_length, which counts prompt and completion together",
    "rpo_alpha": "write --loss_type sigmoid sft and set the weights with --loss_weights",
    "reference_free": "DPO needs a reference model, choose the method orpo to train without one",
    "label_pad_token_id": "leave it out, the value is fixed",
    "model_adapter_name": "leave it out, TRL trains one adapter",
    "ref_adapter_name": "leave it out, the base model without its adapter is the reference",
    "force_use_ref_model": "leave it out, methods that need a reference model load it",
    "use_logits_to_keep": "leave it out, TRL computes only the logits it needs",
    "ref_model_init_kwargs": "write --model_init_kwargs, which also applies to the reference model",
    "num_of_sequences": "leave it out, packing needs no estimate",
    "chars_per_token": "leave it out, packing needs no estimate",
    "dataset_batch_size": "leave it out, --dataset_num_proc makes preparing the data faster",
    "vllm_device": "write --vllm_mode colocate or server",
    "vllm_dtype": "leave it out, vLLM uses the model's data type",
    "vllm_enable_prefix_caching": "leave it out, vLLM decides",
    "lmbda": "leave it out, distillation is always on-policy",
    # transformers
    "warmup_ratio": "write --warmup_steps with a fraction below 1, such as --warmup_steps 0.03",
    "group_by_length": "write --train_sampling_strategy group_by_length",
    "adafactor": "write --optim adafactor",
    "logging_dir": "set the variable TENSORBOARD_LOGGING_DIR",
    "save_safetensors": "leave it out, transformers always writes safetensors",
    "fsdp_min_num_params": "write it in --fsdp_config",
    "fsdp_transformer_layer_cls_to_wrap": "write it in --fsdp_config",
    "dispatch_batches": "write it in --accelerator_config",
    "split_batches": "write it in --accelerator_config",
    "fp16_backend": _SET_BY_TORCH,
    "half_precision_backend": _SET_BY_TORCH,
    "fp16_opt_level": _SET_BY_TORCH,
    "push_to_hub_organization": "write --hub_model_id organization/name",
    "tpu_num_cores": "set the variable TPU_NUM_CORES",
    "ray_scope": "set the variable RAY_SCOPE",
    "jit_mode_eval": "write --torch_compile",
    "use_ipex": "leave it out, torch supports Intel devices",
    "use_mps_device": "leave it out, transformers finds the device",
    "past_index": "leave it out, no current model needs it",
    "mp_parameters": "leave it out, only SageMaker used it",
}
_NO_TRAINER = "TRL no longer has this trainer"
_NO_SCRIPT = "TRL has only an experimental trainer without a script"
# Methods without a script in TRL 1.16 → the closest method.
METHODS_GONE = {
    "ppo": "TRL no longer has PPO, choose grpo or rloo",
    "online_dpo": f"{_NO_SCRIPT}, choose dpo, or grpo to train on the model's own completions",
    "nash_md": f"{_NO_TRAINER}, choose grpo or dpo",
    "xpo": f"{_NO_TRAINER}, choose grpo or dpo",
    "cpo": f"{_NO_SCRIPT}, choose dpo or orpo",
    "bco": f"{_NO_TRAINER}, choose kto",
    "gkd": f"{_NO_SCRIPT}, choose distillation",
    "prm": f"{_NO_TRAINER}, choose reward",
    "reward_modeling": "write reward",
    "vllm_serve": "it serves a model and does not train, use the chart vllm-serving",
    "env": "it prints versions and does not train, use `stoker doctor`",
}
# Flags that still work, but log a warning that is easy to miss → what to write instead.
DEPRECATED = {
    "use_transformers_paged": "--use_transformers_continuous_batching",
    "vllm_importance_sampling_cap": "--vllm_importance_sampling_clip_max",
    "gradient_checkpointing": "--activation_checkpointing",
    "gradient_checkpointing_kwargs": "--activation_checkpointing_kwargs",
    "pad_token": "the pad token into the model's tokenizer_config.json",
}
