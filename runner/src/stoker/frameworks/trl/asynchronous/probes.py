"""What samplers are asked for the identity guard alone, where weights change under their answers. Pure.

Short answers to prompts of the run, drawn as those that are trained: one version writes them from the first token to
the last, while no other is offered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stoker.frameworks.trl.asynchronous.rows import Row
from stoker.rollouts.episodes import Sampling
from stoker.rollouts.records import Request, Turn

# So many answers of one token are as many as the guard needs of a sampler.
PROBES = 16
_TOKENS = 16


def asked(version: int, prompts: Sequence[tuple[int, ...]], sampling: Sampling, context: int | None) -> list[Request]:
    """Return the requests to each sampler.

    Args:
        version: the version that must answer.
        prompts: their tokens; one or more.
        sampling: as samples are drawn that are trained.
        context: the most tokens that every sampler takes; None if not known.
    """
    requests = []
    for index in range(PROBES):
        prompt = prompts[index % len(prompts)]
        longest = min(_TOKENS, sampling.max_tokens)
        requests.append(
            Request(
                prompt_ids=prompt,
                version=version,
                ordinal=-1,
                index=index,
                turn=0,
                max_tokens=longest if context is None else max(1, min(longest, context - len(prompt))),
                temperature=sampling.temperature,
                seed=PROBES * version + index,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=sampling.min_p,
                repetition_penalty=sampling.repetition_penalty,
            )
        )
    return requests


def rows_from(turns: Iterable[Turn]) -> list[Row]:
    """Return the answers as the guard compares them."""
    return [
        Row(
            "",
            turn.prompt_ids,
            turn.completion_ids,
            (1,) * len(turn.completion_ids),
            turn.logprobs,
            (),
            turn.version,
            turn.version if turn.newest is None else turn.newest,
            turn.replica,
        )
        for turn in turns
    ]
