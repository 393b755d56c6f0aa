"""The vocabulary of a Hugging Face folder as metadata of a GGUF file.

Two kinds are written: byte-level BPE (tokenizer.json) and SentencePiece's BPE (tokenizer.model).
As llama.cpp's converter does, ids without a token get a token that no text contains, and added
tokens that look like control tokens are control tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, cast

import tokenizers as hf

from mlc_llm.conversion.gguf_entries import (
    bool_entry,
    float32s_entry,
    int32s_entry,
    text_entry,
    texts_entry,
    uint32_entry,
)
from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.json_file import read_json_object
from mlc_llm.loader.gguf_metadata import RawEntry
from mlc_llm.model_files.folder_texts import DEFAULT, TOOL_USE, folder_template
from mlc_llm.model_files.gguf import TEMPLATE_KEYS
from mlc_llm.tokenizers import Tokenizer
from mlc_llm.tokenizers.folder_config import MAX_BYTES, FolderConfig
from mlc_llm.tokenizers.json_steps import of_class
from mlc_llm.tokenizers.spm_model import BPE, read_model
from mlc_llm.tokenizers.vocabulary import MAX_TOKENS, TokenKind, end_texts
from mlc_llm.tokenizers.word_rules import RULES, WordRule

_SPM, _JSON = "tokenizer.model", "tokenizer.json"
_PREFIX = "tokenizer.ggml."
_ADDED_SCORE, _NO_SCORE = -1000.0, -10000.0
_SPECIAL = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
_ENDS = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
_MARK = "▁"
_ROLES = {
    "bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id",
    "pad": "padding_token_id",
}  # fmt: skip
"""The beginning of a role's names in JSON files -> its key."""
_FURTHER_ENDS = ("eot_token_id", "eom_token_id")
"""Keys of tokens that end an answer, too."""


class Tokens(NamedTuple):
    """A vocabulary."""

    texts: list[str]
    kinds: list[int]
    scores: list[float]


def vocabulary_entries(folder: Path, vocab: int) -> dict[str, RawEntry]:
    """vocab: rows of the embedding. Raises UnsupportedModel for a kind of tokenizer that is not
    written; ModelFileError, ModelNotFound."""
    config = FolderConfig.read(folder)
    if (folder / _SPM).is_file():
        found, tokens = _sentencepiece(folder, config, vocab)
    elif (folder / _JSON).is_file():
        found, tokens = _byte_level(folder, config, vocab)
    else:
        raise UnsupportedModel(f"{folder}: a .gguf file is made of {_JSON} or {_SPM}")
    if len(tokens.texts) > vocab:
        raise ModelFileError(
            f"{folder}: the tokenizer has {len(tokens.texts)} tokens, the embedding {vocab} rows"
        )
    ids = _special_ids(config, tokens.texts)
    ids |= _end_ids(config, tokens, ids.get("eos_token_id"))
    found |= {_PREFIX + key: uint32_entry(i) for key, i in ids.items()}
    tokenizer = Tokenizer(folder)
    found[f"{_PREFIX}add_bos_token"] = bool_entry(tokenizer.add_bos)
    template = folder_template(folder)
    if template is not None:
        found[TEMPLATE_KEYS[DEFAULT]] = text_entry(template.source)
        if template.tool_use is not None:
            found[TEMPLATE_KEYS[TOOL_USE]] = text_entry(template.tool_use.source)
    return found


def _special_ids(config: FolderConfig, texts: list[str]) -> dict[str, int]:
    """The ids by their keys. tokenizer_config.json comes before config.json."""
    found = {}
    for role, key in _ROLES.items():
        text, stated = config.named(f"{role}_token"), config.model.get(f"{role}_token_id")
        if text is not None and text in texts:
            found[key] = texts.index(text)
        elif type(stated) is int and 0 <= stated < len(texts):
            found[key] = stated
    return found


