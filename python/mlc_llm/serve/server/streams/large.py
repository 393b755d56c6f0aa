"""Large answers are built on another thread: streams and probes go on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from mlc_llm.serve.openai.chunks import Chunk
from mlc_llm.serve.server.limits.threads import PREPARING

LARGE = 1 << 16
"""As `size_of` counts: what takes less is built in less than 10 ms, and needs no other thread."""

ResultT = TypeVar("ResultT")


def size_of(chunk: Chunk, n: int) -> int:
    """Characters of log-probabilities, and numbers of a vector: what is slow in an answer. n:
    choices, each of which may show those of the prompt."""
    shown = sum(len(text) for one in chunk.pieces for text in one.logprobs or ())
    of_prompt = sum(map(len, chunk.prompt_logprobs or ()))
    return shown + n * of_prompt + len(chunk.embedding or ())


async def built(size: int, build: Callable[[], ResultT]) -> ResultT:
    """What `build` returns or raises. size: of `size_of`."""
    if size < LARGE:
        return build()
    return await asyncio.get_running_loop().run_in_executor(PREPARING, build)
