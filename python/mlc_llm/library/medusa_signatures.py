"""The functions of a library of Medusa heads; see `signatures.py` for those of a decoder's.

draft_I      hidden [s, hidden], params -> logits [s, padded_vocab]; one for each head I
  hidden       of another model, behind its last norm

Those that read logits are as in `signatures.py`; the others are not there.
"""

from __future__ import annotations

from mlc_llm.library.signatures import Tensor, sampling_signatures

DRAFT = "draft_"
"""With the number of a head behind it."""


def medusa_signatures(
    tensor: Tensor, *, vocab: int, padded_vocab: int, hidden: int, heads: int
) -> dict[str, dict[str, object]]:
    """By function and argument, in order; `params`, which each head takes last, is left out."""
    drafts: dict[str, dict[str, object]] = {
        f"{DRAFT}{head}": {"hidden": tensor("float32", "s", hidden)} for head in range(heads)
    }
    return drafts | sampling_signatures(tensor, vocab, padded_vocab)
