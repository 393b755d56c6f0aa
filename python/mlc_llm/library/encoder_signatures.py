"""The functions of an encoder's library; see `signatures.py` for those of a decoder's.

Everything is int32 and float32. m tokens of a step, p rows of a rotary table, t query blocks, n
page ids, r pairs.

encode       tokens [m], token_types [m], position [m], fast_tokens [1]; of each rotary embedding:
             ropes [p, 2, dim/2]; slots [m], places [m], query_blocks [t, 3], page_ids [n],
             windows [2]; pages, changed in place; params
             -> hidden [m, hidden], behind the last layer
  token_types   rows of the table of types, if there is one
  position      in the token's text, from 0
  places        the place of the last token of the text, for all its tokens: they see all of it
  pages         room for the keys and values of one layer; nothing in them is kept
score        first [r, hidden], the vectors of the first tokens; params -> [r, labels]; only of a
             model that compares two texts

The others are as in `signatures.py`.
"""

from __future__ import annotations

from mlc_llm.library.metadata import KVInfo
from mlc_llm.library.signatures import Tensor

ENCODE = "encode"
SCORE = "score"


def encoder_signatures(
    tensor: Tensor, *, hidden: int, rope_dims: tuple[int, ...], kv: KVInfo, labels: int
) -> dict[str, dict[str, object]]:
    """By function and argument, in order; `params`, which all take last, is left out."""
    (group,) = kv.groups
    found: dict[str, dict[str, object]] = {
        ENCODE: {
            "tokens": tensor("int32", "m"),
            "token_types": tensor("int32", "m"),
            "position": tensor("int32", "m"),
            "fast_tokens": tensor("int32", 1),
            "ropes": [tensor("float32", f"p{i}", 2, dim // 2) for i, dim in enumerate(rope_dims)],
            "slots": tensor("int32", "m"),
            "places": tensor("int32", "m"),
            "query_blocks": tensor("int32", "t", 3),
            "page_ids": tensor("int32", "n"),
            "window": tensor("int32", 2),
            "pages": tensor(kv.dtype, "pages", group.kv_heads, 2, kv.page_size * group.head_dim),
        }
    }
    return found | ({SCORE: {"first": tensor("float32", "r", hidden)}} if labels else {})
