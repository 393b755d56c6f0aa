"""Every number of every config and request: taken inside its range, refused with one error outside.

The fields are found in the models themselves, so a new one is tested without being listed here.
"""

from __future__ import annotations

import gc
import json
import math
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.protocol.conversation_protocol import Conversation
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.mlc_chat_config import MLCChatConfig
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest, CompletionRequest
from mlc_llm.serve.config import EngineConfig

Wrap = Callable[[Any], Any]

MODELS: dict[type, dict[str, Any]] = {
    EngineConfig: {},
    GenerationConfig: {},
    ChatCompletionRequest: {"messages": [{"role": "user", "content": "Hi"}]},
    CompletionRequest: {"prompt": "Hi"},
    MLCChatConfig: {
        "model_type": "llama", "quantization": "q0f32", "vocab_size": 300, "conv_template": "chatml"
    },
    Conversation: {"roles": {"user": "u", "assistant": "a"}, "seps": [""]},
}  # fmt: skip
"""Models, and what they cannot be without."""
BESIDE = {"top_logprobs": {"logprobs": True}}
"""Fields that make sense only beside others."""
NO_NUMBERS = [True, False, "1", "", b"1", 1j, [[1]], {"a": {}}, object(), "NaN", [None]]
NOT_FINITE = [math.nan, math.inf, -math.inf]
HUGE = [2**63, -(2**63) - 1, 10**400, -(10**400), 10**5000]
NUMBERS = [-2, -1, 0, 1, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**53 + 1, *HUGE]


@dataclass(frozen=True)
class Slot:
    """One place for a number: a field, or an item of one."""

    model: type
    field: str
    kind: type
    place: str
    wrap: Wrap

    def put(self, value: Any) -> Any:
        """The field as it is when the number is this one."""
        given = {**MODELS[self.model], **BESIDE.get(self.field, {}), self.field: self.wrap(value)}
        if self.model in (EngineConfig, GenerationConfig):
            return getattr(self.model(**given), self.field)
        parse: Any = self.model
        return getattr(parse.parse(given), self.field)

    def takes(self, value: Any) -> bool:
        """Raises anything that is no error of ours, or one that does not say what it should."""
        try:
            self.put(value)
        except InvalidField as error:
            self._check(error, value)
            return False
        return True

    def _check(self, error: InvalidField, value: Any) -> None:
        assert error.field.startswith(self.field), error.field
        said = str(error)
        assert self.field in said and "\n" not in said and len(said) < 400
        assert error.allowed
        if isinstance(value, (str, float)) or (isinstance(value, int) and abs(value) < 10**70):
            assert repr(value) in said or f"'{value}'" in said, said

    def names_limit(self, outside: Any, limit: Any) -> bool:
        """Whether the refusal says what would be taken, or that nothing else is."""
        with pytest.raises(InvalidField) as caught:
            self.put(outside)
        limits = (f"{limit:g}" if self.kind is float else str(limit), "2^63", "-1 (", "above 0")
        words = (*limits, "not supported", "leave it out")
        return any(word in caught.value.allowed for word in words)

    @cached_property
    def some(self) -> Any:
        """A number that is taken."""
        return next(one for one in (1, 0, 16, 0.5) if self.takes(one))

    def limit(self, sign: int) -> Any:
        """The last number that is taken when going up (1) or down (-1)."""
        good, bad = self.some, sign * 2**65
        assert not self.takes(bad)
        while True:
            middle = (good + bad) / 2 if self.kind is float else (good + bad) // 2
            middle = good + (bad - good) // 2 if self.kind is int else middle
            if middle in (good, bad):
                return good
            good, bad = (middle, bad) if self.takes(middle) else (good, middle)


def slots() -> Iterator[Slot]:
    for model in MODELS:
        hints = get_type_hints(model, include_extras=True)
        fields = getattr(model, "model_fields", None) or model.__dataclass_fields__  # type: ignore[attr-defined]
        for name in fields:
            for kind, place, wrap in _numbers(hints.get(name)):
                yield Slot(model, name, kind, place, wrap)


