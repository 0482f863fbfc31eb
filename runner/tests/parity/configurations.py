"""Configurations of `stoker plan`, made up from a seed: about half of them are valid.

What flags and keys there are comes from `stoker flags`, so nothing here depends on a module of the runner.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

TRL_METHODS = ("sft", "dpo", "kto", "orpo", "grpo", "rloo", "reward", "distillation")
TUNE_METHODS = ("full", "lora", "qlora", "lora_dpo", "full_dpo", "kd")
_TUNE_RECIPES = {
    "full": ("full_finetune_single_device", "full_finetune_distributed"),
    "lora": ("lora_finetune_single_device", "lora_finetune_distributed"),
    "qlora": ("lora_finetune_single_device", "lora_finetune_distributed"),
    "lora_dpo": ("lora_dpo_single_device", "lora_dpo_distributed"),
    "full_dpo": ("full_dpo_distributed", "full_dpo_distributed"),
    "kd": ("knowledge_distillation_single_device", "knowledge_distillation_distributed"),
}
_TUNE_CONFIGS = {
    "full": ("llama3_2/1B", "llama3_2/3B", "qwen2_5/1.5B", "llama3_2/1B_full", "gemma/2B", "phi3/mini", "llama3_1/8B"),
    "lora": ("llama3_2/1B", "qwen2_5/0.5B", "gemma2/2B", "phi3/mini", "llama3/8B_dora_single_device", "mistral/7B"),
    "qlora": ("llama3_2/1B", "llama3_2/3B_qlora_single_device", "gemma/2B", "phi3/mini", "llama3/8B", "phi4/14B"),
    "lora_dpo": ("llama3_1/8B", "llama2/7B"),
    "full_dpo": ("llama3_1/8B",),
    "kd": ("llama3_2/8B_to_1B", "qwen2/1.5_to_0.5B"),
}
# A line of `stoker flags`.
_FLAG = re.compile(r"^(?:--)?(?P<name>\S+) <(?P<type>[^>]+?)(?P<many>…)?>(?: \(default (?P<default>.*?)\))?(?::|$)")


@dataclass
class Configuration:
    """One command line and all that it depends on.

    Attributes:
        name: what it is called in a report.
        arguments: the words behind `stoker`.
        env: its environment.
        files: path below the working folder → content.
        machine: what the container sees (see `player.Machine`).
    """

    name: str
    arguments: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Run:
    """A run in the making: what is said of it, and where."""

    random: random.Random
    method: str
    first: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, str] = field(default_factory=dict)
    file: dict[str, Any] = field(default_factory=dict)
    text: str | None = None
    config: str | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    world_size: int = 1

    def say(self, flag: str, value: str) -> None:
        """Say a TRL flag, in one of the places where it can be said."""
        place = self.random.choice(("args", "args", "equals", "dashes", "env", "runtime", "file"))
        variable = f"STOKER_ARG_{flag.upper()}"
        if place == "equals":
            self.words.append(f"--{flag}={value}")
        elif place == "env":
            self.env[variable] = value
        elif place == "runtime":
            self.env[variable] = self.defaults[variable] = value
        elif place == "file":
            self.file[flag] = yaml.safe_load(value) if self.random.random() < 0.5 else value
        else:
            self.words += [f"--{flag.replace('_', '-') if place == 'dashes' else flag}", *value.split()]

    def tell(self, key: str, value: str) -> None:
        """Tell a TorchTune key, on the command line or in a variable."""
        variable = f"STOKER_ARG_{key.upper().replace('.', '__', 1)}"
        place = self.random.choice(("args", "args", "env", "runtime"))
        if place == "args" or key.startswith("~"):
            self.words.append(f"{key}={value}" if not key.startswith("~") else key)
        else:
            self.env[variable] = value
            if place == "runtime":
                self.defaults[variable] = value

    def named(self, number: int) -> Configuration:
        """Return the configuration it came to."""
        made = Configuration(f"{number:04} {self.method}", machine=self.machine)
        path = f"configs/{number:04}.yaml"
        config = self.config
        if self.text is not None or self.file:
            made.files[path] = yaml.safe_dump(self.file) if self.text is None else self.text
            config = path
        named = [] if config is None else ["--config", config]
        made.arguments = ["plan", "--output", "json", *self.first, *named, *self.words]
        told = {"STOKER_RUNTIME_DEFAULTS": json.dumps(self.defaults)} if self.defaults else {}
        made.env = {**told, **self.env}
        return made


Fault = Callable[[_Run], None]


class Generator:
    """Makes configurations up.

    Args:
        seed: what they follow from.
        flags: method → the lines of `stoker flags <method>`.
    """

    def __init__(self, seed: int, flags: Mapping[str, Sequence[str]]) -> None:
        self.random = random.Random(seed)
        self.flags = {method: [*_read(lines)] for method, lines in flags.items()}

    def configurations(self, count: int) -> Iterator[Configuration]:
        """Yield that many."""
        decks: dict[bool, list[Fault]] = {True: [], False: []}
        for number in range(count):
            trl = self.random.random() < 0.66
            run = self._trl() if trl else self._tune()
            self._surroundings(run)
            if self.random.random() < 0.48:
                for _ in range(self.random.choice((1, 1, 1, 2))):
                    # Each of them before any for a second time.
                    decks[trl] = decks[trl] or self._shuffled([*_WORLD_FAULTS, *(_TRL_FAULTS if trl else _TUNE_FAULTS)])
                    decks[trl].pop()(run)
                if trl and self.random.random() < 0.2:
                    _typing_error(run, self.random.choice(self.flags[run.method])["name"])
            yield run.named(number)

    def _shuffled(self, faults: list[Fault]) -> list[Fault]:
        return self.random.sample(faults, len(faults))

    def _world(self, run: _Run) -> None:
        """Add nodes, processes and devices."""
        choose = self.random
        kind = choose.choices(("cpu", "none", "nvidia", "amd", "intel", "tpu"), (40, 10, 35, 5, 5, 5))[0]
        per_node = choose.choice((1, 1, 2, 4)) if kind not in ("cpu", "none") else choose.choice((1, 1, 2))
        nodes = {
            "nvidia": [f"nvidia{n}" for n in range(per_node)],
            "amd": ["kfd", *(f"dri/renderD{128 + n}" for n in range(per_node))],
            "intel": [f"accel/accel{n}" for n in range(per_node)],
            "tpu": [f"accel{n}" for n in range(per_node)],
        }
        run.machine = {"cpus": choose.choice((1, 4, 16)), "devices": nodes.get(kind, [])}
        if kind != "none":
            run.env["STOKER_ACCELERATOR"] = kind
        if run.machine["devices"]:
            run.machine["shm_mib"] = 8192
        nnodes = choose.choice((1, 1, 2, 3))
        told = choose.choice(("auto", str(per_node))) if run.machine["devices"] else str(per_node)
        if nnodes > 1 or choose.random() < 0.5 or per_node > 1:
            rank = choose.randrange(nnodes)
            run.env |= {"PET_NNODES": str(nnodes), "PET_NODE_RANK": str(rank), "PET_NPROC_PER_NODE": told}
            run.env |= {"PET_MASTER_ADDR": "run-node-0-0.run", "PET_MASTER_PORT": "29500", "STOKER_RUN_ID": "0f2e"}
            run.env["JOB_COMPLETION_INDEX"] = str(rank)
        elif run.machine["devices"] and per_node == 1:
            run.env["STOKER_NPROC_PER_NODE"] = choose.choice(("auto", "1"))
        if choose.random() < 0.3 and "PET_NPROC_PER_NODE" in run.env:
            run.env["STOKER_NPROC_PER_NODE"] = str(per_node)
            run.env["PET_NPROC_PER_NODE"] = choose.choice((told, "1", "auto"))
        run.world_size = nnodes * per_node

    def _surroundings(self, run: _Run) -> None:
        """Add what a runtime and a pod say besides."""
        choose = self.random
        for variable, values in {
            "STOKER_RESUME": ("auto", "never", "require"),
            "STOKER_GRACE_PERIOD_SECONDS": ("60", "120"),
            "STOKER_RENDEZVOUS_TIMEOUT_SECONDS": ("600",),
            "STOKER_HANG_TIMEOUT_SECONDS": ("0", "3600"),
            "STOKER_RESTART_ATTEMPT": ("0", "3"),
            "STOKER_JOB_ID": ("7c9e",),
            "STOKER_IMAGE_VERSION": ("0.1.0-cpu",),
            "STOKER_RUNTIME": ("trl-distributed",),
            "STOKER_CPU_REQUEST": ("1", "8"),
            "STOKER_TERMINATION_LOG": ("/tmp/log",),
            "STOKER_WORKSPACE": ("/data",),
            "STOKER_SERVICE_HOST": ("10.0.0.1",),
            "OMP_NUM_THREADS": ("3",),
            "HOSTNAME": ("run-node-0-0",),
        }.items():
            if choose.random() < 0.12:
                run.env[variable] = choose.choice(values)
        if run.machine["devices"] and choose.random() < 0.1:
            run.env["CUDA_VISIBLE_DEVICES"] = "0"

    def _trl(self) -> _Run:
        choose = self.random
        run = _Run(choose, choose.choice(TRL_METHODS))
        self._world(run)
        if choose.random() < 0.6:
            run.first = [f"trl.scripts.{run.method}"]
        else:
            run.env["STOKER_METHOD"] = run.method
        if choose.random() < 0.3:
            run.env["STOKER_FRAMEWORK"] = "trl"
        run.say("model_name_or_path", choose.choice(("/workspace/model", "Qwen/Qwen3-0.6B", "/inputs/model")))
        run.say("dataset_name", choose.choice(("/workspace/dataset", "trl-lib/Capybara", "/inputs/dataset")))
        self._method(run)
        self._tuning(run)
        for flag in choose.sample(self.flags[run.method], choose.randrange(6)):
            if not _SPECIAL.match(flag["name"]):
                run.say(flag["name"], _value_for(choose, flag))
        known = {flag["name"] for flag in self.flags[run.method]}
        for name, values in _COMMON.items():
            if choose.random() < (0.12 if name in known else 0.01) and not any(name in word for word in run.words):
                run.say(name, choose.choice(values))
        if run.file and choose.random() < 0.35:
            run.file["env"] = choose.choice(
                ({"HF_HOME": "/cache/hf"}, {"WANDB_API_KEY": "k3y", "A": 1}, {"HTTPS_PROXY": "http://me:pw@proxy:3128"})
            )
        if run.file and choose.random() < 0.25:
            run.file["datasets"] = choose.choice(
                ([{"path": "a/b"}], [{"path": "a/b", "split": "train"}, {"path": "/data/c", "fraction": 0.5}])
            )
        return run

    def _method(self, run: _Run) -> None:
        """Say what a method cannot do without."""
        choose = self.random
        if run.method == "distillation":
            run.say("teacher_model_name_or_path", choose.choice(("Qwen/Qwen3-8B", "/inputs/teacher")))
        if run.method in ("grpo", "rloo"):
            run.say("reward_funcs", choose.choice(("accuracy_reward", "think_format_reward", "rewards.mine")))
            run.say("num_generations", choose.choice(("2", "4")))
            run.say("per_device_train_batch_size", "8")
        elif run.method == "kto" or choose.random() < 0.3:
            run.say("per_device_train_batch_size", choose.choice(("2", "4")))

    def _tuning(self, run: _Run) -> None:
        """Train an adapter, perhaps."""
        choose = self.random
        kind = choose.choice(("full", "full", "lora", "lora", "qlora"))
        if kind == "full":
            return
        run.say("use_peft", "true")
        if kind == "qlora" and run.machine["devices"]:
            run.say(choose.choice(("load_in_4bit", "load_in_8bit")), "true")
        for name, values in {
            "lora_r": ("8", "64"),
            "lora_alpha": ("16",),
            "lora_dropout": ("0.05", "0"),
            "lora_target_modules": ("all-linear", "q_proj v_proj"),
            "use_rslora": ("true",),
            "lora_modules_to_save": ("lm_head",),
        }.items():
            if choose.random() < 0.35:
                run.say(name, choose.choice(values))

    def _tune(self) -> _Run:
        choose = self.random
        run = _Run(choose, choose.choice(TUNE_METHODS))
        self._world(run)
        run.env |= {"STOKER_FRAMEWORK": "torchtune", "STOKER_METHOD": run.method}
        if choose.random() < 0.4:
            run.first = [_TUNE_RECIPES[run.method][run.world_size > 1]]
            if choose.random() < 0.7:
                del run.env["STOKER_METHOD"]
        named = choose.choice(_TUNE_CONFIGS[run.method])
        if run.method in ("full", "lora") and choose.random() < 0.3:
            run.file = _own_file(choose, run.method, run.env.get("STOKER_ACCELERATOR", "cpu"))
        elif choose.random() < 0.3:
            run.env["STOKER_ARG_CONFIG"] = named
            if choose.random() < 0.5:
                run.defaults["STOKER_ARG_CONFIG"] = named
        else:
            run.config = named
        known = {flag["name"] for flag in self.flags[run.method]}
        for key, values in _TUNE_KEYS.items():
            if choose.random() < (0.2 if key in known else 0.02):
                run.tell(key, choose.choice(values))
        if run.method in ("lora", "qlora", "kd") and choose.random() < 0.5:
            run.tell("model.lora_rank", choose.choice(("8", "16")))
            run.tell("model.lora_attn_modules", "['q_proj','v_proj']")
        for flag in choose.sample(self.flags[run.method], choose.choice((0, 0, 1, 2))):
            if flag["default"] and "=" not in flag["default"] and not _TUNE_SPECIAL.match(flag["name"]):
                run.tell(flag["name"], flag["default"])
        if choose.random() < 0.1:
            run.words.append(choose.choice(("~seed", "~optimizer.fused", "~lr_scheduler.num_warmup_steps")))
        return run


# Flags that are said on purpose, or not at all.
_SPECIAL = re.compile(
    r"(lora|bnb|vllm|load_in|use_(peft|dora|rslora|vllm|cpu|bnb)|reward_|num_generations|steps_per|generation_batch"
    r"|(model|dataset)_name|teacher|save_only|save_on_each|resume|enable_jit|local_rank|max_steps|num_train|.*kwargs"
    r"|fp16|bf16|ddp_backend|datasets|output_dir|load_best|save_total|label_smooth|eval_str|warmup|.*batch)"
)
_COMMON = {
    "learning_rate": ("2e-4", "1e-05", ".5"),
    "max_steps": ("10", "1000", "-1"),
    "num_train_epochs": ("1", "2.5"),
    "max_length": ("512",),
    "packing": ("true", "False"),
    "beta": ("0.1",),
    "save_steps": ("50", "0.1"),
    "save_total_limit": ("2", "5"),
    "report_to": ("wandb", "tensorboard wandb", "none"),
    "hub_token": ("hf_secret",),
    "seed": ("7",),
    "bf16": ("true", "no", "1"),
    "dtype": ("bfloat16", "auto"),
    "lr_scheduler_type": ("cosine", "linear"),
    "optim": ("adamw_torch", "paged_adamw_8bit"),
    "warmup_steps": ("0.03", "10"),
    "gradient_checkpointing": ("false", "true"),
    "dataloader_num_workers": ("0", "2", "200"),
    "model_init_kwargs": ('{"trust_remote_code":true}',),
    "run_name": ("no", "1:30", "-x"),
    "eval_strategy": ("no", "steps"),
    "dataset_train_split": ("train", "train[:10%]"),
    "output_dir": ("/workspace/output/a", "/elsewhere"),
}
_TUNE_SPECIAL = re.compile(r"(.*_component_|.*checkpoint|resume|enable_async|output_dir|device|dtype|compile|profiler)")
_TUNE_KEYS = {
    "batch_size": ("1", "4"),
    "epochs": ("1", "3"),
    "optimizer.lr": ("2e-5", "1e-4"),
    "max_steps_per_epoch": ("10", "null"),
    "gradient_accumulation_steps": ("8",),
    "seed": ("42",),
    "dataset.source": ("/workspace/dataset", "json", "tatsu-lab/alpaca"),
    "dataset.packed": ("False",),
    "tokenizer.max_seq_len": ("1024",),
    "checkpointer.checkpoint_dir": ("/inputs/model", "/workspace/model"),
    "metric_logger.log_dir": ("${output_dir}/logs",),
    "save_adapter_weights_only": ("False",),
    "loss": ("torchtune.modules.loss.CEWithChunkedOutputLoss",),
    "optimizer": ("torch.optim.SGD",),
    "output_dir": ("/workspace/output/b",),
}


def _read(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        match = _FLAG.match(line)
        if match is not None:
            yield {**match.groupdict(), "many": bool(match["many"])}


def _value_for(choose: random.Random, flag: Mapping[str, Any]) -> str:
    values: Sequence[str] = flag["type"].split("|")
    if len(values) > 1:
        return choose.choice(values)
    values = {
        "bool": ("true", "false", "yes", "0", "True"),
        "int": ("1", "2", "16", "300"),
        "float": ("0.5", "1e-3", "1", "0.9"),
    }.get(flag["type"], ("word", "a b" if flag["many"] else "a", "/data/x", "null", '["a"]'))
    return choose.choice(values)


def _own_file(choose: random.Random, method: str, accelerator: str) -> dict[str, Any]:
    """Return a TorchTune config of a user's own."""
    model = "lora_llama3_2_1b" if method == "lora" else "llama3_2_1b"
    content: dict[str, Any] = {
        "output_dir": "/workspace/output",
        "model": {"_component_": f"torchtune.models.llama3_2.{model}"},
        "tokenizer": {
            "_component_": "torchtune.models.llama3.llama3_tokenizer",
            "path": "${model_dir}/original/tokenizer.model",
            "max_seq_len": None,
        },
        "model_dir": "/workspace/model",
        "checkpointer": {
            "_component_": "torchtune.training.FullModelHFCheckpointer",
            "checkpoint_dir": "${model_dir}",
            "checkpoint_files": ["model.safetensors"],
            "recipe_checkpoint": None,
            "output_dir": "${output_dir}",
            "model_type": "LLAMA3_2",
        },
        "resume_from_checkpoint": False,
        "dataset": {"_component_": "torchtune.datasets.alpaca_cleaned_dataset", "packed": False},
        "seed": None,
        "shuffle": True,
        "batch_size": 2,
        "epochs": choose.choice((1, 2)),
        "max_steps_per_epoch": None,
        "gradient_accumulation_steps": 8,
        "optimizer": {"_component_": "torch.optim.AdamW", "lr": 2e-5, "fused": True},
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "device": "cpu" if accelerator == "cpu" else "cuda",
        "dtype": "fp32" if accelerator == "cpu" else "bf16",
        "enable_activation_checkpointing": False,
        "compile": False,
        "metric_logger": {
            "_component_": "torchtune.training.metric_logging.DiskLogger",
            "log_dir": "${output_dir}/logs",
        },
        "log_every_n_steps": 1,
    }
    if method == "lora":
        content["model"] |= {"lora_attn_modules": ["q_proj", "v_proj"], "lora_rank": 8, "lora_alpha": 16}
        content["lr_scheduler"] = {
            "_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
            "num_warmup_steps": 10,
        }
    return content


