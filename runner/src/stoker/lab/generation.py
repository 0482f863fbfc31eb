"""vLLM in this process, and an identity for every adapter: vLLM keeps what it once loaded under a name and a number."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.contract.manifest import ADAPTER_WEIGHTS
from stoker.lab.config import LoRATrainConfig
from stoker.lab.errors import LabError, refuse
from stoker.lab.machine import check_adapter, dtype_of, model_facts, need_vllm, quantization_problems
from stoker.serve.adapters import check

Prompt = str | Sequence[int]

# Set before vLLM is imported, unless the user set them: the engine shares this process with the trainer.
_PROCESSES = "VLLM_ENABLE_V1_MULTIPROCESSING"
_EVERYWHERE = {_PROCESSES: "0", "VLLM_NO_USAGE_STATS": "1"}
# A CPU's engine would pin this process to cores of its choice, and compile for minutes.
_ON_CPUS = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"}
# On a GPU the trainer has its own copy of the model; vLLM would take almost all memory.
_GPU_SHARE = 0.4
# As long as a model takes, or less if the memory for the cache is not enough: without it, vLLM would not start then.
AS_MEMORY_ALLOWS = -1
_SAID = 600
# What vLLM begins its advice with.
_ADVICE = re.compile(r" (?:Try increasing|Decrease|Reduce|Replace) ")
# Arguments of vLLM that share no weights with a model in this process.
_ALONE = ("load_format", "quantization", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer.

    Attributes:
        prompt: what was asked.
        text: the answer.
        token_ids: its tokens.
        logprobs: the log-probability of each token, in nats; None unless `logprobs` was asked for.
        finish: why it ended: `stop`, `length`.
    """

    prompt: Prompt
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish: str | None

    def __str__(self) -> str:
        """Return the text."""
        return self.text


