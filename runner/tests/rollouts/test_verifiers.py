"""Answers as models and data sets write them; the arithmetic of a published example."""

from __future__ import annotations

import random
import re

import pytest

from stoker.rollouts.verifiers import answer_in, get_math_answer, math_answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 18", "18"),
        ("so it is 3 * 6.\n#### 18\n", "18"),
        ("#### 1,234", "1234"),
        ("#### 1,234,567.50", "1234567.5"),
        ("#### -7", "-7"),
        ("#### \u22127", "-7"),
        ("#### - 7", "-7"),
        ("#### +7", "7"),
        ("#### $5", "5"),
        ("#### -$5.25", "-5.25"),
        ("#### $-5.25", "-5.25"),
        ("#### £1,000", "1000"),
        ("#### 18.", "18"),
        ("#### 18.0", "18"),
        ("#### .5", "0.5"),
        ("#### 0.50", "0.5"),
        ("#### 18 dollars", "18"),
        ("#### 18%", "18"),
        ("#### **18**", "18"),
        ("#### 1e3", "1000"),
        ("#### 18\n\nQuestion: 2\n#### 20", "18"),
        ("####18", "18"),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, number: str) -> None:
    assert answer_in(text) is not None
    assert math_answer([text], answer=[f"worked out\n#### {number}"]) == [1.0]
    assert math_answer([text], answer=["#### 99"]) == [-0.2]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "18",
        "####",
        "#### eighteen",
        "#### x = 18",
        "#### 1/2",
        "#### 3 1/2",
        "#### 7:30",
        "#### 1,23",
        "#### 1.2.3",
    ],
)
def test_what_is_no_number_is_wrong_and_not_half_read(text: str) -> None:
    assert answer_in(text) is None
    assert math_answer([text], answer=["#### 1"]) == [-0.2]


def test_rewards_and_columns_may_be_others() -> None:
    judge = get_math_answer(right=2.0, wrong=0.0)
    assert judge.__name__ == "math_answer"
    assert judge(["#### 4", "#### 5"], solution=["4", "4"], prompts=["a", "a"]) == [2.0, 0.0]
    assert judge(["#### 4"], ground_truth=[4], answer=["#### 5"]) == [0.0]


def test_a_row_without_a_number_has_no_reward() -> None:
    assert math_answer(["#### 4"], answer=["unknown"]) == [None]


def test_conversations_are_read_from_their_last_message() -> None:
    completion = [
        {"role": "assistant", "content": "#### 1"},
        {"role": "tool", "name": "add", "content": "4"},
        {"role": "assistant", "content": [{"type": "text", "text": "#### 4"}]},
    ]
    assert math_answer([completion, []], answer=["4", "4"]) == [1.0, -0.2]


def published(completion: str, truth: str) -> float:
    """Return the reward as the Kubetorch example computes it."""
    found = re.search(r"####\s*([-+]?\d*\.?\d+)", completion)
    right = re.search(r"####\s*([-+]?\d*\.?\d+)", truth)
    expected = right.group(1).strip() if right else truth.strip()
    return 1.0 if (found.group(1).strip() if found else None) == expected else -0.2


def test_rewards_equal_those_of_the_published_example_where_it_reads_numbers_rightly() -> None:
    chance = random.Random(0)
    for _ in range(2000):
        truth, given = chance.randint(-20, 20), chance.randint(-20, 20)
        text = chance.choice([f"I think #### {given}", f"#### {given}\n", f"it is {given}", f"####{given} apples"])
        assert math_answer([text], answer=[f"because\n#### {truth}"]) == [published(text, f"because\n#### {truth}")]


@pytest.mark.parametrize(("text", "truth"), [("#### 1,234", "#### 1"), ("#### 18.0", "#### 18"), ("#### $4", "#### 4")])
def test_rewards_differ_where_it_reads_them_wrongly(text: str, truth: str) -> None:
    assert math_answer([text], answer=[truth]) != [published(text, truth)]
