"""ORPO with TRL's experimental trainer, which TRL 1.16 ships without a script of its own.

In the shape of `trl/scripts/<method>.py` (`main`, `make_parser`), so that it is started, and its flags are read, as
they are. Users name it `trl.scripts.orpo`.
"""

from __future__ import annotations

from typing import Any


def main(script_args: Any, training_args: Any, model_args: Any, dataset_args: Any) -> None:
    """Train, and save the model.

    Args:
        script_args: `trl.ScriptArguments`.
        training_args: `trl.experimental.orpo.ORPOConfig`.
        model_args: `trl.ModelConfig`.
        dataset_args: `trl.DatasetMixtureConfig`.

    Raises:
        ValueError: no data is named.
    """
    from transformers import AutoTokenizer
    from trl import get_peft_config, get_quantization_config
    from trl.experimental.orpo import ORPOTrainer

    from stoker.frameworks.trl.script_data import script_data

    quantization = get_quantization_config(model_args)
    # The trainer loads the model with these. Left to itself it would spread it over all devices the process sees
    # (device_map "auto"), which belong to the other ranks too; with None it goes to this rank's own.
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        "device_map": None,
        **({"quantization_config": quantization} if quantization is not None else {}),
        **(training_args.model_init_kwargs or {}),
    }
    tokenizer = AutoTokenizer.from_pretrained(
        model_args.model_name_or_path,
        revision=model_args.model_revision,
        trust_remote_code=training_args.trust_remote_code,
    )
    # TRL's stable trainers do this themselves; this one pads with None and fails in the first batch.
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token

    dataset = script_data(script_args, dataset_args)
    evaluating = training_args.eval_strategy != "no"
    trainer = ORPOTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        train_dataset=dataset[script_args.dataset_train_split],
        eval_dataset=dataset[script_args.dataset_test_split] if evaluating else None,
        processing_class=tokenizer,
        peft_config=get_peft_config(model_args),
    )
    trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model(training_args.output_dir)
    if training_args.push_to_hub:
        trainer.push_to_hub(dataset_name=script_args.dataset_name)
    trainer.end()


def make_parser() -> Any:
    """Return the parser of this script's flags, a `trl.TrlParser`."""
    from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, TrlParser
    from trl.experimental.orpo import ORPOConfig

    return TrlParser((ScriptArguments, ORPOConfig, ModelConfig, DatasetMixtureConfig))


if __name__ == "__main__":
    main(*make_parser().parse_args_and_config())
