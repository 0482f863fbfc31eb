"""The kernel's own count of kills tells a lack of memory from any other SIGKILL."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.frameworks import TRL
from stoker.node.memory import MemoryCount, read_memory


def written(root: Path, files: dict[str, str]) -> Path:
    """Write files below a folder and return it."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2 = {"memory.max": "4294967296\n", "memory.events": "low 0\nhigh 0\nmax 12\noom 2\noom_kill 3\n"}
V1 = {"memory.limit_in_bytes": "1048576\n", "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"}


@pytest.mark.parametrize(
    ("below", "membership", "files", "memory"),
    [
        ("", "0::/\n", V2, MemoryCount(4 * 2**30, 3)),
        ("pod/node/", "0::/pod/node\n", V2, MemoryCount(4 * 2**30, 3)),
        ("", "0::/kubepods/elsewhere\n", V2, MemoryCount(4 * 2**30, 3)),
        ("", "0::/\n", {**V2, "memory.max": "max\n"}, MemoryCount(None, 3)),
        ("memory/", "5:cpu,cpuacct:/\n4:memory:/kubepods/x\n0::/\n", V1, MemoryCount(2**20, 1)),
        ("memory/a/", "4:memory:/a\n", {**V1, "memory.limit_in_bytes": f"{2**63 - 4096}\n"}, MemoryCount(None, 1)),
        ("", "0::/\n", {"memory.events": "oom_kill many\n"}, MemoryCount()),
        ("", "", {}, MemoryCount()),
    ],
    ids=[
        "v2 in a container",
        "v2 on a host",
        "v2, the host's path",
        "v2, no limit",
        "v1 in a container",
        "v1 on a host",
        "no number",
        "no cgroup",
    ],
)
def test_the_cgroups_counters_are_found(
    tmp_path: Path, below: str, membership: str, files: dict[str, str], memory: MemoryCount
) -> None:
    root = written(tmp_path / "cgroup", {below + name: text for name, text in files.items()})
    own = tmp_path / "membership"
    own.write_text(membership)
    assert read_memory(root, own) == memory


def test_a_shortage_is_told_with_the_limit_and_only_if_it_is_new() -> None:
    now = MemoryCount(4 * 2**30, 3)
    assert now.shortage_since(now, TRL.flag_names) == ""
    assert "killed a process at the container's memory limit of 4.0 GiB" in (
        now.shortage_since(MemoryCount(None, 2), TRL.flag_names) or ""
    )
    assert "killed 3 processes" in (now.shortage_since(MemoryCount(None, 0), TRL.flag_names) or "")
    assert now.shortage_since(MemoryCount(), TRL.flag_names) is None
    assert MemoryCount().shortage_since(now, TRL.flag_names) is None


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup of this machine with 64 MiB of memory."""
    v2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    folder = Path("/sys/fs/cgroup") / ("" if v2 else "memory") / f"stoker-test-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
        (folder / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(str(64 * 2**20))
        swap = folder / ("memory.swap.max" if v2 else "memory.memsw.limit_in_bytes")
        if swap.exists():
            swap.write_text("0" if v2 else str(64 * 2**20))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield folder
    folder.rmdir()


def test_the_kernel_is_seen_to_kill(small_cgroup: Path, tmp_path: Path) -> None:
    version = "" if (small_cgroup / "memory.events").exists() else "memory"
    membership = tmp_path / "membership"
    membership.write_text(f"4:{version}:/{small_cgroup.name}\n" if version else f"0::/{small_cgroup.name}\n")
    before = read_memory(membership=membership)
    hungry = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); bytearray(256 * 2**20)"
    done = subprocess.run([sys.executable, "-c", hungry, str(small_cgroup / "cgroup.procs")], check=False)
    assert done.returncode == -9
    sentence = read_memory(membership=membership).shortage_since(before, TRL.flag_names)
    assert sentence is not None
    assert "killed a process at the container's memory limit of 0.1 GiB" in sentence
