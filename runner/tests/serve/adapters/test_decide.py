"""Replicas that see the same folder come to serve the same adapters, with no moment without a version."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stoker.serve.adapters.decide import Action, Load, Unload, decide, newest
from stoker.serve.adapters.versions import Version

NAMES = st.sampled_from(["a:1", "a:2", "b:1", "b:2", "c", "base"])
SERVED = st.dictionaries(NAMES, st.sampled_from(["/one", "/two"]))
FIXED = st.frozensets(NAMES)
VERSIONS = st.lists(
    st.builds(lambda name, number: Version(name, number, Path(f"/{name}/{number}")), st.sampled_from("abc"),
              st.integers(1, 6)), unique=True)  # fmt: skip


def carried_out(actions: list[Action], loaded: dict[str, str]) -> dict[str, str]:
    """Return what a server has afterwards; it refuses what vLLM refuses."""
    loaded = dict(loaded)
    for action in actions:
        if isinstance(action, Load):
            assert action.name not in loaded, "vLLM refuses a name that it has"
            loaded[action.name] = action.path
        else:
            del loaded[action.name]
    return loaded


@given(SERVED, SERVED, FIXED)
def test_a_server_comes_to_have_what_it_should(
    wanted: dict[str, str], loaded: dict[str, str], fixed: frozenset[str]
) -> None:
    after = carried_out(decide(wanted, loaded, fixed), loaded)
    assert {n: p for n, p in after.items() if n not in fixed} == {n: p for n, p in wanted.items() if n not in fixed}


@given(SERVED, SERVED, FIXED)
def test_what_it_was_started_with_is_left_alone(
    wanted: dict[str, str], loaded: dict[str, str], fixed: frozenset[str]
) -> None:
    assert not {action.name for action in decide(wanted, loaded, fixed)} & fixed


@given(SERVED, SERVED)
def test_there_is_nothing_left_to_do_afterwards(wanted: dict[str, str], loaded: dict[str, str]) -> None:
    assert decide(wanted, carried_out(decide(wanted, loaded), loaded)) == []


@given(SERVED, SERVED)
def test_no_name_goes_before_every_new_one_has_come(wanted: dict[str, str], loaded: dict[str, str]) -> None:
    moved = {name for name in wanted if name in loaded and wanted[name] != loaded[name]}
    kinds = [type(action) for action in decide(wanted, loaded) if action.name not in moved]
    assert kinds == sorted(kinds, key=[Load, Unload].index)


@given(VERSIONS, st.integers(1, 3), st.sets(st.sampled_from(["a:1", "a:2", "b:6"])))
def test_the_newest_versions_that_can_be_served_are(versions: list[Version], keep: int, unfit: set[str]) -> None:
    chosen = newest(versions, keep, unfit)
    assert not set(chosen) & unfit
    for version in versions:
        newer = [v for v in versions if v.adapter == version.adapter and v.number > version.number]
        fit = [v for v in newer if v.name not in unfit]
        assert (version.name in chosen) == (version.name not in unfit and len(fit) < keep)