def _typing_error(run: _Run, name: str) -> None:
    """Misspell a flag."""
    at = run.random.randrange(len(name))
    run.say(name[:at] + name[at + 1 :], "1")


def _adds(*words: str) -> Fault:
    return lambda run: run.words.extend(words)


def _sets(**variables: str) -> Fault:
    return lambda run: run.env.update(variables)


def _begins(*words: str) -> Fault:
    def begin(run: _Run) -> None:
        run.first = [*words]

    return begin


def _files(**content: Any) -> Fault:
    return lambda run: run.file.update(content)


def _writes(text: str) -> Fault:
    def write(run: _Run) -> None:
        run.text = text

    return write


def _lacks(*variables: str) -> Fault:
    def drop(run: _Run) -> None:
        for name in variables:
            run.env.pop(name, None)

    return drop


def _no_devices(run: _Run) -> None:
    run.machine["devices"] = []
    run.env["STOKER_ACCELERATOR"] = run.random.choice(("nvidia", "amd"))


def _little_shm(run: _Run) -> None:
    run.machine["shm_mib"] = run.random.choice((64, None))


def _runtime_default(run: _Run) -> None:
    """A runtime's default that is foreign to the method, or no flag at all."""
    name = run.random.choice(("STOKER_ARG_PACKING", "STOKER_ARG_BETA", "STOKER_ARG_NONSENSE", "STOKER_ARG_MODEL__X"))
    run.env[name] = run.defaults[name] = "true"


