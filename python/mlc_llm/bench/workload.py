"""What a run asks for: its requests, in order, made of a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

from mlc_llm.record import record

_TEXT = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point
home water room mother area money story fact month lot right study book eye job word business issue
side kind head house service friend father power hour game line end member law car city community
name president team minute idea body information back
"""
WORDS = _TEXT.split()
"""Common words: most tokenizers give each of them one token."""


@record()
class Workload:
    """The requests of one point of a run.

    prompt_words, answer_tokens: each request draws its own, from the first number to the second.
    shared_words: so many words of each prompt are the same in all requests, at its beginning.
    """

    requests: int
    prompt_words: tuple[int, int]
    answer_tokens: tuple[int, int]
    shared_words: int = 0
    seed: int = 0


@record()
class Wanted:
    """One request."""

    number: int
    prompt: str
    answer_tokens: int


def requests_of(work: Workload, point: int) -> Iterator[Wanted]:
    """The requests, one at a time: thousands of them take no memory. point: which one of the run;
    no two points have the same prompts, except for what they share."""
    shared = _words(random.Random(f"shared {work.seed}"), work.shared_words)
    draw = random.Random(f"{work.seed} {point}")
    for number in range(work.requests):
        length = draw.randint(*work.prompt_words)
        own = _words(draw, max(1, length - work.shared_words))
        prompt = f"{shared} {own}" if shared else own
        yield Wanted(number, prompt, draw.randint(*work.answer_tokens))


def arrivals(rate: float, seed: int, point: int) -> Iterator[float]:
    """Seconds from the start at which requests come, as a Poisson process of `rate` a second."""
    draw, now = random.Random(f"arrivals {seed} {point}"), 0.0
    while True:
        yield now
        now += draw.expovariate(rate)


def _words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(WORDS, k=count))
