"""Tokenizers whose texts are prepared as SentencePiece prepares them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from mlc_llm.tokenizers.characters import CharacterTable
from mlc_llm.tokenizers.parts import Backends, Parts, Prefix, Prepared
from mlc_llm.tokenizers.sentencepiece import token_bytes
from mlc_llm.tokenizers.spm_text import TextPreparer
from mlc_llm.tokenizers.vocabulary import Vocabulary


def prepared_parts(
    vocabulary: Vocabulary,
    encode: Callable[[Sequence[str]], list[list[int]]],
    after_control: Prefix = Prefix.EVERY,
) -> Parts:
    """encode: ids of prepared texts. after_control: where a space is added, if one is added at all.

    Raises ModelFileError for a broken table of characters.
    """
    preparer = TextPreparer(
        CharacterTable(vocabulary.characters) if vocabulary.characters else None,
        vocabulary.user_defined,
        adds_space=vocabulary.add_space_prefix,
        merges_spaces=vocabulary.merges_spaces,
    )
    spaced = after_control if vocabulary.add_space_prefix else Prefix.NONE
    return Parts(
        backends=_no_backends,
        token_bytes=partial(token_bytes, vocabulary),
        vocab_size=len(vocabulary.tokens),
        special_tokens=vocabulary.control,
        bos_token_id=vocabulary.ids.get("bos_token_id"),
        eos_token_id=vocabulary.ids.get("eos_token_id"),
        eos_token_ids=vocabulary.end_ids,
        add_bos=vocabulary.add_bos,
        strips_leading_space=vocabulary.add_space_prefix,
        prepared=Prepared(preparer.prepared, encode, spaced),
    )


def _no_backends() -> Backends:
    raise AssertionError("these texts are encoded by `Parts.prepared`")
