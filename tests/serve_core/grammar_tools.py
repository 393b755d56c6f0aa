"""A small tokenizer, a sampler that obeys masks, random schemas, and a validator for them."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st

from mlc_llm.protocol.response_format import RequestResponseFormat
from mlc_llm.serve.core.grammar.compiler import GrammarCompiler
from mlc_llm.serve.core.grammar.matcher import GrammarMatcher
from mlc_llm.testing.byte_tokenizer import IM_END, VOCABULARY_SIZE, byte_tokenizer_metadata
from mlc_llm.tokenizers import Tokenizer

CLOSING = {IM_END, *b'"]}'}
PADDED = VOCABULARY_SIZE + 20
"""Rows of the model's output."""


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf_metadata(byte_tokenizer_metadata())


class EndlessTokenizer:
    """The 256 bytes and nothing else: no token ends an answer."""

    vocab_size = 256
    bos_token_id = None
    eos_token_ids: frozenset[int] = frozenset()
    special_tokens: ClassVar[dict[str, int]] = {}

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    def split_control(self, text: str) -> list[str]:
        return [text]

    def encode_segments(self, segments: list[str]) -> list[int]:
        return list("".join(segments).encode())


@cache
def compiler() -> GrammarCompiler:
    return GrammarCompiler(tokenizer(), PADDED, [IM_END])


def response_format(value: dict[str, Any]) -> RequestResponseFormat:
    return RequestResponseFormat.model_validate(value)


def matcher_of(value: dict[str, Any]) -> GrammarMatcher:
    return compiler().compile(response_format(value)).matcher()


def allowed_ids(mask: bytes) -> list[int]:
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits)]


def random_tokens(matcher: GrammarMatcher, seed: int, limit: int = 400) -> list[int] | None:
    """Tokens drawn under the mask until the text is whole; None when that takes too many.

    Whatever ends an answer, a string or a list is preferred, or few texts would end.
    """
    rng, tokens = np.random.default_rng(seed), []
    while not matcher.is_finished:
        if len(tokens) == limit:
            return None
        choices = allowed_ids(matcher.mask())
        token = _preferred(choices, rng)
        if matcher.ends(token):
            break
        matcher.accept(token)
        tokens.append(token)
    return tokens


def _preferred(choices: list[int], rng: np.random.Generator) -> int:
    closing = [i for i in choices if i in CLOSING]
    return int(rng.choice(closing if closing and rng.random() < 0.3 else choices))


NAMES = st.sampled_from(["a", "name", "long name", "ä", 'quo"te', "type"])


def scalars() -> st.SearchStrategy[Any]:
    values = st.lists(
        st.integers(-5, 5) | st.sampled_from(["red", "a b", "ü", '"']), min_size=1, max_size=4
    )
    return st.one_of(
        st.just({"type": "null"}),
        st.just({"type": "boolean"}),
        st.builds(lambda low, size: _between("integer", low, low + size), _LOW, _SIZE),
        st.builds(lambda low, size: _between("number", low, low + size), _LOW, _SIZE),
        st.builds(
            lambda low, size: {"type": "string", "minLength": low, "maxLength": low + size},
            st.integers(0, 3),
            st.integers(0, 9),
        ),
        st.just({"type": "string", "pattern": "^[a-c]+-[0-9]{2}$"}),
        values.map(lambda found: {"enum": found}),
        st.sampled_from([1, "x", None, {"k": [1, True]}]).map(lambda value: {"const": value}),
    )


_LOW, _SIZE = st.integers(-50, 50), st.integers(0, 1000)


def _between(kind: str, low: int, high: int) -> dict[str, Any]:
    return {"type": kind, "minimum": low, "maximum": high}


def schemas() -> st.SearchStrategy[Any]:
    return st.recursive(scalars(), _larger, max_leaves=6)


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(_object, st.dictionaries(NAMES, inner, max_size=4), st.integers(0, 15)),
        st.builds(
            lambda items, low, more: {
                "type": "array", "items": items, "minItems": low, "maxItems": low + more
            },
            inner,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    )  # fmt: skip


def _object(properties: dict[str, Any], needed: int) -> dict[str, Any]:
    required = [name for i, name in enumerate(properties) if needed >> i & 1]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value fits a schema of the kinds above."""
    if "anyOf" in schema:
        return any(fits(value, option) for option in schema["anyOf"])
    if "enum" in schema:
        return any(_same(value, one) for one in schema["enum"])
    if "const" in schema:
        return _same(value, schema["const"])
    return _TYPES[schema["type"]](value, schema)


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


def _is_object(value: Any, schema: dict[str, Any]) -> bool:
    return (
        isinstance(value, dict)
        and all(name in value for name in schema["required"])
        and all(n in schema["properties"] for n in value)
        and all(fits(v, schema["properties"][n]) for n, v in value.items())
    )


def _is_array(value: Any, schema: dict[str, Any]) -> bool:
    return (
        isinstance(value, list)
        and schema["minItems"] <= len(value) <= schema["maxItems"]
        and all(fits(item, schema["items"]) for item in value)
    )


def _is_string(value: Any, schema: dict[str, Any]) -> bool:
    if not isinstance(value, str):
        return False
    if "pattern" in schema:
        return re.search(schema["pattern"], value) is not None
    return bool(schema["minLength"] <= len(value) <= schema["maxLength"])


def _is_number(value: Any, schema: dict[str, Any]) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and bool(schema["minimum"] <= value <= schema["maximum"])


_TYPES = {
    "null": lambda value, _: value is None,
    "boolean": lambda value, _: isinstance(value, bool),
    "integer": lambda value, s: isinstance(value, int) and _is_number(value, s),
    "number": _is_number,
    "string": _is_string,
    "array": _is_array,
    "object": _is_object,
}
