"""A tokenizer out of a folder with tokenizer.json (the format of the `tokenizers` library)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers as hf

from mlc_llm.errors import ModelFileError, ModelNotFound, UnsupportedModel
from mlc_llm.tokenizers.byte_level import BYTES
from mlc_llm.tokenizers.parts import Backends, Parts, Strip
from mlc_llm.tokenizers.sentencepiece import SPACE, byte_of
from mlc_llm.tokenizers.vocabulary import END_TEXTS

MAX_BYTES = 256 * 2**20
_OTHER_KINDS = ("tokenizer.model", "vocab.json", "tokenizer_model")


def parts_of_folder(folder: Path) -> Parts:
    """Read tokenizer.json, and tokenizer_config.json and generation_config.json where they exist.

    Raises `ModelNotFound`, `ModelFileError` naming the file, `UnsupportedModel`.
    """
    if not (folder / "tokenizer.json").is_file():
        raise _missing(folder)
    spec = _json(folder / "tokenizer.json")
    plain = _backend(folder, spec, encode_special=True)
    special = {t["content"]: t["id"] for t in spec.get("added_tokens", []) if t.get("special")}
    config = _json(folder / "tokenizer_config.json")
    bos = special.get(_named(config, "bos_token"))
    continued = _continued(folder, spec, plain)
    backends = Backends(
        recognising=_backend(folder, spec, encode_special=False),
        plain=plain,
        continued=continued,
        after_control=continued,
    )
    return Parts(
        backends=lambda: backends,
        token_bytes=_token_bytes(folder, spec, plain),
        vocab_size=plain.get_vocab_size(),
        special_tokens=special,
        bos_token_id=bos,
        eos_token_ids=_end_ids(folder, special, config),
        add_bos=bos is not None and _adds(config, plain, bos),
        strips_leading_space=_strips_leading_space(spec),
        strips={
            token["id"]: Strip(bool(token.get("lstrip")), bool(token.get("rstrip")))
            for token in spec.get("added_tokens", [])
            if token.get("special") and (token.get("lstrip") or token.get("rstrip"))
        },
    )


def _missing(folder: Path) -> ModelNotFound | UnsupportedModel:
    other = [name for name in _OTHER_KINDS if (folder / name).is_file()]
    if other:
        return UnsupportedModel(
            f"{folder}: {other[0]} is not supported; convert it to tokenizer.json"
        )
    return ModelNotFound(f"{folder}: cannot find any tokenizer (tokenizer.json)")


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is none."""
    try:
        if not path.is_file():
            return {}
        if path.stat().st_size > MAX_BYTES:
            raise ModelFileError(f"{path}: larger than {MAX_BYTES} bytes")
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: should hold a JSON object")
    return value


def _backend(folder: Path, spec: dict[str, Any], *, encode_special: bool) -> hf.Tokenizer:
    try:
        made = hf.Tokenizer.from_str(json.dumps(spec))
    except Exception as error:  # the library raises bare exceptions
        raise ModelFileError(f"{folder / 'tokenizer.json'}: {error}") from None
    made.no_truncation()
    made.no_padding()
    made.encode_special_tokens = encode_special
    return made


def _continued(folder: Path, spec: dict[str, Any], plain: hf.Tokenizer) -> hf.Tokenizer:
    """One without the space that goes before a text's first word."""
    first = [node for node in _nodes(spec.get("pre_tokenizer")) if _puts_first_space(node)]
    if not first:
        return plain
    saved = [(node, dict(node)) for node in first]
    for node in first:
        node["prepend_scheme"] = "never"
        node.pop("add_prefix_space", None)
    made = _backend(folder, spec, encode_special=True)
    for node, before in saved:
        node.update(before)
    return made


def _puts_first_space(node: dict[str, Any]) -> bool:
    return node.get("type") == "Metaspace" and node.get("prepend_scheme") == "first"


def _nodes(node: Any) -> Iterator[dict[str, Any]]:
    """A step of the tokenizer, or the steps of a sequence."""
    if isinstance(node, dict):
        yield node
        for key in ("pretokenizers", "decoders", "normalizers"):
            for inner in node.get(key) or ():
                yield from _nodes(inner)


def _token_bytes(folder: Path, spec: dict[str, Any], backend: hf.Tokenizer) -> Any:
    added = {token["id"]: token["content"].encode() for token in spec.get("added_tokens", [])}
    kinds = {node.get("type") for node in _nodes(spec.get("decoder"))}
    if "ByteLevel" in kinds:
        return partial(_byte_level_bytes, backend, added)
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return partial(_fallback_bytes, backend, added)
    raise UnsupportedModel(
        f"{folder / 'tokenizer.json'}: decoder {sorted(map(str, kinds))} is not supported; "
        "supported: ByteLevel, ByteFallback, Metaspace"
    )


def _byte_level_bytes(backend: hf.Tokenizer, added: dict[int, bytes], token_id: int) -> bytes:
    if token_id in added:
        return added[token_id]
    token = backend.id_to_token(token_id) or ""
    try:
        return bytes([BYTES[character] for character in token])
    except KeyError:  # not spelled in the table: the token means its own text
        return token.encode()


def _fallback_bytes(backend: hf.Tokenizer, added: dict[int, bytes], token_id: int) -> bytes:
    if token_id in added:
        return added[token_id].replace(SPACE.encode(), b" ")
    token = backend.id_to_token(token_id) or ""
    return byte_of(token) or token.replace(SPACE, " ").encode()


def _named(config: dict[str, Any], name: str) -> str:
    value = config.get(name)
    return str(value.get("content")) if isinstance(value, dict) else str(value)


def _end_ids(folder: Path, special: dict[str, int], config: dict[str, Any]) -> frozenset[int]:
    stated = _json(folder / "generation_config.json").get("eos_token_id", [])
    ids = {one for one in (stated if isinstance(stated, list) else [stated]) if type(one) is int}
    texts = {_named(config, "eos_token"), *END_TEXTS}
    return frozenset(ids | {special[text] for text in texts if text in special})


def _adds(config: dict[str, Any], backend: hf.Tokenizer, bos: int) -> bool:
    stated = config.get("add_bos_token")
    if isinstance(stated, bool):
        return stated
    return backend.encode("", add_special_tokens=True).ids[:1] == [bos]


def _strips_leading_space(spec: dict[str, Any]) -> bool:
    for node in _nodes(spec.get("decoder")):
        if node.get("type") == "Strip" and node.get("content") == " " and node.get("start", 0):
            return True
        if node.get("type") == "Metaspace" and node.get("prepend_scheme", "always") != "never":
            return True
    return False
