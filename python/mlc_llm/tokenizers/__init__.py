"""Text to token ids and back; the text of an answer while it grows; stop strings.

`tokenizer` is the face; `vocabulary` checks what a GGUF file says; `byte_level` (with the rules of
`word_rules`), `sentencepiece`, `wordpiece` and `unigram` each build one kind of tokenizer from it;
`folder` reads tokenizer.json.
"""

from __future__ import annotations

from mlc_llm.tokenizers.stop_strings import StopStrHandler, StopStrings
from mlc_llm.tokenizers.streamer import TextStreamer
from mlc_llm.tokenizers.tokenizer import Tokenizer

__all__ = ["StopStrHandler", "StopStrings", "TextStreamer", "Tokenizer"]
