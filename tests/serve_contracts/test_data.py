"""Prompt data, stream outputs, requests, conversion of prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlc_llm.errors import InvalidField
from mlc_llm.images.decoder import ImageFile, decoded
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.openai_api_protocol import CompletionRequest
from mlc_llm.serve.data import (
    ImageData,
    RequestStreamOutput,
    SingleRequestStreamOutput,
    TextData,
    TokenData,
)
from mlc_llm.serve.engine_utils import (
    convert_prompts_to_data,
    openai_api_get_generation_config,
    random_uuid,
)
from mlc_llm.serve.request import Request

CONFIG = GenerationConfig()


@pytest.mark.parametrize("text", [None, 3, b"x", "\ud800", ["x"]])
def test_text_data_is_text(text: Any) -> None:
    with pytest.raises(InvalidField, match=r"TextData\.text"):
        TextData(text)
    assert TextData("né").text == "né"


@pytest.mark.parametrize("ids", ["12", 1, [-1], [2**31], [2**63], [1.0], [True], [None]])
def test_token_data_is_ids(ids: Any) -> None:
    with pytest.raises(InvalidField, match=r"TokenData\.token_ids"):
        TokenData(ids)


def test_token_data_keeps_its_own_list() -> None:
    ids = [1, 2**31 - 1]
    data = TokenData(ids)
    ids.append(-1)
    assert data.token_ids == [1, 2**31 - 1]


def test_an_image_is_a_file_or_an_array() -> None:
    assert ImageData(b"abc", 576).image == ImageFile(b"abc")
    assert ImageData.from_url("data:image/png;base64,YWJj").image == ImageFile(b"abc", "image/png")
    pixels = np.arange(2 * 5 * 3, dtype=np.uint8).reshape(2, 5, 3)
    for array in (pixels, pixels[None]):
        file = ImageData(array).image
        assert isinstance(file, ImageFile)
        assert (decoded(file) == pixels).all()


@pytest.mark.parametrize(
    "image", ["path.png", None, np.zeros((2, 2, 3)), np.zeros((2, 2), np.uint8), [1]]
)
def test_what_is_no_image_is_refused(image: object) -> None:
    with pytest.raises(InvalidField, match=r"ImageData\.image"):
        ImageData(image)
    with pytest.raises(InvalidField, match="pixels"):
        ImageData(np.zeros((0, 2, 3), np.uint8))
    with pytest.raises(InvalidField, match="embed_size"):
        ImageData(b"abc", -1)
    with pytest.raises(InvalidField, match="data: addresses"):
        ImageData.from_url("http://example.org/a.png")


def test_an_output_unpacks_to_one_item_a_sequence_and_only_once() -> None:
    output = RequestStreamOutput(
        "r",
        [[1, 2], [3]],
        [["a", "b"], ["c"]],
        [None, "stop"],
        group_extra_prefix_string=["", "x"],
        group_cut_bytes=[0, 2],
        group_stop_strs=[None, "end"],
    )
    request_id, sequences = output.unpack()
    assert request_id == "r"
    assert sequences == [
        SingleRequestStreamOutput([1, 2], ["a", "b"], None, None, ""),
        SingleRequestStreamOutput([3], ["c"], "stop", None, "x", cut_bytes=2, stop_str="end"),
    ]
    with pytest.raises(RuntimeError, match="unpacked before"):
        output.unpack()


def test_prefix_and_cut_default_to_nothing() -> None:
    _, sequences = RequestStreamOutput("r", [[1]], None, [None]).unpack()
    assert sequences == [SingleRequestStreamOutput([1], None, None, None, "", 0, None)]


def test_a_usage_output_unpacks_to_exactly_one_element() -> None:
    _, sequences = RequestStreamOutput.usage("r", "{}").unpack()
    assert sequences == [SingleRequestStreamOutput([], None, None, "{}", "")]


def test_all_sequences_end_together_with_the_reason() -> None:
    _, sequences = RequestStreamOutput.finished("r", 3, "error", "NaN logits").unpack()
    assert [(one.finish_reason, one.error) for one in sequences] == [("error", "NaN logits")] * 3
    _, sequences = RequestStreamOutput.finished("r", 2, "abort").unpack()
    assert [(one.finish_reason, one.error) for one in sequences] == [("abort", None)] * 2


@pytest.mark.parametrize(
    "groups",
    [
        ([], None, []),
        ([[1]], None, []),
        ([[1], [2]], None, [None]),
        ([[1]], [["a", "b"]], [None]),
        ([[1]], [[]], [None]),
    ],
)
def test_groups_of_unequal_length_are_our_own_bug(groups: Any) -> None:
    with pytest.raises(AssertionError):
        RequestStreamOutput("r", *groups)


def test_usage_comes_alone() -> None:
    with pytest.raises(AssertionError):
        RequestStreamOutput("r", [[1]], None, [None], "{}")


def test_a_request_holds_a_list_of_its_own() -> None:
    inputs = [TextData("a")]
    request = Request("r", inputs, GenerationConfig(n=2))
    inputs.clear()
    assert request.inputs == [TextData("a")]
    assert request.n == 2
    one: Any = TextData("b")
    assert Request("r", one, CONFIG).inputs == [TextData("b")]


@pytest.mark.parametrize(
    ("request_id", "inputs", "config", "field"),
    [
        ("", [TextData("a")], CONFIG, "request_id"),
        ("x" * 257, [TextData("a")], CONFIG, "request_id"),
        (3, [TextData("a")], CONFIG, "request_id"),
        ("r", [], CONFIG, "inputs"),
        ("r", "text", CONFIG, "inputs"),
        ("r", ["text"], CONFIG, r"inputs\[0\]"),
        ("r", [TextData("a")], {}, "generation_config"),
    ],
)
def test_a_bad_request_names_the_field(
    request_id: Any, inputs: Any, config: Any, field: str
) -> None:
    with pytest.raises(InvalidField, match=field):
        Request(request_id, inputs, config)


def test_a_special_request_needs_no_input() -> None:
    special = GenerationConfig(debug_config={"special_request": "query_engine_metrics"})  # type: ignore[arg-type]
    assert Request("r", [], special).is_special
    assert not Request("r", [TextData("a")], CONFIG).is_special


@pytest.mark.parametrize(
    ("prompts", "data"),
    [
        ("a", [[TextData("a")]]),
        (["a", "b"], [[TextData("a")], [TextData("b")]]),
        ([1, 2], [[TokenData([1, 2])]]),
        ([[1, 2], [3]], [[TokenData([1, 2])], [TokenData([3])]]),
        ([[TextData("a"), TokenData([1])]], [[TextData("a"), TokenData([1])]]),
        ([], []),
        (["a", [1]], [[TextData("a")], [TokenData([1])]]),
    ],
)
def test_prompts_of_every_form(prompts: Any, data: Any) -> None:
    assert convert_prompts_to_data(prompts) == data


@pytest.mark.parametrize(
    ("prompts", "field"),
    [
        (None, "prompts"),
        (3, "prompts"),
        ({"a": 1}, "prompts"),
        (["a", 3], r"prompts\[1\]"),
        ([[1, "a"]], r"prompts\[0\]"),
        ([[TextData("a"), 1]], r"prompts\[0\]"),
        ([["a"]], r"prompts\[0\]"),
        ([1, 2**31], r"prompts\[1\]"),
        (b"text", "prompts = b'text'.*type bytes"),
        ([b"text"], r"prompts\[0\] = b'text'.*type bytes"),
        ([None], r"prompts\[0\] = None"),
        ([[]], r"prompts\[0\] = \[\].*at least one"),
        (["a", []], r"prompts\[1\] = \[\].*at least one"),
        ([[[]]], r"prompts\[0\] = \[\[\]\]"),
        ([True], r"prompts\[0\] = True"),
    ],
)
def test_prompts_of_another_form_are_refused(prompts: Any, field: str) -> None:
    with pytest.raises(InvalidField, match=field):
        convert_prompts_to_data(prompts)


def test_strings_may_hold_control_tokens_where_the_caller_says_so() -> None:
    ordinary = TokenData([1])
    found = convert_prompts_to_data(["<|end|>", [1], [TextData("x")]], special=True)
    assert found == [[TextData("<|end|>", special=True)], [ordinary], [TextData("x")]]
    assert convert_prompts_to_data([], special=True) == []
    for prompts in ([1, 2], [[TextData("x")]]):
        with pytest.raises(InvalidField, match=r"special = True.*none is one"):
            convert_prompts_to_data(prompts, special=True)
    with pytest.raises(InvalidField, match="special = 1"):
        convert_prompts_to_data("x", special=1)  # type: ignore[arg-type]


def test_small_helpers() -> None:
    assert len({random_uuid() for _ in range(100)}) == 100
    assert len(random_uuid()) == 32
    request = CompletionRequest.parse({"prompt": "a", "max_tokens": 3})
    assert openai_api_get_generation_config(request).given == {"max_tokens": 3}
