"""Builds a tokenizer from vocab.json and merges.txt, as GPT-2 and Qwen have them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.json_file import read_json_object
from mlc_llm.tokenizers.folder_config import MAX_BYTES, FolderConfig
from mlc_llm.tokenizers.frame import doubled_frame
from mlc_llm.tokenizers.from_gguf import parts_of_vocabulary
from mlc_llm.tokenizers.parts import Parts
from mlc_llm.tokenizers.text_lines import naming, read_lines
from mlc_llm.tokenizers.vocabulary import MAX_MERGES, MAX_TOKENS, TokenKind, Vocabulary

_GPT2 = ("GPT2", "CodeGen", "Roberta", "Bart", "Whisper", "OPT", "Longformer", "LED")
_RULES = {
    **{f"{name}Tokenizer": "gpt-2" for name in _GPT2},
    "Qwen2Tokenizer": "qwen2",
    "Qwen3Tokenizer": "qwen2",
}
"""The word rule of each `tokenizer_class`, of tokenizers that have these files alone."""
_RULES_OF_MODELS = {
    **dict.fromkeys(("gpt2", "gptj", "gpt_neo", "opt", "codegen", "phi", "roberta"), "gpt-2"),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), "qwen2"),
    **dict.fromkeys(("gpt_bigcode", "starcoder2"), "starcoder"),
}
"""The word rule of each `model_type` of config.json."""
_ROBERTA = {"RobertaTokenizer", "roberta"}
_DEFAULT_END = "<|endoftext|>"


def parts_of_bpe_files(folder: Path, config: FolderConfig) -> Parts:
    """Raises ModelFileError, which names the file, or UnsupportedModel."""
    rule = _rule(config)
    if config.flag("add_prefix_space"):
        raise UnsupportedModel(f"{folder}: add_prefix_space = true is not supported")
    tokens = _tokens(folder / "vocab.json")
    kinds = [int(TokenKind.NORMAL if one is not None else TokenKind.UNUSED) for one in tokens]
    texts = [f"<no token {i}>" if one is None else one for i, one in enumerate(tokens)]
    config.completed(texts, kinds, "vocab.json")
    is_roberta = not _ROBERTA.isdisjoint(_names(config))
    bos, eos = ("<s>", "</s>") if is_roberta else (_DEFAULT_END, _DEFAULT_END)
    roles = {"bos_token_id": bos, "eos_token_id": eos}
    usual = {key: texts.index(text) for key, text in roles.items() if text in texts}
    vocabulary = Vocabulary(
        model="gpt2",
        pre=rule,
        architecture="",
        tokens=texts,
        kinds=kinds,
        scores=None,
        merges=_merges(folder / "merges.txt"),
        ids=config.ids(texts, usual),
        add_bos=bool(config.flag("add_bos_token")),
        add_space_prefix=False,
    )
    files = {"tokenizer.ggml.merges": "merges.txt", "tokenizer.ggml.tokens": "vocab.json"}
    with naming(folder, files):
        parts = parts_of_vocabulary(vocabulary, config)
    return replace(parts, frame=doubled_frame(vocabulary.ids)) if is_roberta else parts


def _names(config: FolderConfig) -> tuple[str, str]:
    """Of the tokenizer's class and of the model, as far as they are said."""
    stated = config.text("tokenizer_class").removesuffix("Fast")
    return stated, str(config.model.get("model_type", ""))


def _rule(config: FolderConfig) -> str:
    stated, kind = _names(config)
    rule = _RULES_OF_MODELS.get(kind) or _RULES.get(stated)
    if rule is None:
        known = ", ".join([*_RULES, *_RULES_OF_MODELS])
        raise UnsupportedModel(
            f"{config.folder}: vocab.json and merges.txt do not say how text is cut into words; "
            f"neither tokenizer_class = {stated[:40]!r} nor model_type = {kind[:40]!r} does; "
            f"known: {known}; or add tokenizer.json"
        )
    return rule


def _tokens(path: Path) -> list[str | None]:
    """The token of each id; None for an id that has none."""
    entries = read_json_object(path, MAX_BYTES)
    highest = max(map(_id, entries.values()), default=-1)
    if highest < 0 or highest >= min(MAX_TOKENS, 2 * len(entries) + 1):
        raise ModelFileError(f"{path}: {len(entries)} tokens with ids up to {highest}")
    tokens: list[str | None] = [None] * (highest + 1)
    for text, token_id in entries.items():
        if tokens[token_id] is not None:
            raise ModelFileError(f"{path}: {text[:40]!r} and {tokens[token_id]!r} have one id")
        tokens[token_id] = text
    return tokens


def _id(value: object) -> int:
    return value if type(value) is int and 0 <= value < MAX_TOKENS else MAX_TOKENS


def _merges(path: Path) -> list[tuple[str, str]]:
    lines = read_lines(path, MAX_MERGES)
    pairs = []
    for number, line in enumerate(lines, start=1):
        if (number == 1 and line.startswith("#version")) or not line:
            continue
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise ModelFileError(f"{path}: line {number} = {line[:40]!r} should be two tokens")
        pairs.append((left, right))
    return pairs
