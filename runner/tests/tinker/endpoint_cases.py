"""The endpoint with a tiny model over HTTP: `python endpoint_cases.py MODEL FOLDER` prints what fails, as JSON.

Runs in an environment with TRL. FOLDER is empty.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import threading
import traceback
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from runner.tests.tinker import sent, vllm_stand_in
from transformers import AutoModelForCausalLM

from stoker.tinker.checkpoints import Checkpoints
from stoker.tinker.futures import Future
from stoker.tinker.lora import Adam, Shape
from stoker.tinker.refusals import RefusedError
from stoker.tinker.samplers import Samplers
from stoker.tinker.server import Endpoint
from stoker.tinker.service import Service
from stoker.tinker.trainer import Trainer

KEY = "tml-" + "k" * 32
ROWS: list[tuple[list[int], sent.Columns]] = [
    ([7, 8, 9, 10], {"target_tokens": [8, 9, 10, 11], "weights": [0.0, 1.0, 1.0, 0.5]}),
    ([20, 21], {"target_tokens": [21, 22], "weights": [1.0, 2.0]}),
]


class Caller:
    """A client, written anew.

    Args:
        url: of the endpoint.
        key: its key.
    """

    def __init__(self, url: str, key: str = KEY) -> None:
        self.url, self.key = url, key
        self.session = ""

    def post(self, path: str, body: Any, kind: str = "application/json", **headers: str) -> tuple[int, Any]:
        """Return status and answer: JSON, or bytes of protobuf."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"Content-Type": kind, "X-API-Key": self.key, **headers}
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", data, named)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                text = answer.read()
                protobuf = answer.headers["Content-Type"] == "application/x-protobuf"
                return answer.status, text if protobuf else json.loads(text)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def done(self, path: str, body: Any, kind: str = "application/json") -> Any:
        """Return what comes of a request whose answer comes later."""
        status, told = self.post(path, body, kind)
        assert status == 200, told
        status = 408
        while status == 408:  # as the client does
            status, answer = self.post("retrieve_future", {"request_id": told["request_id"]})
        assert status == 200, answer
        return answer

    def model(self, model: str, number: int = 0, **lora: Any) -> str:
        """Return a new LoRA model of a new session."""
        status, told = self.post("create_session", {"sdk_version": "0.38.0"})
        assert status == 200, told
        self.session = told["session_id"]
        asked = {"session_id": self.session, "model_seq_id": number, "base_model": model}
        found = self.done("create_model", {**asked, "lora_config": {"rank": 4, **lora}})
        return str(found["model_id"])

    def forward_backward(
        self, model_id: str, seq_id: int, rows: Any, loss: str = "cross_entropy", **more: Any
    ) -> tuple[list[list[float]], float]:
        """Return log-probabilities and loss."""
        body = sent.forward_backward(model_id, seq_id, loss, rows, **more)
        answer = self.done("forward_backward", body, "application/x-protobuf")
        assert isinstance(answer, bytes), answer
        logprobs, metrics = sent.read_output(answer)
        return logprobs, metrics["loss:sum"]

    def step(self, model_id: str, seq_id: int, **adam: float) -> Any:
        """Make a step."""
        return self.done(
            "optim_step",
            {"model_id": model_id, "seq_id": seq_id, "adam_params": {"learning_rate": 1e-2, **adam}},
        )


class Setup:
    """What the cases use.

    Args:
        model: the tiny model.
        folder: an empty one.
        url: of the endpoint.
        sampler: who stands in for vLLM.
    """

    def __init__(self, model: str, folder: Path, url: str, sampler: vllm_stand_in.StandIn) -> None:
        self.model, self.folder, self.url, self.sampler = model, folder, url, sampler


@contextmanager
def endpoint(model: str, folder: Path) -> Iterator[Setup]:
    """Serve."""
    (folder / "adapters").mkdir()
    with vllm_stand_in.serving(folder / "adapters") as sampler:
        samplers = Samplers([sampler.address], folder / "adapters", "tinker", "me", model, seconds=20.0)
        service = Service(Trainer(model, most=20), Checkpoints(folder / "checkpoints"), samplers)
        with Endpoint(("127.0.0.1", 0), service, KEY) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield Setup(model, folder, f"http://127.0.0.1:{server.server_address[1]}", sampler)
            server.shutdown()
        service.close()


