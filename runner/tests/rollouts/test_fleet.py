"""A request is answered as long as one sampler is there, whatever the others do, and by the version that it names."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runner.tests.rollouts.replicas import BASE, FakeReplica, Replicas, until, urls
from runner.tests.serve.adapters.samples import make_adapter

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts import fleet as fleets
from stoker.rollouts import replicas as judges
from stoker.rollouts.addresses import Address, addresses_in
from stoker.rollouts.connections import Place
from stoker.rollouts.fleet import Fleet
from stoker.rollouts.records import Request, Turn
from stoker.rollouts.replicas import Needs, Replica, weight
from stoker.serve.adapters import versions

FIX = "; look at the samplers' pods and logs, or write a larger `--fleet_wait_seconds`"


@pytest.fixture
def fleet_of() -> Iterator[Callable[..., Fleet]]:
    """Makes fleets that are closed at the end."""
    made: list[Fleet] = []

    def make(found: list[FakeReplica] | str, needs: Needs | None = None, **told: Any) -> Fleet:
        text = found if isinstance(found, str) else urls(found)
        made.append(Fleet(addresses_in(text), "run", needs or Needs(), **{"wait_seconds": 20.0, **told}))
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()


def request(ordinal: int, version: int = 0, index: int = 0) -> Request:
    return Request((ordinal, 5), version, ordinal, index, 0, max_tokens=3, temperature=0.7, seed=2**63 - 1)


def ask(fleet: Fleet, *requests: Request) -> list[Turn]:
    """Return the answers to requests that are sent at once."""

    async def together() -> list[Turn]:
        return await asyncio.gather(*(fleet.complete(one) for one in requests))

    return asyncio.run(together())


def in_a_loop(work: Callable[[], Awaitable[Any]]) -> tuple[ThreadPoolExecutor, Any]:
    """Run something in an event loop of another thread; return the pool and the future."""

    async def call() -> Any:
        return await work()

    pool = ThreadPoolExecutor(1)
    return pool, pool.submit(lambda: asyncio.run(call()))


def publish(folder: Path, tmp_path: Path, number: int) -> None:
    source = tmp_path / "output"
    if not source.exists():
        make_adapter(source)
    versions.publish(source, folder, "run", number)


def test_an_answer_is_what_the_sampler_wrote(replicas: Replicas, fleet_of: Callable[..., Fleet]) -> None:
    (replica,) = replicas.start()
    fleet = fleet_of([replica])
    fleet.check()
    (turn,) = ask(fleet, request(7))
    assert (turn.prompt_ids, turn.completion_ids) == ((7, 5), (replica.port % 1000,) * 3)
    assert (turn.logprobs, turn.version, turn.finish) == ((-0.5,) * 3, 0, "length")
    assert turn.replica == f"127.0.0.1:{replica.port}"
    assert replica.bodies == [
        {
            "model": BASE, "prompt": [7, 5], "max_tokens": 3, "seed": 2**63 - 1,
            "temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
            "logprobs": 0, "return_token_ids": True,
        }
    ]  # fmt: skip


def test_the_samples_of_a_group_go_to_one_replica_and_all_replicas_have_work(
    replicas: Replicas, fleet_of: Callable[..., Fleet]
) -> None:
    found = replicas.start(4, think=0.05)
    fleet = fleet_of(found)
    fleet.check()
    until(lambda: len(fleet.ready()) == 4)
    turns = ask(fleet, *(request(ordinal, index=index) for ordinal in range(32) for index in range(8)))
    homes: dict[int, set[str]] = {}
    for turn in turns:
        homes.setdefault(turn.prompt_ids[0], set()).add(turn.replica)
    assert all(len(home) == 1 for home in homes.values())
    counts = Counter(turn.replica for turn in turns)
    assert len(counts) >= 3, "by its hash no group may prefer one of them, once in thousands of runs"
    assert max(counts.values()) <= 1.5 * 64 + 8


def test_only_the_groups_of_a_replica_that_goes_away_move() -> None:
    names = [f"sampler-{number}:8000" for number in range(5)]
    for ordinal in range(500):
        before = max(names, key=lambda name: weight(ordinal, name))
        after = max(names[:-1], key=lambda name: weight(ordinal, name))
        assert after == before or before == names[-1]


@pytest.mark.parametrize("status", [429, 503, 502, "drop", "abort", "empty", "other", 500])
def test_a_request_that_fails_is_answered_by_another_replica(
    replicas: Replicas, fleet_of: Callable[..., Fleet], status: int | str
) -> None:
    found = replicas.start(2)
    fleet = fleet_of(found)
    fleet.check()
    until(lambda: len(fleet.ready()) == 2)
    for replica in found:
        replica.statuses.append(status)
    turns = ask(fleet, *(request(ordinal) for ordinal in range(12)))
    assert [turn.prompt_ids[0] for turn in turns] == [*range(12)]
    assert not any(replica.statuses for replica in found)


def test_a_busy_fleet_is_asked_until_it_answers_however_long(
    replicas: Replicas, fleet_of: Callable[..., Fleet]
) -> None:
    (replica,) = replicas.start()
    fleet = fleet_of([replica], wait_seconds=0.3)
    fleet.check()
    replica.statuses.extend([429] * 4)
    started = time.monotonic()
    ask(fleet, request(1))
    assert time.monotonic() - started > 1.0, "longer than a fleet may be empty"


def test_a_busy_replica_gets_fewer_requests_at_once(replicas: Replicas, fleet_of: Callable[..., Fleet]) -> None:
    (replica,) = replicas.start(think=0.01)
    fleet = fleet_of([replica], concurrency=8)
    fleet.check()
    ask(fleet, *(request(ordinal) for ordinal in range(32)))
    assert replica.busiest == 8
    replica.statuses.append(503)
    ask(fleet, *(request(ordinal) for ordinal in range(8)))
    replica.busiest = 0
    ask(fleet, *(request(ordinal) for ordinal in range(8)))
    assert replica.busiest < 8


def test_connections_that_were_closed_while_idle_cost_nobody_his_place(
    replicas: Replicas, fleet_of: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    (replica,) = replicas.start()
    fleet = fleet_of([replica])
    fleet.check()
    blamed: list[Any] = []
    monkeypatch.setattr(Replica, "failed", lambda *told, **_: blamed.append(told))

    async def twice() -> None:
        await asyncio.gather(*(fleet.complete(request(ordinal)) for ordinal in range(4)))
        await asyncio.to_thread(replicas.drop_idle, replica)
        await asyncio.gather(*(fleet.complete(request(ordinal)) for ordinal in range(4)))

    asyncio.run(twice())
    assert (len(replica.asked), blamed) == (8, [])


def test_a_replica_that_is_killed_loses_nothing(replicas: Replicas, fleet_of: Callable[..., Fleet]) -> None:
    found = replicas.start(3, think=1.0)
    fleet = fleet_of(found)
    fleet.check()
    until(lambda: len(fleet.ready()) == 3)
    pool, asked = in_a_loop(lambda: asyncio.gather(*(fleet.complete(request(ordinal)) for ordinal in range(48))))
    until(lambda: all(replica.busy for replica in found))
    replicas.kill(found[0])
    turns = asked.result(120)
    pool.shutdown()
    assert sorted(turn.prompt_ids[0] for turn in turns) == [*range(48)]
    assert f"127.0.0.1:{found[0].port}" not in {turn.replica for turn in turns}
    until(lambda: len(fleet.ready()) == 2)
    replicas.revive(found[0])
    until(lambda: len(fleet.ready()) == 3)


def test_a_replica_that_lost_its_versions_is_told_to_look(
    replicas: Replicas, fleet_of: Callable[..., Fleet], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise the fleet may hear that it has lost them before it asks.
    monkeypatch.setattr("stoker.rollouts.fleet._POLL_SECONDS", 60.0)
    (replica,) = replicas.start()
    fleet = fleet_of([replica])
    fleet.check()
    publish(folder, tmp_path, 3)
    assert fleet.spread(3, 5) == (f"127.0.0.1:{replica.port}",)
    looks = replica.counted["/look"]
    replica.loaded.clear()
    (turn,) = ask(fleet, request(1, version=3))
    assert turn.version == 3
    assert replica.counted["/look"] == looks + 1
    assert replica.asked == [("run:3", 1)]


def test_a_request_goes_only_to_replicas_that_have_its_version(
    replicas: Replicas, fleet_of: Callable[..., Fleet], folder: Path, tmp_path: Path
) -> None:
    found = replicas.start(2)
    fleet = fleet_of(found)
    fleet.check()
    until(lambda: len(fleet.ready()) == 2)
    found[0].stuck = True
    publish(folder, tmp_path, 1)
    assert fleet.spread(1, 0.3) == (f"127.0.0.1:{found[1].port}",)
    ask(fleet, *(request(ordinal, version=1) for ordinal in range(8)))
    assert not found[0].asked
    ask(fleet, *(request(ordinal) for ordinal in range(8, 24)))
    assert found[0].asked, "it still serves the base model"


def test_what_every_sampler_would_refuse_ends_the_run_with_its_words(
    replicas: Replicas, fleet_of: Callable[..., Fleet]
) -> None:
    (replica,) = replicas.start()
    fleet = fleet_of([replica])
    fleet.check()
    replica.statuses.append(400)
    with pytest.raises(RunError, match=r"refuses turn 0 of sample 0 of group 9 .*: 400: the server said 400") as ending:
        ask(fleet, request(9))
    assert ending.value.code is ExitCode.CONFIG


def test_answers_that_no_training_can_use_end_the_run_in_the_end(
    replicas: Replicas, fleet_of: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "_FAULTS", 3)
    (replica,) = replicas.start()
    fleet = fleet_of([replica])
    fleet.check()
    replica.statuses.extend(["empty"] * 3)
    with pytest.raises(RunError, match=r"no sampler answers sample 0 of group 9 with tokens; .*0 tokens") as ending:
        ask(fleet, request(9))
    assert ending.value.code is ExitCode.CRASHED


def test_a_fleet_that_is_gone_for_too_long_ends_the_run(replicas: Replicas, fleet_of: Callable[..., Fleet]) -> None:
    (replica,) = replicas.start()
    fleet = fleet_of([replica], wait_seconds=0.6)
    fleet.check()
    replicas.kill(replica)
    started = time.monotonic()
    with pytest.raises(RunError, match=rf"no sampler was ready for 0.6 s: 127.0.0.1:{replica.port} .no conn") as ending:
        ask(fleet, request(1))
    assert ending.value.code is ExitCode.STOPPED
    assert ending.value.message.endswith(FIX)
    assert time.monotonic() - started > 0.5


def test_an_answer_that_is_lost_after_longer_than_the_fleet_is_waited_for_moves(
    replicas: Replicas, fleet_of: Callable[..., Fleet]
) -> None:
    found = replicas.start(2, think=5)
    fleet = fleet_of(found, wait_seconds=0.3)
    fleet.check()
    until(lambda: len(fleet.ready()) == 2)
    pool, asked = in_a_loop(lambda: fleet.complete(request(1)))
    until(lambda: any(replica.busy for replica in found))
    lost, other = sorted(found, key=lambda replica: not replica.busy)
    other.think = 0
    time.sleep(0.8)
    replicas.kill(lost)
    turn = asked.result(120)
    pool.shutdown()
    assert turn.replica == f"127.0.0.1:{other.port}"


def test_samplers_that_never_come_are_named(fleet_of: Callable[..., Fleet]) -> None:
    told: list[str] = []
    fleet = fleet_of("127.0.0.1:9,no-such-host.invalid:8000", wait_seconds=1.5)
    with pytest.raises(RunError) as ending:
        fleet.check(told.append)
    assert ending.value.code is ExitCode.STOPPED
    assert ending.value.message.endswith(FIX)
    for text in (ending.value.message, told[0]):
        assert "no-such-host.invalid is not known" in text
        assert "127.0.0.1:9 (no connection: " in text


def test_a_sampler_that_is_still_loading_is_waited_for(replicas: Replicas, fleet_of: Callable[..., Fleet]) -> None:
    (replica,) = replicas.start(ready=False)
    fleet = fleet_of([replica])
    with ThreadPoolExecutor(1) as pool:
        check = pool.submit(fleet.check)
        time.sleep(0.5)
        assert not check.done()
        replica.ready = True
        check.result(120)
    assert fleet.ready() == (f"127.0.0.1:{replica.port}",)


NEEDS = Needs("acme/tiny", "r1", "a-b-c", prompt=100, answer=28, loras=6, rank=16)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"source": "acme/other"}, "it serves acme/other, but the run trains acme/tiny: give trainer and samplers the"),
        ({"source": "acme/tiny", "revision": "r2"}, "it serves revision r2 of acme/tiny, but the run trains r1"),
        ({"fingerprint": "x-b-c"}, "it serves another base model (base: its layers have other names or shapes)"),
        ({"fingerprint": "a-b-x"}, "it serves another base model (base: its weights have other values)"),
        ({"max_rank": 8}, "it takes adapters up to rank 8, but the run's have 16: raise lora.maxRank"),
        ({"max_loras": 5}, "it has room for 5 adapters at a time, but the run needs 6: raise lora.maxLoras, or lower"),
    ],
)
def test_a_sampler_that_does_not_fit_is_refused_before_the_first_step(
    replicas: Replicas, fleet_of: Callable[..., Fleet], told: dict[str, Any], said: str
) -> None:
    found = replicas.start(2)
    found[1].server = told
    with pytest.raises(RunError) as ending:
        fleet_of(found, NEEDS).check()
    assert ending.value.code is ExitCode.CONFIG
    assert ending.value.message.startswith(f"sampler 127.0.0.1:{found[1].port}: {said}")
    assert not any(replica.asked for replica in found)


def test_a_sampler_that_takes_less_than_the_longest_prompt_is_refused(
    replicas: Replicas, fleet_of: Callable[..., Fleet]
) -> None:
    (replica,) = replicas.start(length=127)
    said = r"it takes 127 tokens, but the longest prompt \(row 5 of the data set\) has 100 and an answer up to 28"
    with pytest.raises(RunError, match=said):
        fleet_of([replica], replace(NEEDS, row="row 5 of the data set")).check()
    replica.length = 128
    fleet_of([replica], NEEDS).check()


def test_an_answer_has_the_room_of_the_sampler_that_takes_least(
    replicas: Replicas, fleet_of: Callable[..., Fleet]
) -> None:
    found = replicas.start(2, length=200)
    found[1].length = 150
    fleet = fleet_of(found, NEEDS)
    fleet.check()
    until(lambda: len(fleet.ready()) == 2)
    assert fleet.context() == 150


def test_a_sampler_that_says_nothing_of_itself_fits(replicas: Replicas, fleet_of: Callable[..., Fleet]) -> None:
    (replica,) = replicas.start(server={"source": "/a/path", "max_rank": None, "fingerprint": ""})
    fleet_of([replica], NEEDS).check()


def test_a_replica_of_another_base_model_that_comes_later_is_not_used(
    replicas: Replicas, fleet_of: Callable[..., Fleet], capsys: pytest.CaptureFixture[str]
) -> None:
    found = replicas.start(2, server={"fingerprint": "a-b-c"})
    replicas.kill(found[1])
    fleet = fleet_of(found, NEEDS)
    fleet.check()
    replicas.revive(found[1], server={"fingerprint": "x-y-z"})
    until(lambda: "is not used: it serves another base model" in capsys.readouterr().err)
    ask(fleet, *(request(ordinal) for ordinal in range(8)))
    assert (fleet.ready(), len(found[0].asked)) == ((f"127.0.0.1:{found[0].port}",), 8)
    replicas.kill(found[1])
    replicas.revive(found[1], server={})
    until(lambda: len(fleet.ready()) == 2)


def test_a_fleet_grows_and_shrinks_while_it_is_asked(
    replicas: Replicas, fleet_of: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "_RESOLVE_SECONDS", 0.05)
    found = replicas.start(3)
    known = found[:2]

    async def places(_address: object) -> dict[Place, str]:
        return {Place("samplers", one.port, "127.0.0.1"): f"10.0.0.{one.port}" for one in known}

    monkeypatch.setattr(fleets, "places_of", places)
    fleet = fleet_of("samplers:8000")
    fleet.check()
    until(lambda: len(fleet.ready()) == 2)
    stop = threading.Event()

    async def keep_asking() -> int:
        ordinal = 0
        while not stop.is_set():
            await asyncio.gather(*(fleet.complete(request(ordinal + more)) for more in range(8)))
            ordinal += 8
        return ordinal

    pool, asked = in_a_loop(keep_asking)
    known = found
    until(lambda: bool(found[2].asked))
    assert fleet.size() == 3
    known = found[1:]
    until(lambda: fleet.size() == 2)
    count = len(found[0].asked)
    until(lambda: len(found[1].asked) > 100)
    stop.set()
    total = asked.result(120)
    pool.shutdown()
    assert len(found[0].asked) <= count + 8
    assert sum(len(replica.asked) for replica in found) == total


def test_a_replica_that_is_slow_to_say_what_it_serves_is_kept_for_a_while(
    replicas: Replicas, fleet_of: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "_POLL_SECONDS", 0.02)
    (replica,) = replicas.start()
    fleet = fleet_of([replica])
    fleet.check()
    cases: list[tuple[list[int | str], bool]] = [(["drop", 503], True), (["drop"] * 20, False)]
    for statuses, kept in cases:
        replica.shown.extend(statuses)
        lost = False
        while replica.shown:
            lost = lost or not fleet.ready()
            time.sleep(0.001)
        assert lost is not kept
        until(lambda: len(fleet.ready()) == 1)


KEY = "a-key-of-the-release"
SECRET = ": take it from the Secret in its release's api.keySecret"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("another-key-altogether", "it refuses the key in STOKER_SAMPLERS_API_KEY (401: The API key is missing or"),
        ("", "it asks for a key: set STOKER_SAMPLERS_API_KEY (401: The API key is missing or"),
    ],
)
def test_a_wrong_key_ends_the_run_before_the_first_step_and_is_not_shown(
    replicas: Replicas, fleet_of: Callable[..., Fleet], capsys: pytest.CaptureFixture[str], key: str, said: str
) -> None:
    (replica,) = replicas.start(key=KEY)
    with pytest.raises(RunError) as ending:
        fleet_of([replica], key=key).check()
    assert ending.value.code is ExitCode.CONFIG
    assert ending.value.message == f"sampler 127.0.0.1:{replica.port}: {said} wrong.){SECRET}"
    assert "another-key-altogether" not in capsys.readouterr().err


def test_a_fleet_sends_its_key_with_every_request(replicas: Replicas, fleet_of: Callable[..., Fleet]) -> None:
    found = replicas.start(2, key=KEY, sees=True)
    fleet = fleet_of(found, NEEDS, key=KEY)
    fleet.check()
    ask(fleet, *(request(ordinal) for ordinal in range(8)))
    assert sum(len(replica.asked) for replica in found) == 8


def test_a_key_that_changes_during_a_run_is_waited_for(
    replicas: Replicas, fleet_of: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pods of the run then start again, and with the new key."""
    monkeypatch.setattr(fleets, "_POLL_SECONDS", 0.05)
    found = replicas.start(2, key=KEY)
    fleet = fleet_of(found, key=KEY, wait_seconds=1.0)
    fleet.check()
    until(lambda: len(fleet.ready()) == 2)
    found[0].key = "the-next"
    ask(fleet, *(request(ordinal) for ordinal in range(8)))
    assert len(found[1].asked) == 8
    found[0].key = KEY
    until(lambda: len(fleet.ready()) == 2)
    found[0].key = found[1].key = "the-next"
    with pytest.raises(RunError, match=r"no sampler was ready for 1 s: .*it refuses the key in STOKER_SAMP") as ending:
        ask(fleet, request(9))
    assert ending.value.code is ExitCode.STOPPED