def _missing_file(run: _Run) -> None:
    run.file, run.text, run.config = {}, None, "configs/absent.yaml"


_WORLD_FAULTS: tuple[Fault, ...] = (
    *(_sets(STOKER_RESUME=text) for text in ("Auto", "yes")),
    *(_sets(STOKER_GRACE_PERIOD_SECONDS=text) for text in ("0", "2m", "-1")),
    *(_sets(STOKER_RENDEZVOUS_TIMEOUT_SECONDS=text) for text in ("", "1.5")),
    *(_sets(STOKER_HANG_TIMEOUT_SECONDS=text) for text in ("never", "9" * 30)),
    *(_sets(STOKER_RESTART_ATTEMPT=text) for text in ("x", "1.0")),
    *(_sets(STOKER_RUN_ID=text) for text in ("../x", "a b", "")),
    *(_sets(STOKER_ACCELERATOR=text) for text in ("gpu", "NVIDIA")),
    *(_sets(PET_NPROC_PER_NODE=text) for text in ("0", "two", "64", "gpu", "cpu", "3")),
    *(_sets(PET_NNODES=text) for text in ("0", "1:4", "100001", "2")),
    *(_sets(PET_NODE_RANK=text) for text in ("9", "-1", "x")),
    *(_sets(PET_MASTER_PORT=text) for text in ("70000", "http", "0")),
    *(_sets(STOKER_NPROC_PER_NODE=text) for text in ("many", "0", "2", "5")),
    *(_sets(STOKER_RUNTIME_DEFAULTS=text) for text in ("{", "[]", "null", "{}")),
    *(_sets(STOKER_FRAMEWORK=text) for text in ("jax", "TRL", "deepspeed")),
    *(_sets(STOKER_METHOD=text) for text in ("DPO", "gkd", "ppo", "nonsense", "")),
    *(_sets(STOKER_WORKSPACE=text) for text in ("workspace", "./here", "/")),
    _sets(STOKER_FOO="1"),
    _sets(STOKER_RESUM="never"),
    _sets(STOKER_LEARNING_RATE="1"),
    _sets(PET_STANDALONE="1"),
    _sets(PET_NODES="2", PET_RDZV_BACKEND="c10d"),
    _sets(STOKER_ARG_="1"),
    _sets(JOB_COMPLETION_INDEX="3"),
    _lacks("PET_MASTER_ADDR"),
    _lacks("PET_NODE_RANK", "STOKER_RUN_ID"),
    _lacks("PET_NNODES"),
    _no_devices,
    _little_shm,
    _missing_file,
    _writes("- a\n- b\n"),
    _writes("a: [1\n"),
    _writes("1: a\n"),
    _writes("a: &x [*x]\n"),
    _writes("seed: 1\n---\nseed: 2\n"),
    _writes(""),
)
_TRL_FAULTS: tuple[Fault, ...] = (
    *(_adds(f"--{old}", "1") for old in ("lr", "batch_size", "epochs", "max_seq_length", "torch_dtype", "no_cuda")),
    *(_adds(f"--{old}", "1") for old in ("evaluation_strategy", "response_length", "push_to_hub_token", "lora_rank")),
    *(_adds(f"--{old}") for old in ("overwrite_output_dir", "group_by_length", "warmup_ratio", "logging_dir")),
    *(_adds(f"--{old}", "1") for old in ("max_prompt_length", "rpo_alpha", "vllm_device", "fp16_backend", "lmbda")),
    *(_adds(f"--{own}", "x") for own in ("resume_from_checkpoint", "enable_jit_checkpoint", "local_rank")),
    *(_adds(f"--{own}") for own in ("save_only_model", "save_on_each_node", "no_report_to", "no_packing", "no_bf16")),
    *(_adds("--learning_rate", text) for text in ("nan", "1_000", "-1", "fast", "٣", "9" * 50)),
    *(_adds("--max_steps", *text.split()) for text in ("0", "-2", "1.5", "1 2", "")),
    *(_adds("--num_train_epochs", text) for text in ("0", "-1", "inf")),
    *(_adds("--save_steps", text) for text in ("2.5", "0")),
    *(_adds(*words.split()) for words in ("--bf16 --fp16", "--load_in_4bit", "--lora_r 8", "--use_dora true")),
    *(_adds(*words.split()) for words in ("-- x", "--seed 4294967296", "--lora_dropout 5", "--lr_sched cosine")),
    *(_adds(*words.split()) for words in ("--packing maybe", "--eval_strategy never", "--save_total_limit 1")),
    *(_adds(*words.split()) for words in ("--config a --config b", "--beta 0.1", "--num_generations 3")),
    *(_adds(*words.split()) for words in ("--model_name_or_path hf://a/b", "--dataset_name s3://a/b --dataset_nam x")),
    *(
        _adds(*words.split())
        for words in ("--load_best_model_at_end", "--report_to -x", "--datasets a", "--reward_funcs x")
    ),
    *(_adds(*words.split()) for words in ("--output_dir out", "--output_dir /workspace", "--output_dir /inputs")),
    *(_adds(*words.split()) for words in ("--generation_batch_size 7", "--steps_per_generation 3", "--max_steps=")),
    *(
        _adds(*words.split())
        for words in ("--ddp_backend nccl", "--vllm_mode colocate", "--num_train_epochs 3 --max_steps 5")
    ),
    _adds("--model_init_kwargs", '{"revision": "v2"}'),
    _adds("--model_init_kwargs", '{"dtype": "float32", "a": 1}'),
    _adds("--max_steps 3"),
    _adds("--model_name_or_path", ""),
    _begins("trl", "sft"),
    _begins("sft"),
    _begins("-m", "trl.scripts.dpo"),
    _begins("trl.scripts.ppo"),
    _begins("trl.scripts.rlo"),
    _begins("stoker.scripts.orpo"),
    _begins("--config"),
    _sets(STOKER_ARG_CONFIG="/c.yaml"),
    _sets(STOKER_ARG_max_steps="3", STOKER_ARG_MAX_STEPS="4"),
    _sets(STOKER_ARG_LERNING_RATE="1"),
    _sets(STOKER_ARG_REPORT_TO="[1,"),
    _sets(STOKER_ARG_MAX_STEPS="100", STOKER_ARG_NUM_TRAIN_EPOCHS="2"),
    _runtime_default,
    _files(learning_rate="many"),
    _files(learning_rat=1),
    _files(use_peft=[False]),
    _files(save_strategy=False),
    _files(env={"RANK": 1, "STOKER_RESUME": "never"}),
    _files(env=["A"]),
    _files(env={"A": None, "B=C": "1", "HF_TOKEN": "hf_secret"}),
    _files(datasets="a"),
    _files(datasets=[{"path": "a", "spilt": "b"}, "c"]),
    _files(datasets=[]),
    _files(model_name_or_path=None, dataset_name=None),
    _files(lora_target_modules="all-linear", report_to="wandb", loss_type="sigmoid"),
    _files(gradient_accumulation_steps={"a": 1}),
    _writes("run_name: 2026-01-01\nmax_steps: 3\n"),
    _writes("save_strategy: no\nrun_name: 1:30\n"),
)
_TUNE_FAULTS: tuple[Fault, ...] = (
    *(_adds(f"epochs={text}") for text in ("0", "x", "1.5", "null", "${a}", "9" * 20)),
    *(_adds(f"batch_size={text}") for text in ("0", "010", "-1", "null")),
    *(_adds(f"optimizer.lr={text}") for text in ("fast", "-1", "${optimizer.lrr}", "${")),
    *(_adds(f"dtype={text}") for text in ("fp16", "float32", "bf16")),
    *(_adds(f"device={text}") for text in ("cuda", "gpu", "cpu", "cuda:0")),
    *(_adds(f"model.lora_attn_modules={text}") for text in ("q_proj", "[q_prj]", "[]")),
    *(_adds(f"~{key}") for key in ("batch_size", "optimizer", "nonsense", "dataset._component_", "profiler")),
    *(
        _adds(f"{own}=true")
        for own in ("resume_from_checkpoint", "enable_async_checkpointing", "checkpointer.output_dir")
    ),
    *(_adds(word) for word in ("batch_siz=2", "+seed=1", "--seed", "a=b=c", "word", "model.quantize_base=maybe")),
    *(_adds(word) for word in ("model.quantize_base=True", "model.quantize_base=False", "dataset.packed=True", "-x=1")),
    *(_adds(f"dataset._component_={path}") for path in ("torchtune.datasets.alpaca", "mine", "my.data.set")),
    _adds("dataset=torchtune.datasets.chat_dataset", "dataset._component_=torchtune.datasets.alpaca_dataset"),
    _adds("loss=torchtune.modules.loss.Nonsense"),
    _adds("dataset.source=/workspace/output/data", "dataset.data_files=/data/*.jsonl"),
    _adds("output_dir=out"),
    _adds("--config"),
    _adds("--config=llama3_2/1"),
    _adds("--config", "llama9/1B"),
    _begins("full"),
    _begins("full_finetune"),
    _begins("generate"),
    _begins("lora_finetune_distributed"),
    _begins("qat_distributed"),
    _sets(STOKER_ARG_OPTIMIZER__LRR="1"),
    _sets(STOKER_ARG_BATCH_SIZE="2", STOKER_ARG_batch_size="3"),
    _sets(STOKER_ARG_CONFIG=""),
    _runtime_default,
    _files(batch_siz=2),
    _files(resume_from_checkpoint=True),
    _files(optimizer={"_component_": "torch.optim.AdamX", "lrr": 1}),
    _files(epochs=None),
    _writes("model: torchtune\nepochs: 1\n"),
)
