"""`stoker tinker`: an endpoint for the public tinker client."""

from __future__ import annotations

import json
import os

import click

from stoker.commands.group import reported
from stoker.contract.exits import ExitCode
from stoker.contract.variables import termination_log_of
from stoker.contract.words import say, write_termination_message
from stoker.entry.own_command import PASS_THROUGH
from stoker.tinker.options import FLAGS, options_of, text_of

_WIDTH = max(len(flag.name) for flag in FLAGS)


@click.command(
    "tinker",
    context_settings=PASS_THROUGH,
    epilog="\b\nFlags:\n"
    + "\n".join(
        f"  --{flag.name:<{_WIDTH}}  {flag.help}" + ("" if flag.default is None else f" [{flag.default}]")
        for flag in FLAGS
    )
    + "\n\n\b\nExamples:\n"
    "  stoker tinker     # in the pod of a session: stoker rl up NAME --runtime trl-tinker\n"
    "  stoker tinker --model_name_or_path Qwen/Qwen3-0.6B --samplers http://127.0.0.1:8001 --key_file key",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@reported
def tinker_command(words: tuple[str, ...]) -> int:
    """Serve the protocol of the public tinker client: train LoRA models here, sample from vLLM.

    Each flag may also come from STOKER_ARG_<FLAG> in the environment. `stoker plan` shows what it would serve.
    """
    from stoker.node.idle import traffic_of
    from stoker.rollouts.addresses import addresses_in
    from stoker.tinker.serve import serve

    options = options_of(words, os.environ)
    addresses = addresses_in(options.samplers)
    urls = [
        f"{'https' if one.tls else 'http'}://{f'[{one.host}]' if ':' in one.host else one.host}:{one.port}"
        for one in addresses
    ]
    code = serve(options, urls, os.environ, lambda key: traffic_of(addresses, key))
    message = "the endpoint ended" if code is ExitCode.FINISHED else code.meaning
    write_termination_message(termination_log_of(os.environ), message)
    say(f"exit {int(code)}: {message}")
    return code


def tinker_plan(words: tuple[str, ...], output: str) -> str:
    """Return what this pod would serve, for `stoker plan`.

    Args:
        words: flags of `stoker tinker`.
        output: `text` or `json`.

    Raises:
        RunError: a flag is wrong or missing (64), or the pod lacks something (78).
    """
    from stoker.rollouts.addresses import addresses_in

    options = options_of(words, os.environ)
    addresses_in(options.samplers)
    return json.dumps({"role": "tinker", **options.to_json()}, indent=2) if output == "json" else text_of(options)
