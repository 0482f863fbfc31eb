"""GRPO on what samplers write meanwhile: TRL's trainer, fed by a fleet of vLLM servers.

In the shape of `trl/scripts/<method>.py` (`main`, `make_parser`), so that it is started, and its flags are read, as
they are. Users name it `trl.scripts.grpo_async`.
"""

from __future__ import annotations

import os
from typing import Any


def main(script_args: Any, training_args: Any, model_args: Any, dataset_args: Any) -> None:
    """Train, and save the adapter.

    Args:
        script_args: `trl.scripts.grpo.GRPOScriptArguments`.
        training_args: `stoker.frameworks.trl.asynchronous.config.GRPOAsyncConfig`.
        model_args: `trl.ModelConfig`.
        dataset_args: `trl.DatasetMixtureConfig`.

    Raises:
        ValueError: no data is named.
        RunError: the run must end, with this code.
    """
    from trl import get_peft_config

    from stoker.frameworks.trl.asynchronous.prompts import TRAINED, columns_of, evaluated_by_name
    from stoker.frameworks.trl.asynchronous.trainer import GRPOAsyncTrainer
    from stoker.frameworks.trl.asynchronous.wiring import Rollouts
    from stoker.frameworks.trl.script_data import script_data

    # TRL warns of the function that brings the rows, which no user has to know of.
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    # As in TRL's script for GRPO: the trainer loads the model with these.
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "trust_remote_code": training_args.trust_remote_code,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(training_args.model_init_kwargs or {}),
    }
    dataset = script_data(script_args, dataset_args)
    rows = dataset[script_args.dataset_train_split]
    evaluated = dataset[script_args.dataset_test_split] if training_args.eval_strategy != "no" else None
    columns = {TRAINED: rows.column_names}
    columns |= {name: columns_of(one) for name, one in evaluated_by_name(evaluated).items()}
    with Rollouts(training_args, model_args, script_args.reward_funcs or [], columns) as rollouts:
        trainer = GRPOAsyncTrainer(
            model=model_args.model_name_or_path,
            args=training_args,
            reward_names=rollouts.reward_names,
            collect=rollouts.collect,
            train_dataset=rows,
            eval_dataset=evaluated,
            peft_config=get_peft_config(model_args),
        )
        trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model(training_args.output_dir)
    if training_args.push_to_hub:
        trainer.push_to_hub(dataset_name=script_args.dataset_name)
    trainer.end()


def make_parser() -> Any:
    """Return the parser of this script's flags, a `trl.TrlParser`."""
    from trl import DatasetMixtureConfig, ModelConfig, TrlParser
    from trl.scripts.grpo import GRPOScriptArguments

    from stoker.frameworks.trl.asynchronous.config import GRPOAsyncConfig

    return TrlParser((GRPOScriptArguments, GRPOAsyncConfig, ModelConfig, DatasetMixtureConfig))


if __name__ == "__main__":
    main(*make_parser().parse_args_and_config(fail_with_unknown_args=False))
