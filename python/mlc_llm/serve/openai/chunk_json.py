"""Chunks of a streamed chat answer as JSON, for the FFI and the network."""

from __future__ import annotations

import json
import time
from json.encoder import encode_basestring_ascii

from mlc_llm.serve.openai.chunks import CallPiece, ChoicePiece, Chunk


class ChunkJSON:
    """Writes the chunks of one request as JSON objects.

    It joins texts, which is fast. It runs for every token while the model uses all cores, so its
    time is lost for the model.
    """

    def __init__(self, request_id: str, model: str, fingerprint: str = "") -> None:
        """`model`: the name in the request. `fingerprint`: of the engine."""
        head = {
            "id": request_id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model.encode("utf-8", "replace").decode(),
            "system_fingerprint": fingerprint,
        }
        self._head = json.dumps(head)[:-1] + ', "choices": ['

    def text(self, chunk: Chunk) -> str:
        """One JSON object, of ASCII characters."""
        pieces, error, usage_json = chunk[:3]
        text = self._head + ", ".join(map(_choice, pieces)) + "]"
        if error is not None:
            text += f', "error": {json.dumps(error.model_dump())}'
        if usage_json is not None:
            text += f', "usage": {usage_json}'
        return text + "}"


def _choice(piece: ChoicePiece) -> str:
    reason = "null" if piece.finish_reason is None else f'"{piece.finish_reason}"'
    content = encode_basestring_ascii(piece.text)
    delta = f'{{"content": {content}, "role": "assistant"{more_news(piece)}}}'
    text = f'{{"finish_reason": {reason}, "index": {piece.choice}, "delta": {delta}'
    if piece.logprobs is None:
        return text + "}"
    return f'{text}, "logprobs": {{"content": [{", ".join(piece.logprobs)}]}}}}'


def more_news(piece: ChoicePiece) -> str:
    """The fields of a delta besides its text: thoughts, and pieces of calls."""
    text = ""
    if piece.reasoning:
        text += f', "reasoning_content": {encode_basestring_ascii(piece.reasoning)}'
    if piece.calls:
        text += f', "tool_calls": [{", ".join(map(call_json, piece.calls))}]'
    return text


def call_json(piece: CallPiece) -> str:
    """A piece of a call. Its id, type and name come once."""
    arguments = f'"arguments": {encode_basestring_ascii(piece.arguments)}'
    if piece.id is None or piece.name is None:
        return f'{{"index": {piece.index}, "function": {{{arguments}}}}}'
    function = f'{{"name": {encode_basestring_ascii(piece.name)}, {arguments}}}'
    head = f'"index": {piece.index}, "id": "{piece.id}", "type": "function"'
    return f'{{{head}, "function": {function}}}'