def test_a_server_that_is_no_sampler_ends_the_run_before_the_first_step(
    replicas: Replicas, fleet_of: Callable[..., Fleet]
) -> None:
    (replica,) = replicas.start(watched=False)
    with pytest.raises(RunError, match="it has no /adapters: name the port of a sampler or, as http://NAME") as ending:
        fleet_of([replica]).check()
    assert ending.value.code is ExitCode.CONFIG


def test_samplers_that_look_into_another_folder_are_refused(
    replicas: Replicas, fleet_of: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judges, "_LAG_SECONDS", 0.6)
    (replica,) = replicas.start(sees=False)
    told: list[str] = []
    with pytest.raises(RunError) as ending:
        fleet_of([replica], NEEDS).check(told.append)
    assert ending.value.code is ExitCode.CONFIG
    assert "it does not see the versions of this run: let --adapters be the folder that" in ending.value.message
    assert set(replica.named) == {"run"}


def test_a_folder_that_appears_late_is_waited_for(replicas: Replicas, fleet_of: Callable[..., Fleet]) -> None:
    (replica,) = replicas.start(sees=False)
    fleet = fleet_of([replica], NEEDS)
    told: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        check = pool.submit(fleet.check, told.append)
        until(lambda: told)
        assert not check.done()
        replica.sees = True
        check.result(120)
    assert f"127.0.0.1:{replica.port} (it does not see the run's folder yet)" in told[-1]
    assert fleet.ready() == (f"127.0.0.1:{replica.port}",)


