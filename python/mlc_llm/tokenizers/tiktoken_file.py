"""Builds a tokenizer from a file of tiktoken: a line for each token, its bytes in base64 and its
rank. The rank is the id, and the order of the merges.

The file does not say how text is cut into words, nor what the control tokens are. The first is
known by the file's name, by the pattern in tokenizer_config.json, or by the model's type.
"""

from __future__ import annotations

import binascii
import re
from pathlib import Path
from typing import NamedTuple

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.plain_file import open_plain
from mlc_llm.tokenizers.byte_level import CHARACTERS
from mlc_llm.tokenizers.folder_config import FolderConfig
from mlc_llm.tokenizers.from_gguf import parts_of_vocabulary
from mlc_llm.tokenizers.parts import Parts
from mlc_llm.tokenizers.sentencepiece import check_lengths, recovered_merges
from mlc_llm.tokenizers.text_lines import read_lines
from mlc_llm.tokenizers.vocabulary import MAX_TOKENS, TokenKind, Vocabulary
from mlc_llm.tokenizers.word_rules import RULES, WordRule, rule_of_expression, word_rule

_LINE = re.compile(r"([A-Za-z0-9+/]+={0,2}) (\d{1,7})", re.ASCII)


class _Kind(NamedTuple):
    """What a file of tiktoken does not say."""

    rule: str
    """The name of the word rule, or its expression."""
    special: dict[int, str]
    """Control tokens, by their distance from the end of the ranks."""


def _numbered(*names: str) -> dict[int, str]:
    return dict(enumerate(names))


_LLAMA3 = _Kind(
    "llama-bpe",
    _numbered(
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|reserved_special_token_0|>",
        "<|reserved_special_token_1|>",
        "<|finetune_right_pad_id|>",
        "<|step_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|python_tag|>",
        *(f"<|reserved_special_token_{i}|>" for i in range(2, 247)),
    ),
)
_CL100K = _Kind(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    {
        **{1: "<|endoftext|>", 2: "<|fim_prefix|>", 3: "<|fim_middle|>", 4: "<|fim_suffix|>"},
        20: "<|endofprompt|>",
    },
)
_O200K = _Kind("gpt-4o", {1: "<|endoftext|>", 20: "<|endofprompt|>"})
_QWEN = _Kind(
    "qwen2",
    _numbered(
        *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        *(f"<|extra_{i}|>" for i in range(205)),
    ),
)
_OF_FILES = {"cl100k_base": _CL100K, "o200k_base": _O200K, "qwen": _QWEN}
_OF_MODELS = {
    **dict.fromkeys(("llama", "mllama"), _LLAMA3),
    **{"qwen": _QWEN, "phi3small": _CL100K, "dbrx": _CL100K, "gpt_oss": _O200K},
}


def is_tiktoken(path: Path) -> bool:
    """Whether a file begins with a line of tiktoken. SentencePiece's files have the same name."""
    try:
        with open_plain(path) as file:
            first = file.readline(1000)
        return _LINE.fullmatch(first.decode("ascii").rstrip("\r\n")) is not None
    except (OSError, UnicodeDecodeError):
        return False


def parts_of_tiktoken(path: Path, config: FolderConfig) -> Parts:
    """Raises ModelFileError, which names the line, or UnsupportedModel."""
    tokens = _tokens(path)
    rule, special = _kind(path, config)
    kinds = [int(TokenKind.NORMAL)] * len(tokens)
    ids = {token: i for i, token in enumerate(tokens)}
    merges = recovered_merges(ids, {token: -float(i) for token, i in ids.items()}, {})
    if not config.added:
        for place, text in special.items():
            at = len(ids) + place
            tokens += [f"<no token {i}>" for i in range(len(tokens), at)] + [text]
            kinds += [int(TokenKind.UNUSED)] * (at - len(kinds)) + [int(TokenKind.CONTROL)]
    config.completed(tokens, kinds, path.name)
    begin = tokens.index("<|begin_of_text|>") if "<|begin_of_text|>" in tokens else None
    named = config.ids(tokens, {} if begin is None else {"bos_token_id": begin})
    stated = config.flag("add_bos_token")
    vocabulary = Vocabulary(
        model="gpt2",
        pre="",
        architecture="",
        tokens=tokens,
        kinds=kinds,
        scores=None,
        merges=merges,
        ids=named,
        add_bos="bos_token_id" in named and (begin is not None if stated is None else stated),
        add_space_prefix=False,
        rule=rule,
    )
    return parts_of_vocabulary(vocabulary, config)


def _tokens(path: Path) -> list[str]:
    """The tokens in the order of their ranks, written in GPT-2's table."""
    lines = read_lines(path, MAX_TOKENS)
    tokens: list[str] = [""] * len(lines)
    for number, line in enumerate(lines, start=1):
        found = _LINE.fullmatch(line)
        rank = int(found[2]) if found else len(tokens)
        if found is None or rank >= len(tokens) or tokens[rank]:
            wanted = f"a token and a rank of its own below {len(tokens)}"
            raise ModelFileError(f"{path}: line {number} = {line[:40]!r} should be {wanted}")
        try:
            data = binascii.a2b_base64(found[1])
        except binascii.Error as error:
            raise ModelFileError(f"{path}: line {number} = {line[:40]!r}: {error}") from None
        tokens[rank] = "".join(CHARACTERS[byte] for byte in data)
    check_lengths(str(path), tokens)
    lacking = set(CHARACTERS) - set(tokens)
    if lacking or len(set(tokens)) < len(tokens):
        raise ModelFileError(f"{path}: a byte has no token of its own, or a token is there twice")
    return tokens


def _kind(path: Path, config: FolderConfig) -> tuple[WordRule, dict[int, str]]:
    """The word rule and the control tokens."""
    model = str(config.model.get("model_type", ""))
    kind = _OF_FILES.get(path.stem) or _OF_MODELS.get(model)
    expression = config.text("pat_str") or config.text("pattern")
    if expression:
        return rule_of_expression(expression), kind.special if kind else {}
    if kind is None:
        known = ", ".join([*_OF_FILES, *_OF_MODELS])
        raise UnsupportedModel(
            f"{path}: it does not say how text is cut into words; neither its name does, nor "
            f"model_type = {model[:40]!r}; known: {known}; pat_str in tokenizer_config.json may"
        )
    if kind.rule in RULES:
        return word_rule(kind.rule, "").whole(), kind.special
    return rule_of_expression(kind.rule), kind.special
