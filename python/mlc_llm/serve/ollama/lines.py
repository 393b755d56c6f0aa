"""The answers of Ollama's API: lines of JSON, or all of them as one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from json.encoder import encode_basestring_ascii
from typing import Literal

from mlc_llm.protocol.base import AnswerModel
from mlc_llm.protocol.openai_responses import UsageInfo
from mlc_llm.serve.openai.blocks import Block, BlockNews, Blocks
from mlc_llm.serve.openai.chunks import Chunk

Kind = Literal["chat", "generate"]


class Answer(AnswerModel):
    """A whole answer. Its other fields depend on what was asked for."""

    model: str
    created_at: str


class Clock:
    """Measures a call, in nanoseconds. It starts now."""

    def __init__(self) -> None:
        self._started = self._loaded = time.monotonic_ns()

    def loaded(self) -> None:
        """The model is open."""
        self._loaded = time.monotonic_ns()

    def durations(self) -> dict[str, int]:
        """The time until the model was open, and until now."""
        total = time.monotonic_ns() - self._started
        return {"total_duration": total, "load_duration": self._loaded - self._started}


class Lines:
    """The lines of one call."""

    def __init__(self, kind: Kind, request_id: str, model: str, clock: Clock) -> None:
        """kind: of the route. model: the name in the request."""
        self.request_id = request_id
        self._kind, self._model = kind, model
        self._clock, self._blocks = clock, Blocks()
        self._end: dict[str, object] = {}
        self._name = json.dumps(model)

    def of(self, _part: int, chunk: Chunk) -> Iterator[str]:
        """The lines of a chunk of the engine that has not failed."""
        for news in self._blocks.of(chunk):
            yield from self._line(news)
        if chunk.usage_json is not None:
            yield json.dumps(self._whole([], self._last(chunk.usage_json)))

    def nothing(self, reason: Literal["load", "unload"]) -> dict[str, object]:
        """The answer to a request that asks for nothing. reason: the model is there, or it is
        closed now."""
        return self._whole([], {"done": True, "done_reason": reason})

    def put(self, _part: int, chunk: Chunk) -> None:
        """Add a chunk to the whole answer. Raises `RequestError` if the request failed."""
        self._blocks.collect(chunk, self.request_id)
        if chunk.usage_json is not None:
            self._end = self._last(chunk.usage_json)

    def response(self) -> Answer:
        """The whole answer; the request must have ended."""
        return Answer.model_validate(self._whole(self._blocks.all, self._end))

    def _line(self, news: BlockNews) -> Iterator[str]:
        """A call is one line: its arguments are a value."""
        block = news.block
        if block.kind == "call":
            if news.step == "closed":
                yield json.dumps(self._whole([block], {"done": False}))
                block.logprobs.clear()
        elif news.step == "grew":
            yield self._grown(block, news)

    def _grown(self, block: Block, news: BlockNews) -> str:
        """Joined as text: it is made for every token."""
        text, empty = encode_basestring_ascii(news.text), '""'
        thinks = block.kind == "reasoning"
        said, thought = (empty, f', "thinking": {text}') if thinks else (text, "")
        if self._kind == "chat":
            own = f'"message": {{"role": "assistant", "content": {said}{thought}}}'
        else:
            own = f'"response": {said}{thought}'
        block.logprobs.clear()  # a stream has them in this line alone, so it may have any number
        if news.logprobs is not None:
            own += f', "logprobs": [{", ".join(news.logprobs)}]'
        return f'{{"model": {self._name}, "created_at": "{now()}", {own}, "done": false}}'

    def _whole(self, blocks: Sequence[Block], end: dict[str, object]) -> dict[str, object]:
        """The fields that say all that is in some blocks."""
        text = "".join(one.text for one in blocks if one.kind == "text")
        thought = "".join(one.text for one in blocks if one.kind == "reasoning")
        more = {"thinking": thought} if thought else {}
        found: dict[str, object] = {"model": self._model, "created_at": now()}
        if self._kind == "generate":
            found |= {"response": text, **more}
        else:
            calls = [_call(one) for one in blocks if one.kind == "call"]
            tools = {"tool_calls": calls} if calls else {}
            found["message"] = {"role": "assistant", "content": text, **more, **tools}
        logprobs = [json.loads(token) for one in blocks for token in one.logprobs]
        return {**found, **({"logprobs": logprobs} if logprobs else {}), **end}

    def _last(self, usage_json: str) -> dict[str, object]:
        """Counts and measured times."""
        usage = UsageInfo.model_validate_json(usage_json)
        return {
            "done": True,
            "done_reason": "length" if self._blocks.finish_reason == "length" else "stop",
            **self._clock.durations(),
            "prompt_eval_count": usage.prompt_tokens,
            "eval_count": usage.completion_tokens,
            **_durations(usage.extra or {}),
        }


def now() -> str:
    """The time of day, as Ollama writes it."""
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


def _durations(measured: dict[str, object]) -> dict[str, object]:
    """Nanoseconds of the steps that computed the prompt, and from the first token to the end.
    measured: see `REQUEST_METRICS`."""

    def seconds(name: str) -> float:
        value = measured.get(name)
        return float(value) if isinstance(value, int | float) else 0.0

    rate = seconds("prefill_tokens_per_s")
    prompt = seconds("prefill_tokens") / rate if rate else 0.0
    answer = max(seconds("end_to_end_latency_s") - seconds("ttft_s"), 0.0)
    return {"prompt_eval_duration": round(prompt * 1e9), "eval_duration": round(answer * 1e9)}


def _call(block: Block) -> dict[str, object]:
    function = {"index": block.call_index, "name": block.name, "arguments": block.arguments}
    return {"id": block.call_id, "function": function}
