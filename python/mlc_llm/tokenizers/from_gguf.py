"""Builds a tokenizer from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol

import tokenizers as hf
from tokenizers import AddedToken, decoders, models

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.tokenizers import byte_level, sentencepiece, wordpiece
from mlc_llm.tokenizers.characters import NAME
from mlc_llm.tokenizers.flat import FlatVocabulary, flattened
from mlc_llm.tokenizers.frame import gguf_frame
from mlc_llm.tokenizers.longest_match import longest_match_parts
from mlc_llm.tokenizers.parts import Backends, Parts, Prefix, Strip, Tables
from mlc_llm.tokenizers.prepared import prepared_parts
from mlc_llm.tokenizers.unigram import Unigram
from mlc_llm.tokenizers.vocabulary import Vocabulary
from mlc_llm.tokenizers.words import Words

if TYPE_CHECKING:
    from mlc_llm.tokenizers.folder_config import FolderConfig


class Kind(Protocol):
    """The functions of the module for one kind of tokenizer."""

    def tables(self, vocabulary: Vocabulary) -> Tables: ...

    def prefix(self, vocabulary: Vocabulary) -> Prefix: ...

    def finish(self, backend: hf.Tokenizer, vocabulary: Vocabulary, *, continued: bool) -> None: ...

    def token_bytes(self, vocabulary: Vocabulary, token_id: int) -> bytes: ...


_KINDS: dict[str, Kind] = {
    "gpt2": byte_level,
    "llama": sentencepiece,
    "gemma4": sentencepiece,
    "bert": wordpiece,
}
"""The module for each value of `tokenizer.ggml.model`; `t5` and `rwkv` have none."""
_KEEPING = "<|endoftext|>"
"""The one of Phi-3's own control tokens that leaves the white space behind it."""


def parts_of_metadata(metadata: Mapping[str, object]) -> Parts:
    """Raises `ModelFileError` for a broken vocabulary, `UnsupportedModel` for an unknown kind."""
    found = parts_of_vocabulary(Vocabulary.from_metadata(metadata))
    return replace(found, frame=gguf_frame(metadata, found.vocab_size, found.add_bos))


def parts_of_vocabulary(vocabulary: Vocabulary, config: FolderConfig | None = None) -> Parts:
    """The tokenizer of a vocabulary, from whatever file. config: what the files beside it say.

    Raises ModelFileError, which names keys of GGUF, and UnsupportedModel.
    """
    if vocabulary.model == "t5":
        return _unigram(vocabulary)
    if vocabulary.model == "rwkv":
        return longest_match_parts(vocabulary, config)
    made = _backends(vocabulary)
    kind = _KINDS[vocabulary.model]
    return Parts(
        backends=lambda: made,
        token_bytes=partial(kind.token_bytes, vocabulary),
        vocab_size=len(vocabulary.tokens),
        special_tokens=vocabulary.control,
        bos_token_id=vocabulary.ids.get("bos_token_id"),
        eos_token_id=vocabulary.ids.get("eos_token_id"),
        eos_token_ids=vocabulary.end_ids | (config.end_ids if config else frozenset()),
        add_bos=vocabulary.add_bos,
        strips=_strips(vocabulary) if config is None else _stated_strips(config),
        strips_leading_space=kind is wordpiece or kind.prefix(vocabulary) is not Prefix.NONE,
    )


def _strips(vocabulary: Vocabulary) -> dict[int, Strip]:
    """What control tokens strip. GGUF has no field for it."""
    strips = _stripping(vocabulary)
    return {i: Strip(False, True) for text, i in vocabulary.control.items() if text in strips}


def _stated_strips(config: FolderConfig) -> dict[int, Strip]:
    return {i: one.strip for i, one in config.added.items() if one.is_special and any(one.strip)}


def _stripping(vocabulary: Vocabulary) -> frozenset[str]:
    """The tokens that remove the white space behind them: those that Phi-3 has beyond Llama's, and
    the end token, which is user-defined there."""
    if vocabulary.model != "llama" or vocabulary.architecture != "phi3":
        return frozenset()
    own = {text for text in vocabulary.control if text.startswith("<|") and text.endswith("|>")}
    return frozenset((own | {"</s>"}) - {_KEEPING})


