"""What became of flags of older releases, as TRL 1.16 with transformers 5 has it.

From transformers' migration guide to v5, TRL's release notes and the deprecations in both sources. Only names that no
method has any more, or that still work and will not for long; a test compares them with the flag tables.
"""

from __future__ import annotations

RENAMED = {
    # Names that other trainers have for it.
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
_OVERWRITE = "nothing is overwritten: set STOKER_RESUME=never to start anew, what is there is then renamed"
_SET_BY_TORCH = "mixed precision is torch's own now: write --bf16 or --fp16"
REMOVED = {
    # A rule for the whole family: an output folder is resumed from, or set aside, never overwritten.
    "overwrite_output_dir": _OVERWRITE,
    "overwrite_cache": "leave it out, data is prepared anew when it or the settings change",
    "overwrite_hub_revision": _OVERWRITE,
    # TRL
    "max_prompt_length": "prompts are cut by --max_length; filter longer ones out of the data set",
    "max_target_length": "write --max_length, which counts prompt and completion together",
    "rpo_alpha": "write --loss_type sigmoid sft and weigh the two with --loss_weights",
    "reference_free": "DPO needs its reference; for one without, choose the method orpo",
    "label_pad_token_id": "leave it out, it is fixed now",
    "model_adapter_name": "leave it out, one adapter is trained",
    "ref_adapter_name": "leave it out, the base model without its adapter is the reference",
    "force_use_ref_model": "leave it out, the reference model is there where the method needs it",
    "use_logits_to_keep": "leave it out, logits are only computed where they are needed",
    "ref_model_init_kwargs": "write --model_init_kwargs, the reference model takes the same",
    "num_of_sequences": "leave it out, packing needs no estimate any more",
    "chars_per_token": "leave it out, packing needs no estimate any more",
    "dataset_batch_size": "leave it out; --dataset_num_proc makes preparing the data faster",
    "vllm_device": "write --vllm_mode colocate or server",
    "vllm_dtype": "leave it out, vLLM takes the model's own type",
    "vllm_enable_prefix_caching": "leave it out, vLLM decides by itself",
    "lmbda": "leave it out, distillation is on-policy now",
    # transformers
    "warmup_ratio": "write --warmup_steps with a fraction below 1, e.g. --warmup_steps 0.03",
    "group_by_length": "write --train_sampling_strategy group_by_length",
    "adafactor": "write --optim adafactor",
    "logging_dir": "set the variable TENSORBOARD_LOGGING_DIR",
    "save_safetensors": "leave it out, weights are always written as safetensors",
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
    "use_ipex": "leave it out, Intel's devices are supported by torch itself",
    "use_mps_device": "leave it out, the device is found",
    "past_index": "leave it out, no model of today needs it",
    "mp_parameters": "leave it out, it was for SageMaker",
}
# Methods without a script in TRL 1.16 → what comes nearest.
METHODS_GONE = {
    "ppo": "TRL has no PPO any more, choose grpo or rloo",
    "online_dpo": "it is an experiment without a script, choose dpo, or grpo to train on what the model writes itself",
    "nash_md": "TRL has no such trainer any more, choose grpo or dpo",
    "xpo": "TRL has no such trainer any more, choose grpo or dpo",
    "cpo": "it is an experiment without a script, choose dpo or orpo",
    "bco": "TRL has no such trainer any more, choose kto",
    "gkd": "it is an experiment without a script, choose distillation",
    "prm": "TRL has no such trainer any more, choose reward",
    "reward_modeling": "it is called reward",
    "vllm_serve": "it is a server, no training: see stoker's chart vllm-serving",
    "env": "it prints versions, no training: see `stoker doctor`",
}
# Flags that still work, with a warning in the log that is easily missed → what to write before they are gone.
DEPRECATED = {
    "use_transformers_paged": "--use_transformers_continuous_batching",
    "vllm_importance_sampling_cap": "--vllm_importance_sampling_clip_max",
    "gradient_checkpointing": "--activation_checkpointing",
    "gradient_checkpointing_kwargs": "--activation_checkpointing_kwargs",
    "pad_token": "the pad token into the model's tokenizer_config.json",
}
