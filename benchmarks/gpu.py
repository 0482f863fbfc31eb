#!/usr/bin/env python3
"""What a runtime's recipe gains on one GPU: tokens per second and MFU, against TRL's own defaults.

Trains one epoch, alternately by `stoker run` as in a pod of the runtime and by TRL's own script with TRL's defaults, in
pairs. Both sides have the same model, samples, maximum length, precision, optimizer and adapter; the runtime and its
recipe decide the rest: batch, packing, kernels, checkpointing. Tokens are counted by TRL after the first steps, without
padding, and must be the same on both sides. MFU is the arithmetic that the model needs for these tokens over what the
GPU can do. Model and samples are made here, with random weights, unless you name a model. Says on stderr how far it is.
Reports, and asserts nothing of the speed.

exit codes:
  0   measured
  1   a run failed, or the sides trained on different tokens; what it printed is shown
  2   wrong arguments
  77  this machine has no NVIDIA GPU; nothing was measured

    benchmarks/gpu.py --runtime trl-qwen3-1.7b
    benchmarks/gpu.py --runtime trl-qwen3-8b --arg packing=false
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.flops import UnknownModelError, flops_per_token, mean_context  # noqa: E402
from benchmarks.gpu_inputs import SHAPES  # noqa: E402
from benchmarks.jobs import JobFailed, Run, environment, run_job  # noqa: E402
from benchmarks.paired import ratio_line, run_pairs, say, seconds, whole  # noqa: E402

SIDES = ("recipe", "TRL's defaults")
NO_GPU = 77
_TRAINER = "trl.scripts.sft"
# Dense bf16 TFLOP/s by the vendor's data sheets, by the names that nvidia-smi prints.
_PEAKS = {
    "NVIDIA A100-SXM4-40GB": 312,
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA A100 80GB PCIe": 312,
    "NVIDIA H100 80GB HBM3": 989,
    "NVIDIA H200": 989,
}
# What both sides have in common, beside the adapter (lora_…): the work, and how it is told.
_JOB = {
    *("model_name_or_path", "dataset_name", "max_length", "num_train_epochs", "dtype", "bf16", "use_peft"),
    *("optim", "learning_rate", "lr_scheduler_type", "warmup_steps"),
    *("logging_steps", "save_strategy", "report_to", "disable_tqdm"),
}
# Kernels are compiled, and memory is taken, in the first steps.
_WARM_UP_STEPS = 5
# TRL's log rounds to four digits, and a process may log its last step before the sum is complete.
_SAME_TOKENS = 0.01


class GpuError(Exception):
    """Nothing can be measured; the message says why.

    Args:
        message: what is wrong, and what to do.
        code: the exit code.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Speed:
    """What one run reached; None for what it did not.

    Attributes:
        tokens: that it trained on, padding not counted.
        tokens_per_second: after the first steps.
        run: how it ended.
    """

    tokens: float | None
    tokens_per_second: float | None
    run: Run

    def __str__(self) -> str:
        """Say how fast it was, and how it ended."""
        reached = f"{self.tokens_per_second:.0f} tokens/s, " if self.tokens_per_second else ""
        return f"{reached}{self.run}"


