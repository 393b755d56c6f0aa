"""Builds a tokenizer from vocab.txt, BERT's list of word pieces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.tokenizers.folder_config import FolderConfig
from mlc_llm.tokenizers.frame import Frame
from mlc_llm.tokenizers.from_gguf import parts_of_vocabulary
from mlc_llm.tokenizers.parts import Parts
from mlc_llm.tokenizers.text_lines import naming, read_lines
from mlc_llm.tokenizers.vocabulary import MAX_TOKENS, TokenKind, Vocabulary

_ROLES = {"bos_token_id": "[CLS]", "eos_token_id": "[SEP]", "unknown_token_id": "[UNK]"}
_ROLES |= {"padding_token_id": "[PAD]"}
_SPECIAL = (*_ROLES.values(), "[MASK]")


def parts_of_word_list(path: Path, config: FolderConfig) -> Parts:
    """Raises ModelFileError, which names the file, or UnsupportedModel."""
    lines = read_lines(path, MAX_TOKENS)
    if not lines or len(set(lines)) < len(lines):
        raise ModelFileError(f"{path}: empty, or a token is there twice")
    if config.flag("tokenize_chinese_chars") is False:
        raise UnsupportedModel(f"{config.folder}: tokenize_chinese_chars = false is not supported")
    control = {text for text in _SPECIAL if text in lines}
    tokens = list(lines)
    kinds = [int(TokenKind.CONTROL if one in control else TokenKind.NORMAL) for one in lines]
    config.completed(tokens, kinds, path.name)
    places = {text: i for i, text in enumerate(tokens)}
    usual = {key: places[text] for key, text in _ROLES.items() if text in places}
    lowercase = config.flag("do_lower_case") is not False
    accents = config.flag("strip_accents")
    vocabulary = Vocabulary(
        model="bert",
        pre="default",
        architecture="",
        tokens=tokens,
        kinds=kinds,
        scores=None,
        merges=None,
        ids=config.ids(tokens, usual),
        add_bos=False,
        add_space_prefix=False,
        lowercase=lowercase,
        strip_accents=lowercase if accents is None else accents,
        marks_continuations=True,
    )
    with naming(config.folder, {"tokenizer.ggml.unknown_token_id": "unk_token"}):
        parts = parts_of_vocabulary(vocabulary, config)
    ends = {key: (i,) for key, i in vocabulary.ids.items() if key in _ROLES}
    end = ends.get("eos_token_id", ())
    return replace(parts, frame=Frame(ends.get("bos_token_id", ()), end, end))
