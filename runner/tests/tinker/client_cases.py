"""The public client, unmodified: `python client_cases.py all|loops|restart|custom URL KEY MODEL` prints what it saw.

Runs in an environment with `tinker` and nothing of ours, and for `custom` with torch too; prints JSON. The loops are
those of tinker-cookbook in short: supervised training until rows are known, and reinforcement learning of one token.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tinker
from tinker import types

CLIENTS = 8
PROMPT = [3, 4, 5]
WANTED = 12


def row(tokens: list[int], columns: dict[str, list[float]]) -> types.Datum:
    """Return a row whose targets are its next tokens."""
    made = {
        name: types.TensorData(data=values, dtype="float32", shape=[len(values)]) for name, values in columns.items()
    }
    targets = types.TensorData(data=tokens[1:], dtype="int64", shape=[len(tokens) - 1])
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs={"target_tokens": targets, **made}
    )


def supervised(service: tinker.ServiceClient, model: str) -> dict[str, Any]:
    """Train on two rows, save, and go on from the checkpoint."""
    client = service.create_lora_training_client(base_model=model, rank=8, seed=1).result()
    data = [row([7, 8, 9, 10], {"weights": [1.0, 1.0, 1.0]}), row([9, 11, 13], {"weights": [0.0, 1.0]})]
    losses = []
    for _ in range(12):
        passed = client.forward_backward(data, "cross_entropy")
        stepped = client.optim_step(types.AdamParams(learning_rate=1e-2))
        losses.append(passed.result().metrics["loss:sum"])
        stepped.result()
    path = client.save_state("end").result().path
    forward = client.forward(data, "cross_entropy").result()
    again = service.create_training_client_from_state_with_optimizer(path).result()
    other = again.forward(data, "cross_entropy").result()
    return {
        "losses": losses,
        "path": path,
        "rank": client.get_info().lora_rank,
        "saved": forward.metrics["loss:sum"],
        "loaded": other.metrics["loss:sum"],
        "logprobs": [len(one["logprobs"].data) for one in forward.loss_fn_outputs],
    }


def reinforced(service: tinker.ServiceClient, model: str) -> dict[str, Any]:
    """Sample, reward one token, and learn from it."""
    client = service.create_lora_training_client(base_model=model, rank=8, seed=2).result()
    chances, gaps = [], []
    reference = row([*PROMPT, WANTED], {"weights": [0.0, 0.0, 1.0]})
    for step in range(6):
        sampler = client.save_weights_and_get_sampling_client().result()
        params = types.SamplingParams(max_tokens=1, temperature=1.0, seed=step)
        group = sampler.sample(types.ModelInput.from_ints(PROMPT), num_samples=16, sampling_params=params).result()
        rewards = [float(one.tokens == [WANTED]) for one in group.sequences]
        mean = sum(rewards) / len(rewards)
        data = [
            row(
                [*PROMPT, *one.tokens],
                {"logprobs": [0.0, 0.0, *(one.logprobs or [])], "advantages": [0.0, 0.0, reward - mean]},
            )
            for one, reward in zip(group.sequences, rewards, strict=True)
        ]
        loss = "ppo" if step % 2 else "importance_sampling"
        passed = client.forward_backward(data, loss)
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        seen = [one["logprobs"].data[-1] for one in passed.result().loss_fn_outputs]
        told = [one.logprobs[0] for one in group.sequences if one.logprobs]
        gaps.append(max(abs(a - b) for a, b in zip(seen, told, strict=True)))
        chances.append(-client.forward([reference], "cross_entropy").result().metrics["loss:sum"])
    scored = sampler.compute_logprobs(types.ModelInput.from_ints(PROMPT)).result()
    named = client.save_weights_for_sampler("end").result().path
    other = service.create_sampling_client(model_path=named).result()
    params = types.SamplingParams(max_tokens=2)
    answer = other.sample(types.ModelInput.from_ints(PROMPT), num_samples=1, sampling_params=params).result()
    return {
        "chances": chances,
        "gaps": gaps,
        "scored": scored,
        "named": named,
        "tokens": answer.sequences[0].tokens,
        "stop_reason": answer.sequences[0].stop_reason,
    }


def refused(service: tinker.ServiceClient, model: str, key: str, url: str) -> dict[str, str]:
    """Return what the client's user reads when something is wrong."""
    client = service.create_lora_training_client(base_model=model, rank=8).result()
    other = service.create_lora_training_client(base_model=model, rank=8).result()
    good = row([7, 8], {"weights": [1.0]})
    tries: dict[str, Callable[[], object]] = {
        "model": lambda: service.create_lora_training_client(base_model="elsewhere/model", rank=8).result(),
        "key": lambda: (
            tinker.ServiceClient(base_url=url, api_key=key + "x").create_lora_training_client(model).result()
        ),
        "loss": lambda: client.forward_backward([good], "cispo").result(),
        "token": lambda: client.forward_backward([row([7, 10**6], {})], "cross_entropy").result(),
        "step": lambda: other.optim_step(types.AdamParams()).result(),
        "name": lambda: other.save_state("../../outside").result(),
        "path": lambda: service.create_sampling_client(model_path="tinker://a/weights/..%2f..%2fetc").result(),
        "checkpoint": lambda: service.create_training_client_from_state("tinker://a/weights/none").result(),
    }
    found = {}
    for name, attempt in tries.items():
        try:
            attempt()
            found[name] = ""
        except Exception as error:  # noqa: BLE001 - its text is what is looked at
            found[name] = f"{type(error).__name__}: {error}"
    return found


