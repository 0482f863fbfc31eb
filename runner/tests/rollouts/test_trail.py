"""The tokens of an episode."""

from __future__ import annotations

from stoker.rollouts.records import Turn
from stoker.rollouts.trail import Trail


def turn(prompt: tuple[int, ...], *ids: int) -> Turn:
    return Turn(prompt, ids, tuple(-0.1 * token for token in ids), 0, "stop", "pod-0", 0.0)


def test_what_was_sampled_and_told_stays_as_it_is() -> None:
    trail = Trail((1, 2))
    trail.wrote(turn(trail.tokens, 3, 4))
    trail.told([5])
    trail.wrote(turn(trail.tokens, 6))
    assert trail.tokens == (1, 2, 3, 4, 5, 6)
    assert (trail.prompt_ids, trail.completion_ids) == ((1, 2), [3, 4, 5, 6])
    assert trail.mask == [1, 1, 0, 1]
    assert [round(value, 1) for value in trail.logprobs] == [-0.3, -0.4, 0.0, -0.6]
    assert (trail.spent, trail.branches) == (4, 0)


def test_a_conversation_that_begins_with_the_same_tokens_goes_on() -> None:
    trail = Trail((1,))
    trail.wrote(turn((1,), 2))
    trail.rendered([1, 2, 3])
    assert (trail.completion_ids, trail.mask, trail.branches) == ([2, 3], [1, 0], 0)


def test_a_conversation_with_other_tokens_is_a_branch() -> None:
    trail = Trail((1,))
    trail.wrote(turn((1,), 2, 3))
    trail.rendered([1, 9, 4])
    trail.wrote(turn(trail.tokens, 5))
    assert (trail.prompt_ids, trail.completion_ids, trail.mask) == ((1, 9, 4), [5], [1])
    assert (trail.branches, trail.untrained, trail.spent) == (1, 2, 3)
