"""How well a result predicts rows that it was not trained on. TRL reads the rows as it did in training."""

from __future__ import annotations

import math
import os
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.variables import key_in
from stoker.results.folder import Result
from stoker.results.load import device
from stoker.results.packages import needing
from stoker.serve.vllm import Server, ServerError

# Settings of the run that say which tokens count.
_AS_TRAINED = ("max_length", "completion_only_loss", "assistant_only_loss", "dataset_text_field", "eos_token")
_FORMS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
# What vLLM answers to a text that is longer than its context.
_REFUSED = 400
_COLUMNS = "text; messages; or prompt and completion"


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows are held out.

    Attributes:
        data: a file, a folder, or a name on the Hub.
        split: the split.
        limit: the first so many; None for all.
    """

    data: str
    split: str
    limit: int | None = None


def read_rows(rows: Rows) -> Any:
    """Return rows as a data set.

    Raises:
        RunError: there are none (65, 66), or a package is missing (78).
    """
    with needing("local"):
        import datasets

        datasets.disable_progress_bars()
    path = Path(rows.data)
    if path.is_file() and path.suffix not in _FORMS:
        raise RunError(ExitCode.USAGE, f"--data {path} must end in {', '.join(_FORMS)}")
    try:
        if path.is_file():
            found = datasets.load_dataset(_FORMS[path.suffix], data_files={rows.split: str(path)}, split=rows.split)
        else:
            found = datasets.load_dataset(rows.data, split=rows.split)
    except (FileNotFoundError, ValueError, OSError, datasets.exceptions.DatasetGenerationError) as error:
        raise RunError(
            ExitCode.NO_INPUT,
            f"--data {rows.data} with --split {rows.split} cannot be read ({' '.join(str(error).split())[:300]}): name "
            "a file, a folder, or a data set on the Hub, and one of its splits",
        ) from error
    if rows.limit is not None:
        found = found.select(range(min(rows.limit, len(found))))
    if not len(found):
        raise RunError(ExitCode.BAD_DATA, f"--data {rows.data} has no rows in the split {rows.split}: choose another")
    return found


def held_out(result: Result, model: Any, tokenizer: Any, rows: Any, batch_size: int) -> dict[str, Any]:
    """Return loss, perplexity and token accuracy of rows, per token that training would learn.

    Args:
        result: the result; its settings say how rows are cut and which tokens count.
        model: the model.
        tokenizer: its tokenizer.
        rows: a data set.
        batch_size: rows at a time.

    Raises:
        RunError: the rows have other columns, or no token that counts (65).
    """
    with needing("local"):
        import torch
        from torch.utils.data import DataLoader
    with _reader(result, model, tokenizer, rows) as trainer:
        model.eval()
        # In float64, so that the order of the sum does not matter.
        sums = torch.zeros(3, dtype=torch.float64)
        loader = DataLoader(trainer.train_dataset, batch_size=batch_size, collate_fn=trainer.data_collator)
        with torch.no_grad():
            for batch in loader:
                sums += _sums(model, {name: value.to(model.device) for name, value in batch.items()})
    return _numbers(len(rows), *sums.tolist())


def held_out_on_server(result: Result, tokenizer: Any, url: str, model: str, rows: Any) -> dict[str, Any]:
    """Return the same of a vLLM server that has the result; its key is in OPENAI_API_KEY.

    Args:
        result: the result; its settings say how rows are cut and which tokens count.
        tokenizer: its tokenizer.
        url: the server's address, without `/v1`.
        model: what it calls the model or adapter.
        rows: a data set.

    Raises:
        RunError: as for `held_out`; a row is too long for the server (78), or it does not answer as vLLM does (69).
    """
    with needing("local"):
        import transformers
    # TRL's trainer reads the rows, and needs some model for it: the server has the one that counts.
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    stand_in = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(tokenizer), **sizes))
    key = key_in("OPENAI_API_KEY", os.environ)
    server = Server(url, timeout=300.0, key=key, proxies=urllib.request.getproxies())
    loss, right, count = 0.0, 0, 0
    with _reader(result, stand_in, tokenizer, rows) as trainer:
        batches = (trainer.data_collator([row]) for row in trainer.train_dataset)
        texts = [(batch["input_ids"][0].tolist(), batch["labels"][0].tolist()) for batch in batches]
    longest = max((len(tokens) for tokens, _ in texts), default=0)
    for tokens, labels in texts:
        counts = [place for place, label in enumerate(labels) if place and label != -100]
        for probability, rank in _scores(server, url, model, tokens, counts, longest):
            loss, right, count = loss - probability, right + (rank == 1), count + 1
    return _numbers(len(rows), loss, right, count)


def _scores(
    server: Server, url: str, model: str, tokens: Sequence[int], places: Sequence[int], longest: int
) -> Iterator[tuple[float, int]]:
    """Yield the log-probability and the rank of tokens of a text at some places, by the server."""
    if not places:
        return
    asked = {"model": model, "prompt": tokens, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    try:
        entries = server.complete(asked)["choices"][0]["prompt_logprobs"]
        for place in places:
            found = entries[place][str(tokens[place])]
            yield float(found["logprob"]), int(found["rank"])
    except (ServerError, KeyError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, ServerError) and error.status == _REFUSED:
            # To tell of a text's tokens, vLLM must also have room for the one that it writes.
            raise RunError(
                ExitCode.CONFIG,
                f"{url} refuses a row of {len(tokens)} tokens as {model} ({' '.join(str(error).split())[:200]}): the "
                f"longest row needs a context length of {longest + 1}, so serve {model} with --max-model-len "
                f"{longest + 1} or more, use shorter rows, or drop --server and --model to load the result itself",
            ) from error
        raise RunError(
            ExitCode.UNAVAILABLE,
            f"{url} does not give the log-probabilities of a text as {model}, as vLLM does "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]}): check --server and --model; a key "
            "belongs into OPENAI_API_KEY",
        ) from error


@contextmanager
def _reader(result: Result, model: Any, tokenizer: Any, rows: Any) -> Iterator[Any]:
    """Return a trainer that has read the rows as in training.

    Raises:
        RunError: the rows have other columns (65).
    """
    with needing("local"):
        from jinja2 import TemplateError
        from transformers import HfArgumentParser
        from trl import SFTConfig, SFTTrainer
    told = result.manifest.get("settings")
    told = told if isinstance(told, dict) else {}
    words = [word for name in _AS_TRAINED if isinstance(told.get(name), str) for word in (f"--{name}", told[name])]
    fixed = {"bf16": "false", "gradient_checkpointing": "false", "report_to": "none", "disable_tqdm": "true"}
    with tempfile.TemporaryDirectory() as scratch:
        fixed |= {"output_dir": scratch, "use_cpu": str(device() == "cpu").lower()}
        words += [word for name, value in fixed.items() for word in (f"--{name}", value)]
        (config,) = HfArgumentParser(SFTConfig).parse_args_into_dataclasses(words)
        try:
            trainer = SFTTrainer(model, config, train_dataset=rows, processing_class=tokenizer)
        except TemplateError as error:
            raise RunError(
                ExitCode.BAD_DATA,
                f"the model's chat template refuses rows ({error}): write messages that it takes, such as without a "
                "system message",
            ) from error
        except (KeyError, ValueError, TypeError) as error:
            raise RunError(
                ExitCode.BAD_DATA,
                f"the rows have the columns {', '.join(rows.column_names)} and cannot be read as in training "
                f"({type(error).__name__}: {' '.join(str(error).split())[:200]}): they need {_COLUMNS}",
            ) from error
        yield trainer


def _numbers(rows: int, loss: float, right: float, count: float) -> dict[str, Any]:
    """Return what is measured of rows, from sums over the tokens that count.

    Raises:
        RunError: there is no such token (65).
    """
    if not count:
        raise RunError(
            ExitCode.BAD_DATA, "no row has a token that counts after it was cut as in training: use shorter rows"
        )
    return {
        "rows": rows,
        "tokens": int(count),
        "loss": loss / count,
        "perplexity": perplexity(loss / count),
        "token_accuracy": right / count,
    }


def perplexity(loss: float) -> float | None:
    """Return the perplexity of a loss; None if it is too large for a number."""
    return math.exp(loss) if loss < 700 else None


def _sums(model: Any, batch: Mapping[str, Any]) -> Any:
    import torch

    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits = model(**inputs).logits[:, :-1]
    labels = batch["labels"][:, 1:]
    counts = labels != -100
    scores, wanted = logits[counts].float(), labels[counts]
    losses = torch.nn.functional.cross_entropy(scores, wanted, reduction="none")
    right = scores.argmax(-1) == wanted
    return torch.stack([losses.double().sum(), right.double().sum(), counts.double().sum()]).cpu()