def test_the_service_of_a_release_that_is_not_there_is_explained(fleet_of: Callable[..., Fleet]) -> None:
    fleet = fleet_of("http://samplers-control.models.invalid:8090", wait_seconds=0.5)
    with pytest.raises(
        RunError, match=r"is not known .*; the serving release samplers has this Service with rl\.enabled"
    ):
        fleet.check()


def test_a_watcher_may_have_a_port_of_its_own(replicas: Replicas, fleet_of: Callable[..., Fleet]) -> None:
    vllm, watcher = replicas.start(2)
    fleet = fleet_of(f"http://127.0.0.1:{vllm.port};watcher=http://127.0.0.1:{watcher.port}")
    fleet.check()
    ask(fleet, request(1))
    assert set(vllm.counted) == {"/v1/models", "/v1/completions"}
    assert set(watcher.counted) == {"/adapters"}


def test_a_name_is_looked_up_for_all_that_it_stands_for(replicas: Replicas, fleet_of: Callable[..., Fleet]) -> None:
    (replica,) = replicas.start()
    fleet = fleet_of(f"localhost:{replica.port}")
    fleet.check()
    assert fleet.ready() == (f"localhost:{replica.port}",)


def test_a_name_that_is_slow_to_look_up_holds_up_no_other(
    replicas: Replicas, fleet_of: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "_RESOLVE_SECONDS", 0.05)
    found = replicas.start(2)
    known = found[:1]
    asked: list[str] = []

    async def places(address: Address) -> dict[Place, str]:
        asked.append(address.host)
        if address.host == "comes-later":
            if asked.count(address.host) > 1:
                await asyncio.sleep(3600)
            raise OSError(-2, "Name or service not known")
        return {Place("samplers", one.port, "127.0.0.1"): f"10.0.0.{one.port}" for one in known}

    monkeypatch.setattr(fleets, "places_of", places)
    fleet = fleet_of("samplers:8000,comes-later:8000")
    fleet.check()
    until(lambda: asked.count("comes-later") == 2)
    known = found
    until(lambda: len(fleet.ready()) == 2)