class AdapterNames:
    """Gives each state of an adapter's files a name and a number that no other state ever had."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int, int], int] = {}

    def of(self, folder: Path) -> tuple[str, int]:
        """Return the name and the number of the adapter that now lies in a folder.

        Raises:
            LabError: there is none.
        """
        weights = folder / ADAPTER_WEIGHTS
        try:
            state = weights.stat()
        except OSError as error:
            raise LabError(
                f"{folder} has no adapter: {ADAPTER_WEIGHTS} is missing; write what save_lora wrote"
            ) from error
        key = (str(folder.resolve()), state.st_ino, state.st_mtime_ns, state.st_size)
        number = self._known.setdefault(key, len(self._known) + 1)
        return f"lora-{number}", number


class AdapterEngine:
    """A vLLM engine with room for one adapter at a time, started when it is first asked.

    Args:
        model: the model's folder or Hub id.
        config: the adapters' rank and type.
        options: further arguments of `vllm.LLM`, which come before those chosen here.
        shares: keeps its weights as they are, so that a model can train on them.

    Raises:
        LabError: an option, or how the model is quantized, does not go with weights that are shared.
    """

    def __init__(
        self, model: str, config: LoRATrainConfig, options: Mapping[str, Any] | None = None, *, shares: bool = False
    ) -> None:
        self._model, self._config, self._options, self._shares = model, config, dict(options or {}), shares
        if shares:
            refuse(
                f"Policy: share_weights does not go with engine={{{name!r}: …}}: leave one of them out"
                for name in _ALONE
                if name in self._options
            )
            _refuse_quantized(model, model_facts(model).quantization)
        self._names = AdapterNames()
        # Numbers of the adapters that fit the model, as its own files told.
        self._fitting: set[int] = set()
        self._llm: Any = None

    def parameters(self, prompts: Sequence[Prompt], sampling: Mapping[str, Any]) -> tuple[list[Prompt], Any]:
        """Return prompts as a list, and how vLLM samples; nothing is loaded but vLLM's own code.

        Args:
            prompts: as of `outputs`.
            sampling: as of `outputs`.

        Raises:
            LabError: vLLM is missing, has no room for the rank, or refuses an argument, or the prompts are wrong.
        """
        engine_rank(self._config)
        need_vllm()
        _set_variables()
        from vllm import SamplingParams
        from vllm.exceptions import VLLMClientError

        asked = checked_prompts(prompts)
        try:
            seeds = _seeds(sampling, len(asked))
            if seeds is None:
                return asked, SamplingParams(**sampling)
            return asked, [SamplingParams(**{**sampling, "seed": seed}) for seed in seeds]
        except (TypeError, ValueError, VLLMClientError) as error:
            raise LabError(f"generate: {error}; see vLLM's SamplingParams for what there is") from error

    def outputs(self, prompts: Sequence[Prompt], adapter: Path | None, sampling: Mapping[str, Any]) -> list[Any]:
        """Return vLLM's own outputs.

        Args:
            prompts: texts, or lists of token ids.
            adapter: the adapter's folder; None for the base model.
            sampling: arguments of `vllm.SamplingParams`; `seed` may be a list with one for each prompt.

        Raises:
            LabError: vLLM is missing, or refuses an argument or a prompt, or the adapter is of another model.
        """
        asked, parameters = self.parameters(prompts, sampling)
        from vllm.exceptions import VLLMClientError

        if adapter is not None and self._llm is None:
            self._request(adapter)  # what its files tell is told before anything is loaded
        llm = self._started()
        request = None if adapter is None else self._request(adapter)
        try:
            with taken_back(llm):
                found: list[Any] = llm.generate(
                    [text if isinstance(text, str) else {"prompt_token_ids": list(text)} for text in asked],
                    sampling_params=parameters, lora_request=request, use_tqdm=False,
                )  # fmt: skip
        except (ValueError, VLLMClientError) as error:  # a prompt is too long, for example
            raise vllm_refusal(error, self._options) from error
        return found

    def model_of_views(self) -> Any:
        """Return a model of transformers whose weights are the engine's, which is started.

        Raises:
            LabError: vLLM is missing, the model is quantized, or vLLM has no tensor for one of the model's.
        """
        need_vllm()
        _set_variables()
        from transformers import AutoConfig, GenerationConfig

        from stoker.lab.engine.views import model_of_views

        described = AutoConfig.from_pretrained(self._model)  # a model of the Hub is known from now on
        _refuse_quantized(self._model, getattr(described, "quantization_config", None))
        llm = self._started()
        (engine_model,) = llm.apply_model(lambda model: model)
        model = model_of_views(engine_model, described, llm.model_config.dtype)
        with suppress(OSError):  # a model need not have this file
            model.generation_config = GenerationConfig.from_pretrained(self._model)
        return model

    def close(self) -> None:
        """End the engine and give its memory back."""
        if self._llm is not None:
            llm, self._llm = self._llm, None
            shutdown = getattr(llm.llm_engine, "shutdown", None)
            del llm
            if shutdown is not None:
                shutdown()

    def _request(self, adapter: Path) -> Any:
        """Return the request of an adapter as it is now.

        vLLM copies the matrices of one for a smaller model into a part of their room, and says nothing.

        Raises:
            LabError: it is not there, or is for another model.
        """
        from vllm.lora.request import LoRARequest

        name, number = self._names.of(adapter)
        if number not in self._fitting:
            check_adapter(adapter, model_facts(self._model), self._config.rank)
            if self._llm is not None:
                self._fitting.add(number)
        return LoRARequest(name, number, str(adapter))

    def _started(self) -> Any:
        if self._llm is None:
            import torch
            from vllm import LLM

            gpu = torch.cuda.is_available()
            chosen = {
                "model": self._model,
                "enable_lora": True,
                "max_lora_rank": engine_rank(self._config),
                "max_loras": 1,
                "dtype": dtype_of(self._config),
                "max_model_len": AS_MEMORY_ALLOWS,
                "seed": self._config.seed,
                **({"gpu_memory_utilization": _GPU_SHARE} if gpu else {"enforce_eager": True}),
            }
            if self._shares:
                from stoker.lab.engine.loader import LOAD_FORMAT

                os.environ[_PROCESSES] = "0"  # memory is shared in one process only
                chosen["load_format"] = LOAD_FORMAT
            with starting(self._model, self._options), same_random_numbers():
                self._llm = LLM(**{**chosen, **self._options})
        return self._llm


def engine_rank(config: LoRATrainConfig) -> int:
    """Return the room for ranks that an engine needs.

    Raises:
        LabError: vLLM has no room as large.
    """
    found = check.snapped(config.rank)
    if found is None:
        raise LabError(
            f"LoRATrainConfig: rank is {config.rank}, but vLLM serves ranks up to {check.ALLOWED_RANKS[-1]}: write less"
        )
    return found


def checked_prompts(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return prompts as a list.

    Raises:
        LabError: they are not a list, there are none, or one is empty.
    """
    if isinstance(prompts, str):
        raise LabError(f"generate: the prompts are one text: write a list, [{prompts[:20]!r}]")
    listed = list(prompts)
    if not listed:
        raise LabError("generate: there are no prompts: give one or more")
    empty = [str(number) for number, prompt in enumerate(listed) if len(prompt) == 0]
    if empty:
        raise LabError(f"generate: prompts {', '.join(empty)} are empty: write a text or token ids")
    return listed