def _unigram(vocabulary: Vocabulary) -> Parts:
    try:
        return prepared_parts(vocabulary, Unigram(vocabulary).encode)
    except ModelFileError as error:
        text = str(error).replace(NAME, f"tokenizer.ggml.{NAME}")
        raise ModelFileError(text) from None


def tokenizer_json(metadata: Mapping[str, object]) -> str:
    """The tokenizer as a tokenizer.json. Raises what `parts_of_metadata` raises, and
    UnsupportedModel for a kind of tokenizer that has none here."""
    vocabulary = Vocabulary.from_metadata(metadata)
    makers = {"gpt2": _bytes_decoder, "llama": _pieces_decoder}
    if vocabulary.model not in makers:
        known = " and ".join(makers)
        raise UnsupportedModel(
            f"tokenizer.ggml.model {vocabulary.model!r} cannot be written as tokenizer.json; "
            f"{known} can"
        )
    backend = _backends(vocabulary).recognising
    backend.decoder = makers[vocabulary.model](vocabulary)
    return backend.to_str()


def _bytes_decoder(vocabulary: Vocabulary) -> decoders.Decoder:
    return decoders.ByteLevel()


def _pieces_decoder(vocabulary: Vocabulary) -> decoders.Decoder:
    """SentencePiece: pieces with a mark for spaces, and bytes."""
    steps = [decoders.Replace(sentencepiece.SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.add_space_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)


def flat_form(metadata: Mapping[str, object]) -> bytes | None:
    """The data that `parts_of_flat` reads, made from valid metadata; None if the vocabulary has no
    flat form."""
    vocabulary = Vocabulary.from_metadata(metadata)
    if vocabulary.model != "gpt2" or not byte_level.is_spelled(vocabulary):
        return None
    return flattened(vocabulary)


def parts_of_flat(data: memoryview, metadata: Mapping[str, object]) -> Parts:
    """The same as `parts_of_metadata(metadata)`, from the flat form `data` of this metadata. The
    metadata is read later, when somebody needs the library's tokenizers. Raises what
    `FlatVocabulary` raises."""
    flat = FlatVocabulary(data)
    return Parts(
        backends=cache(lambda: _backends(Vocabulary.from_metadata(metadata))),
        token_bytes=partial(byte_level.token_bytes, flat),
        vocab_size=len(flat.tokens),
        special_tokens=flat.control,
        bos_token_id=flat.ids.get("bos_token_id"),
        eos_token_id=flat.ids.get("eos_token_id"),
        eos_token_ids=flat.end_ids,
        add_bos=flat.add_bos,
        frame=gguf_frame(metadata, len(flat.tokens), flat.add_bos),
        strips_leading_space=False,
        words=Words(flat),
    )


def _backends(vocabulary: Vocabulary) -> Backends:
    kind = _KINDS[vocabulary.model]
    tables = kind.tables(vocabulary)
    prefix, strips = kind.prefix(vocabulary), _stripping(vocabulary)

    def backend(model: models.Model, *, plain: bool, continued: bool = False) -> hf.Tokenizer:
        made = hf.Tokenizer(model)
        kind.finish(made, vocabulary, continued=continued)
        made.add_special_tokens(_added(made, vocabulary.control, strips, special=True))
        made.add_tokens(_added(made, vocabulary.user_defined, strips, special=False))
        made.encode_special_tokens = plain
        return made

    plain = backend(tables.plain, plain=True)
    within = plain
    if prefix is not Prefix.NONE:
        within = backend(tables.plain, plain=True, continued=True)
    return Backends(
        recognising=backend(tables.recognising, plain=False),
        plain=plain,
        continued=within,
        after_control=plain if prefix is Prefix.EVERY else within,
    )


def _added(
    backend: hf.Tokenizer, tokens: Mapping[str, int], strips: Container[str], *, special: bool
) -> list[AddedToken]:
    """Tokens that are matched before the merges. strips: those that remove white space.

    Left out are tokens that the model hides or writes in another way: merges make them, and as
    added tokens they would get new ids. An empty name is left out too: it would match everywhere.
    """
    known = [text for text in tokens if text and backend.token_to_id(text) is not None]
    return [
        AddedToken(text, rstrip=text in strips, normalized=False, special=special) for text in known
    ]
