"""A replica follows what is published, whatever its server and its file system do meanwhile.

The server here refuses as vLLM 0.31 does; the same is seen with vLLM itself in tests/e2e.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner
from runner.tests.serve.adapters.samples import BASE, make_adapter
from runner.tests.serve.adapters.stand_in import Clock, Vllm, start_over

from stoker.commands.main import main
from stoker.contract.exits import ExitCode, RunError
from stoker.serve.adapters.endpoints import Endpoints
from stoker.serve.adapters.files import read_base_model
from stoker.serve.adapters.settings import Declared, Settings
from stoker.serve.adapters.state import ReplicaState
from stoker.serve.adapters.versions import publish, retract
from stoker.serve.adapters.watch import Watch
from stoker.serve.adapters.watch import run as serve
from stoker.serve.vllm import Server, ServerError

RETRY = 31.0


def test_a_published_version_is_served_and_older_ones_go(watch: Watch, vllm: Vllm, output: Path, folder: Path) -> None:
    for served in (["a:1"], ["a:1", "a:2"], ["a:2", "a:3"]):
        publish(output, folder, "a")
        state = watch.look()
        assert sorted(vllm.adapters) == sorted(state.loaded) == served
    assert state.ready
    assert state.problems == {}
    retract(folder, "a", 3)
    watch.look()
    assert sorted(vllm.adapters) == ["a:1", "a:2"]


def test_a_server_that_starts_over_gets_all_it_had(watch: Watch, vllm: Vllm, output: Path, folder: Path) -> None:
    publish(output, folder, "a")
    watch.look()
    assert not start_over(watch, vllm).ready
    assert watch.look().ready
    assert list(vllm.adapters) == ["a:1"]


def test_a_replica_is_not_ready_before_it_has_what_is_published(
    watch: Watch, vllm: Vllm, clock: Clock, output: Path, folder: Path
) -> None:
    publish(output, folder, "a")
    vllm.invisible.add("a:1")
    state = watch.look()
    assert (state.up, state.ready, state.missing) == (True, False, ("a:1",))
    vllm.invisible.clear()
    assert watch.look().ready
    assert list(vllm.adapters) == ["a:1"]


def test_a_folder_that_the_server_never_sees_is_reported_and_does_not_keep_the_replica_away(
    watch: Watch, vllm: Vllm, clock: Clock, output: Path, folder: Path
) -> None:
    publish(output, folder, "a")
    vllm.invisible.add("a:1")
    watch.look()
    clock.now += 61
    watch.look()
    state = watch.look()
    assert "vLLM refused it: Loading lora a:1 failed" in state.problems["a:1"]
    assert state.ready


def test_an_adapter_of_the_start_that_the_server_does_not_have_is_reported(
    vllm: Vllm, model: Path, output: Path, clock: Clock
) -> None:
    settings = Settings(model, "tiny", BASE, adapters=(Declared("first", output),))
    state = Watch(settings, Server(vllm.address, 5), read_base_model(model, BASE), clock).look()
    assert not state.ready
    assert state.problems == {"first": "vLLM started without it"}


def test_an_unfit_version_takes_no_good_ones_place(watch: Watch, vllm: Vllm, tmp_path: Path, folder: Path) -> None:
    good = make_adapter(tmp_path / "good")
    other = make_adapter(tmp_path / "other", manifest={"base_model": {"name_or_path": "acme/other"}})
    large = make_adapter(tmp_path / "large", config={"r": 16})
    for run in (good, good, other, large):
        publish(run, folder, "a")
    state = watch.look()
    assert sorted(vllm.adapters) == ["a:1", "a:2"]
    assert state.ready
    assert state.problems == {
        "a:3": f"it was trained on acme/other, but the server has {BASE}: serve it with its base model",
        "a:4": "its rank is 16, but the server takes at most 8: raise lora.maxRank",
    }


def test_a_version_broken_on_its_way_is_looked_at_again(
    watch: Watch, vllm: Vllm, clock: Clock, output: Path, folder: Path
) -> None:
    weights = publish(output, folder, "a").path / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4])
    assert "adapter_model.safetensors" in watch.look().problems["a:1"]
    weights.write_bytes(whole)
    assert not watch.look().loaded
    clock.now += RETRY
    assert list(watch.look().loaded) == ["a:1"]


def test_an_adapter_that_is_loaded_after_nobody_waited_any_more_stays(
    watch: Watch, vllm: Vllm, output: Path, folder: Path
) -> None:
    publish(output, folder, "a")
    vllm.slow.add("a:1")
    assert watch.look().missing == ("a:1",)
    state = watch.look()
    assert (list(state.loaded), state.problems, state.ready) == (["a:1"], {}, True)
    assert list(vllm.adapters) == ["a:1"]


def test_an_adapter_that_the_server_ends_at_is_not_asked_for_forever(
    watch: Watch, vllm: Vllm, clock: Clock, output: Path, folder: Path
) -> None:
    publish(output, folder, "a")
    publish(output, folder, "b")
    vllm.unloadable.add("a:1")
    for _ in range(2):
        watch.look()
        start_over(watch, vllm)
    state = watch.look()
    assert "it crashed vLLM 2 times, so it is skipped" in state.problems["a:1"]
    assert (list(vllm.adapters), state.ready) == (["b:1"], True)
    clock.now += RETRY
    vllm.unloadable.clear()
    assert list(watch.look().loaded) == ["b:1"]


def test_a_server_that_ends_by_itself_is_blamed_on_no_adapter(
    watch: Watch, vllm: Vllm, output: Path, folder: Path
) -> None:
    publish(output, folder, "a")
    for _ in range(3):
        assert watch.look().ready
        start_over(watch, vllm)
    assert list(watch.look().loaded) == ["a:1"]


def test_what_vllm_refuses_is_reported_and_tried_again(
    watch: Watch, vllm: Vllm, clock: Clock, output: Path, folder: Path
) -> None:
    publish(output, folder, "a")
    publish(output, folder, "a")
    vllm.unloadable.add("a:2")
    assert watch.look().problems == {"a:2": "vLLM refused it: Call to add_lora method failed"}
    vllm.unloadable.clear()
    clock.now += RETRY
    state = watch.look()
    assert state.problems == {}
    assert sorted(vllm.adapters) == ["a:1", "a:2"]


def test_what_was_wrong_with_a_version_is_forgotten_when_newer_ones_replace_it(
    watch: Watch, vllm: Vllm, output: Path, folder: Path
) -> None:
    vllm.without_effect.add("a:1")
    publish(output, folder, "a")
    assert list(watch.look().problems) == ["a:1"]
    publish(output, folder, "a")
    publish(output, folder, "a")
    assert watch.look().problems == {}


def test_an_adapter_without_effect_is_served_and_reported(watch: Watch, vllm: Vllm, output: Path, folder: Path) -> None:
    vllm.without_effect.add("a:1")
    publish(output, folder, "a")
    publish(output, folder, "a")
    state = watch.look()
    assert list(state.problems) == ["a:1"]
    assert "it has no effect" in state.problems["a:1"]
    assert state.effects == {"a:1": 0.0, "a:2": 0.5}
    assert watch.look().problems == state.problems
    assert sorted(vllm.adapters) == ["a:1", "a:2"]


def test_an_adapter_that_gives_no_numbers_is_reported(watch: Watch, vllm: Vllm, output: Path, folder: Path) -> None:
    vllm.broken.add("a:1")
    publish(output, folder, "a")
    assert watch.look().problems == {"a:1": "its log-probabilities are NaN: its training failed"}


def test_an_adapter_whose_effect_cannot_be_asked_for_is_reported_and_asked_again_now_and_then(
    watch: Watch, vllm: Vllm, clock: Clock, output: Path, folder: Path
) -> None:
    vllm.mute.add("a:1")
    publish(output, folder, "a")
    for _ in range(3):
        assert "its effect is unknown: Out of range float values" in watch.look().problems["a:1"]
    assert vllm.asked.count("a:1") == 1
    vllm.mute.clear()
    clock.now += RETRY
    assert watch.look().problems == {}
    assert vllm.asked.count("a:1") == 2


def test_a_model_that_says_nothing_is_ready_when_it_embeds_or_can_do_neither(watch: Watch, vllm: Vllm) -> None:
    for routes in ({"/v1/embeddings"}, set[str]()):
        vllm.routes = routes
        assert watch.look().ready
        vllm.down = True
        assert not watch.look().ready
        vllm.down = False


def test_why_a_model_does_not_answer_is_said_once(watch: Watch, vllm: Vllm, capsys: pytest.CaptureFixture[str]) -> None:
    vllm.mute.add("tiny")
    for _ in range(3):
        assert not watch.look().ready
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("the model does not answer: Out of range float values") == 1


def test_the_adapters_it_was_started_with_stay(vllm: Vllm, model: Path, output: Path, folder: Path) -> None:
    vllm.adapters["support"] = str(output)
    settings = Settings(model, "tiny", adapters=(Declared("support", output),), folder=folder, max_rank=8)
    watch = Watch(settings, Server(vllm.address), read_base_model(model))
    publish(output, folder, "a")
    assert sorted(watch.look().loaded) == ["a:1", "support"]


def test_adapters_of_a_list_come_and_go(watch: Watch, vllm: Vllm, output: Path, tmp_path: Path) -> None:
    listed = tmp_path / "list.yaml"
    listed.write_text(f"[{{name: support, path: {output}}}]")
    watch.look()
    assert vllm.adapters == {"support": str(output)}
    listed.write_text("[{name: support}]")
    state = watch.look()
    assert state.loaded == {"support": str(output)}, "a list that is none changes nothing"
    assert "is wrong: write {name: NAME, path: FOLDER}" in state.problems[str(listed)]
    unreadable = (
        *(b"[{name: support, path: 2026-13-45}]", b"[{", b"[" * 5000, b"\x7fELF\x00\xff"),
        *(b"[{name: a, path: !!%s}]" % value for value in (b"bool maybe", b"int ''", b"timestamp x")),
        *(b"[{name: a, name: b, path: /a}]", b"[]\n---\n[]"),
    )
    unfit = (
        (b"7", "the list of adapters is 7"),
        (b"[{name: on, path: /a}]", "the name of an adapter is True: write a "),
    )
    for wrong, message in (*unfit, *((text, "cannot be read") for text in unreadable)):
        listed.write_bytes(wrong)
        assert message in watch.look().problems[str(listed)]
    listed.write_text("[]")
    assert watch.look().loaded == {}


def test_a_name_of_a_list_that_comes_from_another_folder_is_checked_anew(
    watch: Watch, vllm: Vllm, output: Path, tmp_path: Path
) -> None:
    listed = tmp_path / "list.yaml"
    large = make_adapter(tmp_path / "large", config={"r": 16})
    other = make_adapter(tmp_path / "other")
    listed.write_text(f"[{{name: support, path: {output}}}]")
    watch.look()
    listed.write_text(f"[{{name: support, path: {large}}}]")
    state = watch.look()
    assert vllm.adapters == state.loaded == {"support": str(output)}, "the good one stays"
    assert "its rank is 16" in state.problems["support"]
    listed.write_text(f"[{{name: support, path: {other}}}]")
    state = watch.look()
    assert vllm.adapters == state.loaded == {"support": str(other)}
    assert state.problems == {}


def test_what_others_load_is_theirs_where_they_may(
    vllm: Vllm, model: Path, output: Path, folder: Path, tmp_path: Path
) -> None:
    listed = tmp_path / "list.yaml"
    settings = Settings(model, "tiny", BASE, folder=folder, max_rank=8, listed=listed, others=True)
    watch = Watch(settings, Server(vllm.address), read_base_model(model, BASE))
    vllm.adapters["step-7"] = str(output)
    listed.write_text(f"[{{name: support, path: {output}}}]")
    publish(output, folder, "a")
    assert sorted(watch.look().loaded) == ["a:1", "step-7", "support"]
    listed.write_text("[]")
    retract(folder, "a", 1)
    assert sorted(watch.look().loaded) == ["step-7"]


def test_a_folder_that_cannot_be_read_changes_nothing(
    watch: Watch, vllm: Vllm, output: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(output, folder, "a")
    watch.look()

    def stale(_folder: Path) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr("stoker.serve.adapters.wanted.read_published", stale)
    assert list(watch.look().loaded) == ["a:1"]
    assert watch.state.ready
    assert "Stale file handle" in watch.state.problems[str(folder)]
    monkeypatch.undo()
    assert watch.look().problems == {}


def test_what_a_replica_has_is_told_to_probes_and_prometheus(
    watch: Watch, vllm: Vllm, output: Path, folder: Path
) -> None:
    web = Endpoints(("::", 0), lambda: watch.state, watch.look_at_once, watch.sees)
    threading.Thread(target=web.serve_forever, args=(0.01,), daemon=True).start()
    address = f"http://127.0.0.1:{web.server_port}"
    assert urllib.request.urlopen(f"http://[::1]:{web.server_port}/healthz").status == 200
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(f"{address}/readyz")
    publish(output, folder, "a")
    watch.look()
    assert json.load(urllib.request.urlopen(f"{address}/readyz"))["loaded"] == ["a:1"]
    metrics = urllib.request.urlopen(f"{address}/metrics").read().decode()
    assert 'stoker_adapter_loaded{adapter="a",version="1",name="a:1"} 1' in metrics.splitlines()
    assert "stoker_adapters_missing 0" in metrics.splitlines()
    web.shutdown()
    web.server_close()


def test_an_address_that_is_none_is_refused(model: Path) -> None:
    with pytest.raises(
        RunError, match="--server 'localhost:8000' is not an address: write one such as http://"
    ) as ending:
        serve(Settings(model, "tiny"), "localhost:8000", ("", 0), 1)
    assert ending.value.code is ExitCode.USAGE


@pytest.mark.parametrize("words", [["--port", "99999"], ["--interval", "-1"], ["--interval", "0"]])
def test_a_number_out_of_range_is_a_usage_error(words: list[str]) -> None:
    result = CliRunner().invoke(main, ["adapters", "watch", "--settings", "none.yaml", *words])
    assert result.exit_code == ExitCode.USAGE
    assert "is not in the range" in result.output


def test_a_port_that_is_taken_is_named(model: Path, vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(vllm.address.rpartition(":")[2])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(RunError, match=f"cannot listen on port {port} of 127.0.0.1 .Address already in use.") as ending:
        serve(Settings(model, "tiny"), vllm.address, ("127.0.0.1", port), 1)
    assert ending.value.code is ExitCode.CONFIG


ANSWER = b"HTTP/1.0 200 OK\r\n\r\n"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/v1/load_lora_adapter"])
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00\xff\x00\xff",
        b"HTTP/1.0 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 999\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\n" + b"A" * 70000 + b": 1\r\n\r\n",
        ANSWER + b"<html>a proxy's page</html>",
        ANSWER + b"\xff\xfe\x00",
        ANSWER + b"[" * 100_000,
        ANSWER + b"null",
        ANSWER + b"[]",
        ANSWER + b'{"data": 7, "choices": []}',
        ANSWER + b'{"data": [{}], "choices": [{"prompt_logprobs": 7}]}',
        ANSWER + b'{"data": [{"id": "a"}], "choices": [{"prompt_logprobs": [[1], {"5": 1}]}]}',
        ANSWER + b'{"data": [], "choices": [{"prompt_logprobs": [{"5": {"logprob": "x"}}]}]}',
    ],
    ids=lambda raw: repr(raw[:60]),
)
def test_an_answer_of_any_content_leaves_the_watch_at_work(
    watch: Watch, vllm: Vllm, output: Path, folder: Path, clock: Clock, path: str, raw: bytes
) -> None:
    publish(output, folder, "a")
    vllm.raw[path] = raw
    for _ in range(3):
        watch.look()
        clock.now += RETRY
    vllm.raw.clear()
    start_over(watch, vllm)
    assert sorted(watch.look().loaded) == ["a:1"]


def test_a_text_that_is_split_anew_is_a_problem_of_the_measurement(
    watch: Watch, vllm: Vllm, output: Path, folder: Path
) -> None:
    publish(output, folder, "a")
    vllm.longer.add("a:1")
    problem = watch.look().problems["a:1"]
    assert problem == "its effect is unknown: vLLM split the same text into 1 and into 2 tokens"


@pytest.mark.parametrize("address", ["http://[::1", "http://", "http://a:port", "http://a:70000", "ftp://a"])
def test_any_text_that_is_no_address_is_refused(model: Path, address: str) -> None:
    with pytest.raises(RunError, match="is not an address: write one such as") as ending:
        serve(Settings(model, "tiny"), address, ("127.0.0.1", 0), 1)
    assert ending.value.code is ExitCode.USAGE


def test_labels_are_escaped() -> None:
    assert r'name="a\"\\"' in ReplicaState(loaded={'a"\\': "/x"}).metrics()


def test_a_server_that_is_not_there_is_an_error_of_its_own() -> None:
    with pytest.raises(ServerError, match="vLLM does not answer"):
        Server("http://127.0.0.1:9").models()