def learned(url: str, key: str, model: str, number: int) -> list[float]:
    """Return the losses of one client's steps; each has rows and a seed of its own."""
    service = tinker.ServiceClient(base_url=url, api_key=key)
    client = service.create_lora_training_client(base_model=model, rank=4, seed=number).result()
    data = [row([20 + number, 8, 9, 40 + number], {"weights": [1.0, 1.0, 1.0]})]
    losses = []
    for _ in range(4):
        passed = client.forward_backward(data, "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        losses.append(passed.result().metrics["loss:sum"])
    return losses


def apart(url: str, key: str, model: str) -> dict[str, list[list[float]]]:
    """Train eight clients one after the other, and all at once."""
    solo = [learned(url, key, model, number) for number in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as pool:
        together = list(pool.map(lambda number: learned(url, key, model, number), range(CLIENTS)))
    return {"solo": solo, "together": together}


def restarted(url: str, key: str, model: str) -> dict[str, Any]:
    """Train, wait for a line while the endpoint is killed and started again, and go on from the checkpoint."""
    service = tinker.ServiceClient(base_url=url, api_key=key)
    client = service.create_lora_training_client(base_model=model, rank=8).result()
    data = [row([7, 8], {"weights": [1.0]})]
    client.forward_backward(data, "cross_entropy").result()
    client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    path = client.save_state("kept").result().path
    before = client.forward(data, "cross_entropy").result().metrics["loss:sum"]
    print("saved", flush=True)
    sys.stdin.readline()
    told = ""
    try:
        client.forward_backward(data, "cross_entropy").result()
    except Exception as error:  # noqa: BLE001 - its text is what is looked at
        told = f"{type(error).__name__}: {error}"
    again = tinker.ServiceClient(base_url=url, api_key=key)
    other = again.create_training_client_from_state_with_optimizer(path).result()
    return {"told": told, "before": before, "after": other.forward(data, "cross_entropy").result().metrics["loss:sum"]}


def custom(service: tinker.ServiceClient, model: str) -> dict[str, Any]:
    """Train with losses that the client computes: the one that the endpoint has too, and one of pairs."""
    import torch

    rows = [row([7, 8, 9, 10], {"weights": [1.0, 1.0, 1.0]}), row([9, 11, 13], {"weights": [0.0, 1.0]})]
    pair = [row([7, 8, 9], {"weights": [1.0, 1.0]}), row([7, 10, 11], {"weights": [1.0, 1.0]})]

    def of_rows(data: list[types.Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
        weights = [torch.tensor(one.loss_fn_inputs["weights"].data) for one in data]
        loss = -torch.stack([(each * one).sum() for each, one in zip(weights, logprobs, strict=True)]).sum()
        return loss, {"loss:sum": float(loss)}

    def of_pairs(data: list[types.Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
        margin = logprobs[0].sum() - logprobs[1].sum()
        return -torch.nn.functional.logsigmoid(margin), {"margin": float(margin)}

    def trained(step: Callable[[tinker.TrainingClient], Any], metric: str) -> list[float]:
        client = service.create_lora_training_client(base_model=model, rank=8, seed=3).result()
        found = []
        for _ in range(6):
            passed = step(client)
            client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
            found.append(passed.result().metrics[metric])
        return found

    return {
        "theirs": trained(lambda client: client.forward_backward(rows, "cross_entropy"), "loss:sum"),
        "ours": trained(lambda client: client.forward_backward_custom(rows, of_rows), "loss:sum"),
        "margins": trained(lambda client: client.forward_backward_custom(pair, of_pairs), "margin"),
    }


def main() -> None:
    """Run what the first argument names."""
    logging.disable(logging.WARNING)
    what, url, key, model = sys.argv[1:5]
    if what == "restart":
        print(json.dumps(restarted(url, key, model)))
        return
    service = tinker.ServiceClient(base_url=url, api_key=key)
    if what == "custom":
        print(json.dumps(custom(service, model)))
        return
    found: dict[str, Any] = {"supervised": supervised(service, model), "reinforced": reinforced(service, model)}
    if what == "all":
        found |= {"refused": refused(service, model, key, url), "apart": apart(url, key, model)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
