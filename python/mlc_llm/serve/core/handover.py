"""Prompts that one engine computes and another one answers: a request's `disagg_config`.

1. The engine of the answer gets `prepare_receive`. It says how much of the prompt it has, and gives
   a ticket for the rest.
2. An engine that has time gets `remote_send` with the ticket. It computes the prompt, and gives the
   pages for the ticket.
3. The engine of the answer gets `start_generation` with the pages, and goes on behind them. Pages
   that it refuses are computed there, and the usage says why.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mlc_llm.errors import InvalidField, RequestError, TransferRefused
from mlc_llm.runtime.transfer import Transfer
from mlc_llm.runtime.transfer_bytes import from_bytes, to_bytes, tokens_digest
from mlc_llm.serve.core.handover_state import Handover
from mlc_llm.serve.metrics import usage_with

if TYPE_CHECKING:
    from mlc_llm.protocol.debug_protocol import DisaggConfig
    from mlc_llm.protocol.generation_config import GenerationConfig
    from mlc_llm.serve.core.sequence import RequestState
    from mlc_llm.serve.core.slots import Slots

FIELD = "debug_config.disagg_config"
METADATA = "kv_append_metadata"
MATCHED = "prefix_matched_length"
REFUSED = "kv_transfer_refused"
"""Keys of `usage.extra`."""

_log = logging.getLogger(__name__)


def handover_of(config: GenerationConfig, prompt: Sequence[int]) -> Handover | None:
    """What the config asks for; None: a request as usual. Raises `InvalidField`."""
    wanted = config.disagg
    if wanted is None:
        return None
    last = len(prompt) - 1
    if wanted.kind == "start_generation":
        begin = _place("kv_window_begin", wanted.kv_window_begin or 0, 0, last, len(prompt))
        return _with_pages(wanted, prompt[:begin])
    if config.n > 1:
        raise InvalidField("n", config.n, f"should be 1 with {wanted.kind}: there is no answer")
    end = _place("kv_window_end", wanted.kv_window_end or 0, 1, last, len(prompt))
    if wanted.kind == "prepare_receive":
        return Handover(wanted.kind, 0, end)
    begin = _place("kv_window_begin", wanted.kv_window_begin or 0, 0, end, len(prompt))
    _check_ticket(wanted.kv_append_metadata, prompt[:end])
    return Handover(wanted.kind, begin, end)


def begin(
    state: RequestState, slots: Slots, take_in: Callable[[Sequence[int], Transfer, str], None]
) -> dict[str, object] | None:
    """What has to happen before the request is queued. Returns what the usage says in addition, if
    the request is over with it. take_in: see `EngineCore.import_prefix`."""
    handover = state.handover
    assert handover is not None
    if handover.is_question:
        tokens = state.prompt[: handover.end]
        matched = slots.cache.lookup([*tokens, 0], salt=state.cache_salt).length
        return {MATCHED: matched, METADATA: _ticket(tokens)}
    if handover.refused is not None:
        state.handover_fault = handover.refused
    elif handover.transfer is not None:
        try:
            take_in(state.prompt[: handover.begin], handover.transfer, state.cache_salt)
        except RequestError as error:
            state.handover_fault = str(error)
    if state.handover_fault is not None:
        words = "request %s: its prompt is computed here: %s"
        _log.warning(words, state.request_id, state.handover_fault)
    return None


def final_usage(state: RequestState, slots: Slots, usage: str) -> str:
    """The usage of a request that is over, with its pages, or why there are none."""
    handover = state.handover
    if handover is None:
        return usage
    if state.handover_fault is not None:
        return usage_with(usage, {REFUSED: state.handover_fault})
    if not handover.has_news or state.worst_end != "length":
        return usage
    try:
        data = to_bytes(slots.export(state.prompt, state.cache_salt), state.prompt)
    except TransferRefused as error:
        return usage_with(usage, {REFUSED: str(error)})
    return usage_with(usage, {METADATA: base64.b64encode(data).decode()})


def _with_pages(wanted: DisaggConfig, tokens: Sequence[int]) -> Handover:
    text, length = wanted.kv_append_metadata, len(tokens)
    if text is None or not length:
        return Handover(wanted.kind, length, length)
    try:
        transfer = from_bytes(_decoded(text), tokens)
    except (TransferRefused, ValueError) as error:
        words = str(error) if isinstance(error, TransferRefused) else "the pages are no base64"
        return Handover(wanted.kind, length, length, refused=words)
    return Handover(wanted.kind, length, length, transfer)


def _place(name: str, value: int, low: int, high: int, length: int) -> int:
    """A place of a slice, from the end if it is below 0. Raises `InvalidField`."""
    place = value + length if value < 0 else value
    if not low <= place <= high:
        words = f"the prompt has {length} tokens; should be in range [{low}, {high}], or as much "
        raise InvalidField(f"{FIELD}.{name}", value, words + "from its end, below 0")
    return place


def _ticket(tokens: Sequence[int]) -> str:
    text = json.dumps({"length": len(tokens), "tokens": tokens_digest(tokens)})
    return base64.b64encode(text.encode()).decode()


def _check_ticket(text: str | None, tokens: Sequence[int]) -> None:
    """Raises `InvalidField` unless the engine of the answer has given it for these tokens."""
    place = f"{FIELD}.{METADATA}"
    shown = (text or "")[:32]
    try:
        found = json.loads(_decoded(text or ""))
        seen = int(found["length"]), str(found["tokens"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        words = "should be what prepare_receive has given in usage.extra"
        raise InvalidField(place, shown, words) from error
    if seen != (len(tokens), tokens_digest(tokens)):
        words = f"was given for another prompt or window ({seen[0]} tokens, not {len(tokens)})"
        raise InvalidField(place, shown, words)


def _decoded(text: str) -> bytes:
    """Raises `ValueError`."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("no base64") from error
