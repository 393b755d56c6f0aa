"""Builds a tokenizer from Mistral's tekken.json: byte-level merges like tiktoken's, in JSON.

`vocab` has the tokens in the order of the merges, as base64; `config` has the expression that cuts
text into words, and how many ids there are and how many of them, the first ones, belong to control
tokens. `special_tokens` names these. Source: the package mistral-common (Tekkenizer).
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import NamedTuple

from mlc_llm.errors import ModelFileError
from mlc_llm.json_file import read_json_object
from mlc_llm.tokenizers.byte_level import CHARACTERS
from mlc_llm.tokenizers.folder_config import MAX_BYTES, FolderConfig
from mlc_llm.tokenizers.from_gguf import parts_of_vocabulary
from mlc_llm.tokenizers.parts import Parts
from mlc_llm.tokenizers.sentencepiece import check_lengths, recovered_merges
from mlc_llm.tokenizers.vocabulary import MAX_TOKENS, TokenKind, Vocabulary
from mlc_llm.tokenizers.word_rules import rule_of_expression

_ROLES = {
    "bos_token_id": "<s>", "eos_token_id": "</s>", "unknown_token_id": "<unk>",
    "padding_token_id": "<pad>",
}  # fmt: skip
_OLD = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)  # fmt: skip
"""Control tokens of files that do not name them, up to version 7."""


class _Sizes(NamedTuple):
    """What `config` says."""

    version: int
    pattern: str
    ids: int
    special: int


def parts_of_tekken(path: Path, config: FolderConfig) -> Parts:
    """Raises ModelFileError, which names the field, or UnsupportedModel."""
    stated = read_json_object(path, MAX_BYTES)
    sizes = _sizes(path, stated.get("config"))
    named = stated.get("special_tokens", _old(sizes.version))
    special = _special(path, named, sizes.special)
    tokens = _tokens(path, stated.get("vocab"), sizes.ids - sizes.special)
    ranks = {token: i for i, token in enumerate(tokens)}
    both = ranks.keys() & set(special)
    if both:
        raise ModelFileError(
            f"{path}: {sorted(both)[0]!r} is a token of the text and a special one"
        )
    ids = {text: special.index(one) for text, one in _ROLES.items() if one in special}
    kinds = [TokenKind.CONTROL] * len(special) + [TokenKind.NORMAL] * len(tokens)
    add_bos = config.flag("add_bos_token")
    vocabulary = Vocabulary(
        model="gpt2",
        pre="",
        architecture="",
        tokens=special + tokens,
        kinds=list(map(int, kinds)),
        scores=None,
        merges=recovered_merges(ranks, {token: -float(i) for token, i in ranks.items()}, {}),
        ids=ids,
        add_bos="bos_token_id" in ids and add_bos is not False,
        add_space_prefix=False,
        rule=rule_of_expression(sizes.pattern),
    )
    return parts_of_vocabulary(vocabulary, config)


def _sizes(path: Path, stated: object) -> _Sizes:
    values = stated if isinstance(stated, dict) else {}
    version = values.get("version")
    if not isinstance(version, str) or not re.fullmatch(r"v\d{1,4}", version, re.ASCII):
        raise ModelFileError(
            f"{path}: config.version = {str(version)[:40]!r} should be v and a number"
        )
    pattern = values.get("pattern")
    ids, special = (values.get(f"default_{name}") for name in ("vocab_size", "num_special_tokens"))
    if not isinstance(pattern, str) or not pattern:
        raise ModelFileError(f"{path}: config.pattern should be an expression")
    if type(ids) is not int or type(special) is not int or not 0 <= special < ids <= MAX_TOKENS:
        raise ModelFileError(
            f"{path}: config.default_vocab_size = {str(ids)[:40]!r} and default_num_special_tokens "
            f"= {str(special)[:40]!r} should be numbers, the second one smaller"
        )
    return _Sizes(int(version[1:]), pattern, ids, special)


def _old(version: int) -> object:
    """The control tokens of a file that does not name them. None: it should."""
    return None if version > 7 else [{"rank": i, "token_str": one} for i, one in enumerate(_OLD)]


def _special(path: Path, stated: object, count: int) -> list[str]:
    """The control tokens in the order of their ids; those that have no name get one."""
    found: dict[int, str] = {}
    for one in stated if isinstance(stated, list) else [None]:
        rank, text = (one.get("rank"), one.get("token_str")) if isinstance(one, dict) else (0, 0)
        if type(rank) is not int or not isinstance(text, str) or not text or rank in found:
            raise ModelFileError(f"{path}: special_tokens should be tokens with ranks of their own")
        if not 0 <= rank < count:
            raise ModelFileError(
                f"{path}: special_tokens: {text[:40]!r} has rank {rank} of {count}"
            )
        found[rank] = text
    if len(set(found.values())) < len(found):
        raise ModelFileError(f"{path}: special_tokens: one is there twice")
    return [found.get(i, f"<SPECIAL_{i}>") for i in range(count)]


def _tokens(path: Path, stated: object, count: int) -> list[str]:
    """The first `count` tokens in the order of their ranks, written in GPT-2's table. More are of
    no use, as in mistral-common."""
    entries = stated if isinstance(stated, list) else []
    if len(entries) < count or len(entries) > MAX_TOKENS:
        raise ModelFileError(f"{path}: vocab has {len(entries)} tokens; config names {count}")
    tokens = []
    for rank, one in enumerate(entries[:count]):
        data = _data(one, rank)
        if not data or (rank < 256 and data != bytes([rank])):
            wanted = "bytes in base64, of this rank; the first 256 are the bytes in order"
            raise ModelFileError(f"{path}: vocab[{rank}] should be {wanted}")
        tokens.append("".join(CHARACTERS[byte] for byte in data))
    check_lengths(str(path), tokens)
    if len(tokens) < len(CHARACTERS) or len(set(tokens)) < len(tokens):
        raise ModelFileError(f"{path}: vocab: fewer tokens than bytes, or a token is there twice")
    return tokens


def _data(one: object, rank: int) -> bytes:
    """The bytes of an entry; none if it is wrong."""
    text = one.get("token_bytes") if isinstance(one, dict) else None
    if not isinstance(one, dict) or one.get("rank") != rank or not isinstance(text, str):
        return b""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""