def _numbers(hint: Any) -> Iterator[tuple[type, str, Wrap]]:
    """The places of numbers in a type."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in (int, float):
        yield hint, "", lambda value: value
    elif origin is Annotated:
        yield from _numbers(inner[0])
    elif origin is list:
        for kind, place, wrap in _numbers(inner[0]):
            yield kind, f"item {place}".strip(), lambda value, wrap=wrap: [wrap(value)]
    elif origin is dict and inner == (int, float):
        yield int, "key", lambda value: {_hashable(value): 1.0}
        yield float, "value", lambda value: {1: value}
    elif origin is not None and str(origin) not in ("<class 'tuple'>", "typing.Literal"):
        for one in inner:
            yield from _numbers(one)


def _hashable(value: Any) -> Any:
    return value if value.__hash__ is not None else str(value)


SLOTS = list(slots())
IDS = [f"{one.model.__name__}.{one.field} {one.place}".strip() for one in SLOTS]
each_slot = pytest.mark.parametrize("slot", SLOTS, ids=IDS)


def test_the_fields_are_found() -> None:
    """A few that stand for all kinds of places."""
    assert {
        "EngineConfig.max_num_sequence",
        "EngineConfig.gpu_memory_utilization",
        "GenerationConfig.seed",
        "GenerationConfig.logit_bias key",
        "GenerationConfig.logit_bias value",
        "GenerationConfig.stop_token_ids item",
        "ChatCompletionRequest.max_completion_tokens",
        "CompletionRequest.logprobs",
        "CompletionRequest.prompt item item",
        "MLCChatConfig.eos_token_id item",
        "Conversation.stop_token_ids item",
    } <= set(IDS)
    assert len(SLOTS) > 60


@each_slot
def test_every_whole_number_is_inside_the_range_or_refused(slot: Slot) -> None:
    low, high = slot.limit(-1), slot.limit(1)
    assert low <= slot.some <= high < 2**64 and low > -(2**64)
    step = 1 if slot.kind is int else math.nextafter(high, math.inf) - high
    assert slot.takes(low) and slot.takes(high)
    for outside in (low - 1, high + 1, high + step, *HUGE):
        assert not slot.takes(outside), outside
    assert slot.names_limit(high + 1, high) and slot.names_limit(low - 1, low)
    for number in NUMBERS:
        if slot.takes(number):
            assert low <= number <= high


@each_slot
def test_what_is_no_number_is_refused(slot: Slot) -> None:
    for value in [*NO_NUMBERS, *NOT_FINITE]:
        is_id_as_json = slot.place == "key" and value == "1"
        is_text = slot.field == "prompt" and isinstance(value, str) and slot.place != "item item"
        assert slot.takes(value) == (is_id_as_json or is_text), value
    if slot.kind is int:
        assert not slot.takes(1.0) and not slot.takes(0.5)


@each_slot
def test_a_float_keeps_its_value_and_an_int_its_type(slot: Slot) -> None:
    found = slot.put(slot.some)
    while isinstance(found, (list, dict)):
        items = next(iter(found.items())) if isinstance(found, dict) else found
        found = items[1] if slot.place == "value" else items[0]
    assert found == slot.some and type(found) is slot.kind


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" * 300, "1" * 5000, "NaN", "-Infinity"])
@each_slot
def test_the_same_as_json(slot: Slot, number: str) -> None:
    """Python's parser makes infinity of a long exponent, and refuses very long integers."""
    marked = json.dumps({**MODELS[slot.model], slot.field: slot.wrap("@")})
    text = marked.replace('"@"', f'"{number}"' if slot.place == "key" else number)
    read = getattr(slot.model, "from_json", None) or slot.model.parse_text  # type: ignore[attr-defined]
    with pytest.raises(UserError) as caught:
        read(text)
    assert slot.field in str(caught.value) or "Failed to parse JSON" in str(caught.value)


def test_refusals_leave_nothing_in_memory() -> None:
    def refuse_all() -> None:
        for slot in SLOTS:
            for value in [*NO_NUMBERS, *NOT_FINITE, *HUGE]:
                slot.takes(value)

    refuse_all()
    gc.collect()
    tracemalloc.start()
    try:
        refuse_all()
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 64 * 1024, f"{kept} bytes are kept after {len(SLOTS)} fields"
