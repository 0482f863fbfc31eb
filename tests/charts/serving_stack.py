"""What a replica of the serving chart runs, as processes of this machine: real vLLM, the proxy, the adapters' watcher.

Everything is what the chart renders, with other paths and free ports: flags and environment of vLLM, the proxy's
configuration, the watcher's settings. The programs are the images' own: vLLM's locked environment, the proxy out of its
image, this checkout's runner with the locked packages of the image `fetch`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from charts.helm import ROOT, VLLM_SERVING, Manifest, render
from charts.serving_settings import settings_files
from stoker.cluster.processes import free_ports

T = TypeVar("T")

KEY = "a-key-of-the-tests-0123456789abcdef"
VALUES = (
    'accelerator="cpu"',
    'model={"name": "base", "claim": {"name": "models"}}',
    'adapters=[{"name": "first", "claim": "models", "path": "adapter"}]',
    'published={"claim": "published"}',
    'lora={"maxRank": 8, "requireManifest": false}',
    'api={"keySecret": "model-key", "maxConcurrentRequests": 1}',
    'args={"dtype": "float32", "max-model-len": "256", "max-num-seqs": "16", "enforce-eager": true}',
    'env={"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}',
    'monitoring={"podMonitor": true, "rules": true, "dashboard": true}',
)
"""Values of a small server that takes one request at a time, so that requests are turned away."""

_ADAPTERS = """
import sys
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

model, *folders = sys.argv[1:]
for folder in folders:
    torch.manual_seed(7)
    # PEFT begins with an adapter that changes nothing; random weights of some size make one that does.
    begun = folder.endswith("no-effect/1")
    config = LoraConfig(r=8, lora_alpha=128, target_modules="all-linear", init_lora_weights=begun)
    get_peft_model(AutoModelForCausalLM.from_pretrained(model), config).save_pretrained(folder)