def completions(outputs: Sequence[Any], prompts: Sequence[Prompt]) -> list[Completion]:
    """Return vLLM's outputs as answers: all of the first prompt, then all of the next."""
    return [
        Completion(
            prompt, answer.text, tuple(answer.token_ids),
            None if answer.logprobs is None
            else tuple(at[token].logprob for at, token in zip(answer.logprobs, answer.token_ids, strict=True)),
            answer.finish_reason,
        )
        for output, prompt in zip(outputs, prompts, strict=True)
        for answer in output.outputs
    ]  # fmt: skip


def vllm_refusal(error: Exception, options: Mapping[str, Any]) -> LabError:
    """Return what vLLM refuses, with what to do.

    Args:
        error: what it raised.
        options: its arguments that the user chose.
    """
    told, fix = str(error).rstrip(". "), "change what it names"
    if "maximum context length" in told or "maximum model length" in told:
        # Without the option, the engine takes what the model does, or what its memory has room for.
        more = "max_model_len" if "max_model_len" in options else "memory, if the model takes longer ones"
        fix = f"shorten the prompt, or raise the engine's {more}"
    elif "logprobs" in told and "max allowed" in told:
        fix = "ask for fewer, or raise the engine's max_logprobs"
    return LabError(f"generate: vLLM refuses: {told}: {fix}")


@contextmanager
def taken_back(llm: Any) -> Iterator[None]:
    """Take requests back whose call does not come to its end: an engine would answer them in the next one.

    Args:
        llm: the `vllm.LLM` that is asked.
    """
    try:
        yield
    except BaseException:
        engine = llm.llm_engine
        engine.abort_request([*engine.output_processor.request_states], internal=True)
        raise


@contextmanager
def starting(model: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Say of an engine that does not start what to write instead.

    Args:
        model: its model's folder or Hub id.
        options: its arguments that the user chose.

    Raises:
        LabError: it does not start.
    """
    try:
        yield
    except (TypeError, ValueError, OSError) as error:
        said = " ".join(str(error).split())
        fix = _memory_fix(said)
        if fix is None:
            fix = "check the model's name" + (f", and the engine's arguments ({', '.join(options)})" if options else "")
        else:  # vLLM's own advice names flags of its server
            said = _ADVICE.split(said)[0]
        raise LabError(f"vLLM does not start with {model} ({said[:_SAID].rstrip('. ')}): {fix}") from error


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Keep the random numbers of this process as they are: vLLM seeds all of them when it starts."""
    import numpy
    import torch

    # A process that has not used CUDA yet has no numbers there but its seed, and vLLM may still fork it.
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    python, arrays = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            yield
        if not devices and torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(torch.initial_seed())
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)


def _memory_fix(said: str) -> str | None:
    """Return what to change if memory is what an engine lacks; None if it is something else."""
    if "Free memory" in said or "memory on node" in said:
        return "lower the engine's gpu_memory_utilization or kv_cache_memory_bytes, or end what else takes the memory"
    if "KV cache" in said or "cache blocks" in said or "auto-fit" in said:
        return "lower the engine's max_model_len, or raise its gpu_memory_utilization or kv_cache_memory_bytes"
    return None


def _refuse_quantized(model: str, quantization: object) -> None:
    refuse(f"Policy: with share_weights, {line}" for line in quantization_problems(model, quantization))


def _seeds(sampling: Mapping[str, Any], count: int) -> list[int] | None:
    """Return the seed of each prompt, if each has its own.

    Raises:
        LabError: there are not as many seeds as prompts.
    """
    seeds = sampling.get("seed")
    if not isinstance(seeds, list):
        return None
    if len(seeds) != count:
        raise LabError(f"generate: there are {count} prompts and {len(seeds)} seeds: give one seed for each prompt")
    return seeds


def _set_variables() -> None:
    import torch

    for name, value in {**_EVERYWHERE, **({} if torch.cuda.is_available() else _ON_CPUS)}.items():
        os.environ.setdefault(name, value)
