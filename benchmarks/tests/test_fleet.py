"""What the fleet's benchmark makes of its pairs, what its clients see, and that it refuses wrong arguments."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from benchmarks import fleet
from benchmarks.children import Child
from benchmarks.fleet import (
    ROWS,
    Asked,
    Bandwidth,
    Bench,
    load_of,
    main,
    of_affinity,
    of_delta,
    of_pause,
    of_shares,
    of_storage,
    of_url,
    volume_problem,
)
from benchmarks.fleet_streams import Gap, Streamed, around, gaps_during
from benchmarks.jobs import JobFailed
from benchmarks.serving import Load

PROGRAM = Path(fleet.__file__)


def asked(speed: float, loaded: float, alone: float) -> Asked:
    return Asked(Load(speed, [0.1], [loaded]), Load(1.0, [0.01], [alone]))


def test_ways_are_compared_by_their_speed_and_by_one_request() -> None:
    speed, alone, loaded = of_url([(asked(99.0, 0.35, 0.0125), asked(100.0, 0.3, 0.0115))] * 3)
    assert speed == (
        "url, throughput          the one URL 99.00 tokens/s, the replicas' proxies 100.00 tokens/s, "
        "ratio 0.990 (0.990 to 0.990) of 3 pairs, goal at least 0.98"
    )
    assert alone == (
        "url, request alone       the one URL 12.50 ms, the replicas' proxies 11.50 ms, "
        "difference 1.00 ms (1.00 to 1.00) of 3 pairs, goal at most 2 ms"
    )
    assert "difference 50.00 ms" in loaded
    assert str(asked(99.0, 0.35, 0.0125)) == "99.0 tokens/s, one token alone 12.50 ms"
    assert "not measured" in next(of_url([]))


def test_a_reload_counts_by_the_longest_gap_of_each_client() -> None:
    """Also where so few gaps have a reload that 99 of 100 of all do not show it."""
    gaps = [Gap(0, 0.01 * number, 0.01 * (number + 1)) for number in range(500)]
    gaps += [Gap(0, 5.0, 5.2), Gap(1, 4.9, 5.05), Gap(2, 0.0, 4.0), Gap(2, 6.0, 7.0)]
    found = around(gaps, [(5.04, 5.1)])
    assert sorted(found) == pytest.approx([0.15, 0.2])
    assert around(gaps, []) == []
    seconds = [gap.end - gap.begin for gap in gaps[:501]]
    assert Streamed(seconds).pause == pytest.approx(0.01)
    assert Streamed(seconds, [(5.04, 5.1)], found).pause == pytest.approx(0.2)


def test_pauses_are_reported_beside_all_gaps() -> None:
    reloaded = Streamed([0.01] * 200 + [0.06], [(1.0, 1.5), (2.0, 2.7)], [0.06, 0.05])
    pause, every, reloads = of_pause("adapters", [(reloaded, Streamed([0.02] * 200))] * 3)
    assert pause == (
        "pause, adapters          with reloads 60.00 ms, without 20.00 ms, "
        "difference 40.00 ms (40.00 to 40.00) of 3 pairs, goal at most 100 ms"
    )
    assert "with reloads 10.00 ms, without 20.00 ms, difference -10.00 ms" in every
    assert reloads == "  6 reloads, median 0.600 s from before the write until it is served; longest gap 60 ms"
    assert next(of_pause("weights", [])) == "pause, weights           not measured: no pair ended"


def test_files_are_compared_by_size_and_time() -> None:
    one = {"bytes": 8 * 2**20, "write": 1.0, "read": 0.5, "changed": 0.02, "whole": 0.0}
    other = {"bytes": 80 * 2**20, "write": 2.0, "read": 2.0, "changed": 0.0, "whole": 1.0}
    size, write, read, changed = of_delta([(one, other)])
    assert size == (
        "delta, bytes             difference 8.00 MiB, whole 80.00 MiB, "
        "ratio 0.100 (0.100 to 0.100) of 1 pairs, goal at most 0.2"
    )
    assert "delta, write" in write
    assert "ratio 0.500" in write
    assert "ratio 0.250" in read
    assert changed == "  a step has changed 2.00 % of the weights, in bfloat16"
    assert "not measured" in next(of_delta([]))


def test_bandwidths_are_compared_with_those_of_dd() -> None:
    written, read = of_storage([(Bandwidth(90 * 2**20, 300 * 2**20), Bandwidth(100 * 2**20, 400 * 2**20))])
    assert written.startswith("storage, written         stoker 90.00 MiB/s, dd 100.00 MiB/s, ratio 0.900")
    assert read.endswith("ratio 0.750 (0.750 to 0.750) of 1 pairs, goal at least 0.8")
    assert "not measured" in next(of_storage([]))


def test_affinity_and_shares_are_told() -> None:
    answers = [("a", "one")] * 3 + [("a", "other")] + [("b", "other")] * 4
    assert of_affinity(answers).endswith(
        "87.5 % of 8 requests reached the replica of their group; 2 groups, 2 replicas; goal at least 95 %"
    )
    assert of_shares(10.0, 8.0, 20).endswith("10.00 s and 8.00 s in 20 turns, ratio 1.250, goal 0.95 to 1.05")


class Model(BaseHTTPRequestHandler):
    """Streams tokens as vLLM does."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a kept connection waits 40 ms for each body otherwise

    def do_POST(self) -> None:
        """Send as many as were asked for; one model is not there."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(404 if asked["model"] == "gone" else 200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        lines = ['data: {"choices": []}\n\n'] * asked["max_tokens"]
        if asked["model"] == "broken":
            lines = ['data: {"choices": []}\n\n', 'data: {"error": {"message": "the engine is dead"}}\n\n']
        try:
            for line in (*lines, "data: [DONE]\n\n"):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line.encode()))
                time.sleep(0.01)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:  # the client has what it needs
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Be silent."""


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as model:
        threading.Thread(target=model.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{model.server_address[1]}"
        model.shutdown()


def test_clients_measure_gaps_between_tokens_while_something_happens(server: str) -> None:
    began = time.monotonic()

    def happens() -> str:
        time.sleep(0.5)
        return "it happened"

    gaps, result = gaps_during(server, "base", 2, 20, happens)
    assert result == "it happened"
    assert {gap.stream for gap in gaps} == {0, 1}
    assert all(began < gap.begin <= gap.end for gap in gaps)
    assert len(gaps) > 10


@pytest.mark.parametrize(("model", "why"), [("gone", "404"), ("broken", "the engine is dead")])
def test_an_answer_that_fails_is_told(server: str, model: str, why: str) -> None:
    with pytest.raises(JobFailed, match=why):
        gaps_during(server, model, 2, 20, lambda: time.sleep(0.2))


def test_clients_ask_in_a_process_of_their_own(server: str) -> None:
    order = {"urls": [server, server], "key": "", "model": "base", "requests": 4, "concurrency": 2, "tokens": 3}
    assert len(load_of(order, 60).request) == 4
    with pytest.raises(JobFailed, match="the clients ended with 1"):
        load_of({**order, "model": "gone"}, 60)
    with pytest.raises(JobFailed, match=r"the clients did not end within 0\.01 s"):
        load_of(order, 0.01)


@pytest.fixture
def child(tmp_path: Path) -> Callable[..., Child]:
    script = tmp_path / "side.py"
    script.write_text(
        "import os, sys, time\n"
        "from benchmarks.children import answer\n"
        "print('a library says something')\n"
        "answer({'add': lambda one, other: one + other, 'sleep': time.sleep, 'end': lambda: sys.exit(3)})\n"
    )
    return lambda patience=60.0: Child([sys.executable, script], patience)


def test_a_child_answers_orders_whatever_else_it_prints(child: Callable[..., Child]) -> None:
    with child() as one:
        assert one.ask("add", one=1, other=2) == 3
        assert one.ask("add", one="a", other="b") == "ab"
    assert one._process.returncode == 0


def test_a_child_that_ends_or_is_slow_is_told(child: Callable[..., Child]) -> None:
    with child() as one, pytest.raises(JobFailed, match=r"side\.py ended with 3"):
        one.ask("end")
    with child(0.01) as one, pytest.raises(JobFailed, match=r"side\.py did not add within 0\.01 s"):
        one.ask("add", one=1, other=2)


def test_a_volume_without_room_or_without_a_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    stat.write_text("#!/bin/sh\necho ext2/ext3\n")
    stat.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert volume_problem(tmp_path, 1) == ""
    problem = volume_problem(tmp_path, 2**60)
    assert problem.endswith(f"MiB left, {2**40} are needed: name another folder with --folder")
    stat.write_text("#!/bin/sh\necho tmpfs\n")
    assert volume_problem(tmp_path, 1) == f"{tmp_path} is in memory (tmpfs): name a folder of a disk with --folder"


def test_a_step_after_which_all_is_written_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "fleet_files.py"
    script.write_text(
        "from benchmarks.children import answer\n"
        "answer({'step': lambda: None, 'write': lambda side: {'whole': 1.0, 'changed': 0.9}})\n"
    )
    monkeypatch.setattr(fleet, "_HERE", tmp_path)
    monkeypatch.setattr(fleet, "volume_problem", lambda *_: "")
    bench = Bench(tmp_path, argparse.Namespace(pairs=1, size=1, learning_rate=1e-3, patience=60.0, seconds=1.0))
    bench.python = Path(sys.executable)
    with pytest.raises(JobFailed, match="a step has changed 90 % of the weights, so all were written: lower"):
        fleet.delta(bench)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--pairs", "0"], "argument --pairs: must be a whole number, 1 or more: '0'"),
        (["--requests", "0"], "argument --requests: must be a whole number, 1 or more: '0'"),
        (["--clients", "none"], "argument --clients: must be a whole number, 1 or more: 'none'"),
        (["--seconds", "0"], "argument --seconds: must be a positive number of seconds: '0'"),
        (["--size", "1023"], "argument --size: must be a whole number, 1024 or more: '1023'"),
        (["--turns", "1"], "argument --turns: must be a whole number, 20 or more: '1'"),
        (["--learning-rate", "1"], "argument --learning-rate: must be a number above 0 and below 1: '1'"),
        (["--learning-rate", "nan"], "argument --learning-rate: must be a number above 0 and below 1: 'nan'"),
        (["--folder", "/nowhere"], "argument --folder: must be a folder that you may write to: '/nowhere'"),
        (["pause", "pauses"], f"argument ROW: there is no row 'pauses': choose from {', '.join(ROWS)}"),
    ],
)
def test_wrong_arguments_are_refused_at_once(words: Sequence[str], problem: str, refusal: Callable[..., str]) -> None:
    assert problem in refusal(main, *words)


def test_what_is_lost_is_said_at_the_end_and_costs_no_other_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def lost(_bench: Bench) -> None:
        raise JobFailed("a log\nvLLM did not start")

    def measured(bench: Bench) -> None:
        assert bench.folder.parent == tmp_path
        print("measured")

    monkeypatch.setattr(sys, "argv", ["fleet.py", "lost", "measured", "--folder", str(tmp_path)])
    monkeypatch.setattr(fleet, "ROWS", {"lost": lost, "measured": measured})
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().out.splitlines() == ["measured", "lost: row lost: vLLM did not start"]
    assert [*tmp_path.iterdir()] == []


def test_its_help_names_each_row_and_shows_examples() -> None:
    shown = subprocess.run([sys.executable, PROGRAM, "--help"], check=True, capture_output=True, text=True).stdout
    assert all(f"\n  {row} " in shown for row in ROWS)
    assert "benchmarks/fleet.py pause --seconds 30 --every 0.25" in shown
