"""The tokenizer of RWKV: at each place of a text, the longest token that fits is taken.

Two files have such vocabularies. GGUF (`tokenizer.ggml.model` = "rwkv") writes the bytes of a token
as Python shows them, without the quotation marks. A folder has `rwkv_vocab_v20230424.txt`: on each
line an id, the token as a literal of Python, and its length in bytes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from mlc_llm.errors import ModelFileError
from mlc_llm.tokenizers.folder_config import FolderConfig
from mlc_llm.tokenizers.parts import Backends, Parts, Prefix, Prepared
from mlc_llm.tokenizers.text_lines import read_lines
from mlc_llm.tokenizers.vocabulary import MAX_TOKENS, TokenKind, Vocabulary

FILE = "rwkv_vocab_v20230424.txt"
END = "<s>"
"""Token 0, which ends texts, where the files beside a folder's vocabulary do not name it."""
LINE_END = "\\n\\n"
"""Ends the answer of a chat, as in the files that llama.cpp's converter writes."""
LONGEST = 1024
"""Bytes of a token; a longer one would make encoding slow."""
_ESCAPED = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_LINE = re.compile(r"(\d{1,7}) (.+) (\d{1,7})")


class LongestMatch:
    """Encodes texts: the time is linear, with one look into a table for each length that a token
    with the same first two bytes has."""

    def __init__(self, tokens: Mapping[bytes, int]) -> None:
        """tokens: each with its id. Raises ModelFileError if a byte has none, or one is too
        long."""
        self._ids = tokens
        lengths: dict[bytes, set[int]] = {}
        for token in tokens:
            lengths.setdefault(token[:2], set()).add(len(token))
        self._lengths = {start: sorted(all_, reverse=True) for start, all_ in lengths.items()}
        lacking = [byte for byte in range(256) if bytes([byte]) not in tokens]
        if lacking:
            raise ModelFileError(f"tokenizer.ggml.tokens: no token is the byte {lacking[0]}")
        longest = max(map(len, tokens))
        if longest > LONGEST:
            raise ModelFileError(
                f"tokenizer.ggml.tokens: a token of {longest} bytes; at most {LONGEST} are taken"
            )

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text."""
        return [self._encoded(text.encode()) for text in texts]

    def _encoded(self, data: bytes) -> list[int]:
        ids, lengths, found, at = self._ids, self._lengths, [], 0
        while at < len(data):
            for length in lengths.get(data[at : at + 2], ()):
                token = ids.get(data[at : at + length])
                if token is not None:
                    break
            else:
                token, length = ids[data[at : at + 1]], 1
            found.append(token)
            at += length
        return found


def longest_match_parts(vocabulary: Vocabulary, config: FolderConfig | None = None) -> Parts:
    """The tokenizer of a vocabulary whose tokens are written as in GGUF. Raises ModelFileError."""
    control = vocabulary.control
    ids = {
        token_bytes(vocabulary, i): i
        for i, kind in enumerate(vocabulary.kinds)
        if kind in (TokenKind.NORMAL, TokenKind.USER_DEFINED) and vocabulary.tokens[i]
    }
    return Parts(
        backends=_no_backends,
        token_bytes=partial(token_bytes, vocabulary),
        vocab_size=len(vocabulary.tokens),
        special_tokens=control,
        bos_token_id=vocabulary.ids.get("bos_token_id"),
        eos_token_id=vocabulary.ids.get("eos_token_id"),
        eos_token_ids=vocabulary.end_ids | (config.end_ids if config else frozenset()),
        add_bos=vocabulary.add_bos,
        strips_leading_space=False,
        prepared=Prepared(_unchanged, LongestMatch(ids).encode, Prefix.NONE),
    )


def parts_of_rwkv_file(path: Path, config: FolderConfig) -> Parts:
    """Raises ModelFileError, which names the line."""
    tokens, kinds = [END], [int(TokenKind.CONTROL)]
    for number, line in enumerate(read_lines(path, MAX_TOKENS), start=1):
        token = _literal(line)
        if token is None or int(line.split(" ", 1)[0]) != len(tokens):
            raise ModelFileError(
                f"{path}: line {number} = {line[:40]!r} should be {len(tokens)}, a token as a "
                "literal of Python, and its length in bytes"
            )
        tokens.append(repr(token)[2:-1])
        kinds.append(int(TokenKind.NORMAL))
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    if LINE_END in tokens:
        ids["eot_token_id"] = tokens.index(LINE_END)
    config.completed(tokens, kinds, path.name)
    vocabulary = Vocabulary(
        model="rwkv",
        pre="",
        architecture="",
        tokens=tokens,
        kinds=kinds,
        scores=None,
        merges=None,
        ids=config.ids(tokens, ids),
        add_bos=False,
        add_space_prefix=False,
    )
    return longest_match_parts(vocabulary, config)


def _literal(line: str) -> bytes | None:
    """The token of a line; None if it has another form."""
    found = _LINE.fullmatch(line)
    if found is None or len(found[2]) > 8 * LONGEST:
        return None
    try:
        value = ast.literal_eval(found[2])
        token = value.encode() if isinstance(value, str) else value
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return token if isinstance(token, bytes) and len(token) == int(found[3]) else None


def token_bytes(vocabulary: Vocabulary, token_id: int) -> bytes:
    """The bytes that a token stands for. An added token stands for its own text."""
    token = vocabulary.tokens[token_id].encode()
    if vocabulary.kinds[token_id] in (TokenKind.CONTROL, TokenKind.USER_DEFINED):
        return token
    return _ESCAPED.sub(_unescaped, token)


def _unescaped(found: re.Match[bytes]) -> bytes:
    letter = found[1]
    if len(letter) == 3:
        return bytes([int(letter[1:], 16)])
    return _LETTERS.get(letter, letter)


def _unchanged(text: str, *, continued: bool = False) -> str:
    """Texts need no preparation."""
    return text


def _no_backends() -> Backends:
    raise AssertionError("these texts are encoded by `Parts.prepared`")
