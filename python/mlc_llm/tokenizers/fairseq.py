"""The ids of XLM-RoBERTa, which are those of fairseq and not of its SentencePiece file.

The file begins with <unk>, <s>, </s>. The ids begin with <s>, <pad>, </s>, <unk>; then come the
other pieces of the file, each one id later, and <mask> at the end. Source: `XLMRobertaTokenizer` of
Transformers.
"""

from __future__ import annotations

from dataclasses import replace

from mlc_llm.errors import UnsupportedModel
from mlc_llm.tokenizers.spm_model import UNIGRAM, SentencePieceModel
from mlc_llm.tokenizers.vocabulary import TokenKind

MASK = "<mask>"
_FIRST = ["<unk>", "<s>", "</s>"]
_IDS = {
    "<s>": TokenKind.CONTROL,
    "<pad>": TokenKind.CONTROL,
    "</s>": TokenKind.CONTROL,
    "<unk>": TokenKind.UNKNOWN,
}


def with_fairseq_ids(model: SentencePieceModel) -> SentencePieceModel:
    """The same pieces with XLM-RoBERTa's ids. Raises UnsupportedModel for another beginning."""
    if model.algorithm != UNIGRAM or model.tokens[:3] != _FIRST:
        raise UnsupportedModel(
            f"pieces begin with {', '.join(model.tokens[:3])[:60]}; XLM-RoBERTa's are of a unigram "
            f"and begin with {', '.join(_FIRST)}"
        )
    rest = slice(len(_FIRST), None)
    return replace(
        model,
        tokens=[*_IDS, *model.tokens[rest], MASK],
        kinds=[*map(int, _IDS.values()), *model.kinds[rest], int(TokenKind.CONTROL)],
        scores=[0.0] * len(_IDS) + [*model.scores[rest], 0.0],
        bos_id=0,
        pad_id=1,
        eos_id=2,
        begins=True,
    )