def test_requests_under_way_end_at_once_when_they_are_cancelled(
    replicas: Replicas, fleet_of: Callable[..., Fleet]
) -> None:
    (replica,) = replicas.start()
    fleet = fleet_of([replica])
    fleet.check()
    replica.statuses.extend(["hang"] * 64)

    async def cancel() -> float:
        tasks = [asyncio.create_task(fleet.complete(request(ordinal))) for ordinal in range(64)]
        while replica.busy < 64:
            await asyncio.sleep(0.01)
        started = time.monotonic()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return time.monotonic() - started

    assert asyncio.run(cancel()) < 300, "an answer takes an hour"
    until(lambda: not replica.busy)
    assert fleet.under_way() == {f"127.0.0.1:{replica.port}": 0}


@pytest.mark.parametrize(
    "text",
    [
        "http://",
        "ftp://a",
        "http://a:70000",
        "a:port",
        "http://a:1/v1",
        "http://u:p@a:1",
        "",
        " , ",
        "http://a:1;watcher=http://b:2",
        "http://a:1;watcher=https://a:2",
        "http://a:1;watcher=",
        "http://a:1;other=b",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(RunError, match="--samplers") as ending:
        addresses_in(text)
    assert ending.value.code is ExitCode.CONFIG


def test_addresses_are_read_as_a_user_writes_them() -> None:
    found = addresses_in("http://a:1/, b ,https://c,https://d:2,[::1]:3,b:8000,https://e;watcher=http://e:4")
    assert [(one.host, one.port, one.tls, one.watcher) for one in found] == [
        ("a", 1, False, None), ("b", 8000, False, None), ("c", 443, True, None), ("d", 2, True, None),
        ("::1", 3, False, None), ("e", 443, True, 4),
    ]  # fmt: skip
