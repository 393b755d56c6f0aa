"""Chunks of a streamed chat answer as JSON, for the FFI and the network."""

from __future__ import annotations

import json
import time
from json.encoder import encode_basestring_ascii

from mlc_llm.serve.openai.chunks import ChoicePiece, Chunk


class ChunkJSON:
    """Writes the chunks of one request as JSON objects.

    It joins texts, which is fast. It runs for every token while the model uses all cores, so its
    time is lost for the model.
    """

    def __init__(self, request_id: str, model: str) -> None:
        """`model`: the name in the request."""
        head = {
            "id": request_id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model.encode("utf-8", "replace").decode(),
            "system_fingerprint": "",
        }
        self._head = json.dumps(head)[:-1] + ', "choices": ['

    def text(self, chunk: Chunk) -> str:
        """One JSON object, of ASCII characters."""
        pieces, error, usage_json = chunk
        text = self._head + ", ".join(map(_choice, pieces)) + "]"
        if error is not None:
            text += f', "error": {json.dumps(error.model_dump())}'
        if usage_json is not None:
            text += f', "usage": {usage_json}'
        return text + "}"


def _choice(piece: ChoicePiece) -> str:
    reason = "null" if piece.finish_reason is None else f'"{piece.finish_reason}"'
    delta = f'{{"content": {encode_basestring_ascii(piece.text)}, "role": "assistant"}}'
    text = f'{{"finish_reason": {reason}, "index": {piece.choice}, "delta": {delta}'
    if piece.logprobs is None:
        return text + "}"
    return f'{text}, "logprobs": {{"content": [{", ".join(piece.logprobs)}]}}}}'
