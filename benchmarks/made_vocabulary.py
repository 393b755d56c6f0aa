"""The default model's tokenizer, cut or filled up to as many tokens as a made model has rows."""

from __future__ import annotations

from collections.abc import Mapping

from mlc_llm.loader.gguf import Value
from mlc_llm.tokenizers.vocabulary import TokenKind, Vocabulary


def vocabulary_of(source: Mapping[str, Value], count: int) -> dict[str, Value]:
    """The first `count` tokens, and the merges whose three tokens are among them. If there are
    fewer tokens, the others are named [PAD...] and unused, as converters of llama.cpp have them."""
    vocabulary = Vocabulary.from_metadata(source)
    tokens, kinds = vocabulary.tokens[:count], list(vocabulary.kinds[:count])
    known = set(tokens)
    lines = [f"{left} {right}" for left, right in vocabulary.merges or ()]
    kept = {key: value for key, value in source.items() if key.startswith("tokenizer.")}
    more = range(len(tokens), count)
    return kept | {
        "tokenizer.ggml.tokens": [*tokens, *(f"[PAD{i}]" for i in more)],
        "tokenizer.ggml.token_type": kinds + [int(TokenKind.UNUSED)] * len(more),
        "tokenizer.ggml.merges": [line for line in lines if known.issuperset(_parts_of(line))],
    }


def _parts_of(merge: str) -> tuple[str, ...]:
    """Both sides of a merge and what they make."""
    left, right = merge.split(" ")
    return left, right, left + right
