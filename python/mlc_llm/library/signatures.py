"""The functions of a model library: the one place that knows their names, arguments and shapes.

Everything is int32 and float32 unless said otherwise. Sizes that a caller chooses: m tokens of a
step, s of them with logits, p rows of a rotary table, t query blocks, n page ids.

forward      tokens [m], position [m], sink_position [m], fast_tokens [1], logit_rows [s],
             of each rotary embedding: ropes [p, 2, dim/2], cosines, then sines, a row a position;
             of each group of layers: slots [m], places [m], query_blocks [t, 3], page_ids [n],
             windows [2];
             pages (one tensor a layer of attention, changed in place);
             if there are recurrent layers: state_rows [r, STATE_ROW], states (tensors of each,
             changed in place);
             if there is an EAGLE head: previous [m];
             in a library for LoRA adapters: adapter_slots [m]; adapters, of each matrix that they
             may change: down, up (`adapter_format.py`), ranks [a];
             in a library for images: vector_at [v]; if image tokens see the whole image, of each
             group with a window: first_seen [m]; vectors [v, hidden];
             params (one tensor behind the other)
             -> logits [s, padded_vocab], hidden [s, hidden]; of an EAGLE head also what its
                attention gives, which nobody reads
             What is the same in each step (KEPT) comes behind the other arguments, one tensor
             behind the other, and is given once, as params are
  hidden        what the logits are made of, before the last norm
  position      row of `ropes` that turns a token's query and key
  sink_position row that turns the query with which a token sees sinks, where the engine has a
                sliding window; else it is not read
  slots         page * page_size + place in the page, where a token's key and value go
  places        of each token in the list of its sequence's pages: its position, less what was left
                out of the list because nothing sees it
  query_blocks  first token, number of tokens, start of the sequence's list in page_ids; no list
                begins before that of the block before it: kernels find the place of a block's
                results by it
  windows       a token sees the last windows[0] tokens, itself included, and the first windows[1]
                of its sequence
  state_rows    of each sequence that takes part: its first token, how many, the slot with its
                state, and another one that gets the state behind these tokens; the same of its base
                (the same one twice, which is not written, unless the tokens fill a chunk); and how
                many tokens of a chunk come before these ones. A sequence may have several rows, one
                behind the other: a row reads what an earlier one has written
  states        rows of slots, or of bases (`StateInfo`). A base is written once, when `state_chunk`
                tokens are full, and has the state behind them; the slot has what came after
  previous      slot of the token before each one in the pages of the EAGLE head, which reads its
                vector; -1 before the first token of a sequence
  fast_tokens   how many of the first tokens may be computed less exactly
  adapter_slots the adapter of each token, -1 for none; see `AdapterInputs` in `operands.py`.
                The rank is a multiple of 8
  vector_at     tokens whose embeddings are the rows of `vectors`; -1 stands for no token
  first_seen    the first place that a token sees, where `windows` does not say it
top_tokens   logits [s, padded_vocab], rows [r]
             -> token [r, 20], most likely first, -1 where there are no more; logprob [r, 20];
                log_total [r], the log of the sum of exp(logits)
edit_logits  place [e, 2] (row, token), number [e, 3], masked [r], allowed [r, vocab/32 up],
             logits [s, padded_vocab] -> the logits, changed in place
  number        added; then what a negative logit is multiplied with and another divided by; then
                subtracted
  allowed       of the rows `masked` a bit a token, the lowest first: where it is 0, -inf is added
sample       logits [s, padded_vocab], options [s, 4], top_k [s] -> token [s], or NO_TOKEN
  options       temperature, top_p, min_p, uniform
  A token may be drawn whose weight, 1 for the most likely one, is at least the k-th largest, at
  least that of the last token which top_p needs, and at least min_p; equals are kept.
keep_logits  logits [s, padded_vocab], rows [r] -> those rows [r, padded_vocab], copied
chosen_logits  kept [r, padded_vocab], rows [r], token [s] -> [r]: of each kept row the logit of the
             token that was chosen for it, 0 where there is none
last_hidden  hidden [s, hidden], rows [r], params -> those rows [r, hidden] behind the last norm
draft_next   as forward, if there is an EAGLE head; every token is the last one of its sequence.
             Only the head computes: keys, values and vectors of the tokens go into its pages
             -> logits [m, padded_vocab], hidden [m, hidden], the pages of vectors
copy_pages   of each group of layers: sources [n], targets [n]; pages -> the pages, in place

The library of a rank (`Metadata.shards` above 1) calls a packed function of the process twice a
layer, in the same order in all ranks:

mlc.all_reduce   x, total, both [m, hidden]: fills `total` with the sum of all ranks' x
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mlc_llm.library.adapter_format import block_rows
from mlc_llm.library.metadata import AdaptedInfo, KVGroupInfo, KVInfo, SightInfo, StateInfo
from mlc_llm.library.state_format import STATE_ROW

FORWARD = "forward"
TOP_TOKENS = "top_tokens"
EDIT_LOGITS = "edit_logits"
SAMPLE = "sample"
KEEP_LOGITS = "keep_logits"
CHOSEN_LOGITS = "chosen_logits"
LAST_HIDDEN = "last_hidden"
COPY_PAGES = "copy_pages"
DRAFT_NEXT = "draft_next"
ALL_REDUCE = "mlc.all_reduce"

WITH_PARAMS = (FORWARD, LAST_HIDDEN, DRAFT_NEXT)
"""Functions that take `params` last."""

KEPT = ("windows", "pages", "states", "adapters")
"""Arguments of steps that are the same in all of them."""
_STEPS = (FORWARD, DRAFT_NEXT)

NO_TOKEN = -1
"""From `sample`: the row's logits are not finite, or nothing is allowed."""

