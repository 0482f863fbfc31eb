"""What vLLM's workers are asked when weights change: to read files beside their work, then to load what they read."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.serve.vllm import Server, ServerError

# What vLLM knows the code as that its workers get.
_MODULE = "stoker_in_vllm"

CLASS = f"{_MODULE}.Weights"
"""The value of vLLM's --worker-extension-cls."""

PYTHON = "python"
"""The folder, in that of vLLM's configuration, that must be on its PYTHONPATH."""

SECONDS = 1800.0
"""How long vLLM may take to answer: loading all weights of a large model takes longer than a request."""

# How often the workers are asked whether they have read the files: at first, and at most.
_ASK_SECONDS = (0.005, 0.1)


def place_code(config: Path) -> None:
    """Write the code that vLLM's workers get into the folder of its configuration.

    Raises:
        OSError: it cannot be written.
    """
    (config / PYTHON).mkdir(exist_ok=True)
    shutil.copyfile(Path(__file__).with_name("in_vllm.py"), config / PYTHON / f"{_MODULE}.py")


def staged(server: Server) -> list[dict[str, Any]]:
    """Wait until the workers have read what they were told to, and return what each says of it.

    Raises:
        ServerError: they do not answer.
    """
    pause, most = _ASK_SECONDS
    while True:
        found = server.workers("stoker_staged")
        if all(one["done"] for one in found):
            return found
        time.sleep(pause)
        pause = min(2 * pause, most)


def swapped(server: Server, name: str, *, resume: bool = True) -> list[dict[str, Any]]:
    """Have the workers load what they read while nothing is generated, and return what each has then.

    Args:
        server: the server.
        name: of what they have read, as `staged` says. They load nothing else, and nothing that they still read.
        resume: go on generating.

    Raises:
        ServerError: it could not.
    """
    server.pause()
    try:
        return server.workers("stoker_swap", name=name)
    finally:
        if resume:
            with suppress(ServerError):
                server.resume()


def held(server: Server, otherwise: str = "") -> str:
    """Return the name of the weights that all workers have; empty if they have vLLM's own.

    Args:
        server: whose workers.
        otherwise: what to return if they do not have the same.

    Raises:
        ServerError: they do not answer.
    """
    return agreed(server.workers("stoker_held"), otherwise)


def agreed(answers: Iterable[Mapping[str, Any]], otherwise: str = "") -> str:
    """Return the name that all workers have said that they have.

    Args:
        answers: of the workers.
        otherwise: what to return if they have not said the same.
    """
    names = {str(one.get("name", "")) for one in answers}
    return names.pop() if len(names) == 1 else otherwise