def losses_are_as_tinker_defines_them(setup: Setup) -> None:
    """Each loss is its formula over the log-probabilities of plain transformers."""
    caller = Caller(setup.url)
    model_id = caller.model(setup.model)
    plain = AutoModelForCausalLM.from_pretrained(setup.model)
    expected, found = [], caller.forward_backward(model_id, 1, ROWS, forward_only=True)
    for tokens, columns in ROWS:
        with torch.no_grad():
            logprobs = plain(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
        expected.append(logprobs.gather(-1, torch.tensor(columns["target_tokens"])[:, None])[:, 0])
    for row, wanted in zip(found[0], expected, strict=True):
        assert torch.allclose(torch.tensor(row), wanted, atol=1e-5), (row, wanted)
    pairs = [(one, torch.tensor(columns["weights"])) for one, (_, columns) in zip(expected, ROWS, strict=True)]
    assert abs(found[1] + sum(float((one * weights).sum()) for one, weights in pairs)) < 1e-4

    advantages = [[1.0, -1.0, 0.5, 0.0], [-2.0, 1.0]]
    # Ratios on both sides of what PPO allows.
    behind = [one + torch.linspace(-0.6, 0.6, len(one)) for one in expected]
    rows = [
        (tokens, {"target_tokens": columns["target_tokens"], "logprobs": old.tolist(), "advantages": advantage})
        for (tokens, columns), old, advantage in zip(ROWS, behind, advantages, strict=True)
    ]
    settings: tuple[tuple[str, dict[str, float], float, float], ...] = (
        ("importance_sampling", {}, 0.0, 100.0),
        ("ppo", {}, 0.8, 1.2),
        ("ppo", {"clip_low_threshold": 0.6, "clip_high_threshold": 1.5}, 0.6, 1.5),
    )
    for seq_id, (loss, config, low, high) in enumerate(settings, 2):
        total = 0.0
        for one, old, advantage in zip(expected, behind, map(torch.tensor, advantages), strict=True):
            ratio = torch.exp(one - old)
            total -= float(torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage).sum())
        _, seen = caller.forward_backward(model_id, seq_id, rows, loss, config=config, forward_only=True)
        assert abs(seen - total) < 1e-4, (loss, seen, total)


def a_step_is_that_of_torch(setup: Setup) -> None:
    """Gradients of two requests add up, and one step of AdamW follows them."""
    trainer = Trainer(setup.model)
    trainer.create("m", Shape(rank=4, seed=3))
    lora = trainer._models["m"]
    caller = Caller(setup.url)
    model_id = caller.model(setup.model, seed=3)
    for seq_id, row in enumerate(ROWS, 1):
        caller.forward_backward(model_id, seq_id, [row])
    caller.step(model_id, 3, weight_decay=0.1)
    (_, after) = caller.forward_backward(model_id, 4, ROWS, forward_only=True)

    net = trainer._net
    optimizer = torch.optim.AdamW(lora.parameters, lr=1e-2, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.1)

    def loss() -> torch.Tensor:
        total = torch.zeros(())
        for tokens, columns in ROWS:
            logprobs = net(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
            picked = logprobs.gather(-1, torch.tensor(columns["target_tokens"])[:, None])[:, 0]
            total = total - (picked * torch.tensor(columns["weights"])).sum()
        return total

    loss().backward()
    optimizer.step()
    assert abs(float(loss().detach()) - after) < 1e-4, (float(loss().detach()), after)
    assert abs(Adam().beta2 - 0.95) < 1e-9


def learned(setup: Setup, number: int) -> list[float]:
    """Return the losses of a client's steps; each client has a seed and rows of its own."""
    caller = Caller(setup.url)
    model_id = caller.model(setup.model, seed=number, rank=2 + number)
    rows = [
        ([7 + number, 8, 9], {"target_tokens": [8, 9, 30 + number]}),
        ([number + 1], {"target_tokens": [number + 40]}),
    ]
    losses = []
    for step in range(4):
        losses.append(caller.forward_backward(model_id, 2 * step + 1, rows)[1])
        assert "metrics" in caller.step(model_id, 2 * step + 2)
    caller.done("unload_model", {"model_id": model_id})
    return losses


def eight_clients_at_once_have_their_solo_losses(setup: Setup) -> None:
    """What others train does not reach a client's losses."""
    solo = [learned(setup, number) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda number: learned(setup, number), range(8)))
    gap = max(abs(a - b) for pair in zip(solo, together, strict=True) for a, b in zip(*pair, strict=True))
    print(f"eight clients at once: losses differ from solo runs by {gap:g} at most", file=sys.stderr)
    for alone, beside in zip(solo, together, strict=True):
        assert max(abs(a - b) for a, b in zip(alone, beside, strict=True)) <= 1e-5, (alone, beside)
        assert alone[-1] < alone[0]
    assert len({tuple(losses) for losses in solo}) == 8


