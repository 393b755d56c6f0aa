"""A model's tokens in the library's form, and the library's masks in the runner's form."""

from __future__ import annotations

from collections.abc import Iterable

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from mlc_llm.tokenizers import Tokenizer

_USUAL_BYTES = [bytes([one]) for one in b' a\n0"A1e{}[],:']
"""Where several bytes may come next, two of these mostly may: they are tried first."""


class Vocabulary:
    """The tokens of one tokenizer, with the tokens that end an answer."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: Iterable[int]) -> None:
        """vocab_size: rows of the model's output, often more than the tokenizer has tokens.

        Takes about a second for 400,000 tokens.
        """
        known = tokenizer.vocab_size
        self.vocab_size = vocab_size
        self.end_ids = frozenset(i for i in end_ids if 0 <= i < known)
        special = sorted(set(tokenizer.special_tokens.values()) | self.end_ids)
        source = _Source(tokenizer, special)
        # The library needs a token that ends an answer, if only one that is never sampled.
        ends = sorted(self.end_ids) or [source.add(b"<end of answer>")]
        source.eos_token_id = ends[0]
        self.library = LLTokenizer(TokenizerWrapper(source), eos_token=ends, slices=None)
        ordinary = set(range(min(known, vocab_size))) - set(special)
        by_byte = {source.tokens[i]: i for i in ordinary if len(source.tokens[i]) == 1}
        usual = [by_byte[one] for one in _USUAL_BYTES if one in by_byte]
        self._bytes = list(dict.fromkeys([*usual, *sorted(by_byte.values())]))
        self._num_bytes = 4 * (-(-vocab_size // 32))
        self._known = _first_bits(min(known, vocab_size), self._num_bytes)

    def packed(self, mask: bytes) -> bytes:
        """A mask of the library with `vocab_size` bits; unknown tokens are forbidden."""
        mask = mask[: self._num_bytes].ljust(self._num_bytes, b"\0")
        allowed = int.from_bytes(mask, "little") & self._known
        return allowed.to_bytes(self._num_bytes, "little")

    def only_byte(self, library: LLMatcher) -> int | None:
        """The token of the only byte that may come next. None if several may, or if the answer may
        end."""
        if library.is_accepting():
            return None
        found = (i for i in self._bytes if library.validate_tokens([i]))
        only = next(found, None)
        return only if only is not None and next(found, None) is None else None

    def only(self, token_id: int) -> bytes:
        """The mask that allows one token."""
        mask = bytearray(self._num_bytes)
        mask[token_id >> 3] = 1 << (token_id & 7)
        return bytes(mask)


class _Source:
    """What the library reads: the bytes of all tokens, and how a text is encoded."""

    def __init__(self, tokenizer: Tokenizer, special: list[int]) -> None:
        self._tokenizer = tokenizer
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        self.special_token_ids = special
        self.bos_token_id = tokenizer.bos_token_id
        self.eos_token_id = 0

    def add(self, name: bytes) -> int:
        """Add a control token behind all others; returns its id."""
        self.tokens.append(name)
        self.special_token_ids.append(len(self.tokens) - 1)
        return len(self.tokens) - 1

    def __call__(self, text: str) -> list[int]:
        """Token ids of a text that follows another text."""
        if not isinstance(text, str):
            raise TypeError("text wanted")  # the wrapper tries bytes once
        return self._tokenizer.encode_segments(["", text])


def _first_bits(count: int, num_bytes: int) -> int:
    assert count <= 8 * num_bytes
    return (1 << count) - 1