"""


def models(folder: Path) -> None:
    """Write a small base model that was trained, an adapter, and one without effect, into a new folder."""
    made = subprocess.run([ROOT / "images/trl/venv"], check=True, stdout=subprocess.PIPE, text=True)
    python = Path(made.stdout.strip()) / "bin/python"
    example = ROOT / "examples/sft-lora"
    data = example / "data/elements.jsonl"
    subprocess.run([python, example / "base_model.py", "--data", data, "--output", folder], check=True)
    targets = [folder / "adapter", folder / "waiting/policy/1", folder / "waiting/no-effect/1"]
    subprocess.run([python, "-c", _ADAPTERS, folder / "model", *targets], check=True)


class Stack:
    """The processes of a replica.

    Args:
        folder: where `models` wrote to; gets everything else.
        values: values of the chart.
    """

    def __init__(self, folder: Path, values: Sequence[str] = VALUES) -> None:
        self.folder = folder
        self.objects = render(VLLM_SERVING, settings=values)
        self.ports = dict(zip(("vllm", "clients", "adapters", "probes", "prometheus"), free_ports(5), strict=True))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._names: list[str] = []

    def object(self, kind: str, name: str = "vllm-serving") -> Manifest:
        """Return a rendered object."""
        (found,) = (item for item in self.objects if (item["kind"], item["metadata"]["name"]) == (kind, name))
        return found

    def url(self, port: str) -> str:
        """Return the address of what listens at a port, one of `ports`."""
        return f"http://127.0.0.1:{self.ports[port]}"

    def start(self) -> None:
        """Start everything and wait until the replica is ready."""
        for name in ("settings", "config", "keys", "published/adapters"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "keys/api-key").write_text(KEY)
        for name, text in settings_files(self.objects).items():
            (self.folder / "settings" / name).write_text(self._here(text))
        (server,) = self.object("Deployment")["spec"]["template"]["spec"]["containers"]
        environment = {item["name"]: self._here(item["value"]) for item in server["env"]}
        runner = [str(_environment("fetch") / "bin/python"), "-m", "stoker", "adapters"]
        told = {"PYTHONPATH": str(ROOT / "runner/src"), "HOME": str(self.folder)}
        settings = ["--settings", str(self.folder / "settings/adapters.yaml")]
        subprocess.run(
            [*runner, "prepare", *settings, "--output", self.folder / "config"], check=True, env={**os.environ, **told}
        )
        self.run(
            "vllm", [str(_environment("vllm") / "bin/vllm"), "serve", *map(self._here, server["args"])], environment
        )
        proxy = ["run", "--config", str(self.folder / "settings/Caddyfile"), "--adapter", "caddyfile"]
        self.run("proxy", [str(_proxy(self.folder)), *proxy], {"HOME": str(self.folder)})
        here = ["--server", self.url("vllm"), "--port", str(self.ports["adapters"])]
        self.run("watch", [*runner, "watch", *settings, *here], told)
        self.until("the replica to be ready", lambda: self.get(f"{self.url('adapters')}/readyz")[0] == 200, 900)

    def run(self, name: str, command: Sequence[str | Path], env: Mapping[str, str]) -> None:
        """Start a process that ends with the others; its log is NAME.log."""
        self._names.append(name)
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, env={**os.environ, **env}, stdout=log, stderr=log, start_new_session=True)
            )

    def terminate(self, name: str) -> None:
        """Tell one process to stop, as Kubernetes does."""
        self._processes[self._names.index(name)].terminate()

    def stop(self) -> None:
        """End everything."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()

    def get(self, url: str, body: Any = None) -> tuple[int, Any]:
        """Return status and body (JSON where it is) of an answer to a request with the key; 0 if there is none."""
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=300) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        except OSError:
            return 0, ""
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def ask(self, count: int, tokens: int) -> list[int]:
        """Ask for completions, all at once, and return their statuses."""
        body = {"model": "base", "prompt": "iron", "max_tokens": tokens, "ignore_eos": True}
        url = f"{self.url('clients')}/v1/completions"
        with ThreadPoolExecutor(count) as pool:
            return [status for status, _ in pool.map(lambda _: self.get(url, body), range(count))]

    def until(self, what: str, probe: Callable[[], T], seconds: float, every: float = 1.0) -> T:
        """Wait for a probe to return something true, looking `every` so many seconds, and return that.

        Raises:
            AssertionError: it did not in time, or a process has ended; carries the ends of the logs.
        """
        deadline = time.monotonic() + seconds
        while True:
            found = probe()
            if found:
                return found
            ended = any(process.poll() is not None for process in self._processes)
            if ended or time.monotonic() > deadline:
                logs = [f"--- {path.name}\n{path.read_text()[-2000:]}" for path in sorted(self.folder.glob("*.log"))]
                why = "a process has ended" if ended else f"not within {seconds:.0f} s"
                raise AssertionError("\n".join([f"{what}: {why}", *logs]))
            time.sleep(every)

    def _here(self, text: str) -> str:
        """Return what the chart renders with this machine's paths and ports."""
        moved = {
            "/claims/models": str(self.folder),
            "/claims/published": str(self.folder / "published"),
            "/config": str(self.folder / "config"),
            "/settings": str(self.folder / "settings"),
            "/keys": str(self.folder / "keys"),
            "127.0.0.1:8000": f"127.0.0.1:{self.ports['vllm']}",
            "--port=8000": f"--port={self.ports['vllm']}",
            ":8080": f":{self.ports['clients']}",
            ":8082": f":{self.ports['probes']}",
        }
        for old, new in moved.items():
            text = text.replace(old, new)
        return text


def _environment(image: str) -> Path:
    """Return the locked environment of an image on this machine."""
    command = [sys.executable, str(ROOT / "images" / image / "venv")]
    return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


def _proxy(folder: Path) -> Path:
    """Return the proxy's program, taken out of its image."""
    built = subprocess.run([ROOT / "images/build", "proxy"], check=True, stdout=subprocess.PIPE, text=True)
    layout = Path(json.loads(built.stdout)["oci"])

    def blob(descriptor: Mapping[str, str]) -> Path:
        return layout / "blobs" / Path(*descriptor["digest"].split(":"))

    (manifest,) = json.loads((layout / "index.json").read_text())["manifests"]
    for layer in json.loads(blob(manifest).read_text())["layers"]:
        with tarfile.open(blob(layer)) as archive:
            for member in archive.getmembers():
                if member.isfile() and Path(member.name).name == "caddy":
                    archive.extract(member, folder, filter="data")
                    return folder / member.name
    raise AssertionError("the image has no caddy")
