"""Builds a tokenizer from tokenizer.json, the format of the `tokenizers` library."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import tokenizers as hf

from mlc_llm.errors import ModelFileError, UnsupportedModel, one_line
from mlc_llm.json_file import read_json_object
from mlc_llm.tokenizers.byte_level import BYTES
from mlc_llm.tokenizers.folder_config import MAX_BYTES, AddedToken, FolderConfig, JsonObject
from mlc_llm.tokenizers.frame import json_frame
from mlc_llm.tokenizers.json_steps import items, never_adds, nodes, of_class
from mlc_llm.tokenizers.parts import Backends, Parts, Strip
from mlc_llm.tokenizers.sentencepiece import SPACE, byte_of
from mlc_llm.tokenizers.vocabulary import end_texts
from mlc_llm.tokenizers.wordpiece import CONTINUES


def parts_of_json(path: Path, config: FolderConfig) -> Parts:
    """Raises `UnsupportedModel`, or `ModelFileError`, which names the file."""
    folder = path.parent
    spec = of_class(read_json_object(path, MAX_BYTES), config)
    plain = _backend(folder, spec, encode_special=True)
    added = _added_tokens(folder, spec)
    special = {token.text: token.id for token in added if token.is_special}
    bos = special.get(config.named("bos_token") or "")
    continued = _continued(folder, spec, plain)
    backends = Backends(
        recognising=_backend(folder, spec, encode_special=False),
        plain=plain,
        continued=continued,
        after_control=continued,
    )
    return Parts(
        backends=lambda: backends,
        token_bytes=_token_bytes(folder, spec, plain, added),
        vocab_size=plain.get_vocab_size(),
        special_tokens=special,
        bos_token_id=bos,
        eos_token_id=special.get(config.named("eos_token") or ""),
        eos_token_ids=_end_ids(special, config),
        add_bos=bos is not None and _adds(config, plain, bos),
        frame=json_frame(spec.get("post_processor")),
        strips_leading_space=_strips_leading_space(spec),
        whole_words=frozenset(one.id for one in added if one.is_special and one.is_word),
        strips={one.id: one.strip for one in added if one.is_special and any(one.strip)},
    )


def _backend(folder: Path, spec: JsonObject, *, encode_special: bool) -> hf.Tokenizer:
    try:
        made = hf.Tokenizer.from_str(json.dumps(spec))
    except BaseException as error:  # the library's own, and its panics, which are no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelFileError(f"{folder / 'tokenizer.json'}: {one_line(error)}") from None
    made.no_truncation()
    made.no_padding()
    made.encode_special_tokens = encode_special
    return made


def _added_tokens(folder: Path, spec: JsonObject) -> list[AddedToken]:
    found = []
    for entry in items(spec.get("added_tokens")):
        one = entry if isinstance(entry, dict) else {}
        token_id, text = one.get("id"), one.get("content")
        if not isinstance(token_id, int) or not isinstance(text, str):
            wanted = "each of added_tokens should have an id and a content"
            raise ModelFileError(f"{folder / 'tokenizer.json'}: {wanted}")
        strip = Strip(bool(one.get("lstrip")), bool(one.get("rstrip")))
        special, is_word = bool(one.get("special")), bool(one.get("single_word"))
        found.append(AddedToken(token_id, text, special, strip, is_word))
    return found


def _continued(folder: Path, spec: JsonObject, plain: hf.Tokenizer) -> hf.Tokenizer:
    """A tokenizer that adds no space before the first word of a text."""
    cutter = copy.deepcopy(spec.get("pre_tokenizer"))
    first = [node for node in nodes(cutter) if _adds_first_space(node)]
    if not first:
        return plain
    for node in first:
        never_adds(node)
    return _backend(folder, {**spec, "pre_tokenizer": cutter}, encode_special=True)


def _adds_first_space(node: JsonObject) -> bool:
    return node.get("type") == "Metaspace" and node.get("prepend_scheme") == "first"


def _token_bytes(
    folder: Path, spec: JsonObject, backend: hf.Tokenizer, added: list[AddedToken]
) -> Callable[[int], bytes]:
    texts = {token.id: token.text.encode() for token in added}
    kinds = {node.get("type") for node in nodes(spec.get("decoder"))}
    if "ByteLevel" in kinds:
        return partial(_byte_level_bytes, backend, texts)
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        texts |= _normalized(backend, added)
        return partial(_fallback_bytes, backend, texts)
    if "WordPiece" in kinds:
        return partial(_piece_bytes, backend, texts)
    raise UnsupportedModel(
        f"{folder / 'tokenizer.json'}: decoder {sorted(map(str, kinds))} is not supported; "
        "supported: ByteLevel, ByteFallback, Metaspace, WordPiece"
    )


def _normalized(backend: hf.Tokenizer, added: list[AddedToken]) -> dict[int, bytes]:
    """What the library decodes added tokens to that are no control tokens. If they are found in
    the normalised text, the normaliser has changed them: a space may stand before them."""
    found = ((one, backend.id_to_token(one.id)) for one in added if not one.is_special)
    return {one.id: text.encode() for one, text in found if text is not None}


def _byte_level_bytes(backend: hf.Tokenizer, added: dict[int, bytes], token_id: int) -> bytes:
    if token_id in added:
        return added[token_id]
    token = backend.id_to_token(token_id) or ""
    try:
        return bytes([BYTES[character] for character in token])
    except KeyError:  # not written in the table: the token is its own text
        return token.encode()


def _fallback_bytes(backend: hf.Tokenizer, added: dict[int, bytes], token_id: int) -> bytes:
    if token_id in added:
        return added[token_id].replace(SPACE.encode(), b" ")
    token = backend.id_to_token(token_id) or ""
    return byte_of(token) or token.replace(SPACE, " ").encode()


def _piece_bytes(backend: hf.Tokenizer, added: dict[int, bytes], token_id: int) -> bytes:
    if token_id in added:
        return added[token_id]
    token = backend.id_to_token(token_id) or ""
    return token[2:].encode() if token.startswith(CONTINUES) else f" {token}".encode()


def _end_ids(special: dict[str, int], config: FolderConfig) -> frozenset[int]:
    texts = {config.named("eos_token"), *end_texts(special)}
    return config.end_ids | {special[text] for text in texts if text in special}


def _adds(config: FolderConfig, backend: hf.Tokenizer, bos: int) -> bool:
    stated = config.flag("add_bos_token")
    if stated is not None:
        return stated
    return backend.encode("", add_special_tokens=True).ids[:1] == [bos]


def _strips_leading_space(spec: JsonObject) -> bool:
    for node in nodes(spec.get("decoder")):
        if node.get("type") == "Strip" and node.get("content") == " " and node.get("start", 0):
            return True
        if node.get("type") == "WordPiece":
            return True
        if node.get("type") == "Metaspace" and node.get("prepend_scheme", "always") != "never":
            return True
    return False
