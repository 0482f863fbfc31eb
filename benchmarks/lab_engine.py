#!/usr/bin/env python3
"""What an engine that trains costs its answers: the shared engine against itself untouched, and against stock vLLM.

Starts four processes of the lab image's environment on this machine's CPU, with one model of random weights: the
shared engine; the same engine untouched, with the load format `trainable` but no adapter in any layer; another process
of the untouched one; and vLLM as it is, with its packed kernels. They answer the same prompts in turn, in pairs. All of
them are started several times, each time in the other order, because processes of one kind differ too. Prints tokens
per second with the adapter, with the adapter switched off, of both untouched engines, and of stock vLLM; then the time
from the end of the optimizer's step to the first token by the new weights, beside the time to a first token without a
step. Two untouched engines show how far equal sides are from 1. Reports, and asserts nothing.

    benchmarks/lab_engine.py --pairs 3 --starts 2
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.paired import ratio_line, run_pairs, say, verdict, whole  # noqa: E402

OPTIONS: dict[str, Any] = {
    "max_model_len": 256,
    "max_num_seqs": 32,
    "kv_cache_memory_bytes": 2**28,
    "dtype": "float32",
    "enforce_eager": True,
}
VARIABLES = {
    "PYTHONPATH": str(ROOT),
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
}
PROMPT = list(range(5, 37))
KINDS = ("shared", "untouched", "again", "stock")
# Each pair: its line's name, its two sides as the process and what it is asked, and the unit.
PAIRS = [
    ("adapter to untouched", ("shared adapter", "untouched base"), " tokens/s"),
    ("untouched to itself", ("untouched base", "again base"), " tokens/s"),
    ("none to untouched", ("shared base", "untouched base"), " tokens/s"),
    ("adapter against none", ("shared adapter", "shared base"), " tokens/s"),
    ("none against packed", ("shared base", "stock base"), " tokens/s"),
    ("a step, then one token", ("shared step", "shared first"), " ms"),
]
# For some of them: what the median must be, and what it is the median of.
GOALS: dict[str, tuple[str, float, str, Callable[[float, float], float]]] = {
    "adapter to untouched": ("at least", 0.98, "", operator.truediv),
    "a step, then one token": ("at most", 20, " ms", lambda step, _: step),
}


def main() -> None:
    """Read the command line, start the processes and print what they measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--pairs", type=whole(1), default=3, help="pairs of each kind and start (default %(default)s)")
    add("--starts", type=whole(1), default=2, help="how often each process is started (default %(default)s)")
    add("--sequences", type=whole(1), default=8, help="prompts that are answered at once (default %(default)s)")
    add("--tokens", type=whole(1), default=128, help="tokens of each answer (default %(default)s)")
    add("--hidden", type=whole(128), default=1024, help="width of the model, a multiple of 128 (default %(default)s)")
    add("--serve", nargs=2, metavar=("KIND", "MODEL"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(*args.serve)
        return
    say("finds the environment of the lab image, or makes it")
    found = subprocess.run(
        [ROOT / "images/lab/venv", "--with-runner"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    python = Path(found.strip()) / "bin" / "python"
    with tempfile.TemporaryDirectory(prefix="stoker-benchmark-") as scratch:
        model = Path(scratch) / "model"
        write = f"from runner.tests.lab.engine import tiny; from pathlib import Path; tiny.write(Path({str(model)!r}), "
        size = f"'llama', hidden_size={args.hidden}, intermediate_size={3 * args.hidden}, num_hidden_layers=4, "
        heads = f"num_attention_heads={args.hidden // 64}, num_key_value_heads={args.hidden // 128}, head_dim=64)"
        subprocess.run([python, "-c", write + size + heads], check=True, env={**os.environ, **VARIABLES})
        pairs: dict[str, list[tuple[float, float]]] = {}
        for number in range(args.starts):
            say(f"start {number + 1} of {args.starts}: starts the engines")
            with ExitStack() as stack:
                asked = {kind: stack.enter_context(worker(python, kind, model)) for kind in ordered(number)}
                for what, measured in measure(asked, args.pairs, args.sequences, args.tokens):
                    pairs.setdefault(what, []).extend(measured)
    of_each = f"{args.starts} starts, {args.pairs} pairs of each"
    print(f"{of_each}, {args.sequences} answers of {args.tokens} tokens, width {args.hidden}")
    for line in lines(pairs):
        print(line)


def ordered(number: int) -> Sequence[str]:
    """Return the kinds of processes in the order of a start: every other one begins with the last."""
    return KINDS[::-1] if number % 2 else KINDS


def measure(
    workers: dict[str, Any], pairs: int, sequences: int, tokens: int
) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Ask both sides of each kind of pair in turn, and yield each kind's name with what was measured.

    Args:
        workers: the processes by name.
        pairs: pairs of each kind.
        sequences: prompts that are answered at once.
        tokens: tokens of each answer.
    """

    def run(side: str, _: int) -> float:
        name, what = side.split()
        workers[name].stdin.write(f"{json.dumps([what, sequences, tokens])}\n")
        workers[name].stdin.flush()
        return float(workers[name].stdout.readline())

    for what, sides, _ in PAIRS:
        for side in sides:
            run(side, -1)  # the first time is not like the others
        yield what, list(run_pairs(pairs, sides, run))


def lines(measured: Mapping[str, Sequence[tuple[float, float]]]) -> Iterator[str]:
    """Yield a line for each kind of pair.

    Args:
        measured: the pairs of all starts, by the names of their kinds.
    """
    for what, sides, unit in PAIRS:
        line = ratio_line(what, sides, measured[what], unit)
        if what in GOALS:
            goal, bound, its, value = GOALS[what]
            line += verdict(goal, bound, [value(one, other) for one, other in measured[what]], its)
        yield line


@contextmanager
def worker(python: Path, kind: str, model: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that measures on request, and end it."""
    process = subprocess.Popen(
        [python, __file__, "--serve", kind, model],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **VARIABLES},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit(f"the {kind} engine did not start: see above")
        yield process
    finally:
        process.kill()
        process.wait()


def serve(kind: str, model: str) -> None:
    """Measure whatever a line of standard input asks for, in the environment of the lab image."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM logs to standard output
    engine: Any = {"shared": _Shared, "stock": _Stock}.get(kind, _Untouched)(model)
    print("ready", file=answers)
    for line in sys.stdin:
        what, sequences, tokens = json.loads(line)
        print(engine.measure(what, sequences, tokens), file=answers)


class _Stock:
    """VLLM as it is.

    Args:
        model: the model's folder.
        more: arguments of vLLM.
    """

    def __init__(self, model: str, **more: Any) -> None:
        from vllm import LLM

        self._llm = LLM(model=model, **OPTIONS, **more)

    def measure(self, what: str, sequences: int, tokens: int) -> float:
        """Return the tokens per second of answers."""
        return _rate(self._llm, sequences, tokens)


class _Untouched(_Stock):
    """The engine that trains and serves, with all that it asks of vLLM, before anything is put into its layers.

    Args:
        model: the model's folder.
    """

    def __init__(self, model: str) -> None:
        from stoker.lab.engine.loader import LOAD_FORMAT

        super().__init__(model, load_format=LOAD_FORMAT, logprobs_mode="processed_logprobs")


class _Shared:
    """The engine that trains and serves.

    Args:
        model: the model's folder.
    """

    def __init__(self, model: str) -> None:
        from stoker.lab.config import LoRATrainConfig
        from stoker.lab.engine.engine import TrainableEngine

        own = {name: value for name, value in OPTIONS.items() if name != "enforce_eager"}
        self._engine = TrainableEngine(model, LoRATrainConfig(), **own)
        self._llm = self._engine.llm

    def measure(self, what: str, sequences: int, tokens: int) -> float:
        """Return tokens per second, or the milliseconds to a first token."""
        if what == "base":
            with self._engine.injector.disabled():
                return _rate(self._llm, sequences, tokens)
        if what == "adapter":
            return _rate(self._llm, sequences, tokens)
        if what == "first":
            return to_first_token(self._engine)
        import torch

        ids = torch.tensor([PROMPT])
        return to_first_token(self._engine, {"input_ids": ids, "labels": ids})


def to_first_token(engine: Any, batch: Any = None) -> float:
    """Return the milliseconds to a first token.

    Args:
        engine: a `TrainableEngine`.
        batch: trained on before; time counts from the end of the optimizer's step, as what the engine does after it
            is a part of the wait.
    """
    ends = [time.perf_counter()]
    if batch is not None:
        hook = engine.optimizer.register_step_post_hook(lambda *_: ends.append(time.perf_counter()))
        engine.train_step(batch)
        hook.remove()
    engine.generate([PROMPT], max_tokens=1)
    return 1000 * (time.perf_counter() - ends[-1])


def _rate(llm: Any, sequences: int, tokens: int) -> float:
    from vllm import SamplingParams

    llm.reset_prefix_cache()
    parameters = SamplingParams(max_tokens=tokens, ignore_eos=True)
    started = time.perf_counter()
    llm.generate([{"prompt_token_ids": PROMPT}] * sequences, parameters, use_tqdm=False)
    return sequences * tokens / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