def main() -> None:
    """Read the command line, run the pairs and print what they reached."""
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--runtime", default="trl-qwen3-1.7b", help="the catalogue's entry with the recipe (default %(default)s)")
    add("--model", help=f"folder of a model, or {' or '.join(SHAPES)} (default: as the runtime is called)")
    add("--arg", action="append", default=[], metavar="FLAG=VALUE", help="a trainer flag of the plan; repeat for more")
    add("--length", type=whole(32), default=2048, help="tokens of the longest sample (default %(default)s)")
    add("--samples", type=whole(1), default=2000, help="samples of the epoch (default %(default)s)")
    add("--pairs", type=whole(1), default=3, help="runs of each side (default %(default)s)")
    add("--patience", type=seconds, default=600, help="seconds of silence before a run is killed (default %(default)s)")
    add("--peak-tflops", type=whole(1), help="dense bf16 TFLOP/s of the GPU (default: known for A100, H100 and H200)")
    args = parser.parse_args()
    entry = ROOT / "runtimes" / f"{args.runtime}.yaml"
    if not entry.is_file():
        parser.error(f"argument --runtime: the catalogue has no {args.runtime!r}: see {entry.parent}")
    model = args.model or args.runtime.removeprefix("trl-")
    if model not in SHAPES and not (Path(model) / "config.json").is_file():
        parser.error(f"argument --model: {model!r} must be the folder of a model, or {' or '.join(SHAPES)}")
    if bad := [word for word in args.arg if "=" not in word]:
        parser.error(f"argument --arg: must be FLAG=VALUE: {bad[0]!r}")
    gpu = first_gpu()
    peak = args.peak_tflops or _PEAKS.get(gpu)
    if peak is None:
        parser.error(f"no peak is known for {gpu!r}: name its dense bf16 TFLOP/s with --peak-tflops")

    say("finds the trainer's environments, or makes them")
    with_runner, bare = environment("--accelerator=cuda", "--with-runner"), environment("--accelerator=cuda")
    with tempfile.TemporaryDirectory(prefix="stoker-benchmark-") as scratch:
        folder = Path(scratch)
        say(f"writes {model} and {args.samples} samples")
        script = ROOT / "benchmarks" / "gpu_inputs.py"
        command = [str(bare), str(script), str(folder), model, str(args.samples), str(args.length)]
        if subprocess.run(command, check=False).returncode:
            raise GpuError("the model or the samples could not be written; the message is above")
        pod = pod_of(with_runner, entry, folder, args.length, dict(word.split("=", 1) for word in args.arg))
        recipe = flags_of(planned(with_runner, pod))
        work = Work.read(folder, trains_all=recipe.get("use_peft", ["false"]) != ["true"])

        def run(side: str, number: int) -> Speed:
            output = str(folder / f"{number}-{SIDES.index(side)}")
            env = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "0"}
            if side == SIDES[0]:
                argv = [str(with_runner), "-m", "stoker", "run", _TRAINER, "--output_dir", output]
                env |= {**pod, "STOKER_WORKSPACE": output, "STOKER_RUN_ID": str(number)}
            else:
                flags = {**job_flags(recipe), "output_dir": [output]}
                words = [word for flag, values in flags.items() for word in (f"--{flag}", *values)]
                argv = [str(bare), "-m", _TRAINER, *words]
            ended = run_job(argv, env, args.patience)
            shutil.rmtree(output, ignore_errors=True)
            return speed_of(ended)

        print(f"{gpu} at {peak} TFLOP/s; {args.runtime} on {model}, samples of up to {args.length} tokens")
        print("both sides:", *described(job_flags(recipe)))
        print("the recipe:", *described({flag: recipe[flag] for flag in recipe.keys() - job_flags(recipe).keys()}))
        pairs = []
        try:
            for pair in run_pairs(args.pairs, SIDES, run):
                pairs.append(pair)
        finally:
            print(*report(pairs, work, peak * 1e12), sep="\n", flush=True)


@dataclass(frozen=True, slots=True)
class Work:
    """What both sides train.

    Attributes:
        tokens: of all samples.
        flops: that the model needs for one of them.
    """

    tokens: int
    flops: float

    @classmethod
    def read(cls, folder: Path, trains_all: bool) -> Work:
        """Read it from the model and the data set.

        Raises:
            GpuError: MFU has no meaning for this model.
        """
        with (folder / "dataset" / "train.jsonl").open() as file:
            lengths = [len(json.loads(line)["input_ids"]) for line in file]
        try:
            config = json.loads((folder / "model" / "config.json").read_text())
            return cls(sum(lengths), flops_per_token(config, mean_context(lengths), trains_all))
        except UnknownModelError as error:
            raise GpuError(f"the model cannot be measured: {error}") from error


def first_gpu() -> str:
    """Return the name of the first NVIDIA GPU.

    Raises:
        GpuError: there is none.
    """
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        names = []
    if not names:
        raise GpuError(
            "this machine has no NVIDIA GPU, so nothing was measured: run it where nvidia-smi lists one", NO_GPU
        )
    return names[0].strip()


