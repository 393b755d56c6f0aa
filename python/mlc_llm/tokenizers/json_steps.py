"""The steps of tokenizer.json, and what the class of the tokenizer changes in them.

Some classes of Transformers make a step anew from fields of tokenizer_config.json, or from their
own defaults. Then tokenizer.json does not count there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from mlc_llm.errors import UnsupportedModel
from mlc_llm.tokenizers.folder_config import FolderConfig, JsonObject

_BERT = frozenset(
    f"{kind}Tokenizer"
    for kind in ("Bert", "ConvBert", "DistilBert", "Electra", "MobileBert", "MPNet", "SqueezeBert")
)
_BYTE_LEVEL = frozenset({"GPT2Tokenizer", "GPTNeoXTokenizer", "Qwen2Tokenizer"})
_LISTS = ("pretokenizers", "decoders", "normalizers")


def nodes(node: object) -> Iterator[JsonObject]:
    """A step of the tokenizer, and all steps inside it if it is a sequence."""
    if isinstance(node, dict):
        yield node
        for key in _LISTS:
            for inner in items(node.get(key)):
                yield from nodes(inner)


def items(value: object) -> list[object]:
    """The items of a list; none if it is no list."""
    return value if isinstance(value, list) else []


def of_class(spec: JsonObject, config: FolderConfig) -> JsonObject:
    """tokenizer.json as the class, and sentence-transformers, read it. Raises ModelFileError for a
    field of a wrong type, and UnsupportedModel."""
    found = _of_class(spec, config)
    return _lowered(found) if config.lowercases else found


def _of_class(spec: JsonObject, config: FolderConfig) -> JsonObject:
    kind = config.text("tokenizer_class").removesuffix("Fast")
    if kind in _BERT:
        return _bert(spec, config)
    if kind in _BYTE_LEVEL:
        return _byte_level(spec, config, every=kind == "Qwen2Tokenizer")
    if kind == "LlamaTokenizer" and config.flag("add_prefix_space") is False:
        return _without_first_space(spec)
    return spec


def _lowered(spec: JsonObject) -> JsonObject:
    """With a step more before the others of the normaliser, if none of them is the same."""
    found = spec.get("normalizer")
    steps = list(nodes(found))
    if any(node.get("type") == "Lowercase" for node in steps):
        return spec
    made = [{"type": "Lowercase"}, *([found] if steps else [])]
    return {**spec, "normalizer": {"type": "Sequence", "normalizers": made}}


def _bert(spec: JsonObject, config: FolderConfig) -> JsonObject:
    found = spec.get("normalizer")
    if not isinstance(found, dict) or found.get("type") != "BertNormalizer":
        return spec
    fields = {
        "handle_chinese_chars": config.flag("tokenize_chinese_chars") is not False,
        "strip_accents": config.flag("strip_accents"),
        "lowercase": config.flag("do_lower_case") is not False,
    }
    return {**spec, "normalizer": {**found, **fields}}


def _byte_level(spec: JsonObject, config: FolderConfig, *, every: bool) -> JsonObject:
    """every: the class has the step inside a sequence. There, others would add a space before each
    piece of a text, and their class before the first one."""
    adds = config.flag("add_prefix_space") is True
    cutter = copy.deepcopy(spec.get("pre_tokenizer"))
    for node in nodes(cutter):
        if node.get("type") != "ByteLevel" or node.get("add_prefix_space", True) == adds:
            continue
        if adds and not every and node is not cutter:
            raise UnsupportedModel(
                f"{config.folder}: add_prefix_space = true is not supported for a pre_tokenizer of "
                "several steps"
            )
        node["add_prefix_space"] = adds
    return {**spec, "pre_tokenizer": cutter}


def _without_first_space(spec: JsonObject) -> JsonObject:
    """No step adds a space before a text, and none removes it."""
    made = copy.deepcopy(spec)
    for key in ("normalizer", "pre_tokenizer", "decoder"):
        for node in nodes(made.get(key)):
            never_adds(node)
            for name in _LISTS:
                if name in node:
                    node[name] = [one for one in items(node[name]) if not _is_for_first_space(one)]
        if _is_for_first_space(made.get(key)):
            made[key] = None
    return made


def never_adds(node: JsonObject) -> None:
    """Change the step so that it adds no space."""
    if node.get("type") == "Metaspace":
        node["prepend_scheme"] = "never"
        node.pop("add_prefix_space", None)


def _is_for_first_space(node: object) -> bool:
    if not isinstance(node, dict):
        return False
    strips = node.get("type") == "Strip" and node.get("content") == " " and node.get("start")
    return node.get("type") == "Prepend" or bool(strips)
