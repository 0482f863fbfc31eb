"""Commands on results, with a tiny model: `python result_cases.py MODEL FOLDER`. Prints a line for each case.

Runs in an environment with the trainers, in one process: loading them takes longer than all cases.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import peft
import torch
import transformers
from click.testing import CliRunner, Result

from stoker.commands.main import main
from stoker.contract.manifest import MANIFEST, changed_files, write_manifest

# Tokens: of the longest row in training, and of the server's context.
CONTEXT = 64
ROWS = [{"prompt": f"{a}+3=", "completion": f"{a + 3}"} for a in range(10)]


def stoker(*words: object, stdin: str = "") -> Result:
    """Run a command."""
    return CliRunner().invoke(main, [str(word) for word in words], input=stdin)


def adapter(model: Path, output: Path) -> None:
    """Write an adapter that changes the model, as a run leaves it."""
    torch.manual_seed(0)
    base = transformers.AutoModelForCausalLM.from_pretrained(model)
    config = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    peft.get_peft_model(base, config).save_pretrained(output)
    transformers.AutoTokenizer.from_pretrained(model).save_pretrained(output)
    manifest(model, output)


def manifest(model: Path, output: Path, settings: Mapping[str, str] | None = None) -> None:
    """Write the manifest of a run of SFT, with a line of metrics."""
    (output / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    told = {
        "framework": "trl",
        "method": "sft",
        "steps": 1,
        "settings": {"max_length": str(CONTEXT), **(settings or {})},
    }
    write_manifest(output, {**told, "base_model": {"name_or_path": str(model), "revision": None}})


def logits(model: Any, ids: Any) -> Any:
    """Return what a model predicts."""
    with torch.no_grad():
        return model(ids).logits


def cases(model: Path, folder: Path) -> Iterator[str]:
    """Run each case, and yield its name."""
    output, merged = folder / "output", folder / "merged"
    adapter(model, output)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    ids = tokenizer("1+2=3", return_tensors="pt")["input_ids"]
    with_adapter = peft.AutoPeftModelForCausalLM.from_pretrained(output).eval()

    done = stoker("export", output, "--to", merged)
    assert done.exit_code == 0, done.output
    whole = transformers.AutoModelForCausalLM.from_pretrained(merged).eval()
    torch.testing.assert_close(logits(whole, ids), logits(with_adapter, ids), rtol=1e-4, atol=1e-4)
    told = json.loads((merged / MANIFEST).read_text())
    assert told["adapter"] is None
    assert told["merged_adapter"]["rank"] == 4
    assert not list(changed_files(merged, told))
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    yield "merge"

    before = (merged / MANIFEST).read_bytes()
    again = stoker("export", output, "--to", merged)
    assert (again.exit_code, "already holds" in again.output) == (0, True), again.output
    assert (merged / MANIFEST).read_bytes() == before
    other = stoker("export", output, "--to", model)
    assert (other.exit_code, "name a new one" in other.output) == (78, True), other.output
    nothing = stoker("export", merged, "--to", folder / "twice")
    assert (nothing.exit_code, "trained the whole model" in nothing.output) == (64, True), nothing.output
    yield "merge twice"

    data = folder / "held-out.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    found = {}
    for name, batch in ((output, 3), (merged, 10)):
        done = stoker("evaluate", name, "--data", data, "--batch-size", batch, "--output", "json")
        assert done.exit_code == 0, done.output
        found[name] = json.loads(done.stdout)["held_out"]
    expected = held_out_by_hand(with_adapter, tokenizer)
    for one in found.values():
        assert one["tokens"] == expected[1], (one, expected)
        assert math.isclose(one["loss"], expected[0], rel_tol=1e-4), (one, expected)
        assert math.isclose(one["perplexity"], math.exp(expected[0]), rel_tol=1e-3)
    assert "Evaluations" in (output / "report.html").read_text()
    # A server compares the digests of the manifest.
    assert not list(changed_files(output, json.loads((output / MANIFEST).read_text())))
    yield "held out"

    # Rows laid out as the run's own are read as the run's were.
    laid_out = folder / "laid-out"
    shutil.copytree(output, laid_out)
    for file in (MANIFEST, "evaluation.json", "report.html"):
        (laid_out / file).unlink()
    manifest(model, laid_out, {"dataset_format": "sharegpt"})
    said = [("2+2=", "4"), ("1+2=", "3", "3+4=", "7")]
    turns = [[*zip(itertools.cycle(("human", "gpt")), row, strict=False)] for row in said]
    roles = {"human": "user", "gpt": "assistant"}
    forms = {
        "sharegpt": [{"conversations": [{"from": who, "value": text} for who, text in row]} for row in turns],
        "messages": [{"messages": [{"role": roles[who], "content": text} for who, text in row]} for row in turns],
    }
    losses = []
    for form, rows in forms.items():
        path = folder / f"{form}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = stoker("evaluate", laid_out, "--data", path, "--output", "json")
        assert done.exit_code == 0, done.output
        losses.append(json.loads(done.stdout)["held_out"]["loss"])
    assert math.isclose(*losses, rel_tol=1e-6), losses
    yield "laid out as in training"

    # An adapter without a tokenizer has its base model's, on a server too.
    bare = folder / "bare"
    shutil.copytree(output, bare)
    for path in [*bare.glob("token*"), bare / MANIFEST, bare / "evaluation.json", bare / "report.html"]:
        path.unlink()
    manifest(model, bare)
    with serving(with_adapter) as url:
        served = ("--server", url, "--model", "tiny")
        done = stoker("evaluate", bare, *served, "--data", data, "--output", "json")
        assert done.exit_code == 0, done.output
        one = json.loads(done.stdout)["held_out"]
        assert one["tokens"] == expected[1], (one, expected)
        assert math.isclose(one["loss"], expected[0], rel_tol=1e-4), (one, expected)
        # The row fills the server's context, and the token that a server writes has no room.
        (folder / "long.jsonl").write_text(json.dumps({"prompt": "1+2=", "completion": " 3" * CONTEXT}) + "\n")
        refused = stoker("evaluate", bare, *served, "--data", folder / "long.jsonl")
        assert (refused.exit_code, f"--max-model-len {CONTEXT + 1} or more" in refused.output) == (78, True), (
            refused.output
        )
        (merged / "tokenizer_config.json").unlink()
        (merged / "tokenizer.json").unlink()
        manifest(model, merged)
        refused = stoker("evaluate", merged, *served, "--data", data)
        assert (refused.exit_code, f"{merged} has no tokenizer" in refused.output) == (65, True), refused.output
    yield "served"

    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": "2+2="}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = with_adapter.generate(**inputs, max_new_tokens=8, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    expected_text = tokenizer.decode(answer, skip_special_tokens=True)
    for words, stdin in ((("--prompt", "2+2="), ""), ((), "2+2=\n")):
        done = stoker("chat", output, "--max-tokens", 8, *words, stdin=stdin)
        assert done.exit_code == 0, done.output
        assert done.stdout == f"{expected_text}\n", (done.stdout, expected_text)
    yield "chat"

    narrow = transformers.Qwen2Config.from_pretrained(model, hidden_size=32, intermediate_size=64)
    transformers.Qwen2ForCausalLM(narrow).save_pretrained(folder / "narrow")
    asked: list[tuple[object, ...]] = [("export", output, "--to", folder / "x"), ("chat", output, "--prompt", "a")]
    for told in asked:
        refused = stoker(*told, "--base", folder / "narrow")
        assert (refused.exit_code, "is not an adapter of" in refused.output) == (78, True), refused.output
    yield "another base"

    (folder / "bad.jsonl").write_text('{"chosen": "a", "rejected": "b"}\n')
    refused = stoker("evaluate", output, "--data", folder / "bad.jsonl")
    assert (refused.exit_code, "prompt and completion" in refused.output) == (65, True), refused.output
    missing = stoker("evaluate", output, "--data", folder / "nowhere")
    assert missing.exit_code == 66, missing.output
    yield "bad rows"


@contextmanager
def serving(model: Any) -> Iterator[str]:
    """Answer requests for the log-probabilities of a text as vLLM does, until the block ends; yields the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Answer, or refuse what leaves no room for a token more."""
            tokens = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"]
            if len(tokens) >= CONTEXT:
                self.send(400, {"error": {"message": f"This model's maximum context length is {CONTEXT} tokens."}})
                return
            scores = logits(model, torch.tensor([tokens]))[0, :-1].log_softmax(-1)
            told = [
                {str(token): {"logprob": float(row[token]), "rank": int((row > row[token]).sum()) + 1}}
                for row, token in zip(scores, tokens[1:], strict=True)
            ]
            self.send(200, {"choices": [{"prompt_logprobs": [None, *told]}]})

        def send(self, status: int, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def held_out_by_hand(model: Any, tokenizer: Any) -> tuple[float, int]:
    """Return mean loss and number of the tokens of the completions, with the end that TRL adds."""
    total, count = 0.0, 0
    for row in ROWS:
        prompt = tokenizer(row["prompt"])["input_ids"]
        ids = tokenizer(row["prompt"] + row["completion"])["input_ids"] + [tokenizer.eos_token_id]
        scores = logits(model, torch.tensor([ids]))[0, :-1].log_softmax(-1)
        for position in range(len(prompt), len(ids)):
            total -= float(scores[position - 1, ids[position]])
            count += 1
    return total / count, count


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    for name in cases(Path(sys.argv[1]), Path(sys.argv[2])):
        print(name, flush=True)
