"""The functions of an encoder's library; see `signatures.py` for those of a decoder's.

Everything is int32 and float32. m tokens of a step, p rows of a rotary table, t query blocks, n
page ids, r pairs.

encode       tokens [m], token_types [m], position [m], fast_tokens [1]; of each rotary embedding:
             ropes [p, 2, dim/2]; slots [m], places [m], query_blocks [t, 3], page_ids [n]; of each
             reach of layers: near_places [m], first_seen [m]; windows [2]; pages, changed in place;
             params
             -> hidden [m, hidden], behind the last layer, and the last norm if there is one
  token_types   rows of the table of types, if there is one
  position      in the token's text, from 0
  places        the place of the last token of the text, for all its tokens: they see all of it
  near_places   the last place of the text that the token sees with this reach
  first_seen    the first one
  pages         room for the keys and values of one layer; nothing in them is kept
score        pooled [r, hidden], vectors of pairs; params -> [r, labels]; only of a model that
             compares two texts
project      pooled [r, hidden], vectors of texts; params -> [r, width]; only of a model that has
             matrices for them

The others are as in `signatures.py`.
"""

from __future__ import annotations

from mlc_llm.library.metadata import EncoderInfo, KVInfo
from mlc_llm.library.signatures import Tensor

ENCODE = "encode"
SCORE = "score"
PROJECT = "project"


def encoder_signatures(
    tensor: Tensor, *, hidden: int, rope_dims: tuple[int, ...], kv: KVInfo, encoder: EncoderInfo
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
            "near_places": [tensor("int32", "m") for _ in encoder.reaches],
            "first_seen": [tensor("int32", "m") for _ in encoder.reaches],
            "window": tensor("int32", 2),
            "pages": tensor(kv.dtype, "pages", group.kv_heads, 2, kv.block_elements(group)),
        }
    }
    pooled = {"pooled": tensor("float32", "r", hidden)}
    has = {SCORE: encoder.labels > 0, PROJECT: encoder.is_projected}
    return found | {name: dict(pooled) for name, is_there in has.items() if is_there}