MASK_BITS = 32
"""Tokens of a word of a mask."""

Tensor = Callable[..., object]
"""(dtype, *shape) -> whatever stands for a tensor. A text in a shape is a size callers choose."""


def signatures(
    tensor: Tensor,
    *,
    vocab: int,
    padded_vocab: int,
    hidden: int,
    rope_dims: tuple[int, ...],
    kv: KVInfo,
    states: tuple[StateInfo, ...] = (),
    adapted: tuple[AdaptedInfo, ...] = (),
    has_eagle: bool = False,
    sight: SightInfo | None = None,
) -> dict[str, dict[str, object]]:
    """By function and argument, in order; `params`, which some take last, is left out."""
    ropes = [tensor("float32", f"p{i}", 2, dim // 2) for i, dim in enumerate(rope_dims)]
    groups, pages = range(len(kv.groups)), _pages(tensor, kv)
    forward = _forward(tensor, ropes, len(kv.groups), pages) | _states(tensor, states)
    if has_eagle:
        forward |= {"previous": tensor("int32", "m")}
    return {
        FORWARD: forward | _adapters(tensor, adapted) | _images(tensor, sight, hidden),
        **({DRAFT_NEXT: dict(forward)} if has_eagle else {}),
        **sampling_signatures(tensor, vocab, padded_vocab),
        LAST_HIDDEN: {"hidden": tensor("float32", "s", hidden), "rows": tensor("int32", "r")},
        COPY_PAGES: {
            "sources": [tensor("int32", f"n{g}") for g in groups],
            "targets": [tensor("int32", f"n{g}") for g in groups],
            "pages": pages,
        },
    }


def kept_arguments(name: str, arguments: Iterable[str]) -> list[str]:
    """Those of a function's arguments that are given once."""
    return [one for one in arguments if one in KEPT and name in _STEPS]


def sampling_signatures(
    tensor: Tensor, vocab: int, padded_vocab: int
) -> dict[str, dict[str, object]]:
    """Functions that read logits."""
    logits, rows = tensor("float32", "s", padded_vocab), tensor("int32", "r")
    return {
        TOP_TOKENS: {"logits": logits, "rows": rows},
        EDIT_LOGITS: {
            "place": tensor("int32", "e", 2),
            "number": tensor("float32", "e", 3),
            "masked": tensor("int32", "r"),
            "allowed": tensor("int32", "r", -(-vocab // MASK_BITS)),
            "logits": logits,
        },
        SAMPLE: {
            "logits": logits,
            "options": tensor("float32", "s", 4),
            "top_k": tensor("int32", "s"),
        },
        KEEP_LOGITS: {"logits": logits, "rows": rows},
        CHOSEN_LOGITS: {
            "kept": tensor("float32", "r", padded_vocab),
            "rows": rows,
            "token": tensor("int32", "s"),
        },
    }


def _forward(
    tensor: Tensor, ropes: list[object], groups: int, pages: list[object]
) -> dict[str, object]:
    return {
        "tokens": tensor("int32", "m"),
        "position": tensor("int32", "m"),
        "sink_position": tensor("int32", "m"),
        "fast_tokens": tensor("int32", 1),
        "logit_rows": tensor("int32", "s"),
        "ropes": ropes,
        "slots": [tensor("int32", "m")] * groups,
        "places": [tensor("int32", "m")] * groups,
        "query_blocks": [tensor("int32", f"t{g}", 3) for g in range(groups)],
        "page_ids": [tensor("int32", f"n{g}") for g in range(groups)],
        "windows": [tensor("int32", 2)] * groups,
        "pages": pages,
    }


def _states(tensor: Tensor, states: tuple[StateInfo, ...]) -> dict[str, object]:
    if not states:
        return {}
    rows = ["bases" if one.by_chunk else "slots" for one in states]
    kept = [tensor("float32", n, *one.shape) for n, one in zip(rows, states, strict=True)]
    return {"state_rows": tensor("int32", "r", STATE_ROW), "states": kept}


def _adapters(tensor: Tensor, adapted: tuple[AdaptedInfo, ...]) -> dict[str, object]:
    if not adapted:
        return {}
    factors = []
    for one in adapted:
        rows, block = sum(one.widths), block_rows(one.widths)
        factors += [
            tensor(one.dtype, "adapters", len(one.widths), "rank", one.columns),
            tensor(one.dtype, "adapters", rows // block, "rank", block),
            tensor("int32", "adapters"),
        ]
    return {"adapter_slots": tensor("int32", "m"), "adapters": factors}


def _images(tensor: Tensor, sight: SightInfo | None, hidden: int) -> dict[str, object]:
    if sight is None:
        return {}
    seen = {"first_seen": [tensor("int32", "m") for _ in sight.groups]} if sight.groups else {}
    vectors = tensor("float32", "v", hidden)
    return {"vector_at": tensor("int32", "v"), **seen, "vectors": vectors}


def _pages(tensor: Tensor, kv: KVInfo) -> list[object]:
    """One tensor a layer of attention, in the order of the layers."""
    by_layer: dict[int, tuple[int, KVGroupInfo]] = {
        layer: (g, group) for g, group in enumerate(kv.groups) for layer in group.layers
    }
    return [
        tensor(kv.dtype, f"pages{g}", one.kv_heads, 2, kv.block_elements(one))
        for _, (g, one) in sorted(by_layer.items())
    ]
