"""The same training as a TrainJob: what a notebook tried, a cluster repeats. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.contract.exits import RunError
from stoker.frameworks import TRL
from stoker.lab.config import LoRATrainConfig
from stoker.lab.errors import LabError
from stoker.plan.facts import Facts
from stoker.plan.plan import Plan
from stoker.plan.resolve import read_request, resolve_plan
from stoker.submit import TRLConfig, TRLDPOConfig, TRLPeftConfig, TRLSFTConfig
from stoker.submit.trainjob import trainjob

METHODS = ("sft", "dpo")


def trl_config(
    model: str,
    config: LoRATrainConfig,
    method: str,
    dataset: str,
    adapter: Mapping[str, Any] | None = None,
    **placement: Any,
) -> TRLConfig:
    """Return a training as the config of a TrainJob.

    Args:
        model: the base model's folder or Hub id.
        config: the adapter and its training.
        method: `sft` or `dpo`.
        dataset: folder or Hub id of the data.
        adapter: what PEFT says of an adapter that is not the config's.
        placement: `num_nodes` and `resources_per_node`.

    Raises:
        LabError: there is no such method.
    """
    if method not in METHODS:
        raise LabError(f"method is {method!r}: write one of {', '.join(METHODS)}")
    own = (
        # Left to the runtime, samples may be packed into rows there, which is another training.
        TRLSFTConfig(max_length=config.max_length, packing=False)
        if method == "sft"
        else TRLDPOConfig(max_length=config.max_length, beta=config.beta)
    )
    lora = config.lora_arguments() if adapter is None else adapter
    # `auto` is the machine's choice here, and the runtime's there.
    chosen = config.dtype != "auto"
    return TRLConfig(
        method=own,
        model_name_or_path=model,
        dataset_name=dataset,
        learning_rate=config.learning_rate,
        num_train_epochs=config.num_epochs,
        per_device_train_batch_size=config.batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        bf16=config.dtype == "bfloat16" if chosen else None,
        peft_config=TRLPeftConfig(
            **{name: lora[name] for name in ("r", "lora_alpha", "lora_dropout", "target_modules")}
        ),
        extra_args={
            "warmup_steps": config.warmup_ratio,
            "max_grad_norm": config.max_grad_norm,
            "seed": config.seed,
            **({"dtype": config.dtype} if chosen else {}),
        },
        **placement,
    )


def made(
    job: TRLConfig, name: str, *, runtime: str | None, namespace: str | None, env: Mapping[str, str] | None
) -> dict[str, Any]:
    """Return the TrainJob.

    Raises:
        LabError: one line for each thing that the cluster would refuse.
    """
    try:
        return trainjob(job, name, runtime=runtime, namespace=namespace, env=env)
    except ValueError as error:
        raise LabError(str(error)) from error


def plan(job: TRLConfig) -> Plan:
    """Return the plan that a pod would make for one process; its record says which run it is.

    Raises:
        LabError: it would be refused there.
    """
    facts = Facts(env={"STOKER_FRAMEWORK": TRL.name})
    try:
        return resolve_plan(read_request(facts, TRL(), job.to_args()))
    except RunError as error:
        raise LabError(error.message, error.code) from error
