"""The identity guard's judgement: what is no fault, and what is one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from stoker.frameworks.trl.asynchronous.identity import Judge, Mismatch, Scored

Noise = Callable[[], float]
NEIGHBOUR, BASE = "version 6", "the base model, without an adapter"
# Mean differences of two correct implementations: of float32 on one machine, of a server in bf16.
FLOORS = {"float32": 1e-6, "bf16": 0.02}


def heavy_tailed(draw: random.Random, mean: float) -> Noise:
    """Return noise with this mean size: most tokens are nearly exact, a few are far off, as in real servers."""
    sigma = 1.5

    def noise() -> float:
        size = draw.lognormvariate(0.0, sigma) / 3.08  # the mean of this distribution
        return mean * size * draw.choice((-1, 1))

    return noise


class Fleet:
    """Tokens of one version, said by samplers and scored by the trainer.

    Args:
        floor: how far correct implementations differ.
        step: how far a version is from the one before.
        effect: how far the adapter is from none.
    """

    def __init__(self, floor: float, step: float, effect: float, seed: int = 0) -> None:
        self.draw = random.Random(seed)
        self.noise = heavy_tailed(self.draw, floor)
        self.step = step
        self.effect = effect

    def round(self, tokens: int = 64, serves: str = "named", shift: float = 0.0) -> list[Scored]:
        """Return what two samplers said; the first one serves what `serves` says, and is off by `shift`."""
        return [
            self._scored(f"sampler-{index}", tokens, serves if index == 0 else "named", shift if index == 0 else 0.0)
            for index in range(2)
        ]

    def _scored(self, replica: str, tokens: int, serves: str, shift: float) -> Scored:
        named = [-self.draw.expovariate(1.0) for _ in range(tokens)]
        neighbour = [value + self.draw.gauss(0, self.step) for value in named]
        base = [value + self.draw.gauss(0, self.effect) for value in named]
        true = {"named": named, NEIGHBOUR: neighbour, BASE: base}[serves]
        said = [value + self.noise() + shift * abs(value) for value in true]
        return Scored(replica, said, named, {NEIGHBOUR: neighbour, BASE: base})


def judged(judge: Judge, rounds: Sequence[list[Scored]]) -> list[list[Mismatch]]:
    return [judge.judge(scored) for scored in rounds]


@pytest.mark.parametrize("kind", FLOORS)
@pytest.mark.parametrize("effect", [0.0, 1e-5, 1e-3, 0.05, 1.0])
def test_thousands_of_clean_rounds_find_nothing(kind: str, effect: float) -> None:
    fleet = Fleet(FLOORS[kind], effect / 10, effect)
    judge = Judge(FLOORS["bf16"])
    for number in range(400):
        assert judge.judge(fleet.round(tokens=random.Random(number).randint(8, 96))) == []


def test_few_tokens_that_another_version_explains_are_said_to_be_its() -> None:
    # One token makes nearly all of the difference, so that by itself it proves no version better than another.
    said = [-1.0] * 16
    named = [value + 0.003 for value in said[1:]] + [said[0] + 0.5]
    judge = Judge(5e-4)
    (found,) = judge.judge([Scored("sampler-0", said, named, {NEIGHBOUR: named, BASE: said})])
    assert (found.instead, found.error_instead) == (BASE, 0.0)
    (found,) = judge.judge([Scored("sampler-0", said, named, {NEIGHBOUR: named, BASE: [0.0] * 16})])
    assert found.instead == ""


@pytest.mark.parametrize("kind", FLOORS)
@pytest.mark.parametrize("serves", [NEIGHBOUR, BASE])
def test_a_sampler_that_serves_another_version_is_named_with_it(kind: str, serves: str) -> None:
    # The versions differ by four times the noise and more.
    apart = max(4 * FLOORS[kind], 2e-3)
    fleet = Fleet(FLOORS[kind], apart, 2 * apart)
    (finding,) = Judge(FLOORS["bf16"]).judge(fleet.round(serves=serves))
    assert (finding.replica, finding.instead) == ("sampler-0", serves)
    assert finding.error > finding.error_instead
    assert f"sampler-0 serves {serves}" in str(finding)


def test_versions_that_hardly_differ_are_no_fault_whoever_is_served() -> None:
    fleet = Fleet(FLOORS["bf16"], 1e-4, 1e-3)
    judge = Judge(FLOORS["bf16"])
    assert judged(judge, [fleet.round(serves=serves) for serves in (NEIGHBOUR, BASE) for _ in range(50)]) == [[]] * 100


def test_what_no_version_explains_is_a_fault_of_its_own() -> None:
    fleet = Fleet(FLOORS["float32"], 0.01, 0.05)
    (finding,) = Judge(0.01).judge(fleet.round(shift=0.2))
    assert (finding.replica, finding.instead) == ("sampler-0", "")
    assert "serves no version of this run" in str(finding)


def test_what_the_user_made_incomparable_is_only_compared_between_versions() -> None:
    fleet = Fleet(FLOORS["float32"], 0.3, 0.5)
    judge = Judge(0.01, comparable=False)
    assert judge.judge(fleet.round(shift=0.05)) == []
    (finding,) = judge.judge(fleet.round(serves=NEIGHBOUR, shift=0.05))
    assert finding.instead == NEIGHBOUR


def test_the_noise_follows_clean_rounds_but_not_far() -> None:
    judge = Judge(0.01)
    assert judge.noise == 0.01
    quiet = Fleet(1e-6, 0.0, 0.0)
    judged(judge, [quiet.round() for _ in range(40)])
    assert judge.noise == 0.005
    loud = Fleet(0.019, 0.0, 0.0)
    judged(judge, [loud.round() for _ in range(40)])
    assert 0.01 < judge.noise <= 0.02


def test_too_few_tokens_prove_nothing() -> None:
    fleet = Fleet(FLOORS["float32"], 0.5, 0.5)
    assert Judge(0.01).judge(fleet.round(tokens=8, serves=BASE)) == []