def _end_ids(config: FolderConfig, tokens: Tokens, eos: int | None) -> dict[str, int]:
    """All tokens that end an answer, by their keys. Tokens that readers know by their texts come
    last, and the file ends with them even if no key is left. Raises UnsupportedModel if more tokens
    need a key."""
    stated = config.model.get("eos_token_id")
    listed = stated if isinstance(stated, list) else [stated]
    wanted = [eos, *listed, *sorted(config.end_ids)]
    known = range(len(tokens.texts))
    ids = [*dict.fromkeys(i for i in wanted if type(i) is int and i in known)]
    if not ids:
        return {}
    first, *further = ids
    control = {text for text, kind in zip(*tokens[:2], strict=True) if kind == TokenKind.CONTROL}
    by_text = control & end_texts(control)
    further.sort(key=lambda i: tokens.texts[i] in by_text)
    lost = [tokens.texts[i] for i in further[len(_FURTHER_ENDS) :]]
    if not by_text.issuperset(lost):
        names = ", ".join(repr(tokens.texts[i][:40]) for i in ids)
        most = len(_FURTHER_ENDS) + 1
        raise UnsupportedModel(
            f"{config.folder}: answers end with {names}; a .gguf file names {most} tokens at most"
        )
    return {"eos_token_id": first, **dict(zip(_FURTHER_ENDS, further, strict=False))}


def _kind_of(text: str, is_special: bool) -> int:
    """Of an added token."""
    looks = text in _SPECIAL or any(text.startswith(a) and text.endswith(b) for a, b in _ENDS)
    return int(TokenKind.CONTROL if is_special or looks else TokenKind.USER_DEFINED)


def _add(tokens: Tokens, added: Iterable[tuple[int, str, bool]], vocab: int) -> None:
    """Put added tokens (id, text, whether it is special) over the others; ids up to `vocab` that
    have no token get one."""
    for i in range(len(tokens.texts), vocab):
        tokens.texts.append(f"[PAD{i}]")
        tokens.kinds.append(int(TokenKind.UNUSED))
        tokens.scores.append(_NO_SCORE)
    for i, text, is_special in added:
        if not 0 <= i < len(tokens.texts):
            raise ModelFileError(f"the added token {text[:40]!r} has the id {i}, of {vocab}")
        kind = _kind_of(text, is_special)
        is_text = kind == TokenKind.USER_DEFINED
        tokens.texts[i] = text.replace(_MARK, " ") if is_text else text
        tokens.kinds[i], tokens.scores[i] = kind, _ADDED_SCORE


def _sentencepiece(
    folder: Path, config: FolderConfig, vocab: int
) -> tuple[dict[str, RawEntry], Tokens]:
    model = read_model(folder / _SPM)
    if model.algorithm != BPE:
        raise UnsupportedModel(f"{folder / _SPM}: a .gguf file of a unigram is not written yet")
    if model.characters or model.merges_spaces or config.lowercases:
        words = "a .gguf file cannot say that text is normalised"
        raise UnsupportedModel(f"{folder / _SPM}: {words}")
    tokens = Tokens(list(model.tokens), list(model.kinds), list(model.scores))
    added = sorted((one.id, one.text, one.is_special) for one in config.added.values())
    _add(tokens, added, vocab)
    entries = {
        "model": text_entry("llama"),
        "pre": text_entry("default"),
        "tokens": texts_entry(tokens.texts),
        "scores": float32s_entry(tokens.scores),
        "token_type": int32s_entry(tokens.kinds),
        "add_space_prefix": bool_entry(model.adds_space),
    }
    return {_PREFIX + key: entry for key, entry in entries.items()}, tokens


