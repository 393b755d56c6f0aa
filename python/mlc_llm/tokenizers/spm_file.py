"""Builds a tokenizer from SentencePiece's `tokenizer.model`: the ids are SentencePiece's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import tokenizers as hf
from tokenizers import AddedToken, models

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.tokenizers.fairseq import with_fairseq_ids
from mlc_llm.tokenizers.folder_config import FolderConfig
from mlc_llm.tokenizers.frame import doubled_frame
from mlc_llm.tokenizers.parts import Parts, Prefix, hidden, library_ids
from mlc_llm.tokenizers.prepared import prepared_parts
from mlc_llm.tokenizers.sentencepiece import recovered_merges
from mlc_llm.tokenizers.spm_model import BPE, SentencePieceModel, read_model
from mlc_llm.tokenizers.unigram import Unigram
from mlc_llm.tokenizers.vocabulary import TokenKind, Vocabulary

FAIRSEQ_FILE = "sentencepiece.bpe.model"
"""The name in folders whose ids are not those of the file."""
_FAIRSEQ = "XLMRobertaTokenizer"
_SHIFTED = frozenset(
    f"{name}Tokenizer" for name in ("Camembert", "MBart", "MBart50", "Nllb", "Barthez", "Pegasus")
)
"""Classes whose ids are not those of their file, and not known here."""
_CLASSES = {"xlm-roberta": _FAIRSEQ, "xlm-roberta-xl": _FAIRSEQ}
"""By `model_type` of config.json, where no class is named."""


def parts_of_model_file(path: Path, config: FolderConfig) -> Parts:
    """Raises ModelFileError, which names the field, or UnsupportedModel."""
    kind = config.text("tokenizer_class").removesuffix("Fast")
    kind = kind or _CLASSES.get(str(config.model.get("model_type")), "")
    if kind in _SHIFTED or (path.name == FAIRSEQ_FILE and kind != _FAIRSEQ):
        what = f"a {kind}" if kind else f"{FAIRSEQ_FILE} without tokenizer_class"
        raise UnsupportedModel(
            f"{path}: the ids of {what} are not supported; supported are those of {_FAIRSEQ}"
        )
    model = read_model(path)
    vocabulary = _vocabulary(_numbered(model, kind, path), config, path.name)
    # Transformers' option `legacy` means: a space goes after control tokens too.
    after_control = Prefix.FIRST if config.flag("legacy") is False else Prefix.EVERY
    try:
        parts = prepared_parts(vocabulary, _encoder(vocabulary), after_control)
    except ModelFileError as error:
        raise ModelFileError(f"{path}: normalizer_spec.{error}") from None
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{path}: {error}") from None
    return replace(
        parts,
        eos_token_ids=parts.eos_token_ids | config.end_ids,
        strips={one.id: one.strip for one in config.added.values() if any(one.strip)},
        frame=doubled_frame(vocabulary.ids) if kind == _FAIRSEQ else None,
    )


def _numbered(model: SentencePieceModel, kind: str, path: Path) -> SentencePieceModel:
    """The pieces in the order of their ids. kind: the class of the tokenizer."""
    if kind != _FAIRSEQ:
        return model
    try:
        return with_fairseq_ids(model)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{path}: {error}") from None


def _vocabulary(model: SentencePieceModel, config: FolderConfig, file: str) -> Vocabulary:
    tokens, kinds = list(model.tokens), list(model.kinds)
    config.completed(tokens, kinds, file)
    stated = {"bos_token_id": model.bos_id, "eos_token_id": model.eos_id}
    stated |= {"padding_token_id": model.pad_id}
    usual = {key: i for key, i in stated.items() if i >= 0}
    ids = config.ids(tokens, usual) | {"unknown_token_id": model.unknown_id}
    add_bos = config.flag("add_bos_token")
    if add_bos is None:
        add_bos = model.algorithm == BPE or model.begins
    return Vocabulary(
        model="llama" if model.algorithm == BPE else "t5",
        pre="default",
        architecture="",
        tokens=tokens,
        kinds=kinds,
        scores=model.scores,
        merges=None,
        ids=ids,
        add_bos=add_bos and "bos_token_id" in ids,
        add_space_prefix=model.adds_space,
        merges_spaces=model.merges_spaces,
        characters=model.characters,
    )


def _encoder(vocabulary: Vocabulary) -> Callable[[Sequence[str]], list[list[int]]]:
    if vocabulary.model == "t5":
        return Unigram(vocabulary).encode
    made = hf.Tokenizer(_bpe(vocabulary))
    wholes = vocabulary.user_defined
    made.add_tokens([AddedToken(text, normalized=False, special=False) for text in wholes])
    return partial(library_ids, made)


def _bpe(vocabulary: Vocabulary) -> models.BPE:
    tokens, kinds = vocabulary.tokens, vocabulary.kinds
    ids = {token: i for i, token in enumerate(tokens)}
    normal = {tokens[i]: i for i, kind in enumerate(kinds) if kind == TokenKind.NORMAL}
    scores = dict(zip(tokens, vocabulary.scores or (), strict=False))
    lacking = set("".join(normal)) - normal.keys() - vocabulary.user_defined.keys()
    for token in normal if lacking else ():
        for character in lacking.intersection(token):
            raise UnsupportedModel(f"pieces: {token[:40]!r} needs the piece {character!r}")
    merges = recovered_merges(normal, {token: scores[token] for token in normal}, {})
    seen = (TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.BYTE)
    names = {tokens[i] for i, kind in enumerate(kinds) if kind not in seen}
    return models.BPE(
        vocab=hidden(ids, names),
        merges=merges,
        unk_token=f" {tokens[vocabulary.ids['unknown_token_id']]}",
        fuse_unk=True,
        byte_fallback=TokenKind.BYTE in kinds,
    )