def a_checkpoint_goes_on_as_if_it_had_not_ended(setup: Setup) -> None:
    """The optimizer's state comes along."""
    caller = Caller(setup.url)
    first = caller.model(setup.model, seed=1)
    caller.forward_backward(first, 1, ROWS)
    caller.step(first, 2)
    saved = caller.done("save_weights", {"model_id": first, "path": "one", "seq_id": 3})
    assert saved["path"] == f"tinker://{first}/weights/one"
    again = {"session_id": caller.session, "model_seq_id": 5, "path": saved["path"], "optimizer": True}
    second = caller.done("load_weights", again)["model_id"]
    assert second == f"{caller.session}:train:5"
    found = []
    for model_id, seq_id in ((first, 4), (second, 1)):
        caller.forward_backward(model_id, seq_id, ROWS)
        caller.step(model_id, seq_id + 1)
        found.append(caller.forward_backward(model_id, seq_id + 2, ROWS)[1])
    assert found[0] == found[1], found
    taken = caller.done("save_weights", {"model_id": first, "path": "one", "seq_id": 9})
    assert "exists: choose another name" in taken["error"]
    status, info = caller.post("weights_info", {"tinker_path": saved["path"]})
    assert (status, info["lora_rank"], info["base_model"]) == (200, 4, setup.model)


