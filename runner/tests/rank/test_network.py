"""The network that NCCL chose, read from its own words."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner.tests.rank.nccl_logs import EFA, IB, POD, SOCKET

from stoker.rank.network import keep_log, read_transport, sentence, transport_of


@pytest.mark.parametrize(
    ("log", "transport"),
    [
        (IB, "IB with GPUDirect RDMA"),
        (SOCKET, "Socket"),
        (EFA, "AWS Libfabric with GPUDirect RDMA"),
        (f"{POD} Using network IB\n", "IB"),
        (f"{POD} Initialized NET plugin IB\n", "IB"),
        (SOCKET + f"{POD} Channel 01/0 : 0[0] -> 8[0] [send] via NET/IB/1\n", "IB, Socket"),
        (f"{POD} Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM\n", None),
        ("", None),
    ],
)
def test_the_channels_say_what_is_used(log: str, transport: str | None) -> None:
    assert transport_of(log.splitlines()) == transport


def test_a_log_is_kept_unless_the_user_asked_for_one(tmp_path: Path) -> None:
    file = tmp_path / "nccl.log"
    environ: dict[str, str] = {}
    assert keep_log(environ, file)
    assert environ == {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(file)}
    for name in environ:
        own = {name: "WARN"}
        assert not keep_log(own, file)
        assert own == {name: "WARN"}


def test_a_log_that_is_missing_or_broken_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "nccl.log"
    assert read_transport(file) is None
    file.write_bytes(b"\xff\xfe" + SOCKET.encode())
    assert read_transport(file) == "Socket"


def test_tcp_is_named_as_such() -> None:
    assert "TCP" in sentence("Socket")
    assert "TCP" not in sentence("IB with GPUDirect RDMA")
