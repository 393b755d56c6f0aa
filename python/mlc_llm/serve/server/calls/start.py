"""The way of a call into the engine: its prompts are made, it waits for its turn, it is added."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mlc_llm.serve.openai.calls import Part
from mlc_llm.serve.server.calls.context import ServedModel
from mlc_llm.serve.server.errors import overloaded, timed_out
from mlc_llm.serve.server.limits.order import Order
from mlc_llm.serve.server.limits.threads import PREPARING
from mlc_llm.serve.server.notes.note import current_note
from mlc_llm.serve.server.streams.reader import ServedReader


async def start_call(
    served: ServedModel, parts: Sequence[Part], reader: ServedReader, order: Order
) -> None:
    """Whatever goes wrong is given to the reader. If it is cancelled, nothing was added."""
    loop = asyncio.get_running_loop()
    try:
        ready = await loop.run_in_executor(
            PREPARING, served.client.prepare, parts, reader, order.cache_salt
        )
        await _turn(served, parts, reader, order, ready.prompt_tokens)
        served.client.submit(ready, reader)
        if not reader.is_over:  # else the engine has none of it
            current_note().owed = len(parts)
    except Exception as error:
        reader.fail(error)


async def _turn(
    served: ServedModel,
    parts: Sequence[Part],
    reader: ServedReader,
    order: Order,
    prompt_tokens: int,
) -> None:
    """Raises `HTTPError` if that takes too long."""
    turns, limits = served.turns, served.settings.limits
    answers = sum(part.n for part in parts)
    turn = turns.ask(
        order.tenant, answers, prompt_tokens, arrival=order.arrival, priority=order.priority
    )
    reader.when_over(lambda: turns.end(turn, reader.answer_tokens))
    reader.when_first(lambda: turns.started(turn))
    try:
        await asyncio.wait_for(turn.came, limits.wait_s)
    except asyncio.TimeoutError:
        words = f"it was not its turn within {limits.wait_s:g} s"
        raise overloaded(words, retry_s=turns.speed.seconds_for(turn.answers, 0)) from None


@contextmanager
def deadline(reader: ServedReader, order: Order) -> Iterator[None]:
    """Within it, the reader fails when the time of its request is over."""
    if order.timeout_s is None:
        yield
        return
    left = order.arrival + order.timeout_s - time.monotonic()
    timer = reader.loop.call_later(max(left, 0), reader.fail, timed_out(order.timeout_s))
    try:
        yield
    finally:
        timer.cancel()