def pod_of(with_runner: Path, entry: Path, folder: Path, length: int, asked: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a pod of this runtime with one GPU."""
    read = "import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.stdin)['args']))"
    with entry.open() as file:
        args = json.loads(
            subprocess.run([str(with_runner), "-c", read], stdin=file, check=True, capture_output=True).stdout
        )
    args |= {
        "model_name_or_path": str(folder / "model"),
        "dataset_name": str(folder / "dataset"),
        "max_length": str(length),
        "num_train_epochs": "1",
        "optim": "adamw_torch_fused",
        "logging_steps": "1",
        "save_strategy": "no",
        "report_to": "none",
        **asked,
    }
    return {
        **{f"STOKER_ARG_{flag.upper()}": value for flag, value in args.items()},
        "STOKER_WORKSPACE": str(folder / "workspace"),
        "STOKER_ACCELERATOR": "nvidia",
        "STOKER_NPROC_PER_NODE": "1",
        "STOKER_CPU_REQUEST": str(len(os.sched_getaffinity(0))),
    }


def planned(with_runner: Path, pod: Mapping[str, str]) -> list[str]:
    """Return the trainer's arguments in a pod with these variables, as `stoker plan` prints them.

    Raises:
        GpuError: the recipe is refused.
    """
    command = [str(with_runner), "-m", "stoker", "plan", "--output", "json", _TRAINER]
    printed = subprocess.run(command, env={**os.environ, **pod}, check=False, stdout=subprocess.PIPE, text=True)
    if printed.returncode:
        raise GpuError("`stoker plan` refuses the recipe; its message is above")
    argv: list[str] = json.loads(printed.stdout)["trainer_argv"]
    return argv


def flags_of(argv: Sequence[str]) -> dict[str, list[str]]:
    """Return the flags of a command line, each with its values."""
    flags: dict[str, list[str]] = {}
    for word in argv:
        if word.startswith("--"):
            values = flags.setdefault(word.removeprefix("--"), [])
        else:
            values.append(word)
    return flags


def job_flags(recipe: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the flags that both sides have: the work, and how it is told."""
    return {flag: values for flag, values in recipe.items() if flag in _JOB or flag.startswith("lora_")}


def described(flags: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield the flags as one would write them, without folders."""
    for flag, values in sorted(flags.items()):
        if not any("/" in value for value in values):
            yield " ".join([f"--{flag}", *values])


def speed_of(run: Run) -> Speed:
    """Return what a run reached, from the lines of its steps."""
    logged = [(at, float(ast.literal_eval(line[line.index("{") :].strip())["num_tokens"])) for at, line in run.steps]
    if len(logged) <= _WARM_UP_STEPS:
        return Speed(logged[-1][1] if logged else None, None, run)
    (began, tokens_before), (ended, tokens) = logged[_WARM_UP_STEPS - 1], logged[-1]
    return Speed(tokens, (tokens - tokens_before) / (ended - began), run)


def report(pairs: Sequence[tuple[Speed, Speed]], work: Work, peak: float) -> Iterator[str]:
    """Yield the speed of both sides with the ratio within the pairs, the MFU of each, and what was lost.

    Raises:
        GpuError: a side that trained to the end did so on other tokens.
    """
    both = []
    for number, pair in enumerate(pairs, 1):
        speeds = []
        for side, speed in zip(SIDES, pair, strict=True):
            if speed.run.trained is None or speed.tokens_per_second is None or speed.tokens is None:
                yield f"lost: pair {number}, {side}: {speed.run}, {len(speed.run.steps)} steps"
            elif abs(speed.tokens - work.tokens) > _SAME_TOKENS * work.tokens:
                raise GpuError(
                    f"{side} trained on {speed.tokens:.0f} tokens in pair {number}, but the samples have "
                    f"{work.tokens}: samples were cut or dropped, so the sides cannot be compared"
                )
            else:
                speeds.append(speed.tokens_per_second)
        if len(speeds) == len(pair):
            both.append((speeds[0], speeds[1]))
    if not both:
        yield "not measured: no pair has both sides"
        return
    yield ratio_line("tokens per second", SIDES, both, "")
    medians = [statistics.median(side) for side in zip(*both, strict=True)]
    shares = (f"{side} {100 * speed * work.flops / peak:.1f} %" for side, speed in zip(SIDES, medians, strict=True))
    yield f"{'MFU':<24} {', '.join(shares)} of {work.tokens} tokens in each run, padding not counted"


if __name__ == "__main__":
    try:
        main()
    except GpuError as error:
        print(f"gpu.py: error: {error}", file=sys.stderr)
        sys.exit(error.code)
    except JobFailed as failure:
        sys.exit(str(failure))
    except KeyboardInterrupt:
        sys.exit("interrupted: what was measured so far is above")