def _byte_level(
    folder: Path, config: FolderConfig, vocab: int
) -> tuple[dict[str, RawEntry], Tokens]:
    spec = of_class(read_json_object(folder / _JSON, MAX_BYTES), config)
    stated = spec.get("model")
    model: Mapping[str, object] = stated if isinstance(stated, dict) else {}
    rule = _rule_name(folder, spec, model)
    ids = model.get("vocab")
    if not isinstance(ids, dict) or not ids or not all(type(one) is int for one in ids.values()):
        raise ModelFileError(f"{folder / _JSON}: model.vocab should be tokens with ids")
    by_id = {cast(int, one): text for text, one in ids.items()}
    highest = max(by_id)
    if min(by_id) < 0 or highest >= min(vocab, MAX_TOKENS):
        raise ModelFileError(f"{folder / _JSON}: ids up to {highest}, the embedding has {vocab}")
    tokens = Tokens([], [], [])
    _add(tokens, (), vocab)
    for i, text in by_id.items():
        tokens.texts[i], tokens.kinds[i] = text, int(TokenKind.NORMAL)
    _add(tokens, _added(folder, spec), vocab)
    entries = {
        "model": text_entry("gpt2"),
        "pre": text_entry(rule),
        "tokens": texts_entry(tokens.texts),
        "token_type": int32s_entry(tokens.kinds),
        "merges": texts_entry(_merges(folder, model)),
    }
    return {_PREFIX + key: entry for key, entry in entries.items()}, tokens


def _added(folder: Path, spec: Mapping[str, object]) -> list[tuple[int, str, bool]]:
    found, stated = [], spec.get("added_tokens", [])
    for one in stated if isinstance(stated, list) else []:
        entry = one if isinstance(one, dict) else {}
        i, text = entry.get("id"), entry.get("content")
        if type(i) is not int or not isinstance(text, str):
            raise ModelFileError(f"{folder / _JSON}: added_tokens should have ids and contents")
        found.append((i, text, bool(entry.get("special"))))
    return found


def _merges(folder: Path, model: Mapping[str, object]) -> list[str]:
    """As texts with a space between the two."""
    found, stated = [], model.get("merges")
    for one in stated if isinstance(stated, list) else []:
        pair = one.split(" ") if isinstance(one, str) else one
        if not isinstance(pair, list) or len(pair) != 2 or any(" " in str(part) for part in pair):
            raise ModelFileError(f"{folder / _JSON}: merges should be pairs of tokens")
        found.append(" ".join(map(str, pair)))
    return found


def _rule_name(folder: Path, spec: Mapping[str, object], model: Mapping[str, object]) -> str:
    """GGUF's name of the way in which text is cut into words."""
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise UnsupportedModel(
            f"{folder / _JSON}: a .gguf file is made of a byte-level BPE; for SentencePiece's "
            f"vocabularies add {_SPM}"
        )
    try:
        cutter, normalizer = _steps(spec.get("pre_tokenizer")), spec.get("normalizer")
    except Exception as error:  # the library raises bare exceptions
        raise ModelFileError(f"{folder / _JSON}: pre_tokenizer: {error}") from None
    whole = bool(model.get("ignore_merges"))
    for name, rule in sorted(RULES.items(), key=lambda one: one[0] == "default"):
        composed = {"type": "NFC"} if rule.composes else None
        same = whole == rule.takes_whole_words and _plain(normalizer) == _plain(composed)
        if same and cutter == _cutter(rule):
            return name
    raise UnsupportedModel(
        f"{folder / _JSON}: no name in GGUF says how its pre_tokenizer, its normalizer and "
        f"ignore_merges = {whole} cut text into words"
    )


def _steps(stated: object) -> object:
    """A pre_tokenizer with all its defaults."""
    model = {"type": "BPE", "vocab": {}, "merges": []}
    whole = {"version": "1.0", "model": model, "added_tokens": [], "pre_tokenizer": stated}
    return _plain(json.loads(hf.Tokenizer.from_str(json.dumps(whole)).to_str())["pre_tokenizer"])


def _cutter(rule: WordRule) -> object:
    """As tokenizer.json has it."""
    made = hf.Tokenizer(hf.models.BPE())
    made.pre_tokenizer = rule.cutter
    return _plain(json.loads(made.to_str())["pre_tokenizer"])


def _plain(node: object) -> object:
    """Steps without what changes no words: the trimming of offsets, and sequences of one."""
    if not isinstance(node, dict):
        return node
    for inner in ("pretokenizers", "normalizers"):
        steps = node.get(inner)
        if isinstance(steps, list):
            plain = [_plain(step) for step in steps]
            return plain[0] if len(plain) == 1 else plain
    return {key: value for key, value in node.items() if key != "trim_offsets"}
