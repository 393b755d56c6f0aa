"""Text to token ids and back, streamed text, and stop strings.

`tokenizer` has the public class. `vocabulary` reads and checks the vocabulary of a GGUF file;
`byte_level` (with the rules of `word_rules`), `sentencepiece`, `wordpiece` and `unigram` each build
one kind of tokenizer from it. `folder` finds the tokenizer of a folder: `tokenizer_json`,
`spm_file` (SentencePiece), `tiktoken_file`, `bpe_files` and `wordpiece_file` each read one format,
and `folder_config` what stands beside them.
"""

from __future__ import annotations

from mlc_llm.tokenizers.stop_strings import StopStrHandler, StopStrings
from mlc_llm.tokenizers.streamer import TextStreamer
from mlc_llm.tokenizers.tokenizer import Tokenizer

__all__ = ["StopStrHandler", "StopStrings", "TextStreamer", "Tokenizer"]
