"""An endpoint for the public `tinker` client: `python -m stoker.scripts.tinker_server --help`."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import report_error, say
from stoker.rollouts.addresses import addresses_in

_LOOK_SECONDS = 1.0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """End as our commands do."""
        report_error(f"{message}; see {self.prog} --help")
        self.exit(ExitCode.USAGE)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this script's flags."""
    parser = _Parser(
        prog="python -m stoker.scripts.tinker_server",
        allow_abbrev=False,
        description="Serve the protocol of the public tinker client: train LoRA models here, sample from vLLM.",
    )
    add = parser.add_argument
    add("--model_name_or_path", required=True, help="Folder or Hub id of the base model; clients name the same.")
    add("--output_dir", type=Path, required=True, help="Folder for checkpoints.")
    add("--samplers", required=True, help="Addresses of vLLM servers, with commas between them.")
    add("--adapters", type=Path, required=True, help="Folder of published versions that the samplers watch.")
    add("--key_file", type=Path, required=True, help="File with the key that clients set as TINKER_API_KEY.")
    add("--samplers_key_file", type=Path, help="File with the samplers' key.")
    add("--run", default="tinker", help="Name of the published versions.")
    add("--host", default="0.0.0.0", help="Address to listen on.")
    add("--port", type=int, default=8000, help="Port to listen on.")
    add("--dtype", default="auto", help="Type of the base model's weights, such as bfloat16.")
    add("--max_models", type=int, default=16, help="LoRA models at the same time.")
    add("--max_rank", type=int, default=64, help="Largest rank of a LoRA model: the samplers' --max-lora-rank.")
    add("--batch_tokens", type=int, default=8192, help="Padded tokens that are computed at once.")
    add("--idle_seconds", type=float, default=0.0, help="End with 0 after so long without a request; 0 never ends.")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal or the idle limit, and return the exit code."""
    args = make_parser().parse_args(argv)
    try:
        return _serve(args)
    except RunError as error:
        report_error(error.message)
        return error.code


def _serve(args: Any) -> int:
    from stoker.tinker.checkpoints import Checkpoints
    from stoker.tinker.samplers import Samplers
    from stoker.tinker.server import Endpoint
    from stoker.tinker.service import Service

    key = _key(args.key_file)
    addresses = [
        f"{'https' if one.tls else 'http'}://{f'[{one.host}]' if ':' in one.host else one.host}:{one.port}"
        for one in addresses_in(args.samplers)
    ]
    sampler_key = _read(args.samplers_key_file).strip() if args.samplers_key_file else ""
    owner = str(args.output_dir.resolve())
    samplers = Samplers(addresses, args.adapters, args.run, owner, args.model_name_or_path, key=sampler_key)

    from stoker.tinker.trainer import Trainer  # torch takes seconds; what is wrong above is told at once

    try:
        trainer = Trainer(
            args.model_name_or_path,
            dtype=args.dtype,
            batch_tokens=args.batch_tokens,
            most=args.max_models,
            largest_rank=args.max_rank,
        )
    except (OSError, ValueError) as error:
        raise RunError(
            ExitCode.NO_INPUT,
            f"the model {args.model_name_or_path!r} cannot be loaded ({error}): correct --model_name_or_path",
        ) from error
    service = Service(trainer, Checkpoints(args.output_dir / "checkpoints"), samplers)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    code = ExitCode.STOPPED
    with Endpoint((args.host, args.port), service, key) as endpoint:
        threading.Thread(target=endpoint.serve_forever, name="http", daemon=True).start()
        say(f"serving {args.model_name_or_path} to tinker clients at port {endpoint.server_address[1]}")
        while not ended.wait(_LOOK_SECONDS):
            if 0 < args.idle_seconds < service.idle_seconds:
                say(f"no request for {args.idle_seconds:g} s: the endpoint ends")
                code = ExitCode.FINISHED
                break
        endpoint.shutdown()
    service.close()
    return code


def _key(file: Path) -> str:
    from stoker.tinker.server import checked_key

    try:
        return checked_key(_read(file))
    except ValueError as error:
        raise RunError(ExitCode.CONFIG, f"--key_file {file}: {error}") from error


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise RunError(
            ExitCode.CONFIG, f"{file} cannot be read ({error.strerror}): mount the Secret with the key there"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
