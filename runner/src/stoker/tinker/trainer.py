"""Several LoRA models on one base model. Whoever uses it does one thing at a time, in one thread."""

from __future__ import annotations

import json
import math
import pickle
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import AutoModelForCausalLM

from stoker.contract.manifest import ADAPTER_WEIGHTS
from stoker.tinker.lora import ABOUT, Adam, Shape, read_about
from stoker.tinker.messages import Datum, ForwardBackward
from stoker.tinker.refusals import RefusedError

_OPTIMIZER = "optimizer.pt"
# The client's defaults (tinker 0.38) for a ratio that PPO clips.
_CLIP_LOW, _CLIP_HIGH = 0.8, 1.2


@dataclass(slots=True)
class _Lora:
    """A LoRA model.

    Attributes:
        name: PEFT's.
        shape: what it is.
        parameters: its own.
        optimizer: with the state of its steps; None before the first one.
        pending: gradients have been added since the last step.
        broken: why the gradients since the last step are not whole.
    """

    name: str
    shape: Shape
    parameters: list[torch.nn.Parameter]
    optimizer: torch.optim.AdamW | None = None
    pending: bool = False
    broken: str = ""


class Trainer:
    """A base model and its LoRA models.

    Args:
        model: the base model's folder or Hub id.
        name: what clients call it; by default as `model` is written.
        dtype: of its weights, such as `bfloat16`; `auto` takes what is stored.
        batch_tokens: padded tokens that are computed at once.
        most: LoRA models at the same time.
        largest_rank: of a LoRA model, such as the samplers' `--max-lora-rank`.
    """

    def __init__(
        self,
        model: str,
        *,
        name: str = "",
        dtype: str = "auto",
        batch_tokens: int = 8192,
        most: int = 16,
        largest_rank: int = 64,
    ) -> None:
        self.model, self._path = name or model, model
        self._batch_tokens, self._most, self._largest_rank = batch_tokens, most, largest_rank
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        base = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).to(self._device)
        # No dropout and no random numbers: a client's losses do not depend on what others do.
        base.eval()
        base.requires_grad_(False)
        self._base = base
        self._net: Any = None  # the base model with its adapters, from the first of them on
        self._attention, self._feed_forward = _linear_names(base)
        self._models: dict[str, _Lora] = {}
        self._made = 0
        config = base.config.get_text_config()
        self.vocabulary: int = base.get_input_embeddings().num_embeddings
        self.context: int = config.max_position_embeddings

    @property
    def full(self) -> bool:
        """There is no room for another model."""
        return len(self._models) >= self._most

    def models(self) -> list[str]:
        """Return the models, the oldest first."""
        return [*self._models]

    def shape(self, model_id: str) -> Shape:
        """Return what a model is.

        Raises:
            RefusedError: there is none of that name.
        """
        return self._of(model_id).shape

    def refuse(self, shape: Shape) -> None:
        """Refuse what cannot be made, whatever else is here.

        Raises:
            RefusedError: it has no layers, too large a rank, or no scale.
        """
        if shape.alpha < 1:
            raise RefusedError(f"alpha is {shape.alpha}: write a whole number, 1 or more, or leave it out")
        if not (shape.train_attn or shape.train_mlp):
            raise RefusedError("the model has nothing to train: set train_attn or train_mlp")
        if not 1 <= shape.rank <= self._largest_rank:
            raise RefusedError(
                f"rank {shape.rank} is not from 1 to {self._largest_rank}: choose one, or start the endpoint with a "
                "larger --max_rank"
            )

    def refuse_more(self) -> None:
        """Refuse another model if there is no room.

        Raises:
            RefusedError: there are too many models.
        """
        if self.full:
            raise RefusedError(
                f"{self._most} models are here already: unload one, or start the endpoint with a larger --max_models"
            )

    def create(self, model_id: str, shape: Shape) -> None:
        """Make a LoRA model that does nothing yet.

        Raises:
            RefusedError: it has no layers or too large a rank, or there are too many models.
        """
        self.refuse(shape)
        self.refuse_more()
        targets = self._attention * shape.train_attn + self._feed_forward * shape.train_mlp
        self._made += 1
        name = f"m{self._made}"
        config = LoraConfig(r=shape.rank, lora_alpha=shape.alpha, lora_dropout=0.0, target_modules=targets)
        config.base_model_name_or_path = self._path
        with torch.random.fork_rng():
            torch.manual_seed(shape.seed)
            if self._net is None:
                self._net = get_peft_model(self._base, config, adapter_name=name)
            else:
                self._net.add_adapter(name, config)
        self._net.eval()
        self._net.set_adapter(name)
        own = [value for value in self._net.parameters() if value.requires_grad]
        self._models[model_id] = _Lora(name, shape, own)

    def forward_backward(self, request: ForwardBackward) -> tuple[list[array[float]], float]:
        """Return the log-probabilities of each row's targets and the summed loss; add the loss' gradients.

        Raises:
            RefusedError: there is no such model.
        """
        lora = self._chosen(request.model_id)
        found: list[array[float]] = []
        total = 0.0
        try:
            for batch in _batches(request.data, self._batch_tokens):
                with torch.set_grad_enabled(not request.forward_only):
                    logprobs, mask, columns = self._logprobs(batch)
                    loss = _loss(request.loss, request.config, logprobs, columns, mask)
                if not request.forward_only:
                    loss.backward()
                total += float(loss.detach())
                found += [
                    array("f", row[: len(datum.targets)])
                    for row, datum in zip(logprobs.detach().cpu().tolist(), batch, strict=True)
                ]
        except BaseException as error:
            if not request.forward_only:
                self.discard(request.model_id, f"{type(error).__name__}: {error}")
            raise
        lora.pending |= not request.forward_only
        return found, total

    def discard(self, model_id: str, why: str) -> None:
        """Forget a model's gradients, and refuse its next step: a part of the batch is missing.

        Args:
            model_id: the model; nothing is done if it is not here any more.
            why: what became of that part.
        """
        if model_id in self._models:
            lora = self._models[model_id]
            self._forget(lora)
            lora.broken = why

    def optim_step(self, model_id: str, adam: Adam) -> float:
        """Make a step along the gradients that were added, forget them, and return their norm.

        Raises:
            RefusedError: there is no such model, or it has no gradients.
        """
        lora = self._of(model_id)
        why, pending = lora.broken, lora.pending
        lora.broken = ""
        if why:
            self._forget(lora)
            raise RefusedError(f"nothing was changed, because a forward_backward before it failed ({why}): repeat both")
        if not pending:
            raise RefusedError("there are no gradients: call forward_backward before optim_step")
        norm = float(torch.nn.utils.get_total_norm([one.grad for one in lora.parameters if one.grad is not None]))
        if not math.isfinite(norm):
            self._forget(lora)
            raise RefusedError("nothing was changed, because the gradient is not finite: lower the learning rate")
        if adam.grad_clip_norm > 0:
            torch.nn.utils.clip_grad_norm_(lora.parameters, adam.grad_clip_norm)
        if lora.optimizer is None:
            lora.optimizer = torch.optim.AdamW(lora.parameters)
        settings = {"lr": adam.learning_rate, "betas": (adam.beta1, adam.beta2), "eps": adam.eps}
        for group in lora.optimizer.param_groups:
            group.update(settings, weight_decay=adam.weight_decay)
        lora.optimizer.step()
        self._forget(lora)
        return norm

    def write_adapter(self, model_id: str, folder: Path) -> None:
        """Write a model into a folder as PEFT does.

        Raises:
            RefusedError: there is no such model.
        """
        lora = self._of(model_id)
        state = get_peft_model_state_dict(self._net, adapter_name=lora.name, save_embedding_layers=False)
        save_file({name: one.detach().cpu().contiguous() for name, one in state.items()}, folder / ADAPTER_WEIGHTS)
        self._net.peft_config[lora.name].save_pretrained(str(folder))
        (folder / ABOUT).write_text(json.dumps({"base_model": self.model, **asdict(lora.shape)}))

    def write_checkpoint(self, model_id: str, folder: Path) -> None:
        """Write a model and the state of its optimizer.

        Raises:
            RefusedError: there is no such model.
        """
        self.write_adapter(model_id, folder)
        lora = self._of(model_id)
        if lora.optimizer is not None:
            torch.save(lora.optimizer.state_dict(), folder / _OPTIMIZER)

    def load(self, model_id: str, folder: Path, *, optimizer: bool) -> None:
        """Load a checkpoint into a model, which is made if it is not here.

        Args:
            model_id: the model.
            folder: what `write_checkpoint` wrote.
            optimizer: load its state too.

        Raises:
            RefusedError: the checkpoint is damaged, or of another base model or shape.
        """
        about = read_about(folder)
        if about.pop("base_model") != self.model:
            raise RefusedError(f"the checkpoint is of another base model: this endpoint has {self.model}")
        shape = Shape(**about)
        weights, state = _stored(folder, optimizer=optimizer)  # a damaged checkpoint leaves no model
        if model_id not in self._models:
            self.create(model_id, shape)
        lora = self._of(model_id)
        here = lora.shape
        if replace(shape, seed=here.seed) != here:
            raise RefusedError(
                f"the checkpoint has rank {shape.rank}, alpha {shape.alpha}, and other layers, rank or alpha than the "
                "model: make a new one"
            )
        set_peft_model_state_dict(self._net, weights, adapter_name=lora.name)
        self._forget(lora)
        lora.optimizer, lora.broken = None, ""
        if state is not None:
            lora.optimizer = torch.optim.AdamW(lora.parameters)
            lora.optimizer.load_state_dict(state)

    def unload(self, model_id: str) -> None:
        """Forget a model.

        Raises:
            RefusedError: there is no such model.
        """
        lora = self._of(model_id)
        self._net.delete_adapter(lora.name)
        del self._models[model_id]

    def _of(self, model_id: str) -> _Lora:
        if model_id not in self._models:
            raise RefusedError(
                f"the model {model_id!r} does not exist (it was unloaded, or the endpoint has started again): make a "
                "new one, or go on from a checkpoint with create_training_client_from_state_with_optimizer"
            )
        return self._models[model_id]

    def _chosen(self, model_id: str) -> _Lora:
        lora = self._of(model_id)
        self._net.set_adapter(lora.name)
        return lora

    def _forget(self, lora: _Lora) -> None:
        for parameter in lora.parameters:
            parameter.grad = None
        lora.pending = False

    def _logprobs(self, batch: Sequence[Datum]) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Return the targets' log-probabilities, which of them there are, and the rows' columns."""
        lengths = torch.tensor([len(datum.tokens) for datum in batch])
        mask = (torch.arange(int(lengths.max())) < lengths[:, None]).to(self._device)
        tokens = self._padded([datum.tokens for datum in batch], torch.long)
        targets = self._padded([datum.targets for datum in batch], torch.long)
        logits = self._net(input_ids=tokens, attention_mask=mask.long(), use_cache=False).logits
        logprobs = -functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
        names = batch[0].columns
        columns = {name: self._padded([datum.columns[name] for datum in batch], torch.float32) for name in names}
        return logprobs.view(targets.shape), mask, columns

    def _padded(self, rows: Sequence[Sequence[float]], dtype: torch.dtype) -> torch.Tensor:
        made = [torch.tensor(row, dtype=dtype) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(made, batch_first=True).to(self._device)


def _stored(folder: Path, *, optimizer: bool) -> tuple[dict[str, torch.Tensor], dict[str, Any] | None]:
    """Return a checkpoint's weights, and its optimizer's state if that is asked for and there.

    Raises:
        RefusedError: they cannot be read.
    """
    try:
        weights = load_file(folder / ADAPTER_WEIGHTS)
        stored = optimizer and (folder / _OPTIMIZER).is_file()
        return weights, torch.load(folder / _OPTIMIZER, weights_only=True) if stored else None
    except (EOFError, OSError, RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
        raise RefusedError(f"the checkpoint {folder.name} is damaged ({error}): use another one") from error


def _loss(
    name: str,
    config: Mapping[str, float],
    logprobs: torch.Tensor,
    columns: Mapping[str, torch.Tensor],
    mask: torch.Tensor,
) -> torch.Tensor:
    """Return the sum over all targets, as Tinker defines each loss."""
    if name == "cross_entropy":
        each = -logprobs * columns["weights"] if "weights" in columns else -logprobs
    else:
        ratio, advantages = torch.exp(logprobs - columns["logprobs"]), columns["advantages"]
        each = -ratio * advantages
        if name == "ppo":
            low, high = config.get("clip_low_threshold", _CLIP_LOW), config.get("clip_high_threshold", _CLIP_HIGH)
            each = torch.maximum(each, -ratio.clamp(low, high) * advantages)
    # Not a product: what a pad has for a value may be infinite.
    return torch.where(mask, each, 0.0).sum()


def _batches(data: Sequence[Datum], most: int) -> Iterator[Sequence[Datum]]:
    """Yield neighbours with the same columns that fit, padded, into so many tokens; one row always fits."""
    batch: list[Datum] = []
    longest = 0
    for datum in data:
        length = max(longest, len(datum.tokens))
        if batch and (length * (len(batch) + 1) > most or datum.columns.keys() != batch[0].columns.keys()):
            yield batch
            batch, length = [], len(datum.tokens)
        batch.append(datum)
        longest = length
    if batch:
        yield batch


def _linear_names(model: torch.nn.Module) -> tuple[list[str], list[str]]:
    """Return the last names of the linear layers of attention, and of the others but for the output head."""
    head = model.get_output_embeddings()
    linear = ((name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.Linear))
    names = [name for name, module in linear if module is not head]
    attention = {name.rpartition(".")[2] for name in names if "attn" in name or "attention" in name}
    return sorted(attention), sorted({name.rpartition(".")[2] for name in names} - attention)