def what_is_published_is_the_model(setup: Setup) -> None:
    """Samplers load what PEFT loads, and are asked as the client asks."""
    caller = Caller(setup.url)
    model_id = caller.model(setup.model, seed=1)
    caller.forward_backward(model_id, 1, ROWS)
    caller.step(model_id, 2)
    logprobs, _ = caller.forward_backward(model_id, 3, ROWS, forward_only=True)
    saved = {"model_id": model_id, "seq_id": 4, "sampling_session_seq_id": 0}
    session = caller.done("save_weights_for_sampler", saved)["sampling_session_id"]
    asked = {
        "sampling_session_id": session,
        "seq_id": 1,
        "num_samples": 3,
        "prompt": {"chunks": [{"tokens": [7, 8, 9], "type": "encoded_text"}]},
        "sampling_params": {"max_tokens": 2, "temperature": 0.5, "stop": [1]},
        "prompt_logprobs": True,
    }
    assert isinstance(caller.done("asample", asked), bytes)
    request = setup.sampler.requests[-1]
    assert (request["n"], request["temperature"], request["stop_token_ids"]) == (3, 0.5, [1])
    folder = setup.sampler.names()[request["model"]]
    served = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(setup.model), folder)
    for (tokens, columns), row in zip(ROWS, logprobs, strict=True):
        with torch.no_grad():
            found = served(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
        picked = found.gather(-1, torch.tensor(columns["target_tokens"])[:, None])[:, 0]
        assert torch.allclose(picked, torch.tensor(row), atol=1e-5), (picked, row)


def bad_input_is_answered_with_what_to_write(setup: Setup) -> None:
    """A client's user reads what to change."""
    caller = Caller(setup.url)
    model_id = caller.model(setup.model)
    good = sent.forward_backward(model_id, 1, "cross_entropy", ROWS)
    protobuf = "application/x-protobuf"
    far = sent.forward_backward(model_id, 1, "cross_entropy", [([10**6], {"target_tokens": [1]})])
    gone = sent.forward_backward("s-old:train:0", 1, "cross_entropy", ROWS)
    session = {"session_id": caller.session, "model_seq_id": 7}
    base = {"base_model": setup.model}
    nothing = {"rank": 4, "train_attn": False, "train_mlp": False}
    weightless = {"rank": 4, "alpha": 0}
    # A gigabyte of zeros, a thousandth of that on the wire.
    packer = zlib.compressobj(wbits=31)
    bomb = b"".join(packer.compress(bytes(2**20)) for _ in range(1024)) + packer.flush()
    packed = {"Content-Encoding": "gzip"}
    # Somebody who writes to the workspace cannot make the endpoint read elsewhere.
    link = setup.folder / "checkpoints" / "linked" / "weights" / "out"
    link.parent.mkdir(parents=True)
    link.symlink_to(setup.folder)
    outside = "tinker://linked/weights/out"
    before = (files(setup.folder), memory())
    tries: list[tuple[int, str, Callable[[], tuple[int, Any]]]] = [
        (401, "TINKER_API_KEY", lambda: Caller(setup.url, KEY + "x").post("create_session", {})),
        (401, "TINKER_API_KEY", lambda: Caller(setup.url, "").post("create_session", {})),
        (400, "tinker==0.38", lambda: caller.post("client/config", {"sdk_version": "0.22.7"})),
        (404, "asample", lambda: caller.post("create_custom_loss", {})),
        (400, "not JSON", lambda: caller.post("optim_step", b"{")),
        (400, "not a JSON object", lambda: caller.post("optim_step", [])),
        (400, "adam_params", lambda: caller.post("optim_step", {"model_id": model_id})),
        (400, "learning_rate is nan: write a finite number", lambda: stepped(caller, model_id, learning_rate=math.nan)),
        (400, "weight_decay is inf: write a finite number", lambda: stepped(caller, model_id, weight_decay=math.inf)),
        (400, "weight_decay are 0 or more", lambda: stepped(caller, model_id, weight_decay=-1.0)),
        (400, "not a number", lambda: stepped(caller, model_id, eps=10**400)),
        (415, "send protobuf", lambda: caller.post("forward_backward", {})),
        (415, "send JSON", lambda: caller.post("optim_step", good, protobuf)),
        (415, "zstd", lambda: caller.post("forward_backward", good, protobuf, **{"Content-Encoding": "zstd"})),
        (400, "token that the model lacks", lambda: caller.post("forward_backward", far, protobuf)),
        (400, "from_state_with_optimizer", lambda: caller.post("forward_backward", gone, protobuf)),
        (404, setup.model, lambda: caller.post("create_model", {**session, "base_model": "other/model"})),
        (410, "new ServiceClient", lambda: caller.post("session_heartbeat", {"session_id": "s0-1"})),
        (400, "not a checkpoint's name", lambda: caller.post("save_weights", {"model_id": model_id, "path": "../x"})),
        (404, "does not exist", lambda: caller.post("load_weights", {**session, "path": "tinker://a/weights/b"})),
        (400, "not a checkpoint", lambda: caller.post("load_weights", {**session, "path": "/etc/passwd"})),
        (400, "--max_rank", lambda: caller.post("create_model", {**session, **base, "lora_config": {"rank": 512}})),
        (400, "set train_attn", lambda: caller.post("create_model", {**session, **base, "lora_config": nothing})),
        (400, "alpha is 0", lambda: caller.post("create_model", {**session, **base, "lora_config": weightless})),
        (400, "tinker==0.38", lambda: caller.post("create_session", {"sdk_version": "0.22.7"})),
        (400, "tinker==0.38", lambda: caller.post("create_session", {"sdk_version": "1.0"})),
        (413, "send fewer rows", lambda: caller.post("forward_backward", bomb, protobuf, **packed)),
        (413, "send fewer rows", lambda: caller.post("optim_step", bomb, **packed)),
        (400, "leads out of the run's folder", lambda: caller.post("load_weights", {**session, "path": outside})),
        (400, "leads out of the run's folder", lambda: caller.post("weights_info", {"tinker_path": outside})),
        (404, "the endpoint started again", lambda: caller.post("retrieve_future", {"request_id": "deadbeef-3"})),
        (400, "max_tokens", lambda: sampled(caller, setup, sampling_params={})),
        (400, "topk_sample_logprobs", lambda: sampled(caller, setup, topk_sample_logprobs=3)),
    ]
    for status, said, attempt in tries:
        found, told = attempt()
        assert (found, said in told["error"]) == (status, True), (status, said, found, told)
    # What may be a part of a batch was refused, and its step may have been sent already.
    partly = caller.done("optim_step", {"model_id": model_id, "adam_params": {}})
    assert "a forward_backward before it failed (datum 0: model_input has a token" in partly["error"]
    early = caller.done("optim_step", {"model_id": model_id, "adam_params": {}})
    assert "call forward_backward before" in early["error"]
    # Nothing is left behind: no file, no model, and not what the bombs would have taken.
    assert files(setup.folder) == before[0]
    assert memory() - before[1] < 256 * 2**20
    assert not list(setup.folder.parent.glob("x"))
    assert caller.forward_backward(model_id, 1, ROWS)[1] > 0, "the model goes on"


def stepped(caller: Caller, model_id: str, **adam: float) -> tuple[int, Any]:
    """Ask for a step."""
    return caller.post("optim_step", {"model_id": model_id, "adam_params": adam})


def files(folder: Path) -> list[str]:
    """Return every file and folder in a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def memory() -> int:
    """Return the most memory that this process has had so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def sampled(caller: Caller, setup: Setup, **more: Any) -> tuple[int, Any]:
    """Ask for a sample of the base model."""
    session = {"session_id": caller.session, "sampling_session_seq_id": 1, "base_model": setup.model}
    status, told = caller.post("create_sampling_session", session)
    assert status == 200, told
    asked = {
        "sampling_session_id": told["sampling_session_id"],
        "prompt": {"chunks": [{"tokens": [7], "type": "encoded_text"}]},
        "sampling_params": {"max_tokens": 1},
    }
    return caller.post("asample", {**asked, **more})


def a_failed_pass_does_not_reach_the_weights(setup: Setup) -> None:
    """A gradient that is no number changes nothing."""
    caller = Caller(setup.url)
    model_id = caller.model(setup.model)
    huge = [([7], {"target_tokens": [8], "weights": [3e38]})]
    before = caller.forward_backward(model_id, 1, ROWS, forward_only=True)
    caller.forward_backward(model_id, 2, huge)
    assert "the gradient is not finite" in caller.step(model_id, 3)["error"]
    assert caller.forward_backward(model_id, 4, ROWS, forward_only=True) == before


def a_batch_is_not_learned_without_a_part_that_was_refused(setup: Setup) -> None:
    """The client cuts a batch into requests, and sends the step before it reads their answers."""
    caller = Caller(setup.url)
    model_id = caller.model(setup.model)
    before = caller.forward_backward(model_id, 1, ROWS, forward_only=True)
    one = {"target_tokens": [8]}
    parts: list[tuple[str, tuple[list[int], sent.Columns]]] = [
        ("datum 0 has 5000 tokens", ([7] * 5000, {"target_tokens": [7] * 5000})),
        ("datum 0: weights has a value that is not a finite number", ([7], {**one, "weights": [math.nan]})),
        ("datum 0: target_tokens has 1 values and model_input 2 tokens", ([7, 8], one)),
        ("datum 0 lacks 'target_tokens'", ([7], {"weights": [1.0]})),
    ]
    for seq_id, (said, row) in zip(range(2, 100, 10), parts, strict=False):
        caller.forward_backward(model_id, seq_id, ROWS[:1])
        part = sent.forward_backward(model_id, seq_id + 1, "cross_entropy", [row])
        assert caller.post("forward_backward", part, "application/x-protobuf")[0] == 400
        assert f"before it failed ({said}" in caller.step(model_id, seq_id + 3)["error"]
        assert caller.forward_backward(model_id, seq_id + 4, ROWS, forward_only=True) == before
        caller.forward_backward(model_id, seq_id + 5, ROWS)
        # A forward pass adds nothing that could be missing.
        part = sent.forward_backward(model_id, seq_id + 6, "cross_entropy", [row], forward_only=True)
        assert caller.post("forward_backward", part, "application/x-protobuf")[0] == 400
        assert "metrics" in caller.step(model_id, seq_id + 7)
        before = caller.forward_backward(model_id, seq_id + 8, ROWS, forward_only=True)


def a_batch_is_not_learned_without_a_part_that_was_turned_away(setup: Setup) -> None:
    """The client sends such a part again, but for five minutes only."""
    folder = setup.folder / "full"
    folder.mkdir()
    samplers = Samplers([setup.sampler.address], folder, "tinker", "me", setup.model)
    service = Service(Trainer(setup.model, most=1), Checkpoints(folder), samplers)

    def done(path: str, body: Any) -> bytes:
        future = service.answer(path, body)
        assert isinstance(future, Future)
        assert future.wait(120)
        return future.body

    session = service.answer("create_session", {"sdk_version": "0.38.0"})
    assert not isinstance(session, Future)
    asked = {"session_id": session["session_id"], "model_seq_id": 0, "base_model": setup.model}
    model_id = json.loads(done("create_model", {**asked, "lora_config": {"rank": 4}}))["model_id"]
    try:
        for seq_id, again, said in ((1, False, b"not sent again"), (11, True, b"grad_norm")):
            done("forward_backward", sent.forward_backward(model_id, seq_id, "cross_entropy", ROWS[:1]))
            part = sent.forward_backward(model_id, seq_id + 1, "cross_entropy", ROWS[1:])
            room, service._futures._most_bytes = service._futures._most_bytes, len(part) - 1
            away = refusal(partial(service.answer, "forward_backward", part))
            assert (away.status, "ask again later" in away.message) == (429, True)
            service._futures._most_bytes = room
            if again:
                done("forward_backward", part)
            step = done("optim_step", {"model_id": model_id, "seq_id": seq_id + 2, "adam_params": {}})
            assert said in step, step
    finally:
        service.close()


def refusal(attempt: Callable[[], object]) -> RefusedError:
    """Return how something is refused."""
    try:
        attempt()
    except RefusedError as error:
        return error
    raise AssertionError("it is not refused")


def a_damaged_checkpoint_leaves_no_model(setup: Setup) -> None:
    """Its place is not taken from others."""
    trainer = Trainer(setup.model, most=1)
    trainer.create("m", Shape(rank=4))
    folder = setup.folder / "damaged"
    for file in ("adapter_model.safetensors", "optimizer.pt"):
        folder.mkdir(exist_ok=True)
        trainer.write_checkpoint("m", folder)
        torch.save({}, folder / "optimizer.pt")
        (folder / file).write_bytes((folder / file).read_bytes()[:100])
        trainer.unload("m")
        assert "is damaged" in refusal(partial(trainer.load, "n", folder, optimizer=True)).message
        assert trainer.models() == []
        trainer.create("m", Shape(rank=4))


def an_overwritten_checkpoint_is_sampled_as_it_is_now(setup: Setup) -> None:
    """Clients that sample from the one before go on with that."""
    caller = Caller(setup.url)
    model_id = caller.model(setup.model)
    models = []
    for number in range(2):
        saved = {"model_id": model_id, "path": "latest", "seq_id": 10 * number + 1, "overwrite": True}
        path = caller.done("save_weights", saved)["path"]
        for again in range(2):
            asked = {"session_id": caller.session, "sampling_session_seq_id": 2 * number + again, "model_path": path}
            status, told = caller.post("create_sampling_session", asked)
            assert status == 200, told
            prompt = {"chunks": [{"tokens": [7], "type": "encoded_text"}]}
            sample = {"sampling_session_id": told["sampling_session_id"], "prompt": prompt}
            caller.done("asample", {**sample, "sampling_params": {"max_tokens": 1}})
            models.append(setup.sampler.requests[-1]["model"])
    assert models[0] == models[1] != models[2] == models[3], models


def what_could_not_be_published_can_be_published_again(setup: Setup) -> None:
    """A name is free after a failure, and no version is left."""
    folder = setup.folder / "unpublished"
    (folder / "adapters").mkdir(parents=True)
    samplers = Samplers([setup.sampler.address], folder / "adapters", "other", "me", setup.model, seconds=0.3)
    service = Service(Trainer(setup.model, most=1), Checkpoints(folder / "checkpoints"), samplers)

    def done(request: str, **body: Any) -> dict[str, Any]:
        future = service.answer(request, body)
        assert isinstance(future, Future)
        assert future.wait(120)
        found: dict[str, Any] = json.loads(future.body)
        return found

    session = service.answer("create_session", {"sdk_version": "0.38.0"})
    assert not isinstance(session, Future)
    body = {"session_id": session["session_id"], "model_seq_id": 0, "base_model": setup.model}
    model_id = done("create_model", **body, lora_config={"rank": 4})["model_id"]
    named = {"model_id": model_id, "path": "step-1"}
    served = setup.sampler.folder
    try:
        assert "does not list it" in done("save_weights_for_sampler", **named, seq_id=1)["error"]
        assert not [*(folder / "adapters").glob("*/[0-9]*")]
        setup.sampler.folder = folder / "adapters"
        assert done("save_weights_for_sampler", **named, seq_id=2)["path"].endswith("/sampler_weights/step-1")
    finally:
        setup.sampler.folder = served
        service.close()


def models_of_clients_that_are_gone_make_room(setup: Setup) -> None:
    """Clients do not unload what they leave behind; those that still live keep theirs."""
    for seconds, said in ((0.0, ""), (3600.0, "1 models are here already")):
        folder = setup.folder / f"gone-{seconds:g}"
        folder.mkdir()
        samplers = Samplers([setup.sampler.address], folder, "tinker", "me", setup.model)
        trainer = Trainer(setup.model, most=1)
        service = Service(trainer, Checkpoints(folder), samplers, gone_seconds=seconds)
        told: list[dict[str, Any]] = []
        for _ in range(2):
            session = service.answer("create_session", {"sdk_version": "0.38.0"})
            assert not isinstance(session, Future)
            body = {"session_id": session["session_id"], "model_seq_id": 0, "base_model": setup.model}
            try:
                future = service.answer("create_model", {**body, "lora_config": {"rank": 4}})
            except RefusedError as error:
                told.append({"error": error.message, "status": error.status})
                continue
            assert isinstance(future, Future)
            assert future.wait(120)
            told.append(json.loads(future.body))
        assert "model_id" in told[0], told
        assert (said in told[1].get("error", ""), told[1].get("status", 400)) == (True, 400), told
        assert trainer.models() == [told[0 if said else 1]["model_id"]]
        service.close()


CASES = (
    losses_are_as_tinker_defines_them,
    a_step_is_that_of_torch,
    eight_clients_at_once_have_their_solo_losses,
    a_checkpoint_goes_on_as_if_it_had_not_ended,
    what_is_published_is_the_model,
    bad_input_is_answered_with_what_to_write,
    a_failed_pass_does_not_reach_the_weights,
    a_batch_is_not_learned_without_a_part_that_was_refused,
    a_batch_is_not_learned_without_a_part_that_was_turned_away,
    a_damaged_checkpoint_leaves_no_model,
    an_overwritten_checkpoint_is_sampled_as_it_is_now,
    what_could_not_be_published_can_be_published_again,
    models_of_clients_that_are_gone_make_room,
)


def main() -> None:
    """Run the cases."""
    torch.set_num_threads(1)
    failed = {}
    with endpoint(sys.argv[1], Path(sys.argv[2])) as setup:
        for case in CASES:
            try:
                case(setup)
            except Exception:  # noqa: BLE001 - whatever it is, the case fails
                failed[case.__name__] = traceback.format_exc()
    print(json.dumps(failed))


if __name__ == "__main__":
    main()
